//! Sets that have had their time: what their readers are told, and what is removed. And whether anything can be kept.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use sluice::clock::Clock;
use sluice::config::Layer;
use sluice::protocol::timestamp;
use sluice::store::{Continuity, Nonce, Outdated, Store, StoreOptions};
use sqlx::{AssertSqlSafe, Connection as _};
use support::db::{self, TestDatabase};
use support::{Agent, Behaviour, Client, Disk, Fault, Gateway, SampleSet, What, bytes, eventually, set_file, span};

const START: i64 = 1_800_000_000_000;
const HOUR: i64 = 60 * 60 * 1000;
const DAY: i64 = 24 * HOUR;

/// A gateway by a clock of its own, with chat `c1`.
struct House {
    gateway: Gateway,
    clock: Clock,
    agent: Agent,
}

impl House {
    async fn open(database: &TestDatabase, retention: &str) -> Self {
        Self::open_with(database, retention, |_| ()).await
    }

    async fn open_with(database: &TestDatabase, retention: &str, change: impl FnOnce(&mut Layer)) -> Self {
        let clock = Clock::fixed(START);
        let builder = Gateway::builder().on(database).clock(clock.clone());
        let gateway = builder
            .with(|layer| {
                layer.set_retention = Some(span(retention));
                // Whoever waits for an agent in vain fails the test.
                layer.agent_wait = Some(span("60s"));
                change(layer);
            })
            .start()
            .await;
        gateway.put_chat("c1", &["user:alice"]).await;
        gateway.bind_session("turn-1", "c1", "agent:ada").await;
        let agent = gateway.agent("ada").await;
        Self { gateway, clock, agent }
    }

    /// A set that is announced now and expires after so long.
    async fn announce(&self, seed: u64, len: usize, expires_in: Option<i64>) -> SampleSet {
        let mut set = SampleSet::of([("a.bin", bytes(seed, len))]);
        if let Some(expires_in) = expires_in {
            let at = self.clock.unix_millis() + expires_in;
            set.manifest["expiresAt"] = timestamp::format(at).into();
        }
        self.agent.announce_in("turn-1", &set).await;
        self.gateway.wait_for_set("c1", &set.identity()).await;
        set
    }

    /// Begins anew after so long: the sweep is the first thing that it does.
    async fn pass(&mut self, time: i64) {
        self.agent.cut().await;
        self.clock.set(self.clock.unix_millis() + time);
        self.gateway.restart().await;
    }

    fn alice(&self) -> String {
        self.gateway.reader("user:alice")
    }

    async fn get(&self, set: &SampleSet) -> (u16, String) {
        let answer = self.gateway.get(&set_file("c1", set, "a.bin"), &self.alice()).await;
        let code = if answer.status.is_success() { String::new() } else { answer.code() };
        (answer.status.as_u16(), code)
    }

    async fn listed(&self) -> Vec<Value> {
        self.listed_in("c1").await
    }

    async fn listed_in(&self, chat: &str) -> Vec<Value> {
        self.gateway.sets(chat).await
    }
}

async fn what_has_expired_is_asked_for_once(database: &TestDatabase) {
    let mut house = House::open(database, "0s").await;
    let gone = || (410, "blob_gone".to_owned());
    let expiring = house.announce(1, 1000, Some(HOUR)).await;
    let lasting = house.announce(2, 1000, None).await;
    let expired = |sets: Vec<Value>| sets.iter().map(|set| set["expired"].as_bool().unwrap()).collect::<Vec<_>>();
    assert_eq!(expired(house.listed().await), [false, false]);
    house.clock.set(START + HOUR);
    assert_eq!(expired(house.listed().await), [false, true]);
    // It may still have them.
    assert_eq!(house.get(&expiring).await.0, 200);
    assert_eq!(house.get(&lasting).await.0, 200);
    for fault in [Fault::Error("unknown_blob"), Fault::Error("read_failed")] {
        house.agent.behave(Behaviour::obedient().at(0, fault).always());
        let mark = house.agent.reads().len();
        assert_eq!(house.get(&expiring).await, gone(), "{fault:?}");
        assert_eq!(house.agent.reads().len(), mark + 1, "{fault:?}: it is asked once");
    }
    house.agent.cut().await;
    house.gateway.wait_for_metric("sluice_agents_online", 0.0).await;
    assert_eq!(house.get(&expiring).await, gone(), "nobody waits for its agent");
    let by_hash = format!("/artifacts/blobs/sha256:{}", expiring.files[0].sha256);
    assert_eq!(house.gateway.get(&by_hash, &house.alice()).await.status, 410);
}

