//! The key sets that agents publish, fetched when a signature names them and kept for a while.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use moka::future::Cache;
use tokio::time::Instant;

use crate::outbound::{Bounds, Fetch, FetchError, Outbound};
use crate::protocol::signature::{self, KEY_SET_BYTES, KeySet, KeySource, SignatureError};

/// Most sets that are kept, of agents that are known here and of strangers.
const SETS: u64 = 10_000;
const STRANGERS_SETS: u64 = 1000;
/// From the call to the last byte.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Fetches at once. They have bounds of their own, so that no other fetch keeps an agent out.
const FETCHES: Bounds = Bounds { total: 128, per_host: 4, waiting: 64, lookups: 64, lookups_per_domain: 16 };
/// The same for strangers, who may name any host and as many as they like: few places, and hardly any waiting.
const STRANGERS: Bounds = Bounds { total: 32, per_host: 2, waiting: 16, lookups: 16, lookups_per_domain: 2 };
/// How long an answer that is no set is remembered.
const FAILURE: Duration = Duration::from_secs(60);
/// How long it is remembered that nobody could be asked: whoever waited for that fetch does not make another.
const UNSENT: Duration = Duration::from_secs(1);
/// How long the last good set serves while no newer one can be had, and how often that is tried.
const STALE: Duration = Duration::from_secs(86_400);
const RETRY: Duration = Duration::from_secs(60);
/// How soon a good set may be fetched again because a signature names a key that is not in it.
const REFETCH: Duration = Duration::from_secs(5);
const DIRECTORY_TYPE: &str = "application/http-message-signatures-directory+json";

/// Why there is no set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoKeys {
    /// Nothing that is one can be had.
    Refused(SignatureError),
    /// Too many are being fetched.
    Busy,
}

/// What is known of a set.
#[derive(Debug, Clone)]
struct Known {
    outcome: Result<Arc<KeySet>, NoKeys>,
    /// When the set came.
    came: Instant,
    asked: Instant,
    until: Instant,
}

/// The sets that are known. Clones share them.
#[derive(Clone)]
pub(super) struct KeySets {
    agents: Party,
    strangers: Party,
}

/// Those who get each other's sets in each other's way at most.
#[derive(Clone)]
struct Party {
    outbound: Outbound,
    known: Cache<KeySource, Known>,
}

impl KeySets {
    pub(super) fn new(outbound: &Outbound) -> Self {
        let party = |bounds, sets| Party { outbound: outbound.lane(bounds), known: Cache::new(sets) };
        Self { agents: party(FETCHES, SETS), strangers: party(STRANGERS, STRANGERS_SETS) }
    }

    /// What is known of the key set of a source, without asking anybody. None when it would have to be asked for.
    pub(super) async fn held(
        &self,
        source: &KeySource,
        has_keys: impl Fn(&KeySet) -> bool,
    ) -> Option<Result<Arc<KeySet>, NoKeys>> {
        for party in [&self.agents, &self.strangers] {
            if let Some(known) = party.known.get(source).await.filter(|known| known.serves(&has_keys)) {
                return Some(known.outcome);
            }
        }
        None
    }

    /// The key set of a source. One in which `has_keys` does not find what it looks for is fetched again, if that was
    /// not done just now. Whoever asks for the same set at the same time waits for the one fetch. Strangers do not stand
    /// in the way of those who are `known`.
    pub(super) async fn get(
        &self,
        source: &KeySource,
        has_keys: impl Fn(&KeySet) -> bool + Send,
        known: bool,
    ) -> Result<Arc<KeySet>, NoKeys> {
        let party = if known { &self.agents } else { &self.strangers };
        let entry =
            party.known.entry_by_ref(source).and_upsert_with(async |held| match held.map(moka::Entry::into_value) {
                Some(known) if known.serves(&has_keys) => known,
                held => party.ask(source, held).await,
            });
        entry.await.into_value().outcome
    }
}

impl Party {
    async fn ask(&self, source: &KeySource, held: Option<Known>) -> Known {
        let fetched = self.fetch(source).await;
        let asked = Instant::now();
        match (fetched, held) {
            (Ok((set, age)), _) => Known { outcome: Ok(Arc::new(set)), came: asked, asked, until: asked + age },
            // A server that is away for a while does not take its agents' keys along.
            (Err(_), Some(Known { outcome: Ok(set), came, until, .. })) if asked < came + STALE => {
                Known { outcome: Ok(set), came, asked, until: until.max(asked + RETRY) }
            }
            (Err((error, sent)), _) => {
                let pause = if sent { FAILURE } else { UNSENT };
                Known { outcome: Err(error), came: asked, asked, until: asked + pause }
            }
        }
    }

