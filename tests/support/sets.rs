//! Manifests and names for tests.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;

use serde_json::{Value, json};
use sluice::protocol::{Manifest, Sha256, manifest};
use sluice::store::{NewAnnouncement, Quota, Store, StoreOptions};

use crate::db::TestDatabase;

/// A parsed name.
pub fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("a valid name")
}

/// A store on this database.
pub async fn open(database: &TestDatabase) -> Store {
    Store::open(&database.url, StoreOptions::default()).await.expect("a store")
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

/// An announcement of an agent, in a session.
pub fn announcement(agent: &str, session: Option<&str>, manifest: Manifest) -> NewAnnouncement {
    NewAnnouncement {
        agent: id(agent),
        session: session.map(id),
        task: None,
        manifest: Arc::new(manifest),
        locations: None,
        progress: None,
        quota: Quota::default(),
        deadline: None,
    }
}