async fn what_runs_is_ended_neither_by_expiry_nor_by_the_sweep(database: &TestDatabase) {
    let mut house = House::open(database, "0s").await;
    let set = house.announce(3, 16 << 20, Some(HOUR)).await;
    let path = set_file("c1", &set, "a.bin");
    let request = house.gateway.request(http::Method::GET, &path, &house.alice(), None);
    let mut download = house.gateway.client().receive_buffer(32 * 1024).send(request).await;
    let mut received = download.read(1000).await;
    house.clock.set(START + 30 * DAY);
    let store = &house.gateway.state().store;
    assert_eq!(store.sweep_announcements(Outdated::ExpiredBefore(START + 2 * HOUR), 10).await.unwrap(), 1);
    assert_eq!(store.sweep_manifests(10).await.unwrap(), 1);
    assert_eq!(house.get(&set).await, (404, "not_found".to_owned()));
    // Not even by losing its agent for a while.
    house.agent.cut().await;
    house.agent = house.gateway.agent("ada").await;
    house.agent.serve(&set);
    let (rest, end) = download.rest().await;
    received.extend(rest);
    assert!(end.is_ok(), "{end:?}");
    assert!(received == *set.files[0].bytes, "other bytes");
}

async fn the_sweep_removes_what_has_had_its_time(database: &TestDatabase) {
    let mut house = House::open(database, "20d").await;
    let short = house.announce(4, 100, Some(HOUR)).await;
    let lasting = house.announce(5, 100, None).await;
    // In no chat, and never to be.
    let stray = SampleSet::of([("a.bin", bytes(6, 100))]);
    house.agent.announce_in("turn-never", &stray).await;
    let swept = |what: &str| format!("sluice_swept_total{{what=\"{what}\"}}");
    let identities = |sets: Vec<Value>| {
        let mut all: Vec<_> = sets.iter().map(|set| set["sha256"].as_str().unwrap().to_owned()).collect();
        all.sort();
        all
    };
    eventually("the announcement", async || {
        let decided = house.gateway.metric("sluice_announcements_total{outcome=\"accepted\"}");
        (decided == 3.0).then_some(())
    })
    .await;
    house.pass(6 * DAY).await;
    house.gateway.wait_for_metric(&swept("expired_sets"), 0.0).await;
    let mut both = vec![short.identity(), lasting.identity()];
    both.sort();
    assert_eq!(identities(house.listed().await), both, "an expired set stays listed for a week");
    house.pass(2 * DAY).await;
    house.gateway.wait_for_metric(&swept("manifests"), 1.0).await;
    assert_eq!(identities(house.listed().await), [lasting.identity()]);
    // Announced again, it is kept anew.
    house.agent = house.gateway.agent("ada").await;
    house.agent.announce_in("turn-1", &lasting).await;
    house.gateway.wait_for_metric("sluice_announcements_total{outcome=\"accepted\"}", 1.0).await;
    house.pass(15 * DAY).await;
    // The stray one was announced three weeks ago.
    house.gateway.wait_for_metric(&swept("manifests"), 1.0).await;
    assert_eq!(house.gateway.metric(&swept("old_sets")), 1.0);
    assert_eq!(identities(house.listed().await), [lasting.identity()]);
    house.pass(10 * DAY).await;
    house.gateway.wait_for_metric(&swept("manifests"), 1.0).await;
    assert!(house.listed().await.is_empty());
    assert_eq!(house.get(&lasting).await, (404, "not_found".to_owned()));
    // Its session is a month old by now.
    assert_eq!(house.gateway.metric(&swept("sessions")), 1.0);
}

/// Rows of a table, whoever may see them.
async fn rows(database: &TestDatabase, table: &str) -> i64 {
    sqlx::any::install_default_drivers();
    let mut conn = sqlx::AnyConnection::connect(&database.url).await.unwrap();
    let count = sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {table}")));
    count.fetch_one(&mut conn).await.unwrap()
}

/// Chunks of the cache that are on the disk, and those that the gateway counts.
fn cached(house: &House, data: &std::path::Path) -> (usize, usize) {
    let folders = data.join("cache").read_dir().unwrap().map(|folder| folder.unwrap().path());
    let objects = folders.filter(|folder| folder.is_dir() && !folder.ends_with("tmp"));
    let on_disk = objects.map(|folder| folder.read_dir().unwrap().count()).sum();
    (on_disk, house.gateway.metric("sluice_cache_objects") as usize)
}

