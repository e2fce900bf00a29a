//! Which agents have served an object's bytes.

use crate::protocol::{Principal, Sha256};

/// Most agents noted for one object. Who comes later has to serve the bytes each time, as if they were not held.
const MOST: usize = 64;

/// An agent that has served an object's bytes, as the object's file names it: the first half of its principal's SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voucher([u8; Self::BYTES]);

impl Voucher {
    /// How long one is in a file.
    pub const BYTES: usize = 16;

    /// The one of an agent.
    pub fn of(agent: &Principal) -> Self {
        let mut voucher = [0; Self::BYTES];
        voucher.copy_from_slice(&Sha256::of(agent.as_str().as_bytes()).0[..Self::BYTES]);
        Self(voucher)
    }

    /// As it stands in the file.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The agents that have served an object's bytes. They stand behind the bytes in the object's file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vouchers(Vec<Voucher>);

impl Vouchers {
    /// Reads what stands behind an object's bytes. A part of one, which a crash may leave, is nobody.
    pub fn parse(tail: &[u8]) -> Self {
        Self(tail.as_chunks().0.iter().take(MOST).map(|voucher| Voucher(*voucher)).collect())
    }

    /// What they take in a file at most.
    pub const fn most_bytes() -> usize {
        MOST * Voucher::BYTES
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of `agents` is among them.
    pub fn include_any(&self, agents: &[Voucher]) -> bool {
        agents.iter().any(|agent| self.0.contains(agent))
    }

    /// Adds an agent. False when it is there already, or there is no room.
    pub fn add(&mut self, agent: Voucher) -> bool {
        let added = self.0.len() < MOST && !self.0.contains(&agent);
        if added {
            self.0.push(agent);
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agent(number: usize) -> Voucher {
        Voucher::of(&format!("agent:{number}").parse().unwrap())
    }

    #[test]
    fn an_agent_is_known_by_its_principal() {
        let mut vouchers = Vouchers::default();
        assert!(!vouchers.include_any(&[agent(1)]));
        assert!(vouchers.add(agent(1)));
        assert!(!vouchers.add(agent(1)), "once is enough");
        assert!(vouchers.include_any(&[agent(2), agent(1)]));
        assert!(!vouchers.include_any(&[agent(2)]));
    }

    #[test]
    fn their_number_is_bounded() {
        let mut vouchers = Vouchers::default();
        assert_eq!((0..1000).filter(|number| vouchers.add(agent(*number))).count(), MOST);
        let tail = vec![7; 100 * Vouchers::most_bytes()];
        assert_eq!(Vouchers::parse(&tail).0.len(), MOST);
    }

    proptest! {
        /// A file may end anywhere: whole names are read, and nobody is made up.
        #[test]
        fn a_cut_tail_loses_only_its_last(count in 0_usize..20, cut in 0_usize..400) {
            let all: Vec<_> = (0..count).map(agent).collect();
            let mut tail: Vec<u8> = all.iter().flat_map(|voucher| voucher.0).collect();
            tail.truncate(cut);
            prop_assert_eq!(Vouchers::parse(&tail).0, &all[..tail.len() / Voucher::BYTES]);
        }
    }
}
