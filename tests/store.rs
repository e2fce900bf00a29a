//! The store, on both databases.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "support/db.rs"]
mod db;
#[path = "support/sets.rs"]
mod sets;

use std::sync::Arc;
use std::time::Duration;

use db::TestDatabase;
use serde_json::json;
use sets::{announcement, id, identity_of, open, set};
use sluice::protocol::frames::Progress;
use sluice::protocol::{AgentName, Principal, Sha256};
use sluice::store::{
    Added, Amount, Announced, Binding, Claim, Commit, NewAnnouncement, OpenError, Quota, Store, StoreError,
    StoreOptions,
};
use sqlx::{AssertSqlSafe, Connection as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;

on_both_databases!(
    a_chat_is_created_replaced_and_deleted,
    the_same_announcement_twice_is_one_set,
    only_an_unfinished_set_is_superseded,
    a_set_waits_for_its_session,
    binding_applies_the_rules_of_announcing,
    a_session_is_bound_once,
    one_of_many_claims_gets_the_name,
    agents_are_listed_by_page,
    quotas_are_kept,
    two_agents_share_one_manifest,
    a_set_of_10_000_entries,
    sets_are_listed_newest_first_by_page,
    a_deleted_chat_leaves_nothing,
    orphaned_manifests_are_swept,
    concurrent_announcements_of_one_manifest,
    too_late_is_not_kept,
    a_write_outlives_its_caller,
    opening_again_finds_what_was_kept,
    a_newer_or_changed_or_half_migrated_database_is_refused,
    a_database_that_needs_migrations_is_refused_unless_asked,
);

const FLOW: &str = "agent:https://agent.example/agents/flow";
const OTHER: &str = "agent:other";

fn stored(commit: Commit) -> Announced {
    match commit {
        Commit::Stored(announced) => announced,
        refused => panic!("not stored: {refused:?}"),
    }
}

fn of_task(mut new: NewAnnouncement, task: &str, progress: Option<(u64, u64)>) -> NewAnnouncement {
    new.task = Some(id(task));
    new.progress = progress.map(|(done, total)| Progress { done, total });
    new
}

async fn chat_with_session(store: &Store, chat: &str, session: &str) {
    store.put_chat(&id(chat), None, &[id("user:alice")]).await.unwrap();
    let bound = store.bind_session(&id(FLOW), &id(session), &id(chat)).await.unwrap();
    assert!(matches!(bound, Binding::Bound(_)), "{bound:?}");
}

async fn listed(store: &Store, chat: &str) -> Vec<Sha256> {
    let page = store.sets(&id(chat), None, 100).await.unwrap();
    page.items.into_iter().map(|set| set.sha256).collect()
}

async fn a_chat_is_created_replaced_and_deleted(database: &TestDatabase) {
    let store = open(database).await;
    let chat = id("c1");
    let alice: Principal = id("user:alice");
    assert_eq!(store.add_participant(&chat, &alice).await.unwrap(), Added::NoSuchChat);
    assert_eq!(store.chat(&chat).await.unwrap(), None);

    let generation = store.generation();
    assert!(store.put_chat(&chat, Some("one"), &[alice.clone(), alice.clone()]).await.unwrap());
    assert!(store.generation() > generation);
    assert!(!store.put_chat(&chat, None, &[id("user:bob")]).await.unwrap());
    let found = store.chat(&chat).await.unwrap().unwrap();
    assert_eq!((found.title, found.participants), (None, vec![id("user:bob")]));

    assert_eq!(store.add_participant(&chat, &alice).await.unwrap(), Added::Participant);
    assert_eq!(store.add_participant(&chat, &alice).await.unwrap(), Added::Participant);
    assert!(store.is_participant(&chat, &alice).await.unwrap());
    assert!(store.remove_participant(&chat, &alice).await.unwrap());
    assert!(!store.remove_participant(&chat, &alice).await.unwrap());
    assert!(!store.is_participant(&chat, &alice).await.unwrap());
    store.add_participant(&chat, &Principal::everyone()).await.unwrap();
    assert!(store.is_participant(&chat, &alice).await.unwrap());

    assert!(store.delete_chat(&chat).await.unwrap());
    assert!(!store.delete_chat(&chat).await.unwrap());
    assert!(!store.is_participant(&chat, &alice).await.unwrap());
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

async fn a_session_is_bound_once(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    store.put_chat(&id("c2"), None, &[]).await.unwrap();
    assert_eq!(store.bind_session(&id(FLOW), &id("s1"), &id("c1")).await.unwrap(), Binding::Unchanged);
    assert_eq!(store.bind_session(&id(FLOW), &id("s1"), &id("c2")).await.unwrap(), Binding::Conflict);
    assert_eq!(store.bind_session(&id(OTHER), &id("s1"), &id("c1")).await.unwrap(), Binding::Conflict);
    assert_eq!(store.session(&id("s1")).await.unwrap().unwrap().agent, id(FLOW));
    assert_eq!(store.session(&id("s2")).await.unwrap(), None);
}

async fn one_of_many_claims_gets_the_name(database: &TestDatabase) {
    let store = open(database).await;
    let name: AgentName = id("flow");
    let claims = (0..8).map(|n| {
        let (store, name) = (store.clone(), name.clone());
        async move { store.claim_name(&name, &id(&format!("agent:{n}")), n).await.unwrap() }
    });
    let outcomes = futures_util::future::join_all(claims).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Claim::Held).count(), 1);
    let holder = store.agent_by_name(&name).await.unwrap().unwrap().principal;
    let generation = store.generation();
    let first_seen = store.agent_by_name(&name).await.unwrap().unwrap().last_seen_at;
    for (now, seen) in [(59_999, first_seen), (70_000, 70_000), (70_001, 70_000)] {
        assert_eq!(store.claim_name(&name, &holder, now).await.unwrap(), Claim::Held);
        assert_eq!(store.agent_by_name(&name).await.unwrap().unwrap().last_seen_at, seen, "to the minute");
    }
    assert_eq!(store.generation(), generation, "an agent that comes back voids nobody's answers");

    assert!(store.reassign_name(&name, &id(OTHER)).await.unwrap());
    assert!(!store.reassign_name(&id("nobody"), &id(OTHER)).await.unwrap());
    assert_eq!(store.claim_name(&name, &holder, 100).await.unwrap(), Claim::Foreign);
}

