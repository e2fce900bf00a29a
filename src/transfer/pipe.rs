//! Between a feed and its cursor: bytes that may be released, and how far the reader has taken them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::TransferError;
use super::budget::Allowance;

/// The least that a piece counts for, so that an agent that sends tiny frames gains no room by it.
const PIECE_COST: usize = 4 * 1024;
/// A frame is a slice of a receive buffer about twice its size, which it keeps from being freed. What may have to wait
/// for its reader is copied out of it in parts of this size, each freed once it is written.
const PART: usize = 64 * 1024;

/// Holds no more than the feed's window: the feed grants credit only for room that is free here.
#[derive(Debug)]
pub struct Pipe {
    state: Mutex<State>,
    reader: AtomicWaker,
    feed: AtomicWaker,
}

#[derive(Debug)]
struct State {
    pieces: VecDeque<Bytes>,
    /// What the pieces count for, in bytes.
    held: usize,
    /// Bytes the reader took since the feed last asked.
    taken: u64,
    end: Option<Result<(), TransferError>>,
    left: bool,
    /// Since when something has been there for the reader, who has taken nothing.
    ready_since: Option<Instant>,
    allowance: Allowance,
}

/// What the feed learns about its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderDid {
    /// It took this many bytes.
    Take(u64),
    /// It left.
    Leave,
}

impl Pipe {
    /// An empty pipe, which keeps the transfer's allowance until both sides are done.
    pub fn new(allowance: Allowance) -> Self {
        let state =
            State { pieces: VecDeque::new(), held: 0, taken: 0, end: None, left: false, ready_since: None, allowance };
        Self { state: Mutex::new(state), reader: AtomicWaker::new(), feed: AtomicWaker::new() }
    }

    /// The feed's side: bytes may be released.
    pub fn push(&self, piece: Bytes) {
        let mut state = self.lock();
        if state.end.is_some() {
            return;
        }
        state.held += piece.len().max(PIECE_COST);
        state.pieces.push_back(piece);
        state.ready_since.get_or_insert_with(Instant::now);
        drop(state);
        self.reader.wake();
    }

    /// The feed's side: bytes may be released that may have to wait for a slow reader.
    pub fn push_copied(&self, piece: &[u8]) {
        piece.chunks(PART).for_each(|part| self.push(Bytes::copy_from_slice(part)));
    }

    /// The feed's side: nothing more comes.
    pub fn finish(&self, end: Result<(), TransferError>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.ready_since.get_or_insert_with(Instant::now);
        drop(state);
        self.reader.wake();
    }

    /// Ends it for the reader at once: what it has not taken is thrown away.
    pub fn abort(&self, error: TransferError) {
        let mut state = self.lock();
        state.pieces.clear();
        state.held = 0;
        state.end = Some(Err(error));
        drop(state);
        self.reader.wake();
    }

    /// Why nothing more comes, where that is an error.
    pub fn error(&self) -> Option<TransferError> {
        self.lock().end.and_then(Result::err)
    }

    /// For how long the reader has taken nothing of what is there for it.
    pub fn ignored_for(&self, now: Instant) -> Duration {
        self.lock().ready_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// The feed's side: sizes the allowance for a window, and says how many bytes of it are free besides the `granted`
    /// frames on their way.
    pub fn room(&self, window: u32, granted: u32, frame: usize) -> usize {
        let mut state = self.lock();
        // Credit granted cannot be taken back, so it counts although the window may have shrunk.
        let used = state.held.div_ceil(frame) as u32 + granted;
        let frames = state.allowance.resize(window.max(used));
        (frames.min(window) as usize * frame).saturating_sub(state.held + granted as usize * frame)
    }

    /// The feed's side: what the reader did since.
    pub fn poll_reader(&self, cx: &mut Context<'_>) -> Poll<ReaderDid> {
        self.feed.register(cx.waker());
        let mut state = self.lock();
        if state.left {
            return Poll::Ready(ReaderDid::Leave);
        }
        match std::mem::take(&mut state.taken) {
            0 => Poll::Pending,
            taken => Poll::Ready(ReaderDid::Take(taken)),
        }
    }

    /// Whether the reader left.
    pub fn is_left(&self) -> bool {
        self.lock().left
    }

    /// The cursor's side: the next bytes, or the end.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TransferError>>> {
        self.reader.register(cx.waker());
        let mut state = self.lock();
        if let Some(piece) = state.pieces.pop_front() {
            state.held -= piece.len().max(PIECE_COST);
            state.taken += piece.len() as u64;
            state.ready_since = (!state.pieces.is_empty() || state.end.is_some()).then(Instant::now);
            drop(state);
            self.feed.wake();
            return Poll::Ready(Some(Ok(piece)));
        }
        match state.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => Poll::Pending,
        }
    }

    /// The cursor's side: the reader left.
    pub fn leave(&self) {
        let mut state = self.lock();
        state.left = true;
        state.pieces.clear();
        drop(state);
        self.feed.wake();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
