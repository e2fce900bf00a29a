//! Tokens that the platform signs itself: RS256, ES256 and EdDSA (RFC 7518, RFC 8037) under keys that it publishes.
//!
//! A token comes here by its issuer. The key that its `kid` names then says which algorithm it has to be signed with:
//! what the token's header says of it only has to agree.

mod key_set;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use url::Url;

use super::{Claims, TokenError, why};
use crate::clock::Clock;
use crate::identity::Identity;
use crate::outbound::{Fetch, FetchError, Outbound};
use crate::protocol::signature;
pub use key_set::InvalidKeySet;
use key_set::KeySet;

/// For a key set, from the look-up of the host's name to the last byte.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a key set.
const KEY_SET_BYTES: u64 = 64 * 1024;
/// How long the last good set serves while no newer one can be had.
const STALE: Duration = Duration::from_secs(86_400);
/// Between two fetches because of keys that were not in the set: a stranger can name any number of them.
const REFETCH: Duration = Duration::from_secs(5);
/// Between two fetches when the last one failed.
const RETRY: Duration = Duration::from_secs(5);

/// Why there is no key set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// It cannot be fetched.
    #[error("cannot fetch the key set: {0}")]
    Unreachable(#[from] FetchError),
    /// Its server answers with something else.
    #[error("cannot fetch the key set: the answer's status is {0} (redirects are not followed)")]
    Status(u16),
    /// It holds no key that can be used.
    #[error("the key set is not usable: {0}")]
    Invalid(#[from] InvalidKeySet),
}

/// What a platform's tokens have to be.
#[derive(Debug, Clone)]
pub struct PlatformOptions {
    /// Where its key set is.
    pub jwks_url: Url,
    /// The `iss` of its tokens, character by character.
    pub issuer: String,
    /// What the `aud` of its tokens has to hold.
    pub audience: String,
}

/// Verifies one platform's tokens.
pub struct Platform {
    options: PlatformOptions,
    outbound: Outbound,
    tracker: TaskTracker,
    state: Mutex<State>,
    /// Held by the one fetch that runs.
    flight: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The last good set, when it came, and how long it is good without asking again.
    set: Option<(Arc<KeySet>, Instant, Duration)>,
    /// When a fetch last began, and whether it brought a set.
    tried: Option<(Instant, bool)>,
}

impl fmt::Debug for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Platform").field("issuer", &self.options.issuer).finish_non_exhaustive()
    }
}

impl Platform {
    /// Nothing is fetched before the first token. Fetches run on `tracker`.
    pub fn new(options: PlatformOptions, outbound: Outbound, tracker: TaskTracker) -> Arc<Self> {
        Arc::new(Self { options, outbound, tracker, state: Mutex::default(), flight: tokio::sync::Mutex::new(()) })
    }

    /// Whether tokens of this issuer are judged here.
    pub(super) fn issues(&self, issuer: &str) -> bool {
        self.options.issuer == issuer
    }

    /// Who the token proves its bearer to be, and until when, by the keys that are known now.
    pub(super) fn verify(&self, token: &str, clock: &Clock) -> Result<(Identity, i64), TokenError> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| TokenError::Malformed)?;
        if !matches!(header.alg, Algorithm::RS256 | Algorithm::ES256 | Algorithm::EdDSA) {
            return Err(TokenError::BadAlgorithm);
        }
        let set = {
            let state = self.lock();
            let usable = state.set.as_ref().filter(|(_, came, _)| came.elapsed() < STALE);
            usable.map(|(set, ..)| Arc::clone(set)).ok_or(TokenError::KeysUnavailable)?
        };
        let key = set.find(header.kid.as_deref()).ok_or(TokenError::UnknownKey)?;
        let mut validation = Validation::new(key.algorithm);
        // Times are judged by a clock that tests can set.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.set_issuer(&[&self.options.issuer]);
        validation.set_audience(&[&self.options.audience]);
        validation.set_required_spec_claims(&["iss", "aud"]);
        let claims = jsonwebtoken::decode::<Claims>(token, &key.verifying, &validation)
            .map_err(|error| match error.kind() {
                ErrorKind::InvalidAlgorithm => TokenError::BadAlgorithm,
                ErrorKind::InvalidSignature => TokenError::BadSignature,
                _ => why(&error, token),
            })?
            .claims;
        claims.settle(clock)
    }

    /// Fetches the set anew when that is due: it is old, or does not hold what a token `needs`. Those who need it wait
    /// for the one fetch that runs; the others do not wait when there is a set.
    pub(super) async fn refresh(self: &Arc<Self>, needs: bool) {
        if !self.is_due(needs) {
            // The answer of a fetch that began before may already be on its way.
            if needs {
                drop(self.flight.lock().await);
            }
            return;
        }
        let platform = Arc::clone(self);
        // On its own, so that a stranger who hangs up does not end it for everyone.
        let fetching = self.tracker.spawn(async move {
            let _flight = platform.flight.lock().await;
            if platform.is_due(needs)
                && let Err(error) = platform.fetch().await
            {
                tracing::warn!(issuer = platform.options.issuer, %error, "the platform's keys cannot be renewed");
            }
        });
        if needs {
            // It fails only when the process ends.
            let _ = fetching.await;
        }
    }

    /// Fetches the set.
    ///
    /// # Errors
    /// See [`KeySetError`]. The set that was there stays.
    pub async fn fetch(&self) -> Result<(), KeySetError> {
        let began = Instant::now();
        self.lock().tried = Some((began, false));
        let fetch = Fetch::get(self.options.jwks_url.clone(), KEY_SET_BYTES, FETCH_TIMEOUT);
        let fetched = self.outbound.get(fetch).await?;
        if fetched.status != 200 {
            return Err(KeySetError::Status(fetched.status));
        }
        let fresh = signature::lifetime(&fetched.headers);
        let set = Arc::new(KeySet::parse(&fetched.bytes().await?)?);
        let mut state = self.lock();
        state.set = Some((set, Instant::now(), fresh));
        state.tried = Some((began, true));
        Ok(())
    }

    fn is_due(&self, needs: bool) -> bool {
        let state = self.lock();
        let pause = match state.tried {
            None => return true,
            Some((_, false)) => RETRY,
            Some((_, true)) => REFETCH,
        };
        let rested = state.tried.is_some_and(|(began, _)| began.elapsed() >= pause);
        let old = state.set.as_ref().is_none_or(|(_, came, fresh)| came.elapsed() >= *fresh);
        rested && (needs || old)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // It is never held over anything that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
