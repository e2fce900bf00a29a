//! Removes from the cache what no set of a chat lists any more: a chat that is deleted takes its bytes with it.

use std::collections::HashSet;

use super::{BATCH, MANIFESTS, PAUSE, Sweep};
use crate::protocol::Sha256;
use crate::store::StoreError;

impl Sweep<'_> {
    /// Goes through what the sets list, some at a time, and then removes what none does, some at a time. What was taken in
    /// meanwhile is not looked at. What is listed anew after it was looked for is removed all the same, and costs its next
    /// reader a read of the agent.
    pub(super) async fn cached(&self) {
        let mut held = self.transfers.cached().await;
        if let Err(error) = self.strike_out_listed(&mut held).await {
            tracing::warn!(%error, what = "cached_objects", "a sweep is left for later");
            return;
        }
        let (mut unlisted, mut removed) = (held.into_iter(), 0);
        loop {
            let batch: HashSet<Sha256> = unlisted.by_ref().take(BATCH as usize).collect();
            if batch.is_empty() {
                break;
            }
            removed += self.transfers.forget_cached(batch).await;
            tokio::time::sleep(PAUSE).await;
        }
        self.count("cached_objects", removed);
    }

    async fn strike_out_listed(&self, held: &mut HashSet<Sha256>) -> Result<(), StoreError> {
        let (mut after, now) = (None, self.clock.unix_millis());
        while !held.is_empty() {
            let manifests = self.store.manifests_in_chats(after, now, MANIFESTS).await?;
            for manifest in &manifests {
                let mut from = Some(0);
                while let Some(place) = from {
                    let listed = self.store.listed(manifest, place).await?;
                    listed.hashes.iter().for_each(|hash| _ = held.remove(hash));
                    from = listed.next;
                }
            }
            after = manifests.last().copied();
            if after.is_none() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}
