//! Slots rotate: whose turn with one is over while others wait for theirs.

use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::Feed;
use crate::agents::Link;
use crate::transfer::live::State;
use crate::transfer::source::Path;

/// A read whose reader takes nothing for so long gives its slot up while others wait.
const STUCK_AFTER: Duration = Duration::from_millis(100);
/// A fetch whose reader takes nothing for so long gives up its place at the host it is from, and asks again later.
const IDLE_AFTER: Duration = Duration::from_secs(5);
/// While others wait, a read is worth about so much of its reader's time.
const LENGTH: Duration = Duration::from_secs(1);

/// A feed's turn with its slot.
#[derive(Default)]
pub(super) struct Turn {
    /// Since when the reader has left no room.
    stuck_since: Option<Instant>,
    /// Resolves when somebody else waits for a slot; watched only while the reader is stuck.
    contention: Option<BoxFuture<'static, ()>>,
}

impl Turn {
    /// Takes note of whether the reader leaves no room.
    pub(super) fn note(&mut self, stuck: bool, now: Instant) {
        self.stuck_since = if stuck { self.stuck_since.or(Some(now)) } else { None };
    }

    /// Whether the reader has left no room for so long that others come first.
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        self.stuck_at().is_some_and(|at| now >= at)
    }

    /// When it will have.
    pub(super) fn stuck_at(&self) -> Option<Instant> {
        self.stuck_since.map(|since| since + STUCK_AFTER)
    }

    /// Whether the reader has left no room for so long that a connection is not kept for it.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.idle_at().is_some_and(|at| now >= at)
    }

    /// When it will have.
    pub(super) fn idle_at(&self) -> Option<Instant> {
        self.stuck_since.map(|since| since + IDLE_AFTER)
    }

    /// Whether a read that was asked `at` has had its turn.
    pub(super) fn is_over(&self, at: Instant, now: Instant) -> bool {
        now >= at + LENGTH
    }

    /// Looks out for others that wait for one of the link's slots.
    fn watch(&mut self, link: &Link) {
        if self.contention.is_none() && !link.slots.is_contended() {
            let mut contended = link.slots.contention();
            self.contention = Some(async move { drop(contended.wait_for(|contended| *contended).await) }.boxed());
        }
    }

    /// Ready when others wait that did not before.
    pub(super) fn poll_contention(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(contention) = &mut self.contention else { return Poll::Pending };
        let polled = contention.poll_unpin(cx);
        if polled.is_ready() {
            self.contention = None;
        }
        polled
    }
}

impl Feed {
    /// Whether others wait for a slot of the agent in use.
    pub(super) fn is_contended(&self) -> bool {
        matches!(&self.path, Some(Path::Relay(link)) if link.slots.is_contended())
    }

    /// While the reader leaves no room, others that wait for a slot are looked out for.
    pub(super) fn watch_contention(&mut self, no_room: bool) {
        if !no_room || self.reads.is_empty() {
            self.turn.contention = None;
            return;
        }
        self.spool.set_state(State::WaitingForReader);
        if let Some(Path::Relay(link)) = &self.path {
            self.turn.watch(link);
        }
    }
}
