//! Announcements that are committed, superseded, bound later or refused.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use sluice::protocol::Sha256;
use sluice::protocol::frames::Progress;
use sluice::store::{
    Amount, Announced, Binding, Commit, Exceeded, LinkAdded, LinkRecord, NewAnnouncement, Quota, Store, StoreOptions,
    Unbound,
};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _};

use super::db::TestDatabase;
use super::sets::{announcement, id, identity_of, open, read, set, value};
use super::{FLOW, OTHER, chat_with_session, db, listed, stored};
use crate::on_both_databases;

on_both_databases!(
    the_same_announcement_twice_is_one_set,
    only_an_unfinished_set_is_superseded,
    a_set_waits_for_its_session,
    binding_applies_the_rules_of_announcing,
    quotas_are_kept,
    strangers_have_quotas_together,
    a_chat_holds_what_it_may_however_many_announce_at_once,
    a_chat_takes_no_more_waiting_sets_than_it_may_hold,
    one_agent_takes_only_its_part_of_a_chat,
    concurrent_announcements_of_one_manifest,
    too_late_is_not_kept,
    a_set_that_is_removed_meanwhile_is_kept_anew,
    a_chat_that_is_deleted_meanwhile_keeps_no_files,
    one_maker_has_so_many_links_however_they_come,
);

fn of_task(mut new: NewAnnouncement, task: &str, progress: Option<(u64, u64)>) -> NewAnnouncement {
    new.task = Some(id(task));
    new.progress = progress.map(|(done, total)| Progress { done, total });
    new
}

async fn the_same_announcement_twice_is_one_set(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    chat_with_session(&store, "c2", "s2").await;
    store.bind_session(&id(FLOW), &id("s1b"), &id("c1")).await.unwrap();
    let new = of_task(announcement(FLOW, Some("s1"), set(&[("a", "a")])), "t", Some((1, 2)));
    let first = stored(store.commit_announcement(new.clone()).await.unwrap());
    assert_eq!((first.chat.clone(), first.new), (Some(id("c1")), true));

    let mut again = of_task(new.clone(), "t", Some((2, 2)));
    // Another turn of the same chat is the same place.
    again.session = Some(id("s1b"));
    let again = stored(store.commit_announcement(again).await.unwrap());
    assert_eq!(again, Announced { new: false, ..first });
    let page = store.sets(&id("c1"), None, 10).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].progress, Some(Progress { done: 2, total: 2 }));

    let elsewhere = NewAnnouncement { session: Some(id("s2")), ..new.clone() };
    assert!(stored(store.commit_announcement(elsewhere).await.unwrap()).new);
    let other_task = of_task(new, "t2", None);
    assert!(stored(store.commit_announcement(other_task).await.unwrap()).new);
    assert_eq!(listed(&store, "c1").await.len(), 2);
}

async fn only_an_unfinished_set_is_superseded(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    let announce = async |content: &str, task: &str, progress| {
        let manifest = set(&[("a", content)]);
        let identity = manifest.identity;
        let new = of_task(announcement(FLOW, Some("s1"), manifest), task, progress);
        stored(store.commit_announcement(new).await.unwrap());
        identity
    };
    let _first = announce("1", "t", Some((1, 3))).await;
    let other = announce("other", "u", Some((1, 3))).await;
    let second = announce("2", "t", Some((3, 3))).await;
    assert_eq!(listed(&store, "c1").await, [second, other]);
    let third = announce("3", "t", None).await;
    assert_eq!(listed(&store, "c1").await, [third, second, other]);
}

async fn a_set_waits_for_its_session(database: &TestDatabase) {
    let store = open(database).await;
    store.put_chat(&id("c1"), None, &[]).await.unwrap();
    let manifest = set(&[("a", "a")]);
    let identity = manifest.identity;
    let waiting = stored(store.commit_announcement(announcement(FLOW, Some("s1"), manifest.clone())).await.unwrap());
    assert_eq!(waiting.chat, None);
    assert!(!store.has_set(&id("c1"), &identity).await.unwrap());

    // Another agent's announcement with the same session id is not carried along.
    let foreign = set(&[("b", "b")]);
    stored(store.commit_announcement(announcement(OTHER, Some("s1"), foreign)).await.unwrap());
    assert_eq!(store.bind_session(&id(FLOW), &id("s1"), &id("nowhere")).await.unwrap(), Binding::NoSuchChat);
    assert_eq!(store.bind_session(&id(FLOW), &id("s1"), &id("c1")).await.unwrap(), Binding::Bound(1));
    assert_eq!(listed(&store, "c1").await, [identity]);
    let again = stored(store.commit_announcement(announcement(FLOW, Some("s1"), manifest.clone())).await.unwrap());
    assert_eq!(again, Announced { chat: Some(id("c1")), new: false, ..waiting });

    let foreign = store.commit_announcement(announcement(OTHER, Some("s1"), manifest)).await.unwrap();
    assert_eq!(foreign, Commit::ForeignSession);
}

