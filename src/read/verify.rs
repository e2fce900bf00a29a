//! Which bytes may be released: each whole chunk is hashed as it passes, and the piece that completes it is held back
//! until the hash is right.

use std::sync::Arc;

use bytes::Bytes;

use crate::protocol::{ByteRange, Chunks, Hasher, Sha256};

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

/// Bytes whose hash is not the announced one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// The chunk, or the whole file where there is no chunk list.
    pub span: ByteRange,
    /// Whether bytes of it had been released before it was complete.
    pub released: bool,
}

/// Checks the bytes of one range, in order, across reads, cuts and sources. No byte is hashed twice.
#[derive(Debug)]
pub struct Verifier {
    scheme: Scheme,
    range: ByteRange,
    size: u64,
    position: u64,
    /// The span being hashed, when the bytes at `position` belong to one that the range holds whole.
    current: Option<Span>,
}

#[derive(Debug)]
enum Scheme {
    Whole(Sha256),
    Chunks(Arc<Chunks>),
    Nothing,
}

#[derive(Debug)]
struct Span {
    range: ByteRange,
    expected: Sha256,
    hasher: Hasher,
}

impl Verifier {
    /// A verifier for `range` of a blob of `size` bytes: by the entry's own chunk list where it has one, else by the
    /// whole blob's hash when the range is the whole blob.
    pub fn new(range: ByteRange, size: u64, sha256: Sha256, chunks: Option<Arc<Chunks>>) -> Self {
        let whole = range.start == 0 && range.end == size;
        let scheme = match chunks {
            Some(chunks) => Scheme::Chunks(chunks),
            None if whole => Scheme::Whole(sha256),
            None => Scheme::Nothing,
        };
        let mut verifier = Self { scheme, range, size, position: range.start, current: None };
        verifier.current = verifier.span_at(range.start);
        verifier
    }

    /// How much of the range this verifier checks.
    pub fn coverage(&self) -> Coverage {
        match &self.scheme {
            Scheme::Whole(_) => Coverage::Full,
            Scheme::Nothing => Coverage::None,
            Scheme::Chunks(chunks) => {
                let starts_whole = self.range.start.is_multiple_of(chunks.chunk_size);
                let ends_whole = self.range.end == self.size || self.range.end.is_multiple_of(chunks.chunk_size);
                let first_boundary = self.range.start.next_multiple_of(chunks.chunk_size);
                let holds_a_chunk = first_boundary.saturating_add(chunks.chunk_size).min(self.size) <= self.range.end
                    && first_boundary < self.range.end;
                match (starts_whole && ends_whole, holds_a_chunk) {
                    (true, _) => Coverage::Full,
                    (false, true) => Coverage::Chunks,
                    (false, false) => Coverage::None,
                }
            }
        }
    }

    /// The first byte that has not been taken in.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Where the span that `position` lies in begins, if its bytes are being hashed.
    pub fn span_start(&self) -> Option<u64> {
        self.current.as_ref().map(|span| span.range.start)
    }

    /// Takes in the bytes at [`position`](Self::position) and hands those that may be released to `release`.
    pub fn accept(&mut self, mut bytes: Bytes, mut release: impl FnMut(Bytes)) -> Result<(), Mismatch> {
        while !bytes.is_empty() {
            let Some(span) = &mut self.current else {
                let until = self.next_span_start().min(self.range.end);
                let piece = split_up_to(&mut bytes, until - self.position);
                self.position += piece.len() as u64;
                self.current = self.span_at(self.position);
                release(piece);
                continue;
            };
            let piece = split_up_to(&mut bytes, span.range.end - self.position);
            let piece_start = self.position;
            span.hasher.update(&piece);
            self.position += piece.len() as u64;
            if self.position == span.range.end {
                if span.hasher.finish() != span.expected {
                    return Err(Mismatch { span: span.range, released: piece_start > span.range.start });
                }
                self.current = self.span_at(self.position);
            }
            release(piece);
        }
        Ok(())
    }

    /// Goes back to the start of a span of which nothing had been released, to ask another source for it.
    pub fn retry(&mut self, span: ByteRange) {
        self.position = span.start;
        self.current = self.span_at(span.start);
    }

    fn span_at(&self, position: u64) -> Option<Span> {
        if position >= self.range.end {
            return None;
        }
        let (range, expected) = match &self.scheme {
            Scheme::Whole(sha256) => (self.range, *sha256),
            Scheme::Nothing => return None,
            Scheme::Chunks(chunks) => {
                let index = position / chunks.chunk_size;
                let start = index * chunks.chunk_size;
                let range = ByteRange { start, end: start.saturating_add(chunks.chunk_size).min(self.size) };
                // The strict reader holds the list against the size; a position past it is simply not checked.
                (range, *chunks.hashes.get(usize::try_from(index).ok()?)?)
            }
        };
        let whole = range.start == position && range.end <= self.range.end;
        whole.then(|| Span { range, expected, hasher: Hasher::default() })
    }

    fn next_span_start(&self) -> u64 {
        match &self.scheme {
            Scheme::Chunks(chunks) => (self.position + 1).next_multiple_of(chunks.chunk_size),
            Scheme::Whole(_) | Scheme::Nothing => self.range.end,
        }
    }
}

