//! Who signed a request: the checks of [`crate::protocol::signature`], the agent's published keys, and what is remembered of
//! nonces and keys.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moka::sync::Cache;
use tokio_util::task::TaskTracker;

use super::key_sets::{KeySets, NoKeys};
use super::nonces::{Nonces, Spent};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::outbound::Outbound;
use crate::protocol::Principal;
use crate::protocol::signature::{KeySet, Proof, Request, Rules, SignatureError, Signed};
use crate::store::{Continuity, Nonce, Store, StoreError};

/// How many agents' keys are known to be held without asking the store, and for how long: as long as another node may
/// not notice that an operator had keys forgotten.
const HELD: u64 = 10_000;
const HELD_FOR: Duration = Duration::from_secs(60);
/// How many strangers' keys are remembered, for how long after they last signed, and how many of one.
const MET: u64 = 10_000;
const MET_FOR: Duration = Duration::from_secs(86_400);
const MET_KEYS: usize = 16;
/// How long it is taken as given that an agent is known here: another process may have written.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// When one that found no place for its key set's fetch may come again.
const BUSY: Duration = Duration::from_secs(2);

/// Which agents may sign instead of sending a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SignedAgents {
    /// None.
    None,
    /// Those that take part in a chat, hold a name, or have had a session bound.
    Known,
    /// Any that publishes its keys.
    #[default]
    Any,
}

/// Why a signed request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It proves nothing.
    #[error("{code}: {0}", code = .0.code())]
    Signature(#[from] SignatureError),
    /// Nobody may sign here, or not this agent.
    #[error("this gateway takes no signature of this agent: use a token (its operator may set --signed-agents)")]
    NotTaken,
    /// Too much was tried from where it comes, so nothing is fetched for it now.
    #[error("too many requests of strangers")]
    Limited(Duration),
    /// There is no place for a fetch of its agent's key set now.
    #[error("too many key sets are being fetched")]
    Busy(Duration),
    /// Whether it proves anything cannot be told now; the log says why.
    #[error("the gateway cannot tell whether the signature was used before; try again")]
    Unavailable,
}

impl From<NoKeys> for Refusal {
    fn from(none: NoKeys) -> Self {
        match none {
            NoKeys::Refused(error) => Self::Signature(error),
            NoKeys::Busy => Self::Busy(BUSY),
        }
    }
}

/// What is counted beside the codes of signatures.
const OTHER_OUTCOMES: [&str; 5] = ["verified", "not_taken", "limited", "busy", "unavailable"];

