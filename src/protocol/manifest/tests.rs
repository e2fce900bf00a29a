//! The manifest by its rules, its text and its members, and the samples that these tests share.

mod members;
mod property;
mod rules;
mod text;

use serde_json::{Value, json};

use super::*;

const MIB: u64 = 1024 * 1024;

fn hash() -> String {
    "ab".repeat(32)
}

fn entry(path: &str) -> Value {
    json!({ "path": path, "size": 1, "sha256": hash(), "mediaType": "text/plain" })
}

/// Valid, with every member that a manifest can have.
fn full() -> Value {
    json!({
        "kind": "webagents.artifact-set/v1",
        "createdAt": "2026-10-17T10:00:00Z",
        "expiresAt": null,
        "producer": { "agent": "https://agent.example/agents/flow", "task": "task-42", "name": "Flow" },
        "entries": [
            {
                "path": "gds/top.gds", "size": 20 * MIB, "sha256": hash(), "mediaType": "application/octet-stream",
                "kind": "file",
                "chunks": { "chunkSize": 8 * MIB, "hashes": [hash(), hash(), hash()] },
                "locations": [
                    { "kind": "https", "url": "https://agent.example/artifacts/blobs/sha256:9f0e" },
                    { "kind": "relay", "agent": "flow" },
                    { "kind": "oci", "ref": "registry.example/flow/out@sha256:9f0e" },
                    { "kind": "s3", "url": "https://s3.example/bucket/key?X-Amz-Signature=0" }
                ]
            },
            { "path": "sub/set.json", "size": 1200, "sha256": hash(), "mediaType": MEDIA_TYPE, "kind": "manifest" }
        ],
        "locations": [{ "kind": "robutler", "url": "http://127.0.0.1:3000/api/blob/cas/9f0e" }]
    })
}

fn read_value(value: &Value) -> Result<Manifest, ManifestError> {
    read(&value.to_string())
}

fn with_entries(entries: Vec<Value>) -> Result<Manifest, ManifestError> {
    let mut value = full();
    value["entries"] = Value::Array(entries);
    read_value(&value)
}

fn code(result: Result<Manifest, ManifestError>) -> Result<(), ManifestCode> {
    result.map(drop).map_err(|error| error.code)
}
