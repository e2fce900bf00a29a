//! Who may ask next: the reads that one relay serves at once, shared by any number of feeds.

use std::collections::VecDeque;

use crate::protocol::limits::CONCURRENT_READS;

/// Up to this length a read counts as short and may overtake long ones.
const SHORT_BYTES: u64 = 1024 * 1024;
/// After so many short reads in a row a waiting long one is next.
const OVERTAKES: u32 = 4;
/// After so many reads without a refusal one more slot is tried.
const RAISE_AFTER: u32 = 64;

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// The slots of one control socket and the queue for them.
///
/// Short reads overtake long ones, at most four in a row. The number of slots starts at the relay's own limit (16,
/// specification section 6) and is lowered when the agent says `too_many_reads`: other readers may be using it.
#[derive(Debug)]
pub struct Fairness {
    limit: usize,
    held: usize,
    short: VecDeque<Ticket>,
    long: VecDeque<Ticket>,
    overtakes: u32,
    served: u32,
    next_ticket: u64,
}

impl Default for Fairness {
    fn default() -> Self {
        Self {
            limit: CONCURRENT_READS,
            held: 0,
            short: VecDeque::new(),
            long: VecDeque::new(),
            overtakes: 0,
            served: 0,
            next_ticket: 0,
        }
    }
}

impl Fairness {
    /// Queues up for a slot, to read about `length` bytes.
    pub fn request(&mut self, length: u64) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let queue = if length <= SHORT_BYTES { &mut self.short } else { &mut self.long };
        queue.push_back(ticket);
        ticket
    }

    /// Leaves the queue.
    pub fn withdraw(&mut self, ticket: Ticket) {
        self.short.retain(|waiting| *waiting != ticket);
        self.long.retain(|waiting| *waiting != ticket);
    }

    /// Whose turn it is, while a slot is free. The slot then counts as held.
    pub fn grant(&mut self) -> Option<Ticket> {
        if self.held >= self.limit {
            return None;
        }
        let long_is_due = self.overtakes >= OVERTAKES || self.short.is_empty();
        let ticket = match (long_is_due && !self.long.is_empty(), self.short.is_empty()) {
            (true, _) => {
                self.overtakes = 0;
                self.long.pop_front()
            }
            (false, false) => {
                self.overtakes = if self.long.is_empty() { 0 } else { self.overtakes + 1 };
                self.short.pop_front()
            }
            (false, true) => None,
        };
        self.held += usize::from(ticket.is_some());
        ticket
    }

    /// Takes a slot at once if one is free and nobody waits: to ask the next read early.
    pub fn try_take(&mut self) -> bool {
        let free = self.waiting() == 0 && self.held < self.limit;
        self.held += usize::from(free);
        free
    }

    /// Gives a slot back after the agent served its read, or after the read was cancelled.
    pub fn release(&mut self) {
        self.held = self.held.saturating_sub(1);
        self.served += 1;
        if self.served >= RAISE_AFTER {
            self.served = 0;
            self.limit = CONCURRENT_READS.min(self.limit + 1);
        }
    }

    /// Gives a slot back after the agent refused its read with `too_many_reads`.
    pub fn refused(&mut self) {
        self.held = self.held.saturating_sub(1);
        self.served = 0;
        self.limit = self.held.clamp(1, self.limit);
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// How many slots are held.
    pub fn held(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONG: u64 = 64 << 20;

    #[test]
    fn sixteen_slots_then_a_queue() {
        let mut slots = Fairness::default();
        let tickets: Vec<_> = (0..20).map(|_| slots.request(LONG)).collect();
        let granted: Vec<_> = std::iter::from_fn(|| slots.grant()).collect();
        assert_eq!(granted, tickets[..16]);
        slots.release();
        assert_eq!(slots.grant(), Some(tickets[16]));
        assert_eq!(slots.grant(), None);
    }

    #[test]
    fn short_reads_overtake_within_bounds() {
        let mut slots = Fairness { limit: 1, ..Fairness::default() };
        let long = slots.request(LONG);
        let short: Vec<_> = (0..6).map(|_| slots.request(1)).collect();
        let mut order = Vec::new();
        while let Some(ticket) = slots.grant() {
            order.push(ticket);
            slots.release();
        }
        assert_eq!(order[..4], short[..4]);
        assert_eq!(order[4], long);
        assert_eq!(order[5..], short[4..]);
    }

    #[test]
    fn asking_early_never_overtakes() {
        let mut slots = Fairness { limit: 1, ..Fairness::default() };
        assert!(slots.try_take());
        assert!(!slots.try_take());
        let waiting = slots.request(LONG);
        slots.release();
        assert!(!slots.try_take());
        assert_eq!(slots.grant(), Some(waiting));
    }

    #[test]
    fn a_refusal_lowers_the_estimate_and_success_raises_it() {
        let mut slots = Fairness::default();
        (0..5).for_each(|_| assert!(slots.try_take()));
        slots.refused();
        assert!(!slots.try_take(), "four are held and four is what the agent took");
        for _ in 0..RAISE_AFTER {
            slots.release();
            assert!(slots.try_take());
        }
        assert!(slots.try_take(), "one more is tried");
    }

    #[test]
    fn a_lone_refused_read_leaves_one_slot() {
        let mut slots = Fairness::default();
        assert!(slots.try_take());
        slots.refused();
        assert!(slots.try_take());
    }

    proptest! {
        /// Nobody starves: while both kinds wait, a long read follows four short ones and a short one every long one.
        #[test]
        fn neither_kind_starves(arrivals in prop::collection::vec((any::<bool>(), 0_usize..3), 1..300)) {
            let mut slots = Fairness::default();
            let mut kinds = std::collections::HashMap::new();
            let mut run = (true, 0_u32);
            for (short, releases) in arrivals {
                kinds.insert(slots.request(if short { 1 } else { LONG }), short);
                while let Some(granted) = slots.grant() {
                    let short = kinds.remove(&granted).expect("granted once");
                    run = if run.0 == short { (short, run.1 + 1) } else { (short, 1) };
                    let others_wait = kinds.values().any(|waiting| *waiting != short);
                    let most = if short { OVERTAKES } else { 1 };
                    prop_assert!(!others_wait || run.1 <= most, "{} in a row", run.1);
                    if !others_wait { run.1 = 0; }
                }
                prop_assert!(slots.held() <= CONCURRENT_READS);
                prop_assert!(slots.waiting() == 0 || slots.held() == CONCURRENT_READS);
                (0..releases.min(slots.held())).for_each(|_| slots.release());
            }
        }
    }
}
