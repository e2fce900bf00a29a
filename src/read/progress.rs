//! The progress of one `blob.read`: every frame that answers it is held against what was asked and granted.

use crate::protocol::ByteRange;
use crate::protocol::frames::BlobEnd;
use crate::protocol::limits::{CREDIT_MAX, DATA_PAYLOAD};

/// A rule of the relay (specification section 4) that an agent broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Violation {
    /// A frame that the read's credit did not cover.
    #[error("sent a frame without credit")]
    NoCredit,
    /// A frame whose offset is not where the last one ended.
    #[error("sent bytes out of sequence")]
    OutOfSequence,
    /// Bytes past the end of the read.
    #[error("sent more bytes than were asked")]
    BeyondLength,
    /// A frame without payload: it uses credit and brings the read no further.
    #[error("sent a frame without payload")]
    EmptyFrame,
    /// Far more frames than the bytes need.
    #[error("sent its bytes in needlessly small frames")]
    TinyFrames,
    /// A `blob.end` before every byte had come.
    #[error("ended the read before every byte had come")]
    EndedEarly,
    /// A `blob.end` that names another offset, length or count than the read had.
    #[error("ended the read with another offset, length or byte count")]
    EndMismatch,
    /// A frame for a read that this connection does not have.
    #[error("answered a read that this connection does not have")]
    UnknownRead,
    /// A binary frame that is not `blob.data`.
    #[error("sent a malformed binary frame")]
    MalformedData,
    /// A text frame that is not a frame.
    #[error("sent a malformed text frame")]
    MalformedText,
    /// More at once than the connection may have pending.
    #[error("sent more than may be pending")]
    Flood,
}

impl Violation {
    /// Every rule, so that each has its counter from the start.
    pub const ALL: [Self; 11] = [
        Self::NoCredit,
        Self::OutOfSequence,
        Self::BeyondLength,
        Self::EmptyFrame,
        Self::TinyFrames,
        Self::EndedEarly,
        Self::EndMismatch,
        Self::UnknownRead,
        Self::MalformedData,
        Self::MalformedText,
        Self::Flood,
    ];

    /// The rule's name in metrics and logs.
    pub fn rule(self) -> &'static str {
        match self {
            Self::NoCredit => "no_credit",
            Self::OutOfSequence => "out_of_sequence",
            Self::BeyondLength => "beyond_length",
            Self::EmptyFrame => "empty_frame",
            Self::TinyFrames => "tiny_frames",
            Self::EndedEarly => "ended_early",
            Self::EndMismatch => "end_mismatch",
            Self::UnknownRead => "unknown_read",
            Self::MalformedData => "malformed_data",
            Self::MalformedText => "malformed_text",
            Self::Flood => "flood",
        }
    }
}

/// The specification bounds a payload from above only, and an agent that passes on a slow stream has a reason for small
/// ones. But each frame costs a pass through the gateway, so there may be this many and one for each KiB of payload.
const FRAMES_ANYWAY: u64 = 1024;
const FRAME_MEAN: u64 = 1024;

/// What was asked and granted, and how much of it has come.
#[derive(Debug, Clone)]
pub struct Progress {
    range: ByteRange,
    received: u64,
    frames: u64,
    credit: u32,
}

impl Progress {
    /// A read of `range` with this much credit, in frames.
    pub fn new(range: ByteRange, credit: u32) -> Self {
        Self { range, received: 0, frames: 0, credit: credit.min(CREDIT_MAX) }
    }

    /// Takes in a `blob.data` frame: its offset in the blob and its payload's length.
    pub fn data(&mut self, offset: u64, len: u64) -> Result<(), Violation> {
        if self.credit == 0 {
            return Err(Violation::NoCredit);
        }
        if offset != self.range.start + self.received {
            return Err(Violation::OutOfSequence);
        }
        if len > self.remaining() {
            return Err(Violation::BeyondLength);
        }
        if len == 0 {
            return Err(Violation::EmptyFrame);
        }
        self.credit -= 1;
        self.received += len;
        self.frames += 1;
        if self.frames > FRAMES_ANYWAY + self.received / FRAME_MEAN {
            return Err(Violation::TinyFrames);
        }
        Ok(())
    }