async fn what_no_set_of_a_chat_lists_goes_from_the_cache(database: &TestDatabase) {
    let data = tempfile::tempdir().unwrap();
    let mut house = House::open_with(database, "0s", |layer| {
        layer.data_dir = Some(data.path().to_owned());
        layer.cache_size = Some("64MiB".parse().unwrap());
    })
    .await;
    house.gateway.put_chat("c2", &["user:alice"]).await;
    house.gateway.bind_session("turn-2", "c2", "agent:ada").await;
    let chunk = 256 * 1024;
    let file = |seeds: &[u64]| seeds.iter().flat_map(|seed| bytes(*seed, chunk)).collect::<Vec<u8>>();
    // Two chunks in both chats, one in each; a file without chunks; and one whose set expires.
    let first = SampleSet::of([("a.bin", file(&[1, 2, 3])), ("b.bin", bytes(9, 1000))]).chunked(chunk);
    let second = SampleSet::of([("a.bin", file(&[2, 3, 4]))]).chunked(chunk);
    let mut third = SampleSet::of([("a.bin", file(&[5, 6]))]).chunked(chunk);
    third.manifest["expiresAt"] = timestamp::format(START + HOUR).into();
    for (chat, turn, set) in [("c1", "turn-1", &first), ("c2", "turn-2", &second), ("c2", "turn-2", &third)] {
        // Each is a set of its own, and none makes way for another.
        let task = |frame: &mut Value| {
            frame["session_id"] = turn.into();
            frame["task_id"] = set.identity().into();
        };
        house.agent.announce_with(set, task).await;
        house.gateway.wait_for_set(chat, &set.identity()).await;
        for file in &set.files {
            let answer = house.gateway.get(&set_file(chat, set, &file.path), &house.alice()).await;
            assert!(answer.body[..] == file.bytes[..], "{}", file.path);
        }
    }
    house.gateway.wait_for_metric("sluice_cache_objects", 7.0).await;
    let swept = "sluice_swept_total{what=\"cached_objects\"}";
    house.pass(60_000).await;
    house.gateway.wait_for_metric("sluice_cache_objects", 7.0).await;
    // Its own two go, with the chat.
    house.gateway.operate(http::Method::DELETE, "/v1/chats/c1", None).await;
    house.pass(60_000).await;
    house.gateway.wait_for_metric(swept, 2.0).await;
    assert_eq!(cached(&house, data.path()), (5, 5));
    // What expires is not kept for a week, as its place in the list is.
    house.pass(HOUR).await;
    house.gateway.wait_for_metric(swept, 2.0).await;
    assert_eq!(cached(&house, data.path()), (3, 3));
    assert_eq!(house.listed_in("c2").await.len(), 2);
    // What is left is served without its agent.
    let answer = house.gateway.get(&set_file("c2", &second, "a.bin"), &house.alice()).await;
    assert!(answer.body[..] == second.files[0].bytes[..]);
}

async fn what_a_transfer_has_still_to_come_to_stays_in_the_cache(database: &TestDatabase) {
    let mut house = House::open_with(database, "0s", |layer| layer.cache_size = Some("64MiB".parse().unwrap())).await;
    let chunk = 256 * 1024;
    let set = SampleSet::of([("a.bin", bytes(7, 64 * chunk))]).chunked(chunk);
    house.agent.announce_in("turn-1", &set).await;
    house.gateway.wait_for_set("c1", &set.identity()).await;
    let (path, content) = (set_file("c1", &set, "a.bin"), &set.files[0].bytes);
    assert!(house.gateway.get(&path, &house.alice()).await.body[..] == content[..]);
    house.gateway.wait_for_metric("sluice_cache_objects", 64.0).await;
    house.agent.cut().await;
    house.gateway.wait_for_metric("sluice_agents_online", 0.0).await;
    let request = house.gateway.request(http::Method::GET, &path, &house.alice(), None);
    let mut download = house.gateway.client().receive_buffer(32 * 1024).send(request).await;
    let mut received = download.read(1000).await;
    // It has expired, and is swept while it runs.
    let transfers = &house.gateway.state().transfers;
    let all = transfers.cached().await;
    assert_eq!(transfers.forget_cached(all).await, 0);
    let (rest, end) = download.rest().await;
    received.extend(rest);
    assert!(end.is_ok() && received == **content, "{end:?} after {} bytes", received.len());
    house.gateway.wait_for_metric("sluice_transfers_running", 0.0).await;
    let all = transfers.cached().await;
    assert_eq!(transfers.forget_cached(all).await, 64);
}