    /// Fetches the set. Whether the request was sent is told beside what failed.
    async fn fetch(&self, source: &KeySource) -> Result<(KeySet, Duration), (NoKeys, bool)> {
        let host = source.url.host_str().unwrap_or_default();
        let fetch = Fetch::get(source.url.clone(), KEY_SET_BYTES, FETCH_TIMEOUT);
        let fetched = async {
            let fetched = self.outbound.get(fetch).await?;
            let (status, headers) = (fetched.status, fetched.headers.clone());
            if status == 200 {
                return Ok((status, headers, fetched.bytes().await?));
            }
            Ok((status, headers, Default::default()))
        };
        let (status, headers, document) = fetched.await.map_err(|error: FetchError| {
            tracing::info!(host, %error, "an agent's key set cannot be fetched");
            let refused = match error {
                FetchError::TooLarge { .. } => NoKeys::Refused(SignatureError::KeySetInvalid),
                FetchError::Busy => NoKeys::Busy,
                _ => NoKeys::Refused(SignatureError::KeySetUnreachable),
            };
            (refused, error.was_sent())
        })?;
        if status != 200 {
            tracing::info!(host, status, "an agent's key set was answered with another status than 200");
            return Err((NoKeys::Refused(SignatureError::KeySetUnreachable), true));
        }
        let usable = !source.directory || is_directory(&headers);
        let set = if usable { KeySet::parse(&document, source.directory) } else { Err(SignatureError::KeySetInvalid) };
        let set = set.inspect_err(|_| tracing::info!(host, "what an agent publishes is no usable key set"));
        let set = set.map_err(|error| (NoKeys::Refused(error), true))?;
        Ok((set, signature::lifetime(&headers)))
    }
}

impl Known {
    fn serves(&self, has_keys: impl Fn(&KeySet) -> bool) -> bool {
        let now = Instant::now();
        let satisfies = |set: &Arc<KeySet>| has_keys(set) || now < self.asked + REFETCH;
        now < self.until && self.outcome.as_ref().map_or(true, satisfies)
    }
}

fn is_directory(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    media_type.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case(DIRECTORY_TYPE))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ed25519_dalek::SigningKey;

    use super::*;
    use crate::metrics::Metrics;
    use crate::outbound::Resolver;
    use crate::protocol::address::Allowed;

    /// Sets of a source where nobody answers, and one that came before.
    fn unreachable() -> (KeySets, KeySource, Arc<KeySet>) {
        let allowed = Allowed::new(vec!["127.0.0.1".parse().unwrap()]);
        let metrics = Arc::new(Metrics::new().unwrap());
        let roots = rustls::RootCertStore::empty();
        let outbound = Outbound::with(allowed, Bounds::default(), metrics, Resolver::System, roots);
        let x = URL_SAFE_NO_PAD.encode(SigningKey::from_bytes(&[1; 32]).verifying_key().to_bytes());
        let document = serde_json::json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": x}]}).to_string();
        let set = Arc::new(KeySet::parse(document.as_bytes(), false).unwrap());
        let source = KeySource { url: "http://127.0.0.1:1/.well-known/jwks.json".parse().unwrap(), directory: false };
        (KeySets::new(&outbound), source, set)
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_that_cannot_be_renewed_serves_for_a_day() {
        let (sets, source, set) = unreachable();
        let now = Instant::now();
        let known = Known { outcome: Ok(set.clone()), came: now, asked: now, until: now + Duration::from_secs(300) };
        sets.agents.known.insert(source.clone(), known).await;
        for hours in [0, 1, 12, 10] {
            tokio::time::advance(Duration::from_secs(hours * 3600)).await;
            assert!(sets.get(&source, |_| true, true).await.is_ok(), "{hours}");
        }
        // To whoever names a key that is not in it, it says so.
        assert!(sets.get(&source, |_| false, true).await.is_ok());
        tokio::time::advance(STALE).await;
        let gone = sets.get(&source, |_| true, true).await.map(drop);
        assert_eq!(gone, Err(NoKeys::Refused(SignatureError::KeySetUnreachable)));
    }

    #[tokio::test(start_paused = true)]
    async fn that_nobody_could_be_asked_is_hardly_remembered() {
        let (sets, source, _) = unreachable();
        assert!(sets.get(&source, |_| true, false).await.is_err());
        assert!(sets.held(&source, |_| true).await.is_some(), "for those who waited for the same fetch");
        tokio::time::advance(UNSENT).await;
        assert!(sets.held(&source, |_| true).await.is_none());
    }

    #[test]
    fn a_directory_says_that_it_is_one() {
        for (value, is) in [
            (DIRECTORY_TYPE, true),
            ("Application/HTTP-message-signatures-directory+json; charset=utf-8", true),
            ("application/json", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, value.parse().unwrap())]);
            assert_eq!(is_directory(&headers), is, "{value}");
        }
        assert!(!is_directory(&HeaderMap::new()));
    }
}
