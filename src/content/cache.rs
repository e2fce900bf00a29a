//! The cache: what is held, who may have it, and what goes.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::buffers::Buffers;
use super::folder::{Folder, OpenError, Stamp};
use super::index::{Index, Known};
use super::underway::Underway;
use super::vouchers::{Voucher, Vouchers};
use crate::metrics::Metrics;
use crate::protocol::{Hasher, Sha256};

/// How long nothing is written after the disk refused something.
const REST: Duration = Duration::from_secs(5);
/// Objects hashed at once on their first use.
const HASHING: usize = 2;
/// What a file is hashed in parts of.
const PART: usize = 256 * 1024;

/// Verified bytes on disk, by hash, the least recently used removed when they are too many.
#[derive(Debug)]
pub struct Cache {
    pub(super) folder: Folder,
    index: Mutex<Index>,
    /// What is being written.
    pub(super) writing: Mutex<HashMap<Sha256, Arc<Underway>>>,
    /// Bytes that wait to be written, over all objects.
    pub(super) queued: AtomicUsize,
    pub(super) next_unfinished: AtomicU64,
    /// Places for objects that are hashed on first use: a large one costs seconds of a processor, and anybody who may read
    /// it may ask for it as often as they like meanwhile.
    pub(super) hashing: Semaphore,
    /// What objects are read into.
    pub(super) buffers: Arc<Buffers>,
    pub(super) rest: Mutex<Rest>,
    /// Cancelled once what an earlier process left is counted.
    counted: CancellationToken,
    pub(super) tracker: TaskTracker,
    pub(super) metrics: Arc<Metrics>,
}

/// Whether the disk is left alone.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Nothing is written before.
    pub(super) until: Option<Instant>,
    /// It has refused something and taken nothing since.
    refused: bool,
}

/// An object, and who is asked to have served it.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Its name.
    pub sha256: Sha256,
    /// Its length, in bytes, as announced.
    pub length: u64,
    /// The agents whose announcements of it the caller may read.
    pub agents: &'a [Voucher],
}

impl Cache {
    /// Every series from the start, also where there is no cache.
    pub fn touch_metrics(metrics: &Metrics) {
        for outcome in ["found", "absent", "not_served"] {
            let _ = metrics.cache_lookups.with_label_values(&[outcome]);
        }
        for outcome in ["kept", "dropped", "slow", "failed"] {
            let _ = metrics.cache_writes.with_label_values(&[outcome]);
        }
        for outcome in ["over", "given_up"] {
            let _ = metrics.cache_waits.with_label_values(&[outcome]);
        }
    }

    /// Opens the folder at `path`, making it where there is none, for about `limit` bytes. What is in it is counted in the
    /// background, on `tracker`.
    ///
    /// # Errors
    /// Another process uses the folder, or it cannot be used at all.
    pub fn open(path: &Path, limit: u64, metrics: Arc<Metrics>, tracker: TaskTracker) -> Result<Arc<Self>, OpenError> {
        let cache = Arc::new(Self {
            folder: Folder::open(path)?,
            index: Mutex::new(Index::new(limit)),
            writing: Mutex::default(),
            queued: AtomicUsize::new(0),
            next_unfinished: AtomicU64::new(0),
            hashing: Semaphore::new(HASHING),
            buffers: Arc::default(),
            rest: Mutex::default(),
            counted: CancellationToken::new(),
            tracker,
            metrics,
        });
        let counted = Arc::clone(&cache);
        cache.tracker.spawn_blocking(move || counted.take_stock());
        Ok(cache)
    }

