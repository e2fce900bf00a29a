use std::sync::Arc;
use std::time::Duration;

use super::test_database::TestDatabase;
use super::{Commit, LARGE_ROWS, NewAnnouncement, NewSet, Quota, Store, StoreOptions};
use crate::clock::Clock;
use crate::protocol::{GrowingTree, Sha256, manifest};

async fn store(folder: &tempfile::TempDir, clock: Clock) -> Store {
    let url = format!("sqlite://{}/sluice.db", folder.path().display());
    Store::open(&url, StoreOptions { clock, ..StoreOptions::default() }).await.unwrap()
}

/// An announcement that takes about 200 KiB.
fn announcement() -> NewAnnouncement {
    announcement_of(500)
}

fn announcement_of(entries: u64) -> NewAnnouncement {
    let entry = |n: u64| {
        let sha256 = Sha256::of(&n.to_be_bytes());
        serde_json::json!({ "path": format!("{n}"), "size": 1, "sha256": sha256, "mediaType": "text/plain" })
    };
    let value = serde_json::json!({
        "kind": "webagents.artifact-set/v1", "createdAt": "2026-10-17T10:00:00Z", "expiresAt": null,
        "producer": { "agent": "https://agent.example" }, "entries": (0..entries).map(entry).collect::<Vec<_>>(),
    });
    let tree = GrowingTree::of(manifest::read(&value.to_string()).unwrap()).unwrap();
    NewAnnouncement {
        agent: "agent:a".parse().unwrap(),
        session: None,
        task: None,
        set: NewSet::Tree(Arc::new(tree.complete().unwrap())),
        locations: None,
        progress: None,
        quota: Quota::default(),
        deadline: None,
        order: None,
    }
}

#[tokio::test]
async fn a_full_disk_is_unavailable_and_leaves_nothing_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder, Clock::system()).await;
    // On the writer's one connection: nothing may grow the file from here.
    sqlx::query("PRAGMA max_page_count = 1").execute(&store.0.writer).await.unwrap();
    let refused = store.commit_announcement(announcement()).await.unwrap_err();
    assert!(refused.is_unavailable(), "{refused}");
    // The connection that the disk was full for is gone, and the limit with it.
    let NewSet::Tree(tree) = announcement().set else { unreachable!() };
    assert_eq!(store.manifest_bytes(&tree.root().identity).await.unwrap(), None);
    let kept = store.commit_announcement(announcement()).await.unwrap();
    assert!(matches!(kept, Commit::Stored(announced) if announced.new));
}

/// Neither at the end of its own commit nor of the next one, which may be somebody's who waits.
#[tokio::test]
async fn a_large_set_goes_from_the_log_into_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder, Clock::system()).await;
    let bytes = || std::fs::metadata(folder.path().join("sluice.db")).unwrap().len();
    let before = bytes();
    store.commit_announcement(announcement()).await.unwrap();
    assert_eq!(bytes(), before, "a small one waits for others");
    store.commit_announcement(announcement_of(LARGE_ROWS + 1)).await.unwrap();
    store.0.tasks.close();
    store.0.tasks.wait().await;
    assert!(bytes() > before + 200_000, "{} after {before}", bytes());
}

#[tokio::test]
async fn ids_grow_also_within_a_millisecond_and_when_the_clock_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::fixed(1_800_000_000_000);
    let store = store(&folder, clock.clone()).await;
    let mut last = store.next_id();
    assert_eq!(last >> 21, 1_800_000_000_000);
    for millis in [1_800_000_000_000, 1_700_000_000_000, -1, 1_800_000_000_001, i64::MAX, 0] {
        clock.set(millis);
        for _ in 0..100 {
            let id = store.next_id();
            assert!(id > last);
            last = id;
        }
        let many = store.next_ids(1000);
        assert!(many > last);
        last = many + 999;
    }
}

/// Whether the database answers and takes rows is told although all of its connections for requests are taken.
#[tokio::test]
async fn load_is_not_an_outage() {
    for database in [Some(TestDatabase::sqlite()), TestDatabase::postgres().await].into_iter().flatten() {
        let options = StoreOptions { acquire_timeout: Duration::from_secs(2), ..StoreOptions::default() };
        let store = Store::open(&database.url, options.clone()).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..options.connections {
            held.push(store.0.reader.acquire().await.unwrap());
        }
        assert!(store.chat(&"c1".parse().unwrap()).await.unwrap_err().is_unavailable());
        store.ping().await.unwrap();
        store.beat().await.unwrap();
    }
}
