//! Versions of files, on both databases.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "support/db.rs"]
mod db;
#[path = "support/sets.rs"]
mod sets;

use std::time::{Duration, Instant};

use db::TestDatabase;
use serde_json::json;
use sets::{announcement, id, identity_of, open, set, tree};
use sluice::access::Access;
use sluice::identity::Caller;
use sluice::protocol::frames::Progress;
use sluice::protocol::{Manifest, Sha256};
use sluice::store::{Announced, Binding, Commit, NewAnnouncement, NewSet, Store, StoreOptions, VersionRecord};

on_both_databases!(
    other_bytes_are_the_next_version,
    a_path_is_one_agent_s_in_one_chat,
    an_unfinished_set_has_no_versions_yet,
    a_set_that_has_versions_does_not_make_way,
    waiting_sets_get_their_versions_at_binding,
    a_set_that_is_kept_late_is_not_the_latest,
    versions_stay_fetchable_for_readers_of_the_chat,
    files_are_listed_by_page,
    a_deleted_chat_leaves_no_files,
    files_that_nobody_offers_are_swept,
    nested_files_have_versions_by_full_path,
    small_announcements_pass_huge_ones,
    a_huge_set_is_not_kept_by_the_plan_of_small_ones,
);

const FLOW: &str = "agent:https://agent.example/agents/flow";
const OTHER: &str = "agent:other";

async fn house(database: &TestDatabase) -> Store {
    let store = open(database).await;
    for (chat, reader) in [("c1", "user:alice"), ("c2", "user:bob")] {
        store.put_chat(&id(chat), None, &[id(reader)]).await.unwrap();
        for agent in [FLOW, OTHER] {
            store.bind_session(&id(agent), &id(&format!("{agent} in {chat}")), &id(chat)).await.unwrap();
        }
    }
    store
}

fn in_chat(agent: &str, chat: &str, manifest: Manifest) -> NewAnnouncement {
    announcement(agent, Some(&format!("{agent} in {chat}")), manifest)
}

fn of_task(mut new: NewAnnouncement, task: &str, progress: Option<(u64, u64)>) -> NewAnnouncement {
    new.task = Some(id(task));
    new.progress = progress.map(|(done, total)| Progress { done, total });
    new
}

async fn keep(store: &Store, new: NewAnnouncement) -> Announced {
    match store.commit_announcement(new).await.unwrap() {
        Commit::Stored(announced) => announced,
        refused => panic!("not stored: {refused:?}"),
    }
}

/// Path and version of the latest files.
async fn latest(store: &Store, chat: &str) -> Vec<(String, u64)> {
    let page = store.latest_files(&id(chat), None, 1000).await.unwrap();
    page.items.into_iter().map(|file| (file.path, file.version)).collect()
}

async fn file(store: &Store, chat: &str, path: &str) -> VersionRecord {
    let page = store.latest_files(&id(chat), None, 1000).await.unwrap();
    page.items.into_iter().find(|file| file.path == path).expect(path)
}

/// The versions in a set's entries, in their order.
async fn of_set(store: &Store, chat: &str, set: Sha256) -> Vec<Option<u64>> {
    let page = store.entries(&id(chat), &set, None, 1000).await.unwrap();
    page.items.into_iter().map(|entry| entry.version).collect()
}

fn pairs(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter().map(|(path, version)| ((*path).to_owned(), *version)).collect()
}

