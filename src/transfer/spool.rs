//! Between a feed and its cursors: bytes that may be released, and how far each reader has taken them.
//!
//! Pieces stay until every cursor has passed them. Credit follows the cursor that is furthest ahead; one that falls too
//! far behind is let go, so that it neither holds memory nor slows the others.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::TransferError;
use super::budget::Allowance;
use super::live::{Live, State as Doing};
use crate::protocol::{ByteRange, Principal};
use crate::read::window;

/// The least that a piece counts for, so that an agent that sends tiny frames gains no room by it.
const PIECE_COST: usize = 4 * 1024;
/// A frame is a slice of a receive buffer, which it keeps from being freed. What may have to wait for its reader is copied
/// out of it in parts of this size, each freed once it is written. A response's connection takes them until it holds 64 KiB,
/// so that larger ones would be held there twice.
const PART: usize = 16 * 1024;
/// How far the last of several cursors may be behind the first, in bytes.
pub const LAG: u64 = 16 * 1024 * 1024;
/// A cursor that is as far behind as it may be is waited for while it keeps four fifths of the first one's pace, and takes
/// something at least this often.
const LAGGARD_PAUSE: Duration = Duration::from_millis(50);
/// What a feed begins with is kept for so long, and so many bytes of it, for cursors that come at about the same time.
const YOUNG: (Duration, u64) = (Duration::from_millis(100), LAG / 2);

/// What a feed has released and its cursors have not taken.
///
/// It holds no more than the feed's window and the lag of its cursors: the feed grants credit only for room that is free
/// here.
#[derive(Debug)]
pub struct Spool {
    state: Mutex<State>,
    feed: AtomicWaker,
}

#[derive(Debug)]
struct State {
    pieces: VecDeque<Piece>,
    /// Where in the blob the next piece will begin, and where the last ends.
    head: u64,
    until: u64,
    /// Up to here, pieces that nobody wanted are missing among those that are here.
    missing_to: Option<u64>,
    /// What the pieces count for, in bytes.
    held: usize,
    /// Up to here the bytes are known to be right.
    verified: u64,
    seats: Vec<Sitting>,
    /// Whose they are, each once.
    readers: Arc<[Principal]>,
    next_seat: u64,
    /// Where the cursor that is furthest ahead is.
    furthest: u64,
    /// By how much it moved since the feed last asked, and how much is worth waking the feed for.
    taken: u64,
    wake_at: u64,
    /// The feed waits for one that is behind.
    crowded: bool,
    /// There may be reason to ask for more, although the one that is furthest ahead took nothing.
    stirred: bool,
    /// Until when what the feed began with is kept.
    young_until: Option<Instant>,
    end: Option<Result<(), TransferError>>,
    allowance: Allowance,
    doing: Doing,
    agent: Option<Principal>,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    bytes: Bytes,
}

/// What a cursor wants of a feed.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// The bytes it takes.
    pub range: ByteRange,
    /// Its last bytes are only given once the bytes up to here are known to be right.
    pub checked_to: u64,
}

/// One cursor.
#[derive(Debug)]
struct Sitting {
    id: u64,
    live: Arc<Live>,
    position: u64,
    wish: Wish,
    taken_at: Instant,
    /// Its own and the first cursor's place when their paces were last compared.
    compared: (u64, u64),
    waker: Option<Waker>,
}

/// What the feed learns about its readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadersDid {
    /// The one that is furthest ahead took this many bytes; none, where another has come, moved, or waits.
    Take(u64),
    /// All of them left.
    Leave,
}

/// What a cursor gets.
#[derive(Debug)]
pub enum Given {
    /// The next bytes.
    Piece(Bytes),
    /// This feed ends here, or has no time for so slow a reader: the rest is had elsewhere.
    Elsewhere,
    /// It failed.
    Failed(TransferError),
}

/// A cursor's seat at a spool. Dropping it is leaving.
#[derive(Debug)]
pub struct Seat {
    spool: Arc<Spool>,
    id: u64,
}

