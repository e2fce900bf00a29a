//! A manifest as it is written: exactly the members that were received, or that a producer gives.
//!
//! The strict reader admits no other members, every number is an integer up to 2^53 - 1, and members are written here
//! in the order of RFC 8785: so writing them compactly *is* the canonical form, without sorting and without a tree of
//! the whole value. A test holds this to [`crate::protocol::canonical`].

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::{Chunks, EntryKind, Location};
use crate::protocol::Sha256;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ManifestForm<'a> {
    pub(super) created_at: &'a str,
    pub(super) entries: Vec<EntryForm<'a>>,
    /// The inner `None` is an explicit null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<Option<&'a str>>,
    pub(super) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) locations: Option<&'a [Location]>,
    pub(super) producer: ProducerForm<'a>,
}

#[derive(Serialize)]
pub(super) struct ProducerForm<'a> {
    pub(super) agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryForm<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chunks: Option<&'a Chunks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<EntryKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) locations: Option<&'a [Location]>,
    pub(super) media_type: &'a str,
    pub(super) path: &'a str,
    pub(super) sha256: Sha256,
    pub(super) size: u64,
}

impl Serialize for Location {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, target) = (("kind", self.kind.as_str()), (self.kind.member(), self.target.as_str()));
        let mut members = [kind, target];
        members.sort_unstable();
        let mut object = serializer.serialize_map(Some(members.len()))?;
        for (name, value) in members {
            object.serialize_entry(name, value)?;
        }
        object.end()
    }
}
