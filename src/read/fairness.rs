//! Who may ask next: the reads that one relay serves at once, shared by readers first and by their transfers second.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::protocol::limits::CONCURRENT_READS;

/// Up to this length a read counts as short and may overtake long ones.
const SHORT_BYTES: u64 = 1024 * 1024;
/// After so many short reads in a row a waiting long one of the same reader is next.
const OVERTAKES: u32 = 4;
/// After so many reads without a refusal one more slot is tried.
const RAISE_AFTER: u32 = 64;

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// The slots of one control socket and the queue for them. `K` is who reads: a principal, however many connections it has.
///
/// A free slot goes to the reader that holds the fewest, of those the one that has waited longest. So whoever holds none
/// waits for at most one grant to each other reader, and readers who all want more hold equally many. A reader's own
/// transfers take turns: short reads overtake long ones, at most four in a row.
///
/// The number of slots starts at the relay's own limit (16, specification section 6) and is lowered when the agent says
/// `too_many_reads`: others may be using it.
#[derive(Debug)]
pub struct Fairness<K> {
    limit: usize,
    held: usize,
    waiting: usize,
    readers: HashMap<K, Reader>,
    served: u32,
    next: u64,
}

/// One that holds slots or waits for some.
#[derive(Debug, Default)]
struct Reader {
    held: usize,
    short: VecDeque<Ticket>,
    long: VecDeque<Ticket>,
    overtakes: u32,
    /// Orders those that wait: when it began to, or when it was last granted a slot.
    since: u64,
}

impl<K> Default for Fairness<K> {
    fn default() -> Self {
        Self { limit: CONCURRENT_READS, held: 0, waiting: 0, readers: HashMap::new(), served: 0, next: 0 }
    }
}

impl<K: Clone + Eq + Hash> Fairness<K> {
    /// Queues up for a slot, to read about `length` bytes for this reader.
    pub fn request(&mut self, reader: &K, length: u64) -> Ticket {
        let (ticket, since) = (Ticket(self.tick()), self.tick());
        let reader = self.readers.entry(reader.clone()).or_default();
        if !reader.waits() {
            reader.since = since;
        }
        let queue = if length <= SHORT_BYTES { &mut reader.short } else { &mut reader.long };
        queue.push_back(ticket);
        self.waiting += 1;
        ticket
    }

    /// Leaves the queue.
    pub fn withdraw(&mut self, reader: &K, ticket: Ticket) {
        let Some(waiting) = self.readers.get_mut(reader) else { return };
        let before = waiting.waiting();
        waiting.short.retain(|other| *other != ticket);
        waiting.long.retain(|other| *other != ticket);
        self.waiting -= before - waiting.waiting();
        self.forget(reader);
    }

    /// Whose turn it is, while a slot is free. The slot then counts as held.
    pub fn grant(&mut self) -> Option<(K, Ticket)> {
        if self.held >= self.limit {
            return None;
        }
        let since = self.tick();
        let waiting = self.readers.iter_mut().filter(|(_, reader)| reader.waits());
        let (key, reader) = waiting.min_by_key(|(_, reader)| (reader.held, reader.since))?;
        let ticket = reader.next()?;
        reader.held += 1;
        reader.since = since;
        self.held += 1;
        self.waiting -= 1;
        Some((key.clone(), ticket))
    }

    /// Takes a slot at once if one is free and nobody waits: to ask the next read early.
    pub fn try_take(&mut self, reader: &K) -> bool {
        let free = self.waiting == 0 && self.held < self.limit;
        if free {
            self.readers.entry(reader.clone()).or_default().held += 1;
            self.held += 1;
        }
        free
    }

    /// Gives a slot back after the agent served its read, or after the read was cancelled.
    pub fn release(&mut self, reader: &K) {
        self.give_back(reader);
        self.served += 1;
        if self.served >= RAISE_AFTER {
            self.served = 0;
            self.limit = CONCURRENT_READS.min(self.limit + 1);
        }
    }

    /// Gives a slot back after the agent refused its read with `too_many_reads`.
    pub fn refused(&mut self, reader: &K) {
        self.give_back(reader);
        self.served = 0;
        self.limit = self.held.clamp(1, self.limit);
    }

    /// Of several readers, the one that holds and waits for the least: in its name is asked what all of them take.
    pub fn least<'a>(&self, readers: &'a [K]) -> Option<&'a K> {
        let claims = |key: &K| self.readers.get(key).map_or(0, |reader| reader.held + reader.waiting());
        readers.iter().min_by_key(|key| claims(key))
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many slots are held.
    pub fn held(&self) -> usize {
        self.held
    }

    fn give_back(&mut self, reader: &K) {
        self.held = self.held.saturating_sub(1);
        if let Some(reader) = self.readers.get_mut(reader) {
            reader.held = reader.held.saturating_sub(1);
        }
        self.forget(reader);
    }

    fn forget(&mut self, key: &K) {
        if self.readers.get(key).is_some_and(|reader| reader.held == 0 && !reader.waits()) {
            self.readers.remove(key);
        }
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Reader {
    fn waiting(&self) -> usize {
        self.short.len() + self.long.len()
    }

    fn waits(&self) -> bool {
        self.waiting() > 0
    }

    fn next(&mut self) -> Option<Ticket> {
        if !self.long.is_empty() && (self.short.is_empty() || self.overtakes >= OVERTAKES) {
            self.overtakes = 0;
            return self.long.pop_front();
        }
        self.overtakes = if self.long.is_empty() { 0 } else { self.overtakes + 1 };
        self.short.pop_front()
    }
}

#[cfg(test)]
mod tests;
