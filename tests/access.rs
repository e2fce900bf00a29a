//! Who may read what, on both databases.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "support/db.rs"]
mod db;
#[path = "support/sets.rs"]
mod sets;

use db::TestDatabase;
use serde_json::{Value, json};
use sets::{announcement, id, open, read, set, value};
use sluice::access::{Access, BlobAnswer, BlobRequest, FileAccess, Readable, Way};
use sluice::identity::Caller;
use sluice::protocol::frames::Progress;
use sluice::protocol::{Location, LocationKind, Manifest, Sha256};
use sluice::store::{Commit, NewAnnouncement, Store};

on_both_databases!(
    a_participant_reads_a_file_and_nobody_else,
    removal_takes_effect_at_once,
    a_credential_limits_the_chats,
    everyone_is_every_caller,
    a_hash_alone_grants_nothing,
    sources_are_the_readable_announcements,
    who_announced_a_blob_first_stays_the_first,
    another_claim_is_a_later_one,
    a_rank_survives_the_binding_of_the_next_state,
    contradicting_sizes_are_settled_by_the_whole,
    a_contradiction_counts_however_many_offers_hide_it,
    contradicting_chunk_lists_are_nobodys,
    a_location_reaches_the_announcing_agent_only,
    a_reassigned_name_takes_its_relay_along,
    one_agent_with_many_sets_is_one_source,
    a_task_that_is_sent_must_match,
    a_set_may_be_asked_for_by_its_tasks_only,
    a_manifest_is_read_by_its_hash,
    a_manifests_hash_is_the_manifest_whoever_announces_it,
    what_no_entry_is_named_is_not_looked_for,
    an_agent_is_asked_for_by_name,
    a_failure_is_not_remembered,
);

const FLOW: &str = "agent:https://agent.example/agents/flow";
const OTHER: &str = "agent:other";
const CACHE: u64 = 1 << 20;

/// Chats `c1` (alice and the flow agent) and `c2` (bob and the other agent), each with a session.
async fn house(database: &TestDatabase) -> (Store, Access) {
    let store = open(database).await;
    for (chat, reader, agent, name) in [("c1", "user:alice", FLOW, "flow"), ("c2", "user:bob", OTHER, "other")] {
        store.put_chat(&id(chat), None, &[id(reader)]).await.unwrap();
        store.bind_session(&id(agent), &id(&format!("{chat}-{name}")), &id(chat)).await.unwrap();
        store.claim_name(&id(name), &id(agent), 1).await.unwrap();
    }
    (store.clone(), Access::new(store, CACHE))
}

fn caller(principal: &str) -> Caller {
    Caller { principal: id(principal), chats: None }
}

async fn announce(store: &Store, new: NewAnnouncement) {
    let commit = store.commit_announcement(new).await.unwrap();
    assert!(matches!(commit, Commit::Stored(_)), "{commit:?}");
}

async fn file(access: &Access, caller: &Caller, chat: &str, set: &Sha256, path: &str) -> Option<FileAccess> {
    access.file(caller, &id(chat), set, path).await.unwrap()
}

fn plain(sha256: &Sha256) -> BlobRequest<'_> {
    BlobRequest { agent: None, sha256, task: None, require_task: false }
}

async fn blob(access: &Access, caller: &Caller, sha256: &Sha256) -> Option<Readable> {
    match access.blob(caller, plain(sha256)).await.unwrap() {
        BlobAnswer::Blob(claims) => Some(claims.first().clone()),
        BlobAnswer::NotFound => None,
        other => panic!("{other:?}"),
    }
}

fn agents(readable: &Readable) -> Vec<&str> {
    readable.sources.iter().map(|source| source.agent.as_str()).collect()
}

