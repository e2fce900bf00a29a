//! The limits of the artifacts specification (section 6), in one place.

/// Largest manifest, in bytes of its canonical form (and of the JSON text as received).
pub const MANIFEST_BYTES: usize = 16 * 1024 * 1024;
/// Most entries in one manifest.
pub const MANIFEST_ENTRIES: usize = 10_000;
/// Longest entry path, in UTF-8 bytes.
pub const PATH_BYTES: usize = 1024;
/// Most `/`-separated segments in an entry path.
pub const PATH_SEGMENTS: usize = 64;
/// Longest path segment, in UTF-8 bytes.
pub const PATH_SEGMENT_BYTES: usize = 255;
/// Deepest nesting of manifests.
pub const NESTING_DEPTH: usize = 8;
/// Most locations in one list.
pub const LOCATIONS: usize = 16;
/// Smallest chunk, and the step that chunk sizes are a multiple of.
pub const CHUNK_SIZE_MIN: u64 = 256 * 1024;
/// Largest chunk.
pub const CHUNK_SIZE_MAX: u64 = 64 * 1024 * 1024;
/// The chunk size a producer uses unless it chooses otherwise.
pub const CHUNK_SIZE_DEFAULT: u64 = 8 * 1024 * 1024;
/// Largest payload of one `blob.data` frame.
pub const DATA_PAYLOAD: usize = 256 * 1024;
/// Credit of a `blob.read` that names none, in frames.
pub const CREDIT_DEFAULT: u32 = 4;
/// Most credit a read may hold, in frames.
pub const CREDIT_MAX: u32 = 1024;
/// Longest `blob.read`, in bytes.
pub const READ_BYTES: u64 = 64 * 1024 * 1024;
/// Concurrent reads that one relay serves.
pub const CONCURRENT_READS: usize = 16;
/// Concurrent transfers that one producer endpoint serves.
pub const CONCURRENT_TRANSFERS: usize = 16;
/// Longest request id, in bytes.
pub const REQUEST_ID_BYTES: usize = 64;
/// Largest integer that JSON carries exactly everywhere (2^53 - 1, RFC 7493 section 2.2).
pub const SAFE_INTEGER: u64 = (1 << 53) - 1;
/// Largest text frame sent to an agent. The Python SDK closes with 1009 at 1 MiB.
pub const FRAME_TO_AGENT: usize = 1024 * 1024 - 1;