impl Spool {
    /// An empty spool for a feed of `range`. One that is `kept` holds on to its first bytes for a moment.
    pub fn new(range: ByteRange, allowance: Allowance, kept: bool) -> Arc<Self> {
        let ByteRange { start, end: until } = range;
        let state = State {
            until,
            pieces: VecDeque::new(),
            head: start,
            missing_to: None,
            held: 0,
            verified: start,
            seats: Vec::new(),
            readers: Arc::default(),
            next_seat: 0,
            furthest: start,
            taken: 0,
            wake_at: 0,
            crowded: false,
            stirred: false,
            young_until: kept.then(|| Instant::now() + YOUNG.0),
            end: None,
            allowance,
            doing: Doing::WaitingForAgent,
            agent: None,
        };
        Arc::new(Self { state: Mutex::new(state), feed: AtomicWaker::new() })
    }

    /// The first cursor's seat: what comes before its place is fetched for the hash's sake only.
    pub fn first(self: &Arc<Self>, live: &Arc<Live>, wish: Wish) -> Seat {
        let mut state = self.lock();
        state.furthest = wish.range.start;
        self.seat(&mut state, live, wish)
    }

    /// A seat for a cursor whose next byte is here, or comes next. `None` where it is not, or the feed has ended.
    pub fn sit(self: &Arc<Self>, live: &Arc<Live>, wish: Wish) -> Option<Seat> {
        let mut state = self.lock();
        let start = state.missing_to.unwrap_or_else(|| state.start());
        if state.seats.is_empty() || state.end.is_some() || !(start..=state.head).contains(&wish.range.start) {
            return None;
        }
        state.furthest = state.furthest.max(wish.range.start);
        let seat = self.seat(&mut state, live, wish);
        state.stirred = true;
        drop(state);
        self.feed.wake();
        Some(seat)
    }

    fn seat(self: &Arc<Self>, state: &mut State, live: &Arc<Live>, wish: Wish) -> Seat {
        let id = state.next_seat;
        state.next_seat += 1;
        live.set_state(state.doing);
        if let Some(agent) = &state.agent {
            live.set_agent(agent);
        }
        state.seats.push(Sitting {
            id,
            live: live.clone(),
            position: wish.range.start,
            wish,
            taken_at: Instant::now(),
            compared: (wish.range.start, state.furthest),
            waker: None,
        });
        state.note_readers();
        Seat { spool: self.clone(), id }
    }

    /// The feed's side: bytes may be released.
    pub fn push(&self, bytes: Bytes) {
        let mut state = self.lock();
        if state.end.is_some() {
            return;
        }
        let start = state.head;
        state.head += bytes.len() as u64;
        if state.young_until.is_none() && state.seats.iter().all(|seat| seat.wish.range.end <= start) {
            // Nobody wants more than to know that they are right.
            state.missing_to = Some(state.head);
        } else {
            state.held += cost(&bytes);
            state.pieces.push_back(Piece { start, bytes });
        }
        state.trim();
        state.wake_readers();
    }

    /// The feed's side: bytes may be released that may have to wait for a slow reader.
    pub fn push_copied(&self, bytes: &[u8]) {
        bytes.chunks(PART).for_each(|part| self.push(Bytes::copy_from_slice(part)));
    }

    /// The feed's side: the bytes up to `position` are right.
    pub fn verified(&self, position: u64) {
        let mut state = self.lock();
        state.verified = position;
        state.wake_readers();
    }

    /// The feed's side: nothing more comes.
    pub fn finish(&self, end: Result<(), TransferError>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        // Nobody sits down any more, and nobody looks at the clock.
        state.young_until = None;
        state.trim();
        state.wake_readers();
    }

    /// The feed's side: what it does, for the readers' transfers to show.
    pub fn set_state(&self, doing: Doing) {
        let mut state = self.lock();
        if state.doing != doing {
            state.doing = doing;
            state.seats.iter().for_each(|seat| seat.live.set_state(doing));
        }
    }

    /// The feed's side: the agent in use.
    pub fn set_agent(&self, agent: &Principal) {
        let mut state = self.lock();
        state.agent = Some(agent.clone());
        state.seats.iter().for_each(|seat| seat.live.set_agent(agent));
    }

    /// Whose cursors are here, each once.
    pub fn readers(&self) -> Arc<[Principal]> {
        self.lock().readers.clone()
    }

