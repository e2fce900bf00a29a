//! The feeds that run, for cursors that come to bytes that are on their way already.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;

use super::Transfers;
use super::course::Course;
use super::feed::Feed;
use super::live::Live;
use super::spool::{LAG, Seat, Spool};
use crate::protocol::{ByteRange, Sha256};

/// So many feeds at once may keep their first bytes for cursors that come at about the same time.
const KEPT: usize = 2;

/// The feeds whose bytes others may ride on.
#[derive(Debug, Default)]
pub struct Feeds {
    running: DashMap<Sha256, Vec<Running>>,
    count: AtomicUsize,
}

#[derive(Debug)]
struct Running {
    course: Course,
    /// What of it is hashed.
    whole: ByteRange,
    spool: Arc<Spool>,
}

impl Feeds {
    /// A seat at a feed that has the bytes at `position`, or has them next.
    pub fn sit(&self, course: &Course, live: &Arc<Live>, position: u64) -> Option<Seat> {
        let running = self.running.get(&course.readable.sha256)?;
        seat(&running, course, live, position)
    }

    /// A seat at such a feed, or at a new one. Cursors that come at once find one feed.
    pub fn sit_or_begin(&self, transfers: &Arc<Transfers>, course: &Course, live: &Arc<Live>, position: u64) -> Seat {
        let mut running = self.running.entry(course.readable.sha256).or_default();
        if let Some(seat) = seat(&running, course, live, position) {
            return seat;
        }
        let (range, wish) = course.rest(position, live.range.end);
        let kept = self.count.fetch_add(1, Ordering::Relaxed) < KEPT;
        let spool = Spool::new(range, transfers.budget.allowance(), kept);
        let seat = spool.first(live, wish);
        let feed = Feed::new(Arc::clone(transfers), course, range, Arc::clone(&spool), live.sent() > 0);
        running.push(Running { course: course.clone(), whole: shared_part(course, range), spool });
        drop(running);
        transfers.tracker.spawn(feed.run());
        seat
    }

    /// A feed has ended.
    pub fn remove(&self, sha256: &Sha256, spool: &Arc<Spool>) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.running.remove_if_mut(sha256, |_, running| {
            running.retain(|other| !Arc::ptr_eq(&other.spool, spool));
            running.is_empty()
        });
    }
}

fn seat(running: &[Running], course: &Course, live: &Arc<Live>, position: u64) -> Option<Seat> {
    running.iter().find_map(|running| {
        let wish = course.shared(position, live.range.end, running.whole)?;
        running.course.shares(course).then(|| running.spool.sit(live, wish)).flatten()
    })
}

/// What of a feed's range others may ride on: what it hashes. A file that is hashed in one has to be read from its start
/// again for a reader that falls behind, so only a small one is shared.
fn shared_part(course: &Course, range: ByteRange) -> ByteRange {
    let whole = course.hashed(range);
    let shared = course.readable.chunks.is_some() || whole.len() <= LAG;
    if shared { whole } else { ByteRange { start: range.start, end: range.start } }
}