    /// Whether a process has the folder that `path` names. Leaves no trace.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn is_in_use(path: &Path) -> Result<bool, OpenError> {
        Folder::is_in_use(path)
    }

    /// Lets another process have the folder, once nothing is read or written here any more.
    pub fn close(&self) {
        if let Err(error) = self.folder.unlock() {
            tracing::warn!(%error, "the cache stays locked until this process ends");
        }
    }

    /// Whether an object is held, by its name alone.
    pub fn holds(&self, sha256: &Sha256) -> bool {
        let held = self.index().contains(sha256);
        if !held {
            self.count_lookup("absent");
        }
        held
    }

    /// Notes that `agent` has served an object, verified, that may be held already.
    pub fn vouch(self: &Arc<Self>, sha256: Sha256, length: u64, agent: Voucher) {
        let known = self.index().look_up(&sha256).and_then(|known| known.cloned());
        // Who served what has not been hashed yet is noted when it serves it again.
        let Some(mut known) = known.filter(|known| known.length == length) else { return };
        if !known.vouchers.add(agent) || self.is_resting() {
            return;
        }
        let cache = Arc::clone(self);
        self.tracker.spawn_blocking(move || {
            let append = || {
                let mut file = cache.folder.append(&sha256)?;
                if Stamp::of(&file)? == known.stamp {
                    io::Write::write_all(&mut file, agent.as_bytes())?;
                    known.stamp = Stamp::of(&file)?;
                    cache.index().learn(&sha256, known);
                }
                Ok(())
            };
            append().unwrap_or_else(|error: io::Error| cache.rest(&error));
        });
    }

    /// The file of an object, hashed in this process's life as it is now. `None` where none of the agents has served it.
    pub(super) fn open_verified(
        &self,
        wanted: &Wanted<'_>,
        known: Option<&Known>,
    ) -> io::Result<Option<(File, Stamp)>> {
        let mut file = self.folder.read(&wanted.sha256)?;
        let stamp = Stamp::of(&file)?;
        if known.is_some_and(|known| known.stamp == stamp) {
            return Ok(Some((file, stamp)));
        }
        // Before it is hashed: how long an answer takes must not tell a stranger what is held.
        let vouchers = read_vouchers(&mut file, stamp, wanted.length)?;
        if !vouchers.include_any(wanted.agents) {
            return Ok(None);
        }
        if hash(&mut file, wanted.length)? != wanted.sha256 {
            self.metrics.cache_spoilt.inc();
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its bytes do not have its hash"));
        }
        self.index().learn(&wanted.sha256, Known { length: wanted.length, stamp, vouchers });
        Ok(Some((file, stamp)))
    }

    /// The file of an object that was hashed in this process's life, where it can be had without waiting for the disk and is
    /// as it was then.
    pub(super) fn open_now(&self, sha256: &Sha256, known: &Known) -> Option<(File, Stamp)> {
        let file = self.folder.read_now(sha256)?;
        let stamp = Stamp::of(&file).ok()?;
        (known.stamp == stamp).then_some((file, stamp))
    }

    /// Whether a file that was opened as `stamp` still holds what was hashed: it is as it was then, or as it was made since.
    pub(super) fn is_sound(&self, sha256: &Sha256, opened: Stamp, now: Stamp) -> bool {
        now == opened || self.index().look_up(sha256).flatten().is_some_and(|known| known.stamp == now)
    }

    /// Takes in a finished object for which `cost` was kept free, and removes what must go for it.
    pub(super) fn take_in(&self, sha256: Sha256, known: Known, cost: u64) {
        {
            let mut index = self.index();
            index.release(cost);
            index.insert(sha256, known.stamp.bytes, Some(known));
        }
        self.end_writing(&sha256);
        self.recover();
        self.evict();
    }

    /// Forgets an object and removes its file.
    pub(super) fn forget(&self, sha256: &Sha256) {
        self.index().remove(sha256);
        if let Err(error) = self.folder.remove(sha256) {
            tracing::warn!(%sha256, %error, "an object of the cache cannot be removed");
        }
        self.gauge();
    }

    /// An object will not be written, and what was kept free for it is free again.
    pub(super) fn give_back(&self, sha256: &Sha256, cost: u64) {
        self.index().release(cost);
        self.end_writing(sha256);
    }

    /// After the object was taken in: who looks for it finds it here or there.
    fn end_writing(&self, sha256: &Sha256) {
        let underway = lock(&self.writing).remove(sha256);
        underway.inspect(|underway| underway.end());
    }

    /// The disk refused something: it is left alone for a while, and transfers go on without the cache. Where it is full, a
    /// part of what is here makes room: it is others' disk too.
    pub(super) fn rest(&self, error: &io::Error) {
        let begins = {
            let (mut rest, now) = (lock(&self.rest), Instant::now());
            if !std::mem::replace(&mut rest.refused, true) {
                tracing::warn!(%error, rest_s = REST.as_secs(),
                    "the cache cannot be written: transfers go on without it, and it is tried again from time to time");
                self.metrics.cache_refused.set(1);
            }
            let begins = rest.until.is_none_or(|until| until <= now);
            rest.until = Some(now + REST);
            begins
        };
        if begins && matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            let shrunk = self.index().shrink();
            self.remove_evicted(&shrunk);
        }
    }

    /// The disk took something.
    fn recover(&self) {
        if std::mem::take(&mut lock(&self.rest).refused) {
            tracing::info!("the cache is written again");
            self.metrics.cache_refused.set(0);
        }
    }

    pub(super) fn is_resting(&self) -> bool {
        lock(&self.rest).until.is_some_and(|until| Instant::now() < until)
    }

    /// Every object that is held, by its name, once they are counted.
    pub async fn names(&self) -> HashSet<Sha256> {
        self.counted.cancelled().await;
        self.index().names().copied().collect()
    }

    /// Removes objects, which may be read meanwhile: who has begun to read one reads it to its end. May block.
    pub fn remove(&self, names: &[Sha256]) {
        names.iter().for_each(|sha256| self.forget(sha256));
    }

    /// Counts what an earlier process left.
    fn take_stock(&self) {
        match self.folder.walk() {
            Ok(found) => {
                let mut index = self.index();
                for object in found {
                    // What was written since the walk began is known better.
                    if !index.contains(&object.sha256) {
                        index.insert(object.sha256, object.bytes, None);
                    }
                }
                drop(index);
                self.evict();
            }
            Err(error) => tracing::warn!(%error, "the cache cannot be counted: what it holds is not used"),
        }
        self.counted.cancel();
    }

    pub(super) fn evict(&self) {
        let evicted = self.index().evict();
        self.remove_evicted(&evicted);
    }

    fn remove_evicted(&self, evicted: &[Sha256]) {
        self.metrics.cache_evicted.inc_by(evicted.len() as u64);
        for sha256 in evicted {
            if let Err(error) = self.folder.remove(sha256) {
                tracing::warn!(%sha256, %error, "an object of the cache cannot be removed");
            }
        }
        self.gauge();
    }

    fn gauge(&self) {
        let (used, objects) = {
            let index = self.index();
            (index.used(), index.len())
        };
        self.metrics.cache_bytes.set(i64::try_from(used).unwrap_or(i64::MAX));
        self.metrics.cache_objects.set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    pub(super) fn count_lookup(&self, outcome: &str) {
        self.metrics.cache_lookups.with_label_values(&[outcome]).inc();
    }

    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }
}

