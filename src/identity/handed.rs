//! Who holds an opaque secret: looked up in the store, and remembered until a write may have changed it.

use std::sync::Arc;

use super::opaque::{OpaqueKey, OpaqueSecret, Purpose};
use super::{Caller, Tokens};
use crate::clock::Clock;
use crate::store::{BrowserRecord, LinkRecord, Remembered, Store, StoreError, weight_of};

/// About how many bytes of answers are remembered, of either kind.
const ANSWERS_BYTES: u64 = 8 << 20;
/// What an answer takes without its texts, in bytes.
const ANSWER: usize = 400;

/// Knows the holders of cookies and links.
#[derive(Debug, Clone)]
pub struct HandedOut {
    store: Store,
    key: OpaqueKey,
    clock: Clock,
    browsers: Holders<BrowserRecord>,
    links: Holders<LinkRecord>,
}

impl HandedOut {
    /// Whatever is in the store and was made under the secret of these tokens.
    pub fn new(store: Store, tokens: &Tokens, clock: Clock) -> Self {
        let key = tokens.opaque_key().clone();
        let browsers = Remembered::new(ANSWERS_BYTES, browser_weight, Store::withdrawals);
        let links = Remembered::new(ANSWERS_BYTES, link_weight, Store::withdrawals);
        Self { store, key, clock, browsers, links }
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
        let found = self.browsers.answer(&self.store, hash.clone(), self.store.browser(&hash)).await?;
        let found = found.filter(|browser| browser.expires_at > self.clock.unix_millis());
        Ok(found.map(|browser| {
            let caller = Caller { principal: browser.principal, chats: browser.chats.map(Arc::from) };
            (caller, browser.expires_at)
        }))
    }

    /// What a link leads to, and who made it. None when it is unknown, or has had its time.
    pub async fn link(&self, secret: &OpaqueSecret) -> Result<Option<LinkRecord>, StoreError> {
        let hash = self.hash(Purpose::Link, secret);
        let found = self.links.answer(&self.store, hash.clone(), self.store.link(&hash)).await?;
        Ok(found.filter(|link| link.expires_at > self.clock.unix_millis()))
    }
}

/// Answers by what is kept of a secret. That there is nothing is not remembered.
type Holders<T> = Remembered<String, Option<T>>;

fn browser_weight(_: &String, found: &Option<BrowserRecord>) -> Option<u32> {
    let browser = found.as_ref()?;
    let bytes = ANSWER + browser.principal.as_str().len() + weight_of(browser.chats.as_deref().unwrap_or_default());
    Some(u32::try_from(bytes).unwrap_or(u32::MAX))
}

fn link_weight(_: &String, found: &Option<LinkRecord>) -> Option<u32> {
    let link = found.as_ref()?;
    u32::try_from(ANSWER + link.principal.as_str().len() + link.path.len()).ok()
}
