//! Who brought wrong bytes, or something of what proved wrong, or nothing, so that others are asked first.
//!
//! Where one source sent all of a chunk that proved wrong, it lied. Where several did, one after the other, one of them
//! lied, and the bytes do not tell which. Whoever left the chunk unfinished is the likelier one: a liar can fail whenever
//! it likes, and whoever then goes on from its bytes cannot but end with a wrong hash. One who is doubted without reason
//! is asked again as soon as others have earned more doubt.

use std::time::Duration;

use moka::sync::Cache;

use crate::protocol::{Principal, Sha256};

const REMEMBERED_FOR: Duration = Duration::from_secs(60 * 60);
const REMEMBERED: u64 = 20_000;
/// More makes no difference.
const MOST: u32 = 1000;

/// Why an agent is doubted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Every byte of a chunk, or of a whole file, that proved wrong came from it.
    Wrong,
    /// Its beginning, or something in the middle.
    Unfinished,
    /// What others had left of it.
    Ended,
    /// It was asked, and sent nothing for as long as one may be silent.
    Silent,
}

/// How much the agents of a blob's sources are doubted, for an hour.
#[derive(Debug)]
pub struct Doubts(Cache<(Principal, Sha256), u32>);

impl Default for Doubts {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(REMEMBERED).time_to_live(REMEMBERED_FOR).build())
    }
}

impl Doubts {
    /// Notes something against an agent, where it is asked for this blob.
    pub fn raise(&self, agent: &Principal, blob: Sha256, cause: Cause) {
        let weight = match cause {
            Cause::Wrong => 4,
            Cause::Unfinished => 2,
            Cause::Ended | Cause::Silent => 1,
        };
        self.0
            .entry((agent.clone(), blob))
            .and_upsert_with(|known| known.map_or(0, moka::Entry::into_value).saturating_add(weight).min(MOST));
    }

    /// How much this agent is doubted about the blob; 0 where nothing is known against it.
    pub fn about(&self, agent: &Principal, blob: Sha256) -> u32 {
        self.0.get(&(agent.clone(), blob)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_leaves_what_proves_wrong_is_doubted_more_than_whoever_ends_it_and_a_liar_most() {
        let (doubts, blob) = (Doubts::default(), Sha256::of(b"a"));
        let [liar, leaves, ends, other] = ["l", "v", "e", "o"].map(|name| Principal::agent(name).unwrap());
        doubts.raise(&liar, blob, Cause::Wrong);
        doubts.raise(&leaves, blob, Cause::Unfinished);
        doubts.raise(&ends, blob, Cause::Ended);
        let [liar, leaves, ends, other] = [liar, leaves, ends, other].map(|agent| doubts.about(&agent, blob));
        assert!(liar > leaves && leaves > ends && ends > other && other == 0, "{liar} {leaves} {ends} {other}");
    }

    #[test]
    fn doubt_is_about_one_blob_and_does_not_overflow() {
        let (doubts, agent) = (Doubts::default(), Principal::agent("a").unwrap());
        (0..2000).for_each(|_| doubts.raise(&agent, Sha256::of(b"a"), Cause::Wrong));
        assert_eq!((doubts.about(&agent, Sha256::of(b"a")), doubts.about(&agent, Sha256::of(b"b"))), (MOST, 0));
    }
}
