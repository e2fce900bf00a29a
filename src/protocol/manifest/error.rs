//! Why a manifest is refused: the specification's closed list of codes.

use std::fmt;

/// Longest message, in bytes. Places and rules are short; only a name quoted from the manifest could be long.
const MESSAGE_BYTES: usize = 300;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// The rule that a manifest breaks (specification section 1, "The strict reader").
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ManifestCode {
            $($(#[$doc])* $name,)*
        }

        impl ManifestCode {
            /// Every code of the specification, in its order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code on the wire.
            pub fn code(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }
        }
    };
}

codes! {
    /// `kind` is not `webagents.artifact-set/v1`.
    WrongKind = "wrong_kind",
    /// A member that the specification does not name, at any level.
    UnknownField = "unknown_field",
    /// More than 10,000 entries.
    TooManyEntries = "too_many_entries",
    /// A path that starts at a root.
    PathAbsolute = "path_absolute",
    /// A path with a `..` segment.
    PathParentSegment = "path_parent_segment",
    /// A path that is missing, no string, not normalised, or holds a backslash or a control character.
    PathInvalid = "path_invalid",
    /// A path over 1024 bytes, or a segment over 255.
    PathTooLong = "path_too_long",
    /// A path of more than 64 segments.
    PathTooManySegments = "path_too_many_segments",
    /// Two entries of the same path.
    PathDuplicate = "path_duplicate",
    /// A path that is both a file and a directory.
    PathConflict = "path_conflict",
    /// A size that is no integer from 0 to 2^53 - 1, or sizes that are more together.
    SizeInvalid = "size_invalid",
    /// A hash that is not 64 lower-case hex digits.
    Sha256Invalid = "sha256_invalid",
    /// A media type that is none in syntax.
    MediaTypeInvalid = "media_type_invalid",
    /// An entry's kind that is neither `file` nor `manifest`.
    KindInvalid = "kind_invalid",
    /// Chunks without a chunk size that the specification allows.
    ChunkSizeInvalid = "chunk_size_invalid",
    /// Not one hash per chunk.
    ChunkCountMismatch = "chunk_count_mismatch",
    /// Chunk hashes that are missing, or one that is not 64 lower-case hex digits.
    ChunkHashInvalid = "chunk_hash_invalid",
    /// Locations that are no list of objects.
    LocationsInvalid = "locations_invalid",
    /// More than 16 locations in a list.
    TooManyLocations = "too_many_locations",
    /// A location without a usable kind.
    LocationKindInvalid = "location_kind_invalid",
    /// A location whose `url`, `ref` or `agent` is missing or not allowed.
    LocationUrlInvalid = "location_url_invalid",
    /// `createdAt` is no ISO 8601 time in UTC.
    CreatedAtInvalid = "created_at_invalid",
    /// `expiresAt` is neither null nor an ISO 8601 time in UTC.
    ExpiresAtInvalid = "expires_at_invalid",
    /// `producer` is missing, or one of its members is no usable text.
    ProducerInvalid = "producer_invalid",
    /// Manifests within manifests more than 8 deep.
    NestingTooDeep = "nesting_too_deep",
    /// More than 16 MiB, as received or in canonical form.
    ManifestTooLarge = "manifest_too_large",
    /// Not JSON, or JSON in which an object has a member twice.
    NotJson = "not_json",
    /// JSON, but no object; also an entry that is no object, and `entries` that are missing or no list.
    NotAnObject = "not_an_object",
}

impl fmt::Display for ManifestCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// A manifest, or a list of locations, was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ManifestError {
    /// Which rule, for programs.
    pub code: ManifestCode,
    /// The same for people, with the place: `entries[3].path: …`. At most 300 bytes.
    pub message: String,
}

impl ManifestError {
    pub(super) fn new(code: ManifestCode, message: impl fmt::Display) -> Self {
        let mut message = message.to_string();
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
        Self { code, message }
    }
}
