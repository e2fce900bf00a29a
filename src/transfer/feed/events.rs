//! What a feed makes of what happens to its reads: bytes, their hashes, ends, and silence.

use bytes::Bytes;
use tokio::time::Instant;

use super::Feed;
use super::keeping::has_the_bytes;
use super::search::PAUSES;
use crate::agents::ReadEnd;
use crate::outbound::FetchError;
use crate::protocol::limits::CONCURRENT_READS;
use crate::read::Mismatch;
use crate::transfer::TransferError;
use crate::transfer::doubts::Cause;
use crate::transfer::error::{Remedy, remedy};
use crate::transfer::location::{FetchEnd, Refusal};

/// Why remaining bytes are asked for again, as metrics name it.
pub const RESUMES: [&str; 7] =
    ["disconnected", "stalled", "too_many_reads", "busy", "retry", "next_source", "hash_mismatch"];

impl Feed {
    pub(super) fn on_data(&mut self, bytes: Bytes) -> Result<(), TransferError> {
        let now = Instant::now();
        self.last_progress = now;
        self.wanting_since = None;
        self.pause = PAUSES.0;
        self.sources.delivered();
        let sample = self.reads.front_mut().and_then(|asked| asked.upstream.take_round_trip());
        if let Some(sample) = sample {
            self.window.round_trip(sample);
        }
        if let Some(sharing) = &self.sharing {
            sharing.came(bytes.len() as u64, sample, now.into_std());
        }
        let source = self.sources.place();
        let (span, position) = (self.verifier.span_start(), self.verifier.position());
        if span.is_none_or(|start| start == position) {
            self.span_sources.clear();
        }
        if !self.span_sources.contains(&source) {
            self.span_sources.push(source);
        }
        let (spool, keeping, fast) = (&self.spool, &mut self.keeping, self.window.is_fast());
        let (verifier, released) = (&mut self.verifier, &mut self.released);
        let served_by = self.sources.current();
        let accept = || {
            verifier.accept(bytes, |piece| {
                *released = true;
                keeping.take(&piece, served_by);
                if piece.verified {
                    spool.verified(piece.start + piece.bytes.len() as u64);
                }
                if fast {
                    spool.push(piece.bytes);
                } else {
                    spool.push_copied(&piece.bytes);
                }
            })
        };
        let checked = if fast { self.transfers.beside.run(accept) } else { accept() };
        // A span that began within this frame is this source's alone; one that went on may be another's in part.
        let went_on = |start| Some(start) == span && position > start;
        let alone = |start| !went_on(start) || self.span_sources == [source];
        self.keeping
            .settle(|object| (has_the_bytes(served_by) && alone(object.range.start)).then_some(&served_by.agent));
        let is_whole = checked.is_ok() && self.verifier.is_of_whole() && self.verifier.position() == self.size;
        if is_whole && has_the_bytes(served_by) && alone(0) {
            self.transfers.access.proved(&served_by.agent, self.sha256, self.size);
        }
        if let Err(mismatch) = checked {
            let alone = alone(mismatch.span.start);
            return self.on_mismatch(mismatch, alone);
        }
        if self.verifier.span_start() != span {
            self.span_sources = vec![source];
        }
        if self.reads.front().is_some_and(|asked| asked.upstream.range().end == self.verifier.position()) {
            // Every byte is here. The `blob.end` that follows is the connection's to check.
            self.reads.pop_front();
        }
        Ok(())
    }

    /// `alone`: every byte of the span is the source's in use.
    fn on_mismatch(&mut self, mismatch: Mismatch, alone: bool) -> Result<(), TransferError> {
        self.transfers.metrics.hash_mismatches.inc();
        let source = &self.sources.current().agent;
        // Of what was held back no reader has anything that it could go on from.
        for live in self.spool.transfers().iter().filter(|_| mismatch.released) {
            self.transfers.mismatches.remember(&live.reader, source, self.sha256, mismatch.span);
        }
        let current = self.sources.place();
        let cause = |place: usize| match (alone, place == current) {
            (true, _) => Cause::Wrong,
            (false, true) => Cause::Ended,
            (false, false) => Cause::Unfinished,
        };
        let brought = if alone { vec![current] } else { std::mem::take(&mut self.span_sources) };
        self.doubt(&brought.into_iter().map(|place| (place, cause(place))).collect::<Vec<_>>());
        let source = &self.sources.current().agent;
        self.keeping.drop_unfinished();
        tracing::warn!(transfers = self.riders(), sha256 = %self.sha256, start = mismatch.span.start,
            end = mismatch.span.end, agent = alone.then(|| tracing::field::display(source)),
            "bytes do not have the announced hash");
        if alone {
            if self.verifier.is_of_whole() {
                self.transfers.access.failed(source, self.sha256);
            }
            self.sources.give_up(TransferError::HashMismatch);
        } else {
            self.sources.failed(TransferError::HashMismatch);
        }
        if mismatch.released {
            return Err(TransferError::HashMismatch);
        }
        self.verifier.retry(mismatch.span);
        self.drop_reads();
        self.path = None;
        self.count_resume("hash_mismatch");
        Ok(())
    }