async fn agents_are_listed_by_page(database: &TestDatabase) {
    let store = open(database).await;
    for name in ["b", "a", "c"] {
        store.claim_name(&id(name), &id(OTHER), 1).await.unwrap();
    }
    let first = store.agents(None, 2).await.unwrap();
    assert_eq!(first.items.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let second = store.agents(first.next.as_ref(), 2).await.unwrap();
    assert_eq!(second.items.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>(), ["c"]);
    assert_eq!(second.next, None);
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

async fn two_agents_share_one_manifest(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    store.bind_session(&id(OTHER), &id("s2"), &id("c1")).await.unwrap();
    let manifest = set(&[("a", "a"), ("b", "b")]);
    for (agent, session) in [(FLOW, "s1"), (OTHER, "s2")] {
        stored(store.commit_announcement(announcement(agent, Some(session), manifest.clone())).await.unwrap());
    }
    assert_eq!(listed(&store, "c1").await, [manifest.identity; 2]);
    assert_eq!(store.manifest_bytes(&manifest.identity).await.unwrap().unwrap(), manifest.canonical);
    let entries = store.entries(&id("c1"), &manifest.identity, None, 10).await.unwrap();
    assert_eq!(entries.items.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(store.manifest_bytes(&Sha256::of(b"unknown")).await.unwrap(), None);
}

async fn a_set_of_10_000_entries(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    let entry = |n: u64| {
        let hash = Sha256::of(&n.to_be_bytes()).to_hex();
        json!({
            "path": format!("folder/{n:05}.bin"), "size": 600_000, "sha256": hash, "mediaType": "application/octet-stream",
            "chunks": { "chunkSize": 262_144, "hashes": [hash, hash, hash] },
        })
    };
    let mut value = sets::value(&[], None);
    value["entries"] = (0..10_000).map(entry).collect();
    let manifest = sets::read(&value);
    let identity = manifest.identity;
    stored(store.commit_announcement(announcement(FLOW, Some("s1"), manifest)).await.unwrap());
    let set = store.sets(&id("c1"), None, 1).await.unwrap().items.remove(0);
    assert_eq!((set.entries, set.size), (10_000, 6_000_000_000));

    let mut seen = 0;
    let mut after = None;
    loop {
        let page = store.entries(&id("c1"), &identity, after, 3000).await.unwrap();
        for entry in &page.items {
            assert_eq!(entry.path, format!("folder/{seen:05}.bin"));
            seen += 1;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, 10_000);
    let chunks = store.chunks(&identity, 9_999).await.unwrap().unwrap();
    assert_eq!((chunks.chunk_size, chunks.hashes), (262_144, vec![Sha256::of(&9_999_u64.to_be_bytes()); 3]));
}

async fn sets_are_listed_newest_first_by_page(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    store.claim_name(&id("flow"), &id(FLOW), 1).await.unwrap();
    let mut announced = Vec::new();
    for n in 0..5 {
        let manifest = set(&[("a", &n.to_string())]);
        announced.insert(0, manifest.identity);
        stored(store.commit_announcement(announcement(FLOW, Some("s1"), manifest)).await.unwrap());
    }
    let first = store.sets(&id("c1"), None, 2).await.unwrap();
    assert_eq!(first.items[0].agent_name, Some(id("flow")));
    // A set that comes in between moves no page.
    stored(store.commit_announcement(announcement(FLOW, Some("s1"), set(&[("a", "new")]))).await.unwrap());
    let cursor = first.next.unwrap().to_string().parse().unwrap();
    let second = store.sets(&id("c1"), Some(cursor), 3).await.unwrap();
    assert_eq!(second.next, None);
    let seen: Vec<Sha256> = first.items.iter().chain(&second.items).map(|set| set.sha256).collect();
    assert_eq!(seen, announced);
}

async fn a_deleted_chat_leaves_nothing(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    let manifest = set(&[("a", "a")]);
    stored(store.commit_announcement(announcement(FLOW, Some("s1"), manifest.clone())).await.unwrap());
    store.delete_chat(&id("c1")).await.unwrap();
    assert_eq!(store.session(&id("s1")).await.unwrap(), None);
    store.put_chat(&id("c1"), None, &[id("user:alice")]).await.unwrap();
    assert_eq!(listed(&store, "c1").await, []);
    assert!(store.entries(&id("c1"), &manifest.identity, None, 10).await.unwrap().items.is_empty());
}

async fn orphaned_manifests_are_swept(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    let (gone, kept) = (set(&[("a", "gone")]), set(&[("a", "kept")]));
    stored(store.commit_announcement(announcement(FLOW, Some("s1"), gone.clone())).await.unwrap());
    stored(store.commit_announcement(announcement(FLOW, None, kept.clone())).await.unwrap());
    store.delete_chat(&id("c1")).await.unwrap();
    assert_eq!(store.sweep_manifests(10).await.unwrap(), 1);
    assert_eq!(store.sweep_manifests(10).await.unwrap(), 0);
    assert_eq!(store.manifest_bytes(&gone.identity).await.unwrap(), None);
    assert!(store.manifest_bytes(&kept.identity).await.unwrap().is_some());
    // Announced again it is stored again, with its entries.
    chat_with_session(&store, "c2", "s2").await;
    stored(store.commit_announcement(announcement(FLOW, Some("s2"), gone.clone())).await.unwrap());
    assert_eq!(store.entries(&id("c2"), &gone.identity, None, 10).await.unwrap().items.len(), 1);
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

async fn a_write_outlives_its_caller(database: &TestDatabase) {
    let store = open(database).await;
    let chat = id("c1");
    let generation = store.generation();
    {
        // Polled once, so that the write has begun, then dropped.
        let mut write = std::pin::pin!(store.put_chat(&chat, None, &[]));
        assert!(futures_util::poll!(&mut write).is_pending());
    }
    store.close().await;
    assert!(store.generation() > generation);
    assert!(store.ping().await.unwrap_err().is_unavailable());
    assert!(open(database).await.chat(&chat).await.unwrap().is_some());
}

async fn opening_again_finds_what_was_kept(database: &TestDatabase) {
    let store = open(database).await;
    store.put_chat(&id("c1"), Some("title"), &[]).await.unwrap();
    store.close().await;
    let only_look = StoreOptions { migrate: false, ..StoreOptions::default() };
    let store = Store::open(&database.url, only_look).await.unwrap();
    assert_eq!(store.chat(&id("c1")).await.unwrap().unwrap().title.as_deref(), Some("title"));
    store.ping().await.unwrap();
}

async fn execute(database: &TestDatabase, sql: &str) {
    let mut conn = sqlx::AnyConnection::connect(&database.url).await.unwrap();
    sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
    conn.close().await.unwrap();
}

/// The version of the newest migration; they count from 1.
fn newest_migration() -> i64 {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations")).unwrap();
    let versions = folder.map(|file| file.unwrap().file_name().to_str().unwrap().split('_').next().unwrap().parse());
    versions.map(Result::unwrap).max().unwrap()
}

/// How many migrations there are; numbers may be left out.
fn migrations() -> usize {
    std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations")).unwrap().count()
}

async fn a_newer_or_changed_or_half_migrated_database_is_refused(database: &TestDatabase) {
    open(database).await.close().await;
    let refused = async || Store::open(&database.url, StoreOptions::default()).await.unwrap_err();
    execute(database, "UPDATE _sqlx_migrations SET success = FALSE WHERE version = 1").await;
    assert!(matches!(refused().await, OpenError::Dirty { version: 1, .. }));
    let newest = newest_migration();
    execute(database, "UPDATE _sqlx_migrations SET success = TRUE").await;
    execute(database, &format!("UPDATE _sqlx_migrations SET version = 99 WHERE version = {newest}")).await;
    let newer = refused().await;
    assert!(matches!(newer, OpenError::Newer { found: 99, known, .. } if known == newest), "{newer}");
    assert!(newer.to_string().contains("use the newer sluice"), "{newer}");
    let forget = if database.is_postgres() { "'\\x00'::bytea" } else { "x'00'" };
    execute(
        database,
        &format!("UPDATE _sqlx_migrations SET version = {newest}, checksum = {forget} WHERE version = 99"),
    )
    .await;
    assert!(matches!(refused().await, OpenError::Modified { version, .. } if version == newest));
}

async fn a_database_that_needs_migrations_is_refused_unless_asked(database: &TestDatabase) {
    if let Some(folder) = database.folder() {
        // An empty file is an empty database.
        std::fs::write(folder.join("sluice.db"), "").unwrap();
    }
    let only_look = StoreOptions { migrate: false, ..StoreOptions::default() };
    let refused = Store::open(&database.url, only_look.clone()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Pending { pending, .. } if pending == migrations()), "{refused}");
    assert!(refused.to_string().contains("sluice migrate"));
    open(database).await.close().await;
    Store::open(&database.url, only_look).await.unwrap();
}

#[tokio::test]
async fn a_wrong_url_says_what_to_do() {
    let refuse = async |url: &str| {
        let options = StoreOptions { connect_timeout: Duration::from_secs(2), ..StoreOptions::default() };
        let message = Store::open(url, options).await.unwrap_err().to_string();
        assert!(!message.contains('\n') && !message.contains("hunter2"), "{message}");
        message
    };
    assert!(refuse("mysql://u:hunter2@db/x").await.contains("postgres:// or sqlite://"));
    assert!(refuse("nonsense").await.contains("postgres:// or sqlite://"));
    assert!(refuse("sqlite::memory:").await.contains("must be a file"));
    assert!(refuse("postgres://u:hunter2@[bad/x").await.contains("not valid"));
    assert!(refuse("postgres://u:hunter2@db/x?sslmode=maybe").await.contains("not valid"));
    // Bound and never listening: connections are refused.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let message = refuse(&format!("postgres://u:hunter2@127.0.0.1:{port}/x")).await;
    assert!(message.contains(&format!("127.0.0.1:{port}/x")), "{message}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "These are only some notes, long enough to have a header of their own.".repeat(20)).unwrap();
    assert!(refuse(&format!("sqlite://{}", file.display())).await.contains("not a SQLite database"));
    let missing = folder.path().join("no/such/folder/x.db");
    let message = refuse(&format!("sqlite://{}", missing.display())).await;
    assert!(message.contains("cannot open") && message.contains("x.db"), "{message}");
}

#[tokio::test]
async fn a_sqlite_path_keeps_its_steps_back_and_its_odd_characters() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("a b/c")).unwrap();
    for (path, file) in [("a b/c/../../100%25 new.db", "100% new.db"), ("a b/%23 and %3F.db", "a b/# and ?.db")] {
        let url = format!("sqlite://{}/{path}", folder.path().display());
        Store::open(&url, StoreOptions::default()).await.unwrap().close().await;
        assert!(folder.path().join(file).is_file(), "{path}");
    }
    // A relative path is the process's, so this only looks.
    let only_look = StoreOptions { migrate: false, ..StoreOptions::default() };
    let missing = Store::open("sqlite://../../no-such-folder/x.db", only_look).await.unwrap_err();
    assert!(
        matches!(&missing, OpenError::NotWritable { path, .. } if path == "../../no-such-folder/x.db"),
        "{missing}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_come_back() {
    let Some(database) = TestDatabase::postgres().await else { return };
    let store = open(&database).await;
    store.put_chat(&id("c1"), None, &[]).await.unwrap();
    let (server, name) = database.on_server().unwrap();
    let mut admin = sqlx::postgres::PgConnection::connect(server).await.unwrap();
    let kill = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
    let mut tell = async |sql: String| sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
    for _ in 0..3 {
        tell(kill.clone()).await;
        // The pool tries a connection before it hands it out; a query that still meets a dead one says so.
        let first = store.chat(&id("c1")).await;
        assert!(!matches!(first, Err(StoreError::Failed(_))), "{first:?}");
        assert!(store.chat(&id("c1")).await.unwrap().is_some());
        store.put_chat(&id("c1"), None, &[]).await.unwrap();
    }
    // While the server lets nobody in, a query fails in bounded time.
    tell(format!("ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")).await;
    tell(kill).await;
    let away = store.chat(&id("c1")).await.unwrap_err();
    assert!(away.is_unavailable(), "{away}");
    tell(format!("ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")).await;
    assert!(store.chat(&id("c1")).await.unwrap().is_some());
}

/// Passes bytes on to the server while `open`, and holds them back otherwise: a network that swallows packets.
async fn pass_on(listener: tokio::net::TcpListener, server: String, open: watch::Receiver<bool>) {
    async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut open: watch::Receiver<bool>) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            if open.wait_for(|open| *open).await.is_err() || to.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    }
    let mut tasks = tokio::task::JoinSet::new();
    while let Ok((from, _)) = listener.accept().await {
        let to = tokio::net::TcpStream::connect(&server).await.unwrap();
        let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
        tasks.spawn(copy(from_read, to_write, open.clone()));
        tasks.spawn(copy(to_read, from_write, open.clone()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_network_is_unavailable_in_bounded_time() {
    let Some(database) = TestDatabase::postgres().await else { return };
    let url: http::Uri = database.url.parse().unwrap();
    let authority = url.authority().unwrap();
    let (user, server) = authority.as_str().rsplit_once('@').unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxied = format!("postgres://{user}@{}{}", listener.local_addr().unwrap(), url.path());
    let (open, opened) = watch::channel(true);
    let mut proxy = tokio::task::JoinSet::new();
    proxy.spawn(pass_on(listener, server.to_owned(), opened));

    let options = StoreOptions { acquire_timeout: Duration::from_millis(300), ..StoreOptions::default() };
    let store = Store::open(&proxied, options).await.unwrap();
    store.put_chat(&id("c1"), None, &[]).await.unwrap();
    open.send(false).unwrap();
    let started = std::time::Instant::now();
    assert!(store.chat(&id("c1")).await.unwrap_err().is_unavailable());
    assert!(store.put_chat(&id("c1"), None, &[]).await.unwrap_err().is_unavailable());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    open.send(true).unwrap();
    assert!(store.chat(&id("c1")).await.unwrap().is_some());
}
