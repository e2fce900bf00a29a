//! Stands in for the strict reader until that is there: reads the happy path only.

use super::*;

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestCode(&'static str);

impl ManifestCode {
    /// On the wire.
    pub fn code(self) -> &'static str {
        self.0
    }
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ManifestError {
    /// Which rule.
    pub code: ManifestCode,
    /// For people.
    pub message: String,
}

fn refuse(code: &'static str) -> ManifestError {
    ManifestError { code: ManifestCode(code), message: code.to_owned() }
}

/// Reads a manifest.
pub fn read(text: &str) -> Result<Manifest, ManifestError> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|_| refuse("not_json"))?;
    if value["kind"] != "webagents.artifact-set/v1" {
        return Err(refuse("wrong_kind"));
    }
    let canonical = serde_json_canonicalizer::to_vec(&value).map_err(|_| refuse("not_json"))?;
    let entry = |entry: &serde_json::Value| -> Option<Entry> {
        Some(Entry {
            path: entry["path"].as_str()?.to_owned(),
            size: entry["size"].as_u64()?,
            sha256: entry["sha256"].as_str()?.parse().ok()?,
            media_type: entry["mediaType"].as_str()?.to_owned(),
            kind: if entry["kind"] == "manifest" { EntryKind::Manifest } else { EntryKind::File },
            chunks: entry["chunks"].as_object().and_then(|chunks| {
                let hashes = chunks["hashes"].as_array()?.iter();
                Some(Chunks {
                    chunk_size: chunks["chunkSize"].as_u64()?,
                    hashes: hashes.filter_map(|hash| hash.as_str()?.parse().ok()).collect(),
                })
            }),
            locations: entry.get("locations").map(locations),
        })
    };
    Ok(Manifest {
        identity: Sha256::of(&canonical),
        canonical: canonical.into(),
        created_at: 0,
        expires_at: None,
        producer_agent: value["producer"]["agent"].as_str().unwrap_or_default().to_owned(),
        producer_task: value["producer"]["task"].as_str().and_then(|task| task.parse().ok()),
        entries: value["entries"].as_array().into_iter().flatten().filter_map(entry).collect(),
        locations: value.get("locations").map(locations).unwrap_or_default(),
    })
}

fn locations(value: &serde_json::Value) -> Vec<Location> {
    let location = |location: &serde_json::Value| {
        let (kind, member) = match location["kind"].as_str()? {
            "relay" => (LocationKind::Relay, "agent"),
            "https" => (LocationKind::Https, "url"),
            other => (LocationKind::Other(other.to_owned()), "url"),
        };
        Some(Location { kind, target: location[member].as_str()?.to_owned() })
    };
    value.as_array().into_iter().flatten().filter_map(location).collect()
}

/// Reads a list of locations.
pub fn read_locations(text: &str) -> Result<Vec<Location>, ManifestError> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|_| refuse("not_json"))?;
    if !value.is_array() {
        return Err(refuse("locations_invalid"));
    }
    Ok(locations(&value))
}
