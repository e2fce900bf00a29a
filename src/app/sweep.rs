//! Removes what has had its time, in small batches, so that nobody waits for it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::store::{Store, StoreError};

/// Rows removed at once.
const BATCH: u32 = 500;
/// Between two batches.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two sweeps.
const INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Sweeps until `until` is cancelled: reads that ended longer ago than the retention.
pub(super) async fn run(store: Store, clock: Clock, retention: Duration, until: CancellationToken) {
    let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
    let sweeping = async {
        loop {
            let before = clock.unix_millis().saturating_sub(retention);
            in_batches("reads", || sweep_reads(store.clone(), before)).await;
            tokio::time::sleep(INTERVAL).await;
        }
    };
    let _ = until.run_until_cancelled(sweeping).await;
}

async fn sweep_reads(store: Store, before: i64) -> Result<u64, StoreError> {
    store.sweep_reads(before, BATCH).await
}

async fn in_batches<F: Future<Output = Result<u64, StoreError>>>(what: &str, remove: impl Fn() -> F) {
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
    if removed > 0 {
        tracing::info!(what, removed, "swept");
    }
}