async fn a_participant_reads_a_file_and_nobody_else(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let manifest = set(&[("reports/a.txt", "aaa"), ("b", "b")]);
    let identity = manifest.identity;
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest)).await;
    let (alice, bob) = (caller("user:alice"), caller("user:bob"));
    for _ in 0..2 {
        let found = file(&access, &alice, "c1", &identity, "reports/a.txt").await.unwrap();
        assert_eq!((&*found.path, &*found.media_type), ("reports/a.txt", "text/plain"));
        assert_eq!((found.readable.sha256, found.readable.size), (Sha256::of(b"aaa"), 3));
        assert_eq!(agents(&found.readable), [FLOW]);
        assert!(file(&access, &bob, "c1", &identity, "reports/a.txt").await.is_none());
        assert!(file(&access, &alice, "c2", &identity, "reports/a.txt").await.is_none());
        assert!(file(&access, &alice, "c1", &identity, "reports").await.is_none());
        assert!(file(&access, &alice, "c1", &Sha256::of(b"x"), "b").await.is_none());
        assert!(file(&access, &alice, "c1", &identity, &"b".repeat(5000)).await.is_none());
        assert!(access.is_participant(&alice, &id("c1")).await.unwrap());
        assert!(!access.is_participant(&bob, &id("c1")).await.unwrap());
    }
}

async fn removal_takes_effect_at_once(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let manifest = set(&[("a", "a")]);
    let identity = manifest.identity;
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest)).await;
    let alice = caller("user:alice");
    for _ in 0..3 {
        assert!(file(&access, &alice, "c1", &identity, "a").await.is_some());
        assert!(blob(&access, &alice, &Sha256::of(b"a")).await.is_some());
        store.remove_participant(&id("c1"), &alice.principal).await.unwrap();
        assert!(file(&access, &alice, "c1", &identity, "a").await.is_none());
        assert!(blob(&access, &alice, &Sha256::of(b"a")).await.is_none());
        assert!(!access.is_participant(&alice, &id("c1")).await.unwrap());
        store.add_participant(&id("c1"), &alice.principal).await.unwrap();
    }
    store.delete_chat(&id("c1")).await.unwrap();
    assert!(blob(&access, &alice, &Sha256::of(b"a")).await.is_none());
}

async fn a_credential_limits_the_chats(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let manifest = set(&[("a", "a")]);
    let identity = manifest.identity;
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest)).await;
    let limited = |chats: &[&str]| {
        let chats = chats.iter().map(|chat| id(chat)).collect();
        Caller { chats: Some(chats), ..caller("user:alice") }
    };
    assert!(file(&access, &limited(&["c2", "c1"]), "c1", &identity, "a").await.is_some());
    assert!(blob(&access, &limited(&["c2", "c1"]), &Sha256::of(b"a")).await.is_some());
    for chats in [&["c2"][..], &[]] {
        let caller = limited(chats);
        assert!(file(&access, &caller, "c1", &identity, "a").await.is_none());
        assert!(blob(&access, &caller, &Sha256::of(b"a")).await.is_none());
        assert!(!access.is_participant(&caller, &id("c1")).await.unwrap());
        assert!(matches!(access.blob(&caller, plain(&identity)).await.unwrap(), BlobAnswer::NotFound));
    }
}

async fn everyone_is_every_caller(database: &TestDatabase) {
    let (store, access) = house(database).await;
    announce(&store, announcement(FLOW, Some("c1-flow"), set(&[("a", "a")]))).await;
    let carol = caller("user:carol");
    assert!(blob(&access, &carol, &Sha256::of(b"a")).await.is_none());
    store.put_chat(&id("c1"), None, &[id("*")]).await.unwrap();
    assert!(blob(&access, &carol, &Sha256::of(b"a")).await.is_some());
    assert!(access.is_participant(&carol, &id("c1")).await.unwrap());
}

