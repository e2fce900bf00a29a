//! Why a signed request proves nothing.

/// The checks of the profile, in the order in which they are made; each has its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// A field or a signature is not of the form that RFC 9421 and the profile give it.
    #[error("{0}")]
    Malformed(&'static str),
    /// A parameter is missing or has no such value.
    #[error("{0}")]
    ParamsInvalid(&'static str),
    /// Outside its time, give or take [`LEEWAY_SECS`](super::LEEWAY_SECS).
    #[error("the signature has expired or is not valid yet: sign each request afresh, by a clock that is right")]
    Expired,
    /// Made for another host.
    #[error("the request is signed for another authority: ask by the public name, and let proxies keep Host")]
    AuthorityMismatch,
    /// A body that is too long to check.
    #[error("the body of a signed request is at most 4 MiB")]
    BodyTooLarge,
    /// `Signature-Agent` names nobody.
    #[error("{0}")]
    AgentInvalid(&'static str),
    /// Something that must be signed is not.
    #[error("{0}")]
    CoverageInsufficient(&'static str),
    /// The agent's key set could not be fetched.
    #[error("the agent's key set cannot be fetched from the URL that Signature-Agent names")]
    KeySetUnreachable,
    /// What was fetched is no key set.
    #[error("the agent's key set is not a JWK set with a usable Ed25519 key")]
    KeySetInvalid,
    /// The key set has no such key.
    #[error("no key in the agent's key set has the thumbprint that keyid names")]
    KeyUnknown,
    /// Another key, or another request, than was signed.
    #[error("the signature does not verify under the agent's key")]
    Invalid,
    /// Another body than was signed.
    #[error("Content-Digest is not the digest of the body")]
    DigestMismatch,
    /// The nonce was seen before, or too many are remembered.
    #[error("{0}")]
    Replayed(&'static str),
    /// The agent is known by other keys.
    #[error("the agent is known by another key: sign with both in one request, or have the operator forget its keys")]
    KeyNotContinued,
}

impl SignatureError {
    /// The codes, each once, for metrics that exist from the start.
    pub const CODES: [&str; 14] = [
        "signature_malformed",
        "signature_params_invalid",
        "signature_expired",
        "signature_authority_mismatch",
        "signature_body_too_large",
        "signature_agent_invalid",
        "signature_coverage_insufficient",
        "key_set_unreachable",
        "key_set_invalid",
        "signature_key_unknown",
        "signature_invalid",
        "content_digest_mismatch",
        "signature_replayed",
        "signature_key_not_continued",
    ];

    /// The code that the signer is told.
    pub fn code(self) -> &'static str {
        let place = match self {
            Self::Malformed(_) => 0,
            Self::ParamsInvalid(_) => 1,
            Self::Expired => 2,
            Self::AuthorityMismatch => 3,
            Self::BodyTooLarge => 4,
            Self::AgentInvalid(_) => 5,
            Self::CoverageInsufficient(_) => 6,
            Self::KeySetUnreachable => 7,
            Self::KeySetInvalid => 8,
            Self::KeyUnknown => 9,
            Self::Invalid => 10,
            Self::DigestMismatch => 11,
            Self::Replayed(_) => 12,
            Self::KeyNotContinued => 13,
        };
        Self::CODES[place]
    }
}
