//! The text that a manifest comes in: what is JSON, how numbers are written, and how long and how deep it may be.

use serde_json::json;

use super::*;
use crate::protocol::limits::{MANIFEST_BYTES, MANIFEST_ENTRIES, SAFE_INTEGER};

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