async fn a_hash_alone_grants_nothing(database: &TestDatabase) {
    let (store, access) = house(database).await;
    announce(&store, announcement(FLOW, Some("c1-flow"), set(&[("secret", "secret")]))).await;
    // Bob's agent has learned the hash, and offers it as its own.
    announce(&store, announcement(OTHER, Some("c2-other"), set(&[("mine", "secret")]))).await;
    let secret = Sha256::of(b"secret");
    assert_eq!(agents(&blob(&access, &caller("user:bob"), &secret).await.unwrap()), [OTHER]);
    assert_eq!(agents(&blob(&access, &caller("user:alice"), &secret).await.unwrap()), [FLOW]);
    // A set that is in no chat is nobody's.
    announce(&store, announcement(FLOW, None, set(&[("control", "control")]))).await;
    announce(&store, announcement(FLOW, Some("waiting"), set(&[("control", "control")]))).await;
    assert!(blob(&access, &caller("user:alice"), &Sha256::of(b"control")).await.is_none());
    assert!(blob(&access, &caller(FLOW), &Sha256::of(b"control")).await.is_none());
}

async fn sources_are_the_readable_announcements(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let alice = caller("user:alice");
    let own = set(&[("a", "shared")]);
    let identity = own.identity;
    announce(&store, announcement(FLOW, Some("c1-flow"), own)).await;
    announce(&store, announcement(OTHER, Some("c2-other"), set(&[("elsewhere", "shared")]))).await;
    assert_eq!(agents(&file(&access, &alice, "c1", &identity, "a").await.unwrap().readable), [FLOW]);
    store.add_participant(&id("c2"), &alice.principal).await.unwrap();
    // The set's own announcement comes first for a file; for a blob the oldest does.
    assert_eq!(agents(&file(&access, &alice, "c1", &identity, "a").await.unwrap().readable), [FLOW, OTHER]);
    assert_eq!(agents(&blob(&access, &alice, &Sha256::of(b"shared")).await.unwrap()), [FLOW, OTHER]);
}

/// A set of one entry, given as JSON over the usual one.
fn entry(change: Value) -> Manifest {
    let mut value = value(&[("a", "bytes")], None);
    for (name, part) in change.as_object().unwrap() {
        value["entries"][0][name] = part.clone();
    }
    read(&value)
}

/// Two chunks' worth of bytes under this hash, with a chunk list that begins with the hash of `first`.
fn claim(path: &str, size: u64, first: &str) -> Value {
    let hash = Sha256::of(b"bytes");
    let chunks = json!({ "chunkSize": 262_144, "hashes": [Sha256::of(first.as_bytes()), hash] });
    json!({ "path": path, "size": size, "sha256": hash, "mediaType": "text/plain", "chunks": chunks })
}

/// An unrelated file.
fn filler(path: &str) -> Value {
    json!({ "path": path, "size": 1, "sha256": Sha256::of(path.as_bytes()), "mediaType": "text/plain" })
}

/// A state of task `t`, of which so much is done.
fn state(agent: &str, session: &str, entries: Vec<Value>, done: u64) -> NewAnnouncement {
    let mut value = value(&[], None);
    value["entries"] = Value::Array(entries);
    let new = announcement(agent, Some(session), read(&value));
    NewAnnouncement { task: Some(id("t")), progress: Some(Progress { done, total: 9 }), ..new }
}

/// Alice may read what either agent announces.
async fn shared_house(database: &TestDatabase) -> (Store, Access) {
    let (store, access) = house(database).await;
    store.add_participant(&id("c2"), &id("user:alice")).await.unwrap();
    (store, access)
}

