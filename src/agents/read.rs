//! One `blob.read` as its feed holds it. Its queue is its credit: it holds exactly the frames that were granted.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::task::AtomicWaker;

use super::answer::{Answer, NewRead, ReadEnd, Shared, State};
use super::mailbox::{Gone, Mailbox};
use super::slots::Slot;
use crate::protocol::frames::BlobRead;
use crate::protocol::{ByteRange, Principal, RequestId, Sha256};
use crate::read::Progress;

/// What happens next on a read.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadEvent {
    /// The next bytes.
    Data(Bytes),
    /// Nothing more comes.
    Ended(ReadEnd),
}

/// A read as its feed holds it. Dropping it cancels the read on the agent at once, also before the first byte.
#[derive(Debug)]
pub struct Read {
    id: RequestId,
    range: ByteRange,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    over: bool,
}

impl Read {
    /// Asks `agent` for `range` of the blob over the connection behind `mailbox`.
    pub fn ask(
        mailbox: &Arc<Mailbox>,
        slot: Slot,
        agent: Principal,
        sha256: Sha256,
        (id, range, credit): (RequestId, ByteRange, u32),
        now: Instant,
    ) -> Result<Self, Gone> {
        let state = State {
            progress: Progress::new(range, credit),
            frames: VecDeque::new(),
            end: None,
            slot: Some(slot),
            granted: Some(now),
            round_trip: None,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: AtomicWaker::new() });
        let frame =
            BlobRead { request_id: id.clone(), sha256, offset: range.start, length: range.len(), credit: Some(credit) };
        mailbox.read(NewRead { frame, agent, answer: Answer { shared: shared.clone() } })?;
        Ok(Self { id, range, shared, mailbox: mailbox.clone(), over: false })
    }

    /// What was asked.
    pub fn range(&self) -> ByteRange {
        self.range
    }

    /// The next frame, or the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<ReadEvent> {
        self.shared.wake.register(cx.waker());
        let mut state = self.shared.lock();
        if let Some(frame) = state.frames.pop_front() {
            return Poll::Ready(ReadEvent::Data(frame));
        }
        match &state.end {
            Some(end) => {
                self.over = true;
                Poll::Ready(ReadEvent::Ended(end.clone()))
            }
            None => Poll::Pending,
        }
    }

    /// Grants more credit.
    pub fn grant(&self, frames: u32, now: Instant) {
        let mut state = self.shared.lock();
        if state.end.is_some() {
            return;
        }
        if state.progress.credit() == 0 && state.granted.is_none() {
            state.granted = Some(now);
        }
        let granted = state.progress.grant(frames);
        drop(state);
        if granted > 0 {
            self.mailbox.credit(&self.id, granted);
        }
    }

    /// Frames granted that have not come.
    pub fn credit(&self) -> u32 {
        let state = self.shared.lock();
        if state.end.is_some() { 0 } else { state.progress.credit() }
    }

    /// How much more credit the rest of this read needs.
    pub fn credit_needed(&self) -> u32 {
        let state = self.shared.lock();
        if state.end.is_some() { 0 } else { state.progress.credit_needed() }
    }

    /// The latest time from a grant to the first frame that used it.
    pub fn take_round_trip(&self) -> Option<Duration> {
        self.shared.lock().round_trip.take()
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = self.shared.lock();
        let running = state.end.is_none();
        // When every byte has come, only the `blob.end` is missing: until then the agent counts the read, and so does
        // its slot.
        let slot = if running && state.progress.remaining() == 0 { None } else { state.slot.take() };
        drop(state);
        if running {
            // The cancel is posted before the slot is free, so that it goes out before the next read.
            self.mailbox.cancel(&self.id);
        }
        drop(slot);
    }
}
