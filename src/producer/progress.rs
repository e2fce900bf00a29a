//! How far hashing is, told from time to time: whoever waits for a large folder sees that something happens.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::AgentEvent;

/// How often it is told. What is done sooner is not told at all.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// What is hashed so far, of all that is to be hashed. Shared by the threads that hash.
pub(super) struct Progress {
    total_files: usize,
    total_bytes: u64,
    done_files: AtomicUsize,
    done_bytes: AtomicU64,
    started: Instant,
    /// When it is told next, in milliseconds after the start.
    due_millis: AtomicU64,
}

impl Progress {
    /// Begins at `started` with files of these sizes to be hashed.
    pub(super) fn new(sizes: impl Iterator<Item = u64>, started: Instant) -> Self {
        let (total_files, total_bytes) = sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size));
        Self {
            total_files,
            total_bytes,
            done_files: AtomicUsize::new(0),
            done_bytes: AtomicU64::new(0),
            started,
            due_millis: AtomicU64::new(millis(TELL_EVERY)),
        }
    }

    /// One more file is done with.
    pub(super) fn add_file(&self) {
        self.done_files.fetch_add(1, Ordering::Relaxed);
    }

    /// So many more bytes are hashed at `now`. Answers with what to tell, if it is time: to one of the threads only.
    pub(super) fn add_bytes(&self, bytes: u64, now: Instant) -> Option<AgentEvent> {
        let done_bytes = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let elapsed = millis(now.saturating_duration_since(self.started));
        let due = self.due_millis.load(Ordering::Relaxed);
        let next = elapsed.saturating_add(millis(TELL_EVERY));
        let is_due =
            elapsed >= due && self.due_millis.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        is_due.then(|| AgentEvent::Hashing {
            done_files: self.done_files.load(Ordering::Relaxed),
            total_files: self.total_files,
            done_bytes,
            total_bytes: self.total_bytes,
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_soon_is_not_told() {
        let started = Instant::now();
        let progress = Progress::new([10, 20].into_iter(), started);
        assert_eq!(progress.add_bytes(10, started), None);
        progress.add_file();
        assert_eq!(progress.add_bytes(20, started + TELL_EVERY - Duration::from_millis(1)), None);
    }

    #[test]
    fn what_takes_long_is_told_at_intervals() {
        let started = Instant::now();
        let progress = Progress::new([1 << 30, 3 << 30].into_iter(), started);
        progress.add_file();
        let told = progress.add_bytes(2 << 30, started + TELL_EVERY).unwrap();
        assert_eq!(told.to_string(), "hashed 1 of 2 files, 2.0 GiB of 4.0 GiB (50 %)");
        assert_eq!(progress.add_bytes(1 << 30, started + TELL_EVERY + Duration::from_secs(1)), None);
        let event = AgentEvent::Hashing { done_files: 1, total_files: 2, done_bytes: 4 << 30, total_bytes: 4 << 30 };
        assert_eq!(progress.add_bytes(1 << 30, started + 2 * TELL_EVERY), Some(event));
    }
}