async fn other_bytes_are_the_next_version(database: &TestDatabase) {
    let store = house(database).await;
    let sets: Vec<_> = [
        set(&[("a", "1"), ("b", "same")]),
        set(&[("b", "same"), ("a", "2")]),
        set(&[("a", "2"), ("c", "new")]),
        // Back to what it was is a version of its own.
        set(&[("a", "1")]),
    ]
    .into();
    for manifest in &sets {
        keep(&store, in_chat(FLOW, "c1", manifest.clone())).await;
    }
    assert_eq!(latest(&store, "c1").await, pairs(&[("a", 3), ("b", 1), ("c", 1)]));
    // The same set again changes nothing, although its bytes are no longer the latest.
    assert!(!keep(&store, in_chat(FLOW, "c1", sets[1].clone())).await.new);
    assert_eq!(latest(&store, "c1").await, pairs(&[("a", 3), ("b", 1), ("c", 1)]));
    let mut shown = Vec::new();
    for manifest in &sets {
        shown.push(of_set(&store, "c1", manifest.identity).await.into_iter().flatten().collect::<Vec<_>>());
    }
    assert_eq!(shown, [vec![1, 1], vec![1, 2], vec![2, 1], vec![3]]);

    let a = file(&store, "c1", "a").await;
    assert_eq!((a.sha256, a.size, a.media_type.as_str()), (Sha256::of(b"1"), 1, "text/plain"));
    let first = store.file_versions(&id("c1"), a.file, None, 2).await.unwrap();
    assert_eq!(first.items.iter().map(|item| item.version).collect::<Vec<_>>(), [3, 2]);
    let rest = store.file_versions(&id("c1"), a.file, first.next, 2).await.unwrap();
    assert_eq!(rest.items.iter().map(|item| (item.version, item.sha256)).collect::<Vec<_>>(), [(1, Sha256::of(b"1"))]);
    assert_eq!(rest.next, None);
    assert!(store.file_versions(&id("c2"), a.file, None, 2).await.unwrap().items.is_empty(), "of another chat");
}

async fn a_path_is_one_agent_s_in_one_chat(database: &TestDatabase) {
    let store = house(database).await;
    for (agent, chat, content) in [(FLOW, "c1", "1"), (OTHER, "c1", "2"), (FLOW, "c2", "3")] {
        keep(&store, in_chat(agent, chat, set(&[("a", content)]))).await;
    }
    assert_eq!(latest(&store, "c1").await, pairs(&[("a", 1), ("a", 1)]));
    assert_eq!(latest(&store, "c2").await, pairs(&[("a", 1)]));
    keep(&store, in_chat(OTHER, "c1", set(&[("a", "1")]))).await;
    let page = store.latest_files(&id("c1"), None, 10).await.unwrap();
    let shown: Vec<_> = page.items.iter().map(|file| (file.agent.as_str(), file.version)).collect();
    assert_eq!(shown, [(FLOW, 1), (OTHER, 2)]);
}

async fn an_unfinished_set_has_no_versions_yet(database: &TestDatabase) {
    let store = house(database).await;
    keep(&store, in_chat(FLOW, "c1", set(&[("a", "old")]))).await;
    let states = [set(&[("a", "1")]), set(&[("a", "old"), ("b", "2")]), set(&[("a", "3"), ("b", "2")])];
    let [one, two, three] = states.each_ref().map(|state| state.identity);
    let [first, second, third] = states;
    keep(&store, of_task(in_chat(FLOW, "c1", first), "t", Some((1, 3)))).await;
    assert_eq!(of_set(&store, "c1", one).await, [None]);
    keep(&store, of_task(in_chat(FLOW, "c1", second), "t", Some((2, 3)))).await;
    assert!(!store.has_set(&id("c1"), &one).await.unwrap(), "the next state takes its place");
    assert_eq!(of_set(&store, "c1", two).await, [Some(1), None], "bytes that have a version already keep it");
    assert_eq!(latest(&store, "c1").await, pairs(&[("a", 1)]));
    // Finished: by another state, or in place.
    keep(&store, of_task(in_chat(FLOW, "c1", third.clone()), "t", Some((2, 3)))).await;
    assert_eq!(latest(&store, "c1").await, pairs(&[("a", 1)]));
    assert!(!keep(&store, of_task(in_chat(FLOW, "c1", third), "t", Some((3, 3)))).await.new);
    assert_eq!(of_set(&store, "c1", three).await, [Some(2), Some(1)]);
    assert_eq!(latest(&store, "c1").await, pairs(&[("a", 2), ("b", 1)]));
}