impl Refusal {
    fn outcome(self) -> &'static str {
        match self {
            Self::Signature(error) => error.code(),
            Self::NotTaken => "not_taken",
            Self::Limited(_) => "limited",
            Self::Busy(_) => "busy",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Verifies signed requests. Clones share everything.
#[derive(Clone)]
pub struct Signatures(Arc<Inner>);

struct Inner {
    rules: Rules,
    taken: SignedAgents,
    /// Whether a known agent's new key needs one that it held before.
    continuous: bool,
    key_sets: KeySets,
    nonces: Nonces,
    /// Keys that the store holds, and how often any had been forgotten by the time it was asked.
    held: Cache<(Principal, String), u64>,
    forgotten: AtomicU64,
    /// The keys of strangers, which are nobody's business once they stay away.
    met: Cache<Principal, Arc<[String]>>,
    /// Whether an agent is known here, and the store's generation before it was asked.
    known: Cache<Principal, (u64, bool)>,
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
    /// Judges by `rules` those that are `taken`; a known agent's new key needs one that it held before where that is to be
    /// `continuous`. Key sets are fetched by `outbound`; nonces are written by tasks of `tracker`.
    pub fn new(
        rules: Rules,
        (taken, continuous): (SignedAgents, bool),
        outbound: &Outbound,
        (store, clock, metrics): (Store, Clock, Arc<Metrics>),
        tracker: TaskTracker,
    ) -> Self {
        for outcome in SignatureError::CODES.into_iter().chain(OTHER_OUTCOMES) {
            let _ = metrics.signatures.with_label_values(&[outcome]);
        }
        Self(Arc::new(Inner {
            rules,
            taken,
            continuous,
            key_sets: KeySets::new(outbound),
            nonces: Nonces::new(store.clone(), clock.clone(), tracker),
            held: Cache::builder().max_capacity(HELD).time_to_live(HELD_FOR).build(),
            forgotten: AtomicU64::new(0),
            met: Cache::builder().max_capacity(MET).time_to_idle(MET_FOR).build(),
            known: Cache::builder().max_capacity(HELD).time_to_live(KNOWN_FOR).build(),
            store,
            clock,
            metrics,
        }))
    }

    /// The checks that do not need the body, and use nothing up. Before anything is fetched for a stranger, `pay` is asked
    /// whether it may be, or how long it has to wait. The request is not let in before
    /// [`accept`](Self::accept).
    ///
    /// # Errors
    /// The first check that fails.
    pub async fn prove(
        &self,
        request: Request<'_>,
        pay: impl FnOnce() -> Result<(), Duration> + Send,
    ) -> Result<Proof, Refusal> {
        let proven = async {
            if self.0.taken == SignedAgents::None {
                return Err(Refusal::NotTaken);
            }
            let signed = Signed::read(request, &self.0.rules, self.0.clock.unix_millis().div_euclid(1000))?;
            let must_be_known = self.0.taken == SignedAgents::Known;
            if must_be_known && !self.knows(signed.principal()).await? {
                return Err(Refusal::NotTaken);
            }
            let has_keys = |keys: &KeySet| signed.is_known_by(keys);
            let keys = match self.0.key_sets.held(signed.source(), has_keys).await {
                Some(held) => held?,
                None => {
                    let known = self.knows(signed.principal()).await?;
                    if !known {
                        pay().map_err(Refusal::Limited)?;
                    }
                    self.0.key_sets.get(signed.source(), has_keys, known).await?
                }
            };
            Ok(signed.verify(&keys)?)
        };
        proven.await.inspect_err(|refusal| self.count(*refusal))
    }

    /// Whether an agent is known here: it holds a name, takes part in a chat, or has had a session bound.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn knows(&self, agent: &Principal) -> Result<bool, Refusal> {
        let Inner { known, store, .. } = &*self.0;
        let generation = store.generation();
        if let Some((asked, is_known)) = known.get(agent)
            && (is_known || asked == generation)
        {
            return Ok(is_known);
        }
        let is_known = store.knows_agent(agent).await.map_err(|error| unavailable(&error))?;
        known.insert(agent.clone(), (generation, is_known));
        Ok(is_known)
    }

    /// Holds the keys that an agent has signed with so far, because it has become known just now.
    ///
    /// # Errors
    /// When they do not continue those that it is known by already, or the store fails.
    pub async fn keep_keys(&self, agent: &Principal) -> Result<(), Refusal> {
        match self.0.met.get(agent) {
            Some(met) => self.hold_in_store(agent, &met).await,
            None => Ok(()),
        }
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
        self.0.met.invalidate(agent);
        // Also an answer that is on its way.
        self.0.forgotten.fetch_add(1, Ordering::SeqCst);
        forgotten
    }

    async fn spend(&self, proof: &Proof) -> Result<(), Refusal> {
        let nonce = |(nonce, until): &(String, i64)| Nonce {
            principal: proof.principal.clone(),
            nonce: nonce.clone(),
            // To the end of that second.
            expires_at: (until + 1).saturating_mul(1000),
        };
        // Its request may have waited, and nobody remembers the nonces of what has expired.
        let now = self.0.clock.unix_millis();
        if proof.nonces.iter().map(nonce).any(|nonce| nonce.expires_at <= now) {
            return Err(SignatureError::Expired.into());
        }
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

    /// Takes the keys of a request for its agent's: those that it signed with before, or the first that it signs with.
    async fn hold(&self, proof: &Proof) -> Result<(), Refusal> {
        let Inner { held, forgotten, met, continuous, .. } = &*self.0;
        let (agent, keys) = (&proof.principal, &proof.thumbprints);
        let count = forgotten.load(Ordering::SeqCst);
        if keys.iter().all(|key| held.get(&(agent.clone(), key.clone())) == Some(count)) {
            return Ok(());
        }
        let before = met.get(agent);
        if *continuous && before.as_ref().is_some_and(|before| !keys.iter().any(|key| before.contains(key))) {
            return Err(SignatureError::KeyNotContinued.into());
        }
        let mut all = keys.clone();
        all.extend(before.iter().flat_map(|before| before.iter()).filter(|key| !keys.contains(key)).cloned());
        all.truncate(MET_KEYS.max(keys.len()));
        // A stranger's keys fill no table.
        if !self.knows(agent).await? {
            met.insert(agent.clone(), all.into());
            return Ok(());
        }
        self.hold_in_store(agent, &all).await
    }

    async fn hold_in_store(&self, agent: &Principal, keys: &[String]) -> Result<(), Refusal> {
        let Inner { held, forgotten, met, store, clock, continuous, .. } = &*self.0;
        let count = forgotten.load(Ordering::SeqCst);
        match store.hold_keys(agent, keys, *continuous, clock.unix_millis()).await {
            Ok(Continuity::Held) => {
                for key in keys {
                    held.insert((agent.clone(), key.clone()), count);
                }
                met.invalidate(agent);
                Ok(())
            }
            Ok(Continuity::Broken) => Err(SignatureError::KeyNotContinued.into()),
            Err(error) => Err(unavailable(&error)),
        }
    }
}

fn unavailable(error: &StoreError) -> Refusal {
    tracing::warn!(%error, "cannot look an agent up");
    Refusal::Unavailable
}
