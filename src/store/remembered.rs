//! Answers of the store that are remembered until a write may have changed them.

use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use super::{Store, StoreError};
use crate::protocol::ChatId;

/// How long an answer lives at most. The generation sees only the writes of this process whose end this process saw.
const TIME_TO_LIVE: Duration = Duration::from_secs(30);

/// How much an answer weighs; none for one that is not remembered.
type Weigh<K, V> = fn(&K, &V) -> Option<u32>;

/// About how many bytes a list of chats takes: each credential that is parsed has one of its own.
pub fn weight_of(chats: &[ChatId]) -> usize {
    chats.iter().map(|chat| 40 + chat.as_str().len()).sum()
}

#[derive(Clone)]
struct Kept<V> {
    /// The store's, from before the question.
    generation: u64,
    answer: V,
}

/// Answers to questions, each with one of the store's generations from before it was asked for: once that has moved, the
/// answer is void. Clones share them.
#[derive(Clone)]
pub struct Remembered<K: Hash + Eq + Send + Sync + 'static, V: Clone + Send + Sync + 'static> {
    cache: moka::sync::Cache<K, Kept<V>>,
    weigh: Weigh<K, V>,
    generation: fn(&Store) -> u64,
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Clone + Send + Sync + 'static> fmt::Debug for Remembered<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remembered").field("count", &self.cache.entry_count()).finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Clone + Send + Sync + 'static> Remembered<K, V> {
    /// Nothing yet, and later answers that weigh about `capacity` together at most. `generation` moves with every write
    /// that may change them: [`Store::generation`] or [`Store::withdrawals`].
    pub fn new(capacity: u64, weigh: Weigh<K, V>, generation: fn(&Store) -> u64) -> Self {
        let cache = moka::sync::Cache::builder()
            .max_capacity(capacity)
            .weigher(move |key: &K, kept: &Kept<V>| weigh(key, &kept.answer).unwrap_or(0))
            .time_to_live(TIME_TO_LIVE)
            .build();
        Self { cache, weigh, generation }
    }

    /// The remembered answer, if it is as good as a new one.
    pub fn known(&self, store: &Store, key: &K) -> Option<V> {
        let kept = self.cache.get(key)?;
        (kept.generation == (self.generation)(store)).then_some(kept.answer)
    }

    /// The remembered answer, or else the one that `ask` gets. A failure is not remembered.
    ///
    /// # Errors
    /// The failure of `ask`.
    pub async fn answer(
        &self,
        store: &Store,
        key: K,
        ask: impl Future<Output = Result<V, StoreError>>,
    ) -> Result<V, StoreError> {
        // Read before asking: a write that ends in between leaves an answer that is void from the start.
        let generation = (self.generation)(store);
        if let Some(known) = self.known(store, &key) {
            return Ok(known);
        }
        let answer = ask.await?;
        if (self.weigh)(&key, &answer).is_some() {
            self.cache.insert(key, Kept { generation, answer: answer.clone() });
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    async fn store(folder: &tempfile::TempDir) -> Store {
        let url = format!("sqlite://{}/sluice.db", folder.path().display());
        Store::open(&url, StoreOptions::default()).await.unwrap()
    }

    #[tokio::test]
    async fn an_answer_is_void_once_something_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        let remembered: Remembered<&str, u32> = Remembered::new(100, |_, _| Some(1), Store::generation);
        let ask = async |answer: u32| remembered.answer(&store, "key", async move { Ok(answer) }).await.unwrap();
        assert_eq!([ask(1).await, ask(2).await], [1, 1]);
        store.put_chat(&"c1".parse().unwrap(), None, &[]).await.unwrap();
        assert_eq!([ask(3).await, ask(4).await], [3, 3]);
        // A write that ends between the question and its answer: the answer may be from before.
        let slow = remembered.answer(&store, "other", async {
            store.delete_chat(&"c1".parse().unwrap()).await?;
            Ok(5)
        });
        assert_eq!(slow.await.unwrap(), 5);
        assert_eq!(remembered.answer(&store, "other", async { Ok(6) }).await.unwrap(), 6);
    }

    #[tokio::test]
    async fn failures_and_what_has_no_weight_are_not_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        let remembered: Remembered<&str, Option<u32>> =
            Remembered::new(100, |_, answer| answer.map(|_| 1), Store::generation);
        let failed = async { Err(StoreError::Unavailable("away".to_owned())) };
        assert!(remembered.answer(&store, "key", failed).await.is_err());
        for answer in [None, Some(1), Some(1)] {
            assert_eq!(remembered.answer(&store, "key", async { Ok(answer) }).await.unwrap(), answer);
        }
        assert_eq!(remembered.answer(&store, "key", async { Ok(Some(2)) }).await.unwrap(), Some(1));
    }

    #[tokio::test]
    async fn what_is_remembered_weighs_so_much_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        let remembered: Remembered<u32, u32> = Remembered::new(100, |_, _| Some(10), Store::generation);
        for key in 0..1000 {
            remembered.answer(&store, key, async { Ok(key) }).await.unwrap();
        }
        remembered.cache.run_pending_tasks();
        assert!(remembered.cache.weighted_size() <= 100);
    }
}