/// Whichever agent it is, and however many states of its task the announcement goes through.
async fn who_announced_a_blob_first_stays_the_first(database: &TestDatabase) {
    for (first, second) in [((FLOW, "c1-flow"), (OTHER, "c2-other")), ((OTHER, "c2-other"), (FLOW, "c1-flow"))] {
        let database = match database.is_postgres() {
            true => &TestDatabase::postgres().await.unwrap(),
            false => &TestDatabase::sqlite(),
        };
        let (store, access) = shared_house(database).await;
        let hash = Sha256::of(b"bytes");
        let seen = async || blob(&access, &caller("user:alice"), &hash).await.unwrap();
        announce(&store, state(first.0, first.1, vec![claim("a", 300_000, "true")], 1)).await;
        let alone = seen().await;
        assert_eq!((alone.size, agents(&alone), alone.chunks.is_some()), (300_000, vec![first.0], true));
        announce(&store, state(second.0, second.1, vec![claim("x", 300_001, "false")], 1)).await;
        let states = [
            vec![filler("0"), claim("a", 300_000, "true")],
            vec![claim("elsewhere", 300_000, "true"), filler("0"), claim("z", 300_000, "true")],
            vec![filler("1"), claim("a", 300_000, "true")],
        ];
        for (done, entries) in (2..).zip(states) {
            // The second goes on too.
            announce(
                &store,
                state(second.0, second.1, vec![filler(&done.to_string()), claim("x", 300_001, "false")], done),
            )
            .await;
            announce(&store, state(first.0, first.1, entries, if done == 4 { 9 } else { done })).await;
            let found = seen().await;
            assert_eq!((found.size, agents(&found)), (300_000, vec![first.0]), "state {done}");
            assert!(found.chunks.is_none(), "only the whole can tell");
        }
    }
}

/// A place is a blob's, and not its task's: what a task lists later, or says otherwise, came later.
async fn another_claim_is_a_later_one(database: &TestDatabase) {
    let (store, access) = shared_house(database).await;
    let hash = Sha256::of(b"bytes");
    let seen = async || blob(&access, &caller("user:alice"), &hash).await.unwrap();
    announce(&store, state(FLOW, "c1-flow", vec![filler("0")], 1)).await;
    announce(&store, state(OTHER, "c2-other", vec![claim("x", 300_000, "true")], 1)).await;
    announce(&store, state(FLOW, "c1-flow", vec![filler("0"), claim("a", 300_001, "false")], 2)).await;
    assert_eq!((seen().await.size, agents(&seen().await)), (300_000, vec![OTHER]));
    // And on it goes.
    announce(&store, state(OTHER, "c2-other", vec![filler("y"), claim("x", 300_002, "false")], 2)).await;
    assert_eq!((seen().await.size, agents(&seen().await)), (300_001, vec![FLOW]));
}

async fn a_rank_survives_the_binding_of_the_next_state(database: &TestDatabase) {
    let (store, access) = shared_house(database).await;
    let hash = Sha256::of(b"bytes");
    announce(&store, state(FLOW, "c1-flow", vec![claim("a", 300_000, "true")], 1)).await;
    announce(&store, state(OTHER, "c2-other", vec![claim("x", 300_001, "false")], 1)).await;
    announce(&store, state(FLOW, "later", vec![filler("0"), claim("a", 300_000, "true")], 2)).await;
    store.bind_session(&id(FLOW), &id("later"), &id("c1")).await.unwrap();
    assert_eq!(store.sets(&id("c1"), None, 10).await.unwrap().items.len(), 1, "the first state has made way");
    let found = blob(&access, &caller("user:alice"), &hash).await.unwrap();
    assert_eq!((found.size, agents(&found)), (300_000, vec![FLOW]));
}

