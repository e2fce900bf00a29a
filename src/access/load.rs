//! What questions cost, on both databases.

use std::sync::Arc;
use std::time::Duration;

use db::TestDatabase;
use serde_json::{Value, json};

use super::{Access, BlobAnswer, BlobRequest};
use crate::identity::Caller;
use crate::on_both_databases;
use crate::protocol::frames::Progress;
use crate::protocol::{ChatId, GrowingTree, Sha256, manifest};
use crate::store::test_database as db;
use crate::store::{Commit, NewAnnouncement, NewSet, Quota, Store, StoreError, StoreOptions};

on_both_databases!(
    a_task_that_was_not_named_before_costs_no_question,
    a_task_beyond_those_remembered_is_honoured,
    a_set_beyond_those_looked_at_is_found_by_its_task,
    a_chunk_list_is_in_memory_once_however_often_it_is_announced,
    one_caller_cannot_keep_the_others_from_the_database,
    what_many_ask_at_once_is_asked_of_the_database_about_once,
);

/// A chat of alice's, with a session of an agent.
async fn house(database: &TestDatabase) -> (Store, Access, ChatId) {
    let store = Store::open(&database.url, StoreOptions::default()).await.unwrap();
    let chat: ChatId = "c1".parse().unwrap();
    store.put_chat(&chat, None, &["user:alice".parse().unwrap()]).await.unwrap();
    store.bind_session(&"agent:a".parse().unwrap(), &"s1".parse().unwrap(), &chat).await.unwrap();
    (store.clone(), Access::new(store, 16 << 20), chat)
}

fn caller(name: &str) -> Caller {
    Caller { principal: name.parse().unwrap(), chats: None }
}

fn blob() -> Sha256 {
    Sha256::of(b"a")
}

/// A set that lists the blob, with something to tell it from others.
fn set(mark: usize, chunks: Option<Value>) -> Arc<crate::protocol::Tree> {
    let mut entry = json!({ "path": "a", "size": 1, "sha256": blob(), "mediaType": "text/plain" });
    if let Some(chunks) = chunks {
        entry["size"] = json!(262_144 * 1000);
        entry["chunks"] = chunks;
    }
    let value = json!({
        "kind": "webagents.artifact-set/v1", "createdAt": "2026-10-17T10:00:00Z", "expiresAt": null,
        "producer": { "agent": format!("https://agent.example/{mark}") }, "entries": [entry],
    });
    Arc::new(GrowingTree::of(manifest::read(&value.to_string()).unwrap()).unwrap().complete().unwrap())
}

async fn announce(store: &Store, set: &Arc<crate::protocol::Tree>, task: &str, progress: Option<Progress>) {
    let new = NewAnnouncement {
        agent: "agent:a".parse().unwrap(),
        session: Some("s1".parse().unwrap()),
        task: Some(task.parse().unwrap()),
        set: NewSet::Tree(Arc::clone(set)),
        locations: None,
        progress,
        quota: Quota::default(),
        deadline: None,
        order: None,
    };
    assert!(matches!(store.commit_announcement(new).await.unwrap(), Commit::Stored(_)));
}

async fn ask(access: &Access, who: &str, task: Option<&str>, require_task: bool) -> BlobAnswer {
    let sha256 = blob();
    let request = BlobRequest { agent: None, sha256: &sha256, task, require_task };
    access.blob(&caller(who), request).await.unwrap()
}

async fn a_task_that_was_not_named_before_costs_no_question(database: &TestDatabase) {
    let (store, access, _) = house(database).await;
    for task in ["t1", "t2"] {
        announce(&store, &set(0, None), task, None).await;
    }
    assert!(matches!(ask(&access, "user:alice", Some("t1"), false).await, BlobAnswer::Blob(_)));
    assert!(matches!(ask(&access, "user:bob", Some("t1"), false).await, BlobAnswer::NotFound));
    let before = store.asked();
    for n in 0..100 {
        let named = format!("x{n}");
        assert!(matches!(ask(&access, "user:alice", Some(&named), n % 2 == 0).await, BlobAnswer::TaskMismatch));
        assert!(matches!(ask(&access, "user:bob", Some(&named), n % 2 == 0).await, BlobAnswer::NotFound));
    }
    for require_task in [false, true] {
        assert!(matches!(ask(&access, "user:alice", Some("t2"), require_task).await, BlobAnswer::Blob(_)));
        assert!(matches!(ask(&access, "user:alice", None, require_task).await, BlobAnswer::Blob(_)));
    }
    assert_eq!(store.asked(), before);
}

