use std::sync::Arc;

use super::{Access, BlobAnswer, BlobRequest};
use crate::identity::Caller;
use crate::protocol::{ChatId, GrowingTree, Principal, Sha256, manifest};
use crate::store::{NewAnnouncement, NewSet, Quota, Store, StoreOptions};

/// What is not there and what is somebody else's are answered alike after the same questions to the database.
#[tokio::test]
async fn unknown_and_foreign_cannot_be_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/sluice.db", folder.path().display());
    let store = Store::open(&url, StoreOptions::default()).await.unwrap();
    let (chat, agent): (ChatId, Principal) = ("c1".parse().unwrap(), "agent:a".parse().unwrap());
    store.put_chat(&chat, None, &["user:alice".parse().unwrap()]).await.unwrap();
    store.bind_session(&agent, &"s1".parse().unwrap(), &chat).await.unwrap();
    let blob = Sha256::of(b"a");
    let value = serde_json::json!({
        "kind": "webagents.artifact-set/v1", "createdAt": "2026-10-17T10:00:00Z", "expiresAt": null,
        "producer": { "agent": "https://agent.example", "task": "t" },
        "entries": [{ "path": "a", "size": 1, "sha256": blob, "mediaType": "text/plain" }],
    });
    let tree = GrowingTree::of(manifest::read(&value.to_string()).unwrap()).unwrap().complete().unwrap();
    let set = tree.root().identity;
    let new = NewAnnouncement {
        agent,
        session: Some("s1".parse().unwrap()),
        task: None,
        set: NewSet::Tree(Arc::new(tree)),
        locations: None,
        progress: None,
        quota: Quota::default(),
        deadline: None,
        order: None,
    };
    store.commit_announcement(new).await.unwrap();

    let access = Access::new(store.clone(), 1 << 20);
    let bob = Caller { principal: "user:bob".parse().unwrap(), chats: None };
    let unknown = Sha256::of(b"unknown");
    let mut costs = Vec::new();
    for (set, path) in [(set, "a"), (set, "b"), (unknown, "a")] {
        for chat in [chat.clone(), "c2".parse().unwrap()] {
            let before = store.asked();
            assert!(access.file(&bob, &chat, &set, path).await.unwrap().is_none());
            costs.push(store.asked() - before);
        }
    }
    assert_eq!(costs, [1; 6]);
    for set in [set, unknown] {
        for chat in [&chat, &"c2".parse().unwrap()] {
            let before = store.asked();
            assert!(access.set(&bob, chat, &set).await.unwrap().is_none());
            assert_eq!(store.asked() - before, 1);
        }
    }
    let file = store.latest_files(&chat, None, 1).await.unwrap().items[0].file;
    for (chat, version) in [(&chat, 1), (&chat, 2), (&"c2".parse().unwrap(), 1)] {
        let before = store.asked();
        assert!(access.version(&bob, chat, file, version).await.unwrap().is_none());
        assert_eq!(store.asked() - before, 1);
    }
    for (task, require_task) in [(None, false), (None, true), (Some("t"), true), (Some("u"), false)] {
        let mut costs = Vec::new();
        for sha256 in [&blob, &set, &unknown] {
            let (access, before) = (Access::new(store.clone(), 1 << 20), store.asked());
            let request = BlobRequest { agent: None, sha256, task, require_task };
            assert!(matches!(access.blob(&bob, request).await.unwrap(), BlobAnswer::NotFound));
            costs.push(store.asked() - before);
        }
        assert_eq!(costs, [2; 3]);
    }
    // Asked again, memory answers.
    let before = store.asked();
    assert!(access.file(&bob, &chat, &set, "a").await.unwrap().is_none());
    assert_eq!(store.asked(), before);
}

/// However many read a manifest, it is asked for once and in memory once.
#[tokio::test]
async fn readers_of_a_manifest_share_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/sluice.db", folder.path().display());
    let store = Store::open(&url, StoreOptions::default()).await.unwrap();
    let (chat, agent): (ChatId, Principal) = ("c1".parse().unwrap(), "agent:a".parse().unwrap());
    store.put_chat(&chat, None, &["*".parse().unwrap()]).await.unwrap();
    store.bind_session(&agent, &"s1".parse().unwrap(), &chat).await.unwrap();
    let value = serde_json::json!({
        "kind": "webagents.artifact-set/v1", "createdAt": "2026-10-17T10:00:00Z", "expiresAt": null,
        "producer": { "agent": "https://agent.example" }, "entries": [],
    });
    let tree = GrowingTree::of(manifest::read(&value.to_string()).unwrap()).unwrap().complete().unwrap();
    let (identity, canonical) = (tree.root().identity, tree.root().canonical.clone());
    let new = NewAnnouncement {
        agent,
        session: Some("s1".parse().unwrap()),
        task: None,
        set: NewSet::Tree(Arc::new(tree)),
        locations: None,
        progress: None,
        quota: Quota::default(),
        deadline: None,
        order: None,
    };
    store.commit_announcement(new).await.unwrap();
    let access = Access::new(store.clone(), 1 << 20);
    let reader = Caller { principal: "user:a".parse().unwrap(), chats: None };
    let found = access.set(&reader, &chat, &identity).await.unwrap().unwrap();
    let before = store.asked();
    let readers = (0..1000).map(|_| access.read(&found.manifest));
    let read: Vec<_> =
        futures_util::future::join_all(readers).await.into_iter().map(|read| read.unwrap().unwrap()).collect();
    assert!(read.iter().all(|bytes| *bytes == canonical && bytes.as_ptr() == read[0].as_ptr()));
    assert_eq!(store.asked() - before, 1);
    // Who may, and how much there is, is answered without them.
    let again = Access::new(store.clone(), 1 << 20).set(&reader, &chat, &identity).await.unwrap().unwrap();
    assert_eq!(again.manifest.size, canonical.len() as u64);
    // The set, and its tasks.
    assert_eq!(store.asked() - before, 3);
    // One that is kept no longer is not made up.
    let gone = super::KeptManifest { sha256: Sha256::of(b"gone"), ..found.manifest };
    assert_eq!(access.read(&gone).await.unwrap(), None);
    assert_eq!(access.read(&gone).await.unwrap(), None);
}