async fn binding_applies_the_rules_of_announcing(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    let old = of_task(announcement(FLOW, Some("s1"), set(&[("a", "unfinished")])), "t", Some((1, 2)));
    let same = announcement(FLOW, Some("s1"), set(&[("a", "same")]));
    for new in [old, same.clone()] {
        stored(store.commit_announcement(new).await.unwrap());
    }
    let newer = of_task(announcement(FLOW, Some("s2"), set(&[("a", "finished")])), "t", Some((2, 2)));
    let finished = identity_of(&newer);
    for new in [NewAnnouncement { session: Some(id("s2")), ..same.clone() }, newer] {
        assert_eq!(stored(store.commit_announcement(new).await.unwrap()).chat, None);
    }
    assert_eq!(store.bind_session(&id(FLOW), &id("s2"), &id("c1")).await.unwrap(), Binding::Bound(1));
    assert_eq!(listed(&store, "c1").await, [finished, identity_of(&same)]);
}

async fn strangers_have_quotas_together(database: &TestDatabase) {
    let store = open(database).await;
    let standard = Quota::default();
    let of_host = Unbound { sets: 3, ..standard.strangers_of_host };
    let quota = Quota { strangers_of_host: of_host, strangers: Unbound { sets: 5, ..standard.strangers }, ..standard };
    let mut number = 0;
    let mut announce = async |agent: &str| {
        number += 1;
        let new = announcement(agent, None, set(&[(&format!("f{number}"), "x")]));
        store.commit_announcement(NewAnnouncement { quota, ..new }).await.unwrap()
    };
    let too_many = Commit::QuotaExceeded(Exceeded::Strangers("sets"));
    for number in 0..6 {
        let agent = format!("agent:https://evil.example/{number}");
        store.claim_name(&id(&format!("n{number}")), &id(&agent), 1).await.unwrap();
        let commit = announce(&agent).await;
        assert_eq!(commit == too_many, number >= 3, "{number}: {commit:?}");
    }
    for (agent, name) in [("agent:https://a.example", "a"), ("agent:https://b.example", "b")] {
        store.claim_name(&id(name), &id(agent), 1).await.unwrap();
        stored(announce(agent).await);
    }
    // Together they have used up what there is for strangers, and for nobody else.
    store.claim_name(&id("c"), &id("agent:https://c.example"), 1).await.unwrap();
    assert_eq!(announce("agent:https://c.example").await, too_many);
    stored(announce("agent:by-token").await);
    store.put_chat(&id("c1"), None, &[id("agent:https://c.example")]).await.unwrap();
    stored(announce("agent:https://c.example").await);
    store.bind_session(&id("agent:https://evil.example/5"), &id("s"), &id("c1")).await.unwrap();
    stored(announce("agent:https://evil.example/5").await);
    // The database bounds bytes too.
    let bytes = Quota { strangers: Unbound { manifest_bytes: 10, ..standard.strangers }, ..standard };
    let new = announcement("agent:https://b.example", None, set(&[("more", "x")]));
    let refused = store.commit_announcement(NewAnnouncement { quota: bytes, ..new }).await.unwrap();
    assert_eq!(refused, Commit::QuotaExceeded(Exceeded::Strangers("bytes of manifests")));
}

