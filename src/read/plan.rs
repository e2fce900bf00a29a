//! From a range to reads: what to ask next, and what remains after a cut.

use crate::protocol::ByteRange;
use crate::protocol::limits::READ_BYTES;

/// The bytes of one range that have not been asked for yet.
#[derive(Debug, Clone)]
pub struct Plan {
    next: u64,
    end: u64,
}

impl Plan {
    /// Nothing of `range` has been asked yet.
    pub fn new(range: ByteRange) -> Self {
        Self { next: range.start, end: range.end }
    }

    /// Whether everything has been asked.
    pub fn is_done(&self) -> bool {
        self.next == self.end
    }

    /// Bytes not asked yet.
    pub fn remaining(&self) -> u64 {
        self.end - self.next
    }

    /// The next read: at most `limit` bytes and at most what one `blob.read` may ask (64 MiB).
    pub fn take(&mut self, limit: u64) -> Option<ByteRange> {
        let len = self.remaining().min(limit.max(1)).min(READ_BYTES);
        if len == 0 {
            return None;
        }
        let read = ByteRange { start: self.next, end: self.next + len };
        self.next = read.end;
        Some(read)
    }

    /// All that has not been asked, however much it is.
    pub fn take_rest(&mut self) -> Option<ByteRange> {
        let rest = ByteRange { start: self.next, end: self.end };
        self.next = self.end;
        (!rest.is_empty()).then_some(rest)
    }

    /// A read ended early: everything from `position` has to be asked again.
    pub fn rewind(&mut self, position: u64) {
        debug_assert!(position <= self.next, "a position not asked yet cannot have been reached");
        self.next = position.min(self.next);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_range_needs_no_read() {
        let mut plan = Plan::new(ByteRange { start: 5, end: 5 });
        assert!(plan.is_done());
        assert_eq!(plan.take(u64::MAX), None);
    }

    proptest! {
        /// However reads are sized and cut, the bytes kept are the range, each once and in order.
        #[test]
        fn reads_cover_the_range(
            start in 0_u64..1 << 40,
            len in 0_u64..300 << 20,
            steps in prop::collection::vec((1_u64..100 << 20, 0_u64..120), 1..200),
        ) {
            let range = ByteRange { start, end: start + len };
            let mut plan = Plan::new(range);
            let mut reached = start;
            for (limit, kept_percent) in steps {
                let Some(read) = plan.take(limit) else { break };
                prop_assert!(read.len() <= READ_BYTES && read.len() <= limit && !read.is_empty());
                prop_assert_eq!(read.start, reached);
                let kept = read.len() * kept_percent.min(100) / 100;
                reached += kept;
                if kept < read.len() {
                    plan.rewind(reached);
                }
                prop_assert_eq!(plan.remaining(), range.end - reached);
            }
        }
    }
}
