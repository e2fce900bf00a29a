//! One read by somebody who may read, from its beginning to the record of it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;

use super::AppState;
use crate::audit::Audit;
use crate::identity::Caller;
use crate::protocol::{ByteRange, ChatId, Sha256};
use crate::store::ReadRecord;
use crate::transfer::{Cursor, TransferError};

/// By which way somebody came to some bytes, as far as the route says.
#[derive(Debug, Clone, Default)]
pub struct Way {
    /// The chat of the set.
    pub chat: Option<ChatId>,
    /// The path in the set.
    pub path: Option<String>,
    /// The id of the link that was used.
    pub link: Option<String>,
}

/// A read under way. Its drop is its end: the reader may leave at any time.
pub struct Reading {
    audit: Audit,
    cut: CancellationToken,
    begun: Instant,
    record: ReadRecord,
}

impl Reading {
    /// A read that begins now and of which nothing has been sent.
    pub fn begin(state: &AppState, caller: &Caller, way: Way, sha256: Sha256, range: ByteRange) -> Self {
        let Way { chat, path, link } = way;
        let record = ReadRecord {
            // Given at the end.
            id: 0,
            started_at: state.clock.unix_millis(),
            duration_ms: 0,
            principal: caller.principal.clone(),
            chat,
            agents: Vec::new(),
            sha256,
            path,
            range,
            sent_bytes: 0,
            outcome: TransferError::READER_LEFT.to_owned(),
            transfer: None,
            link,
        };
        Self { audit: state.audit.clone(), cut: state.cut.clone(), begun: Instant::now(), record }
    }

    /// What is read of it, where that is known now.
    pub fn of(&mut self, range: ByteRange) {
        self.record.range = range;
    }

    /// It failed before the first byte.
    pub fn fail(&mut self, error: TransferError) -> TransferError {
        error.code().clone_into(&mut self.record.outcome);
        error
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if self.record.outcome == TransferError::READER_LEFT && self.cut.is_cancelled() {
            TransferError::SHUTDOWN.clone_into(&mut self.record.outcome);
        }
        self.record.duration_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.audit.record(self.record.clone());
    }
}

/// A transfer as a response's body. An error cuts it: HTTP/1.1 stays short of its Content-Length, HTTP/2 is reset.
pub struct Transferred {
    cursor: Cursor,
    reading: Reading,
}

impl Transferred {
    /// A transfer that has begun.
    pub fn new(cursor: Cursor, reading: Reading) -> Self {
        Self { cursor, reading }
    }
}

impl Drop for Transferred {
    fn drop(&mut self) {
        let (live, record) = (self.cursor.live(), &mut self.reading.record);
        record.transfer = Some(live.id.0);
        record.agents = live.agents();
        record.sent_bytes = live.sent();
        self.cursor.outcome().clone_into(&mut record.outcome);
    }
}

impl http_body::Body for Transferred {
    type Data = Bytes;
    type Error = TransferError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, TransferError>>> {
        self.cursor.poll_next(cx).map(|next| next.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.cursor.remaining() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.cursor.remaining())
    }
}