async fn quotas_are_kept(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    let amount = Quota::default().agent;
    let quota = Quota { unbound: 2, agent: Amount { sets: 4, ..amount }, ..Quota::default() };
    let announce = async |content: &str, session: Option<&str>| {
        let new = announcement(FLOW, session, set(&[("a", content)]));
        store.commit_announcement(NewAnnouncement { quota, ..new }).await.unwrap()
    };
    let full = |commit| matches!(commit, Commit::QuotaExceeded(_));
    stored(announce("1", None).await);
    stored(announce("2", Some("unbound")).await);
    assert!(full(announce("3", Some("unbound too")).await));
    // What is known already is brought up to date in any case.
    assert!(!stored(announce("1", None).await).new);
    stored(announce("3", Some("s1")).await);
    stored(announce("4", Some("s1")).await);
    assert!(full(announce("5", Some("s1")).await));
    assert_eq!(store.bind_session(&id(FLOW), &id("unbound"), &id("c1")).await.unwrap(), Binding::Bound(1));

    let small = Quota { manifest_bytes: 10, ..Quota::default() };
    let new = announcement(OTHER, None, set(&[("a", "6")]));
    assert!(full(store.commit_announcement(NewAnnouncement { quota: small, ..new }).await.unwrap()));

    // An unfinished set that makes way does not count.
    let one = Quota { agent: Amount { sets: 1, ..amount }, ..Quota::default() };
    for content in ["7", "8", "9"] {
        let new = of_task(announcement(OTHER, None, set(&[("a", content)])), "t", Some((1, 2)));
        stored(store.commit_announcement(NewAnnouncement { quota: one, ..new }).await.unwrap());
    }
}

async fn a_chat_holds_what_it_may_however_many_announce_at_once(database: &TestDatabase) {
    let store = open(database).await;
    store.put_chat(&id("c1"), None, &[]).await.unwrap();
    let standard = Quota::default();
    let quota = Quota { chat: Amount { sets: 4, ..standard.chat }, ..standard };
    let mut announcements = Vec::new();
    for n in 0..16 {
        let (agent, session) = (format!("agent:a{n}"), format!("s{n}"));
        store.bind_session(&id(&agent), &id(&session), &id("c1")).await.unwrap();
        let new = announcement(&agent, Some(&session), set(&[("a", &n.to_string())]));
        announcements.push(store.commit_announcement(NewAnnouncement { quota, ..new }));
    }
    let outcomes: Vec<_> = join_all(announcements).await.into_iter().map(Result::unwrap).collect();
    let refused = outcomes.iter().filter(|outcome| **outcome == Commit::QuotaExceeded(Exceeded::Chat("sets"))).count();
    let kept = outcomes.iter().filter(|outcome| matches!(outcome, Commit::Stored(_))).count();
    assert_eq!((kept, refused, listed(&store, "c1").await.len()), (4, 12, 4));
}

async fn one_agent_takes_only_its_part_of_a_chat(database: &TestDatabase) {
    let standard = Quota::default();
    let chat = Amount { sets: 8, entries: 16, bytes: 1 << 20 };
    let quota = Quota { chat, chat_agent_percent: 25, ..standard };
    let store = Store::open(&database.url, StoreOptions { quota, ..StoreOptions::default() }).await.unwrap();
    chat_with_session(&store, "c1", "s1").await;
    store.bind_session(&id(OTHER), &id("s2"), &id("c1")).await.unwrap();
    store.put_chat(&id("c2"), None, &[]).await.unwrap();
    let announce = async |agent: &str, session: &str, set: Value| {
        let new = announcement(agent, Some(session), read(&set));
        store.commit_announcement(NewAnnouncement { quota, ..new }).await.unwrap()
    };
    let of_size = |size: u64| {
        let mut set = value(&[("a", &size.to_string())], None);
        set["entries"][0]["size"] = json!(size);
        set
    };
    let files = |count: usize| {
        let names: Vec<_> = (0..count).map(|number| number.to_string()).collect();
        value(&names.iter().map(|name| (name.as_str(), name.as_str())).collect::<Vec<_>>(), None)
    };
    let refused = |what| Commit::QuotaExceeded(Exceeded::Share(what));
    // In one frame.
    assert_eq!(announce(FLOW, "s1", of_size(300 << 10)).await, refused("bytes"));
    assert_eq!(announce(FLOW, "s1", files(5)).await, refused("entries"));
    stored(announce(FLOW, "s1", of_size(200 << 10)).await);
    // In several; and the same again is no more than it was.
    assert_eq!(announce(FLOW, "s1", of_size(100 << 10)).await, refused("bytes"));
    assert_eq!(announce(FLOW, "s1", files(4)).await, refused("entries"));
    stored(announce(FLOW, "s1", files(2)).await);
    stored(announce(FLOW, "s1", files(2)).await);
    assert_eq!(announce(FLOW, "s1", files(1)).await, refused("sets"));
    // The others have what is left.
    stored(announce(OTHER, "s2", of_size(250 << 10)).await);
    // What waits for its session counts as what is announced.
    for size in [10, 20, 30] {
        stored(announce(OTHER, "later", of_size(size)).await);
    }
    let too_many = Binding::QuotaExceeded(Exceeded::Share("sets"));
    for chat in ["c1", "c2"] {
        assert_eq!(store.bind_session(&id(OTHER), &id("later"), &id(chat)).await.unwrap(), too_many);
    }
    assert_eq!((listed(&store, "c1").await.len(), listed(&store, "c2").await.len()), (3, 0));
}

