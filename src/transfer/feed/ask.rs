//! What a feed asks of its source: credit for what is in flight, and what comes next.

use tokio::time::Instant;

use std::sync::Arc;

use super::Feed;
use super::upstream::Upstream;
use crate::access::Remote;
use crate::agents::{Link, Read, Slot};
use crate::protocol::limits::{DATA_PAYLOAD, READ_BYTES};
use crate::read::{Held, window};
use crate::transfer::TransferError;
use crate::transfer::live::State;
use crate::transfer::location::{Fetching, Wanted};
use crate::transfer::source::Path;

/// A read or fetch in flight.
pub(super) struct Asked {
    pub(super) upstream: Upstream,
    pub(super) at: Instant,
}

impl Feed {
    /// Grants what there is room for, asks the next read, gives a slot up, looks for a source: whatever is due now.
    pub(super) fn ask(&mut self) -> Result<(), TransferError> {
        let before = self.held.take();
        let asked = self.ask_what_is_due();
        if self.held.is_some() && before.is_none() {
            self.transfers.metrics.rate_waits.with_label_values(&["agent"]).inc();
        }
        asked
    }

    fn ask_what_is_due(&mut self) -> Result<(), TransferError> {
        let now = Instant::now();
        let granted = self.granted();
        let mut frames = self.room(granted);
        self.turn.note(frames == 0 && granted == 0, now);
        self.keeping.hold_up(frames == 0 && granted == 0);
        let contended = self.is_contended();
        let turn_is_over = contended && self.reads.front().is_some_and(|asked| self.turn.is_over(asked.at, now));
        let fetching = self.reads.front().is_some_and(|asked| asked.upstream.is_location());
        let yields = turn_is_over || (contended && self.turn.is_stuck(now)) || (fetching && self.turn.is_idle(now));
        if granted == 0 && yields && !self.reads.is_empty() {
            // Nothing is on its way, so nothing is lost.
            self.drop_reads();
        }
        let wanted = self.wanted(if turn_is_over { 0 } else { frames });
        if wanted > 0 {
            frames -= self.grant(wanted, granted, now);
        }
        self.watch_contention(granted == 0 && frames == 0);
        self.pause_until.take_if(|until| now >= *until);
        let asks = frames > 0 && !self.plan.is_done() && self.pause_until.is_none();
        if asks && self.ask_next(now) {
            return Ok(());
        }
        if !asks {
            self.ready = None;
        }
        if wanted == 0 {
            // What the link keeps for this feed is not wanted now.
            self.lend(granted, 0, now);
        }
        if asks && self.reads.is_empty() {
            self.wanting_since.get_or_insert(now);
            self.find_source(now)?;
            self.queue_up(now);
        }
        Ok(())
    }

    /// Asks the next read if there is a slot for it. Whether the link was asked for credit.
    fn ask_next(&mut self, now: Instant) -> bool {
        let Some(Path::Relay(link)) = self.path.clone() else { return false };
        if self.reads.is_empty() {
            let Some(slot) = self.ready.take() else { return false };
            self.ready = self.send_read(&link, slot, now);
            return true;
        }
        if self.reads.len() == 1
            && self.reads[0].upstream.credit_needed() == 0
            && let Some(slot) = link.slots.try_take(&self.spool.readers())
        {
            // Where there is no credit for it yet, somebody else has more use for the slot.
            drop(self.send_read(&link, slot, now));
            return true;
        }
        false
    }

    /// Asks the next read, now that there is a slot for it, which is handed back where there is no credit.
    fn send_read(&mut self, link: &Link, slot: Slot, now: Instant) -> Option<Slot> {
        let granted = self.granted();
        let room = self.room(granted).max(1);
        let limit = match self.window.morsel().filter(|_| self.transfers.are_many()) {
            Some(morsel) => morsel,
            // What the reader takes in a turn, but no less than what is granted anyway.
            None if link.slots.is_contended() => {
                self.window.pace().unwrap_or(0).max(u64::from(room) * DATA_PAYLOAD as u64)
            }
            None => READ_BYTES,
        };
        let longest = self.plan.remaining().min(limit).min(READ_BYTES);
        let credit = self.lend(granted, room.min(frames_of(longest)), now);
        if credit == 0 {
            return Some(slot);
        }
        let range = self.plan.take(limit)?;
        let agent = self.sources.current().agent.clone();
        let asked = (self.transfers.request_id(), range, credit);
        match Read::ask(&link.mailbox, slot, agent, self.sha256, asked, now.into_std()) {
            Ok(read) => {
                self.reads.push_back(Asked { upstream: Upstream::Relay(read), at: now });
                self.last_progress = now;
                self.spool.set_state(State::Reading);
            }
            Err(_) => {
                // The connection went between being found and being asked.
                self.plan.rewind(range.start);
                self.lose_path();
                self.pause(now);
            }
        }
        None
    }