    /// The transfers whose cursors are here.
    pub fn transfers(&self) -> Vec<Arc<Live>> {
        self.lock().seats.iter().map(|seat| seat.live.clone()).collect()
    }

    /// The feed's side: sizes the allowance for a window, and says how many bytes of it are free besides the `granted`
    /// frames on their way.
    pub fn room(&self, window: u32, granted: u32, frame: usize) -> usize {
        let mut state = self.lock();
        let now = Instant::now();
        state.wake_at = u64::from(window::step(window)) * frame as u64;
        state.end_of_youth(now);
        loop {
            let ahead = state.ahead();
            let behind = (state.held - ahead).div_ceil(frame) as u32;
            // Credit granted cannot be taken back, so it counts although the window may have shrunk.
            let used = state.held.div_ceil(frame) as u32 + granted;
            let frames = state.allowance.resize((window + behind).max(used)).saturating_sub(behind).min(window);
            let room = (frames as usize * frame).saturating_sub(ahead + granted as usize * frame);
            let short = frames < window && behind > 0;
            let far = state.head - state.start() >= LAG && behind > 0;
            if (short || far) && state.let_go(now) {
                continue;
            }
            state.crowded = far || (short && room < frame);
            // What waits for its hash fills a small window, and goes only when more has come.
            let room = if granted == 0 && state.is_dry() { room.max(frame) } else { room };
            return if far { 0 } else { room.min(state.wanted(granted, frame)) };
        }
    }

    /// The feed's side: when a cursor that is waited for has to have moved, or the first bytes are kept no longer.
    pub fn due(&self) -> Option<Instant> {
        let state = self.lock();
        let slowest = state.seats.iter().filter(|_| state.crowded).min_by_key(|seat| seat.position);
        let waited_for = slowest.map(|seat| seat.taken_at + LAGGARD_PAUSE);
        waited_for.into_iter().chain(state.young_until).min()
    }