async fn a_set_that_has_versions_does_not_make_way(database: &TestDatabase) {
    let store = house(database).await;
    let (first, second) = (set(&[("a", "1")]), set(&[("a", "2")]));
    keep(&store, of_task(in_chat(FLOW, "c1", first.clone()), "t", None)).await;
    // Announced as unfinished after all: what it gave was a promise.
    keep(&store, of_task(in_chat(FLOW, "c1", first.clone()), "t", Some((1, 2)))).await;
    keep(&store, of_task(in_chat(FLOW, "c1", second), "t", Some((2, 2)))).await;
    assert!(store.has_set(&id("c1"), &first.identity).await.unwrap());
    assert_eq!(latest(&store, "c1").await, pairs(&[("a", 2)]));
}

async fn waiting_sets_get_their_versions_at_binding(database: &TestDatabase) {
    let store = house(database).await;
    let waiting = |content: &str, task: &str, progress| {
        of_task(announcement(FLOW, Some("later"), set(&[("a", content)])), task, progress)
    };
    let sets = [waiting("1", "t", None), waiting("2", "u", None), waiting("3", "v", Some((1, 2)))];
    for new in sets.clone() {
        assert_eq!(keep(&store, new).await.chat, None);
    }
    assert_eq!(latest(&store, "c1").await, []);
    keep(&store, in_chat(FLOW, "c1", set(&[("a", "between")]))).await;
    assert_eq!(store.bind_session(&id(FLOW), &id("later"), &id("c1")).await.unwrap(), Binding::Bound(3));
    assert_eq!(latest(&store, "c1").await, pairs(&[("a", 3)]), "in the order of announcements");
    let mut shown = Vec::new();
    for new in &sets {
        shown.push(of_set(&store, "c1", identity_of(new)).await[0]);
    }
    assert_eq!(shown, [Some(2), Some(3), None]);
}

/// A set whose manifest has to be read is kept when that is done, and others come in between.
async fn a_set_that_is_kept_late_is_not_the_latest(database: &TestDatabase) {
    let store = house(database).await;
    keep(&store, in_chat(FLOW, "c1", set(&[("a", "1"), ("same", "0")]))).await;
    let order = store.order();
    let newer = set(&[("a", "3"), ("same", "0")]);
    keep(&store, in_chat(FLOW, "c1", newer.clone())).await;
    // Others' files, and another chat's, are not in its way.
    keep(&store, in_chat(OTHER, "c1", set(&[("own", "x")]))).await;
    keep(&store, in_chat(FLOW, "c2", set(&[("own", "x")]))).await;
    let late = set(&[("a", "2"), ("same", "changed"), ("own", "2")]);
    let new = NewAnnouncement { order: Some(order), ..in_chat(FLOW, "c1", late.clone()) };
    assert!(keep(&store, new.clone()).await.new);
    let a = file(&store, "c1", "a").await;
    assert_eq!((a.sha256, a.version), (Sha256::of(b"3"), 2), "announced last");
    let same = file(&store, "c1", "same").await;
    assert_eq!((same.sha256, same.version), (Sha256::of(b"0"), 1), "said again after it, although it did not change");
    let of_flow = store.latest_files(&id("c1"), None, 10).await.unwrap().items;
    let own = of_flow.into_iter().find(|file| file.path == "own" && file.agent == id(FLOW)).unwrap();
    assert_eq!((own.sha256, own.version), (Sha256::of(b"2"), 1), "a path that nothing later has");
    assert_eq!(of_set(&store, "c1", late.identity).await, [None, None, Some(1)]);
    assert_eq!(of_set(&store, "c1", newer.identity).await, [Some(2), Some(1)]);
    // Announced again, it is what the agent says now.
    assert!(!keep(&store, NewAnnouncement { order: None, ..new }).await.new);
    assert_eq!(file(&store, "c1", "a").await.version, 2);
}

