//! What is held, and what goes first: a table without a disk.

use std::collections::{BTreeMap, HashMap};

use super::folder::Stamp;
use super::vouchers::Vouchers;
use crate::protocol::Sha256;

/// What an object counts for at least: its place in this table, its inode and its last block are not free, and an agent
/// may announce a million small files.
const LEAST: u64 = 16 * 1024;

/// The objects held, in the order of their last use.
#[derive(Debug)]
pub struct Index {
    objects: HashMap<Sha256, Object>,
    /// The least recently used first.
    order: BTreeMap<u64, Sha256>,
    next_use: u64,
    /// What the objects count for, and what is being written.
    used: u64,
    /// What is being written.
    reserved: u64,
    limit: u64,
}

/// An object that is held.
#[derive(Debug)]
struct Object {
    last_use: u64,
    cost: u64,
    known: Option<Known>,
}

/// What is known of an object once this process has hashed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The object's own length, in bytes.
    pub length: u64,
    /// The file as it was then.
    pub stamp: Stamp,
    /// Who has served its bytes.
    pub vouchers: Vouchers,
}

impl Index {
    /// An empty table for at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { objects: HashMap::new(), order: BTreeMap::new(), next_use: 0, used: 0, reserved: 0, limit }
    }

    /// Counts an object that is to be written; `None` where it, and what is being written beside it, is too large to be worth
    /// what it would push out. What must go for it is for [`evict`](Self::evict) to say.
    pub fn reserve(&mut self, bytes: u64) -> Option<u64> {
        let cost = bytes.max(LEAST);
        (cost <= (self.limit / 2).saturating_sub(self.reserved)).then(|| {
            self.reserved += cost;
            self.used += cost;
            cost
        })
    }

    /// Gives back what was reserved.
    pub fn release(&mut self, cost: u64) {
        self.reserved -= cost;
        self.used -= cost;
    }

    /// Whether it is held.
    pub fn contains(&self, sha256: &Sha256) -> bool {
        self.objects.contains_key(sha256)
    }

    /// Takes in an object of `bytes`, as the most recently used. One that is there already is replaced.
    pub fn insert(&mut self, sha256: Sha256, bytes: u64, known: Option<Known>) {
        self.remove(&sha256);
        let (last_use, cost) = (self.next_use, bytes.max(LEAST));
        self.next_use += 1;
        self.used += cost;
        self.order.insert(last_use, sha256);
        self.objects.insert(sha256, Object { last_use, cost, known });
    }

    /// Forgets an object. Whether it was held.
    pub fn remove(&mut self, sha256: &Sha256) -> bool {
        let removed = self.objects.remove(sha256);
        if let Some(object) = &removed {
            self.order.remove(&object.last_use);
            self.used -= object.cost;
        }
        removed.is_some()
    }

    /// Notes that an object is used, and says what is known of it. `None` when it is not held.
    pub fn look_up(&mut self, sha256: &Sha256) -> Option<Option<&Known>> {
        let object = self.objects.get_mut(sha256)?;
        self.order.remove(&object.last_use);
        object.last_use = self.next_use;
        self.next_use += 1;
        self.order.insert(object.last_use, *sha256);
        Some(object.known.as_ref())
    }

    /// Notes what was found out about an object.
    pub fn learn(&mut self, sha256: &Sha256, known: Known) {
        if let Some(object) = self.objects.get_mut(sha256) {
            let cost = known.stamp.bytes.max(LEAST);
            self.used = self.used - object.cost + cost;
            object.cost = cost;
            object.known = Some(known);
        }
    }

    /// What to remove from the disk, least recently used first, where more is held than may be: down to a twentieth below
    /// the limit, so that it is not done for every object. They are forgotten here.
    pub fn evict(&mut self) -> Vec<Sha256> {
        if self.used <= self.limit { Vec::new() } else { self.evict_to(self.limit - self.limit / 20) }
    }

    /// What to remove from the disk because it is full: a twentieth of what is here, and at least one object.
    pub fn shrink(&mut self) -> Vec<Sha256> {
        self.evict_to(self.used - (self.used / 20).max(1).min(self.used))
    }

    fn evict_to(&mut self, most: u64) -> Vec<Sha256> {
        let mut evicted = Vec::new();
        while self.used > most
            && let Some((_, sha256)) = self.order.first_key_value()
        {
            let sha256 = *sha256;
            self.remove(&sha256);
            evicted.push(sha256);
        }
        evicted
    }

    /// Everything that is held.
    pub fn names(&self) -> impl Iterator<Item = &Sha256> {
        self.objects.keys()
    }

    /// What the objects and those being written count for, in bytes.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// How many objects are held.
    pub fn len(&self) -> usize {
        self.objects.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn name(number: u8) -> Sha256 {
        Sha256::of(&[number])
    }

    fn filled(limit: u64, objects: impl IntoIterator<Item = u8>) -> Index {
        let mut index = Index::new(limit);
        objects.into_iter().for_each(|object| index.insert(name(object), MIB, None));
        index
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let mut index = filled(20 * MIB, 0..20);
        assert_eq!(index.evict(), []);
        assert!(index.look_up(&name(0)).is_some());
        index.insert(name(20), MIB, None);
        assert_eq!(index.evict(), [name(1), name(2)], "down to a twentieth below the limit");
        assert!(index.contains(&name(0)) && index.look_up(&name(1)).is_none());
    }

    #[test]
    fn what_is_being_written_counts() {
        let mut index = filled(20 * MIB, 0..15);
        let cost = index.reserve(8 * MIB).unwrap();
        assert_eq!(index.evict().len(), 4);
        index.release(cost);
        assert_eq!(index.used(), 11 * MIB);
        assert_eq!(index.reserve(11 * MIB), None, "it would push out more than half");
        let all: Vec<_> = (0..20).filter_map(|_| index.reserve(MIB)).collect();
        assert_eq!(all.len(), 10, "together they would");
    }

    #[test]
    fn a_small_object_is_not_free() {
        let mut index = Index::new(20 * MIB);
        index.insert(name(0), 1, None);
        assert_eq!(index.used(), LEAST);
    }

    proptest! {
        /// The table's sum is that of its objects, and never over the limit after an eviction.
        #[test]
        fn it_adds_up(steps in prop::collection::vec((0_u8..3, any::<u8>(), 0_u64..4 * MIB), 1..300)) {
            let mut index = Index::new(30 * MIB);
            let mut reserved = Vec::new();
            for (kind, object, bytes) in steps {
                match kind {
                    0 => index.insert(name(object), bytes, None),
                    1 => reserved.extend(index.reserve(bytes)),
                    _ => if let Some(cost) = reserved.pop() { index.release(cost) },
                }
                if kind == 2 && object % 3 == 0 {
                    index.remove(&name(object));
                }
                index.evict();
                let held: u64 = index.objects.values().map(|object| object.cost).sum();
                prop_assert_eq!(index.used(), held + reserved.iter().sum::<u64>());
                prop_assert_eq!(index.order.len(), index.len());
                prop_assert!(index.used() <= 30 * MIB || index.len() == 0);
            }
        }
    }
}
