//! Manifests and names for tests.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sluice::protocol::{GrowingTree, Manifest, Sha256, Tree, manifest};
use sluice::store::{NewAnnouncement, NewSet, Quota, Store, StoreOptions};

use crate::db::TestDatabase;

/// A parsed name.
pub fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("a valid name")
}

/// A store on this database, patient enough for the largest sets in an unoptimised build.
pub async fn open(database: &TestDatabase) -> Store {
    let options = StoreOptions { operation_timeout: Duration::from_secs(30), ..StoreOptions::default() };
    Store::open(&database.url, options).await.expect("a store")
}

/// A manifest's value over these files.
pub fn value(files: &[(&str, &str)], task: Option<&str>) -> Value {
    let entries: Vec<Value> = files
        .iter()
        .map(|(path, content)| {
            let sha256 = Sha256::of(content.as_bytes()).to_hex();
            json!({ "path": path, "size": content.len(), "sha256": sha256, "mediaType": "text/plain" })
        })
        .collect();
    let mut producer = json!({ "agent": "https://agent.example/agents/flow" });
    if let Some(task) = task {
        producer["task"] = json!(task);
    }
    json!({
        "kind": "webagents.artifact-set/v1",
        "createdAt": "2026-10-17T10:00:00Z",
        "expiresAt": null,
        "producer": producer,
        "entries": entries,
    })
}

/// The same, read.
pub fn read(value: &Value) -> Manifest {
    manifest::read(&value.to_string()).expect("a valid manifest")
}

/// A manifest over these files.
pub fn set(files: &[(&str, &str)]) -> Manifest {
    read(&value(files, None))
}

/// The tree of a manifest, with the nested ones where it names them.
pub fn tree(root: Manifest, nested: &[&Manifest]) -> Arc<Tree> {
    let mut tree = GrowingTree::of(root).expect("a valid tree");
    while let Some(wanted) = tree.wanted() {
        let found = nested.iter().find(|nested| nested.identity == wanted.sha256).expect("a manifest that is nested");
        tree.supply((*found).clone()).expect("a valid tree");
    }
    Arc::new(tree.complete().expect("a valid tree"))
}

/// The manifest that is announced.
pub fn identity_of(new: &NewAnnouncement) -> Sha256 {
    match &new.set {
        NewSet::Tree(tree) => tree.root().identity,
        NewSet::Known(sha256, _) => *sha256,
    }
}

/// An entry that names a manifest.
pub fn nested(path: &str, inner: &Manifest) -> Value {
    json!({
        "path": path, "size": inner.canonical.len(), "sha256": inner.identity, "kind": "manifest",
        "mediaType": "application/vnd.webagents.artifact-set+json",
    })
}

/// An announcement of an agent, in a session.
pub fn announcement(agent: &str, session: Option<&str>, manifest: Manifest) -> NewAnnouncement {
    NewAnnouncement {
        agent: id(agent),
        session: session.map(id),
        task: None,
        set: NewSet::Tree(tree(manifest, &[])),
        locations: None,
        progress: None,
        quota: Quota::default(),
        deadline: None,
        order: None,
    }
}
