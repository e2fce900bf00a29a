//! The bytes of manifests that are being read, in memory once, however many read them.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OnceCell, Semaphore};

use crate::protocol::Sha256;
use crate::store::{Store, StoreError};

/// Most bytes that stay in memory: a manifest has at most 16 MiB.
const BYTES: u64 = 64 << 20;
/// Most manifests that are read from the store at once, each of which takes its bytes besides.
const AT_ONCE: usize = 4;

/// A manifest in memory, or on its way there.
#[derive(Debug)]
struct Kept {
    size: u64,
    bytes: OnceCell<Bytes>,
}

/// Manifests by their hash, which says all about them: whether somebody may read one is asked elsewhere. Clones share
/// them.
#[derive(Debug, Clone)]
pub(super) struct Manifests {
    store: Store,
    kept: moka::sync::Cache<Sha256, Arc<Kept>>,
    reading: Arc<Semaphore>,
}

impl Manifests {
    pub(super) fn new(store: Store) -> Self {
        Self::of_size(store, BYTES)
    }

    fn of_size(store: Store, bytes: u64) -> Self {
        let kept = moka::sync::Cache::builder()
            .max_capacity(bytes)
            .weigher(|_: &Sha256, kept: &Arc<Kept>| u32::try_from(kept.size).unwrap_or(u32::MAX))
            .build();
        Self { store, kept, reading: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// All of a manifest of this size. Who asks while it is being read waits for the same bytes. None when it is not kept
    /// any more.
    pub(super) async fn bytes(&self, manifest: &Sha256, size: u64) -> Result<Option<Bytes>, StoreError> {
        let kept = self.kept.get_with(*manifest, || Arc::new(Kept { size, bytes: OnceCell::new() }));
        let read = async {
            // Never closed, so the error does not come.
            let _turn = self.reading.acquire().await.ok();
            self.store.manifest_bytes(manifest).await.map_err(Some)?.ok_or(None)
        };
        match kept.bytes.get_or_try_init(|| read).await {
            Ok(bytes) => Ok(Some(bytes.clone())),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    #[tokio::test]
    async fn so_many_bytes_are_kept_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/sluice.db", folder.path().display());
        let store = Store::open(&url, StoreOptions::default()).await.unwrap();
        let manifests = Manifests::of_size(store, 1000);
        for n in 0..100_u32 {
            assert_eq!(manifests.bytes(&Sha256::of(&n.to_be_bytes()), 300).await.unwrap(), None);
        }
        manifests.kept.run_pending_tasks();
        assert!(manifests.kept.weighted_size() <= 1000);
    }
}
