//! Sets and their entries as they are listed, and manifests that are shared and swept.

use serde_json::json;
use sluice::protocol::Sha256;

use super::db::TestDatabase;
use super::sets::{self, announcement, id, open, set};
use super::{FLOW, OTHER, chat_with_session, db, listed, stored};
use crate::on_both_databases;

on_both_databases!(
    two_agents_share_one_manifest,
    a_set_of_10_000_entries,
    sets_are_listed_newest_first_by_page,
    orphaned_manifests_are_swept,
    what_the_sets_of_chats_list_is_told_in_parts,
);

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

async fn what_the_sets_of_chats_list_is_told_in_parts(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    // More entries than are looked at once, and more hashes than are read at once.
    let hash = |n: u64| Sha256::of(&n.to_be_bytes());
    let entry = |n: u64| {
        let chunks: Vec<_> = (0..200).map(|chunk| hash(1000 * n + chunk + 1).to_hex()).collect();
        let mut entry = json!({
            "path": format!("{n:04}.bin"), "size": 200 * 262_144, "sha256": hash(1000 * n).to_hex(),
            "mediaType": "application/octet-stream",
        });
        if n % 2 == 0 {
            entry["chunks"] = json!({ "chunkSize": 262_144, "hashes": chunks });
        }
        entry
    };
    let mut value = sets::value(&[], None);
    value["entries"] = (0..1200).map(entry).collect();
    let manifest = sets::read(&value);
    let identity = manifest.identity;
    stored(store.commit_announcement(announcement(FLOW, Some("s1"), manifest)).await.unwrap());
    let (mut all, mut from, mut parts) = (Vec::new(), Some(0), 0);
    while let Some(place) = from {
        let listed = store.listed(&identity, place).await.unwrap();
        assert!(listed.hashes.len() <= 66_000, "{} at once", listed.hashes.len());
        (from, parts) = (listed.next, parts + 1);
        all.extend(listed.hashes);
    }
    let chunks = |n: u64| if n % 2 == 0 { 0..201 } else { 0..1 };
    let mut expected: Vec<_> = (0..1200).flat_map(|n| chunks(n).map(move |at| hash(1000 * n + at))).collect();
    (all.sort(), expected.sort());
    assert!(all == expected && parts >= 3, "{} hashes in {parts} parts", all.len());
    // Only what is in a chat, and has not expired, page by page.
    stored(store.commit_announcement(announcement(FLOW, None, set(&[("a", "in no chat")]))).await.unwrap());
    let other = set(&[("a", "other")]);
    stored(store.commit_announcement(announcement(FLOW, Some("s1"), other.clone())).await.unwrap());
    let mut both = [identity, other.identity];
    both.sort();
    assert_eq!(store.manifests_in_chats(None, 0, 10).await.unwrap(), both);
    assert_eq!(store.manifests_in_chats(None, 0, 1).await.unwrap(), both[..1]);
    assert_eq!(store.manifests_in_chats(Some(both[0]), 0, 10).await.unwrap(), both[1..]);
    assert_eq!(store.manifests_in_chats(Some(both[1]), 0, 10).await.unwrap(), []);
    store.delete_chat(&id("c1")).await.unwrap();
    assert_eq!(store.manifests_in_chats(None, 0, 10).await.unwrap(), []);
}
