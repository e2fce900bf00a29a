//! Nonces that were brought before are refused: also after a restart, and where nodes share a database also on another
//! node.
//!
//! A request waits until its nonce is known to be fresh and is on disk. Those that wait at the same time share one
//! commit: while one batch is written the next one gathers, so a busy gateway writes few large batches, and an idle one
//! writes at once. Expired nonces are forgotten between batches, a few at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::protocol::{Principal, plain_url};
use crate::store::{Nonce, Store, StoreError};

/// Most requests that wait for their nonces. They are all in this process's hands already, so the bound is for memory.
const WAITING: usize = 8192;
/// Most requests of one batch.
const BATCH: usize = 1024;
/// Most nonces that one principal may have remembered: 160 requests a second, if its signatures are good for a minute.
pub(super) const QUOTA: u64 = 20_000;
/// The same for all agents whose URLs are at one host and port: whoever has a web server has as many URLs as they like.
/// What this process has written counts, so that a restart forgives what was there, once.
const ORIGIN_QUOTA: u64 = 10 * QUOTA;
/// How long a count is good for; what this node adds meanwhile is added to it.
const COUNTED_FOR: Duration = Duration::from_secs(30);
/// When a principal has used up its quota, whether some of it has expired is looked up this often.
const RECOUNT: Duration = Duration::from_secs(1);
/// Between two sweeps that found little, and most that one forgets.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const SWEEP_ROWS: u32 = 2000;

/// What became of nonces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spent {
    /// Nobody had brought any of them.
    Fresh,
    /// One of them was brought before.
    Seen,
    /// The principal, or those at its host, have too many that could still come again.
    QuotaExceeded,
}

type Answer = Result<Spent, StoreError>;

/// A request that waits.
struct Waiting {
    nonces: Vec<Nonce>,
    answer: oneshot::Sender<Answer>,
}

/// Who has spent what. Clones share it.
#[derive(Clone)]
pub(super) struct Nonces(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Clock,
    tracker: TaskTracker,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// While a task writes batches; what it knows is with it then.
    writing: bool,
    ledger: Option<Ledger>,
}

/// What the writing task remembers from batch to batch.
#[derive(Default)]
struct Ledger {
    counts: HashMap<Principal, (u64, Instant)>,
    origins: Origins,
    swept: Option<Instant>,
}

/// How many nonces of each origin expire in which minute.
#[derive(Default)]
struct Origins(HashMap<String, BTreeMap<i64, u64>>);

impl Origins {
    /// The host and port of an agent's URL; an agent that has none stands alone.
    fn of(principal: &Principal) -> String {
        let authority = principal.agent_url().and_then(plain_url::authority);
        authority.unwrap_or_else(|| principal.as_str().to_owned())
    }

    fn forget_expired(&mut self, now: i64) {
        self.0.retain(|_, minutes| {
            *minutes = minutes.split_off(&minute(now));
            !minutes.is_empty()
        });
    }

    fn count(&self, origin: &str) -> u64 {
        self.0.get(origin).map_or(0, |minutes| minutes.values().sum())
    }

    fn add(&mut self, origin: &str, nonces: &[Nonce]) {
        let minutes = self.0.entry(origin.to_owned()).or_default();
        for nonce in nonces {
            *minutes.entry(minute(nonce.expires_at)).or_default() += 1;
        }
    }

