//! Who is asking: only a gateway that signs with a key it publishes where this agent dials it (specification section 2,
//! "Authorised by caller").
//!
//! Sets are published to that one caller. Its identity is its key: the gateway may know itself by another URL than the
//! one that this agent reaches it by, so what `Signature-Agent` names is checked for its form and fetched by nobody.
//! Strangers make this agent fetch nothing, and since their keys are not fetched they stay unverified: 401.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::base::Base;
use super::keys::GatewayKeys;
use super::nonces::{Nonces, Spent};
use crate::clock::Clock;
use crate::protocol::signature::{Request, Rules, SignatureError, Signed, is_signed};

/// How often a refusal is worth a log line: whoever reaches the endpoint can cause them.
const COMPLAINT: Duration = Duration::from_secs(10);

/// A request that does not prove to be the gateway's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unverified {
    #[error("a signature is required (RFC 9421, web-bot-auth)")]
    Unsigned,
    #[error("{code}: {0}", code = .0.code())]
    Signature(#[from] SignatureError),
}

/// Verifies requests.
#[derive(Debug)]
pub(super) struct Callers {
    rules: Rules,
    keys: GatewayKeys,
    nonces: Mutex<Nonces>,
    clock: Clock,
    complained: Mutex<Option<Instant>>,
}

impl Callers {
    pub(super) fn new(base: &Base, keys: GatewayKeys, clock: Clock) -> Self {
        let rules = Rules {
            authorities: BTreeSet::from([base.authority.clone()]),
            scheme: base.scheme,
            // Nothing is fetched from there.
            plain_http: true,
        };
        Self { rules, keys, nonces: Mutex::default(), clock, complained: Mutex::default() }
    }

    /// Fetches the gateway's keys before anybody asks.
    pub(super) async fn prepare(&self) {
        let _ = self.keys.holding(|_| true).await;
    }

    /// Whether the gateway sent this request, which has no body and was not accepted before.
    ///
    /// # Errors
    /// The first check that fails.
    pub(super) async fn verify(&self, request: Request<'_>) -> Result<(), Unverified> {
        if !is_signed(request.headers) {
            return Err(Unverified::Unsigned);
        }
        self.check(request).await.map_err(|error| {
            self.complain(error);
            error.into()
        })
    }

    async fn check(&self, request: Request<'_>) -> Result<(), SignatureError> {
        let signed = Signed::read(request, &self.rules, self.seconds())?;
        let keys = self.keys.holding(|keys| signed.is_known_by(keys)).await?;
        let proof = signed.verify(&keys)?;
        proof.check_body(&[])?;
        let nonces = proof.thumbprints.iter().zip(&proof.nonces);
        let nonces = nonces.map(|(thumbprint, (nonce, until))| (thumbprint.as_str(), nonce.as_str(), *until));
        let mut spent = self.nonces.lock().unwrap_or_else(PoisonError::into_inner);
        match spent.spend(nonces, self.seconds()) {
            Spent::Fresh => Ok(()),
            Spent::Seen => {
                Err(SignatureError::Replayed("the signature's nonce was used before: sign each request afresh"))
            }
            Spent::Full => Err(SignatureError::Replayed("too many signatures could still be sent again: sign fewer")),
        }
    }

    fn seconds(&self) -> i64 {
        self.clock.unix_millis().div_euclid(1000)
    }

    /// Tells whoever runs the agent, who may have to mend a proxy, a clock or `--serve-url`.
    fn complain(&self, error: SignatureError) {
        let mut complained = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        if complained.is_none_or(|at| at.elapsed() >= COMPLAINT) {
            *complained = Some(Instant::now());
            tracing::warn!(code = error.code(), %error, "the endpoint refuses a signed request");
        }
    }
}
