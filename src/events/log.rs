//! The last events of a chat, in their order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::event::{Event, Reset};
use super::id::{EventId, Since};

/// The last events of a chat: as many as there may be, in number and in bytes. A reader has a place in it, and nothing
/// is kept for it besides: one that does not read costs nothing, and is behind once its place is gone.
#[derive(Debug)]
pub(super) struct Log {
    history: u64,
    /// Events told so far.
    head: u64,
    kept: VecDeque<Arc<Event>>,
    bytes: usize,
    most: Most,
}

/// How much a log keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    pub(super) events: usize,
    pub(super) bytes: usize,
}

/// A reader's place is gone: it was not told this many events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Behind(pub(super) u64);

impl Log {
    /// Nothing was told yet. No other log of any gateway process has this number.
    pub(super) fn new(history: u64, most: Most) -> Self {
        Self { history, head: 0, kept: VecDeque::new(), bytes: 0, most }
    }

    pub(super) fn push(&mut self, event: Arc<Event>) {
        self.head += 1;
        self.bytes += event.weight();
        self.kept.push_back(event);
        while self.kept.len() > self.most.events || (self.bytes > self.most.bytes && self.kept.len() > 1) {
            let oldest = self.kept.pop_front();
            self.bytes -= oldest.map_or(0, |event| event.weight());
        }
    }

    /// A place in this log.
    pub(super) fn id(&self, position: u64) -> EventId {
        EventId { history: self.history, position }
    }

    /// The event that follows a place of this log, when there is one yet.
    pub(super) fn after(&self, position: u64) -> Result<Option<&Arc<Event>>, Behind> {
        let behind = self.head.saturating_sub(position);
        let place = usize::try_from(behind).ok().and_then(|behind| self.kept.len().checked_sub(behind));
        place.map(|place| self.kept.get(place)).ok_or(Behind(behind))
    }

    /// The place to go on from, and why that is not the one that was asked for.
    pub(super) fn resume(&self, since: Since) -> (u64, Option<Reset>) {
        match since {
            Since::Now => (self.head, None),
            Since::Place(id) if id.history == self.history && id.position <= self.head => {
                match self.after(id.position) {
                    Ok(_) => (id.position, None),
                    Err(Behind(_)) => (self.head, Some(Reset::TooOld)),
                }
            }
            Since::Place(_) | Since::Unknown => (self.head, Some(Reset::Unknown)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(number: usize) -> Arc<Event> {
        Arc::new(Event::new("test", &number))
    }

    fn log(pushed: usize, events: usize, bytes: usize) -> Log {
        let mut log = Log::new(7, Most { events, bytes });
        (1..=pushed).for_each(|number| log.push(event(number)));
        log
    }

    /// Everything from a place on, by the numbers of the events.
    fn rest(log: &Log, mut position: u64) -> Result<Vec<u64>, Behind> {
        let mut all = Vec::new();
        while let Some(event) = log.after(position)? {
            all.push(event.data().parse().unwrap());
            position += 1;
        }
        Ok(all)
    }

    #[test]
    fn the_last_events_are_there_and_no_others() {
        let log = log(5, 3, usize::MAX);
        assert_eq!(rest(&log, 2), Ok(vec![3, 4, 5]));
        assert_eq!(rest(&log, 5), Ok(vec![]));
        assert_eq!(rest(&log, 1), Err(Behind(4)));
    }

    #[test]
    fn bytes_are_bounded_too() {
        let weight = event(1).weight();
        let log = log(9, 100, 4 * weight);
        assert_eq!(rest(&log, 5), Ok(vec![6, 7, 8, 9]));
        assert!(rest(&log, 4).is_err());
        // The newest is always there, or nobody could be told of it.
        assert_eq!(rest(&self::log(9, 100, 1), 8), Ok(vec![9]));
    }

    #[test]
    fn who_cannot_go_on_is_told() {
        let log = log(5, 3, usize::MAX);
        let place = |history, position| Since::Place(EventId { history, position });
        assert_eq!(log.resume(Since::Now), (5, None));
        assert_eq!(log.resume(place(7, 5)), (5, None));
        assert_eq!(log.resume(place(7, 2)), (2, None));
        assert_eq!(log.resume(place(7, 1)), (5, Some(Reset::TooOld)));
        for since in [place(7, 6), place(7, u64::MAX), place(8, 5), Since::Unknown] {
            assert_eq!(log.resume(since), (5, Some(Reset::Unknown)), "{since:?}");
        }
    }

    proptest! {
        /// Whatever a reader comes back with, it is told all that followed, or that it was not.
        #[test]
        fn there_is_no_silent_gap(
            pushed in 0_usize..60, most in 1_usize..20, bytes in 1_usize..2000, history in 6_u64..9, position in 0_u64..70,
        ) {
            let log = log(pushed, most, bytes);
            let (from, reset) = log.resume(Since::Place(EventId { history, position }));
            prop_assert!(log.kept.len() <= most && (log.bytes <= bytes || log.kept.len() == 1));
            prop_assert_eq!(log.bytes, log.kept.iter().map(|event| event.weight()).sum::<usize>());
            match reset {
                None => {
                    prop_assert_eq!((history, from), (7, position));
                    prop_assert_eq!(rest(&log, from), Ok((position + 1..=pushed as u64).collect()));
                }
                Some(_) => {
                    prop_assert_eq!(rest(&log, from), Ok(vec![]));
                    let fits = pushed * event(60).weight() <= bytes && pushed as u64 <= position + most as u64;
                    prop_assert!(history != 7 || position > pushed as u64 || !fits, "it could have gone on");
                }
            }
        }
    }
}
