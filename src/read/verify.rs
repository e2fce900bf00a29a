//! Which bytes may be released: each whole chunk is hashed as it passes, and the piece that completes it is held back
//! until the hash is right.

use std::sync::Arc;

use bytes::Bytes;

use super::promise::{Object, object_at};
use crate::protocol::{ByteRange, Chunks, Hasher, Sha256};

/// Bytes whose hash is not the announced one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// The chunk, or the whole file where there is no chunk list.
    pub span: ByteRange,
    /// Whether bytes of it had been released before it was complete.
    pub released: bool,
}

/// Bytes that may be released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// Where in the blob they begin.
    pub start: u64,
    /// The bytes.
    pub bytes: Bytes,
    /// What they are hashed with; absent where nothing vouches for them.
    pub object: Option<Object>,
    /// The object is complete with them, and its hash is right.
    pub verified: bool,
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
    object: Object,
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

    /// Whether all of the blob is hashed as one.
    pub fn is_of_whole(&self) -> bool {
        matches!(self.scheme, Scheme::Whole(_))
    }

    /// The first byte that has not been taken in.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Where the span that `position` lies in begins, if its bytes are being hashed.
    pub fn span_start(&self) -> Option<u64> {
        self.current.as_ref().map(|span| span.object.range.start)
    }

    /// Takes in the bytes at [`position`](Self::position) and hands those that may be released to `release`.
    pub fn accept(&mut self, mut bytes: Bytes, mut release: impl FnMut(Released)) -> Result<(), Mismatch> {
        while !bytes.is_empty() {
            let start = self.position;
            let Some(span) = &mut self.current else {
                let until = self.next_span_start().min(self.range.end);
                let piece = split_up_to(&mut bytes, until - start);
                self.position += piece.len() as u64;
                self.current = self.span_at(self.position);
                release(Released { start, bytes: piece, object: None, verified: false });
                continue;
            };
            let object = span.object;
            let piece = split_up_to(&mut bytes, object.range.end - start);
            span.hasher.update(&piece);
            self.position += piece.len() as u64;
            let verified = self.position == object.range.end;
            if verified {
                if span.hasher.finish() != object.sha256 {
                    return Err(Mismatch { span: object.range, released: start > object.range.start });
                }
                self.current = self.span_at(self.position);
            }
            release(Released { start, bytes: piece, object: Some(object), verified });
        }
        Ok(())
    }

    /// Goes back to the start of a span of which nothing had been released, to ask another source for it.
    pub fn retry(&mut self, span: ByteRange) {
        self.position = span.start;
        self.current = self.span_at(span.start);
    }

    fn span_at(&self, position: u64) -> Option<Span> {
        let object = match &self.scheme {
            Scheme::Nothing => return None,
            Scheme::Whole(sha256) => object_at(position, (self.size, *sha256), None),
            Scheme::Chunks(chunks) => object_at(position, (self.size, Sha256([0; 32])), Some(chunks)),
        };
        let object = object.filter(|_| position < self.range.end)?;
        let whole = object.range.start == position && object.range.end <= self.range.end;
        whole.then(|| Span { object, hasher: Hasher::default() })
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

    #[test]
    fn a_whole_file_mismatch_holds_back_the_last_piece() {
        let (bytes, _, _) = blob(20);
        let range = ByteRange { start: 0, end: 20 };
        let mut verifier = Verifier::new(range, 20, Sha256::of(b"other"), None);
        let mut released = Vec::new();
        assert_eq!(verifier.accept(bytes.slice(..15), |piece| released.extend_from_slice(&piece.bytes)), Ok(()));
        let result = verifier.accept(bytes.slice(15..), |piece| released.extend_from_slice(&piece.bytes));
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
        let mismatch = verifier.accept(Bytes::from(lie), |piece| released.extend_from_slice(&piece.bytes)).unwrap_err();
        assert_eq!(mismatch, Mismatch { span: ByteRange { start: 8, end: 16 }, released: false });
        verifier.retry(mismatch.span);
        assert_eq!(verifier.accept(bytes.slice(8..), |piece| released.extend_from_slice(&piece.bytes)), Ok(()));
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
                let result = verifier.accept(bytes.slice(position..until), |piece| released.extend_from_slice(&piece.bytes));
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
                match verifier.accept(lie.slice(position..until), |piece| released += piece.bytes.len()) {
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