    /// The feed's side: what the readers did since.
    pub fn poll_readers(&self, cx: &mut Context<'_>) -> Poll<ReadersDid> {
        self.feed.register(cx.waker());
        let mut state = self.lock();
        if state.seats.is_empty() {
            return Poll::Ready(ReadersDid::Leave);
        }
        match (std::mem::take(&mut state.taken), std::mem::take(&mut state.stirred)) {
            (0, false) => Poll::Pending,
            (taken, _) => Poll::Ready(ReadersDid::Take(taken)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// The cursor's next bytes.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Given> {
        let mut state = self.spool.lock();
        let state = &mut *state;
        let Some(seat) = state.seats.iter_mut().find(|seat| seat.id == self.id) else {
            return Poll::Ready(Given::Elsewhere);
        };
        let until = seat.wish.range.end;
        let next = seat.next(&state.pieces);
        if let Some(piece) = next.filter(|piece| seat.may_have(piece, state.verified)) {
            let skipped = (seat.position - piece.start) as usize;
            let bytes = piece.bytes.slice(skipped..piece.bytes.len().min((until - piece.start) as usize));
            seat.position += bytes.len() as u64;
            seat.taken_at = Instant::now();
            let position = seat.position;
            let advance = position.saturating_sub(state.furthest);
            state.furthest += advance;
            state.taken += advance;
            state.trim();
            let dry = state.furthest == state.head;
            if state.crowded || (advance > 0 && (dry || state.taken >= state.wake_at)) {
                state.stirred |= state.crowded;
                self.spool.feed.wake();
            }
            return Poll::Ready(Given::Piece(bytes));
        }
        match state.end {
            Some(Err(error)) => return Poll::Ready(Given::Failed(error)),
            Some(Ok(())) => return Poll::Ready(Given::Elsewhere),
            None if seat.position >= until => return Poll::Ready(Given::Elsewhere),
            None if next.is_some() => {
                // It has come to what waits for its hash.
                state.stirred = true;
                self.spool.feed.wake();
            }
            None => {}
        }
        seat.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.spool.lock();
        state.seats.retain(|seat| seat.id != self.id);
        state.note_readers();
        // Those that are left set the pace now.
        let furthest = state.seats.iter().map(|seat| seat.position).max().unwrap_or(state.furthest);
        state.furthest = furthest;
        state.seats.iter_mut().for_each(|seat| seat.compared = (seat.position, furthest));
        state.trim();
        drop(state);
        self.spool.feed.wake();
    }
}

impl State {
    /// Where what is here begins.
    fn start(&self) -> u64 {
        self.pieces.front().map_or(self.head, |piece| piece.start)
    }

    /// Whether no cursor can be given anything.
    fn is_dry(&self) -> bool {
        let may_have =
            |seat: &Sitting| seat.next(&self.pieces).is_some_and(|piece| seat.may_have(piece, self.verified));
        !self.seats.iter().any(may_have)
    }

    /// What the bytes that no cursor has taken count for.
    fn ahead(&self) -> usize {
        let untaken = self.pieces.iter().rev().take_while(|piece| piece.end() > self.furthest);
        untaken.map(|piece| cost(&piece.bytes)).sum()
    }

    /// What the cursors still want beside the `granted` frames on their way. No bound where that is all the feed can have: an
    /// agent may send frames of any size.
    fn wanted(&self, granted: u32, frame: usize) -> usize {
        let wanted = self.seats.iter().map(|seat| seat.wish.checked_to).max().unwrap_or(0);
        if wanted >= self.until {
            return usize::MAX;
        }
        let wanted = wanted.saturating_sub(self.head + u64::from(granted) * frame as u64);
        usize::try_from(wanted).unwrap_or(usize::MAX).div_ceil(frame).saturating_mul(frame)
    }

    /// Notes whose cursors are here, which is asked with every frame: many may ride.
    fn note_readers(&mut self) {
        let mut seen = HashSet::new();
        let readers = self.seats.iter().map(|seat| &seat.live.reader);
        self.readers = readers.filter(|reader| seen.insert(*reader)).cloned().collect();
    }

    /// Forgets what every cursor has passed.
    fn trim(&mut self) {
        let passed = self.seats.iter().map(|seat| seat.position).min().unwrap_or(u64::MAX);
        let kept = if self.young_until.is_some() { YOUNG.1 } else { 0 };
        let passed = passed.min(self.head.saturating_sub(kept));
        while let Some(piece) = self.pieces.pop_front_if(|piece| piece.end() <= passed) {
            self.held -= cost(&piece.bytes);
        }
    }

    fn end_of_youth(&mut self, now: Instant) {
        if self.young_until.take_if(|until| now >= *until).is_some() {
            self.trim();
        }
    }

    /// Makes room at the cost of what is furthest behind: what is kept for cursors that may come, or the last one. False
    /// where it is worth waiting for, or there is none.
    fn let_go(&mut self, now: Instant) -> bool {
        if self.young_until.take().is_some() {
            self.trim();
            return true;
        }
        let furthest = self.furthest;
        let Some(last) = self.seats.iter_mut().min_by_key(|seat| seat.position).filter(|last| last.position < furthest)
        else {
            return false;
        };
        let (own, first) = (last.position - last.compared.0, furthest.saturating_sub(last.compared.1));
        if own >= first / 5 * 4 && now < last.taken_at + LAGGARD_PAUSE {
            if first >= 4 * LAG {
                last.compared = (last.position, furthest);
            }
            return false;
        }
        let id = last.id;
        last.wake();
        self.seats.retain(|seat| seat.id != id);
        self.note_readers();
        self.trim();
        true
    }

    fn wake_readers(&mut self) {
        self.seats.iter_mut().for_each(Sitting::wake);
    }
}

impl Sitting {
    /// The piece that its next byte is in.
    fn next<'a>(&self, pieces: &'a VecDeque<Piece>) -> Option<&'a Piece> {
        let at = pieces.partition_point(|piece| piece.end() <= self.position);
        pieces.get(at).filter(|piece| piece.start <= self.position && self.position < self.wish.range.end)
    }

    /// Whether it may have a piece: its last bytes are the word that all of them are right.
    fn may_have(&self, piece: &Piece, verified: u64) -> bool {
        let Wish { range, checked_to } = self.wish;
        piece.end() < range.end || checked_to <= range.end || verified >= checked_to
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            self.live.ready();
            waker.wake();
        }
    }
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

fn cost(bytes: &Bytes) -> usize {
    bytes.len().max(PIECE_COST)
}

#[cfg(test)]
mod tests;
