//! What goes over the wire, as values: frames, binary data frames, manifests, ranges, identities.
//!
//! Everything here is pure: no sockets, no clock, no database. Both sides of the relay use it (the gateway, and the
//! agent's side in [`crate::producer`]), so a rule of the specification is written once.

pub mod address;
pub mod canonical;
pub mod conditional;
pub mod data;
pub mod digest_field;
pub mod disposition;
pub mod frames;
pub mod handshake;
pub mod ids;
pub mod limits;
pub mod manifest;
pub mod media_type;
pub mod oci;
pub mod plain_url;
pub mod range;
pub mod sha256;
pub mod signature;
pub mod timestamp;

pub use conditional::{EntityTag, Precondition};
pub use ids::{AgentName, ChatId, Principal, RequestId, SessionId, TaskId};
pub use manifest::{
    Chunks, Entry, EntryKind, GrowingTree, Location, LocationKind, Manifest, ManifestCode, ManifestDraft,
    ManifestError, Tree,
};
pub use plain_url::PlainUrl;
pub use range::{ByteRange, Selection};
pub use sha256::{Hasher, Sha256};
