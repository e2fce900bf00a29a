//! The key sets that agents publish, fetched when a signature names them and kept for a while.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use moka::future::Cache;
use tokio::time::Instant;

use crate::outbound::{Bounds, Fetch, FetchError, Outbound};
use crate::protocol::signature::{self, KEY_SET_BYTES, KeySet, KeySource, SignatureError};

/// Most sets that are kept.
const SETS: u64 = 1000;
/// From the call to the last byte.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Fetches at once. They have bounds of their own, so that no other fetch keeps an agent out.
const FETCHES: Bounds = Bounds { total: 32, per_host: 2 };
/// How long a set that could not be fetched is not asked for again.
const FAILURE: Duration = Duration::from_secs(60);
/// How soon a good set may be fetched again because a signature names a key that is not in it.
const REFETCH: Duration = Duration::from_secs(5);
const DIRECTORY_TYPE: &str = "application/http-message-signatures-directory+json";

/// What is known of a set.
#[derive(Debug, Clone)]
struct Known {
    outcome: Result<Arc<KeySet>, SignatureError>,
    asked: Instant,
    until: Instant,
}

/// The sets that are known. Clones share them.
#[derive(Clone)]
pub(super) struct KeySets {
    outbound: Outbound,
    known: Cache<KeySource, Known>,
}

impl KeySets {
    pub(super) fn new(outbound: &Outbound) -> Self {
        Self { outbound: outbound.lane(FETCHES), known: Cache::new(SETS) }
    }

    /// The key set of a source. One in which `has_keys` does not find what it looks for is fetched again, if that was
    /// not done just now. Whoever asks for the same set at the same time waits for the one fetch.
    pub(super) async fn get(
        &self,
        source: &KeySource,
        has_keys: impl Fn(&KeySet) -> bool + Send,
    ) -> Result<Arc<KeySet>, SignatureError> {
        if let Some(known) = self.known.get(source).await
            && known.serves(&has_keys)
        {
            return known.outcome;
        }
        let entry =
            self.known.entry_by_ref(source).and_upsert_with(async |held| match held.map(moka::Entry::into_value) {
                Some(known) if known.serves(&has_keys) => known,
                held => self.ask(source, held).await,
            });
        entry.await.into_value().outcome
    }

    async fn ask(&self, source: &KeySource, held: Option<Known>) -> Known {
        let fetched = self.fetch(source).await;
        let asked = Instant::now();
        match (fetched, held) {
            (Ok((set, age)), _) => Known { outcome: Ok(Arc::new(set)), asked, until: asked + age },
            // A server that is away for a moment does not take its agents' keys along.
            (Err(_), Some(Known { outcome: Ok(set), until, .. })) if asked < until => {
                Known { outcome: Ok(set), asked, until }
            }
            (Err(error), _) => Known { outcome: Err(error), asked, until: asked + FAILURE },
        }
    }

    async fn fetch(&self, source: &KeySource) -> Result<(KeySet, Duration), SignatureError> {
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
            match error {
                FetchError::TooLarge { .. } => SignatureError::KeySetInvalid,
                _ => SignatureError::KeySetUnreachable,
            }
        })?;
        if status != 200 {
            tracing::info!(host, status, "an agent's key set was answered with another status than 200");
            return Err(SignatureError::KeySetUnreachable);
        }
        let usable = !source.directory || is_directory(&headers);
        let set = if usable { KeySet::parse(&document, source.directory) } else { Err(SignatureError::KeySetInvalid) };
        let set = set.inspect_err(|_| tracing::info!(host, "what an agent publishes is no usable key set"))?;
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
    use super::*;

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
