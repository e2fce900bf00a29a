//! HTTP message signatures (RFC 9421) in the web-bot-auth profile: an agent proves that it is its agent URL by a key
//! that it publishes there, without a shared secret.
//!
//! Nothing here waits or remembers. [`Signed::read`] makes the checks that need no key, and says whose key set to
//! fetch; [`Signed::verify`] makes those that do. What is left to the caller is the body's digest, and to see to it
//! that a nonce is spent once.

mod agent;
mod base;
mod digest;
mod error;
mod field;
mod keys;
mod label;
mod request;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use http::HeaderName;

pub use agent::{JWKS_PATH, KeySource};
pub use error::SignatureError;
pub use keys::{KEY_SET_BYTES, KeySet, lifetime, thumbprint};
pub use request::{Request, normal_authority};

use agent::SignatureAgent;
use label::Label;

use crate::protocol::Principal;

/// How far two clocks may differ, in seconds.
pub const LEEWAY_SECS: i64 = 60;
/// Longest body of a signed request, in bytes.
pub const BODY_BYTES: u64 = 4 << 20;

const SIGNATURE: HeaderName = HeaderName::from_static("signature");
const SIGNATURE_INPUT: HeaderName = HeaderName::from_static("signature-input");
const SIGNATURE_AGENT: HeaderName = HeaderName::from_static("signature-agent");
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");

/// What signatures are judged by.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The authorities that a signature may be made for, as [`normal_authority`] spells them.
    pub authorities: BTreeSet<String>,
    /// `http` or `https`: how the verifier is reached.
    pub scheme: &'static str,
    /// Whether agent URLs may be http. Whether a key set may be fetched from there is decided when it is.
    pub plain_http: bool,
}

/// A signed request that passed every check that needs no key.
#[derive(Debug)]
pub struct Signed<'a> {
    request: Request<'a>,
    scheme: &'static str,
    labels: Vec<Label>,
    principal: Principal,
    source: KeySource,
}

/// What verified signatures prove, if their nonces are fresh and the body is the one they cover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// `agent:<agent URL>`.
    pub principal: Principal,
    /// The keys that signed, by thumbprint.
    pub thumbprints: Vec<String>,
    /// Each signature's nonce, and until when it must be remembered, in Unix seconds.
    pub nonces: Vec<(String, i64)>,
    /// The `Content-Digest` that is covered.
    content_digest: Option<String>,
}

/// Whether a request carries, or means to carry, a signature of this profile.
pub fn is_signed(headers: &http::HeaderMap) -> bool {
    headers.contains_key(SIGNATURE_INPUT) || headers.contains_key(SIGNATURE_AGENT)
}

impl<'a> Signed<'a> {
    /// Makes the checks that need no key. `now` is in Unix seconds.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn read(request: Request<'a>, rules: &Rules, now: i64) -> Result<Self, SignatureError> {
        let labels = label::read(&request, now)?;
        if !request.authority().is_some_and(|authority| rules.authorities.contains(&authority)) {
            return Err(SignatureError::AuthorityMismatch);
        }
        if request.body.is_some_and(|least| least > BODY_BYTES) {
            return Err(SignatureError::BodyTooLarge);
        }
        if !request.headers.contains_key(SIGNATURE_AGENT) {
            return Err(SignatureError::AgentInvalid("a signed request has the field Signature-Agent"));
        }
        let agent =
            request.field(&SIGNATURE_AGENT).ok_or(SignatureError::Malformed("Signature-Agent is printable ASCII"))?;
        let agent = SignatureAgent::parse(&agent)?;
        let mut proven: Option<(Principal, KeySource)> = None;
        for label in &labels {
            let key = label.covers(request.body.is_some(), matches!(agent, SignatureAgent::Legacy(_)))?;
            let named = agent.resolve(key, rules.plain_http)?;
            if proven.get_or_insert_with(|| named.clone()) != &named {
                return Err(SignatureError::AgentInvalid("all signatures of a request name the same agent"));
            }
        }
        // There is a label, so there is an agent.
        let (principal, source) = proven.ok_or(label::NO_TAG)?;
        Ok(Self { request, scheme: rules.scheme, labels, principal, source })
    }

    /// Who the signer says it is.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Where the signer's keys are published.
    pub fn source(&self) -> &KeySource {
        &self.source
    }

    /// Whether the set has a key for each signature.
    pub fn is_known_by(&self, keys: &KeySet) -> bool {
        self.labels.iter().all(|label| keys.get(&label.keyid).is_some())
    }

    /// Verifies every signature.
    ///
    /// # Errors
    /// The first check that fails, label by label.
    pub fn verify(&self, keys: &KeySet) -> Result<Proof, SignatureError> {
        for label in &self.labels {
            let key = keys.get(&label.keyid).ok_or(SignatureError::KeyUnknown)?;
            let base = base::build(&self.request, self.scheme, &label.input)?;
            key.verify_strict(base.as_bytes(), &label.signature).map_err(|_| SignatureError::Invalid)?;
        }
        let covers_digest = self.labels.iter().any(Label::covers_digest);
        Ok(Proof {
            principal: self.principal.clone(),
            thumbprints: self.labels.iter().map(|label| label.keyid.clone()).collect(),
            nonces: self.labels.iter().map(|label| (label.nonce.clone(), label.expires + LEEWAY_SECS)).collect(),
            content_digest: covers_digest.then(|| self.request.field(&CONTENT_DIGEST)).flatten(),
        })
    }
}

impl Proof {
    /// Whether the body is the one that the signatures cover.
    ///
    /// # Errors
    /// [`SignatureError::DigestMismatch`]
    pub fn check_body(&self, body: &[u8]) -> Result<(), SignatureError> {
        self.content_digest.as_deref().map_or(Ok(()), |value| digest::check(value, body))
    }
}
