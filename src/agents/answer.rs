//! One `blob.read` as the connection's task holds it, and what it shares with the feed that asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::task::AtomicWaker;

use super::slots::Slot;
use crate::protocol::Principal;
use crate::protocol::frames::{BlobEnd, BlobErrorCode, BlobRead};
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
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    pub(super) wake: AtomicWaker,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) progress: Progress,
    pub(super) frames: VecDeque<Bytes>,
    pub(super) end: Option<ReadEnd>,
    pub(super) slot: Option<Slot>,
    /// When credit was granted to an agent that had none left, until its next frame.
    pub(super) granted: Option<Instant>,
    pub(super) round_trip: Option<Duration>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Frees the slot of a read whose end does not come.
    pub fn release(&self) {
        let slot = self.shared.lock().slot.take();
        drop(slot);
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
