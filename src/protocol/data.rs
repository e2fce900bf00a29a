//! The binary `blob.data` frame (specification section 4).
//!
//! | byte | content |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | kind, 1 (data) |
//! | 2 to 3 | request id length n, big-endian |
//! | 4 to 4+n-1 | request id, UTF-8 |
//! | 4+n to 11+n | offset of the payload's first byte in the blob, big-endian |
//! | 12+n onwards | payload, at most 256 KiB |

use bytes::{BufMut, Bytes, BytesMut};

use super::limits::{DATA_PAYLOAD, REQUEST_ID_BYTES};

const VERSION: u8 = 1;
const KIND_DATA: u8 = 1;
const FIXED: usize = 12;

/// The largest valid frame, in bytes.
pub const FRAME_MAX: usize = FIXED + REQUEST_ID_BYTES + DATA_PAYLOAD;

/// One frame of a read's bytes. The payload shares the received buffer: nothing is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFrame {
    /// The read this belongs to.
    pub request_id: super::RequestId,
    /// Where the payload's first byte stands in the blob.
    pub offset: u64,
    /// At most 262,144 bytes of the blob. None brings its read no further: that is the read's to judge.
    pub payload: Bytes,
}

/// A binary frame that is not a `blob.data` frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidData {
    /// Shorter than its own header.
    #[error("the frame ends inside its header")]
    Truncated,
    /// A version this gateway does not speak.
    #[error("version {0} is not 1")]
    Version(u8),
    /// A kind that is not data.
    #[error("kind {0} is not 1 (data)")]
    Kind(u8),
    /// The request id is empty, longer than 64 bytes, or not UTF-8.
    #[error("the request id is not 1 to 64 bytes of UTF-8")]
    RequestId,
    /// More payload than a frame may carry.
    #[error("a payload of {0} bytes is over 262144")]
    PayloadTooLarge(usize),
}

impl DataFrame {
    /// Reads a frame; every bound is checked before the bytes behind it are looked at.
    pub fn decode(frame: Bytes) -> Result<Self, InvalidData> {
        let [version, kind, n_high, n_low, ..] = frame[..] else {
            return Err(InvalidData::Truncated);
        };
        if version != VERSION {
            return Err(InvalidData::Version(version));
        }
        if kind != KIND_DATA {
            return Err(InvalidData::Kind(kind));
        }
        let id_len = usize::from(u16::from_be_bytes([n_high, n_low]));
        if id_len == 0 || id_len > REQUEST_ID_BYTES {
            return Err(InvalidData::RequestId);
        }
        if frame.len() < FIXED + id_len {
            return Err(InvalidData::Truncated);
        }
        let payload_len = frame.len() - FIXED - id_len;
        if payload_len > DATA_PAYLOAD {
            return Err(InvalidData::PayloadTooLarge(payload_len));
        }
        let request_id = std::str::from_utf8(&frame[4..4 + id_len])
            .ok()
            .and_then(|id| id.parse().ok())
            .ok_or(InvalidData::RequestId)?;
        let mut offset = [0; 8];
        offset.copy_from_slice(&frame[4 + id_len..FIXED + id_len]);
        Ok(Self { request_id, offset: u64::from_be_bytes(offset), payload: frame.slice(FIXED + id_len..) })
    }

    /// Starts a frame: the header, with room for `payload_len` bytes that the caller then appends. A producer reads
    /// from its file straight into the returned buffer.
    pub fn header(request_id: &super::RequestId, offset: u64, payload_len: usize) -> BytesMut {
        let id = request_id.as_str().as_bytes();
        let mut frame = BytesMut::with_capacity(FIXED + id.len() + payload_len);
        frame.put_u8(VERSION);
        frame.put_u8(KIND_DATA);
        frame.put_u16(id.len() as u16); // a RequestId is at most 64 bytes
        frame.put_slice(id);
        frame.put_u64(offset);
        frame
    }