    /// Takes in the `blob.end`.
    pub fn end(&self, end: &BlobEnd) -> Result<(), Violation> {
        if end.offset != self.range.start || end.length != self.range.len() || end.bytes != self.received {
            return Err(Violation::EndMismatch);
        }
        if self.remaining() > 0 {
            return Err(Violation::EndedEarly);
        }
        Ok(())
    }

    /// Adds credit, as far as the cap allows; the answer is how much was added.
    pub fn grant(&mut self, frames: u32) -> u32 {
        let added = frames.min(CREDIT_MAX - self.credit);
        self.credit += added;
        added
    }

    /// Frames that the agent may still send.
    pub fn credit(&self) -> u32 {
        self.credit
    }

    /// Bytes that have not come yet.
    pub fn remaining(&self) -> u64 {
        self.range.len() - self.received
    }

    /// How much more credit the rest of the read needs if the agent fills its frames.
    pub fn credit_needed(&self) -> u32 {
        let frames = self.remaining().div_ceil(DATA_PAYLOAD as u64);
        u32::try_from(frames).unwrap_or(u32::MAX).saturating_sub(self.credit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = DATA_PAYLOAD as u64;

    fn read(len: u64, credit: u32) -> Progress {
        Progress::new(ByteRange { start: 1000, end: 1000 + len }, credit)
    }

    fn end(offset: u64, length: u64, bytes: u64) -> BlobEnd {
        BlobEnd { request_id: "r".parse().unwrap(), offset, length, bytes }
    }

    #[test]
    fn frames_in_order_within_credit_are_taken() {
        let mut read = read(FRAME + 1, 2);
        assert_eq!(read.data(1000, FRAME), Ok(()));
        assert_eq!(read.data(1000 + FRAME, 1), Ok(()));
        assert_eq!(read.end(&end(1000, FRAME + 1, FRAME + 1)), Ok(()));
    }

    #[test]
    fn each_broken_rule_is_named() {
        assert_eq!(read(10, 0).data(1000, 1), Err(Violation::NoCredit));
        assert_eq!(read(10, 1).data(1001, 1), Err(Violation::OutOfSequence));
        assert_eq!(read(10, 1).data(999, 1), Err(Violation::OutOfSequence));
        assert_eq!(read(10, 1).data(1000, 11), Err(Violation::BeyondLength));
        assert_eq!(read(10, 1).data(1000, 0), Err(Violation::EmptyFrame));
        assert_eq!(read(10, 1).end(&end(1000, 10, 0)), Err(Violation::EndedEarly));
        assert_eq!(read(10, 1).end(&end(1000, 10, 10)), Err(Violation::EndMismatch));
        let mut done = read(10, 1);
        assert_eq!(done.data(1000, 10), Ok(()));
        for wrong in [end(1001, 10, 10), end(1000, 9, 10), end(1000, 10, 9)] {
            assert_eq!(done.end(&wrong), Err(Violation::EndMismatch));
        }
    }

    #[test]
    fn frames_may_be_small_but_not_without_end() {
        for (len, last) in [(1, Err(Violation::TinyFrames)), (1000, Err(Violation::TinyFrames)), (1024, Ok(()))] {
            let mut read = read(64 << 20, 0);
            let mut outcome = Ok(());
            for n in 0..(64 << 20) / len {
                read.grant(1);
                outcome = read.data(1000 + n * len, len);
                if outcome.is_err() {
                    break;
                }
            }
            assert_eq!(outcome, last, "{len} bytes a frame");
        }
    }

    #[test]
    fn a_duplicate_frame_is_out_of_sequence() {
        let mut read = read(20, 4);
        assert_eq!(read.data(1000, 10), Ok(()));
        assert_eq!(read.data(1000, 10), Err(Violation::OutOfSequence));
    }

    #[test]
    fn credit_is_capped_and_counted() {
        let mut read = read(100 * FRAME, 4);
        assert_eq!(read.credit_needed(), 96);
        assert_eq!(read.grant(2000), CREDIT_MAX - 4);
        assert_eq!(read.credit(), CREDIT_MAX);
        assert_eq!(read.credit_needed(), 0);
    }

    #[test]
    fn rule_names_are_distinct() {
        let names: std::collections::HashSet<_> = Violation::ALL.iter().map(|v| v.rule()).collect();
        assert_eq!(names.len(), Violation::ALL.len());
    }
}
