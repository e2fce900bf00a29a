//! Which bytes of a range are checked: what a reader is promised before its response begins.

use crate::protocol::{ByteRange, Chunks, Sha256};

/// How much of a range is checked before its response can complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// Every byte.
    Full,
    /// Every byte but those of the partial chunks at the ends of the range.
    Chunks,
    /// No byte.
    None,
}

/// What of a range is hashed as a whole, chunk by chunk or in one, and may be served from wherever bytes with that hash
/// are.
///
/// A range that begins or ends inside a chunk has the whole chunk read where it covers at least half of it: the bytes that
/// nobody asked for are less than those that could not be checked without them, and the chunk can be kept. Elsewhere the
/// part of the chunk is read alone, and nothing vouches for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    range: ByteRange,
    size: u64,
    chunk_size: Option<u64>,
    /// What is hashed. Empty where nothing is.
    whole: ByteRange,
}

/// Bytes that are hashed as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Where in the blob.
    pub range: ByteRange,
    /// The hash.
    pub sha256: Sha256,
}

impl Promise {
    /// What a range of a blob of `size` bytes is promised.
    pub fn new(range: ByteRange, size: u64, chunks: Option<&Chunks>) -> Self {
        let whole = match chunks {
            Some(chunks) => widened(range, size, chunks.chunk_size),
            None if range == ByteRange::whole(size) => range,
            None => ByteRange { start: range.start, end: range.start },
        };
        Self { range, size, chunk_size: chunks.map(|chunks| chunks.chunk_size), whole }
    }

    /// How much of the range is checked.
    pub fn coverage(&self) -> Coverage {
        let checked = |position: u64| self.holds(position);
        match self.range.is_empty() || (checked(self.range.start) && checked(self.range.end - 1)) {
            true => Coverage::Full,
            false if self.whole.is_empty() => Coverage::None,
            false => Coverage::Chunks,
        }
    }

    /// Whether the byte at `position` is checked.
    pub fn holds(&self, position: u64) -> bool {
        (self.whole.start..self.whole.end).contains(&position)
    }

    /// What is checked, with what is read for that only.
    pub fn whole(&self) -> ByteRange {
        self.whole
    }

    /// What has to be read from `position` on.
    pub fn rest(&self, position: u64) -> ByteRange {
        let start = match self.chunk_size {
            _ if !self.holds(position) => position,
            Some(chunk_size) => position - position % chunk_size,
            None => 0,
        };
        ByteRange { start, end: self.range.end.max(self.whole.end) }
    }

    /// Up to where everything has to be known to be right before the last byte of the range may be given.
    pub fn checked_to(&self) -> u64 {
        if self.whole.end > self.range.end { self.whole.end } else { self.range.end }
    }
}

/// What is hashed as one with the byte at `position`, and its hash.
pub fn object_at(position: u64, (size, sha256): (u64, Sha256), chunks: Option<&Chunks>) -> Option<Object> {
    let Some(chunks) = chunks else { return Some(Object { range: ByteRange::whole(size), sha256 }) };
    let index = position / chunks.chunk_size;
    let start = index * chunks.chunk_size;
    let range = ByteRange { start, end: start.saturating_add(chunks.chunk_size).min(size) };
    // The strict reader holds the list against the size; a position past it is simply not known.
    let sha256 = *chunks.hashes.get(usize::try_from(index).ok()?)?;
    Some(Object { range, sha256 })
}

/// The chunks that a range covers, or at least half of them.
fn widened(range: ByteRange, size: u64, chunk_size: u64) -> ByteRange {
    let nothing = ByteRange { start: range.start, end: range.start };
    if range.is_empty() {
        return nothing;
    }
    let chunk = |position: u64| {
        let start = position - position % chunk_size;
        ByteRange { start, end: start.saturating_add(chunk_size).min(size) }
    };
    let worth = |chunk: ByteRange| {
        let covered = chunk.end.min(range.end) - chunk.start.max(range.start);
        covered >= chunk.len().div_ceil(2)
    };
    let (first, last) = (chunk(range.start), chunk(range.end - 1));
    let start = if worth(first) { first.start } else { first.end };
    let end = if worth(last) { last.end } else { last.start };
    if start < end { ByteRange { start, end } } else { nothing }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn promise(start: u64, end: u64, size: u64, chunked: bool) -> Promise {
        let hashes = (0..size.div_ceil(8)).map(|chunk| Sha256::of(&[chunk as u8])).collect();
        let chunks = Chunks { chunk_size: 8, hashes };
        Promise::new(ByteRange { start, end }, size, chunked.then_some(&chunks))
    }

    #[test]
    fn coverage_follows_the_range() {
        for (start, end, chunked, expected) in [
            (0, 30, true, Coverage::Full),
            (8, 24, true, Coverage::Full),
            (24, 30, true, Coverage::Full),
            // Five of eight bytes are worth the three that are missing, four are too, and three are not.
            (3, 30, true, Coverage::Full),
            (4, 30, true, Coverage::Full),
            (5, 30, true, Coverage::Chunks),
            (0, 20, true, Coverage::Full),
            (0, 19, true, Coverage::Chunks),
            (3, 7, true, Coverage::Full),
            (4, 7, true, Coverage::None),
            (3, 15, true, Coverage::Full),
            (6, 11, true, Coverage::None),
            // The last chunk has six bytes.
            (27, 30, true, Coverage::Full),
            (28, 30, true, Coverage::None),
            (12, 12, true, Coverage::Full),
            (0, 30, false, Coverage::Full),
            (0, 29, false, Coverage::None),
        ] {
            assert_eq!(promise(start, end, 30, chunked).coverage(), expected, "{start}..{end} {chunked}");
        }
    }

    #[test]
    fn what_is_left_is_read_from_the_start_of_its_chunk() {
        let promise = promise(5, 20, 30, true);
        assert_eq!(promise.rest(5), ByteRange { start: 5, end: 24 }, "nothing vouches for the first three bytes");
        assert_eq!(promise.rest(8), ByteRange { start: 8, end: 24 });
        assert_eq!(promise.rest(19), ByteRange { start: 16, end: 24 });
        assert_eq!(promise.checked_to(), 24);
        assert_eq!(self::promise(3, 30, 30, false).rest(9), ByteRange { start: 9, end: 30 });
        assert_eq!(self::promise(0, 30, 30, false).rest(9), ByteRange { start: 0, end: 30 });
    }

    proptest! {
        /// What is read beyond the range is less than a chunk on either side, and less than what it vouches for.
        #[test]
        fn little_is_read_that_nobody_wants(size in 1_u64..200, a in 0_u64..200, b in 0_u64..200) {
            let (start, end) = (a.min(b).min(size - 1), (a.max(b) + 1).min(size));
            let (start, end) = (start.min(end), end);
            let promise = promise(start, end, size, true);
            let read = promise.rest(start);
            prop_assert!(read.start <= start && end <= read.end && read.end <= size);
            prop_assert!(start - read.start <= 4 && read.end - end <= 4);
            for position in start..end {
                let object = object_at(position, (size, Sha256::of(b"")), Some(&Chunks {
                    chunk_size: 8,
                    hashes: vec![Sha256::of(b""); 25],
                })).unwrap();
                let whole = read.start <= object.range.start && object.range.end <= read.end;
                prop_assert_eq!(promise.holds(position), whole, "{}", position);
            }
        }
    }
}
