//! What the members of a valid manifest are read as, and drafts that are written to be read.

use serde_json::{Value, json};

use super::*;
use crate::protocol::canonical;
use crate::protocol::limits::SAFE_INTEGER;

#[test]
fn a_full_manifest() {
    let manifest = read_value(&full()).unwrap();
    assert_eq!(manifest.created_at, 1_792_231_200_000);
    assert_eq!(manifest.expires_at, None);
    assert_eq!(manifest.producer_agent, "https://agent.example/agents/flow");
    assert_eq!(manifest.producer_task.as_ref().map(TaskId::as_str), Some("task-42"));
    assert_eq!(manifest.producer_name.as_deref(), Some("Flow"));
    let [file, nested] = &manifest.entries[..] else { panic!("two entries") };
    assert_eq!((file.path.as_str(), file.size, file.kind), ("gds/top.gds", 20 * MIB, EntryKind::File));
    assert_eq!(file.chunks.as_ref().map(|chunks| (chunks.chunk_size, chunks.hashes.len())), Some((8 * MIB, 3)));
    assert_eq!(file.locations.as_ref().map(Vec::len), Some(4));
    assert_eq!((nested.kind, &nested.chunks, &nested.locations), (EntryKind::Manifest, &None, &None));
    let own = Location { kind: LocationKind::Robutler, target: "http://127.0.0.1:3000/api/blob/cas/9f0e".to_owned() };
    assert_eq!(manifest.locations, [own]);
    assert_eq!(manifest.canonical, canonical::to_vec(&full()).unwrap());
    assert_eq!(manifest.identity, Sha256::of(&manifest.canonical));
}

#[test]
fn the_least_manifest() {
    let text = r#" {"kind":"webagents.artifact-set/v1", "entries":[], "createdAt":"2026-10-17T10:00:00.5Z",
        "producer":{"agent":"a"}} "#;
    let manifest = read(text).unwrap();
    assert_eq!(manifest.created_at, 1_792_231_200_500);
    let canonical = r#"{"createdAt":"2026-10-17T10:00:00.5Z","entries":[],"kind":"webagents.artifact-set/v1","producer":{"agent":"a"}}"#;
    assert_eq!(manifest.canonical, canonical);
}

#[test]
fn chunks_of_short_files() {
    let with = |size: u64, hashes: usize| {
        let mut entry = entry("a");
        entry["size"] = json!(size);
        entry["chunks"] = json!({ "chunkSize": 256 * 1024, "hashes": vec![hash(); hashes] });
        code(with_entries(vec![entry]))
    };
    assert_eq!(with(0, 0), Ok(()));
    assert_eq!(with(0, 1), Err(ManifestCode::ChunkCountMismatch));
    assert_eq!(with(1, 1), Ok(()));
    assert_eq!(with(256 * 1024, 1), Ok(()));
    assert_eq!(with(256 * 1024 + 1, 1), Err(ManifestCode::ChunkCountMismatch));
    assert_eq!(with(256 * 1024 + 1, 2), Ok(()));
    assert_eq!(with(SAFE_INTEGER, 2), Err(ManifestCode::ChunkCountMismatch));
}

#[test]
fn urls_of_locations() {
    let one = |kind: &str, url: &str| {
        read_locations(&json!([{ "kind": kind, "url": url }]).to_string()).map(|mut list| list.remove(0))
    };
    for url in [
        "https://a.example",
        "HTTPS://a.example/x?y=z",
        "https://[2001:db8::1]:8443/x",
        "http://localhost:3000/x",
        "http://127.0.0.1/x",
        "http://127.8.8.8/x",
        "http://[::1]:80/x",
    ] {
        for kind in ["https", "s3", "robutler"] {
            assert_eq!(one(kind, url).unwrap().target, url);
        }
    }
    for url in [
        "",
        "https://",
        "https:///x",
        "https:a",
        "a.example/x",
        "/x",
        "*",
        "http://a.example/x",
        "http://localhost.evil.example/x",
        "http://127.0.0.1.evil.example/x",
        "http://[::2]/x",
        "http://0x7f000001/x",
        "https://user:secret@a.example/x",
        "http://localhost@evil.example/x",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://a.example/ x",
        "https://a.example/\n",
        "https://ä.example/",
        &format!("https://a.example/{}", "a".repeat(2048)),
    ] {
        let refused = one("https", url).expect_err(url);
        assert_eq!(refused.code, ManifestCode::LocationUrlInvalid, "{url}");
        assert!(!refused.message.contains("secret"));
    }
}

#[test]
fn a_kind_of_location_that_nobody_knows_is_kept() {
    let read = read_locations(r#"[{"kind":"ipfs","url":"ipfs://bafy"},{"kind":"relay","agent":"flow"}]"#).unwrap();
    assert_eq!(read[0], Location { kind: LocationKind::Other("ipfs".to_owned()), target: "ipfs://bafy".to_owned() });
    assert_eq!(read[1].kind, LocationKind::Relay);
    let text = serde_json::to_string(&read).unwrap();
    assert_eq!(text, r#"[{"kind":"ipfs","url":"ipfs://bafy"},{"agent":"flow","kind":"relay"}]"#);
    assert_eq!(read_locations("[]"), Ok(vec![]));
    assert_eq!(read_locations("null").unwrap_err().code, ManifestCode::LocationsInvalid);
    assert_eq!(read_locations("[").unwrap_err().code, ManifestCode::NotJson);
}

fn draft() -> ManifestDraft {
    let manifest = read_value(&full()).unwrap();
    ManifestDraft {
        created_at: manifest.created_at,
        expires_at: Some(manifest.created_at + 1500),
        producer_agent: manifest.producer_agent,
        producer_task: Some("task-42".to_owned()),
        producer_name: None,
        entries: manifest.entries,
        locations: vec![],
    }
}

#[test]
fn a_draft_reads_back() {
    let draft = draft();
    let manifest = draft.finish().unwrap();
    assert_eq!(manifest.entries, draft.entries);
    assert_eq!(manifest.expires_at, draft.expires_at);
    assert_eq!(read(str::from_utf8(&manifest.canonical).unwrap()).unwrap(), manifest);
    let value: Value = serde_json::from_slice(&manifest.canonical).unwrap();
    assert_eq!(value["expiresAt"], "2026-10-17T10:00:01.500Z");
    assert_eq!(value["producer"], json!({ "agent": "https://agent.example/agents/flow", "task": "task-42" }));
    assert!(value.get("locations").is_none());
    assert!(value["entries"][0].get("kind").is_none());
    assert_eq!(value["entries"][1]["kind"], "manifest");
}

#[test]
fn a_draft_that_a_reader_would_refuse() {
    let refused = |change: fn(&mut ManifestDraft)| {
        let mut draft = draft();
        change(&mut draft);
        draft.finish().unwrap_err().code
    };
    assert_eq!(refused(|draft| draft.entries[0].path = "../x".to_owned()), ManifestCode::PathParentSegment);
    assert_eq!(refused(|draft| draft.created_at = i64::MAX), ManifestCode::CreatedAtInvalid);
    assert_eq!(refused(|draft| draft.expires_at = Some(i64::MIN)), ManifestCode::ExpiresAtInvalid);
    assert_eq!(refused(|draft| draft.producer_task = Some(String::new())), ManifestCode::ProducerInvalid);
}
