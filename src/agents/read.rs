//! One `blob.read`, seen from both sides. Its queue is its credit: it holds exactly the frames that were granted.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::task::AtomicWaker;

use super::mailbox::{Gone, Mailbox};
use super::slots::Slot;
use crate::protocol::frames::{BlobEnd, BlobErrorCode, BlobRead};
use crate::protocol::{ByteRange, Principal, RequestId, Sha256};
use crate::read::{Progress, Violation};

/// How a read ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadEnd {
    /// Every byte has come.
    Complete,
    /// The agent cannot serve it.
    Refused(BlobErrorCode),
    /// The agent broke a rule.
    Broke(Violation),
    /// The connection is gone.
    Disconnected,
}

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

/// A read as it is handed to a connection's task.
#[derive(Debug)]
pub struct NewRead {
    /// What goes out.
    pub frame: BlobRead,
    /// Whose read it is, where one socket carries several agents.
    pub agent: Principal,
    /// The connection's side.
    pub answer: Answer,
}

/// A read as the connection's task holds it.
#[derive(Debug)]
pub struct Answer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    wake: AtomicWaker,
}

#[derive(Debug)]
struct State {
    progress: Progress,
    frames: VecDeque<Bytes>,
    end: Option<ReadEnd>,
    slot: Option<Slot>,
    /// When credit was granted to an agent that had none left, until its next frame.
    granted: Option<Instant>,
    round_trip: Option<Duration>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let slot = state.slot.take();
        drop(state);
        if running {
            // The cancel is posted before the slot is free, so that it goes out before the next read.
            self.mailbox.cancel(&self.id);
        }
        drop(slot);
    }
}

impl Answer {
    /// Takes in a `blob.data` frame.
    pub fn data(&self, offset: u64, payload: Bytes, now: Instant) -> Result<(), Violation> {
        let mut state = self.shared.lock();
        state.progress.data(offset, payload.len() as u64)?;
        if let Some(granted) = state.granted.take() {
            state.round_trip = Some(now.saturating_duration_since(granted));
        }
        state.frames.push_back(payload);
        drop(state);
        self.shared.wake.wake();
        Ok(())
    }

    /// Takes in the `blob.end`.
    pub fn end(&self, end: &BlobEnd) -> Result<(), Violation> {
        self.shared.lock().progress.end(end)
    }

    /// Frames that the agent may still send.
    pub fn credit(&self) -> u32 {
        self.shared.lock().progress.credit()
    }

    /// Bytes that have not come yet.
    pub fn remaining(&self) -> u64 {
        self.shared.lock().progress.remaining()
    }

    /// Ends the read and frees its slot.
    pub fn finish(self, end: ReadEnd) {
        let mut state = self.shared.lock();
        let slot = state.slot.take();
        let refused = end == ReadEnd::Refused(BlobErrorCode::TooManyReads);
        state.end.get_or_insert(end);
        drop(state);
        self.shared.wake.wake();
        match slot {
            Some(slot) if refused => slot.refused(),
            slot => drop(slot),
        }
    }
}
