//! The producer's side: a manifest put together from its parts.

use super::error::{ManifestCode, ManifestError};
use super::form::{EntryForm, ManifestForm, ProducerForm};
use super::{Entry, EntryKind, KIND, Location, Manifest, read};
use crate::protocol::timestamp;

/// The parts of a manifest that is to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestDraft {
    /// Unix milliseconds.
    pub created_at: i64,
    /// Unix milliseconds; `None` for a set that does not expire.
    pub expires_at: Option<i64>,
    /// The producing agent's principal, its agent URL.
    pub producer_agent: String,
    /// The task that the set answers.
    pub producer_task: Option<String>,
    /// A display name.
    pub producer_name: Option<String>,
    /// The files, in the order they are to be listed in.
    pub entries: Vec<Entry>,
    /// Where the bytes of entries without locations of their own can be fetched; not written when empty.
    pub locations: Vec<Location>,
}

impl ManifestDraft {
    /// Writes the manifest and passes it through the strict reader, so that nothing is published that a reader refuses.
    ///
    /// # Errors
    /// As [`read()`]; a time outside the years 0 to 9999 is invalid.
    pub fn finish(&self) -> Result<Manifest, ManifestError> {
        let written = |millis, code| {
            timestamp::format(millis).ok_or_else(|| ManifestError::new(code, "a time outside the years 0 to 9999"))
        };
        let created_at = written(self.created_at, ManifestCode::CreatedAtInvalid)?;
        let expires_at = self.expires_at.map(|at| written(at, ManifestCode::ExpiresAtInvalid)).transpose()?;
        let form = ManifestForm {
            created_at: &created_at,
            entries: self.entries.iter().map(entry_form).collect(),
            expires_at: Some(expires_at.as_deref()),
            kind: KIND,
            locations: (!self.locations.is_empty()).then_some(&self.locations),
            producer: ProducerForm {
                agent: &self.producer_agent,
                name: self.producer_name.as_deref(),
                task: self.producer_task.as_deref(),
            },
        };
        // Texts and integers under fixed names cannot fail to serialise.
        let text = serde_json::to_string(&form)
            .map_err(|_| ManifestError::new(ManifestCode::NotJson, "the manifest has no JSON form"))?;
        read(&text)
    }
}

fn entry_form(entry: &Entry) -> EntryForm<'_> {
    EntryForm {
        chunks: entry.chunks.as_ref(),
        kind: (entry.kind != EntryKind::File).then_some(entry.kind),
        locations: entry.locations.as_deref(),
        media_type: &entry.media_type,
        path: &entry.path,
        sha256: entry.sha256,
        size: entry.size,
    }
}
