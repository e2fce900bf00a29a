//! Who holds an opaque secret: looked up in the store, and remembered until a write may have changed it.

use std::sync::Arc;

use moka::sync::Cache;

use super::opaque::{OpaqueKey, OpaqueSecret, Purpose};
use super::{Caller, Tokens};
use crate::clock::Clock;
use crate::store::{BrowserRecord, LinkRecord, Remembered, Store, StoreError, weight_of};

/// About how many bytes of answers are remembered, of either kind.
const ANSWERS_BYTES: u64 = 8 << 20;
/// Most used-up codes that are remembered.
const USED: u64 = 10_000;
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
    /// Codes that are used up, by what is kept of them.
    used: Cache<String, ()>,
}

impl HandedOut {
    /// Whatever is in the store and was made under the secret of these tokens.
    pub fn new(store: Store, tokens: &Tokens, clock: Clock) -> Self {
        let key = tokens.opaque_key().clone();
        let browsers = Remembered::new(ANSWERS_BYTES, browser_weight, Store::withdrawals);
        let links = Remembered::new(ANSWERS_BYTES, link_weight, Store::withdrawals);
        let used = Cache::builder().max_capacity(USED).build();
        Self { store, key, clock, browsers, links, used }
    }

    /// A new secret.
    pub fn issue(&self, purpose: Purpose) -> OpaqueSecret {
        self.key.issue(purpose)
    }

    /// One that came back; none when it was never handed out for this, which asks nobody.
    pub fn read(&self, purpose: Purpose, text: &str) -> Option<OpaqueSecret> {
        self.key.read(purpose, text)
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

    /// Takes a code, and signs in the browser that holds this cookie until `expires_at`, Unix milliseconds. None when the
    /// code is used up, or has had its time.
    pub async fn redeem(
        &self,
        code: &OpaqueSecret,
        cookie: &OpaqueSecret,
        expires_at: i64,
    ) -> Result<Option<BrowserRecord>, StoreError> {
        let code = self.hash(Purpose::SignInCode, code);
        if self.used.contains_key(&code) {
            return Ok(None);
        }
        let browser = self.hash(Purpose::Browser, cookie);
        let redeemed = self.store.redeem_signin_code(&code, &browser, expires_at).await?;
        // It is good once, so that nobody finds it again.
        self.used.insert(code, ());
        Ok(redeemed)
    }

    /// What a link leads to, and who made it. None when it is unknown, or has had its time.
    pub async fn link(&self, secret: &OpaqueSecret) -> Result<Option<LinkRecord>, StoreError> {
        let hash = self.hash(Purpose::Link, secret);
        let found = self.links.answer(&self.store, hash.clone(), self.store.link(&hash)).await?;
        Ok(found.filter(|link| link.expires_at > self.clock.unix_millis()))
    }
}

/// Answers by what is kept of a secret. That there is nothing is one: whoever has a secret that was handed out once asks
/// the store no more often for it than its holder did, and what is gone does not come back.
type Holders<T> = Remembered<String, Option<T>>;

fn browser_weight(_: &String, found: &Option<BrowserRecord>) -> Option<u32> {
    let chats = |browser: &BrowserRecord| weight_of(browser.chats.as_deref().unwrap_or_default());
    let texts = found.as_ref().map_or(0, |browser| browser.principal.as_str().len() + chats(browser));
    Some(u32::try_from(ANSWER + texts).unwrap_or(u32::MAX))
}

fn link_weight(_: &String, found: &Option<LinkRecord>) -> Option<u32> {
    let texts = found.as_ref().map_or(0, |link| link.principal.as_str().len() + link.path.len());
    u32::try_from(ANSWER + texts).ok()
}

#[cfg(test)]
mod tests {
    use db::TestDatabase;

    use super::*;
    use crate::on_both_databases;
    use crate::store::{StoreOptions, test_database as db};

    on_both_databases!(guesses_cost_the_database_nothing, what_is_gone_is_asked_for_once,);

    async fn handed_out(database: &TestDatabase) -> (Store, HandedOut) {
        let store = Store::open(&database.url, StoreOptions::default()).await.unwrap();
        (store.clone(), HandedOut::new(store, &Tokens::with_secret(b"secret").unwrap(), Clock::system()))
    }

    async fn guesses_cost_the_database_nothing(database: &TestDatabase) {
        let (store, handed_out) = handed_out(database).await;
        let others = Tokens::with_secret(b"another gateway's").unwrap();
        let before = store.asked();
        for purpose in [Purpose::Browser, Purpose::SignInCode, Purpose::Link] {
            for _ in 0..100 {
                let guess = others.opaque_key().issue(purpose);
                assert!(handed_out.read(purpose, guess.expose()).is_none());
            }
        }
        assert_eq!(store.asked(), before);
    }

    async fn what_is_gone_is_asked_for_once(database: &TestDatabase) {
        let (store, handed_out) = handed_out(database).await;
        let [cookie, link] = [Purpose::Browser, Purpose::Link].map(|purpose| handed_out.issue(purpose));
        let (code, browser) = (handed_out.issue(Purpose::SignInCode), handed_out.issue(Purpose::Browser));
        let record = BrowserRecord { principal: "user:a".parse().unwrap(), chats: None, expires_at: i64::MAX };
        store.add_signin_code(&handed_out.hash(Purpose::SignInCode, &code), &record).await.unwrap();
        assert!(handed_out.redeem(&code, &browser, i64::MAX).await.unwrap().is_some());
        assert!(handed_out.browser(&browser).await.unwrap().is_some());
        let before = store.asked();
        for _ in 0..100 {
            assert!(handed_out.browser(&cookie).await.unwrap().is_none());
            assert!(handed_out.link(&link).await.unwrap().is_none());
            assert!(handed_out.redeem(&code, &cookie, i64::MAX).await.unwrap().is_none());
        }
        assert_eq!(store.asked() - before, 2);
        // Signed out elsewhere in this process, it is asked for again.
        store.remove_browser(&handed_out.hash(Purpose::Browser, &browser)).await.unwrap();
        assert!(handed_out.browser(&browser).await.unwrap().is_none());
    }
}
