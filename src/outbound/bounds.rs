//! How many fetches run at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many fetches run at once; one more waits, as long as its timeout and `waiting` allow.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// In all.
    pub total: usize,
    /// To one host name.
    pub per_host: usize,
    /// How many may wait for a place at one host, and sixteen times as many for any; one more is refused at once.
    pub waiting: usize,
    /// Look-ups of names, which go on when nobody waits for them any more.
    pub lookups: usize,
    /// Look-ups of names under one domain.
    pub lookups_per_domain: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { total: 32, per_host: 2, waiting: 1024, lookups: 32, lookups_per_domain: 16 }
    }
}

/// Keys that are kept although nobody may be using them.
const SPARE: usize = 64;
/// Of how many hosts' worth those may be who wait.
const WAITING_HOSTS: usize = 16;

/// Those who share bounds.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    bounds: Bounds,
    total: Arc<Semaphore>,
    hosts: Places,
    queue: Arc<Semaphore>,
    queues: Places,
    lookups: Arc<Semaphore>,
    domains: Places,
}

/// A place among those who fetch, or who look a name up, given up when it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    _of_key: OwnedSemaphorePermit,
    _total: OwnedSemaphorePermit,
}

impl Lane {
    pub(super) fn new(bounds: Bounds) -> Self {
        let semaphore = |places: usize| Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
        Self {
            bounds,
            total: semaphore(bounds.total),
            hosts: Places::new(bounds.per_host),
            queue: semaphore(bounds.waiting.saturating_mul(WAITING_HOSTS)),
            queues: Places::new(bounds.waiting),
            lookups: semaphore(bounds.lookups),
            domains: Places::new(bounds.lookups_per_domain),
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Waits for a place, where not too many wait already. The host's comes first, so that those who wait for a slow host
    /// take nobody else's.
    pub(super) async fn enter(&self, host: &str) -> Option<Permit> {
        let (of_host, total) = (self.hosts.of(host), Arc::clone(&self.total));
        if let (Ok(of_host), Ok(total)) =
            (Arc::clone(&of_host).try_acquire_owned(), Arc::clone(&total).try_acquire_owned())
        {
            return Some(Permit { _of_key: of_host, _total: total });
        }
        let _waiting = self.queues.of(host).try_acquire_owned().ok()?;
        let _among_all = self.queue.try_acquire().ok()?;
        // The semaphores are never closed, so both are there once they are due.
        let of_host = of_host.acquire_owned().await.ok()?;
        let total = total.acquire_owned().await.ok()?;
        Some(Permit { _of_key: of_host, _total: total })
    }

    /// Waits for a place among those who look names up. Those under one domain are one owner's, whose name servers answer
    /// as slowly as they like, so they get a part of the places only.
    pub(super) async fn look_up(&self, host: &str) -> Option<Permit> {
        let of_domain = self.domains.of(domain(host)).acquire_owned().await.ok()?;
        let total = Arc::clone(&self.lookups).acquire_owned().await.ok()?;
        Some(Permit { _of_key: of_domain, _total: total })
    }
}

/// The last two labels of a name: its owner's domain, or that of some neighbours'.
fn domain(host: &str) -> &str {
    let host = host.trim_end_matches('.');
    host.rmatch_indices('.').nth(1).map_or(host, |(dot, _)| &host[dot + 1..])
}

/// So many places for each key. A key's are there as long as somebody holds one or waits for one.
#[derive(Debug, Clone)]
struct Places {
    each: usize,
    held: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

impl Places {
    fn new(each: usize) -> Self {
        Self { each: each.min(Semaphore::MAX_PERMITS), held: Arc::default() }
    }

    fn of(&self, key: &str) -> Arc<Semaphore> {
        let mut all = self.lock();
        if let Some(held) = all.get(key).and_then(Weak::upgrade) {
            return held;
        }
        if all.len() >= SPARE {
            all.retain(|_, held| held.strong_count() > 0);
        }
        let made = Arc::new(Semaphore::new(self.each));
        all.insert(key.to_owned(), Arc::downgrade(&made));
        made
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Weak<Semaphore>>> {
        // Nothing can panic while it is held, and no half-made state could follow from it.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn lane(total: usize, per_host: usize) -> Lane {
        Lane::new(Bounds { total, per_host, ..Bounds::default() })
    }

    #[tokio::test]
    async fn a_host_that_is_used_up_keeps_out_nobody_else() {
        let lane = lane(2, 1);
        let slow = lane.enter("slow.example").await.unwrap();
        let mut next = Box::pin(lane.enter("slow.example"));
        assert!((&mut next).now_or_never().is_none());
        let other = lane.enter("other.example").now_or_never().unwrap();
        assert!(lane.enter("third.example").now_or_never().is_none(), "the total is used up");
        drop((slow, other));
        assert!((&mut next).now_or_never().is_some());
    }

    #[tokio::test]
    async fn whoever_comes_when_too_many_wait_is_told_at_once() {
        let lane = Lane::new(Bounds { total: 8, per_host: 1, waiting: 1, ..Bounds::default() });
        let _slow = lane.enter("slow.example").await.unwrap();
        let mut next = Box::pin(lane.enter("slow.example"));
        assert!((&mut next).now_or_never().is_none(), "one may wait");
        assert!(lane.enter("slow.example").now_or_never().unwrap().is_none(), "and no other");
        assert!(lane.enter("other.example").now_or_never().unwrap().is_some());
        drop(next);
        assert!(lane.enter("slow.example").now_or_never().is_none(), "a place to wait is free again");
    }

    #[tokio::test]
    async fn one_domains_slow_names_keep_out_no_other() {
        let lane = Lane::new(Bounds { lookups: 8, lookups_per_domain: 2, ..Bounds::default() });
        let _held = [lane.look_up("a.slow.example").await, lane.look_up("b.c.slow.example.").await];
        assert!(lane.look_up("slow.example").now_or_never().is_none());
        assert!(lane.look_up("fast.example").now_or_never().unwrap().is_some());
        assert!(lane.look_up("localhost").now_or_never().unwrap().is_some());
    }

    #[tokio::test]
    async fn hosts_that_nobody_uses_are_forgotten() {
        let lane = lane(2, 1);
        let held = lane.enter("held.example").await;
        for number in 0..1000 {
            drop(lane.enter(&format!("{number}.example")).await);
        }
        assert!(lane.hosts.lock().len() <= SPARE);
        assert!(lane.enter("held.example").now_or_never().is_none());
        drop(held);
    }
}
