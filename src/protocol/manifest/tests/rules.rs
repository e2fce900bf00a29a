//! Each rule of the strict reader, by the code and the message of its refusal.

use serde_json::{Value, json};

use super::*;
use crate::protocol::limits::SAFE_INTEGER;

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
