//! What agents say of one hash where they contradict each other: whom to believe first, and who has been caught.
//!
//! A hash has one size. Which of two announcements tells it only the bytes can show, so what a transfer finds out is
//! remembered here: by agent, and looked at only for announcements that the caller may read. A hash alone still tells
//! nothing about what others have.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use super::{Readable, Source};
use crate::protocol::{Principal, Sha256};

/// Most claims of one answer that are tried.
pub(super) const CLAIMS: usize = 4;
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
const REMEMBERED: u64 = 20_000;

/// What a caller may have of a hash: what one announcement says of it, and what others say where they contradict it.
#[derive(Debug, Clone)]
pub struct Claims {
    /// Never empty, and of each complete length one.
    readable: Vec<Readable>,
    /// Whose bytes a reader may have been given under this hash.
    agents: Arc<[Principal]>,
}

impl Claims {
    pub(super) fn of(readable: Vec<Readable>, agents: Vec<Principal>) -> Option<Self> {
        (!readable.is_empty()).then(|| Self { readable, agents: agents.into() })
    }

    pub(super) fn first_mut(&mut self) -> &mut Readable {
        &mut self.readable[0]
    }

    /// The one that is believed until its sources fail.
    pub fn first(&self) -> &Readable {
        &self.readable[0]
    }

    /// All of them, in the order in which they are tried: while nothing has been sent, one whose sources all fail gives
    /// way to the next.
    pub fn into_all(self) -> Vec<Readable> {
        self.readable
    }

    /// Everybody whose bytes a reader may have been given under this hash, be it under a claim that is not tried any more.
    pub fn agents(&self) -> Arc<[Principal]> {
        Arc::clone(&self.agents)
    }

    /// The same bytes, from agents' own connections only. `None` when nobody offers them that way.
    pub fn by_relay(self) -> Option<Self> {
        let readable: Vec<_> = self.readable.into_iter().filter_map(Readable::by_relay).collect();
        (!readable.is_empty()).then_some(Self { readable, agents: self.agents })
    }
}

impl From<Readable> for Claims {
    fn from(readable: Readable) -> Self {
        let mut agents: Vec<Principal> = Vec::new();
        for Source { agent, .. } in &readable.sources {
            if !agents.contains(agent) {
                agents.push(agent.clone());
            }
        }
        Self { agents: agents.into(), readable: vec![readable] }
    }
}

/// What an agent's bytes have shown about its word on a hash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Record {
    /// The size at which it served all of the blob, and the hash was right.
    proved: Option<u64>,
    /// Since then, what it served was not what it had announced.
    failed: bool,
}

/// What agents' bytes have shown, for 24 hours. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Records(Cache<(Principal, Sha256), Record>);

impl Default for Records {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(REMEMBERED).time_to_live(REMEMBERED_FOR).build())
    }
}

impl Records {
    /// The agent served the whole blob, of this size, and the blob's own hash was right.
    pub(super) fn proved(&self, agent: &Principal, sha256: Sha256, size: u64) {
        self.0.insert((agent.clone(), sha256), Record { proved: Some(size), failed: false });
    }

    /// What the agent served alone as the whole blob has another hash, or it has fewer bytes than it announced.
    pub(super) fn failed(&self, agent: &Principal, sha256: Sha256) {
        self.0.entry((agent.clone(), sha256)).and_upsert_with(|known| {
            let record = known.map(moka::Entry::into_value).unwrap_or_default();
            Record { failed: true, ..record }
        });
    }

    /// What is known of those that say something about a hash.
    pub(super) fn look<'a>(&self, sha256: &Sha256, claims: impl Iterator<Item = Claim<'a>>) -> Standing<'a> {
        let claims: Vec<_> = claims.collect();
        let mut records: HashMap<&Principal, Record> = HashMap::new();
        for claim in &claims {
            records
                .entry(claim.agent)
                .or_insert_with(|| self.0.get(&(claim.agent.clone(), *sha256)).unwrap_or_default());
        }
        let empty = (*sha256 == Sha256::of(b"")).then_some(0);
        let size = empty.or_else(|| records.values().find_map(|record| record.proved));
        Standing { claims, records, size }
    }
}

/// What an announcement says of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim<'a> {
    pub(super) agent: &'a Principal,
    pub(super) size: u64,
    /// As [`crate::store::Offer::list`].
    pub(super) list: &'a str,
}

/// Where the claims about one hash stand.
pub(super) struct Standing<'a> {
    claims: Vec<Claim<'a>>,
    records: HashMap<&'a Principal, Record>,
    /// The blob's size, where it is known.
    size: Option<u64>,
}

