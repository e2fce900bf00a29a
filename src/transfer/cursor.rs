//! One reader's place on a feed.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::Instant;

use super::live::{Live, TransferId};
use super::pipe::Pipe;
use super::{TransferError, Transfers};
use crate::read::Coverage;

/// The bytes of one reader's range, as they may be released. Dropping it ends the transfer: the last cursor's drop
/// cancels the read on the agent at once.
pub struct Cursor {
    transfers: Arc<Transfers>,
    pipe: Arc<Pipe>,
    live: Arc<Live>,
    coverage: Coverage,
    failed: Option<TransferError>,
}

impl Cursor {
    pub(super) fn new(transfers: Arc<Transfers>, pipe: Arc<Pipe>, live: Arc<Live>) -> Self {
        Self { transfers, pipe, live, coverage: Coverage::None, failed: None }
    }

    pub(super) fn set_coverage(&mut self, coverage: Coverage) {
        self.coverage = coverage;
    }

    pub(super) fn set_failed(&mut self, error: TransferError) {
        self.failed = Some(error);
    }

    /// Which transfer this is.
    pub fn id(&self) -> TransferId {
        self.live.id
    }

    /// The transfer as others see it.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// How it would end if it ended now.
    pub fn outcome(&self) -> &'static str {
        // A connection that was given up for its reader was blocked a little before it took its last piece from here.
        let ignored = || self.pipe.ignored_for(Instant::now()) >= self.transfers.limits.stall_timeout / 8 * 7;
        match self.failed.or_else(|| self.pipe.error()) {
            Some(error) => error.code(),
            None if self.remaining() == 0 => "complete",
            None if self.transfers.cut.is_cancelled() => TransferError::SHUTDOWN,
            None if ignored() => TransferError::ReaderStalled.code(),
            None => TransferError::READER_LEFT,
        }
    }

    /// How much of the range is checked before it can complete.
    pub fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Bytes still to come.
    pub fn remaining(&self) -> u64 {
        self.live.range.len() - self.live.sent()
    }

    /// The next bytes; an error after some means that the response must be cut.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TransferError>>> {
        if self.remaining() == 0 {
            return Poll::Ready(None);
        }
        let next = self.pipe.poll_next(cx);
        match &next {
            Poll::Ready(Some(Ok(piece))) => {
                self.live.add_sent(piece.len() as u64);
                self.transfers.metrics.bytes_sent.inc_by(piece.len() as u64);
            }
            Poll::Ready(Some(Err(error))) => self.failed = Some(*error),
            Poll::Ready(None) | Poll::Pending => {}
        }
        next
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.pipe.leave();
        self.transfers.end(&self.live, self.outcome());
    }
}
