//! Where bytes are hashed: beside the tasks that share the thread, as long as a processor is likely to be idle.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Lends the processors that one busy thread leaves. A task that an agent's connection wakes runs on the connection's
/// own thread, after it, and nobody else may take it: one fast transfer would keep a single processor busy. With more
/// transfers than processors there is nothing to win, and changing threads costs.
#[derive(Debug)]
pub struct Beside {
    free: AtomicUsize,
}

impl Default for Beside {
    fn default() -> Self {
        Self { free: AtomicUsize::new(available_parallelism().map_or(0, |all| all.get() - 1)) }
    }
}

impl Beside {
    /// Does the work, and lets another thread go on with the other tasks of this one where that may help.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(_lent) = self.lend() else { return work() };
        tokio::task::block_in_place(work)
    }

    fn lend(&self) -> Option<Lent<'_>> {
        let many = Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        if !many {
            return None;
        }
        let taken = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
        taken.is_ok().then_some(Lent(self))
    }
}

/// Given back when dropped, also when the work panics.
struct Lent<'a>(&'a Beside);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_go_on_while_the_work_is_done() {
        let beside = Beside { free: AtomicUsize::new(1) };
        let (sender, receiver) = std::sync::mpsc::channel();
        // The one worker thread is here; the spawned task can only run if it is handed over.
        let tracker = tokio_util::task::TaskTracker::new();
        let inner = tracker.clone();
        let done = tracker.spawn(async move {
            let other = inner.spawn(async move { sender.send(()) });
            let seen = beside.run(|| receiver.recv_timeout(std::time::Duration::from_secs(30)));
            (seen, other.await, beside.free.into_inner())
        });
        let (seen, _, free) = done.await.unwrap();
        assert_eq!((seen, free), (Ok(()), 1));
    }

    #[tokio::test]
    async fn where_nothing_can_be_handed_over_the_work_is_done_all_the_same() {
        assert_eq!(Beside { free: AtomicUsize::new(1) }.run(|| 7), 7);
        assert_eq!(Beside { free: AtomicUsize::new(0) }.run(|| 7), 7);
    }
}
