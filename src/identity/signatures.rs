//! Who signed a request: the checks of [`crate::protocol::signature`], the agent's published keys, and what is remembered of
//! nonces and keys.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use tokio_util::task::TaskTracker;

use super::key_sets::KeySets;
use super::nonces::{Nonces, Spent};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::outbound::Outbound;
use crate::protocol::Principal;
use crate::protocol::signature::{Proof, Request, Rules, SignatureError, Signed};
use crate::store::{Continuity, Nonce, Store, StoreError};

/// How many agents' keys are known to be held without asking the store, and for how long: as long as another node may
/// not notice that an operator had keys forgotten.
const HELD: u64 = 10_000;
const HELD_FOR: Duration = Duration::from_secs(60);

/// Why a signed request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It proves nothing.
    #[error("{code}: {0}", code = .0.code())]
    Signature(#[from] SignatureError),
    /// Whether it proves anything cannot be told now; the log says why.
    #[error("the gateway cannot tell whether the signature was used before; try again")]
    Unavailable,
}

impl Refusal {
    fn outcome(self) -> &'static str {
        match self {
            Self::Signature(error) => error.code(),
            Self::Unavailable => "unavailable",
        }
    }
}

/// Verifies signed requests. Clones share everything.
#[derive(Clone)]
pub struct Signatures(Arc<Inner>);

struct Inner {
    rules: Rules,
    /// Whether a known agent's new key needs one that it held before.
    continuous: bool,
    key_sets: KeySets,
    nonces: Nonces,
    held: Cache<(Principal, String), ()>,
    store: Store,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Signatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signatures").field("rules", &self.0.rules).finish_non_exhaustive()
    }
}

impl Signatures {
    /// Judges by `rules`. Key sets are fetched by `outbound`; nonces are written by tasks of `tracker`.
    pub fn new(
        rules: Rules,
        continuous: bool,
        outbound: &Outbound,
        (store, clock, metrics): (Store, Clock, Arc<Metrics>),
        tracker: TaskTracker,
    ) -> Self {
        for outcome in SignatureError::CODES.into_iter().chain(["verified", "unavailable"]) {
            let _ = metrics.signatures.with_label_values(&[outcome]);
        }
        Self(Arc::new(Inner {
            rules,
            continuous,
            key_sets: KeySets::new(outbound),
            nonces: Nonces::new(store.clone(), clock.clone(), tracker),
            held: Cache::builder().max_capacity(HELD).time_to_live(HELD_FOR).support_invalidation_closures().build(),
            store,
            clock,
            metrics,
        }))
    }

    /// The checks that do not need the body, and use nothing up. The request is not let in before
    /// [`accept`](Self::accept).
    ///
    /// # Errors
    /// The first check that fails.
    pub async fn prove(&self, request: Request<'_>) -> Result<Proof, Refusal> {
        let proven = async {
            let signed = Signed::read(request, &self.0.rules, self.0.clock.unix_millis().div_euclid(1000))?;
            let keys = self.0.key_sets.get(signed.source(), |keys| signed.is_known_by(keys)).await?;
            Ok(signed.verify(&keys)?)
        };
        proven.await.inspect_err(|refusal| self.count(*refusal))
    }

    /// The checks that remain: the body, the nonces (which are spent by it), and the keys. Who sent it: `agent:<agent URL>`.
    ///
    /// # Errors
    /// The first check that fails.
    pub async fn accept(&self, proof: Proof, body: &[u8]) -> Result<Principal, Refusal> {
        let accepted = async {
            proof.check_body(body)?;
            self.spend(&proof).await?;
            self.hold(&proof).await?;
            Ok(proof.principal)
        };
        let principal = accepted.await.inspect_err(|refusal| self.count(*refusal))?;
        self.0.metrics.signatures.with_label_values(&["verified"]).inc();
        Ok(principal)
    }

    /// Notes a refusal that was made elsewhere, of a body that did not come.
    pub fn count(&self, refusal: Refusal) {
        let code = refusal.outcome();
        self.0.metrics.signatures.with_label_values(&[code]).inc();
        tracing::info!(code, "a signed request was refused");
    }

    /// Forgets the keys of an agent: the next one that signs for it is taken for its own, here at once, on other nodes
    /// within a minute. Whether any was held.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn forget_keys(&self, agent: &Principal) -> Result<bool, StoreError> {
        let forgotten = self.0.store.forget_keys(agent).await;
        let agent = agent.clone();
        // It fails only for a cache that was not built for it.
        let _ = self.0.held.invalidate_entries_if(move |(principal, _), ()| *principal == agent);
        forgotten
    }

    async fn spend(&self, proof: &Proof) -> Result<(), Refusal> {
        let nonce = |(nonce, until): &(String, i64)| Nonce {
            principal: proof.principal.clone(),
            nonce: nonce.clone(),
            // To the end of that second.
            expires_at: (until + 1).saturating_mul(1000),
        };
        match self.0.nonces.spend(proof.nonces.iter().map(nonce).collect()).await {
            Ok(Spent::Fresh) => Ok(()),
            Ok(Spent::Seen) => {
                Err(SignatureError::Replayed("the signature's nonce was used before: sign each request afresh").into())
            }
            Ok(Spent::QuotaExceeded) => Err(SignatureError::Replayed(
                "too many signatures of this agent could still be sent again: sign fewer, or for a shorter time",
            )
            .into()),
            // Logged once for all that waited.
            Err(_) => Err(Refusal::Unavailable),
        }
    }

    async fn hold(&self, proof: &Proof) -> Result<(), Refusal> {
        let Inner { held, store, clock, continuous, .. } = &*self.0;
        let place = |thumbprint: &String| (proof.principal.clone(), thumbprint.clone());
        if proof.thumbprints.iter().all(|thumbprint| held.contains_key(&place(thumbprint))) {
            return Ok(());
        }
        match store.hold_keys(&proof.principal, &proof.thumbprints, *continuous, clock.unix_millis()).await {
            Ok(Continuity::Held) => {
                for thumbprint in &proof.thumbprints {
                    held.insert(place(thumbprint), ());
                }
                Ok(())
            }
            Ok(Continuity::Broken) => Err(SignatureError::KeyNotContinued.into()),
            Err(error) => {
                tracing::warn!(%error, "cannot look an agent's keys up");
                Err(Refusal::Unavailable)
            }
        }
    }
}