async fn a_chat_takes_no_more_waiting_sets_than_it_may_hold(database: &TestDatabase) {
    let standard = Quota::default();
    let quota = Quota { chat: Amount { sets: 2, ..standard.chat }, chat_agent_percent: 100, ..standard };
    let options = StoreOptions { quota, ..StoreOptions::default() };
    let store = Store::open(&database.url, options).await.unwrap();
    chat_with_session(&store, "c1", "s1").await;
    for chat in ["c2", "c3"] {
        store.put_chat(&id(chat), None, &[]).await.unwrap();
    }
    let announce = async |agent: &str, session: &str, content: &str| {
        let new = announcement(agent, Some(session), set(&[("a", content)]));
        stored(store.commit_announcement(new).await.unwrap());
    };
    announce(FLOW, "s1", "1").await;
    for content in ["1", "2", "3"] {
        announce(FLOW, "later", content).await;
    }
    let too_many = Binding::QuotaExceeded(Exceeded::Chat("sets"));
    for chat in ["c1", "c2"] {
        assert_eq!(store.bind_session(&id(FLOW), &id("later"), &id(chat)).await.unwrap(), too_many);
    }
    assert_eq!(store.session(&id("later")).await.unwrap(), None, "nothing was changed");
    assert_eq!((listed(&store, "c1").await.len(), listed(&store, "c2").await.len()), (1, 0));
    // What the chat has already does not count.
    for content in ["1", "2"] {
        announce(FLOW, "fits", content).await;
    }
    assert_eq!(store.bind_session(&id(FLOW), &id("fits"), &id("c1")).await.unwrap(), Binding::Bound(1));
    // Two agents' at once do not pass together.
    for content in ["1", "2"] {
        announce(FLOW, "flow's", content).await;
        announce(OTHER, "other's", content).await;
    }
    let (flow, other, chat) = (id(FLOW), id(OTHER), id("c3"));
    let (one, two) = (id("flow's"), id("other's"));
    let (one, two) = tokio::join!(store.bind_session(&flow, &one, &chat), store.bind_session(&other, &two, &chat));
    let mut outcomes = [one.unwrap(), two.unwrap()];
    outcomes.sort_by_key(|outcome| *outcome == too_many);
    assert_eq!(outcomes, [Binding::Bound(2), too_many]);
}

async fn concurrent_announcements_of_one_manifest(database: &TestDatabase) {
    let store = open(database).await;
    let manifest = Arc::new(set(&[("a", "a"), ("b", "b")]));
    let announce = (0..16).map(|n| {
        let agent = format!("agent:{}", n % 4);
        let new = announcement(&agent, None, set(&[("a", "a"), ("b", "b")]));
        let store = store.clone();
        async move { stored(store.commit_announcement(new).await.unwrap()) }
    });
    let all = futures_util::future::join_all(announce).await;
    assert_eq!(all.iter().filter(|announced| announced.new).count(), 4);
    let bytes = store.manifest_bytes(&manifest.identity).await.unwrap().unwrap();
    assert_eq!(bytes, manifest.canonical);
}

