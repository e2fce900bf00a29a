//! The reads of one connection, as a state machine without sockets, files or clock (specification section 4).
//!
//! The owner hands in what the platform sent and the frames that were read from files; the relay says what to read
//! next and what to send next. It never sends ahead of credit, gives each read one frame per turn, and is silent about
//! a cancelled read from the moment of the cancel.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::registry::{Blob, OpenBlob, Registry};
use super::{AgentEvent, EventSink};
use crate::protocol::RequestId;
use crate::protocol::frames::{BlobEnd, BlobError, BlobErrorCode, BlobRead, ErrorBody};
use crate::protocol::limits::{CONCURRENT_READS, CREDIT_DEFAULT, CREDIT_MAX, DATA_PAYLOAD, READ_BYTES};

/// Most frames of one read that are read from its file before they are sent: enough to keep a fast reader fed while
/// the next are read, and 16 MiB over all reads.
const READ_AHEAD: usize = 4;

/// The reads that one process serves at once, shared by its connections.
#[derive(Debug, Clone)]
pub(super) struct Slots(Arc<Semaphore>);

impl Default for Slots {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(CONCURRENT_READS)))
    }
}

/// The reads of one connection.
pub(super) struct Relay {
    registry: Arc<Registry>,
    slots: Slots,
    events: EventSink,
    /// Whether the folder is published again when it changes.
    is_watched: bool,
    /// The read that was served longest ago first.
    reads: VecDeque<Read>,
    replies: VecDeque<Reply>,
    next_key: u64,
}

#[derive(Debug)]
struct Read {
    /// Tells this read from a later one under the same request id.
    key: u64,
    request_id: RequestId,
    offset: u64,
    length: u64,
    blob: Blob,
    /// Absent while a fetch holds it, and before the first.
    open: Option<OpenBlob>,
    fetching: bool,
    /// Some of it was read from the file.
    begun: bool,
    /// Read from the file and not sent, in order.
    fetched: VecDeque<Bytes>,
    /// Bytes of the read that were asked of the file so far.
    asked: u64,
    /// Frames that may still be sent.
    credit: u32,
    /// Held for as long as the read lives.
    _slot: OwnedSemaphorePermit,
}

/// What ends a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    End(BlobEnd),
    Error(BlobError),
}

/// The next thing to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outgoing {
    Reply(Reply),
    /// A whole binary frame.
    Data(Bytes),
}

/// Frames to be read from a file.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) key: u64,
    pub(super) request_id: RequestId,
    pub(super) blob: Blob,
    /// The blob, when an earlier fetch opened it.
    pub(super) open: Option<OpenBlob>,
    /// Of the first frame's payload, in the blob.
    pub(super) offset: u64,
    /// Over all frames; every frame but the last is full.
    pub(super) length: u64,
}

/// What a [`Fetch`] came to.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) key: u64,
    /// The open blob and its frames, or why there are none.
    pub(super) outcome: std::io::Result<(OpenBlob, Vec<Bytes>)>,
}

impl Relay {
    pub(super) fn new(registry: Arc<Registry>, slots: Slots, events: EventSink, is_watched: bool) -> Self {
        let (reads, replies) = (VecDeque::new(), VecDeque::new());
        Self { registry, slots, events, is_watched, reads, replies, next_key: 0 }
    }

    /// Takes a `blob.read` in. Everything wrong with it is answered with a `blob.error`.
    pub(super) fn read(&mut self, read: BlobRead) {
        if let Err((code, message)) = self.admit(&read) {
            self.refuse(read.request_id, code, message);
        }
    }

    fn admit(&mut self, read: &BlobRead) -> Result<(), (BlobErrorCode, &'static str)> {
        if self.reads.iter().any(|known| known.request_id == read.request_id) {
            return Err((BlobErrorCode::DuplicateRequest, "a read with this request_id is in progress"));
        }
        if read.length > READ_BYTES {
            return Err((BlobErrorCode::BadRequest, "one read asks for at most 64 MiB"));
        }
        let blob = self.registry.find(&read.sha256).ok_or((BlobErrorCode::UnknownBlob, "no such blob is published"))?;
        if read.offset.checked_add(read.length).is_none_or(|end| end > blob.size()) {
            return Err((BlobErrorCode::RangeInvalid, "the range does not lie within the blob"));
        }
        let slot = self.slots.0.clone().try_acquire_owned();
        let slot =
            slot.map_err(|_| (BlobErrorCode::TooManyReads, "16 reads are in progress, the most served at once"))?;
        if read.length == 0 {
            // Legal, and over before it began: an empty file has no other read.
            self.replies.push_back(Reply::End(end_of(read.request_id.clone(), read.offset, 0)));
            return Ok(());
        }
        if let Some(url) = self.registry.take_unasked(&blob) {
            (self.events)(AgentEvent::Bypassed { url });
        }
        self.next_key += 1;
        self.reads.push_back(Read {
            key: self.next_key,
            request_id: read.request_id.clone(),
            offset: read.offset,
            length: read.length,
            blob,
            open: None,
            fetching: false,
            begun: false,
            fetched: VecDeque::new(),
            asked: 0,
            credit: read.credit.unwrap_or(CREDIT_DEFAULT).min(CREDIT_MAX),
            _slot: slot,
        });
        Ok(())
    }