    /// These are asked after others from now on.
    fn doubt(&mut self, causes: &[(usize, Cause)]) {
        let doubts = &self.transfers.doubts;
        for (place, cause) in causes {
            doubts.raise(self.sources.agent(*place), self.sha256, *cause);
        }
        self.sources.doubt_again(|agent| doubts.about(agent, self.sha256));
    }

    pub(super) fn on_end(&mut self, end: &ReadEnd) -> Result<(), TransferError> {
        self.drop_reads();
        match remedy(end) {
            Remedy::Resume => {
                self.lose_path();
                if self.wanting_since.is_some() {
                    // Nothing came since the last time: a connection that ends at every read is not asked in a loop.
                    self.wait_or_fail(TransferError::AgentOffline)?;
                }
                self.count_resume("disconnected");
            }
            Remedy::Wait(error) => {
                self.wait_or_fail(error)?;
                self.count_resume("too_many_reads");
            }
            Remedy::Retry(error) => {
                self.sources.failed(error);
                self.path = None;
                self.pause(Instant::now());
                self.count_resume("retry");
            }
            // It had them a moment ago: an agent that came back may be ready again before it has published again.
            Remedy::NextSource(error @ TransferError::BlobGone)
                if self.released && !self.sources.another_is_reachable(&self.transfers.agents, Instant::now()) =>
            {
                self.wait_or_fail(error)?;
                self.path = None;
                self.count_resume("next_source");
            }
            Remedy::NextSource(error) => {
                if error == TransferError::Shorter {
                    self.transfers.access.failed(&self.sources.current().agent, self.sha256);
                }
                self.sources.give_up(error);
                self.path = None;
                self.count_resume("next_source");
            }
        }
        Ok(())
    }

    /// What is left is asked of the next place, or of this one again when it may have it.
    pub(super) fn on_fetch_end(&mut self, end: FetchEnd) -> Result<(), TransferError> {
        self.drop_reads();
        self.path = None;
        let now = Instant::now();
        match end {
            FetchEnd::Complete | FetchEnd::Broken | FetchEnd::Refused(Refusal::Unreachable(FetchError::TimedOut)) => {
                self.sources.failed(TransferError::AgentFailed);
                self.pause(now);
                self.count_resume("disconnected");
            }
            FetchEnd::Refused(Refusal::Busy(pause)) => {
                let busy = TransferError::TooManyTransfers { limit: CONCURRENT_READS };
                self.sources.leave_alone(now + pause, busy);
                self.count_resume("busy");
            }
            FetchEnd::Refused(Refusal::Gone(_)) => {
                self.sources.give_up(TransferError::BlobGone);
                self.count_resume("next_source");
            }
            FetchEnd::Refused(
                Refusal::Unsupported | Refusal::Own | Refusal::Denied(_) | Refusal::Wrong(_) | Refusal::Unreachable(_),
            ) => {
                self.sources.give_up(TransferError::AgentFailed);
                self.count_resume("next_source");
            }
        }
        Ok(())
    }

    pub(super) fn on_timer(&mut self) -> Result<(), TransferError> {
        let now = Instant::now();
        if self.granted() > 0 && now >= self.last_progress + self.transfers.limits.read_timeout {
            self.drop_reads();
            let timeout = self.transfers.limits.read_timeout;
            self.doubt(&[(self.sources.place(), Cause::Silent)]);
            if self.sources.another_is_reachable(&self.transfers.agents, now) {
                // A reader has waited for it long enough.
                self.sources.leave_alone(now + timeout, TransferError::AgentFailed);
            } else {
                self.sources.failed(TransferError::AgentFailed);
            }
            self.lose_path();
            self.last_progress = now;
            tracing::warn!(transfers = self.riders(), agent = %self.sources.current().agent,
                position = self.verifier.position(), "an agent with credit sent nothing for --read-timeout: asking again");
            self.count_resume("stalled");
        }
        if (self.waiting.is_some() || self.slot.is_some()) && self.waited_too_long(now) {
            return Err(match self.slot {
                Some(_) => TransferError::TooManyTransfers { limit: CONCURRENT_READS },
                None => self.sources.error(),
            });
        }
        Ok(())
    }

    fn count_resume(&self, reason: &str) {
        self.transfers.metrics.resumes.with_label_values(&[reason]).inc();
        tracing::debug!(transfers = self.riders(), reason, position = self.verifier.position(), "asking again");
    }
}
