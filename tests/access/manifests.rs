//! Manifests, which are asked for by their hash as blobs are.

use serde_json::json;
use sluice::access::{BlobAnswer, BlobRequest};

use crate::db::{self, TestDatabase};
use crate::on_both_databases;
use crate::sets::{announcement, id, read, set, value};
use crate::stage::{FLOW, OTHER, agents, announce, blob, caller, house, plain, shared_house};

on_both_databases!(a_manifest_is_read_by_its_hash, a_manifests_hash_is_the_manifest_whoever_announces_it);

async fn a_manifest_is_read_by_its_hash(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let manifest = set(&[("a", "a")]);
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest.clone())).await;
    for _ in 0..2 {
        match access.blob(&caller("user:alice"), plain(&manifest.identity)).await.unwrap() {
            BlobAnswer::Manifest(found) => {
                assert_eq!(access.read(&found).await.unwrap().unwrap(), manifest.canonical);
                assert_eq!(found.size, manifest.canonical.len() as u64);
            }
            other => panic!("{other:?}"),
        }
        let bobs = access.blob(&caller("user:bob"), plain(&manifest.identity)).await.unwrap();
        assert!(matches!(bobs, BlobAnswer::NotFound));
    }
}

/// The gateway has a manifest's bytes itself: whoever announces a file of its hash, before or after, changes nothing.
async fn a_manifests_hash_is_the_manifest_whoever_announces_it(database: &TestDatabase) {
    let (store, access) = shared_house(database).await;
    let manifest = read(&value(&[("a", "a")], Some("t1")));
    let hash = manifest.identity;
    let hijack = |n: u64| {
        let mut value = value(&[], None);
        let file = json!({ "path": "x", "size": 5 + n, "sha256": hash, "mediaType": "text/plain" });
        value["entries"] = json!([file]);
        announcement(OTHER, Some("c2-other"), read(&value))
    };
    announce(&store, hijack(0)).await;
    let bob = blob(&access, &caller("user:bob"), &hash).await.unwrap();
    assert_eq!((bob.size, agents(&bob)), (5, vec![OTHER]), "who may not read the manifest has what there is");
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest.clone())).await;
    announce(&store, hijack(1)).await;
    let alice = caller("user:alice");
    let (flow, other) = (id("flow"), id("other"));
    for agent in [None, Some(&flow), Some(&other)] {
        match access.blob(&alice, BlobRequest { agent, ..plain(&hash) }).await.unwrap() {
            BlobAnswer::Manifest(found) => {
                assert_eq!(access.read(&found).await.unwrap().unwrap(), manifest.canonical);
                assert_eq!(found.size, manifest.canonical.len() as u64);
            }
            answer => panic!("{agent:?}: {answer:?}"),
        }
    }
    // Nor does a rule that only the file's set passes.
    let ask = async |task, require_task| {
        access.blob(&alice, BlobRequest { task, require_task, ..plain(&hash) }).await.unwrap()
    };
    assert!(matches!(ask(None, true).await, BlobAnswer::TaskRequired));
    assert!(matches!(ask(Some("t2"), false).await, BlobAnswer::TaskMismatch));
    assert!(matches!(ask(Some("t1"), true).await, BlobAnswer::Manifest(_)));
}