    /// Asks a place for all that is left: it is one request, and the connection carries the reader's pace.
    pub(super) fn start_fetch(&mut self, remote: &Arc<Remote>) {
        let now = Instant::now();
        let Some(range) = self.plan.take_rest() else { return };
        let credit = self.room(self.granted()).max(1).min(frames_of(range.len()));
        let wanted = Wanted { sha256: self.sha256, size: self.size, range };
        let timeout = self.transfers.limits.read_timeout;
        let fetching = Fetching::start(&self.transfers.locations, remote, wanted, credit, timeout);
        self.reads.push_back(Asked { upstream: Upstream::Location(Box::new(fetching)), at: now });
        self.last_progress = now;
        self.spool.set_state(State::Reading);
    }

    /// Stops the reads in flight; what they would have brought is to be asked again.
    pub(super) fn drop_reads(&mut self) {
        self.reads.clear();
        self.plan.rewind(self.verifier.position());
    }

    /// Frames granted that have not come.
    pub(super) fn granted(&self) -> u32 {
        self.reads.iter().map(|asked| asked.upstream.credit()).sum()
    }

    /// How many frames may be granted beside those.
    fn room(&self, granted: u32) -> u32 {
        let room = self.spool.room(self.window.frames(), granted, DATA_PAYLOAD) / DATA_PAYLOAD;
        u32::try_from(room).unwrap_or(u32::MAX)
    }

    /// How many of so many frames the reads in flight are to have now.
    fn wanted(&self, frames: u32) -> u32 {
        self.reads.iter().fold(0, |wanted, asked| wanted + self.due(asked, frames - wanted))
    }

    /// Gives what the link lends of the frames `wanted` to the reads that need it, in order.
    fn grant(&mut self, wanted: u32, granted: u32, now: Instant) -> u32 {
        let lent = match self.reads.front() {
            Some(asked) if asked.upstream.is_location() => wanted,
            _ => self.lend(granted, wanted, now),
        };
        let mut left = lent;
        for asked in &mut self.reads {
            let grant = left.min(asked.upstream.credit_needed());
            if grant == 0 {
                continue;
            }
            if asked.upstream.credit() == 0 {
                self.transfers.metrics.credit_waits.inc();
                self.last_progress = now;
            }
            asked.upstream.grant(grant, now);
            self.spool.set_state(State::Reading);
            left -= grant;
        }
        lent
    }

    /// How many of so many frames a read is to have now: steps of a part of the window.
    fn due(&self, asked: &Asked, frames: u32) -> u32 {
        let needed = asked.upstream.credit_needed();
        let worth_it = frames >= needed.min(window::step(self.window.frames())) || asked.upstream.credit() == 0;
        if worth_it { frames.min(needed) } else { 0 }
    }

    /// What the link has to lend of the frames `wanted`, besides those `granted`. What it has not it wakes this feed for.
    fn lend(&mut self, granted: u32, wanted: u32, now: Instant) -> u32 {
        let Some(Path::Relay(link)) = &self.path else {
            (self.ready, self.sharing) = (None, None);
            return 0;
        };
        if self.sharing.as_ref().is_none_or(|sharing| !sharing.is_of(link.slots.credit())) {
            if wanted == 0 {
                return 0;
            }
            self.sharing = Some(link.slots.share());
        }
        let Some(sharing) = &self.sharing else { return 0 };
        let share = sharing.ask(&self.spool.readers(), (granted, wanted), now.into_std());
        self.hold(share.held);
        share.frames
    }

    /// Takes note of whether the agent's rate holds this feed back.
    pub(super) fn hold(&mut self, held: Option<Held>) {
        if held.is_some() && self.granted() == 0 {
            self.spool.set_state(State::HeldByRate);
        }
        self.held = held;
    }
}

fn frames_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(DATA_PAYLOAD as u64)).unwrap_or(u32::MAX)
}
