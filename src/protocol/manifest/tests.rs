use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::protocol::canonical;
use crate::protocol::limits::{MANIFEST_BYTES, MANIFEST_ENTRIES, SAFE_INTEGER};

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

/// The refusal of [`full`] with the value at `pointer` replaced.
fn refusal(pointer: &str, replacement: Value) -> ManifestError {
    let mut value = full();
    *value.pointer_mut(pointer).expect(pointer) = replacement;
    read_value(&value).expect_err(pointer)
}

/// The refusal of [`full`] with the member `name` of the object at `pointer` taken away.
fn refusal_without(pointer: &str, name: &str) -> ManifestCode {
    let mut value = full();
    value.pointer_mut(pointer).and_then(Value::as_object_mut).expect(pointer).remove(name).expect(name);
    read_value(&value).expect_err(name).code
}

/// The refusal of [`full`] with one more member in the object at `pointer`.
fn refusal_with(pointer: &str, name: &str, member: Value) -> ManifestError {
    let mut value = full();
    value.pointer_mut(pointer).and_then(Value::as_object_mut).expect(pointer).insert(name.to_owned(), member);
    read_value(&value).expect_err(name)
}

fn with_entries(entries: Vec<Value>) -> Result<Manifest, ManifestError> {
    let mut value = full();
    value["entries"] = Value::Array(entries);
    read_value(&value)
}

fn code(result: Result<Manifest, ManifestError>) -> Result<(), ManifestCode> {
    result.map(drop).map_err(|error| error.code)
}

