//! Tasks that a reader names, or has to.

use sluice::access::{BlobAnswer, BlobRequest};
use sluice::protocol::Sha256;
use sluice::store::NewAnnouncement;

use crate::db::{self, TestDatabase};
use crate::on_both_databases;
use crate::sets::{announcement, id, read, set, value};
use crate::stage::{FLOW, OTHER, agents, announce, caller, file, house, plain};

on_both_databases!(a_task_that_is_sent_must_match, a_set_may_be_asked_for_by_its_tasks_only);

async fn a_task_that_is_sent_must_match(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let alice = caller("user:alice");
    let tasked = read(&value(&[("a", "tasked")], Some("t1")));
    let new = announcement(FLOW, Some("c1-flow"), tasked.clone());
    announce(&store, NewAnnouncement { task: Some(id("t2")), ..new }).await;
    announce(&store, announcement(FLOW, Some("c1-flow"), set(&[("a", "free")]))).await;
    let ask = async |sha256: &Sha256, task: Option<&str>, require_task| {
        access.blob(&alice, BlobRequest { agent: None, sha256, task, require_task }).await.unwrap()
    };
    let (tasked_blob, free) = (Sha256::of(b"tasked"), Sha256::of(b"free"));
    for required in [false, true] {
        // By the manifest's task or the announcement's.
        assert!(matches!(ask(&tasked_blob, Some("t1"), required).await, BlobAnswer::Blob(_)));
        assert!(matches!(ask(&tasked_blob, Some("t2"), required).await, BlobAnswer::Blob(_)));
        assert!(matches!(ask(&tasked.identity, Some("t1"), required).await, BlobAnswer::Manifest(_)));
        assert!(matches!(ask(&tasked_blob, Some("t3"), required).await, BlobAnswer::TaskMismatch));
        assert!(matches!(ask(&tasked.identity, Some("t3"), required).await, BlobAnswer::TaskMismatch));
        assert!(matches!(ask(&free, Some("t1"), required).await, BlobAnswer::TaskMismatch));
        assert!(matches!(ask(&free, None, required).await, BlobAnswer::Blob(_)));
        // What the caller may not read is not found, whatever it sends.
        assert!(matches!(ask(&Sha256::of(b"?"), Some("t1"), required).await, BlobAnswer::NotFound));
        let bob = BlobRequest { task: Some("t3"), require_task: required, ..plain(&tasked_blob) };
        assert!(matches!(access.blob(&caller("user:bob"), bob).await.unwrap(), BlobAnswer::NotFound));
    }
    assert!(matches!(ask(&tasked_blob, None, false).await, BlobAnswer::Blob(_)));
    assert!(matches!(ask(&tasked_blob, None, true).await, BlobAnswer::TaskRequired));
    assert!(matches!(ask(&tasked.identity, None, true).await, BlobAnswer::TaskRequired));
    // The same bytes in a set without a task: only that set is a source.
    store.bind_session(&id(OTHER), &id("c1-other"), &id("c1")).await.unwrap();
    announce(&store, announcement(OTHER, Some("c1-other"), set(&[("b", "tasked")]))).await;
    match ask(&tasked_blob, None, true).await {
        BlobAnswer::Blob(claims) => assert_eq!(agents(claims.first()), [OTHER]),
        other => panic!("{other:?}"),
    }
}

/// By the manifest's task or an announcement's, whichever way the set is asked for.
async fn a_set_may_be_asked_for_by_its_tasks_only(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let alice = caller("user:alice");
    let tasked = read(&value(&[("a", "tasked")], Some("t1")));
    for task in ["t2", "t3"] {
        let new = announcement(FLOW, Some("c1-flow"), tasked.clone());
        announce(&store, NewAnnouncement { task: Some(id(task)), ..new }).await;
    }
    announce(&store, announcement(FLOW, Some("c1-flow"), set(&[("free", "free")]))).await;
    let files = store.latest_files(&id("c1"), None, 10).await.unwrap().items;
    for (manifest, path, allowed) in [(&tasked, "a", &["t1", "t2", "t3"][..]), (&set(&[("free", "free")]), "free", &[])]
    {
        let by_set = access.set(&alice, &id("c1"), &manifest.identity).await.unwrap().unwrap();
        let by_path = file(&access, &alice, "c1", &manifest.identity, path).await.unwrap();
        let version = files.iter().find(|file| file.path == path).unwrap().file;
        let by_version = access.version(&alice, &id("c1"), version, 1).await.unwrap().unwrap();
        for tasks in [&by_set.tasks, &by_path.tasks, &by_version.tasks] {
            assert!(tasks.allow(None));
            for named in ["t1", "t2", "t3", "t4", "", "t1, t1"] {
                assert_eq!(tasks.allow(Some(named)), allowed.contains(&named), "{path} {named}");
            }
        }
        assert_eq!(access.read(&by_set.manifest).await.unwrap().unwrap(), manifest.canonical);
        assert!(access.set(&caller("user:bob"), &id("c1"), &manifest.identity).await.unwrap().is_none());
        assert!(access.set(&alice, &id("c2"), &manifest.identity).await.unwrap().is_none());
    }
}
