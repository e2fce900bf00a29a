//! Everything that outlives the process: chats, participants, agents' names, endpoints and keys, nonces, sessions,
//! manifests, announcements, files and their versions, browsers, sign-in codes, links, the audit, which token secrets there
//! were.
//!
//! This is the only module with SQL. One set of statements and migrations runs on SQLite and on Postgres through sqlx's
//! `Any` driver, which knows neither booleans of SQLite nor timestamps, JSON and arrays of Postgres. Hence the
//! restriction: **columns are TEXT, BIGINT or BYTEA; times are Unix milliseconds in BIGINT; JSON is TEXT; there is no
//! BOOLEAN; lists in a query are spelled out as placeholders.** What differs between the two lives in `dialect`.
//!
//! Queries end in bounded time. A database that is away makes them fail with [`StoreError::Unavailable`], and they work
//! again once it is back. A write runs as a task of its own, so that a caller that goes away cannot leave it half done,
//! and every write that may change who can read what moves [`Store::generation`] on after its commit.
//!
//! It must not decide what a caller may be told: that is `access`'s.

mod agents;
mod announcements;
mod audit;
mod browsers;
mod chats;
mod cursor;
mod dialect;
mod endpoints;
mod entries;
mod error;
mod hashes;
mod health;
mod keys;
mod links;
mod listed;
mod lock;
mod manifests;
mod names;
mod nonces;
mod offers;
mod open;
mod options;
#[cfg(test)]
mod plans;
mod quota;
mod ranks;
mod remembered;
mod retention;
mod rows;
mod search;
mod secrets;
mod sessions;
mod sets;
mod target;
#[cfg(test)]
#[path = "../../tests/support/db.rs"]
pub(crate) mod test_database;
#[cfg(test)]
mod tests;
mod versions;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use sqlx::{Any, AnyPool, Transaction};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::lock::Lock;

pub use agents::{AgentRecord, Claim};
pub use announcements::{Announced, Commit, NewAnnouncement, NewSet, Order};
pub use audit::{ReadFilter, ReadRecord};
pub use browsers::BrowserRecord;
pub use chats::{Added, Chat, ListedChat};
pub use cursor::{Cursor, InvalidCursor, Page};
pub use error::StoreError;
pub use keys::{Continuity, HeldKey};
pub use links::{LinkAdded, LinkFilter, LinkRecord};
pub use listed::Listed;
pub use manifests::Held;
pub use names::TooManyNames;
pub use nonces::Nonce;
pub use offers::{ManifestOffer, Offer, Place, TaskOffer};
pub use open::Migrated;
pub use options::{OpenError, StoreOptions};
pub use quota::{Amount, Exceeded, Quota, Unbound};
pub use remembered::{Remembered, weight_of};
pub use retention::Outdated;
pub use search::{Scope, TaskRule};
pub use sessions::{Binding, Session};
pub use sets::{EntryRecord, SetRecord};
pub use versions::{FileId, InvalidFileId, VersionRecord};

use dialect::Dialect;

/// A write of more rows than this waits for its turn.
const LARGE_ROWS: u64 = 500;
/// Bits of an id that are not its time.
const ID_RANDOM_BITS: u32 = 21;

/// The least id of a moment. The last millisecond is left for ids that have to follow others.
fn first_id(unix_millis: i64) -> i64 {
    unix_millis.clamp(0, (1 << 42) - 2) << ID_RANDOM_BITS
}

/// The database. Clones share it.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dialect: Dialect,
    /// One connection on SQLite, which has one writer; the same pool as `reader` on Postgres.
    writer: AnyPool,
    reader: AnyPool,
    /// A connection that nobody else waits for: whether the database answers is not whether it has much to do.
    health: AnyPool,
    /// Turns of writes of many rows, so that small ones never wait for more than a few of them.
    large: Semaphore,
    /// SQLite's only.
    file: Option<health::DatabaseFile>,
    /// Held by a gateway that has its file to itself.
    lock: Option<Lock>,
    operation_timeout: Duration,
    quota: Quota,
    clock: Clock,
    tasks: TaskTracker,
    generation: AtomicU64,
    /// Writes that changed something and were committed.
    written: AtomicU64,
    withdrawals: AtomicU64,
    revocations: watch::Sender<u64>,
    last_id: AtomicI64,
    /// Questions asked so far, for tests that hold two answers to the same number of them.
    #[cfg(test)]
    asked: AtomicU64,
}

