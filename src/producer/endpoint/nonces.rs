//! The nonces of signatures that were accepted, so that each is good for one request.

use std::collections::{BTreeSet, HashSet};

use crate::protocol::Sha256;

/// Most nonces that are remembered. Only whoever holds a trusted key can fill them.
const NONCES: usize = 100_000;

/// Nonces by key, until their signatures have expired. They are gone with the process: a signature that is sent again
/// after a restart, within its minute, fetches once more what was fetched with it before.
#[derive(Debug, Default)]
pub(super) struct Nonces {
    seen: HashSet<Sha256>,
    /// By the second from which on each may be forgotten.
    due: BTreeSet<(i64, Sha256)>,
}

/// What came of spending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spent {
    Fresh,
    /// One of them was spent before, or is there twice.
    Seen,
    /// No more can be remembered at the moment.
    Full,
}

impl Nonces {
    /// Spends nonces, all or none. Each comes with its key and with the last second at which its signature can be good.
    pub(super) fn spend<'a>(&mut self, nonces: impl Iterator<Item = (&'a str, &'a str, i64)>, now: i64) -> Spent {
        while let Some((until, nonce)) = self.due.first().copied()
            && until < now
        {
            self.due.pop_first();
            self.seen.remove(&nonce);
        }
        // A thumbprint has a fixed length, so no two pairs are one text.
        let spent: Vec<_> = nonces
            .map(|(thumbprint, nonce, until)| (until, Sha256::of(format!("{thumbprint} {nonce}").as_bytes())))
            .collect();
        let distinct: HashSet<_> = spent.iter().map(|(_, nonce)| nonce).collect();
        if distinct.len() < spent.len() || spent.iter().any(|(_, nonce)| self.seen.contains(nonce)) {
            return Spent::Seen;
        }
        if self.seen.len() + spent.len() > NONCES {
            return Spent::Full;
        }
        self.seen.extend(spent.iter().map(|(_, nonce)| *nonce));
        self.due.extend(spent);
        Spent::Fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend(nonces: &mut Nonces, nonce: &str, until: i64, now: i64) -> Spent {
        nonces.spend([("key", nonce, until)].into_iter(), now)
    }

    #[test]
    fn a_nonce_is_spent_once_for_as_long_as_its_signature_is_good() {
        let mut nonces = Nonces::default();
        assert_eq!(spend(&mut nonces, "a", 100, 50), Spent::Fresh);
        assert_eq!(spend(&mut nonces, "a", 100, 100), Spent::Seen);
        assert_eq!(nonces.spend([("other", "a", 100)].into_iter(), 100), Spent::Fresh);
        assert_eq!(spend(&mut nonces, "a", 200, 101), Spent::Fresh);
        assert_eq!((nonces.seen.len(), nonces.due.len()), (1, 1));
    }

    #[test]
    fn two_are_spent_together_or_not_at_all() {
        let mut nonces = Nonces::default();
        assert_eq!(spend(&mut nonces, "a", 100, 50), Spent::Fresh);
        assert_eq!(nonces.spend([("key", "b", 100), ("key", "a", 100)].into_iter(), 50), Spent::Seen);
        assert_eq!(nonces.spend([("key", "b", 100), ("key", "b", 100)].into_iter(), 50), Spent::Seen);
        assert_eq!(nonces.spend([("key", "b", 100), ("next", "b", 100)].into_iter(), 50), Spent::Fresh);
    }

    #[test]
    fn they_are_bounded_until_the_oldest_expire() {
        let mut nonces = Nonces::default();
        for number in 0..NONCES {
            assert_eq!(spend(&mut nonces, &number.to_string(), 100 + i64::from(number > 0), 50), Spent::Fresh);
        }
        assert_eq!(spend(&mut nonces, "more", 200, 100), Spent::Full);
        assert_eq!(spend(&mut nonces, "more", 200, 101), Spent::Fresh);
        assert_eq!(spend(&mut nonces, "yet more", 200, 101), Spent::Full);
        assert_eq!(spend(&mut nonces, "yet more", 200, 102), Spent::Fresh);
        assert_eq!(nonces.seen.len(), 2);
    }
}
