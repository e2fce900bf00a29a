//! What agents say about the same bytes where they contradict each other, and whose word counts.

use serde_json::{Value, json};
use sluice::access::{BlobAnswer, BlobRequest};
use sluice::protocol::Sha256;
use sluice::protocol::frames::Progress;
use sluice::store::NewAnnouncement;

use crate::db::{self, TestDatabase};
use crate::on_both_databases;
use crate::sets::{announcement, id, read, value};
use crate::stage::{FLOW, OTHER, agents, announce, blob, caller, entry, file, house, plain, shared_house};

on_both_databases!(
    who_announced_a_blob_first_stays_the_first,
    another_claim_is_a_later_one,
    a_rank_survives_the_binding_of_the_next_state,
    contradicting_sizes_are_settled_by_the_whole,
    a_contradiction_counts_however_many_offers_hide_it,
    contradicting_chunk_lists_are_nobodys,
);

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