async fn versions_stay_fetchable_for_readers_of_the_chat(database: &TestDatabase) {
    let store = house(database).await;
    let access = Access::new(store.clone(), 1 << 20);
    for content in ["1", "2"] {
        keep(&store, in_chat(FLOW, "c1", set(&[("dir/a", content)]))).await;
    }
    let file = file(&store, "c1", "dir/a").await.file;
    let caller = |principal: &str| Caller { principal: id(principal), chats: None };
    for (version, content) in [(1, "1"), (2, "2")] {
        let found = access.version(&caller("user:alice"), &id("c1"), file, version).await.unwrap().unwrap();
        assert_eq!((found.readable.sha256, &*found.path), (Sha256::of(content.as_bytes()), "dir/a"));
        assert_eq!(found.readable.sources[0].agent, id(FLOW));
        for (who, chat) in [("user:bob", "c1"), ("user:alice", "c2"), ("user:bob", "c2")] {
            assert!(access.version(&caller(who), &id(chat), file, version).await.unwrap().is_none());
        }
        let elsewhere = Caller { chats: Some([id("c2")].into()), ..caller("user:alice") };
        assert!(access.version(&elsewhere, &id("c1"), file, version).await.unwrap().is_none());
    }
    for version in [0, 3, u32::MAX] {
        assert!(access.version(&caller("user:alice"), &id("c1"), file, version).await.unwrap().is_none());
    }
    // Another agent's bytes of the same hash are nobody's version but its own.
    keep(&store, in_chat(OTHER, "c1", set(&[("x", "1")]))).await;
    let found = access.version(&caller("user:alice"), &id("c1"), file, 1).await.unwrap().unwrap();
    assert_eq!(found.readable.sources[0].agent, id(FLOW), "its own agent comes first");
    store.remove_participant(&id("c1"), &id("user:alice")).await.unwrap();
    assert!(access.version(&caller("user:alice"), &id("c1"), file, 1).await.unwrap().is_none());
}

async fn files_are_listed_by_page(database: &TestDatabase) {
    let store = house(database).await;
    keep(&store, in_chat(FLOW, "c1", set(&[("b", "b"), ("a", "a"), ("c", "c")]))).await;
    let first = store.latest_files(&id("c1"), None, 2).await.unwrap();
    keep(&store, in_chat(FLOW, "c1", set(&[("b", "changed"), ("d", "d")]))).await;
    let rest = store.latest_files(&id("c1"), first.next, 10).await.unwrap();
    let paths: Vec<_> = first.items.iter().chain(&rest.items).map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["b", "a", "c", "d"], "what changes meanwhile moves no page");
}

async fn a_deleted_chat_leaves_no_files(database: &TestDatabase) {
    let store = house(database).await;
    for chat in ["c1", "c2"] {
        keep(&store, in_chat(FLOW, chat, set(&[("a", "a")]))).await;
    }
    let gone = file(&store, "c1", "a").await.file;
    store.delete_chat(&id("c1")).await.unwrap();
    store.put_chat(&id("c1"), None, &[id("user:alice")]).await.unwrap();
    assert_eq!(latest(&store, "c1").await, []);
    assert!(store.file_versions(&id("c1"), gone, None, 10).await.unwrap().items.is_empty());
    assert_eq!(latest(&store, "c2").await, pairs(&[("a", 1)]));
    store.bind_session(&id(FLOW), &id("again"), &id("c1")).await.unwrap();
    keep(&store, announcement(FLOW, Some("again"), set(&[("a", "b")]))).await;
    assert_eq!(latest(&store, "c1").await, pairs(&[("a", 1)]), "it counts from one again");
}

async fn files_that_nobody_offers_are_swept(database: &TestDatabase) {
    let store = house(database).await;
    let task =
        |content: &str, progress| of_task(in_chat(FLOW, "c1", set(&[("a", content), ("b", "b")])), "t", progress);
    keep(&store, task("1", None)).await;
    keep(&store, in_chat(FLOW, "c2", set(&[("a", "a")]))).await;
    let mut after = None;
    for _ in 0..2 {
        after = store.sweep_files(after, 2).await.unwrap();
    }
    assert_eq!(after, None);
    assert_eq!((latest(&store, "c1").await.len(), latest(&store, "c2").await.len()), (2, 1), "what is offered stays");
}