async fn too_late_is_not_kept(database: &TestDatabase) {
    let store = open(database).await;
    let manifest = set(&[("a", "a")]);
    let late =
        NewAnnouncement { deadline: Some(tokio::time::Instant::now()), ..announcement(FLOW, None, manifest.clone()) };
    assert!(store.commit_announcement(late).await.unwrap_err().is_unavailable());
    assert_eq!(store.manifest_bytes(&manifest.identity).await.unwrap(), None);
    // What was broken off stands in nobody's way.
    assert!(stored(store.commit_announcement(announcement(FLOW, None, manifest)).await.unwrap()).new);
}

/// Another connection to the database, in a transaction that writes.
async fn begun(database: &TestDatabase) -> AnyConnection {
    let mut conn = AnyConnection::connect(&database.url).await.unwrap();
    let begin = if database.is_postgres() { "BEGIN" } else { "BEGIN IMMEDIATE" };
    sqlx::query(begin).execute(&mut conn).await.unwrap();
    conn
}

/// Ends the transaction once somebody waits for what it holds.
async fn commit_when_waited_for(database: &TestDatabase, mut conn: AnyConnection) {
    if let Some((server, name)) = database.on_server() {
        let mut admin = AnyConnection::connect(server).await.unwrap();
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'";
        let waiting = async {
            while sqlx::query_scalar::<_, i64>(sql).bind(name).fetch_one(&mut admin).await.unwrap() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("nobody waits for the row");
    }
    // SQLite has one writer: whoever else begins has to wait, and sees what is there afterwards.
    sqlx::query("COMMIT").execute(&mut conn).await.unwrap();
}

async fn a_set_that_is_removed_meanwhile_is_kept_anew(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    let new = announcement(FLOW, Some("s1"), set(&[("a", "a")]));
    let first = stored(store.commit_announcement(new.clone()).await.unwrap());
    let mut sweep = begun(database).await;
    sqlx::query("DELETE FROM announcements WHERE id = $1").bind(first.id).execute(&mut sweep).await.unwrap();
    let (again, ()) = tokio::join!(store.commit_announcement(new.clone()), commit_when_waited_for(database, sweep));
    let again = stored(again.unwrap());
    assert!(again.new && again.id > first.id, "{again:?}");
    assert_eq!(listed(&store, "c1").await, [identity_of(&new)], "what was accepted is there");
    assert_eq!(store.latest_files(&id("c1"), None, 10).await.unwrap().items.len(), 1);
}

async fn a_chat_that_is_deleted_meanwhile_keeps_no_files(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    let new = of_task(announcement(FLOW, Some("s1"), set(&[("a", "a")])), "t", Some((1, 2)));
    stored(store.commit_announcement(new.clone()).await.unwrap());
    let mut deletion = begun(database).await;
    sqlx::query("DELETE FROM chats WHERE id = 'c1'").execute(&mut deletion).await.unwrap();
    // Finished, so its files would get versions.
    let finished = of_task(new, "t", None);
    let (kept, ()) = tokio::join!(store.commit_announcement(finished), commit_when_waited_for(database, deletion));
    let kept = stored(kept.unwrap());
    assert_eq!((kept.chat, kept.new), (None, true), "it waits for its session as any other");
    let mut conn = AnyConnection::connect(&database.url).await.unwrap();
    for table in ["files", "file_versions"] {
        let sql = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        assert_eq!(sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut conn).await.unwrap(), 0, "{table}");
    }
}

async fn one_maker_has_so_many_links_however_they_come(database: &TestDatabase) {
    let store = open(database).await;
    for chat in ["c1", "c2"] {
        store.put_chat(&id(chat), None, &[id("user:alice")]).await.unwrap();
    }
    let link = |n: usize, principal: &str| LinkRecord {
        id: format!("{n:032x}"),
        principal: id(principal),
        chat: id(["c1", "c2"][n % 2]),
        manifest: Sha256::of(b"m"),
        path: "a".to_owned(),
        created_at: store.now(),
        expires_at: store.now() + 3_600_000,
    };
    let add = async |n: usize, principal: &str| store.add_link(&format!("h{n}"), &link(n, principal), 3).await.unwrap();
    let added = futures_util::future::join_all((0..24).map(|n| add(n, "user:alice"))).await;
    assert_eq!(added.iter().filter(|added| **added == LinkAdded::Added).count(), 3);
    assert_eq!(add(100, "user:bob").await, LinkAdded::Added, "everybody has as many");
}
