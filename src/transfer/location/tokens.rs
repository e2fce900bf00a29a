//! Tokens that registries gave, for as long as they are good: a transfer asks for many ranges.

use std::fmt;
use std::time::Duration;

use http::HeaderValue;
use moka::sync::Cache;
use tokio::time::Instant;

use crate::protocol::Principal;
use crate::protocol::oci::OciReference;

/// Most tokens kept.
const TOKENS: u64 = 1024;
/// The longest that one is kept, whatever its registry says.
const KEPT: Duration = Duration::from_secs(300);
/// How long a token is good for whose registry does not say (the distribution specification's token page).
const UNSAID: u64 = 60;
/// How long before its end a token is not used any more: the request has to arrive.
const EARLY: Duration = Duration::from_secs(10);

/// What a token was given for: this agent's announcement, and pulling from this repository. Other agents never use it.
type Key = (Principal, OciReference);

/// The tokens.
pub(super) struct Tokens(Cache<Key, (HeaderValue, Instant)>);

impl Default for Tokens {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(TOKENS).time_to_live(KEPT).build())
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("count", &self.0.entry_count()).finish()
    }
}

impl Tokens {
    /// One that is still good, as the value of `Authorization`.
    pub(super) fn get(&self, agent: &Principal, reference: &OciReference) -> Option<HeaderValue> {
        let (bearer, until) = self.0.get(&(agent.clone(), reference.clone()))?;
        (Instant::now() < until).then_some(bearer)
    }

    /// Keeps one that is good for so many seconds from now on.
    pub(super) fn put(
        &self,
        agent: &Principal,
        reference: &OciReference,
        bearer: HeaderValue,
        expires_in: Option<u64>,
    ) {
        let good = Duration::from_secs(expires_in.unwrap_or(UNSAID)).min(KEPT);
        if let Some(good) = good.checked_sub(EARLY).filter(|good| !good.is_zero()) {
            self.0.insert((agent.clone(), reference.clone()), (bearer, Instant::now() + good));
        }
    }

    /// Forgets one that its registry does not take any more.
    pub(super) fn forget(&self, agent: &Principal, reference: &OciReference) {
        self.0.invalidate(&(agent.clone(), reference.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_one_agents_for_one_repository_and_for_a_while() {
        let tokens = Tokens::default();
        let agent = |id: &str| Principal::agent(id).unwrap();
        let reference = |text: &str| OciReference::parse(text).unwrap();
        let bearer = HeaderValue::from_static("Bearer t");
        let files = reference("r.example/team/files");
        tokens.put(&agent("a"), &files, bearer.clone(), Some(60));
        assert_eq!(tokens.get(&agent("a"), &reference("r.example/team/files:v1")), Some(bearer.clone()));
        assert_eq!(tokens.get(&agent("b"), &files), None);
        for other in ["r.example/team/other", "s.example/team/files"] {
            assert_eq!(tokens.get(&agent("a"), &reference(other)), None);
        }
        tokio::time::advance(Duration::from_secs(50)).await;
        assert_eq!(tokens.get(&agent("a"), &files), None);
        for (expires_in, kept) in [(Some(0), false), (Some(10), false), (None, true), (Some(u64::MAX), true)] {
            tokens.forget(&agent("a"), &files);
            tokens.put(&agent("a"), &files, bearer.clone(), expires_in);
            assert_eq!(tokens.get(&agent("a"), &files).is_some(), kept, "{expires_in:?}");
        }
        tokio::time::advance(KEPT).await;
        assert_eq!(tokens.get(&agent("a"), &files), None);
    }
}
