//! Two chats with an agent each, and the questions that are asked about their sets.

use serde_json::Value;
use sluice::access::{Access, BlobAnswer, BlobRequest, FileAccess, Readable};
use sluice::identity::Caller;
use sluice::protocol::{Manifest, Sha256};
use sluice::store::{Commit, NewAnnouncement, Store};

use crate::db::TestDatabase;
use crate::sets::{id, open, read, value};

pub const FLOW: &str = "agent:https://agent.example/agents/flow";
pub const OTHER: &str = "agent:other";
pub const CACHE: u64 = 1 << 20;

/// Chats `c1` (alice and the flow agent) and `c2` (bob and the other agent), each with a session.
pub async fn house(database: &TestDatabase) -> (Store, Access) {
    let store = open(database).await;
    for (chat, reader, agent, name) in [("c1", "user:alice", FLOW, "flow"), ("c2", "user:bob", OTHER, "other")] {
        store.put_chat(&id(chat), None, &[id(reader)]).await.unwrap();
        store.bind_session(&id(agent), &id(&format!("{chat}-{name}")), &id(chat)).await.unwrap();
        store.claim_name(&id(name), &id(agent), 1).await.unwrap();
    }
    (store.clone(), Access::new(store, CACHE))
}

pub fn caller(principal: &str) -> Caller {
    Caller { principal: id(principal), chats: None }
}

pub async fn announce(store: &Store, new: NewAnnouncement) {
    let commit = store.commit_announcement(new).await.unwrap();
    assert!(matches!(commit, Commit::Stored(_)), "{commit:?}");
}

pub async fn file(access: &Access, caller: &Caller, chat: &str, set: &Sha256, path: &str) -> Option<FileAccess> {
    access.file(caller, &id(chat), set, path).await.unwrap()
}

pub fn plain(sha256: &Sha256) -> BlobRequest<'_> {
    BlobRequest { agent: None, sha256, task: None, require_task: false }
}

pub async fn blob(access: &Access, caller: &Caller, sha256: &Sha256) -> Option<Readable> {
    match access.blob(caller, plain(sha256)).await.unwrap() {
        BlobAnswer::Blob(claims) => Some(claims.first().clone()),
        BlobAnswer::NotFound => None,
        other => panic!("{other:?}"),
    }
}

pub fn agents(readable: &Readable) -> Vec<&str> {
    readable.sources.iter().map(|source| source.agent.as_str()).collect()
}

/// A set of one entry, given as JSON over the usual one.
pub fn entry(change: Value) -> Manifest {
    let mut value = value(&[("a", "bytes")], None);
    for (name, part) in change.as_object().unwrap() {
        value["entries"][0][name] = part.clone();
    }
    read(&value)
}

/// Alice may read what either agent announces.
pub async fn shared_house(database: &TestDatabase) -> (Store, Access) {
    let (store, access) = house(database).await;
    store.add_participant(&id("c2"), &id("user:alice")).await.unwrap();
    (store, access)
}