fn split_up_to(bytes: &mut Bytes, len: u64) -> Bytes {
    bytes.split_to(usize::try_from(len).map_or(bytes.len(), |len| len.min(bytes.len())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A blob whose chunks are 8 bytes; real chunk sizes change nothing here but the test's speed.
    fn blob(len: usize) -> (Bytes, Sha256, Arc<Chunks>) {
        let bytes: Bytes = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let hashes = bytes.chunks(8).map(Sha256::of).collect();
        let sha256 = Sha256::of(&bytes);
        (bytes, sha256, Arc::new(Chunks { chunk_size: 8, hashes }))
    }

    fn coverage(start: u64, end: u64, size: usize, chunked: bool) -> Coverage {
        let (_, sha256, chunks) = blob(size);
        Verifier::new(ByteRange { start, end }, size as u64, sha256, chunked.then_some(chunks)).coverage()
    }

    #[test]
    fn coverage_follows_the_range() {
        assert_eq!(coverage(0, 30, 30, true), Coverage::Full);
        assert_eq!(coverage(8, 24, 30, true), Coverage::Full);
        assert_eq!(coverage(24, 30, 30, true), Coverage::Full);
        assert_eq!(coverage(3, 30, 30, true), Coverage::Chunks);
        assert_eq!(coverage(0, 20, 30, true), Coverage::Chunks);
        assert_eq!(coverage(3, 7, 30, true), Coverage::None);
        assert_eq!(coverage(3, 15, 30, true), Coverage::None);
        assert_eq!(coverage(25, 30, 30, true), Coverage::None);
        assert_eq!(coverage(0, 30, 30, false), Coverage::Full);
        assert_eq!(coverage(0, 29, 30, false), Coverage::None);
    }

    #[test]
    fn a_whole_file_mismatch_holds_back_the_last_piece() {
        let (bytes, _, _) = blob(20);
        let range = ByteRange { start: 0, end: 20 };
        let mut verifier = Verifier::new(range, 20, Sha256::of(b"other"), None);
        let mut released = Vec::new();
        assert_eq!(verifier.accept(bytes.slice(..15), |piece| released.extend_from_slice(&piece)), Ok(()));
        let result = verifier.accept(bytes.slice(15..), |piece| released.extend_from_slice(&piece));
        assert_eq!(result, Err(Mismatch { span: range, released: true }));
        assert_eq!(released.len(), 15);
    }

    #[test]
    fn a_chunk_in_one_piece_can_be_asked_again() {
        let (bytes, sha256, chunks) = blob(16);
        let mut verifier = Verifier::new(ByteRange { start: 0, end: 16 }, 16, sha256, Some(chunks));
        let mut released = Vec::new();
        let mut lie = bytes.to_vec();
        lie[9] ^= 1;
        let mismatch = verifier.accept(Bytes::from(lie), |piece| released.extend_from_slice(&piece)).unwrap_err();
        assert_eq!(mismatch, Mismatch { span: ByteRange { start: 8, end: 16 }, released: false });
        verifier.retry(mismatch.span);
        assert_eq!(verifier.accept(bytes.slice(8..), |piece| released.extend_from_slice(&piece)), Ok(()));
        assert_eq!(released, bytes);
    }

    proptest! {
        /// Whatever the frames' sizes, right bytes come out unchanged and in order.
        #[test]
        fn right_bytes_pass(
            size in 1_usize..100, from in 0_usize..100, to in 0_usize..100,
            frames in prop::collection::vec(1_usize..20, 1..120), chunked: bool,
        ) {
            let (bytes, sha256, chunks) = blob(size);
            let (start, end) = (from.min(to) % size, (from.max(to) % size) + 1);
            let (start, end) = (start.min(end), end.max(start));
            let range = ByteRange { start: start as u64, end: end as u64 };
            let mut verifier = Verifier::new(range, size as u64, sha256, chunked.then_some(chunks));
            let mut released = Vec::new();
            let mut position = start;
            for frame in frames.iter().cycle() {
                if position == end { break }
                let until = (position + frame).min(end);
                let result = verifier.accept(bytes.slice(position..until), |piece| released.extend_from_slice(&piece));
                prop_assert_eq!(result, Ok(()));
                position = until;
                prop_assert_eq!(verifier.position(), position as u64);
                prop_assert_eq!(released.len(), position - start);
            }
            prop_assert_eq!(&released[..], &bytes[start..end]);
        }

        /// A wrong byte in a chunk that the range holds whole is never followed by the end of that chunk.
        #[test]
        fn wrong_bytes_never_complete(
            size in 1_usize..100, wrong in 0_usize..100, frames in prop::collection::vec(1_usize..20, 1..120),
            chunked: bool,
        ) {
            let (bytes, sha256, chunks) = blob(size);
            let wrong = wrong % size;
            let mut lie = bytes.to_vec();
            lie[wrong] ^= 0x40;
            let lie = Bytes::from(lie);
            let range = ByteRange { start: 0, end: size as u64 };
            let mut verifier = Verifier::new(range, size as u64, sha256, chunked.then_some(chunks));
            let mut released = 0;
            let mut position = 0;
            let mut caught = None;
            for frame in frames.iter().cycle() {
                if position == size { break }
                let until = (position + frame).min(size);
                match verifier.accept(lie.slice(position..until), |piece| released += piece.len()) {
                    Ok(()) => position = until,
                    Err(mismatch) => { caught = Some(mismatch); break }
                }
            }
            let caught = caught.expect("a wrong byte is found");
            prop_assert!(caught.span.start <= wrong as u64 && (wrong as u64) < caught.span.end);
            prop_assert!((released as u64) < caught.span.end);
            prop_assert_eq!(caught.released, released as u64 > caught.span.start);
        }
    }
}