async fn a_task_beyond_those_remembered_is_honoured(database: &TestDatabase) {
    let (store, access, _) = house(database).await;
    for n in 0..300 {
        announce(&store, &set(0, None), &format!("t{n}"), None).await;
    }
    for task in ["t0", "t150", "t299"] {
        assert!(matches!(ask(&access, "user:alice", Some(task), false).await, BlobAnswer::Blob(_)), "{task}");
    }
    assert!(matches!(ask(&access, "user:alice", Some("t300"), false).await, BlobAnswer::TaskMismatch));
}

async fn a_set_beyond_those_looked_at_is_found_by_its_task(database: &TestDatabase) {
    let (store, access, _) = house(database).await;
    for n in 0..70 {
        announce(&store, &set(n, None), &format!("t{n}"), None).await;
    }
    for task in ["t0", "t69"] {
        assert!(matches!(ask(&access, "user:alice", Some(task), false).await, BlobAnswer::Blob(_)), "{task}");
    }
    assert!(matches!(ask(&access, "user:alice", Some("t70"), false).await, BlobAnswer::TaskMismatch));
}

/// Every announcement makes what was remembered void, and asked again.
async fn a_chunk_list_is_in_memory_once_however_often_it_is_announced(database: &TestDatabase) {
    let (store, access, chat) = house(database).await;
    let chunks = json!({ "chunkSize": 262_144, "hashes": vec![blob(); 1000] });
    let set = set(0, Some(chunks));
    let identity = set.root().identity;
    let mut lists = Vec::new();
    for done in 0..5 {
        announce(&store, &set, "t", Some(Progress { done, total: 9 })).await;
        let BlobAnswer::Blob(claims) = ask(&access, "user:alice", None, false).await else { panic!("no blob") };
        lists.push(claims.first().chunks.clone().unwrap());
        let file = access.file(&caller("user:alice"), &chat, &identity, "a").await.unwrap().unwrap();
        lists.push(file.readable.chunks.unwrap());
    }
    assert_eq!(lists[0].hashes.len(), 1000);
    assert!(lists.iter().all(|list| Arc::ptr_eq(list, &lists[0])));
}

async fn one_caller_cannot_keep_the_others_from_the_database(database: &TestDatabase) {
    let (store, access, chat) = house(database).await;
    announce(&store, &set(0, None), "t", None).await;
    // As many as may ask at once, and one more, which is turned away before long.
    let mallory = caller("user:mallory");
    let mut turns = Vec::new();
    while let Ok(turn) = tokio::time::timeout(Duration::from_millis(50), access.turn(&mallory)).await {
        turns.push(turn.unwrap());
    }
    assert!(!turns.is_empty() && turns.len() < StoreOptions::default().connections as usize);
    assert!(matches!(access.is_participant(&mallory, &chat).await, Err(StoreError::Busy)));
    assert!(matches!(ask(&access, "user:alice", None, false).await, BlobAnswer::Blob(_)));
    drop(turns);
    assert!(!access.is_participant(&mallory, &chat).await.unwrap());
}

async fn what_many_ask_at_once_is_asked_of_the_database_about_once(database: &TestDatabase) {
    let (store, access, _) = house(database).await;
    announce(&store, &set(0, None), "t", None).await;
    let before = store.asked();
    assert!(matches!(ask(&access, "user:alice", None, false).await, BlobAnswer::Blob(_)));
    let alone = store.asked() - before;
    store.put_chat(&"c2".parse().unwrap(), None, &[]).await.unwrap();
    let before = store.asked();
    let all = (0..100).map(|_| ask(&access, "user:alice", None, false));
    assert!(futures_util::future::join_all(all).await.iter().all(|answer| matches!(answer, BlobAnswer::Blob(_))));
    // As often as one caller may ask at once.
    assert!((alone..=2 * alone).contains(&(store.asked() - before)), "{} against {alone}", store.asked() - before);
}
