//! Stand-in until the protocol's own draft is merged.

use serde_json::{Value, json};

use crate::protocol::{Entry, Location, LocationKind, Manifest, Sha256};

pub(super) struct ManifestDraft {
    pub(super) created_at: i64,
    pub(super) producer_agent: String,
    pub(super) producer_task: Option<String>,
    pub(super) entries: Vec<Entry>,
    pub(super) locations: Vec<Location>,
}

impl ManifestDraft {
    pub(super) fn finish(self) -> Result<Manifest, serde_json::Error> {
        let entries: Vec<Value> = self
            .entries
            .iter()
            .map(|e| {
                let mut v = json!({"path": e.path, "size": e.size, "sha256": e.sha256, "mediaType": e.media_type});
                if let Some(c) = &e.chunks {
                    v["chunks"] = json!({"chunkSize": c.chunk_size, "hashes": c.hashes});
                }
                v
            })
            .collect();
        let locations: Vec<Value> = self
            .locations
            .iter()
            .filter(|l| l.kind == LocationKind::Relay)
            .map(|l| json!({"kind":"relay","agent":l.target}))
            .collect();
        let mut value = json!({"kind":"webagents.artifact-set/v1","createdAt":"2026-10-17T10:00:00Z","expiresAt":null,
            "producer":{"agent":self.producer_agent},"entries":entries,"locations":locations});
        if let Some(task) = &self.producer_task {
            value["producer"]["task"] = json!(task);
        }
        let canonical = serde_json_canonicalizer::to_vec(&value)?;
        Ok(Manifest {
            identity: Sha256::of(&canonical),
            canonical: canonical.into(),
            created_at: self.created_at,
            expires_at: None,
            producer_agent: self.producer_agent,
            producer_task: self.producer_task,
            entries: self.entries,
            locations: self.locations,
        })
    }
}