async fn contradicting_sizes_are_settled_by_the_whole(database: &TestDatabase) {
    let (store, access) = shared_house(database).await;
    let (alice, hash) = (caller("user:alice"), Sha256::of(b"bytes"));
    let chunks = json!({ "chunkSize": 262_144, "hashes": [hash, hash] });
    announce(&store, announcement(OTHER, Some("c2-other"), entry(json!({ "size": 300_000, "chunks": chunks })))).await;
    assert!(blob(&access, &alice, &hash).await.unwrap().chunks.is_some());
    announce(&store, announcement(FLOW, Some("c1-flow"), entry(json!({})))).await;
    let found = blob(&access, &alice, &hash).await.unwrap();
    assert_eq!((found.size, agents(&found)), (300_000, vec![OTHER]), "the first one's bytes stay");
    assert!(found.chunks.is_none(), "its list is contradicted");
    // Whoever may not read the other set knows of no contradiction.
    assert!(blob(&access, &caller("user:bob"), &hash).await.unwrap().chunks.is_some());
    // By its agent's name, too, others' word counts.
    let name = id("other");
    let by_name = access.blob(&alice, BlobRequest { agent: Some(&name), ..plain(&hash) }).await.unwrap();
    assert!(
        matches!(by_name, BlobAnswer::Blob(found) if found.first().chunks.is_none() && found.first().size == 300_000)
    );
    // By its path, a file is what its own entry says.
    for (agent, chat, change, size) in
        [(FLOW, "c1", json!({}), 5), (OTHER, "c2", json!({ "size": 300_000, "chunks": chunks }), 300_000)]
    {
        let found = file(&access, &alice, chat, &entry(change).identity, "a").await.unwrap().readable;
        assert_eq!((found.size, agents(&found)), (size, vec![agent]));
        assert_eq!(found.chunks.is_some(), size > 5);
    }
}

/// More announcements than are looked at for an answer.
async fn a_contradiction_counts_however_many_offers_hide_it(database: &TestDatabase) {
    let (store, access) = shared_house(database).await;
    let hash = Sha256::of(b"bytes");
    for n in 0..70 {
        let mut value = value(&[], None);
        value["entries"] = json!([filler(&n.to_string()), claim("x", 300_000, "false")]);
        announce(&store, announcement(OTHER, Some("c2-other"), read(&value))).await;
    }
    let found = blob(&access, &caller("user:alice"), &hash).await.unwrap();
    assert_eq!((agents(&found), found.chunks.is_some()), (vec![OTHER], true));
    let mut value = value(&[], None);
    value["entries"] = json!([claim("a", 300_000, "true")]);
    announce(&store, announcement(FLOW, Some("c1-flow"), read(&value))).await;
    let found = blob(&access, &caller("user:alice"), &hash).await.unwrap();
    assert_eq!((found.sources[0].agent.as_str(), found.chunks.is_some()), (OTHER, false));
}

async fn contradicting_chunk_lists_are_nobodys(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let (alice, hash) = (caller("user:alice"), Sha256::of(b"bytes"));
    store.add_participant(&id("c2"), &id("user:alice")).await.unwrap();
    let listing = |first: &[u8]| {
        let chunks = json!({ "chunkSize": 262_144, "hashes": [Sha256::of(first), hash] });
        entry(json!({ "size": 300_000, "chunks": chunks }))
    };
    let own = listing(b"own");
    let set = own.identity;
    announce(&store, announcement(FLOW, Some("c1-flow"), own)).await;
    announce(&store, announcement(OTHER, Some("c2-other"), listing(b"other"))).await;
    let by_path = file(&access, &alice, "c1", &set, "a").await.unwrap().readable;
    assert_eq!(agents(&by_path), [FLOW], "another list vouches for other bytes");
    assert_eq!(by_path.chunks.as_ref().unwrap().hashes[0], Sha256::of(b"own"));
    let by_hash = blob(&access, &alice, &hash).await.unwrap();
    assert_eq!(agents(&by_hash), [FLOW, OTHER]);
    assert!(by_hash.chunks.is_none(), "only the whole file can tell");
}

