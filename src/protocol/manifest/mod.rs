//! The manifest of an artifact set (specification section 1), as values that already passed the strict reader.
//!
//! Owns the reader, the rules of paths and locations, the canonical form and its identity, and the producer's way to
//! write one. It fetches nothing and compares no announced hash: that is its caller's part.

mod draft;
mod entry;
mod error;
mod form;
mod location;
pub mod path;
mod read;
#[cfg(test)]
mod tests;
mod tree;
mod walk;

use serde::Serialize;

pub use draft::ManifestDraft;
pub use error::{ManifestCode, ManifestError};
pub use read::{check_depth, read, read_bytes, read_locations};
pub use tree::{GrowingTree, Tree, TreeEntry, Wanted};

use super::{Sha256, TaskId};

/// The `kind` of every manifest.
pub const KIND: &str = "webagents.artifact-set/v1";
/// The media type of a manifest's canonical form.
pub const MEDIA_TYPE: &str = "application/vnd.webagents.artifact-set+json";

/// A manifest, valid by every rule of the strict reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// SHA-256 of the canonical form.
    pub identity: Sha256,
    /// The canonical form (RFC 8785), over the value as it was received.
    pub canonical: bytes::Bytes,
    /// `createdAt`, Unix milliseconds.
    pub created_at: i64,
    /// `expiresAt`, Unix milliseconds; `None` when null or absent.
    pub expires_at: Option<i64>,
    /// `producer.agent`.
    pub producer_agent: String,
    /// `producer.task`.
    pub producer_task: Option<TaskId>,
    /// `producer.name`, for display.
    pub producer_name: Option<String>,
    /// In the manifest's own order.
    pub entries: Vec<Entry>,
    /// The set's own locations, used by entries that have none.
    pub locations: Vec<Location>,
}

/// One file of a set, or one nested manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative, `/`-separated, normalised.
    pub path: String,
    /// The whole file's length in bytes.
    pub size: u64,
    /// The whole file's identity.
    pub sha256: Sha256,
    /// A media type, valid in syntax and no more: attacker controlled.
    pub media_type: String,
    /// A file, or another manifest.
    pub kind: EntryKind,
    /// Present when the file is longer than the chunk size.
    pub chunks: Option<Chunks>,
    /// Replace the set's own when present.
    pub locations: Option<Vec<Location>>,
}

/// What an entry's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A file.
    File,
    /// Another manifest, whose paths are relative to this entry's directory.
    Manifest,
}

impl EntryKind {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "file" => Some(Self::File),
            "manifest" => Some(Self::Manifest),
            _ => None,
        }
    }
}

/// The hashes of a file's pieces. The last chunk is the remainder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chunks {
    /// Bytes per chunk: a multiple of 256 KiB, between 256 KiB and 64 MiB.
    pub chunk_size: u64,
    /// One hash per chunk, in order.
    pub hashes: Vec<Sha256>,
}

/// A hint where bytes can be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Which way.
    pub kind: LocationKind,
    /// The kind's one field: a URL, a registry reference, or an agent's name.
    pub target: String,
}

/// The ways to fetch bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocationKind {
    /// `url`: the producer's own endpoint.
    Https,
    /// `ref`: an OCI registry reference.
    Oci,
    /// `url`: a short-lived presigned URL.
    S3,
    /// `url`: a platform content store.
    Robutler,
    /// `agent`: the producer's own outbound connection.
    Relay,
    /// `url`: a kind that the specification does not name, to be passed over for the next location.
    Other(String),
}