    /// The frame's bytes.
    pub fn encode(&self) -> Bytes {
        let mut frame = Self::header(&self.request_id, self.offset, self.payload.len());
        frame.put_slice(&self.payload);
        frame.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(id: &str, offset: u64, payload: &[u8]) -> DataFrame {
        DataFrame { request_id: id.parse().unwrap(), offset, payload: Bytes::copy_from_slice(payload) }
    }

    fn decode(bytes: &[u8]) -> Result<DataFrame, InvalidData> {
        DataFrame::decode(Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn the_bytes_of_the_specification() {
        let bytes = [1, 1, 0, 2, b'r', b'1', 0, 0, 0, 0, 0, 4, 0, 0, b'a', b'b', b'c'];
        assert_eq!(frame("r1", 0x4_0000, b"abc").encode(), bytes.as_slice());
        assert_eq!(decode(&bytes), Ok(frame("r1", 0x4_0000, b"abc")));
    }

    #[test]
    fn each_bound() {
        let valid = frame("r1", 7, b"abc").encode();
        let change = |at: usize, to: u8| {
            let mut bytes = valid.to_vec();
            bytes[at] = to;
            decode(&bytes)
        };
        assert_eq!(change(0, 2), Err(InvalidData::Version(2)));
        assert_eq!(change(1, 0), Err(InvalidData::Kind(0)));
        assert_eq!(change(3, 0), Err(InvalidData::RequestId));
        assert_eq!(change(3, 65), Err(InvalidData::RequestId));
        assert_eq!(change(2, 255), Err(InvalidData::RequestId));
        assert_eq!(change(3, 64), Err(InvalidData::Truncated));
        assert_eq!(change(4, 0xff), Err(InvalidData::RequestId));
        assert_eq!(decode(&valid[..14]), Ok(frame("r1", 7, b"")));
        for length in 0..14 {
            assert_eq!(decode(&valid[..length]), Err(InvalidData::Truncated), "{length} bytes");
        }
    }

    #[test]
    fn the_largest_frame_and_one_byte_more() {
        let id = "r".repeat(REQUEST_ID_BYTES);
        let largest = frame(&id, u64::MAX, &vec![7; DATA_PAYLOAD]);
        let bytes = largest.encode();
        assert_eq!(bytes.len(), FRAME_MAX);
        assert_eq!(DataFrame::decode(bytes), Ok(largest));
        let over = frame("r", 0, &vec![7; DATA_PAYLOAD + 1]).encode();
        assert_eq!(DataFrame::decode(over), Err(InvalidData::PayloadTooLarge(DATA_PAYLOAD + 1)));
    }

    #[test]
    fn the_payload_is_not_copied() {
        let bytes = frame("r1", 0, b"abc").encode();
        let start = bytes.as_ptr();
        let decoded = DataFrame::decode(bytes).unwrap();
        assert_eq!(decoded.payload.as_ptr(), start.wrapping_add(14));
    }

    proptest! {
        #[test]
        fn round_trip(id in "\\PC{1,16}", offset: u64, payload in proptest::collection::vec(any::<u8>(), 0..500)) {
            let frame = frame(&id, offset, &payload);
            prop_assert_eq!(DataFrame::decode(frame.encode()), Ok(frame));
        }

        /// Whatever is accepted is within the bounds, and is the one encoding of what it means.
        #[test]
        fn any_bytes(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            plausible: bool,
            id_length in 0..70_u8,
        ) {
            if plausible && bytes.len() > 4 {
                bytes[..4].copy_from_slice(&[1, 1, 0, id_length]);
                bytes[4..].iter_mut().take(usize::from(id_length)).for_each(|byte| *byte &= 0x7f);
            }
            if let Ok(frame) = decode(&bytes) {
                prop_assert!((1..=REQUEST_ID_BYTES).contains(&frame.request_id.as_str().len()));
                prop_assert!(frame.payload.len() <= DATA_PAYLOAD);
                prop_assert_eq!(frame.encode(), bytes);
            }
        }
    }
}
