//! How many fetches run at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many fetches run at once; one more waits, as long as its timeout allows.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// In all.
    pub total: usize,
    /// To one host name.
    pub per_host: usize,
}

/// Names of hosts that are kept although nobody may be using them.
const SPARE_HOSTS: usize = 64;

/// Those who share bounds.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    bounds: Bounds,
    total: Arc<Semaphore>,
    hosts: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

/// A place among those who fetch, given up when it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    _host: Option<OwnedSemaphorePermit>,
    _total: Option<OwnedSemaphorePermit>,
}

impl Lane {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, total: Arc::new(Semaphore::new(bounds.total)), hosts: Arc::default() }
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Waits for a place. The host's comes first, so that those who wait for a slow host take nobody else's.
    pub(super) async fn enter(&self, host: &str) -> Permit {
        let of_host = self.host(host);
        // The semaphores are never closed, so both are there once they are due.
        let host = of_host.acquire_owned().await.ok();
        let total = Arc::clone(&self.total).acquire_owned().await.ok();
        Permit { _host: host, _total: total }
    }

    /// The semaphore of a host. It lives as long as somebody holds a place of it or waits for one.
    fn host(&self, host: &str) -> Arc<Semaphore> {
        let mut hosts = self.lock();
        if let Some(held) = hosts.get(host).and_then(Weak::upgrade) {
            return held;
        }
        if hosts.len() >= SPARE_HOSTS {
            hosts.retain(|_, held| held.strong_count() > 0);
        }
        let made = Arc::new(Semaphore::new(self.bounds.per_host));
        hosts.insert(host.to_owned(), Arc::downgrade(&made));
        made
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Weak<Semaphore>>> {
        // Nothing can panic while it is held, and no half-made state could follow from it.
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_host_that_is_used_up_keeps_out_nobody_else() {
        let lane = Lane::new(Bounds { total: 2, per_host: 1 });
        let slow = lane.enter("slow.example").await;
        let mut next = Box::pin(lane.enter("slow.example"));
        assert!((&mut next).now_or_never().is_none());
        let other = lane.enter("other.example").now_or_never().unwrap();
        assert!(lane.enter("third.example").now_or_never().is_none(), "the total is used up");
        drop((slow, other));
        assert!((&mut next).now_or_never().is_some());
    }

    #[tokio::test]
    async fn hosts_that_nobody_uses_are_forgotten() {
        let lane = Lane::new(Bounds { total: 2, per_host: 1 });
        let held = lane.enter("held.example").await;
        for number in 0..1000 {
            drop(lane.enter(&format!("{number}.example")).await);
        }
        assert!(lane.lock().len() <= SPARE_HOSTS);
        assert!(lane.enter("held.example").now_or_never().is_none());
        drop(held);
    }
}