async fn a_location_reaches_the_announcing_agent_only(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let (alice, hash) = (caller("user:alice"), Sha256::of(b"bytes"));
    let relay = |agent: &str| json!([{ "kind": "relay", "agent": agent }]);
    let https = json!([{ "kind": "https", "url": "https://agent.example/blob" }]);
    let reachable = async |manifest: Manifest, own: Option<&str>| {
        let identity = manifest.identity;
        let location = |agent: &str| vec![Location { kind: LocationKind::Relay, target: agent.to_owned() }];
        let new = announcement(FLOW, Some("c1-flow"), manifest);
        announce(&store, NewAnnouncement { locations: own.map(location), ..new }).await;
        let found = file(&access, &alice, "c1", &identity, "a").await;
        found.is_some_and(|found| found.readable.sources.iter().any(|source| source.way == Way::Relay))
    };
    assert!(!reachable(entry(json!({ "locations": relay("other") })), None).await);
    assert!(!reachable(entry(json!({ "locations": relay("nobody") })), Some("other")).await);
    assert!(blob(&access, &alice, &hash).await.is_none());
    assert!(!reachable(entry(json!({ "locations": https })), None).await);
    assert!(reachable(entry(json!({ "locations": https, "path": "a" })), Some("flow")).await);
    assert!(reachable(entry(json!({ "locations": relay("flow") })), None).await);
    assert!(blob(&access, &alice, &hash).await.is_some());
}

async fn a_reassigned_name_takes_its_relay_along(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let alice = caller("user:alice");
    let manifest = entry(json!({ "locations": [{ "kind": "relay", "agent": "flow" }] }));
    let identity = manifest.identity;
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest)).await;
    assert!(file(&access, &alice, "c1", &identity, "a").await.is_some());
    store.reassign_name(&id("flow"), &id(OTHER)).await.unwrap();
    assert!(file(&access, &alice, "c1", &identity, "a").await.is_none());
}

async fn one_agent_with_many_sets_is_one_source(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let alice = caller("user:alice");
    // One set that lists the bytes many times over, and many sets that do.
    let files: Vec<(String, &str)> = (0..100).map(|n| (n.to_string(), "same")).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), *content)).collect();
    announce(&store, announcement(FLOW, Some("c1-flow"), set(&files))).await;
    for n in 0..5 {
        announce(&store, announcement(FLOW, Some("c1-flow"), set(&[("a", "same"), ("n", &n.to_string())]))).await;
    }
    assert_eq!(agents(&blob(&access, &alice, &Sha256::of(b"same")).await.unwrap()), [FLOW]);
    let last = file(&access, &alice, "c1", &set(&files).identity, "99").await.unwrap();
    assert_eq!(agents(&last.readable), [FLOW]);
}

async fn a_task_that_is_sent_must_match(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let alice = caller("user:alice");
    let tasked = read(&value(&[("a", "tasked")], Some("t1")));
    let new = announcement(FLOW, Some("c1-flow"), tasked.clone());
    announce(&store, NewAnnouncement { task: Some(id("t2")), ..new }).await;
    announce(&store, announcement(FLOW, Some("c1-flow"), set(&[("a", "free")]))).await;
    let ask = async |sha256: &Sha256, task: Option<&str>, require_task| {
        access.blob(&alice, BlobRequest { agent: None, sha256, task, require_task }).await.unwrap()
    };
    let (tasked_blob, free) = (Sha256::of(b"tasked"), Sha256::of(b"free"));
    for required in [false, true] {
        // By the manifest's task or the announcement's.
        assert!(matches!(ask(&tasked_blob, Some("t1"), required).await, BlobAnswer::Blob(_)));
        assert!(matches!(ask(&tasked_blob, Some("t2"), required).await, BlobAnswer::Blob(_)));
        assert!(matches!(ask(&tasked.identity, Some("t1"), required).await, BlobAnswer::Manifest(_)));
        assert!(matches!(ask(&tasked_blob, Some("t3"), required).await, BlobAnswer::TaskMismatch));
        assert!(matches!(ask(&tasked.identity, Some("t3"), required).await, BlobAnswer::TaskMismatch));
        assert!(matches!(ask(&free, Some("t1"), required).await, BlobAnswer::TaskMismatch));
        assert!(matches!(ask(&free, None, required).await, BlobAnswer::Blob(_)));
        // What the caller may not read is not found, whatever it sends.
        assert!(matches!(ask(&Sha256::of(b"?"), Some("t1"), required).await, BlobAnswer::NotFound));
        let bob = BlobRequest { task: Some("t3"), require_task: required, ..plain(&tasked_blob) };
        assert!(matches!(access.blob(&caller("user:bob"), bob).await.unwrap(), BlobAnswer::NotFound));
    }
    assert!(matches!(ask(&tasked_blob, None, false).await, BlobAnswer::Blob(_)));
    assert!(matches!(ask(&tasked_blob, None, true).await, BlobAnswer::TaskRequired));
    assert!(matches!(ask(&tasked.identity, None, true).await, BlobAnswer::TaskRequired));
    // The same bytes in a set without a task: only that set is a source.
    store.bind_session(&id(OTHER), &id("c1-other"), &id("c1")).await.unwrap();
    announce(&store, announcement(OTHER, Some("c1-other"), set(&[("b", "tasked")]))).await;
    match ask(&tasked_blob, None, true).await {
        BlobAnswer::Blob(claims) => assert_eq!(agents(claims.first()), [OTHER]),
        other => panic!("{other:?}"),
    }
}

