//! Where wrong bytes were seen, so that a client that resumes does not keep its bad half.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use crate::protocol::{ByteRange, Sha256};

const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
const BLOBS: u64 = 10_000;
const SPANS_PER_BLOB: usize = 64;

/// Chunks (or whole files) of which a reader was sent a part before the hash proved wrong.
#[derive(Debug)]
pub struct Mismatches {
    blobs: Cache<Sha256, Arc<[ByteRange]>>,
}

impl Default for Mismatches {
    fn default() -> Self {
        Self { blobs: Cache::builder().max_capacity(BLOBS).time_to_live(REMEMBERED_FOR).build() }
    }
}

impl Mismatches {
    /// Remembers a span for 24 hours.
    pub fn remember(&self, blob: Sha256, span: ByteRange) {
        self.blobs.entry(blob).and_upsert_with(|known| {
            let mut spans: Vec<_> = known.map(|entry| entry.into_value().to_vec()).unwrap_or_default();
            spans.retain(|other| *other != span);
            spans.push(span);
            spans[spans.len().saturating_sub(SPANS_PER_BLOB)..].into()
        });
    }

    /// Whether a range from `start` on would continue a span whose first part may be wrong.
    pub fn spoil(&self, blob: Sha256, start: u64) -> bool {
        let spans = self.blobs.get(&blob);
        spans.is_some_and(|spans| spans.iter().any(|span| span.start < start && start < span.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_start_inside_the_span_is_spoilt() {
        let (blob, other) = (Sha256::of(b"a"), Sha256::of(b"b"));
        let mismatches = Mismatches::default();
        mismatches.remember(blob, ByteRange { start: 8, end: 16 });
        mismatches.remember(blob, ByteRange { start: 24, end: 32 });
        let spoilt: Vec<_> = (0..40).filter(|start| mismatches.spoil(blob, *start)).collect();
        assert_eq!(spoilt, (9..16).chain(25..32).collect::<Vec<_>>());
        assert!(!mismatches.spoil(other, 9));
    }

    #[test]
    fn spans_of_a_blob_are_bounded() {
        let blob = Sha256::of(b"a");
        let mismatches = Mismatches::default();
        for n in 0..200 {
            mismatches.remember(blob, ByteRange { start: n * 8, end: n * 8 + 8 });
        }
        assert_eq!(mismatches.blobs.get(&blob).unwrap().len(), SPANS_PER_BLOB);
        assert!(mismatches.spoil(blob, 199 * 8 + 1));
    }
}
