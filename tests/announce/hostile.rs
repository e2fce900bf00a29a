//! Manifests as somebody would write them who wants to do harm: each is refused by its rule, and nothing of it is kept.

use serde_json::{Value, json};
use sluice::protocol::{Manifest, Sha256};

use super::db::TestDatabase;
use super::reading::{around, files};
use super::sets::{id, nested, read, value};
use super::{FLOW, House, code, db, frame, house, on_socket, patient};
use crate::on_both_databases;

on_both_databases!(
    every_hostile_tree_is_refused_and_leaves_nothing,
    twins_are_two_files,
    sixteen_mebibytes_of_entries_are_kept,
);

/// A tree of manifests, and the code of its refusal. The agent serves the bytes as they are.
struct Case {
    root: Value,
    served: Vec<(Sha256, Vec<u8>)>,
    code: &'static str,
}

fn case(root: Value, nested: &[&Manifest], code: &'static str) -> Case {
    let served = nested.iter().map(|nested| (nested.identity, nested.canonical.to_vec())).collect();
    Case { root, served, code }
}

/// An entry that names these bytes as a manifest.
fn naming(path: &str, bytes: &[u8], size: u64) -> Value {
    json!({ "path": path, "size": size, "sha256": Sha256::of(bytes), "kind": "manifest", "mediaType": "a/b" })
}

fn listing(entries: Vec<Value>) -> Value {
    let mut root = value(&[], None);
    root["entries"] = Value::Array(entries);
    root
}

/// A manifest that names bytes which are no manifest.
fn of_bytes(bytes: &[u8], code: &'static str) -> Case {
    let root = listing(vec![naming("d/m", bytes, bytes.len() as u64)]);
    Case { root, served: vec![(Sha256::of(bytes), bytes.to_vec())], code }
}

