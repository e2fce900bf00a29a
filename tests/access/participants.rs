//! Chats' participants read what is in them, and nobody else does.

use sluice::access::{Access, BlobAnswer};
use sluice::identity::Caller;
use sluice::protocol::Sha256;

use crate::db::{self, TestDatabase};
use crate::on_both_databases;
use crate::sets::{announcement, id, open, set};
use crate::stage::{CACHE, FLOW, OTHER, agents, announce, blob, caller, file, house, plain};

on_both_databases!(
    a_participant_reads_a_file_and_nobody_else,
    removal_takes_effect_at_once,
    a_credential_limits_the_chats,
    everyone_is_every_caller,
    a_hash_alone_grants_nothing,
    what_no_entry_is_named_is_not_looked_for,
    a_failure_is_not_remembered,
);

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
