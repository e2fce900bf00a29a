//! Whatever a manifest or a text is: it is read to its canonical form, or it is refused.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::protocol::canonical;

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
