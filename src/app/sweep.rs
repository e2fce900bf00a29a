//! Removes what has had its time, in small batches, so that nobody waits for it.

mod cached;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::store::{Outdated, Store, StoreError};
use crate::transfer::Transfers;

/// Rows removed at once.
const BATCH: u32 = 500;
/// Manifests removed at once: each may have 10,000 entries.
const MANIFESTS: u32 = 20;
/// Between two batches.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two sweeps.
const INTERVAL: Duration = Duration::from_secs(15 * 60);

/// How long a set stays listed after it has expired: who looks for it learns what became of it.
const EXPIRED: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How long a session stays bound, and how long a set waits for its own to be: no turn takes so long.
const SESSIONS: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long the keys of an agent are known that has nothing here and does not sign any more.
const KEYS: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// In every so many sweeps the cache is gone through although nothing was removed here: what another process removed, or
/// what expired, is not seen otherwise.
const CACHE_EVERY: u32 = 4;

/// What the sweep removes, as metrics name it.
const KINDS: [&str; 10] = [
    "reads",
    "handed_out",
    "expired_sets",
    "old_sets",
    "unbound_sets",
    "sessions",
    "manifests",
    "endpoints",
    "nonces",
    "cached_objects",
];

/// How long what is kept is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retention {
    /// Reads, after they ended.
    pub(super) reads: Duration,
    /// Sets, after they were last announced; zero is for ever.
    pub(super) sets: Duration,
}

/// Every series of the sweep exists from the start.
pub(super) fn touch_metrics(metrics: &Metrics) {
    for kind in KINDS {
        let _ = metrics.swept.with_label_values(&[kind]);
    }
}

/// Sweeps until `until` is cancelled.
pub(super) async fn run(
    (store, transfers): (Store, Arc<Transfers>),
    clock: Clock,
    metrics: &Metrics,
    retention: Retention,
    until: CancellationToken,
) {
    let sweep = Sweep { store, transfers, clock, metrics };
    let sweeping = async {
        for turn in (0..CACHE_EVERY).cycle() {
            let removed = sweep.everything(retention).await;
            if removed > 0 || turn == 0 {
                sweep.cached().await;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    };
    let _ = until.run_until_cancelled(sweeping).await;
}

struct Sweep<'a> {
    store: Store,
    transfers: Arc<Transfers>,
    clock: Clock,
    metrics: &'a Metrics,
}

impl Sweep<'_> {
    /// How many manifests went.
    async fn everything(&self, retention: Retention) -> u64 {
        let reads = self.before(retention.reads);
        self.in_batches("reads", || self.store.sweep_reads(reads, BATCH)).await;
        // Browsers, codes and links.
        self.in_batches("handed_out", || self.store.sweep_handed_out(BATCH)).await;
        let expired = Outdated::ExpiredBefore(self.before(EXPIRED));
        self.in_batches("expired_sets", || self.store.sweep_announcements(expired, BATCH)).await;
        if !retention.sets.is_zero() {
            let old = Outdated::UntouchedSince(self.before(retention.sets));
            self.in_batches("old_sets", || self.store.sweep_announcements(old, BATCH)).await;
        }
        let sessions = self.before(SESSIONS);
        let unbound = Outdated::UnboundBefore(sessions);
        self.in_batches("unbound_sets", || self.store.sweep_announcements(unbound, BATCH)).await;
        self.in_batches("sessions", || self.store.sweep_sessions(sessions, BATCH)).await;
        let manifests = self.in_batches("manifests", || self.store.sweep_manifests(MANIFESTS)).await;
        self.in_batches("endpoints", || self.store.sweep_endpoints(BATCH)).await;
        // While agents sign, their nonces go meanwhile; these are the last ones'.
        self.in_batches("nonces", || self.store.sweep_nonces(self.clock.unix_millis(), BATCH)).await;
        if let Err(error) = self.keys().await {
            tracing::warn!(%error, what = "keys", "a sweep is left for later");
        }
        if let Err(error) = self.files().await {
            tracing::warn!(%error, what = "files", "a sweep is left for later");
        }
        manifests
    }

    /// Files that nobody offers any more, with their versions. There is no telling them by their age, so all are looked
    /// at, some at a time.
    async fn files(&self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            after = self.store.sweep_files(after, BATCH).await?;
            if after.is_none() {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Keys of agents that have nothing here that the keys could guard. All are looked at, some at a time.
    async fn keys(&self) -> Result<(), StoreError> {
        let before = self.before(KEYS);
        let mut after = None;
        loop {
            after = self.store.sweep_keys(before, after.as_ref(), BATCH).await?;
            if after.is_none() {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn before(&self, retention: Duration) -> i64 {
        let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
        self.clock.unix_millis().saturating_sub(retention)
    }

    async fn in_batches<F: Future<Output = Result<u64, StoreError>>>(&self, what: &str, remove: impl Fn() -> F) -> u64 {
        let mut removed = 0;
        loop {
            match remove().await {
                Ok(0) => break,
                Ok(some) => removed += some,
                Err(error) => {
                    tracing::warn!(%error, what, "a sweep is left for later");
                    break;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.count(what, removed);
        removed
    }

    fn count(&self, what: &str, removed: u64) {
        if removed > 0 {
            self.metrics.swept.with_label_values(&[what]).inc_by(removed);
            tracing::info!(what, removed, "swept");
        }
    }
}