/// The list of specification section 1, "The strict reader", word for word and in its order.
#[test]
fn the_codes_are_the_specification_s() {
    let specified = "wrong_kind, unknown_field, too_many_entries, path_absolute, path_parent_segment, path_invalid, \
        path_too_long, path_too_many_segments, path_duplicate, path_conflict, size_invalid, sha256_invalid, \
        media_type_invalid, kind_invalid, chunk_size_invalid, chunk_count_mismatch, chunk_hash_invalid, \
        locations_invalid, too_many_locations, location_kind_invalid, location_url_invalid, created_at_invalid, \
        expires_at_invalid, producer_invalid, nesting_too_deep, manifest_too_large, not_json, not_an_object";
    let codes: Vec<_> = ManifestCode::ALL.iter().map(|code| code.code()).collect();
    assert_eq!(codes.join(", "), specified);
}

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
fn each_rule_by_its_code() {
    use ManifestCode::*;
    let e = "/entries/0";
    for (pointer, replacement, expected) in [
        ("/kind", json!("webagents.artifact-set/v2"), WrongKind),
        ("/kind", json!(1), WrongKind),
        ("/createdAt", json!("2026-10-17"), CreatedAtInvalid),
        ("/createdAt", json!(1_792_231_200), CreatedAtInvalid),
        ("/createdAt", json!(null), CreatedAtInvalid),
        ("/expiresAt", json!("never"), ExpiresAtInvalid),
        ("/expiresAt", json!(0), ExpiresAtInvalid),
        ("/expiresAt", json!("2026-02-30T00:00:00Z"), ExpiresAtInvalid),
        ("/producer", json!("flow"), ProducerInvalid),
        ("/producer", json!(null), ProducerInvalid),
        ("/producer/agent", json!(""), ProducerInvalid),
        ("/producer/agent", json!("a\nb"), ProducerInvalid),
        ("/producer/agent", json!("a".repeat(2049)), ProducerInvalid),
        ("/producer/task", json!(42), ProducerInvalid),
        ("/producer/task", json!(null), ProducerInvalid),
        ("/producer/name", json!({}), ProducerInvalid),
        ("/entries", json!({}), NotAnObject),
        ("/entries", json!(null), NotAnObject),
        (e, json!("a"), NotAnObject),
        (e, json!(null), NotAnObject),
        ("/entries/0/path", json!("/a"), PathAbsolute),
        ("/entries/0/path", json!("a/../b"), PathParentSegment),
        ("/entries/0/path", json!("a//b"), PathInvalid),
        ("/entries/0/path", json!("a\u{0}b"), PathInvalid),
        ("/entries/0/path", json!(7), PathInvalid),
        ("/entries/0/path", json!("a".repeat(1025)), PathTooLong),
        ("/entries/0/path", json!("a".repeat(256)), PathTooLong),
        ("/entries/0/path", json!(vec!["a"; 65].join("/")), PathTooManySegments),
        ("/entries/0/path", json!("sub/set.json"), PathDuplicate),
        ("/entries/0/path", json!("sub"), PathConflict),
        ("/entries/0/path", json!("sub/set.json/x"), PathConflict),
        ("/entries/0/size", json!(-1), SizeInvalid),
        ("/entries/0/size", json!(1.5), SizeInvalid),
        ("/entries/0/size", json!(SAFE_INTEGER + 1), SizeInvalid),
        ("/entries/0/size", json!(u64::MAX), SizeInvalid),
        ("/entries/0/size", json!(1e300), SizeInvalid),
        ("/entries/0/size", json!("1"), SizeInvalid),
        ("/entries/0/size", json!([]), SizeInvalid),
        ("/entries/1/size", json!(SAFE_INTEGER), SizeInvalid),
        ("/entries/0/sha256", json!(hash().to_uppercase()), Sha256Invalid),
        ("/entries/0/sha256", json!("ab"), Sha256Invalid),
        ("/entries/0/sha256", json!(format!("{}zz", &hash()[2..])), Sha256Invalid),
        ("/entries/0/sha256", json!(null), Sha256Invalid),
        ("/entries/0/mediaType", json!("text"), MediaTypeInvalid),
        ("/entries/0/mediaType", json!("text/plain\r\nX: y"), MediaTypeInvalid),
        ("/entries/0/mediaType", json!(true), MediaTypeInvalid),
        ("/entries/0/kind", json!("folder"), KindInvalid),
        ("/entries/0/kind", json!(null), KindInvalid),
        ("/entries/0/chunks", json!([]), ChunkSizeInvalid),
        ("/entries/0/chunks", json!(null), ChunkSizeInvalid),
        ("/entries/0/chunks/chunkSize", json!(0), ChunkSizeInvalid),
        ("/entries/0/chunks/chunkSize", json!(256 * 1024 + 1), ChunkSizeInvalid),
        ("/entries/0/chunks/chunkSize", json!(65 * MIB), ChunkSizeInvalid),
        ("/entries/0/chunks/chunkSize", json!("8388608"), ChunkSizeInvalid),
        ("/entries/0/chunks/chunkSize", json!(4 * MIB), ChunkCountMismatch),
        ("/entries/0/chunks/hashes", json!([]), ChunkCountMismatch),
        ("/entries/0/chunks/hashes", json!([hash(), hash(), hash(), hash()]), ChunkCountMismatch),
        ("/entries/0/chunks/hashes", json!({}), ChunkHashInvalid),
        ("/entries/0/chunks/hashes/1", json!("x"), ChunkHashInvalid),
        ("/entries/0/chunks/hashes/1", json!(null), ChunkHashInvalid),
        ("/locations", json!({}), LocationsInvalid),
        ("/locations", json!(null), LocationsInvalid),
        ("/entries/0/locations", json!("https://a"), LocationsInvalid),
        ("/locations/0", json!("https://a"), LocationsInvalid),
        ("/locations", json!(vec![json!({"kind": "relay", "agent": "a"}); 17]), TooManyLocations),
        ("/entries/0/locations", json!(vec![1; 17]), LocationsInvalid),
        ("/locations/0/kind", json!("Carrier Pigeon"), LocationKindInvalid),
        ("/locations/0/kind", json!("x".repeat(33)), LocationKindInvalid),
        ("/locations/0/kind", json!(""), LocationKindInvalid),
        ("/locations/0/kind", json!(4), LocationKindInvalid),
        ("/locations/0/url", json!("ftp://a/b"), LocationUrlInvalid),
        ("/locations/0/url", json!(null), LocationUrlInvalid),
        ("/entries/0/locations/1/agent", json!("a/b"), LocationUrlInvalid),
        ("/entries/0/locations/2/ref", json!("with space"), LocationUrlInvalid),
    ] {
        let refused = refusal(pointer, replacement.clone());
        assert_eq!(refused.code, expected, "{pointer} = {replacement}: {refused}");
    }
}

#[test]
fn members_that_are_missing() {
    use ManifestCode::*;
    for (pointer, name, expected) in [
        ("", "kind", WrongKind),
        ("", "createdAt", CreatedAtInvalid),
        ("", "producer", ProducerInvalid),
        ("", "entries", NotAnObject),
        ("/producer", "agent", ProducerInvalid),
        ("/entries/0", "path", PathInvalid),
        ("/entries/0", "size", SizeInvalid),
        ("/entries/0", "sha256", Sha256Invalid),
        ("/entries/0", "mediaType", MediaTypeInvalid),
        ("/entries/0/chunks", "chunkSize", ChunkSizeInvalid),
        ("/entries/0/chunks", "hashes", ChunkHashInvalid),
        ("/locations/0", "kind", LocationKindInvalid),
        ("/locations/0", "url", LocationUrlInvalid),
        ("/entries/0/locations/1", "agent", LocationUrlInvalid),
        ("/entries/0/locations/2", "ref", LocationUrlInvalid),
    ] {
        assert_eq!(refusal_without(pointer, name), expected, "{pointer}/{name}");
    }
}

