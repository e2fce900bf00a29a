//! The credit of one link, as something that several feeds share and are woken for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use futures_util::task::AtomicWaker;

use crate::protocol::Principal;
use crate::read::{Held, Share, Sharer, Shares};

/// The credit shared by those who read from the agents of one control socket.
#[derive(Debug)]
pub struct Credit {
    shares: Mutex<Shares<Principal>>,
    bells: DashMap<Sharer, Arc<Bell>>,
}

/// A feed's part in it. Dropping it gives back what it has not granted.
#[derive(Debug)]
pub struct Sharing {
    credit: Arc<Credit>,
    sharer: Sharer,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct Bell {
    rung: AtomicBool,
    waker: AtomicWaker,
}

impl Credit {
    /// Nobody shares it yet; at most so many bytes a second are asked for with it.
    pub fn new(bytes_per_second: Option<u64>) -> Arc<Self> {
        Arc::new(Self { shares: Mutex::new(Shares::new(bytes_per_second)), bells: DashMap::new() })
    }

    /// A feed comes.
    pub fn enter(self: &Arc<Self>) -> Sharing {
        let (sharer, bell) = (self.lock().enter(Instant::now()), Arc::<Bell>::default());
        self.bells.insert(sharer, bell.clone());
        Sharing { credit: self.clone(), sharer, bell }
    }

    /// What the rate holds back from everybody now.
    pub fn held(&self, now: Instant) -> Option<Held> {
        self.lock().held(now)
    }

    fn lock(&self) -> MutexGuard<'_, Shares<Principal>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, sharers: Vec<Sharer>) {
        for sharer in sharers {
            let bell = self.bells.get(&sharer).map(|bell| bell.value().clone());
            if let Some(bell) = bell {
                bell.rung.store(true, Ordering::Release);
                bell.waker.wake();
            }
        }
    }
}

impl Sharing {
    /// Whether it is a part of this credit.
    pub fn is_of(&self, credit: &Arc<Credit>) -> bool {
        Arc::ptr_eq(&self.credit, credit)
    }

    /// Says that `out` frames are on their way, and asks for `wanted` more for these readers.
    pub fn ask(&self, readers: &[Principal], (out, wanted): (u32, u32), now: Instant) -> Share {
        let (share, woken) = self.credit.lock().ask(self.sharer, readers, (out, wanted), now);
        self.credit.wake(woken);
        share
    }

    /// Bytes came, perhaps with a new measure of the round-trip time.
    pub fn came(&self, bytes: u64, round_trip: Option<Duration>, now: Instant) {
        self.credit.lock().came(self.sharer, bytes, round_trip, now);
    }

    /// Ready when there may be something of what was asked for and not given.
    pub fn poll_rung(&self, cx: &Context<'_>) -> Poll<()> {
        self.bell.waker.register(cx.waker());
        if self.bell.rung.swap(false, Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.credit.bells.remove(&self.sharer);
        let woken = self.credit.lock().leave(self.sharer, Instant::now());
        self.credit.wake(woken);
    }
}