impl Standing<'_> {
    fn record(&self, agent: &Principal) -> Record {
        self.records.get(agent).copied().unwrap_or_default()
    }

    /// Whether the blob is known to have another size, or the hash not to be that of nothing.
    pub(super) fn is_refuted(&self, size: u64) -> bool {
        self.size.map_or(size == 0, |known| known != size)
    }

    /// Whether the claim comes behind others: those of agents that failed behind the rest, and of the rest those that
    /// proved nothing behind those that did.
    pub(super) fn doubt(&self, claim: &Claim<'_>) -> (bool, bool, bool) {
        let record = self.record(claim.agent);
        (self.is_refuted(claim.size), record.failed, record.proved != Some(claim.size))
    }

    /// Whether the claim's chunk list vouches for ranges although others contradicted it: its agent has shown that it has
    /// the blob, and whoever says something else has been caught.
    pub(super) fn believes(&self, claim: &Claim<'_>) -> bool {
        let stands = |other: &&Claim<'_>| !self.is_refuted(other.size) && !self.record(other.agent).failed;
        let agrees = |other: &Claim<'_>| (other.size, other.list) == (claim.size, claim.list);
        let record = self.record(claim.agent);
        record.proved == Some(claim.size) && !record.failed && self.claims.iter().filter(stands).all(agrees)
    }
}

/// Puts what contradicts itself into the order in which it is tried: those least in doubt first, then in turn, so that one
/// agent's many claims do not keep another's from being tried, then as they stood.
pub(super) fn in_order<T>(standing: &Standing<'_>, mut claims: Vec<T>, of: impl Fn(&T) -> Claim<'_>) -> Vec<T> {
    let mut seen: HashMap<Principal, Vec<u64>> = HashMap::new();
    let mut turns = Vec::with_capacity(claims.len());
    for item in &claims {
        let claim = of(item);
        let sizes = seen.entry(claim.agent.clone()).or_default();
        let turn = sizes.iter().position(|size| *size == claim.size).unwrap_or_else(|| {
            sizes.push(claim.size);
            sizes.len() - 1
        });
        turns.push((standing.doubt(&claim), turn));
    }
    let mut keyed: Vec<_> = turns.into_iter().zip(claims.drain(..)).collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, item)| item).collect()
}

/// The sizes that are tried, in order: those not known to be wrong, if there is any.
pub(super) fn sizes(standing: &Standing<'_>, in_order: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut seen = HashSet::new();
    let all: Vec<u64> = in_order.filter(|size| seen.insert(*size)).collect();
    let stand: Vec<u64> = all.iter().copied().filter(|size| !standing.is_refuted(*size)).collect();
    let mut tried = if stand.is_empty() { all } else { stand };
    tried.truncate(CLAIMS);
    tried
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> Principal {
        Principal::agent(name).unwrap()
    }

    #[test]
    fn one_agents_many_claims_keep_no_other_from_being_tried() {
        let (eve, ada, blob) = (agent("eve"), agent("ada"), Sha256::of(b"a"));
        let mut claims: Vec<_> = (1..60).map(|size| Claim { agent: &eve, size: size + 100, list: "" }).collect();
        claims.push(Claim { agent: &ada, size: 7, list: "l" });
        let records = Records::default();
        let order = |records: &Records| {
            let standing = records.look(&blob, claims.iter().copied());
            let ordered = in_order(&standing, claims.clone(), |claim| *claim);
            sizes(&standing, ordered.iter().map(|claim| claim.size))
        };
        assert_eq!(order(&records), [101, 7, 102, 103]);
        // Caught once, all of hers come last; and none is tried once the size is known.
        records.failed(&eve, blob);
        assert_eq!(order(&records), [7, 101, 102, 103]);
        records.proved(&ada, blob, 7);
        assert_eq!(order(&records), [7]);
        let standing = records.look(&blob, claims.iter().copied());
        assert!(standing.believes(claims.last().unwrap()));
        assert!(!standing.believes(&claims[0]));
    }

    #[test]
    fn a_list_that_is_contradicted_is_believed_only_of_who_proved_and_when_all_others_are_caught() {
        let (eve, ada, blob) = (agent("eve"), agent("ada"), Sha256::of(b"a"));
        let records = Records::default();
        let claims = [Claim { agent: &ada, size: 7, list: "l" }, Claim { agent: &eve, size: 7, list: "m" }];
        let believed = |records: &Records| {
            let standing = records.look(&blob, claims.iter().copied());
            claims.map(|claim| standing.believes(&claim))
        };
        assert_eq!(believed(&records), [false, false]);
        records.proved(&ada, blob, 7);
        assert_eq!(believed(&records), [false, false], "nobody was caught");
        records.failed(&eve, blob);
        assert_eq!(believed(&records), [true, false]);
        // Who fails later vouches for nothing, and makes nobody else's word good.
        records.failed(&ada, blob);
        assert_eq!(believed(&records), [false, false]);
        records.proved(&ada, blob, 7);
        assert_eq!(believed(&records), [true, false]);
    }

    #[test]
    fn what_has_no_bytes_is_known_by_its_hash() {
        let (eve, records) = (agent("eve"), Records::default());
        let claim = |size| Claim { agent: &eve, size, list: "" };
        let standing = |sha256| records.look(&sha256, [claim(0), claim(1)].into_iter());
        let empty = standing(Sha256::of(b""));
        assert!(!empty.is_refuted(0) && empty.is_refuted(1));
        let other = standing(Sha256::of(b"a"));
        assert!(other.is_refuted(0) && !other.is_refuted(1));
        // What is known of one hash is not of another.
        records.proved(&eve, Sha256::of(b"b"), 3);
        assert!(!standing(Sha256::of(b"a")).is_refuted(1));
    }
}