#[test]
fn unknown_members_at_every_level() {
    for pointer in ["", "/producer", "/entries/0", "/entries/0/chunks", "/locations/0"] {
        let refused = refusal_with(pointer, "extra", json!(1));
        assert_eq!(refused.code, ManifestCode::UnknownField, "{pointer}");
        assert!(refused.message.contains("\"extra\""), "{refused}");
    }
    // Another kind's member is unknown to this one.
    assert_eq!(refusal_with("/locations/0", "agent", json!("a")).code, ManifestCode::UnknownField);
    // An unknown member cannot hide a foreign kind, whatever comes first.
    let both = r#"{"aaa":1,"kind":"other/v1"}"#;
    assert_eq!(code(read(both)), Err(ManifestCode::WrongKind));
}

#[test]
fn a_member_that_is_there_twice_is_no_json() {
    let text = full().to_string();
    for (member, twice) in [
        (r#""expiresAt":null"#, r#""expiresAt":null,"expiresAt":null"#),
        (r#""size":1200"#, r#""size":1200,"size":1200"#),
        (r#""chunkSize":8388608"#, r#""chunkSize":8388608,"chunkSize":8388608"#),
        (r#""task":"task-42""#, r#""task":"task-42","t\u0061sk":"task-43""#),
        (r#""agent":"flow""#, r#""agent":"flow","agent":"flow""#),
    ] {
        assert!(text.contains(member), "{member}");
        assert_eq!(code(read(&text.replacen(member, twice, 1))), Err(ManifestCode::NotJson), "{twice}");
    }
}

#[test]
fn what_is_no_json_and_what_is_no_object() {
    let text = full().to_string();
    for no_json in [
        "",
        " ",
        "{",
        "nul",
        "[1,",
        "[1]]",
        "'a'",
        "{\"kind\":}",
        "\u{feff}{}",
        "01",
        &text[..text.len() - 1],
        &format!("{text}x"),
        &text.replace("Flow", "\\ud83d"),
        &text.replace("Flow", "\\x"),
        &text.replace("Flow", "a\nb"),
        &text.replace("1200", "01200"),
        &text.replace("1200", "NaN"),
        &text.replace("1200", "1e999"),
    ] {
        assert_eq!(code(read(no_json)), Err(ManifestCode::NotJson), "{no_json}");
    }
    for no_object in ["null", "true", "1", "-1", "1.5", "\"a\"", "[]", "[{}]"] {
        assert_eq!(code(read(no_object)), Err(ManifestCode::NotAnObject), "{no_object}");
    }
}

#[test]
fn nesting_in_the_text_costs_no_stack() {
    let deep = "[".repeat(1_000_000);
    assert_eq!(code(read(&deep)), Err(ManifestCode::NotJson));
    let closed = format!("{deep}{}", "]".repeat(1_000_000));
    assert_eq!(code(read(&closed)), Err(ManifestCode::NotAnObject));
    let text = full().to_string();
    for place in [r#""kind":"#, r#""entries":"#, r#""size":"#, r#""hashes":"#, r#""url":"#, r#""agent":"#] {
        let nested = text.replacen(place, &format!("{place}{closed},{place}"), 1);
        read(&nested).expect_err(place);
    }
}

#[test]
fn nested_manifests() {
    assert_eq!(check_depth(0), Ok(()));
    assert_eq!(check_depth(8), Ok(()));
    assert_eq!(check_depth(9).unwrap_err().code, ManifestCode::NestingTooDeep);
}

#[test]
fn sizes_and_counts_at_their_edges() {
    let at = |n: usize| with_entries((0..n).map(|i| entry(&i.to_string())).collect());
    assert_eq!(at(MANIFEST_ENTRIES).unwrap().entries.len(), MANIFEST_ENTRIES);
    assert_eq!(code(at(MANIFEST_ENTRIES + 1)), Err(ManifestCode::TooManyEntries));

    // Too many is refused while scanning: before the last entries are looked at.
    let mut entries: Vec<_> = (0..=MANIFEST_ENTRIES).map(|i| entry(&i.to_string())).collect();
    entries.push(json!("no entry"));
    entries[MANIFEST_ENTRIES] = json!("no entry either");
    assert_eq!(code(with_entries(entries)), Err(ManifestCode::TooManyEntries));

    let text = full().to_string();
    let padded = format!("{text}{}", " ".repeat(MANIFEST_BYTES - text.len()));
    assert_eq!(code(read(&padded)), Ok(()));
    assert_eq!(code(read(&format!("{padded} "))), Err(ManifestCode::ManifestTooLarge));

    let mut most = entry("a");
    most["size"] = json!(SAFE_INTEGER);
    assert_eq!(code(with_entries(vec![most])), Ok(()));
    let sixteen = json!(vec![json!({ "kind": "relay", "agent": "a" }); 16]);
    assert_eq!(read_locations(&sixteen.to_string()).unwrap().len(), 16);
}

#[test]
fn the_canonical_form_is_bounded_too() {
    // In canonical form each `1e6` grows by four bytes: enough to carry a text that just fits over the limit.
    let line = |i: usize, fill: usize| {
        let (url, sha256) = (format!("https://a/{}", "a".repeat(fill)), hash());
        format!(
            r#",{{"locations":[{{"kind":"s3","url":"{url}"}}],"mediaType":"a/b","path":"{i:04}","sha256":"{sha256}","size":1e6}}"#
        )
    };
    let text = |count: usize, fill: usize| {
        let entries: String = (0..count).map(|i| line(i, fill)).collect();
        format!(
            r#"{{"createdAt":"2026-10-17T10:00:00Z","entries":[{}],"kind":"{KIND}","producer":{{"agent":"a"}}}}"#,
            &entries[1..]
        )
    };
    let count = 9800;
    let fill = (MANIFEST_BYTES - text(1, 0).len()) / count - line(0, 0).len();
    let full = text(count, fill);
    assert!(full.len() <= MANIFEST_BYTES);
    assert_eq!(code(read(&full)), Err(ManifestCode::ManifestTooLarge));
    assert_eq!(code(read(&text(count, fill - 4))), Ok(()));
}

#[test]
fn integers_however_they_are_written() {
    let text = full().to_string();
    for (written, size) in [("1.0", 1), ("1e3", 1000), ("12E+2", 1200), ("-0", 0), ("0.0", 0), ("5e-1", u64::MAX)] {
        let read = read(&text.replace("1200", written));
        match size {
            u64::MAX => assert_eq!(code(read), Err(ManifestCode::SizeInvalid), "{written}"),
            _ => assert_eq!(read.unwrap().entries[1].size, size, "{written}"),
        }
    }
    // The identity is that of the value, not of its spelling.
    assert_eq!(read(&text).unwrap().identity, read(&text.replace("1200", "1.2e3")).unwrap().identity);
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

#[test]
fn messages_name_the_place_and_stay_short() {
    let message = |pointer, value| refusal(pointer, value).to_string();
    assert_eq!(message("/kind", json!("x")), "kind: must be webagents.artifact-set/v1");
    assert_eq!(message("/entries/1/path", json!("/a")), "entries[1].path: must be relative");
    assert_eq!(message("/entries/0/path", json!("sub/set.json")), "entries[1].path: the same path as entries[0]");
    assert_eq!(
        message("/entries/0/chunks/hashes/2", json!("x")),
        "entries[0].chunks.hashes[2]: must be 64 lower-case hex digits"
    );
    assert_eq!(message("/entries/0/chunks/hashes", json!([])), "entries[0].chunks: 0 hashes for 3 chunks");
    assert_eq!(
        message("/entries/0/locations/1/agent", json!("")),
        "entries[0].locations[1].agent: must be an agent's name"
    );
    let long = "\u{1}".repeat(1_000_000);
    for pointer in
        ["/kind", "/createdAt", "/entries/0/path", "/entries/0/mediaType", "/locations/0/kind", "/locations/0/url"]
    {
        assert!(refusal(pointer, json!(long)).message.len() <= 300, "{pointer}");
    }
    assert!(refusal_with("/entries/0", &long, json!(1)).message.len() <= 300);
    assert!(refusal_with("", &long, json!(1)).message.len() <= 300);
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

/// Any manifest that the reader takes, in any order of members, with whatever spelling of strings and numbers.
fn arbitrary_manifest() -> impl Strategy<Value = Value> {
    let text = "[\\PC\"\\\\\u{80}-\u{9f}\u{2028}😀\u{fb33}]{1,12}"
        .prop_filter("is trimmed", |text: &String| text.trim() == text && !text.chars().any(char::is_control));
    let location = prop_oneof![
        Just(json!({ "kind": "https", "url": "https://a.example/x" })),
        Just(json!({ "kind": "oci", "ref": "r.example/a:b" })),
        Just(json!({ "kind": "ipfs", "url": "x\"\\y" })),
        text.clone().prop_filter("no slash", |t| !t.contains('/')).prop_map(|t| json!({ "kind": "relay", "agent": t })),
    ];
    let locations = proptest::option::of(proptest::collection::vec(location, 0..3));
    let size =
        prop_oneof![(0..=3 * 256 * 1024_u64).prop_map(|n| json!(n)), (0..9_u32).prop_map(|n| json!(f64::from(n)))];
    let kind = proptest::option::of(prop_oneof![Just("file"), Just("manifest")]);
    let entry = (size, any::<bool>(), any::<[u8; 32]>(), kind, locations.clone(), text.clone()).prop_map(
        |(size, chunked, digest, kind, locations, name)| {
            let mut entry =
                json!({ "path": name, "size": size, "sha256": Sha256(digest), "mediaType": "text/x;a=\"\\\"b\"" });
            if chunked {
                let count = (size.as_f64().unwrap() as u64).div_ceil(256 * 1024) as usize;
                entry["chunks"] = json!({ "hashes": vec![Sha256(digest); count], "chunkSize": 262_144.0 });
            }
            if let Some(kind) = kind {
                entry["kind"] = json!(kind);
            }
            if let Some(locations) = locations {
                entry["locations"] = json!(locations);
            }
            entry
        },
    );
    let producer = (text.clone(), proptest::option::of(text.clone()), proptest::option::of(text));
    let expires = proptest::option::of(prop_oneof![Just(json!(null)), Just(json!("2026-10-17T10:00:00.123456Z"))]);
    (proptest::collection::vec(entry, 0..4), producer, expires, locations).prop_map(
        |(mut entries, (agent, name, task), expires, locations)| {
            for (i, entry) in entries.iter_mut().enumerate() {
                // Distinct, and valid whatever the text.
                let name = entry["path"].as_str().unwrap().replace(['\\', '/'], "_");
                entry["path"] = json!(format!("{i}_/{name}_"));
            }
            let mut value = json!({ "kind": KIND, "createdAt": "2026-10-17T10:00:00Z", "entries": entries, "producer": { "agent": agent } });
            if let Some(name) = name {
                value["producer"]["name"] = json!(name);
            }
            if let Some(task) = task {
                value["producer"]["task"] = json!(task);
            }
            if let Some(expires) = expires {
                value["expiresAt"] = expires;
            }
            if let Some(locations) = locations {
                value["locations"] = json!(locations);
            }
            value
        },
    )
}

proptest! {
    #[test]
    fn the_written_form_is_the_canonical_one(value in arbitrary_manifest(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let manifest = read(&text).unwrap();
        prop_assert_eq!(&manifest.canonical[..], &canonical::to_vec(&value).unwrap()[..]);
        prop_assert_eq!(&read(str::from_utf8(&manifest.canonical).unwrap()).unwrap(), &manifest);
        // Escaped throughout, it is the same value.
        let escaped: String = text.chars().map(|c| {
            if c.is_ascii() { return c.to_string() }
            c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04X}")).collect()
        }).collect();
        prop_assert_eq!(read(&escaped).unwrap().identity, manifest.identity);
    }

    /// Cut, or with some bytes changed: refused, or read by every rule.
    #[test]
    fn a_damaged_manifest_is_refused_or_right(
        cut in 0.0..1.0_f64,
        changes in proptest::collection::vec((0.0..1.0_f64, "[ -~]"), 0..4),
    ) {
        let text = full().to_string();
        prop_assert!(read(&text[..(text.len() as f64 * cut) as usize]).is_err());
        let mut damaged = text.clone();
        for (at, with) in changes {
            let at = (text.len() as f64 * at) as usize;
            damaged.replace_range(at..at + 1, &with);
        }
        if let Ok(manifest) = read(&damaged) {
            let value: Value = serde_json::from_str(&damaged).unwrap();
            prop_assert_eq!(&manifest.canonical[..], &canonical::to_vec(&value).unwrap()[..]);
            for entry in &manifest.entries {
                prop_assert!(path::check(&entry.path).is_ok());
                if let Some(chunks) = &entry.chunks {
                    prop_assert_eq!(entry.size.div_ceil(chunks.chunk_size), chunks.hashes.len() as u64);
                }
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[\\PC{}\\[\\]\":,0-9]{0,60}") {
        if let Err(error) = read(&text) {
            prop_assert!(error.message.len() <= 300);
        }
        let _ = read_locations(&text);
    }
}
