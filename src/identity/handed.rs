//! Who holds an opaque secret: looked up in the store, and remembered until a write may have changed it.

use std::sync::Arc;
use std::time::Duration;

use super::opaque::{OpaqueKey, OpaqueSecret, Purpose};
use super::{Caller, Tokens};
use crate::clock::Clock;
use crate::store::{BrowserRecord, LinkRecord, Store, StoreError};

/// Answers remembered, a few hundred bytes each.
const ANSWERS: u64 = 16_384;
/// How long an answer lives at most: another process may have written.
const TIME_TO_LIVE: Duration = Duration::from_secs(30);

/// Knows the holders of cookies and links.
#[derive(Debug, Clone)]
pub struct HandedOut {
    store: Store,
    key: OpaqueKey,
    clock: Clock,
    browsers: Remembered<BrowserRecord>,
    links: Remembered<LinkRecord>,
}

impl HandedOut {
    /// Whatever is in the store and was made under the secret of these tokens.
    pub fn new(store: Store, tokens: &Tokens, clock: Clock) -> Self {
        let key = tokens.opaque_key().clone();
        Self { store, key, clock, browsers: Remembered::new(), links: Remembered::new() }
    }

    /// What is kept of a secret.
    pub fn hash(&self, purpose: Purpose, secret: &OpaqueSecret) -> String {
        self.key.hash(purpose, secret)
    }

    /// Whom a cookie stands for. None when it is unknown, or has had its time.
    pub async fn browser(&self, cookie: &OpaqueSecret) -> Result<Option<Caller>, StoreError> {
        Ok(self.browser_until(cookie).await?.map(|(caller, _)| caller))
    }

    /// The same, and until when, in Unix milliseconds.
    pub async fn browser_until(&self, cookie: &OpaqueSecret) -> Result<Option<(Caller, i64)>, StoreError> {
        let hash = self.hash(Purpose::Browser, cookie);
        let found = self.browsers.get(&self.store, &hash, self.store.browser(&hash)).await?;
        let found = found.filter(|browser| browser.expires_at > self.clock.unix_millis());
        Ok(found.map(|browser| {
            let caller = Caller { principal: browser.principal, chats: browser.chats.map(Arc::from) };
            (caller, browser.expires_at)
        }))
    }

    /// What a link leads to, and who made it. None when it is unknown, or has had its time.
    pub async fn link(&self, secret: &OpaqueSecret) -> Result<Option<LinkRecord>, StoreError> {
        let hash = self.hash(Purpose::Link, secret);
        let found = self.links.get(&self.store, &hash, self.store.link(&hash)).await?;
        Ok(found.filter(|link| link.expires_at > self.clock.unix_millis()))
    }
}

#[derive(Debug, Clone)]
struct Remembered<T: Clone + Send + Sync + 'static>(moka::sync::Cache<String, (u64, T)>);

impl<T: Clone + Send + Sync + 'static> Remembered<T> {
    fn new() -> Self {
        Self(moka::sync::Cache::builder().max_capacity(ANSWERS).time_to_live(TIME_TO_LIVE).build())
    }

    /// What is known of a hash, or else what `ask` finds. That there is nothing is not remembered.
    async fn get(
        &self,
        store: &Store,
        hash: &str,
        ask: impl Future<Output = Result<Option<T>, StoreError>>,
    ) -> Result<Option<T>, StoreError> {
        // Read before asking: a write that ends in between leaves an answer that is void from the start.
        let generation = store.withdrawals();
        if let Some((_, found)) = self.0.get(hash).filter(|(known, _)| *known == generation) {
            return Ok(Some(found));
        }
        let found = ask.await?;
        if let Some(found) = &found {
            self.0.insert(hash.to_owned(), (generation, found.clone()));
        }
        Ok(found)
    }
}