impl Store {
    /// Counts the writes of this process that may have changed who can read what. Whoever remembers an answer reads
    /// the generation *before* asking, and drops the answer once the generation has moved.
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::SeqCst)
    }

    /// The same for the writes that may have ended something that was handed out: a browser's cookie, a link.
    pub fn withdrawals(&self) -> u64 {
        self.0.withdrawals.load(Ordering::SeqCst)
    }

    /// The time by which rows are dated, Unix milliseconds.
    pub fn now(&self) -> i64 {
        self.0.clock.unix_millis()
    }

    /// Changes when a write of this process may have taken access away from somebody.
    pub fn revocations(&self) -> watch::Receiver<u64> {
        self.0.revocations.subscribe()
    }

    /// Waits for writes that are under way, then closes every connection. Later queries are `Unavailable`.
    pub async fn close(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.writer.close().await;
        self.0.reader.close().await;
        self.0.health.close().await;
        self.0.lock.iter().for_each(lock::release);
    }

    /// Runs a query to its end, or to the end of its time.
    async fn bounded<T>(&self, query: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, StoreError> {
        #[cfg(test)]
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        match tokio::time::timeout(self.0.operation_timeout, query).await {
            Ok(answer) => answer.map_err(|error| self.0.dialect.error(error)),
            Err(_) => Err(StoreError::Unavailable("the database did not answer in time".to_owned())),
        }
    }

    /// Runs a write to its end whether or not its caller still waits, then moves the generation on: also after a
    /// failure, for a commit whose answer was lost may have happened.
    async fn write<T: Send + 'static>(
        &self,
        write: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_if(write, |_| true).await
    }

    /// The same for a write whose outcome tells whether it changed anything. Whoever may ask for such a write as often as
    /// they like would otherwise make every remembered answer void.
    async fn write_if<T: Send + 'static>(
        &self,
        write: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
        changed: impl FnOnce(&T) -> bool + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_and(write, changed, |store, is_written| {
            store.0.generation.fetch_add(1, Ordering::SeqCst);
            store.0.written.fetch_add(is_written.into(), Ordering::Relaxed);
        })
        .await
    }

    /// The same for what was handed out, which has a generation of its own: who signs in and out, and who ends links,
    /// changes nothing about what others may read.
    async fn withdraw<T: Send + 'static>(
        &self,
        write: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
        changed: impl FnOnce(&T) -> bool + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_and(write, changed, |store, _| {
            store.0.withdrawals.fetch_add(1, Ordering::SeqCst);
        })
        .await
    }

    /// Runs a write to its end, and where it may have changed something what `moves` a generation on, which is told whether
    /// it was written.
    async fn write_and<T: Send + 'static>(
        &self,
        write: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
        changed: impl FnOnce(&T) -> bool + Send + 'static,
        moves: impl FnOnce(&Self, bool) + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        self.run_to_its_end(async move {
            let outcome = store.bounded(write).await;
            if outcome.as_ref().map_or(true, changed) {
                moves(&store, outcome.is_ok());
            }
            outcome
        })
        .await
    }

    /// The same for a write that may take access away from somebody.
    async fn revoke<T: Send + 'static>(
        &self,
        write: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        self.run_to_its_end(async move {
            let outcome = store.write(write).await;
            store.0.revocations.send_modify(|count| *count += 1);
            outcome
        })
        .await
    }

    /// The same for a write that changes nothing about who can read what: answers that were remembered stay good.
    async fn note<T: Send + 'static>(
        &self,
        write: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        self.run_to_its_end(async move { store.bounded(write).await }).await
    }

    async fn run_to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let task = self.0.tasks.spawn(work);
        task.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the write was broken off".to_owned())))
    }

    #[cfg(test)]
    pub(crate) fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::Relaxed)
    }

    async fn begin(&self) -> Result<Transaction<'static, Any>, sqlx::Error> {
        self.0.writer.begin_with(self.0.dialect.begin()).await
    }

    /// Moves what was committed from SQLite's log into its file, beside everybody else: at the end of a commit it would be
    /// part of somebody's write. What fails is left for the next time.
    fn checkpoint(&self) {
        let Some(statement) = self.0.dialect.checkpoint() else { return };
        let store = self.clone();
        self.0.tasks.spawn(async move {
            let moved = sqlx::query(statement).execute(&store.0.reader);
            let _ = tokio::time::timeout(store.0.operation_timeout, moved).await;
        });
    }

    /// Waits for the turn of a write of so many rows. Without it, agents that announce huge sets would fill the queue for
    /// the database, in which everybody else's small writes stand as well.
    async fn turn(&self, rows: u64) -> Option<SemaphorePermit<'_>> {
        // Never closed, so the error does not come.
        if rows > LARGE_ROWS { self.0.large.acquire().await.ok() } else { None }
    }

    /// A new id: 42 bits of milliseconds and 21 random ones, growing within a process and unlikely to meet another
    /// process's. (`Any` has no way to let both databases choose one.)
    fn next_id(&self) -> i64 {
        self.next_ids(1)
    }

    /// The first of `count` new ids in a row.
    fn next_ids(&self, count: u64) -> i64 {
        let random = i64::from(rand::random::<u32>() >> (u32::BITS - ID_RANDOM_BITS));
        let candidate = first_id(self.0.clock.unix_millis()) | random;
        let more = i64::try_from(count).unwrap_or(i64::MAX).max(1) - 1;
        let next = |last: i64| Some(candidate.max(last.saturating_add(1)).saturating_add(more));
        // The closure always answers, so the update cannot fail; both arms hold the previous value.
        let last = match self.0.last_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(last) | Err(last) => last,
        };
        candidate.max(last.saturating_add(1))
    }
}