async fn a_manifest_is_read_by_its_hash(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let manifest = set(&[("a", "a")]);
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest.clone())).await;
    for _ in 0..2 {
        match access.blob(&caller("user:alice"), plain(&manifest.identity)).await.unwrap() {
            BlobAnswer::Manifest(found) => {
                assert_eq!(access.read(&found).await.unwrap().unwrap(), manifest.canonical);
                assert_eq!(found.size, manifest.canonical.len() as u64);
            }
            other => panic!("{other:?}"),
        }
        let bobs = access.blob(&caller("user:bob"), plain(&manifest.identity)).await.unwrap();
        assert!(matches!(bobs, BlobAnswer::NotFound));
    }
}

/// By the manifest's task or an announcement's, whichever way the set is asked for.
async fn a_set_may_be_asked_for_by_its_tasks_only(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let alice = caller("user:alice");
    let tasked = read(&value(&[("a", "tasked")], Some("t1")));
    for task in ["t2", "t3"] {
        let new = announcement(FLOW, Some("c1-flow"), tasked.clone());
        announce(&store, NewAnnouncement { task: Some(id(task)), ..new }).await;
    }
    announce(&store, announcement(FLOW, Some("c1-flow"), set(&[("free", "free")]))).await;
    let files = store.latest_files(&id("c1"), None, 10).await.unwrap().items;
    for (manifest, path, allowed) in [(&tasked, "a", &["t1", "t2", "t3"][..]), (&set(&[("free", "free")]), "free", &[])]
    {
        let by_set = access.set(&alice, &id("c1"), &manifest.identity).await.unwrap().unwrap();
        let by_path = file(&access, &alice, "c1", &manifest.identity, path).await.unwrap();
        let version = files.iter().find(|file| file.path == path).unwrap().file;
        let by_version = access.version(&alice, &id("c1"), version, 1).await.unwrap().unwrap();
        for tasks in [&by_set.tasks, &by_path.tasks, &by_version.tasks] {
            assert!(tasks.allow(None));
            for named in ["t1", "t2", "t3", "t4", "", "t1, t1"] {
                assert_eq!(tasks.allow(Some(named)), allowed.contains(&named), "{path} {named}");
            }
        }
        assert_eq!(access.read(&by_set.manifest).await.unwrap().unwrap(), manifest.canonical);
        assert!(access.set(&caller("user:bob"), &id("c1"), &manifest.identity).await.unwrap().is_none());
        assert!(access.set(&alice, &id("c2"), &manifest.identity).await.unwrap().is_none());
    }
}

