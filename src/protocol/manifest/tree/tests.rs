use serde_json::{Value, json};

use super::*;
use crate::protocol::limits::NESTING_DEPTH;
use crate::protocol::manifest::{MEDIA_TYPE, read};

fn manifest(entries: Vec<Value>) -> Manifest {
    let value = json!({
        "kind": "webagents.artifact-set/v1", "createdAt": "2026-10-17T10:00:00Z",
        "producer": { "agent": "https://agent.example/agents/flow" }, "entries": entries,
    });
    read(&value.to_string()).unwrap()
}

fn file(path: &str) -> Value {
    json!({ "path": path, "size": path.len(), "sha256": Sha256::of(path.as_bytes()), "mediaType": "text/plain" })
}

fn files(paths: &[&str]) -> Manifest {
    manifest(paths.iter().map(|path| file(path)).collect())
}

fn nested(path: &str, inner: &Manifest) -> Value {
    json!({
        "path": path, "size": inner.canonical.len(), "sha256": inner.identity, "mediaType": MEDIA_TYPE,
        "kind": "manifest",
    })
}

/// The tree of the first, with the others where they are wanted.
fn grow(root: Manifest, others: &[&Manifest]) -> Result<Tree, ManifestError> {
    let mut tree = GrowingTree::of(root)?;
    while let Some(wanted) = tree.wanted() {
        let found = others.iter().find(|other| other.identity == wanted.sha256).expect("it is among the others");
        tree.supply((*found).clone())?;
    }
    tree.complete()
}

fn paths(tree: &Tree) -> Vec<&str> {
    tree.entries().map(|entry| entry.path).collect()
}

fn refusal(root: Manifest, others: &[&Manifest]) -> ManifestCode {
    grow(root, others).expect_err("a refusal").code
}

/// `depth` manifests around one with a file.
fn chain(depth: usize) -> Vec<Manifest> {
    let mut chain = vec![files(&["file"])];
    for _ in 0..depth {
        chain.push(manifest(vec![nested("d/set.json", &chain[chain.len() - 1])]));
    }
    chain
}

#[test]
fn paths_are_joined_to_the_directory_of_the_naming_entry() {
    let inner = files(&["x", "y/z"]);
    let middle = manifest(vec![nested("deep/inner.json", &inner), file("m")]);
    let root = manifest(vec![file("a"), nested("sub/middle.json", &middle), nested("top.json", &inner), file("b")]);
    let tree = grow(root.clone(), &[&middle, &inner]).unwrap();
    assert_eq!(
        paths(&tree),
        [
            "a",
            "sub/middle.json",
            "sub/deep/inner.json",
            "sub/deep/x",
            "sub/deep/y/z",
            "sub/m",
            "top.json",
            "x",
            "y/z",
            "b"
        ]
    );
    let owners: Vec<_> = tree.entries().map(|entry| entry.owner).collect();
    assert_eq!(owners[..5], [None, None, Some(middle.identity), Some(inner.identity), Some(inner.identity)]);
    assert_eq!(tree.nested().len(), 2, "one manifest in two places is read once");
    assert_eq!(tree.root(), &root);
    assert_eq!(tree.total_size(), tree.entries().map(|entry| entry.entry.size).sum::<u64>());
}

#[test]
fn a_manifest_without_nested_ones_is_complete() {
    let tree = GrowingTree::of(files(&["a", "b/c"])).unwrap();
    assert!(tree.wanted().is_none());
    assert_eq!(paths(&tree.complete().unwrap()), ["a", "b/c"]);
}

#[test]
fn what_is_missing_is_not_complete() {
    let root = manifest(vec![nested("a/m", &files(&["x"]))]);
    assert!(GrowingTree::of(root).unwrap().complete().is_err());
}

#[test]
fn manifests_nest_eight_deep() {
    let chain_of = |depth: usize| {
        let mut chain = chain(depth);
        let root = chain.pop().unwrap();
        let others: Vec<_> = chain.iter().collect();
        grow(root, &others).map(|tree| tree.entries().len()).map_err(|error| error.code)
    };
    assert_eq!(chain_of(NESTING_DEPTH), Ok(9));
    assert_eq!(chain_of(NESTING_DEPTH + 1), Err(ManifestCode::NestingTooDeep));
    // Where a manifest that is known already is named too deep.
    let mut chain = chain(NESTING_DEPTH);
    let (eight, seven) = (chain.pop().unwrap(), chain.pop().unwrap());
    let others: Vec<_> = chain.iter().chain([&eight, &seven]).collect();
    assert_eq!(
        refusal(manifest(vec![nested("a/m", &seven), nested("b/m", &eight)]), &others),
        ManifestCode::NestingTooDeep
    );
}