async fn nested_files_have_versions_by_full_path(database: &TestDatabase) {
    let store = house(database).await;
    let around = |inner: &Manifest| {
        let mut value = sets::value(&[], None);
        value["entries"] = json!([sets::nested("d/m", inner)]);
        let new = in_chat(FLOW, "c1", set(&[]));
        NewAnnouncement { set: NewSet::Tree(tree(sets::read(&value), &[inner])), ..new }
    };
    keep(&store, around(&set(&[("x", "1"), ("y", "y")]))).await;
    keep(&store, around(&set(&[("x", "2"), ("y", "y")]))).await;
    assert_eq!(latest(&store, "c1").await, pairs(&[("d/m", 2), ("d/x", 2), ("d/y", 1)]));
}

/// An agent that announces huge sets in a loop does not hold up the small ones of others.
async fn small_announcements_pass_huge_ones(database: &TestDatabase) {
    let store = house(database).await;
    let huge = |n: u64| {
        let entry = |m: u64| {
            let hash = Sha256::of(&(n * 10_000 + m).to_be_bytes());
            json!({ "path": format!("{m}"), "size": 1, "sha256": hash, "mediaType": "text/plain" })
        };
        let mut value = sets::value(&[], None);
        value["entries"] = (0..3000).map(entry).collect();
        in_chat(FLOW, "c1", sets::read(&value))
    };
    let begun = Instant::now();
    keep(&store, huge(0)).await;
    let alone = begun.elapsed();
    // Four at a time, as from four agents.
    let loops = (1..=4).map(|n| {
        let (store, huge) = (store.clone(), huge(n));
        async move { keep(&store, huge).await }
    });
    let small = async {
        let mut slowest = Duration::ZERO;
        for n in 0..5 {
            let begun = Instant::now();
            keep(&store, in_chat(OTHER, "c2", set(&[("a", &n.to_string())]))).await;
            slowest = slowest.max(begun.elapsed());
        }
        slowest
    };
    let begun = Instant::now();
    let (_, slowest) = tokio::join!(futures_util::future::join_all(loops), small);
    let all = begun.elapsed();
    assert!(slowest < alone * 3, "{slowest:?} beside {alone:?} for one huge set, {all:?} for four");
    assert!(slowest < all / 2 || slowest < Duration::from_millis(100), "{slowest:?} of {all:?}");
}

/// A database may remember how it carried a statement out for a few rows, and do the same for thousands.
async fn a_huge_set_is_not_kept_by_the_plan_of_small_ones(database: &TestDatabase) {
    let patient = Duration::from_secs(30);
    // On one connection, which is the one that remembers.
    let options = StoreOptions { connections: 1, operation_timeout: patient, ..StoreOptions::default() };
    let store = Store::open(&database.url, options).await.unwrap();
    store.put_chat(&id("c1"), None, &[]).await.unwrap();
    store.bind_session(&id(FLOW), &id("s1"), &id("c1")).await.unwrap();
    for n in 0..20 {
        keep(&store, announcement(FLOW, Some("s1"), set(&[("a", &n.to_string())]))).await;
    }
    let huge = |seed: u64| {
        let entry = |n: u64| {
            let hash = Sha256::of(&(seed << 32 | n).to_be_bytes());
            json!({ "path": format!("{n}"), "size": 1, "sha256": hash, "mediaType": "text/plain" })
        };
        let mut value = sets::value(&[], None);
        value["entries"] = (0..8000).map(entry).collect();
        sets::read(&value)
    };
    let timed = async |new: NewAnnouncement| {
        let begun = Instant::now();
        keep(&store, new).await;
        begun.elapsed()
    };
    let without = timed(announcement(FLOW, None, huge(1))).await;
    let with = timed(announcement(FLOW, Some("s1"), huge(2))).await;
    let again = timed(announcement(FLOW, Some("s1"), huge(3))).await;
    let most = without * 4;
    assert!(with < most && again < most, "{with:?} and {again:?} with versions, {without:?} without");
}