    /// Answers a `blob.read` that could not be read as one.
    pub(super) fn refuse(&mut self, request_id: RequestId, code: BlobErrorCode, message: &str) {
        let error = ErrorBody::new(code.code(), message);
        self.replies.push_back(Reply::Error(BlobError { request_id, error }));
    }

    /// Takes a `blob.credit` in. One for an unknown read is late and means nothing.
    pub(super) fn credit(&mut self, request_id: &RequestId, frames: u32) {
        if let Some(read) = self.reads.iter_mut().find(|read| read.request_id == *request_id) {
            read.credit = read.credit.saturating_add(frames).min(CREDIT_MAX);
        }
    }

    /// Takes a `blob.cancel` in: nothing more is sent for the read, and its slot is free.
    pub(super) fn cancel(&mut self, request_id: &RequestId) {
        self.reads.retain(|read| read.request_id != *request_id);
        self.replies.retain(|reply| reply.request_id() != request_id);
    }

    /// The next frames to read from a file, if any should be.
    pub(super) fn next_fetch(&mut self) -> Option<Fetch> {
        let read = self.reads.iter_mut().find(|read| read.wants_fetch())?;
        let offset = read.offset + read.asked;
        let length = (read.read_ahead() - read.fetched.len()) as u64 * DATA_PAYLOAD as u64;
        let length = length.min(read.length - read.asked);
        read.asked += length;
        read.fetching = true;
        Some(Fetch {
            key: read.key,
            request_id: read.request_id.clone(),
            blob: read.blob.clone(),
            open: read.open.take(),
            offset,
            length,
        })
    }

    /// Takes what a fetch brought. It is dropped when its read is gone.
    pub(super) fn fetched(&mut self, fetched: Fetched) {
        let Some(position) = self.reads.iter().position(|read| read.key == fetched.key) else {
            return;
        };
        let read = &mut self.reads[position];
        match fetched.outcome {
            Ok((open, frames)) => {
                (read.fetching, read.begun) = (false, true);
                read.open = Some(open);
                read.fetched.extend(frames);
            }
            Err(error) => {
                tracing::debug!(request_id = %read.request_id, %error, "a read failed");
                // The error's text may hold a path of this machine.
                if let Some(read) = self.reads.remove(position) {
                    if let Some(path) = self.registry.lose(&read.blob) {
                        let (reason, is_watched) = (error.to_string(), self.is_watched);
                        (self.events)(AgentEvent::Unserved { path, reason, is_watched });
                    }
                    let gone = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof);
                    let (code, message) = match gone && !read.begun {
                        true => (BlobErrorCode::UnknownBlob, "the file is gone or has changed"),
                        false => (BlobErrorCode::ReadFailed, "the bytes could not be read"),
                    };
                    self.refuse(read.request_id, code, message);
                }
            }
        }
    }

    /// The next end or error.
    pub(super) fn next_reply(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }

    /// What to send next: ends and errors first, then one frame of the read that was served longest ago.
    pub(super) fn next_outgoing(&mut self) -> Option<Outgoing> {
        if let Some(reply) = self.next_reply() {
            return Some(Outgoing::Reply(reply));
        }
        let position = self.reads.iter().position(Read::is_sendable)?;
        let mut read = self.reads.remove(position)?;
        let frame = read.fetched.pop_front()?;
        read.credit -= 1; // a sendable read has credit
        if read.asked == read.length && read.fetched.is_empty() && !read.fetching {
            self.replies.push_back(Reply::End(end_of(read.request_id, read.offset, read.length)));
        } else {
            self.reads.push_back(read);
        }
        Some(Outgoing::Data(frame))
    }

    /// Whether [`next_outgoing`](Self::next_outgoing) has something.
    pub(super) fn has_outgoing(&self) -> bool {
        !self.replies.is_empty() || self.reads.iter().any(Read::is_sendable)
    }

    /// Answers that wait to be sent. A platform that asks and does not read makes it grow.
    pub(super) fn unsent_replies(&self) -> usize {
        self.replies.len()
    }
}

impl Read {
    fn is_sendable(&self) -> bool {
        self.credit > 0 && !self.fetched.is_empty()
    }

    /// How many frames should be held ready: no more than may be sent, but always one.
    fn read_ahead(&self) -> usize {
        READ_AHEAD.min(self.credit as usize).max(1)
    }

    fn wants_fetch(&self) -> bool {
        // From half empty on, so that a fetch is worth its hop to another thread.
        !self.fetching
            && self.asked < self.length
            && self.fetched.len() * 2 <= self.read_ahead()
            && self.fetched.len() < self.read_ahead()
    }
}

impl Reply {
    fn request_id(&self) -> &RequestId {
        match self {
            Self::End(end) => &end.request_id,
            Self::Error(error) => &error.request_id,
        }
    }
}

fn end_of(request_id: RequestId, offset: u64, length: u64) -> BlobEnd {
    BlobEnd { request_id, offset, length, bytes: length }
}

#[cfg(test)]
mod tests;
