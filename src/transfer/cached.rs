//! What goes from the cache because nobody lists it any more.

use std::collections::HashSet;

use super::{Running, Transfers};
use crate::protocol::Sha256;

impl Transfers {
    /// The names of the objects that the cache holds.
    pub async fn cached(&self) -> HashSet<Sha256> {
        match &self.cache {
            Some(cache) => cache.names().await,
            None => HashSet::new(),
        }
    }

    /// Removes objects from the cache, except those that a transfer that runs has still to come to. How many.
    pub async fn forget_cached(&self, mut names: HashSet<Sha256>) -> u64 {
        let Some(cache) = self.cache.clone() else { return 0 };
        // No guard of the map is held while they are looked for: there may be many.
        let running: Vec<Running> = self.running.iter().map(|entry| entry.value().clone()).collect();
        running.iter().for_each(|running| running.strike_out(&mut names));
        let names: Vec<_> = names.into_iter().collect();
        let count = names.len() as u64;
        let removing = self.tracker.spawn_blocking(move || cache.remove(&names));
        // It ends only by a panic, which says so itself.
        removing.await.map_or(0, |()| count)
    }
}

impl Running {
    /// Takes what this transfer may read from among the names.
    fn strike_out(&self, names: &mut HashSet<Sha256>) {
        let range = self.live.range;
        match &self.chunks {
            None => _ = names.remove(&self.live.sha256),
            Some(chunks) => {
                // The range lies within the blob, whose chunks are as many as the list is long.
                let first = usize::try_from(range.start / chunks.chunk_size).unwrap_or(usize::MAX);
                let end = usize::try_from(range.end.div_ceil(chunks.chunk_size)).unwrap_or(usize::MAX);
                let wanted = chunks.hashes.iter().take(end).skip(first);
                wanted.for_each(|hash| _ = names.remove(hash));
            }
        }
    }
}
