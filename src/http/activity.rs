//! What runs on connections, and which of them does nothing: it is given up after a while, and makes way for another
//! when there is no place left.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use dashmap::DashMap;
use http_body::{Frame, SizeHint};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a connection has done nothing before it makes way: the request of a new one may be on its way.
const MAKES_WAY_AFTER: Duration = Duration::from_secs(2);

/// The connections of a listener that speak HTTP. One that was upgraded is none of them any more.
#[derive(Debug, Default)]
pub(super) struct Held {
    next: AtomicU64,
    connections: DashMap<u64, (Activity, CancellationToken)>,
}

impl Held {
    pub(super) fn enter(self: &Arc<Self>) -> HeldConnection {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (activity, makes_way) = (Activity::default(), CancellationToken::new());
        self.connections.insert(id, (activity.clone(), makes_way.clone()));
        HeldConnection { activity, makes_way, id, held: Arc::clone(self) }
    }

    /// Ends the connection that has done nothing for longest, where there is one.
    pub(super) fn make_way(&self) {
        let idle = self.connections.iter().filter_map(|connection| {
            let (activity, makes_way) = connection.value();
            let since = activity.idle_since().filter(|_| !makes_way.is_cancelled())?;
            Some((since, makes_way.clone()))
        });
        if let Some((since, makes_way)) = idle.min_by_key(|(since, _)| *since)
            && since.elapsed() >= MAKES_WAY_AFTER
        {
            makes_way.cancel();
        }
    }
}

/// One of them, until this is dropped.
#[derive(Debug)]
pub(super) struct HeldConnection {
    pub(super) activity: Activity,
    /// Cancelled when it is to end, for there is no place left.
    pub(super) makes_way: CancellationToken,
    id: u64,
    held: Arc<Held>,
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        self.held.connections.remove(&self.id);
    }
}

/// What a connection has running.
///
/// Nobody is woken when that changes: requests begin and end while the connection's own task runs, and a task that wakes
/// itself wakes another thread too.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<Mutex<Running>>);

#[derive(Debug)]
struct Running {
    requests: usize,
    /// When the last of them began or ended.
    since: Instant,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Running { requests: 0, since: Instant::now() })))
    }
}

/// A request that runs, to the end of its answer.
#[derive(Debug)]
pub(super) struct RunningRequest(Activity);

impl Activity {
    pub(super) fn begin(&self) -> RunningRequest {
        self.change(|requests| requests + 1);
        RunningRequest(self.clone())
    }

    /// Waits until nothing has run for so long, from now on.
    pub(super) async fn ceases(&self, idle: Duration) {
        let mut since = Instant::now();
        loop {
            tokio::time::sleep_until(since + idle).await;
            // What began and ended meanwhile puts the end off; what still runs, by no less than all of it.
            match self.idle_since() {
                Some(last) if last <= since => return,
                Some(last) => since = last,
                None => since = Instant::now(),
            }
        }
    }

    fn change(&self, requests: impl FnOnce(usize) -> usize) {
        let mut running = self.lock();
        *running = Running { requests: requests(running.requests), since: Instant::now() };
    }

    fn idle_since(&self) -> Option<Instant> {
        let running = self.lock();
        (running.requests == 0).then_some(running.since)
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.change(|requests| requests.saturating_sub(1));
    }
}

/// A response's body, which runs until it is dropped.
pub(super) struct Answer {
    pub(super) body: Body,
    pub(super) _running: RunningRequest,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_did_nothing_for_longest_makes_way() {
        let held = Arc::new(Held::default());
        let (busy, first) = (held.enter(), held.enter());
        let _runs = busy.activity.begin();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let second = held.enter();
        held.make_way();
        assert!(!first.makes_way.is_cancelled(), "its first request may be on its way");
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(first.activity.begin());
        tokio::time::sleep(MAKES_WAY_AFTER).await;
        let third = held.enter();
        let made_way = || [&busy, &first, &second, &third].map(|connection| connection.makes_way.is_cancelled());
        assert_eq!(made_way(), [false; 4]);
        held.make_way();
        assert_eq!(made_way(), [false, false, true, false], "the other had a request since");
        held.make_way();
        assert_eq!(made_way(), [false, true, true, false], "and each of them once");
        held.make_way();
        assert_eq!(made_way(), [false, true, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_ceased_when_nothing_ran_for_so_long() {
        let (idle, activity) = (Duration::from_secs(10), Activity::default());
        let begun = Instant::now();
        let ceased = async {
            activity.ceases(idle).await;
            begun.elapsed()
        };
        let requests = async {
            tokio::time::sleep(Duration::from_secs(7)).await;
            let request = activity.begin();
            tokio::time::sleep(Duration::from_secs(26)).await;
            drop(request);
            tokio::time::sleep(Duration::from_secs(9)).await;
            drop(activity.begin());
        };
        let (ceased, ()) = tokio::join!(ceased, requests);
        assert_eq!(ceased.as_secs(), 7 + 26 + 9 + 10);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_before_does_not_count() {
        let activity = Activity::default();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let begun = Instant::now();
        activity.ceases(Duration::from_secs(1)).await;
        assert_eq!(begun.elapsed().as_secs(), 1);
    }

    #[tokio::test]
    async fn a_connection_that_ended_is_forgotten() {
        let held = Arc::new(Held::default());
        drop((held.enter(), held.enter()));
        assert!(held.connections.is_empty());
    }
}
