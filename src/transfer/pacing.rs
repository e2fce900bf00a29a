//! What one transfer, and one reader over all of theirs, may have in a second at most.
//!
//! What is held back is a reader's next bytes, wherever they come from: credit follows what the reader takes, so the agent
//! is slowed too. Nothing waits but a timer, and nobody takes it for a reader that has stopped.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use prometheus::IntCounter;
use tokio::time::{Instant, Sleep};

use super::live::Live;
use crate::read::Rate;

/// What a rate lets through at once, and about how long it holds a reader's bytes back at a time.
const BURST: Duration = Duration::from_millis(125);
/// The least that is held back at a time, in bytes.
const LEAST_SLICE: u64 = 1024;

/// A rate that several transfers share.
pub type SharedRate = Arc<Mutex<Rate>>;

/// A rate of so many bytes a second.
pub fn shared(bytes_per_second: u64) -> SharedRate {
    Arc::new(Mutex::new(Rate::new(bytes_per_second, BURST)))
}

/// Whether nothing has been taken lately.
pub fn is_full(rate: &SharedRate, now: Instant) -> bool {
    lock(rate).is_full(now.into_std())
}

fn lock(rate: &SharedRate) -> std::sync::MutexGuard<'_, Rate> {
    rate.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of one transfer that wait for their time.
#[derive(Debug)]
pub struct Pacing {
    /// Each, and what counts when it holds something back.
    rates: Vec<(SharedRate, IntCounter)>,
    /// How much goes at a time.
    slice: usize,
    waiting: Bytes,
    /// When the next slice goes, once that is known.
    next: Option<Pin<Box<Sleep>>>,
}

impl Pacing {
    /// Under these rates; `None` where there are none.
    pub fn new(rates: Vec<(SharedRate, IntCounter)>) -> Option<Box<Self>> {
        let lowest = rates.iter().map(|(rate, _)| lock(rate).bytes_per_second()).min()?;
        let slice = (lowest / 8).max(LEAST_SLICE);
        let slice = usize::try_from(slice).unwrap_or(usize::MAX);
        Some(Box::new(Self { rates, slice, waiting: Bytes::new(), next: None }))
    }

    /// Takes bytes, once there are none waiting any more.
    pub fn put(&mut self, bytes: Bytes) {
        debug_assert!(self.waiting.is_empty(), "bytes that wait are not to be lost");
        self.waiting = bytes;
    }

    /// The next bytes when it is their time; `None` when none wait.
    pub fn poll(&mut self, cx: &mut Context<'_>, live: &Live) -> Poll<Option<Bytes>> {
        if self.waiting.is_empty() {
            return Poll::Ready(None);
        }
        let len = self.slice.min(self.waiting.len());
        if self.next.is_none()
            && let Some(at) = self.reserve(len as u64)
        {
            self.next = Some(Box::pin(tokio::time::sleep_until(at)));
        }
        if let Some(next) = &mut self.next {
            live.set_held(true);
            ready!(next.as_mut().poll(cx));
            live.set_held(false);
            self.next = None;
        }
        Poll::Ready(Some(self.waiting.split_to(len)))
    }

    /// Takes a slice of every rate: when it may go, where that is not now.
    fn reserve(&self, bytes: u64) -> Option<Instant> {
        let now = Instant::now();
        let mut latest = None;
        for (rate, held) in &self.rates {
            let at = Instant::from_std(lock(rate).reserve(now.into_std(), bytes));
            if at > now && latest.is_none_or(|(latest, _)| at > latest) {
                latest = Some((at, held));
            }
        }
        latest.map(|(at, held)| {
            held.inc();
            at
        })
    }
}