fn corpus() -> Vec<Case> {
    let inner = files(&[("x", "x")]);
    let canonical = inner.canonical.to_vec();
    let mut cases = Vec::new();

    // Deeper than manifests nest, and wider than anybody could read.
    let mut chain = vec![inner.clone()];
    for _ in 0..9 {
        chain.push(read(&around(&[], &[("d/m", chain.last().unwrap())])));
    }
    let deepest: Value = serde_json::from_slice(&chain.pop().unwrap().canonical).unwrap();
    cases.push(case(deepest, &chain.iter().collect::<Vec<_>>(), "nesting_too_deep"));
    let mut bomb = vec![inner.clone()];
    for _ in 0..7 {
        let paths: Vec<String> = (0..10).map(|n| format!("{n}/m")).collect();
        let last = bomb.last().unwrap().clone();
        let list: Vec<(&str, &Manifest)> = paths.iter().map(|path| (path.as_str(), &last)).collect();
        bomb.push(read(&around(&[], &list)));
    }
    let widest: Value = serde_json::from_slice(&bomb.pop().unwrap().canonical).unwrap();
    cases.push(case(widest, &bomb.iter().collect::<Vec<_>>(), "too_many_entries"));

    // Paths: by themselves, in a nested manifest, and only once they are joined.
    for (path, code) in [
        ("../x", "path_parent_segment"),
        ("a/../../x", "path_parent_segment"),
        ("/etc/passwd", "path_absolute"),
        ("C:/x", "path_absolute"),
        ("a\\..\\x", "path_invalid"),
        ("a//x", "path_invalid"),
        ("a/./x", "path_invalid"),
        ("a\u{0}x", "path_invalid"),
        ("", "path_invalid"),
    ] {
        cases.push(case(value(&[(path, "x")], None), &[], code));
        let mut bad = value(&[("x", "x")], None);
        bad["entries"][0]["path"] = json!(path);
        let bytes = serde_json_canonicalizer::to_vec(&bad).unwrap();
        cases.push(of_bytes(&bytes, code));
    }
    let long = files(&[(&vec!["n".repeat(250); 4].join("/"), "x")]);
    cases.push(case(around(&[], &[(&format!("{}/m", "d".repeat(100)), &long)]), &[&long], "path_too_long"));
    let many = files(&[(&vec!["n"; 60].join("/"), "x")]);
    cases.push(case(around(&[], &[("1/2/3/4/5/m", &many)]), &[&many], "path_too_many_segments"));
    cases.push(case(around(&[("d/x", "other")], &[("d/m", &inner)]), &[&inner], "path_duplicate"));
    cases.push(case(around(&[("d/x/y", "other")], &[("d/m", &inner)]), &[&inner], "path_conflict"));
    cases.push(case(around(&[], &[("d/m", &inner), ("d/n", &inner)]), &[&inner], "path_duplicate"));
    let shadow = files(&[("m", "x")]);
    cases.push(case(around(&[], &[("d/m", &shadow)]), &[&shadow], "path_duplicate"));

    // Sizes and bytes that are not what is said.
    let lie = |size: u64| listing(vec![naming("d/m", &canonical, size)]);
    cases.push(case(lie(canonical.len() as u64 + 1), &[&inner], "size_mismatch"));
    cases.push(case(lie(canonical.len() as u64 - 1), &[&inner], "hash_mismatch"));
    cases.push(case(lie((16 << 20) + 1), &[&inner], "manifest_too_large"));
    let twice = vec![nested("a/m", &inner), naming("b/m", &canonical, 5)];
    cases.push(case(listing(twice), &[&inner], "size_invalid"));
    let big = |n: u8| naming(&format!("{n}/m"), &[n], 9 << 20);
    cases.push(case(listing(vec![big(1), big(2)]), &[], "manifest_too_large"));
    let swapped = files(&[("swapped", "x")]);
    let served = vec![(swapped.identity, b"x".repeat(swapped.canonical.len()))];
    cases.push(Case { root: around(&[], &[("d/m", &swapped)]), served, code: "hash_mismatch" });
    let gone = files(&[("gone", "x")]);
    cases.push(case(around(&[], &[("d/m", &gone)]), &[], "manifest_unreadable"));

    // Bytes that are no manifest, or not one's canonical form.
    cases.push(of_bytes(b"", "not_json"));
    cases.push(of_bytes(b"\xff\xfe", "not_json"));
    cases.push(of_bytes(b"[]", "not_an_object"));
    cases.push(of_bytes("[".repeat(100_000).as_bytes(), "not_json"));
    cases.push(of_bytes(br#"{"kind":"webagents.artifact-set/v1","kind":"x"}"#, "not_json"));
    cases.push(of_bytes(br#"{"kind":"webagents.artifact-set/v2"}"#, "wrong_kind"));
    let pretty = serde_json::to_vec_pretty(&value(&[("x", "x")], None)).unwrap();
    cases.push(of_bytes(&pretty, "hash_mismatch"));
    let unsorted = String::from_utf8(canonical.clone()).unwrap().replacen('{', "{ ", 1);
    cases.push(of_bytes(unsorted.as_bytes(), "hash_mismatch"));
    cases
}

impl House {
    async fn holds_nothing(&self) {
        assert_eq!(self.sets.list(&id("c1"), None, 10).await.unwrap().sets.len(), 0);
        assert_eq!(self.store.sweep_manifests(10).await.unwrap(), 0);
        assert_eq!(self.store.latest_files(&id("c1"), None, 10).await.unwrap().items.len(), 0);
    }
}

async fn every_hostile_tree_is_refused_and_leaves_nothing(database: &TestDatabase) {
    let house = house(database, patient()).await;
    house.store.claim_name(&id("flow"), &id(FLOW), 1).await.unwrap();
    let by = on_socket(&[FLOW]);
    for (place, Case { root, served, code: expected }) in corpus().into_iter().enumerate() {
        for (sha256, bytes) in served {
            house.agents.give_bytes(FLOW, sha256, bytes);
        }
        let text = hostile_frame(&root);
        let refusal = house.announce(&by, text).await;
        assert_eq!(code(refusal), expected, "case {place}: {root:.300}");
        house.holds_nothing().await;
    }
}

/// The frame of a root that the reader may refuse itself.
fn hostile_frame(root: &Value) -> String {
    let canonical = serde_json_canonicalizer::to_vec(root).unwrap();
    json!({
        "type": "artifact.manifest", "event_id": "e1", "task_id": "t1", "sha256": Sha256::of(&canonical),
        "size": canonical.len(), "manifest": root, "session_id": "turn",
    })
    .to_string()
}

async fn twins_are_two_files(database: &TestDatabase) {
    let house = house(database, patient()).await;
    house.store.claim_name(&id("flow"), &id(FLOW), 1).await.unwrap();
    // Paths are compared byte for byte: no spelling (NFC, NFD) and no case is another's.
    let decomposed = files(&[("cafe\u{301}", "decomposed")]);
    house.agents.give(FLOW, &decomposed);
    let root = around(&[("caf\u{e9}", "composed"), ("Name", "N"), ("name", "n")], &[("m", &decomposed)]);
    house.announce(&on_socket(&[FLOW]), frame(&root, json!({}))).await.unwrap();
    let set = read(&root).identity;
    assert_eq!(house.paths(&set).await, ["caf\u{e9}", "Name", "name", "m", "cafe\u{301}"]);
    let files = house.store.latest_files(&id("c1"), None, 10).await.unwrap().items;
    assert_eq!(files.len(), 5);
    let hash_of = |path: &str| files.iter().find(|file| file.path == path).unwrap().sha256;
    assert_eq!(hash_of("caf\u{e9}"), Sha256::of(b"composed"));
    assert_eq!(hash_of("cafe\u{301}"), Sha256::of(b"decomposed"));
}

async fn sixteen_mebibytes_of_entries_are_kept(database: &TestDatabase) {
    let house = house(database, patient()).await;
    house.store.claim_name(&id("flow"), &id(FLOW), 1).await.unwrap();
    // Written by hand in canonical form: a tree of values takes its time in an unoptimised build.
    let entry = |n: u64| {
        let hash = Sha256::of(&n.to_be_bytes()).to_hex();
        let (hashes, path) = (vec![format!("\"{hash}\""); 20].join(","), format!("{n:05}/{}", "p".repeat(150)));
        format!(
            "{{\"chunks\":{{\"chunkSize\":262144,\"hashes\":[{hashes}]}},\"mediaType\":\"a/b\",\"path\":\"{path}\",\
             \"sha256\":\"{hash}\",\"size\":5242880}}"
        )
    };
    let entries: Vec<String> = (0..10_000).map(entry).collect();
    let manifest = |count: usize| {
        let start = r#"{"createdAt":"2026-10-17T10:00:00Z","entries":["#;
        let end = r#"],"kind":"webagents.artifact-set/v1","producer":{"agent":"https://agent.example/agents/flow"}}"#;
        format!("{start}{}{end}", entries[..count].join(","))
    };
    let announced = |text: &str, size: usize, inlined: &str| {
        let sha256 = Sha256::of(text.as_bytes());
        format!(
            r#"{{"type":"artifact.manifest","event_id":"e1","sha256":"{sha256}","size":{size},"session_id":"turn"{inlined}}}"#
        )
    };
    let by = on_socket(&[FLOW]);
    // Not inlined, so that it comes both ways once: the other is in the store's own tests.
    let most = manifest(9_900);
    assert!((15 << 20..16 << 20).contains(&most.len()), "{}", most.len());
    let text = announced(&most, most.len(), "");
    house.agents.give_bytes(FLOW, Sha256::of(most.as_bytes()), most);
    assert!(house.announce(&by, text).await.unwrap().new);
    assert_eq!(house.sets.list(&id("c1"), None, 1).await.unwrap().sets[0].entries, 9_900);
    // A little more is too much, whatever it says of itself.
    let more = manifest(10_000).replacen('{', &format!("{{{}", " ".repeat(16 << 20)), 1);
    let inlined = format!(r#","manifest":{more}"#);
    for size in [16 << 20, more.len()] {
        assert_eq!(code(house.announce(&by, announced(&more, size, &inlined)).await), "manifest_too_large");
    }
}
