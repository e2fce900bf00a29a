//! The cache: what is held, who may have it, and what goes.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::folder::{Folder, OpenError, Stamp};
use super::index::{Index, Known};
use super::vouchers::{Voucher, Vouchers};
use crate::metrics::Metrics;
use crate::protocol::{Hasher, Sha256};

/// How long nothing is written after the disk refused something.
const REST: Duration = Duration::from_secs(30);
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
    pub(super) writing: Mutex<HashSet<Sha256>>,
    /// Bytes that wait to be written, over all objects.
    pub(super) queued: AtomicUsize,
    pub(super) next_unfinished: AtomicU64,
    /// Places for objects that are hashed on first use: a large one costs seconds of a processor, and anybody who may read
    /// it may ask for it as often as they like meanwhile.
    pub(super) hashing: Semaphore,
    /// Nothing is written before.
    resting_until: Mutex<Option<Instant>>,
    pub(super) tracker: TaskTracker,
    pub(super) metrics: Arc<Metrics>,
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
            resting_until: Mutex::default(),
            tracker,
            metrics,
        });
        let counted = Arc::clone(&cache);
        cache.tracker.spawn_blocking(move || counted.take_stock());
        Ok(cache)
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
        let vouchers = read_vouchers(&mut file, wanted.length)?;
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

    /// Whether a file that was opened as `stamp` still holds what was hashed: it is as it was then, or as it was made since.
    pub(super) fn is_sound(&self, sha256: &Sha256, opened: Stamp, now: Stamp) -> bool {
        now == opened || self.index().look_up(sha256).flatten().is_some_and(|known| known.stamp == now)
    }

    /// Takes in a finished object, and removes what must go for it.
    pub(super) fn take_in(&self, sha256: Sha256, known: Known) {
        self.index().insert(sha256, known.stamp.bytes, Some(known));
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

    /// An object is not being written any more, and what was kept free for it is free again.
    pub(super) fn written(&self, sha256: &Sha256, cost: u64) {
        self.index().release(cost);
        lock(&self.writing).remove(sha256);
    }

    /// The disk refused something: it is left alone for a while, and transfers go on without the cache.
    pub(super) fn rest(&self, error: &io::Error) {
        let mut resting = lock(&self.resting_until);
        if resting.is_none_or(|until| until <= Instant::now()) {
            tracing::warn!(%error, rest_s = REST.as_secs(), "the cache cannot be written: transfers go on without it");
        }
        *resting = Some(Instant::now() + REST);
    }

    pub(super) fn is_resting(&self) -> bool {
        lock(&self.resting_until).is_some_and(|until| Instant::now() < until)
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
    }

    fn evict(&self) {
        let evicted = self.index().evict();
        self.metrics.cache_evicted.inc_by(evicted.len() as u64);
        for sha256 in evicted {
            if let Err(error) = self.folder.remove(&sha256) {
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

/// What stands behind the object's own bytes.
fn read_vouchers(file: &mut File, length: u64) -> io::Result<Vouchers> {
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(length))?;
    file.take(Vouchers::most_bytes() as u64).read_to_end(&mut tail)?;
    Ok(Vouchers::parse(&tail))
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