/// The gateway has a manifest's bytes itself: whoever announces a file of its hash, before or after, changes nothing.
async fn a_manifests_hash_is_the_manifest_whoever_announces_it(database: &TestDatabase) {
    let (store, access) = shared_house(database).await;
    let manifest = read(&value(&[("a", "a")], Some("t1")));
    let hash = manifest.identity;
    let hijack = |n: u64| {
        let mut value = value(&[], None);
        let file = json!({ "path": "x", "size": 5 + n, "sha256": hash, "mediaType": "text/plain" });
        value["entries"] = json!([file]);
        announcement(OTHER, Some("c2-other"), read(&value))
    };
    announce(&store, hijack(0)).await;
    let bob = blob(&access, &caller("user:bob"), &hash).await.unwrap();
    assert_eq!((bob.size, agents(&bob)), (5, vec![OTHER]), "who may not read the manifest has what there is");
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest.clone())).await;
    announce(&store, hijack(1)).await;
    let alice = caller("user:alice");
    let (flow, other) = (id("flow"), id("other"));
    for agent in [None, Some(&flow), Some(&other)] {
        match access.blob(&alice, BlobRequest { agent, ..plain(&hash) }).await.unwrap() {
            BlobAnswer::Manifest(found) => {
                assert_eq!(access.read(&found).await.unwrap().unwrap(), manifest.canonical);
                assert_eq!(found.size, manifest.canonical.len() as u64);
            }
            answer => panic!("{agent:?}: {answer:?}"),
        }
    }
    // Nor does a rule that only the file's set passes.
    let ask = async |task, require_task| {
        access.blob(&alice, BlobRequest { task, require_task, ..plain(&hash) }).await.unwrap()
    };
    assert!(matches!(ask(None, true).await, BlobAnswer::TaskRequired));
    assert!(matches!(ask(Some("t2"), false).await, BlobAnswer::TaskMismatch));
    assert!(matches!(ask(Some("t1"), true).await, BlobAnswer::Manifest(_)));
}

async fn what_no_entry_is_named_is_not_looked_for(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let manifest = set(&[("a", "a")]);
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest.clone())).await;
    // A NUL is what Postgres takes for no text at all.
    for path in
        ["\0", "a\0", "", "/a", "a/", "a//a", "./a", "../a", "a\\b", "C:/a", &"a".repeat(256), &"a/".repeat(600)]
    {
        for who in ["user:alice", "user:bob"] {
            assert!(file(&access, &caller(who), "c1", &manifest.identity, path).await.is_none(), "{path:?}");
        }
    }
}

async fn an_agent_is_asked_for_by_name(database: &TestDatabase) {
    let (store, access) = house(database).await;
    store.bind_session(&id(OTHER), &id("c1-other"), &id("c1")).await.unwrap();
    let manifest = set(&[("a", "a")]);
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest.clone())).await;
    announce(&store, announcement(OTHER, Some("c1-other"), set(&[("b", "a")]))).await;
    let ask = async |name: &str, sha256: &Sha256| {
        let name = id(name);
        let request = BlobRequest { agent: Some(&name), ..plain(sha256) };
        access.blob(&caller("user:alice"), request).await.unwrap()
    };
    for (name, agent) in [("flow", FLOW), ("other", OTHER)] {
        match ask(name, &Sha256::of(b"a")).await {
            BlobAnswer::Blob(claims) => assert_eq!(agents(claims.first()), [agent]),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(ask("nobody", &Sha256::of(b"a")).await, BlobAnswer::NotFound));
    assert!(matches!(ask("flow", &manifest.identity).await, BlobAnswer::Manifest(_)));
    assert!(matches!(ask("other", &manifest.identity).await, BlobAnswer::NotFound));
}

async fn a_failure_is_not_remembered(database: &TestDatabase) {
    let (store, _) = house(database).await;
    let closed = open(database).await;
    let access = Access::new(closed.clone(), CACHE);
    closed.close().await;
    let alice = caller("user:alice");
    assert!(access.is_participant(&alice, &id("c1")).await.unwrap_err().is_unavailable());
    let access = Access::new(store, CACHE);
    assert!(access.is_participant(&alice, &id("c1")).await.unwrap());
}