async fn files_that_nobody_offers_any_more_go_with_their_sets(database: &TestDatabase) {
    let mut house = House::open(database, "0s").await;
    house.announce(8, 100, Some(HOUR)).await;
    let before = (rows(database, "files").await, rows(database, "file_versions").await);
    assert!(before.0 == 1 && before.1 == 1, "{before:?}");
    house.pass(8 * DAY).await;
    eventually("the files' end", async || {
        let left = (rows(database, "files").await, rows(database, "file_versions").await);
        (left == (0, 0)).then_some(())
    })
    .await;
}

async fn nonces_and_keys_that_guard_nothing_are_forgotten(database: &TestDatabase) {
    let mut house = House::open(database, "0s").await;
    let store = &house.gateway.state().store;
    let (named, member) = ("agent:ada", "agent:https://member.example");
    let (gone, recent) = ("agent:https://gone.example", "agent:https://recent.example");
    house.gateway.put_chat("c1", &["user:alice", member]).await;
    for (agent, seen) in [(named, 0), (member, 0), (gone, 0), (gone, 1), (recent, 0), (recent, 10 * DAY)] {
        let (agent, key) = (agent.parse().unwrap(), format!("key {seen}"));
        store.hold_keys(&agent, &[key], false, START + seen).await.unwrap();
    }
    let expires_at = START + HOUR;
    store
        .spend_nonces(vec![Nonce { principal: gone.parse().unwrap(), nonce: "n".to_owned(), expires_at }])
        .await
        .unwrap();
    assert_eq!((rows(database, "keys").await, rows(database, "nonces").await), (6, 1));
    house.pass(91 * DAY).await;
    // Nobody has signed since.
    house.gateway.wait_for_metric("sluice_swept_total{what=\"nonces\"}", 1.0).await;
    eventually("the keys' end", async || (rows(database, "keys").await == 4).then_some(())).await;
    let known = async |agent: &str| {
        let agent = agent.parse().unwrap();
        let held = house.gateway.state().store.hold_keys(&agent, &["new".to_owned()], true, START).await.unwrap();
        held == Continuity::Broken
    };
    assert!(known(named).await && known(member).await && known(recent).await);
    assert!(!known(gone).await, "whoever comes next is taken for it");
}

async fn nothing_of_a_deleted_chat_remains(database: &TestDatabase) {
    let house = House::open(database, "0s").await;
    let set = house.announce(7, 100, None).await;
    house.gateway.operate(http::Method::DELETE, "/v1/chats/c1", None).await;
    house.gateway.put_chat("c1", &["user:alice"]).await;
    let by_hash = |hash: &str| format!("/api/blob/cas/{hash}");
    for path in [
        set_file("c1", &set, "a.bin"),
        format!("/v1/chats/c1/sets/{}", set.identity()),
        format!("/v1/chats/c1/sets/{}/entries", set.identity()),
        by_hash(&set.identity()),
        by_hash(&set.files[0].sha256),
    ] {
        assert_eq!(house.gateway.get(&path, &house.alice()).await.status, 404, "{path}");
    }
    assert!(house.listed().await.is_empty());
    // Here, unless the gateway's own sweep has come to it.
    house.gateway.state().store.sweep_manifests(10).await.unwrap();
    assert_eq!(house.gateway.state().store.manifest_bytes(&set.identity().parse().unwrap()).await.unwrap(), None);
}

on_both_databases!(
    what_has_expired_is_asked_for_once,
    what_runs_is_ended_neither_by_expiry_nor_by_the_sweep,
    the_sweep_removes_what_has_had_its_time,
    files_that_nobody_offers_any_more_go_with_their_sets,
    what_no_set_of_a_chat_lists_goes_from_the_cache,
    what_a_transfer_has_still_to_come_to_stays_in_the_cache,
    nothing_of_a_deleted_chat_remains,
    nonces_and_keys_that_guard_nothing_are_forgotten,
);

async fn readiness(gateway: &Gateway) -> u16 {
    ask_readiness(gateway).await.status.as_u16()
}

async fn ask_readiness(gateway: &Gateway) -> support::Answer {
    let url = format!("http://{}/readyz", gateway.ops_address());
    let request = http::Request::get(url).body(Default::default()).unwrap();
    Client::of(gateway.ops_address()).send(request).await.whole().await
}

/// Whether the answer says so, to whoever has to mend it.
async fn is_told(gateway: &Gateway, reason: &str) {
    let answer = ask_readiness(gateway).await.json();
    assert!(answer["status"] == "database down" && answer["reason"].as_str().unwrap().contains(reason), "{answer}");
}

async fn becomes(gateway: &Gateway, status: u16) {
    eventually("readiness", async || (readiness(gateway).await == status).then_some(())).await;
}

