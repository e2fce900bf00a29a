//! Where wrong bytes came for a reader, so that a client that resumes does not keep its bad half.
//!
//! Kept by reader and source: an agent that announces a foreign hash and lies about it changes nothing for others.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use crate::protocol::{ByteRange, Principal, Sha256};

const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
const BLOBS: u64 = 10_000;
const SPANS_PER_BLOB: usize = 64;

/// Who read, from whom, and what.
type Key = (Principal, Principal, Sha256);

/// Chunks (or whole files) whose hash proved wrong on the way to a reader, who may hold a part of them.
#[derive(Debug)]
pub struct Mismatches {
    blobs: Cache<Key, Arc<[ByteRange]>>,
}

impl Default for Mismatches {
    fn default() -> Self {
        Self { blobs: Cache::builder().max_capacity(BLOBS).time_to_live(REMEMBERED_FOR).build() }
    }
}

impl Mismatches {
    /// Remembers a span for 24 hours.
    pub fn remember(&self, reader: &Principal, source: &Principal, blob: Sha256, span: ByteRange) {
        self.blobs.entry((reader.clone(), source.clone(), blob)).and_upsert_with(|known| {
            let mut spans: Vec<_> = known.map(|entry| entry.into_value().to_vec()).unwrap_or_default();
            spans.retain(|other| *other != span);
            spans.push(span);
            spans[spans.len().saturating_sub(SPANS_PER_BLOB)..].into()
        });
    }

    /// Whether a range from `start` on would continue a span whose first part may be wrong.
    pub fn spoil(&self, reader: &Principal, source: &Principal, blob: Sha256, start: u64) -> bool {
        let spans = self.blobs.get(&(reader.clone(), source.clone(), blob));
        spans.is_some_and(|spans| spans.iter().any(|span| span.start < start && start < span.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(name: &str) -> Principal {
        format!("user:{name}").parse().unwrap()
    }

    #[test]
    fn only_a_start_inside_the_span_is_spoilt_and_only_for_its_reader() {
        let (blob, other) = (Sha256::of(b"a"), Sha256::of(b"b"));
        let (alice, bob, flow) = (reader("alice"), reader("bob"), reader("flow"));
        let mismatches = Mismatches::default();
        mismatches.remember(&alice, &flow, blob, ByteRange { start: 8, end: 16 });
        mismatches.remember(&alice, &flow, blob, ByteRange { start: 24, end: 32 });
        let spoilt: Vec<_> = (0..40).filter(|start| mismatches.spoil(&alice, &flow, blob, *start)).collect();
        assert_eq!(spoilt, (9..16).chain(25..32).collect::<Vec<_>>());
        assert!(!mismatches.spoil(&alice, &flow, other, 9));
        assert!(!mismatches.spoil(&bob, &flow, blob, 9));
        assert!(!mismatches.spoil(&alice, &reader("honest"), blob, 9));
    }

    #[test]
    fn spans_of_a_blob_are_bounded() {
        let flow = reader("flow");
        let (alice, blob) = (reader("alice"), Sha256::of(b"a"));
        let mismatches = Mismatches::default();
        for n in 0..200 {
            mismatches.remember(&alice, &flow, blob, ByteRange { start: n * 8, end: n * 8 + 8 });
        }
        assert_eq!(mismatches.blobs.get(&(alice.clone(), flow.clone(), blob)).unwrap().len(), SPANS_PER_BLOB);
        assert!(mismatches.spoil(&alice, &flow, blob, 199 * 8 + 1));
    }
}
