/// Why an announcement is refused, beside the strict reader's own codes: a closed list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnnounceCode {
    /// The frame itself is wrong.
    BadRequest,
    /// The manifest's identity is not the announced hash.
    HashMismatch,
    /// The manifest's canonical form does not have the announced size.
    SizeMismatch,
    /// The session is not known, or another agent's.
    SessionUnknown,
    /// Several agents share the connection, and the announcement names no session.
    SessionRequired,
    /// The manifest is not inlined and cannot be read.
    ManifestUnreadable,
    /// The agent has announced as much as it may.
    QuotaExceeded,
    /// The agent announces too often.
    RateLimited,
    /// The gateway cannot keep anything at the moment.
    Unavailable,
    /// The manifest or a list of locations breaks a rule of the strict reader. On the wire it is that rule's own code.
    Manifest,
}

impl AnnounceCode {
    /// Every code.
    pub const ALL: [Self; 10] = [
        Self::BadRequest,
        Self::HashMismatch,
        Self::SizeMismatch,
        Self::SessionUnknown,
        Self::SessionRequired,
        Self::ManifestUnreadable,
        Self::QuotaExceeded,
        Self::RateLimited,
        Self::Unavailable,
        Self::Manifest,
    ];

    /// The code on the wire; for [`Manifest`](Self::Manifest) what metrics call all of the strict reader's together.
    pub fn code(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::HashMismatch => "hash_mismatch",
            Self::SizeMismatch => "size_mismatch",
            Self::SessionUnknown => "session_unknown",
            Self::SessionRequired => "session_required",
            Self::ManifestUnreadable => "manifest_unreadable",
            Self::QuotaExceeded => "quota_exceeded",
            Self::RateLimited => "rate_limited",
            Self::Unavailable => "unavailable",
            Self::Manifest => "manifest_invalid",
        }
    }
}