#[tokio::test]
async fn a_gateway_whose_database_file_is_gone_is_not_ready() {
    let database = TestDatabase::sqlite();
    let gateway = Gateway::builder().on(&database).start().await;
    becomes(&gateway, 200).await;
    // With what belongs to it: two databases on one log are neither.
    let parts = ["", "-wal", "-shm"].map(|end| {
        let file = database.folder().unwrap().join(format!("sluice.db{end}"));
        let aside = file.with_file_name(format!("aside{end}"));
        (file, aside)
    });
    parts.iter().for_each(|(file, aside)| std::fs::rename(file, aside).unwrap());
    becomes(&gateway, 503).await;
    is_told(&gateway, "moved away or replaced").await;
    // Another file in its place is not it either.
    let store = Store::open(&database.url, StoreOptions::default()).await.unwrap();
    store.beat().await.unwrap();
    assert_eq!(readiness(&gateway).await, 503);
    parts.iter().for_each(|(file, aside)| std::fs::rename(aside, file).unwrap());
    assert!(store.beat().await.is_err());
    becomes(&gateway, 200).await;
}

/// A set whose rows take about half a MiB.
fn wide_set(seed: usize) -> SampleSet {
    let mut set = SampleSet::of((0..40).map(|n| (format!("{n}.bin"), Vec::new())));
    for (n, entry) in set.manifest["entries"].as_array_mut().unwrap().iter_mut().enumerate() {
        let hash = support::sha256(format!("{seed} {n}").as_bytes());
        entry["size"] = (100 * 256 * 1024).into();
        entry["sha256"] = hash.as_str().into();
        entry["chunks"] = json!({ "chunkSize": 256 * 1024, "hashes": vec![hash; 100] });
    }
    set
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_what_is_accepted_is_kept_and_the_rest_is_refused() {
    let Some(disk) = Disk::mount("24m") else { return };
    let data = disk.path().join("data");
    let mut gateway = Gateway::builder().with(|layer| layer.data_dir = Some(data)).start().await;
    gateway.furnish().await;
    let mut agent = gateway.agent("ada").await;
    becomes(&gateway, 200).await;
    disk.fill();
    becomes(&gateway, 503).await;
    is_told(&gateway, "No space left on device").await;

    // Some may find room in what the database's files hold already.
    let counted = |outcome: &str| gateway.metric(&format!("sluice_announcements_total{{outcome=\"{outcome}\"}}"));
    let mut kept = Vec::new();
    let refused = loop {
        assert!(kept.len() < 40, "the disk is not full");
        let set = wide_set(kept.len());
        let event_id = agent.announce_in("turn-1", &set).await;
        let decided = eventually("a decision", async || {
            let outcomes = (counted("accepted") as usize, counted("unavailable") as usize);
            (outcomes.0 + outcomes.1 > kept.len()).then_some(outcomes)
        });
        if decided.await.1 == 0 {
            kept.push(set.identity());
            continue;
        }
        let told = agent.wait_for(|event| matches!(event.what, What::ArtifactError { .. })).await;
        let What::ArtifactError { event_id: echoed, sha256, code } = told.what else { unreachable!() };
        assert_eq!((echoed, sha256, code), (Some(event_id), set.identity(), "unavailable".to_owned()));
        break set;
    };
    let identities = |sets: Vec<Value>| -> Vec<String> {
        sets.iter().rev().map(|set| set["sha256"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(identities(gateway.sets("c1").await), kept);
    assert_eq!(readiness(&gateway).await, 503);

    disk.empty();
    becomes(&gateway, 200).await;
    agent.announce_in("turn-1", &refused).await;
    gateway.wait_for_set("c1", &refused.identity()).await;
    kept.push(refused.identity());
    agent.cut().await;
    gateway.restart().await;
    assert_eq!(identities(gateway.sets("c1").await), kept, "after a restart");
}

#[tokio::test]
async fn a_gateway_whose_database_takes_nothing_is_not_ready() {
    let Some(database) = TestDatabase::postgres().await else { return };
    let gateway = Gateway::builder().on(&database).start().await;
    becomes(&gateway, 200).await;
    let (server, name) = database.on_server().unwrap();
    let tell = async |sql: String| {
        let mut conn = sqlx::postgres::PgConnection::connect(server).await.unwrap();
        sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
    };
    let kill = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
    tell(format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    tell(kill.clone()).await;
    becomes(&gateway, 503).await;
    assert!(gateway.state().store.ping().await.is_ok(), "it answers");
    tell(format!("ALTER DATABASE {name} SET default_transaction_read_only = off")).await;
    tell(kill).await;
    becomes(&gateway, 200).await;
}
