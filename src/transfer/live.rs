//! The transfers that run, for an operator to see and to end.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::protocol::{ByteRange, Principal, Sha256};

/// One transfer, unique within the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u64);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is taken within so many milliseconds is taken at once: several pieces as a rule.
const BURST_MS: u64 = 20;

/// What a transfer waits for, or does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No agent that has the bytes is online.
    WaitingForAgent,
    /// The agent serves as many reads as it will.
    WaitingForSlot,
    /// Bytes are on their way.
    Reading,
    /// The reader has not taken what is there.
    WaitingForReader,
    /// More would be over a highest rate: the transfer's, its reader's or the agent's.
    HeldByRate,
}

impl State {
    const ALL: [Self; 5] =
        [Self::WaitingForAgent, Self::WaitingForSlot, Self::Reading, Self::WaitingForReader, Self::HeldByRate];

    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::WaitingForAgent => "waiting_for_agent",
            Self::WaitingForSlot => "waiting_for_slot",
            Self::Reading => "reading",
            Self::WaitingForReader => "waiting_for_reader",
            Self::HeldByRate => "held_by_rate",
        }
    }
}

/// A running transfer as others see it.
#[derive(Debug)]
pub struct Live {
    /// Which.
    pub id: TransferId,
    /// Who reads.
    pub reader: Principal,
    /// The blob.
    pub sha256: Sha256,
    /// Its complete length in bytes.
    pub size: u64,
    /// The range of it.
    pub range: ByteRange,
    /// Since when, Unix milliseconds.
    pub since: i64,
    agents: Mutex<Asked>,
    begun: Instant,
    /// Since when something has been there for its reader, who has not come for it: milliseconds since it began, and one.
    ready: AtomicU64,
    /// For how long something had been there when its reader last came, in milliseconds, and when that was.
    ignored: AtomicU64,
    came_at: AtomicU64,
    state: AtomicU8,
    /// Its next bytes are here and may not go yet.
    held: AtomicBool,
    sent: AtomicU64,
    /// What its reader was last told about it.
    pub(super) told: Mutex<Told>,
}

/// What a reader was last told about a transfer. Locked while it is told, so that nothing follows its end.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) last: Option<(u64, State)>,
    pub(super) ended: bool,
}

/// The agents of a transfer.
#[derive(Debug)]
struct Asked {
    current: Principal,
    /// In the order in which they were first asked, each once.
    all: Vec<Principal>,
}

impl Live {
    /// A transfer that has not begun.
    pub fn new(
        id: TransferId,
        (reader, agent): (Principal, Principal),
        (sha256, size, range): (Sha256, u64, ByteRange),
        since: i64,
    ) -> Self {
        Self {
            id,
            reader,
            sha256,
            size,
            range,
            since,
            agents: Mutex::new(Asked { current: agent, all: Vec::new() }),
            begun: Instant::now(),
            ready: AtomicU64::new(0),
            ignored: AtomicU64::new(0),
            came_at: AtomicU64::new(0),
            state: AtomicU8::new(State::WaitingForAgent as u8),
            held: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            told: Mutex::default(),
        }
    }

    /// The agent in use.
    pub fn agent(&self) -> Principal {
        self.asked().current.clone()
    }

    /// Every agent that was asked for bytes, the first one in front.
    pub fn agents(&self) -> Vec<Principal> {
        self.asked().all.clone()
    }

    /// Its cursor is polled: the reader has taken what it was given.
    pub(super) fn polled(&self) {
        let since @ 1.. = self.ready.swap(0, Ordering::Relaxed) else { return };
        let now = self.now();
        let (ignored, came_at) = (now - since, self.came_at.load(Ordering::Relaxed));
        if ignored >= self.ignored.load(Ordering::Relaxed) || now - came_at > BURST_MS {
            self.ignored.store(ignored, Ordering::Relaxed);
            self.came_at.store(now, Ordering::Relaxed);
        }
    }

    /// There is something for its reader, which was waiting for it or has just been given something.
    pub(super) fn ready(&self) {
        self.ready.store(self.now(), Ordering::Relaxed);
    }

    /// Milliseconds since it began, and one.
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).map_or(u64::MAX, |elapsed| elapsed.saturating_add(1))
    }

    /// The reader was given bytes.
    pub(super) fn given(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        self.ready();
    }

    /// For how long its reader has not come for what is there.
    pub(super) fn ignored_for(&self, now: Instant) -> Duration {
        match self.ready.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.saturating_duration_since(self.begun + Duration::from_millis(since - 1)),
        }
    }

    /// For how long it had not when it last did.
    pub(super) fn ignored_before(&self) -> Duration {
        Duration::from_millis(self.ignored.load(Ordering::Relaxed))
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes handed to the reader.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// What it waits for, or does.
    pub fn state(&self) -> State {
        if self.held.load(Ordering::Relaxed) {
            return State::HeldByRate;
        }
        let state = usize::from(self.state.load(Ordering::Relaxed));
        State::ALL.get(state).copied().unwrap_or(State::Reading)
    }

    pub(super) fn set_agent(&self, agent: &Principal) {
        let mut asked = self.asked();
        asked.current = agent.clone();
        // There are never more than an answer has sources.
        if !asked.all.contains(agent) {
            asked.all.push(agent.clone());
        }
    }

    pub(super) fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }
}
