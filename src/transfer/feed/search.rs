//! The way to a source: finding one, waiting for it, queueing for its slot, and for how long.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::Feed;
use crate::protocol::limits::READ_BYTES;
use crate::read::Held;
use crate::transfer::TransferError;
use crate::transfer::live::State;
use crate::transfer::source::Path;

/// The first and the longest pause before asking again what was refused.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The part of a reader's patience (one over this) for which others wait for those that are doubted less.
const STRICT: u32 = 4;

/// How long to wait before looking again at a rate that only frames of others let through.
const HELD_PAUSE: Duration = Duration::from_millis(100);

impl Feed {
    /// Finds a source that can be asked, or begins to wait for one.
    pub(super) fn find_source(&mut self, now: Instant) -> Result<(), TransferError> {
        if self.path.is_some() || self.waiting.is_some() {
            return Ok(());
        }
        // What a reader has is gone on from by others only once those that are doubted less did not come.
        let strict_until = self.wanting_since.unwrap_or(now) + self.patience() / STRICT;
        let strict = self.released && now < strict_until;
        if let Some((place, path)) = self.sources.reachable(&self.transfers.agents, now, strict) {
            self.sources.choose(place);
            self.spool.set_agent(&self.sources.current().agent);
            self.path = Some(path);
            return Ok(());
        }
        let waits = self.sources.wait(&self.transfers.agents, now, strict);
        self.waiting = waits.map(|waits| match strict {
            // Whichever way it ends, it is looked again.
            true => tokio::time::timeout_at(strict_until, waits).map(drop).boxed(),
            false => waits,
        });
        if self.waiting.is_none() || self.waited_too_long(now) {
            return Err(self.sources.error());
        }
        self.spool.set_state(State::WaitingForAgent);
        Ok(())
    }

    /// Queues for a slot of the agent that was found, or asks the place that was found.
    pub(super) fn queue_up(&mut self, now: Instant) {
        match (&self.path, &self.slot) {
            (Some(Path::Relay(link)), None) => {
                // A slot is of no use to what may not be asked.
                let held = link.slots.credit().held(now.into_std());
                let length = self.plan.remaining().min(READ_BYTES);
                if held.is_none()
                    && let Some(slot) = link.slots.request(&self.spool.readers(), length)
                {
                    self.slot = Some(slot);
                    self.spool.set_state(State::WaitingForSlot);
                    self.transfers.metrics.slot_waits.inc();
                }
                self.hold(held.map(|held| Held { until: held.until.or(Some(now.into_std() + HELD_PAUSE)) }));
            }
            (Some(Path::Location(remote)), _) => {
                let remote = remote.clone();
                self.start_fetch(&remote);
            }
            _ => {}
        }
    }

    pub(super) fn leave_queue(&mut self) {
        if self.slot.take().is_some() {
            self.transfers.metrics.slot_waits.dec();
        }
    }

    pub(super) fn lose_path(&mut self) {
        self.path = None;
        self.leave_queue();
        (self.ready, self.sharing, self.held) = (None, None, None);
    }

    /// Asks nothing for a while, longer each time until a byte comes.
    pub(super) fn pause(&mut self, now: Instant) {
        self.pause_until = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    pub(super) fn wait_or_fail(&mut self, error: TransferError) -> Result<(), TransferError> {
        let now = Instant::now();
        if self.waited_too_long(now) {
            return Err(error);
        }
        self.pause(now);
        Ok(())
    }

    /// Before the first byte a reader waits as long as for an offline agent; after it, as long as for a resume, also of
    /// what has expired meanwhile.
    pub(super) fn patience(&self) -> Duration {
        let limits = &self.transfers.limits;
        match self.released {
            true => limits.resume_window,
            false if self.impatient => Duration::ZERO,
            false => limits.agent_wait,
        }
    }

    pub(super) fn waited_too_long(&self, now: Instant) -> bool {
        self.wanting_since.is_some_and(|since| now >= since + self.patience())
    }
}