impl Known {
    pub(super) fn is_for(&self, wanted: &Wanted<'_>) -> bool {
        self.length == wanted.length && self.vouchers.include_any(wanted.agents)
    }
}

/// What stands behind the object's own bytes. Where that is nobody, or was cut, nobody can be added either: the object is
/// read anew.
fn read_vouchers(file: &mut File, stamp: Stamp, length: u64) -> io::Result<Vouchers> {
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(length))?;
    file.take(Vouchers::most_bytes() as u64).read_to_end(&mut tail)?;
    let vouchers = Vouchers::parse(&tail);
    let is_whole = stamp.bytes.saturating_sub(length).is_multiple_of(Voucher::BYTES as u64);
    if vouchers.is_empty() || !is_whole {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it does not say who has served it"));
    }
    Ok(vouchers)
}

/// The hash of the first `length` bytes.
fn hash(file: &mut File, length: u64) -> io::Result<Sha256> {
    let (mut hasher, mut left, mut part) = (Hasher::default(), length, vec![0; PART]);
    file.seek(SeekFrom::Start(0))?;
    while left > 0 {
        let most = usize::try_from(left).map_or(PART, |left| left.min(PART));
        file.read_exact(&mut part[..most])?;
        hasher.update(&part[..most]);
        left -= most as u64;
    }
    Ok(hasher.finish())
}

/// The guard, also after a panic elsewhere: every change under these locks is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
