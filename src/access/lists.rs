//! Chunk lists in memory, each once however many hold it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Semaphore;

use crate::protocol::{Chunks, Sha256};
use crate::store::{Store, StoreError};

/// Most bytes of lists that stay although nobody holds them.
const BYTES: u64 = 32 << 20;
/// Most lists that are read from the store at once. One of a manifest of 16 MiB takes 7 MiB.
const AT_ONCE: usize = 4;
/// About what a list takes beside its hashes.
const LUMP: usize = 256;

/// The entry that a list is of: it says all about the list, for a manifest does not change.
type Entry = (Sha256, i64);

/// About how many bytes a list takes.
pub(super) fn weight(chunks: &Chunks) -> usize {
    LUMP + 32 * chunks.hashes.len()
}

/// Lists by their entry: whether somebody may read that is asked elsewhere. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Lists {
    store: Store,
    kept: moka::sync::Cache<Entry, Arc<Chunks>>,
    held: Arc<Mutex<Held>>,
    reading: Arc<Semaphore>,
}

/// Every list that somebody holds, such as a transfer that runs.
#[derive(Debug, Default)]
struct Held {
    lists: HashMap<Entry, Weak<Chunks>>,
    /// How many there may be before those that nobody holds are forgotten.
    room: usize,
}

impl Held {
    fn get(&self, entry: &Entry) -> Option<Arc<Chunks>> {
        self.lists.get(entry).and_then(Weak::upgrade)
    }

    /// The same list for everybody: the one that is held already, or else this one.
    fn share(&mut self, entry: Entry, read: Chunks) -> Arc<Chunks> {
        if let Some(held) = self.get(&entry) {
            return held;
        }
        if self.lists.len() >= self.room {
            self.lists.retain(|_, list| list.strong_count() > 0);
            self.room = 2 * self.lists.len() + 64;
        }
        let read = Arc::new(read);
        self.lists.insert(entry, Arc::downgrade(&read));
        read
    }
}

impl Lists {
    pub(super) fn new(store: Store) -> Self {
        let kept = moka::sync::Cache::builder()
            .max_capacity(BYTES)
            .weigher(|_: &Entry, chunks: &Arc<Chunks>| u32::try_from(weight(chunks)).unwrap_or(u32::MAX))
            .build();
        Self { store, kept, held: Arc::default(), reading: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// The list of an entry. None when it has none, or is not kept any more.
    pub(super) async fn get(&self, manifest: &Sha256, position: i64) -> Result<Option<Arc<Chunks>>, StoreError> {
        let entry = (*manifest, position);
        if let Some(list) = self.here(&entry) {
            return Ok(Some(list));
        }
        // Never closed, so the error does not come.
        let _turn = self.reading.acquire().await.ok();
        if let Some(list) = self.here(&entry) {
            return Ok(Some(list));
        }
        let Some(read) = self.store.chunks(manifest, position).await? else { return Ok(None) };
        let list = self.held().share(entry, read);
        self.kept.insert(entry, Arc::clone(&list));
        Ok(Some(list))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing in it is ever half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn here(&self, entry: &Entry) -> Option<Arc<Chunks>> {
        self.kept.get(entry).or_else(|| self.held().get(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(n: u8) -> Chunks {
        Chunks { chunk_size: 262_144, hashes: vec![Sha256([n; 32])] }
    }

    #[test]
    fn one_list_is_held_for_everybody_and_nothing_of_those_that_have_gone() {
        let mut held = Held::default();
        let entry = |n: i64| (Sha256::of(b"m"), n);
        let first = held.share(entry(0), list(0));
        assert!(Arc::ptr_eq(&first, &held.share(entry(0), list(0))));
        assert!(Arc::ptr_eq(&first, &held.get(&entry(0)).unwrap()));
        for n in 1..10_000 {
            drop(held.share(entry(n), list(1)));
        }
        assert!(held.lists.len() < 200, "{}", held.lists.len());
        assert!(held.get(&entry(0)).is_some() && held.get(&entry(1)).is_none());
    }
}
