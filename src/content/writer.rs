//! An object that is taken in while it is verified.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::cache::{Cache, lock};
use super::folder::Stamp;
use super::index::Known;
use super::underway::Underway;
use super::vouchers::{Voucher, Vouchers};
use crate::protocol::Sha256;

/// Bytes that may wait to be written, over all objects: with a slower disk than that some are not kept.
const QUEUE: usize = 16 * 1024 * 1024;
/// What a piece counts for at least, so that an agent that sends tiny frames does not fill the queue with steps.
const PIECE_COST: usize = 4 * 1024;

/// Takes an object's bytes, in order. Dropped before it is kept, it leaves nothing behind.
///
/// Nothing here waits for the disk. One that is too slow, full or broken ends the writing, and the bytes are not kept.
#[derive(Debug)]
pub struct Writer {
    sink: Arc<Sink>,
    /// Bytes that have not come yet.
    missing: u64,
    kept: bool,
}

/// What the transfer's side and the writing thread share.
#[derive(Debug)]
struct Sink {
    cache: Arc<Cache>,
    sha256: Sha256,
    length: u64,
    cost: u64,
    number: u64,
    underway: Arc<Underway>,
    /// Nothing more is written.
    given_up: AtomicBool,
    queue: Mutex<Queue>,
    /// The file so far, once there is one. Whoever takes the steps has it.
    unfinished: Mutex<Option<(PathBuf, File)>>,
}

#[derive(Debug, Default)]
struct Queue {
    steps: VecDeque<Step>,
    /// A thread is taking the steps.
    running: bool,
}

#[derive(Debug)]
enum Step {
    Append(Bytes),
    Keep(Voucher),
    Drop,
}

impl Cache {
    /// Begins to take in an object while it is verified; `agent` is who serves it, as far as is known. `None` where it is held
    /// or being written already, too large, or the disk has to be left alone.
    pub fn write(self: &Arc<Self>, sha256: Sha256, length: u64, agent: Voucher) -> Option<Writer> {
        if self.is_resting() || self.index().contains(&sha256) {
            return None;
        }
        let mut writing = lock(&self.writing);
        let Entry::Vacant(place) = writing.entry(sha256) else { return None };
        let cost = self.index().reserve(length)?;
        let underway = Arc::clone(place.insert(Arc::new(Underway::new(length, agent))));
        let number = self.next_unfinished.fetch_add(1, Ordering::Relaxed);
        let (given_up, queue, unfinished) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
        let cache = Arc::clone(self);
        let sink = Arc::new(Sink { cache, sha256, length, cost, number, underway, given_up, queue, unfinished });
        Some(Writer { sink, missing: length, kept: false })
    }
}

impl Writer {
    /// Takes the next bytes.
    pub fn append(&mut self, bytes: Bytes) {
        let sink = &self.sink;
        let missing = self.missing.checked_sub(bytes.len() as u64);
        let Some(missing) = missing.filter(|_| !sink.given_up.load(Ordering::Relaxed)) else {
            sink.given_up.store(true, Ordering::Relaxed);
            return;
        };
        self.missing = missing;
        sink.underway.advance(bytes.len() as u64);
        let cost = cost(&bytes);
        let queued = sink.cache.queued.fetch_add(cost, Ordering::Relaxed) + cost;
        if queued > QUEUE {
            sink.cache.queued.fetch_sub(cost, Ordering::Relaxed);
            sink.give_up("slow");
            return;
        }
        sink.push(Step::Append(bytes));
    }

    /// The reader for whom the bytes come leaves no room for more of them, or does again.
    pub fn hold_up(&self, held_up: bool) {
        self.sink.underway.hold_up(held_up);
    }

    /// The bytes are all there and have the object's hash, and all of them came from `agent`.
    pub fn keep(mut self, agent: Voucher) {
        if self.missing == 0 && !self.sink.given_up.load(Ordering::Relaxed) {
            self.kept = true;
            self.sink.push(Step::Keep(agent));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.kept {
            self.sink.give_up("dropped");
            self.sink.push(Step::Drop);
        }
    }
}

impl Sink {
    fn push(self: &Arc<Self>, step: Step) {
        let mut queue = lock(&self.queue);
        queue.steps.push_back(step);
        if !std::mem::replace(&mut queue.running, true) {
            let sink = Arc::clone(self);
            drop(queue);
            self.cache.tracker.spawn_blocking(move || sink.run());
        }
    }

    /// Takes the steps that wait, on a thread that may block.
    fn run(&self) {
        let mut unfinished = lock(&self.unfinished);
        loop {
            let step = {
                let mut queue = lock(&self.queue);
                let step = queue.steps.pop_front();
                queue.running = step.is_some();
                step
            };
            match step {
                None => return,
                Some(Step::Append(bytes)) => {
                    self.append(&mut unfinished, &bytes);
                    self.cache.queued.fetch_sub(cost(&bytes), Ordering::Relaxed);
                }
                Some(Step::Keep(agent)) => self.keep(unfinished.take(), agent),
                Some(Step::Drop) => self.discard(unfinished.take()),
            }
        }
    }

    fn append(&self, unfinished: &mut Option<(PathBuf, File)>, bytes: &[u8]) {
        if self.given_up.load(Ordering::Relaxed) {
            return;
        }
        let mut write = || {
            if unfinished.is_none() {
                // Room for it is made before it takes any.
                self.cache.evict();
                *unfinished = Some(self.cache.folder.begin(self.number)?);
            }
            unfinished.as_mut().map_or(Ok(()), |(_, file)| file.write_all(bytes))
        };
        let written = write();
        if let Err(error) = written {
            self.remove(unfinished.take());
            self.fail(&error);
        }
    }

    fn keep(&self, unfinished: Option<(PathBuf, File)>, agent: Voucher) {
        if self.given_up.load(Ordering::Relaxed) {
            return self.discard(unfinished);
        }
        // An object of no bytes has no file yet.
        let begun = unfinished.map_or_else(|| self.cache.folder.begin(self.number), Ok);
        let (path, mut file) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.fail(&error);
                return self.discard(None);
            }
        };
        let mut publish = || {
            file.write_all(agent.as_bytes())?;
            let stamp = Stamp::of(&file)?;
            self.cache.folder.publish(&path, &self.sha256)?;
            Ok(stamp)
        };
        match publish() {
            Ok(stamp) => {
                let mut vouchers = Vouchers::default();
                vouchers.add(agent);
                self.cache.metrics.cache_writes.with_label_values(&["kept"]).inc();
                self.cache.take_in(self.sha256, Known { length: self.length, stamp, vouchers }, self.cost);
            }
            Err(error) => {
                self.remove(Some((path, file)));
                self.fail(&error);
                self.discard(None);
            }
        }
    }

    fn discard(&self, unfinished: Option<(PathBuf, File)>) {
        self.remove(unfinished);
        self.cache.give_back(&self.sha256, self.cost);
    }

    fn remove(&self, unfinished: Option<(PathBuf, File)>) {
        if let Some((path, _)) = unfinished
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "an unfinished object of the cache cannot be removed");
        }
    }

    fn fail(&self, error: &io::Error) {
        self.cache.rest(error);
        self.give_up("failed");
    }

    /// Nothing more is written; counted once.
    fn give_up(&self, outcome: &str) {
        if !self.given_up.swap(true, Ordering::Relaxed) {
            self.cache.metrics.cache_writes.with_label_values(&[outcome]).inc();
            self.underway.end();
        }
    }
}

fn cost(bytes: &Bytes) -> usize {
    bytes.len().max(PIECE_COST)
}