    /// So many of these were there already.
    fn take_back(&mut self, nonces: &[Nonce], seen: usize) {
        let Some(minutes) = nonces.first().and_then(|nonce| self.0.get_mut(&Self::of(&nonce.principal))) else {
            return;
        };
        for nonce in nonces.iter().take(seen) {
            if let Some(count) = minutes.get_mut(&minute(nonce.expires_at)) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

fn minute(unix_millis: i64) -> i64 {
    unix_millis.div_euclid(60_000)
}

impl Nonces {
    pub(super) fn new(store: Store, clock: Clock, tracker: TaskTracker) -> Self {
        Self(Arc::new(Inner { store, clock, tracker, queue: Mutex::default() }))
    }

    /// Spends the nonces of one request. They are spent also when the caller goes away.
    pub(super) async fn spend(&self, nonces: Vec<Nonce>) -> Answer {
        let (answer, answered) = oneshot::channel();
        {
            let mut queue = self.lock();
            if queue.waiting.len() >= WAITING {
                return Err(StoreError::Unavailable("too many requests wait for their nonces".to_owned()));
            }
            queue.waiting.push(Waiting { nonces, answer });
            if !queue.writing {
                queue.writing = true;
                let ledger = queue.ledger.take().unwrap_or_default();
                self.0.tracker.spawn(self.clone().write(ledger));
            }
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the gateway is stopping".to_owned())))
    }

    /// Writes batches until nobody waits.
    async fn write(self, mut ledger: Ledger) {
        loop {
            let batch = {
                let mut queue = self.lock();
                let len = queue.waiting.len().min(BATCH);
                if len == 0 {
                    queue.ledger = Some(ledger);
                    queue.writing = false;
                    return;
                }
                queue.waiting.drain(..len).collect()
            };
            self.write_batch(batch, &mut ledger).await;
            self.sweep(&mut ledger).await;
        }
    }

    async fn write_batch(&self, batch: Vec<Waiting>, ledger: &mut Ledger) {
        if let Err(error) = self.count(&batch, ledger).await {
            return refuse(batch, &error);
        }
        ledger.origins.forget_expired(self.0.clock.unix_millis());
        let mut admitted = Vec::with_capacity(batch.len());
        for waiting in batch {
            if ledger.admit(&waiting.nonces) {
                admitted.push(waiting);
            } else {
                let _ = waiting.answer.send(Ok(Spent::QuotaExceeded));
            }
        }
        let nonces: Vec<Nonce> = admitted.iter().flat_map(|waiting| waiting.nonces.iter().cloned()).collect();
        if nonces.is_empty() {
            return;
        }
        let mut fresh = match self.0.store.spend_nonces(nonces).await {
            Ok(fresh) => fresh,
            // They may have been written all the same; then they stay spent.
            Err(error) => return refuse(admitted, &error),
        };
        for waiting in admitted {
            let taken = take(&mut fresh, &waiting.nonces);
            ledger.release(&waiting.nonces, taken);
            let spent = if taken == waiting.nonces.len() { Spent::Fresh } else { Spent::Seen };
            let _ = waiting.answer.send(Ok(spent));
        }
    }

    /// Looks up how many nonces the batch's principals have, where that is not known well enough.
    async fn count(&self, batch: &[Waiting], ledger: &mut Ledger) -> Result<(), StoreError> {
        let now = Instant::now();
        ledger.counts.retain(|_, (_, at)| now - *at < COUNTED_FOR);
        let stale = |principal: &&Principal| match ledger.counts.get(*principal) {
            Some((count, at)) => *count >= QUOTA && now - *at >= RECOUNT,
            None => true,
        };
        let principals: HashSet<&Principal> = batch
            .iter()
            .flat_map(|waiting| waiting.nonces.iter().map(|nonce| &nonce.principal))
            .filter(stale)
            .collect();
        if principals.is_empty() {
            return Ok(());
        }
        let principals: Vec<Principal> = principals.into_iter().cloned().collect();
        let mut counted = self.0.store.count_nonces(&principals, self.0.clock.unix_millis()).await?;
        for principal in principals {
            let count = counted.remove(&principal).unwrap_or(0);
            ledger.counts.insert(principal, (count, now));
        }
        Ok(())
    }

    /// Forgets some that have expired, if that is due.
    async fn sweep(&self, ledger: &mut Ledger) {
        if ledger.swept.is_some_and(|at| at.elapsed() < SWEEP_INTERVAL) {
            return;
        }
        match self.0.store.sweep_nonces(self.0.clock.unix_millis(), SWEEP_ROWS).await {
            // There may be more: go on behind the next batch.
            Ok(swept) if swept == u64::from(SWEEP_ROWS) => ledger.swept = None,
            Ok(_) => ledger.swept = Some(Instant::now()),
            Err(error) => {
                tracing::warn!(%error, "cannot forget expired nonces");
                ledger.swept = Some(Instant::now());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing can panic while it is held, and no half-made state could follow from it.
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// Whether these still fit the quotas of their principal and its origin, which they then count towards.
    fn admit(&mut self, nonces: &[Nonce]) -> bool {
        let Some(principal) = nonces.first().map(|nonce| &nonce.principal) else { return true };
        let Some((count, _)) = self.counts.get_mut(principal) else { return false };
        let (origin, more) = (Origins::of(principal), nonces.len() as u64);
        let fits = *count + more <= QUOTA && self.origins.count(&origin) + more <= ORIGIN_QUOTA;
        if fits {
            *count += more;
            self.origins.add(&origin, nonces);
        }
        fits
    }

    /// Takes back those that were remembered already: whoever sends one captured request over and over uses up nothing of
    /// its owner's.
    fn release(&mut self, nonces: &[Nonce], fresh: usize) {
        if let Some((count, _)) = nonces.first().and_then(|nonce| self.counts.get_mut(&nonce.principal)) {
            *count = count.saturating_sub((nonces.len() - fresh) as u64);
        }
        self.origins.take_back(nonces, nonces.len() - fresh);
    }
}

/// How many of a request's nonces are fresh. Each is fresh for one request only, and once in it.
fn take(fresh: &mut HashSet<(Principal, String)>, nonces: &[Nonce]) -> usize {
    nonces.iter().filter(|nonce| fresh.remove(&(nonce.principal.clone(), nonce.nonce.clone()))).count()
}

fn refuse(batch: Vec<Waiting>, error: &StoreError) {
    tracing::warn!(%error, requests = batch.len(), "cannot tell whether nonces are fresh");
    for waiting in batch {
        let _ = waiting.answer.send(Err(StoreError::Unavailable("nonces cannot be looked up".to_owned())));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;
    use crate::store::StoreOptions;

    const NOW: i64 = 1_790_000_000_000;
    const LATER: i64 = NOW + 10 * 60_000;

    fn nonce(principal: &str, nonce: &str, expires_at: i64) -> Nonce {
        Nonce { principal: principal.parse().unwrap(), nonce: nonce.to_owned(), expires_at }
    }

    async fn nonces(clock: &Clock) -> (Nonces, Store, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", dir.path().join("db").display());
        let store = Store::open(&url, StoreOptions { clock: clock.clone(), ..StoreOptions::default() }).await.unwrap();
        (Nonces::new(store.clone(), clock.clone(), TaskTracker::new()), store, dir)
    }

    #[tokio::test]
    async fn a_nonce_is_spent_once_and_by_one_principal() {
        let (nonces, _store, _dir) = nonces(&Clock::fixed(NOW)).await;
        let spend = async |list: &[(&str, &str)]| {
            let list = list.iter().map(|(principal, text)| nonce(principal, text, NOW + 1000)).collect();
            nonces.spend(list).await.unwrap()
        };
        assert_eq!(spend(&[("agent:a", "1")]).await, Spent::Fresh);
        assert_eq!(spend(&[("agent:a", "1")]).await, Spent::Seen);
        assert_eq!(spend(&[("agent:b", "1")]).await, Spent::Fresh);
        assert_eq!(spend(&[("agent:a", "2"), ("agent:a", "1")]).await, Spent::Seen, "one of two");
        assert_eq!(spend(&[("agent:a", "2")]).await, Spent::Seen, "the other one is spent too");
        assert_eq!(spend(&[("agent:a", "3"), ("agent:a", "3")]).await, Spent::Seen, "twice in one request");
    }

    #[tokio::test]
    async fn of_those_that_come_at_once_one_is_first() {
        let (nonces, _store, _dir) = nonces(&Clock::fixed(NOW)).await;
        let spends = (0..300).map(|n| nonces.spend(vec![nonce("agent:a", &format!("{}", n % 100), NOW + 1000)]));
        let outcomes: Vec<_> = join_all(spends).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Spent::Fresh).count(), 100);
        assert!(outcomes[..100].iter().all(|outcome| *outcome == Spent::Fresh), "in the order in which they came");
    }

    #[tokio::test]
    async fn one_principal_cannot_fill_the_store() {
        let (nonces, store, _dir) = nonces(&Clock::fixed(NOW)).await;
        let many = (0..QUOTA).map(|n| nonce("agent:a", &format!("{n}"), NOW + 1000)).collect();
        store.spend_nonces(many).await.unwrap();
        let spend = |principal: &str| nonces.spend(vec![nonce(principal, "one more", NOW + 1000)]);
        assert_eq!(spend("agent:a").await.unwrap(), Spent::QuotaExceeded);
        assert_eq!(spend("agent:b").await.unwrap(), Spent::Fresh);
    }

    #[tokio::test]
    async fn nor_can_the_many_principals_of_one_origin() {
        let clock = Clock::fixed(NOW);
        let (nonces, store, _dir) = nonces(&clock).await;
        let spend = async |principal: String, count: u64, text: &str, expires_at: i64| {
            let list = (0..count).map(|n| nonce(&principal, &format!("{text}{n}"), expires_at)).collect();
            nonces.spend(list).await.unwrap()
        };
        let agents = ORIGIN_QUOTA / 10_000;
        for n in 0..agents {
            assert_eq!(spend(format!("agent:https://evil.example/{n}"), 10_000, "", NOW + 1000).await, Spent::Fresh);
        }
        // The same host and port, however it is spelt.
        for url in ["https://evil.example/new", "https://EVIL.example:443", "https://evil.example./x"] {
            assert_eq!(spend(format!("agent:{url}"), 1, "", NOW + 1000).await, Spent::QuotaExceeded, "{url}");
        }
        assert_eq!(store.count_nonces(&["agent:https://evil.example/new".parse().unwrap()], 0).await.unwrap().len(), 0);
        for url in ["https://evil.example:8443/new", "https://good.example/1"] {
            assert_eq!(spend(format!("agent:{url}"), 1, "", NOW + 1000).await, Spent::Fresh, "{url}");
        }
        // What has expired counts no more, and what was seen before never did.
        clock.set(LATER);
        assert_eq!(spend("agent:https://evil.example/new".to_owned(), 1, "", LATER + 1000).await, Spent::Fresh);
        assert_eq!(spend("agent:https://evil.example/new".to_owned(), 1, "", LATER + 1000).await, Spent::Seen);
    }

    #[tokio::test]
    async fn what_was_seen_before_uses_up_nothing() {
        let (nonces, store, _dir) = nonces(&Clock::fixed(NOW)).await;
        let many = (0..QUOTA - 2).map(|n| nonce("agent:a", &format!("{n}"), NOW + 1000)).collect();
        store.spend_nonces(many).await.unwrap();
        for _ in 0..10 {
            assert_eq!(nonces.spend(vec![nonce("agent:a", "0", NOW + 1000)]).await.unwrap(), Spent::Seen);
        }
        let two = vec![nonce("agent:a", "0", NOW + 1000), nonce("agent:a", "new", NOW + 1000)];
        assert_eq!(nonces.spend(two).await.unwrap(), Spent::Seen);
        assert_eq!(nonces.spend(vec![nonce("agent:a", "last", NOW + 1000)]).await.unwrap(), Spent::Fresh);
        assert_eq!(nonces.spend(vec![nonce("agent:a", "more", NOW + 1000)]).await.unwrap(), Spent::QuotaExceeded);
    }

    #[tokio::test]
    async fn expired_nonces_are_forgotten_a_few_at_a_time() {
        let clock = Clock::fixed(NOW);
        let (nonces, store, _dir) = nonces(&clock).await;
        let agent: Principal = "agent:a".parse().unwrap();
        let old = (0..u64::from(SWEEP_ROWS) + 10).map(|n| nonce("agent:a", &format!("{n}"), NOW + 1)).collect();
        store.spend_nonces(old).await.unwrap();
        clock.set(LATER);
        let count = async || store.count_nonces(std::slice::from_ref(&agent), 0).await.unwrap().get(&agent).copied();
        nonces.spend(vec![nonce("agent:b", "1", LATER + 1000)]).await.unwrap();
        // The sweep comes behind the batch, so only the next batch is sure to be behind it.
        nonces.spend(vec![nonce("agent:b", "2", LATER + 1000)]).await.unwrap();
        assert!(count().await.unwrap_or(0) <= 10);
        nonces.spend(vec![nonce("agent:b", "3", LATER + 1000)]).await.unwrap();
        assert_eq!(count().await, None);
    }

    #[tokio::test]
    async fn a_store_that_is_away_refuses() {
        let (nonces, store, _dir) = nonces(&Clock::fixed(NOW)).await;
        store.close().await;
        assert!(nonces.spend(vec![nonce("agent:a", "1", NOW)]).await.is_err());
    }
}
