//! The memory that all transfers share, counted in frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::TransferError;
use crate::protocol::limits::DATA_PAYLOAD;

/// What a frame costs: its payload, and the part of the receive buffer that it pins.
const FRAME_COST: u64 = DATA_PAYLOAD as u64 + 64 * 1024;

/// The part of all frames (one over this) that is shared, however many transfers may run: with its own frame alone none
/// could fill a path of any length.
const SHARED: usize = 4;

/// A feed leaves so many times free of what is shared as it is lent.
const LEAVES: usize = 3;

/// The least that one reader may have running, where so many may run at all.
const READER_SHARE: usize = 32;

/// Admits transfers and lends feeds frames. One frame of every admitted transfer is always its own, so that each moves on
/// however little is left; a feed has at least the one of a transfer that rides on it. Of what is shared
/// each is lent a part of what is free only: those whose readers have stopped leave some to who comes next.
#[derive(Debug)]
pub struct Budget {
    transfers: AtomicUsize,
    limit: usize,
    shared: AtomicUsize,
    shared_total: usize,
}

/// A transfer's place, given back when dropped.
#[derive(Debug)]
pub struct Admission {
    budget: Arc<Budget>,
}

/// One feed's part of the budget, given back when dropped.
#[derive(Debug)]
pub struct Allowance {
    budget: Arc<Budget>,
    extra: usize,
}

impl Budget {
    /// A budget of `bytes` for at most `max_transfers` at once: fewer when three quarters of it do not hold a frame for each.
    pub fn new(bytes: u64, max_transfers: usize) -> Arc<Self> {
        let frames = usize::try_from(bytes / FRAME_COST).unwrap_or(usize::MAX).max(1);
        let limit = max_transfers.clamp(1, frames - frames / SHARED);
        let shared_total = frames - limit;
        Arc::new(Self { transfers: AtomicUsize::new(0), limit, shared: AtomicUsize::new(0), shared_total })
    }

    /// How many transfers may run at once.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How many of them one reader may have: a quarter, but no fewer than a client with many connections needs.
    pub fn share(&self) -> usize {
        (self.limit / 4).max(READER_SHARE).min(self.limit)
    }

    /// Admits a transfer, with one frame.
    pub fn admit(self: &Arc<Self>) -> Result<Admission, TransferError> {
        (self.transfers)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |running| (running < self.limit).then_some(running + 1))
            .map_err(|_| TransferError::TooManyTransfers { limit: self.limit })?;
        Ok(Admission { budget: self.clone() })
    }

    /// The allowance of a feed on which an admitted transfer rides: one frame.
    pub fn allowance(self: &Arc<Self>) -> Allowance {
        Allowance { budget: self.clone(), extra: 0 }
    }
}

impl Allowance {
    /// Asks for `frames` in all; the answer is how many there are, at least one. What is shared is lent in parts of what is
    /// free.
    pub fn resize(&mut self, frames: u32) -> u32 {
        let wanted = frames.saturating_sub(1) as usize;
        if wanted < self.extra {
            self.budget.shared.fetch_sub(self.extra - wanted, Ordering::Relaxed);
            self.extra = wanted;
        } else if wanted > self.extra {
            let mut added = 0;
            // The closure always answers, so the update cannot fail.
            let _ = self.budget.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                let free = self.budget.shared_total.saturating_sub(used);
                added = (wanted - self.extra).min(free.saturating_sub(LEAVES * self.extra).div_ceil(LEAVES + 1));
                Some(used + added)
            });
            self.extra += added;
        }
        // `extra` is below the `u32` that was asked for.
        self.extra as u32 + 1
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.budget.shared.fetch_sub(self.extra, Ordering::Relaxed);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.budget.transfers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_admitted_transfer_has_a_frame_and_the_rest_is_shared() {
        let budget = Budget::new(10 * FRAME_COST, 4);
        let admitted: Vec<_> = (0..4).map(|_| budget.admit().unwrap()).collect();
        let mut all: Vec<_> = admitted.iter().map(|_| budget.allowance()).collect();
        assert_eq!(budget.admit().err(), Some(TransferError::TooManyTransfers { limit: 4 }));
        assert_eq!(all[0].resize(100), 3, "its own frame and a part of the six that are shared");
        assert_eq!(all[0].resize(100), 3, "and no more for asking again");
        assert_eq!(all[1].resize(100), 2);
        assert_eq!(all[2].resize(2), 2, "there is some for the next");
        assert_eq!(all[0].resize(1), 1);
        assert_eq!(all[3].resize(100), 2);
        all.clear();
        drop(admitted);
        assert!(budget.admit().is_ok());
        assert_eq!(budget.allowance().resize(3), 3);
        assert_eq!(budget.shared.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn those_that_have_stopped_leave_some_to_others() {
        let budget = Budget::new(512 << 20, 1024);
        for stopped in 0..=8 {
            let mut held: Vec<_> = (0..stopped).map(|_| budget.allowance()).collect();
            for held in &mut held {
                held.resize(1024);
            }
            let left = budget.allowance().resize(1024);
            assert!(left >= 8, "{left} after {stopped}");
        }
    }

    #[test]
    fn a_reader_has_a_share() {
        let share = |limit: usize| Budget::new(u64::MAX, limit).share();
        assert_eq!([share(1024), share(64), share(8)], [256, 32, 8]);
    }

    #[test]
    fn a_small_budget_admits_fewer() {
        assert_eq!(Budget::new(3 * FRAME_COST, 1000).limit(), 3);
        let small = Budget::new(64 << 20, 1000);
        assert!(small.limit() > 100 && small.allowance().resize(1024) > 8, "{small:?}");
        assert_eq!(Budget::new(0, 1000).limit(), 1);
    }
}