#[test]
fn joined_paths_obey_the_rules_of_paths() {
    let long = files(&[&vec!["n".repeat(200); 4].join("/")]);
    let at = |directory: &str| manifest(vec![nested(&format!("{directory}/m"), &long)]);
    assert!(grow(at(&"d".repeat(200)), &[&long]).is_ok());
    assert_eq!(refusal(at(&format!("{}/{}", "d".repeat(200), "d".repeat(100))), &[&long]), ManifestCode::PathTooLong);
    let many = files(&[&vec!["n"; 40].join("/")]);
    let root = manifest(vec![nested(&format!("{}/m", vec!["d"; 25].join("/")), &many)]);
    assert_eq!(refusal(root, &[&many]), ManifestCode::PathTooManySegments);
    // A drive is one at the front of the whole path only.
    let drive = manifest(vec![nested("a/m", &files(&["b:c"]))]);
    assert!(grow(drive, &[&files(&["b:c"])]).is_ok());
}

#[test]
fn clashes_across_levels() {
    let inner = files(&["x", "y/z"]);
    let with = |others: &[&str]| {
        let mut entries: Vec<_> = others.iter().map(|path| file(path)).collect();
        entries.push(nested("d/m", &inner));
        grow(manifest(entries), &[&inner]).map(drop).map_err(|error| error.code)
    };
    assert_eq!(with(&["x", "e/x", "d/y/w"]), Ok(()));
    assert_eq!(with(&["d/x"]), Err(ManifestCode::PathDuplicate));
    assert_eq!(with(&["d/y"]), Err(ManifestCode::PathConflict));
    assert_eq!(with(&["d/x/below"]), Err(ManifestCode::PathConflict));
    let twice = manifest(vec![nested("d/m", &inner), nested("d/n", &inner)]);
    assert_eq!(refusal(twice, &[&inner]), ManifestCode::PathDuplicate);
}

#[test]
fn two_spellings_of_a_letter_are_two_files() {
    let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
    let inner = files(&[decomposed]);
    let root = manifest(vec![file(composed), file("CAFE"), file("cafe"), nested("m", &inner)]);
    assert_eq!(paths(&grow(root, &[&inner]).unwrap()), [composed, "CAFE", "cafe", "m", decomposed]);
}

#[test]
fn repeated_subtrees_count_each_time() {
    // Four entries at each level: 4^8 files if nobody counted.
    let mut inner = files(&["1", "2", "3", "4"]);
    let mut all = vec![inner.clone()];
    for _ in 0..NESTING_DEPTH {
        inner = manifest((0..4).map(|n| nested(&format!("{n}/m"), &inner)).collect());
        all.push(inner.clone());
    }
    let root = all.pop().unwrap();
    assert_eq!(refusal(root, &all.iter().collect::<Vec<_>>()), ManifestCode::TooManyEntries);
}

#[test]
fn entries_are_counted_over_the_whole_tree() {
    let paths: Vec<String> = (0..5000).map(|n| n.to_string()).collect();
    let inner = files(&paths.iter().map(String::as_str).collect::<Vec<_>>());
    let root = |more: usize| {
        let mut entries: Vec<_> = (0..more).map(|n| file(&format!("f{n}"))).collect();
        entries.push(nested("d/m", &inner));
        manifest(entries)
    };
    assert_eq!(grow(root(4999), &[&inner]).unwrap().entries().len(), 10_000);
    assert_eq!(refusal(root(5000), &[&inner]), ManifestCode::TooManyEntries);
}

#[test]
fn sizes_that_lie() {
    let inner = files(&["x"]);
    let lie = |size: u64| {
        let mut entry = nested("d/m", &inner);
        entry["size"] = json!(size);
        entry
    };
    let size = inner.canonical.len() as u64;
    assert_eq!(refusal(manifest(vec![lie(size + 1)]), &[&inner]), ManifestCode::SizeInvalid);
    assert_eq!(refusal(manifest(vec![nested("a/m", &inner), lie(size + 1)]), &[&inner]), ManifestCode::SizeInvalid);
    assert_eq!(refusal(manifest(vec![lie((16 << 20) + 1)]), &[]), ManifestCode::ManifestTooLarge);
    let most = |n: u8| {
        let sha256 = Sha256::of(&[n]);
        json!({ "path": format!("{n}/m"), "size": 9 << 20, "sha256": sha256, "mediaType": MEDIA_TYPE, "kind": "manifest" })
    };
    assert!(GrowingTree::of(manifest(vec![most(1)])).is_ok());
    let error = GrowingTree::of(manifest(vec![most(1), most(2)])).expect_err("a refusal");
    assert_eq!(error.code, ManifestCode::ManifestTooLarge);
    // A sum past 2^53 - 1 across levels.
    let mut huge = file("huge");
    huge["size"] = json!(SAFE_INTEGER);
    let inner = manifest(vec![huge]);
    assert_eq!(refusal(manifest(vec![nested("d/m", &inner)]), &[&inner]), ManifestCode::SizeInvalid);
}
