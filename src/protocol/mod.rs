//! What goes over the wire, as values: frames, binary data frames, manifests, ranges, identities.
//!
//! Everything here is pure: no sockets, no clock, no database. Both sides of the relay use it (the gateway, and the
//! agent's side in [`crate::producer`]), so a rule of the specification is written once.

pub mod data;
pub mod frames;
pub mod ids;
pub mod limits;
pub mod manifest;
pub mod range;
pub mod sha256;

pub use ids::{AgentName, ChatId, Principal, RequestId, SessionId, TaskId};
pub use manifest::{Chunks, Entry, EntryKind, Location, LocationKind, Manifest};
pub use range::ByteRange;
pub use sha256::{Hasher, Sha256};
