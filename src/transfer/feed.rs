//! The upstream side of a range: reads, credit, resume, verification and hold-back.
//!
//! A feed asks agents, one read after the other, and the next one early when a slot is free. Every decision is made in
//! [`Feed::ask`] and in the handlers of the events that it then waits for; nothing else waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::error::{Remedy, remedy};
use super::live::{Live, State};
use super::pipe::{Pipe, ReaderDid};
use super::source::Sources;
use super::{TransferError, Transfers};
use crate::access::Readable;
use crate::agents::{Link, Read, ReadEnd, ReadEvent, Slot, SlotRequest};
use crate::protocol::limits::{CONCURRENT_READS, DATA_PAYLOAD, READ_BYTES};
use crate::protocol::{ByteRange, Chunks, Principal, Sha256};
use crate::read::{Coverage, Mismatch, Plan, Verifier, Window};

/// A read whose reader takes nothing for so long gives its slot up while others wait.
const STUCK_AFTER: Duration = Duration::from_millis(100);
/// A frame is a slice of a receive buffer about twice its size, which it keeps from being freed. What may have to wait
/// for its reader is copied out of it in parts of this size, each freed once it is written.
const PART: usize = 64 * 1024;
/// While others wait, a read is worth about so much of its reader's time.
const TURN: Duration = Duration::from_secs(1);
/// The first and the longest pause before asking again what was refused.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Why remaining bytes are asked for again, as metrics name it.
pub const RESUMES: [&str; 6] = ["disconnected", "stalled", "too_many_reads", "retry", "next_source", "hash_mismatch"];

/// One range of a blob on its way to a cursor.
pub struct Feed {
    transfers: Arc<Transfers>,
    sha256: Sha256,
    size: u64,
    range: ByteRange,
    sources: Sources,
    verifier: Verifier,
    /// The source that every byte of the span being hashed came from, if it was one.
    span_source: Option<Principal>,
    plan: Plan,
    window: Window,
    pipe: Arc<Pipe>,
    live: Arc<Live>,
    link: Option<Link>,
    reads: VecDeque<Asked>,
    slot: Option<SlotRequest>,
    waiting: Option<BoxFuture<'static, ()>>,
    /// Resolves when somebody else waits for a slot; watched only while the reader is stuck.
    contention: Option<BoxFuture<'static, ()>>,
    cancelled: std::pin::Pin<Box<WaitForCancellationFutureOwned>>,
    timer: std::pin::Pin<Box<Sleep>>,
    /// Nothing is asked before.
    pause_until: Option<Instant>,
    pause: Duration,
    /// The last time a byte came, or the agent was given a reason to send one.
    last_progress: Instant,
    /// Since when there is room and no byte has come.
    wanting_since: Option<Instant>,
    /// Since when the reader has left no room.
    stuck_since: Option<Instant>,
    released: bool,
}

struct Asked {
    read: Read,
    at: Instant,
}

enum Event {
    Read(ReadEvent),
    Slot(Slot),
    Online,
    Reader(ReaderDid),
    Contended,
    Timer,
    Cancelled,
}

impl Feed {
    /// A feed that has asked nothing yet.
    pub fn new(
        transfers: Arc<Transfers>,
        readable: Readable,
        range: ByteRange,
        pipe: Arc<Pipe>,
        live: Arc<Live>,
    ) -> Self {
        let now = Instant::now();
        let chunks = readable.sources.first().and_then(|source| source.chunks.clone());
        let verifier = Verifier::new(range, readable.size, readable.sha256, chunks);
        let mut sources = readable.sources;
        if verifier.coverage() != Coverage::Full {
            // Bytes that nothing checks are taken from nobody but the first.
            sources.truncate(1);
        }
        Self {
            sha256: readable.sha256,
            size: readable.size,
            range,
            verifier,
            sources: Sources::new(sources),
            span_source: None,
            plan: Plan::new(range),
            window: Window::starting(transfers.first_window()),
            pipe,
            link: None,
            reads: VecDeque::new(),
            slot: None,
            waiting: None,
            contention: None,
            cancelled: Box::pin(live.cancel.clone().cancelled_owned()),
            live,
            timer: Box::pin(tokio::time::sleep_until(now)),
            pause_until: None,
            pause: PAUSES.0,
            last_progress: now,
            wanting_since: None,
            stuck_since: None,
            released: false,
            transfers,
        }
    }

    /// How much of the range is checked. Final once the first byte was released.
    pub fn coverage(&self) -> Coverage {
        self.verifier.coverage()
    }

    /// Runs until a first byte was released.
    pub async fn begin(&mut self) -> Result<(), TransferError> {
        while !self.released && !self.is_done() {
            self.step().await?;
        }
        Ok(())
    }

    /// Whether every byte was released.
    pub fn is_done(&self) -> bool {
        self.verifier.position() == self.range.end
    }

    /// Runs to the end and tells the cursor how it ended.
    pub async fn finish(mut self) {
        let mut end = Ok(());
        while end.is_ok() && !self.is_done() {
            end = self.step().await;
        }
        if let Err(error) = end
            && !self.pipe.is_left()
        {
            tracing::warn!(transfer = %self.live.id, sha256 = %self.sha256, position = self.verifier.position(),
                error = error.code(), "a transfer was cut");
        }
        self.pipe.finish(end);
    }

    async fn step(&mut self) -> Result<(), TransferError> {
        self.ask()?;
        let event = std::future::poll_fn(|cx| self.poll_event(cx)).await;
        match event {
            Event::Read(ReadEvent::Data(bytes)) => self.on_data(bytes),
            Event::Read(ReadEvent::Ended(end)) => self.on_end(&end),
            Event::Slot(slot) => {
                self.slot = None;
                self.send_read(slot);
                Ok(())
            }
            Event::Online => {
                self.waiting = None;
                Ok(())
            }
            Event::Reader(ReaderDid::Take(bytes)) => {
                self.window.consumed(Instant::now().into_std(), bytes);
                Ok(())
            }
            // The cursor is gone; dropping the feed cancels its reads.
            Event::Reader(ReaderDid::Leave) | Event::Cancelled => Err(TransferError::Cancelled),
            Event::Contended => {
                self.contention = None;
                Ok(())
            }
            Event::Timer => self.on_timer(),
        }
    }

    /// Grants what there is room for, asks the next read, gives a slot up, looks for a source: whatever is due now.
    fn ask(&mut self) -> Result<(), TransferError> {
        let now = Instant::now();
        let granted: u32 = self.reads.iter().map(|asked| asked.read.credit()).sum();
        let room = self.pipe.room(self.window.frames(), granted, DATA_PAYLOAD) / DATA_PAYLOAD;
        let mut frames = u32::try_from(room).unwrap_or(u32::MAX);

        let contended = self.link.as_ref().is_some_and(|link| link.slots.is_contended());
        let turn_is_over = contended && self.reads.front().is_some_and(|asked| now >= asked.at + TURN);
        self.stuck_since = if frames == 0 && granted == 0 { self.stuck_since.or(Some(now)) } else { None };
        let stuck = contended && self.stuck_since.is_some_and(|since| now >= since + STUCK_AFTER);
        if granted == 0 && (stuck || turn_is_over) && !self.reads.is_empty() {
            // Nothing is on its way, so nothing is lost.
            self.drop_reads();
        }
        if !turn_is_over {
            frames -= self.grant(frames, now);
        }
        self.watch_contention(granted, frames);
        self.pause_until.take_if(|until| now >= *until);
        if frames == 0 || self.plan.is_done() || self.pause_until.is_some() {
            return Ok(());
        }
        if self.reads.is_empty() {
            self.wanting_since.get_or_insert(now);
            self.find_source(now)?;
            if let (Some(link), None) = (&self.link, &self.slot) {
                let length = self.plan.remaining().min(READ_BYTES);
                self.slot = Some(link.slots.request(length));
                self.live.set_state(State::WaitingForSlot);
                self.transfers.metrics.slot_waits.inc();
            }
        } else if self.reads.len() == 1
            && self.reads[0].read.credit_needed() == 0
            && let Some(slot) = self.link.as_ref().and_then(|link| link.slots.try_take())
        {
            self.send_read(slot);
        }
        Ok(())
    }

    /// Gives credit to the reads that need it, in order, in steps of about half a window.
    fn grant(&mut self, frames: u32, now: Instant) -> u32 {
        let mut spent = 0;
        for asked in &self.reads {
            let left = frames - spent;
            let needed = asked.read.credit_needed();
            let step = needed.min(self.window.frames().div_ceil(2));
            let dry = asked.read.credit() == 0;
            if left == 0 || needed == 0 || (left < step && !dry) {
                continue;
            }
            let grant = left.min(needed);
            if dry {
                self.transfers.metrics.credit_waits.inc();
                self.last_progress = now;
            }
            asked.read.grant(grant, now.into_std());
            self.live.set_state(State::Reading);
            spent += grant;
        }
        spent
    }

    fn send_read(&mut self, slot: Slot) {
        let Some(link) = self.link.clone() else { return };
        let now = Instant::now();
        let granted: u32 = self.reads.iter().map(|asked| asked.read.credit()).sum();
        let room = self.pipe.room(self.window.frames(), granted, DATA_PAYLOAD) / DATA_PAYLOAD;
        let credit = u32::try_from(room).unwrap_or(u32::MAX).max(1);
        let limit = if link.slots.is_contended() {
            // What the reader takes in a turn, but no less than what is granted anyway.
            self.window.pace().unwrap_or(0).max(u64::from(credit) * DATA_PAYLOAD as u64)
        } else {
            READ_BYTES
        };
        let Some(range) = self.plan.take(limit) else { return };
        let needed = range.len().div_ceil(DATA_PAYLOAD as u64);
        let credit = credit.min(u32::try_from(needed).unwrap_or(u32::MAX));
        let agent = self.sources.current().agent.clone();
        let asked = (self.transfers.request_id(), range, credit);
        match Read::ask(&link.mailbox, slot, agent, self.sha256, asked, now.into_std()) {
            Ok(read) => {
                self.reads.push_back(Asked { read, at: now });
                self.last_progress = now;
                self.live.set_state(State::Reading);
            }
            Err(_) => {
                // The connection went between being found and being asked.
                self.plan.rewind(range.start);
                self.lose_link();
                self.pause(now);
            }
        }
    }

    /// Finds a source that is online, or begins to wait for one.
    fn find_source(&mut self, now: Instant) -> Result<(), TransferError> {
        if self.link.is_some() || self.waiting.is_some() {
            return Ok(());
        }
        let bound_to = self.bound_to();
        if let Some((place, link)) = self.sources.online(&self.transfers.agents, bound_to.as_ref()) {
            self.sources.choose(place);
            self.live.set_agent(&self.sources.current().agent);
            self.adopt_chunks();
            self.link = Some(link);
            return Ok(());
        }
        self.waiting = self.sources.wait(&self.transfers.agents, bound_to.as_ref());
        if self.waiting.is_none() {
            return Err(self.sources.error());
        }
        if self.waited_too_long(now) {
            return Err(self.sources.error());
        }
        self.live.set_state(State::WaitingForAgent);
        Ok(())
    }

    fn another_is_online(&self) -> bool {
        self.sources.another_is_online(&self.transfers.agents, self.bound_to().as_ref())
    }

    /// The chunk list under which bytes were released already.
    fn bound_to(&self) -> Option<Arc<Chunks>> {
        if self.released { self.verifier.chunks().cloned() } else { None }
    }

    /// Before anything was released, the chunk list of the source in use is the one that counts.
    fn adopt_chunks(&mut self) {
        let chunks: Option<&Arc<Chunks>> = self.sources.current().chunks.as_ref();
        if !self.released && self.verifier.chunks() != chunks {
            self.verifier = Verifier::new(self.range, self.size, self.sha256, chunks.cloned());
            self.plan.rewind(self.range.start);
        }
    }

    fn on_data(&mut self, bytes: Bytes) -> Result<(), TransferError> {
        let now = Instant::now();
        self.last_progress = now;
        self.wanting_since = None;
        self.pause = PAUSES.0;
        self.sources.delivered();
        if let Some(sample) = self.reads.front().and_then(|asked| asked.read.take_round_trip()) {
            self.window.round_trip(sample);
        }
        let agent = self.sources.current().agent.clone();
        let (span, position) = (self.verifier.span_start(), self.verifier.position());
        let (pipe, released, fast) = (&self.pipe, &mut self.released, self.window.is_fast());
        let checked = self.verifier.accept(bytes, |piece| {
            *released = true;
            if fast {
                pipe.push(piece);
            } else {
                piece.chunks(PART).for_each(|part| pipe.push(Bytes::copy_from_slice(part)));
            }
        });
        // A span that began within this frame is this agent's alone; one that went on may be another's in part.
        let went_on = |start| Some(start) == span && position > start;
        let alone = |start| !went_on(start) || self.span_source.as_ref() == Some(&agent);
        if let Err(mismatch) = checked {
            let blamed = alone(mismatch.span.start).then_some(agent);
            return self.on_mismatch(mismatch, blamed);
        }
        self.span_source = self.verifier.span_start().filter(|start| alone(*start)).map(|_| agent);
        if self.reads.front().is_some_and(|asked| asked.read.range().end == self.verifier.position()) {
            // Every byte is here. The `blob.end` that follows is the connection's to check.
            self.reads.pop_front();
        }
        Ok(())
    }

    fn on_mismatch(&mut self, mismatch: Mismatch, blamed: Option<Principal>) -> Result<(), TransferError> {
        self.transfers.metrics.hash_mismatches.inc();
        let source = &self.sources.current().agent;
        self.transfers.mismatches.remember(&self.live.reader, source, self.sha256, mismatch.span);
        tracing::warn!(transfer = %self.live.id, sha256 = %self.sha256, start = mismatch.span.start,
            end = mismatch.span.end, agent = blamed.as_ref().map(tracing::field::display),
            "bytes do not have the announced hash");
        if blamed.is_some() {
            self.sources.give_up(TransferError::HashMismatch);
        } else {
            self.sources.failed(TransferError::HashMismatch);
        }
        if mismatch.released {
            return Err(TransferError::HashMismatch);
        }
        self.verifier.retry(mismatch.span);
        self.drop_reads();
        self.link = None;
        self.count_resume("hash_mismatch");
        Ok(())
    }

    fn on_end(&mut self, end: &ReadEnd) -> Result<(), TransferError> {
        self.drop_reads();
        match remedy(end) {
            Remedy::Resume => {
                self.lose_link();
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
                self.link = None;
                self.pause(Instant::now());
                self.count_resume("retry");
            }
            // It had them a moment ago: an agent that came back may be ready again before it has published again.
            Remedy::NextSource(error @ TransferError::BlobGone) if self.released && !self.another_is_online() => {
                self.wait_or_fail(error)?;
                self.link = None;
                self.count_resume("next_source");
            }
            Remedy::NextSource(error) => {
                self.sources.give_up(error);
                self.link = None;
                self.count_resume("next_source");
            }
        }
        Ok(())
    }

    fn on_timer(&mut self) -> Result<(), TransferError> {
        let now = Instant::now();
        let granted: u32 = self.reads.iter().map(|asked| asked.read.credit()).sum();
        if granted > 0 && now >= self.last_progress + self.transfers.limits.read_timeout {
            self.drop_reads();
            self.sources.failed(TransferError::AgentFailed);
            self.lose_link();
            self.last_progress = now;
            self.count_resume("stalled");
        }
        if (self.waiting.is_some() || self.slot.is_some()) && self.waited_too_long(now) {
            let error = if self.slot.is_some() { self.slot_error() } else { self.sources.error() };
            return Err(error);
        }
        Ok(())
    }

    /// Asks nothing for a while, longer each time until a byte comes.
    fn pause(&mut self, now: Instant) {
        self.pause_until = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    fn wait_or_fail(&mut self, error: TransferError) -> Result<(), TransferError> {
        let now = Instant::now();
        if self.waited_too_long(now) {
            return Err(error);
        }
        self.pause(now);
        Ok(())
    }

    fn slot_error(&self) -> TransferError {
        TransferError::TooManyTransfers { limit: CONCURRENT_READS }
    }

    /// Before the first byte a reader waits as long as for an offline agent; after it, as long as for a resume.
    fn patience(&self) -> Duration {
        let limits = &self.transfers.limits;
        if self.released { limits.resume_window } else { limits.agent_wait }
    }

    fn waited_too_long(&self, now: Instant) -> bool {
        self.wanting_since.is_some_and(|since| now >= since + self.patience())
    }

    fn lose_link(&mut self) {
        self.link = None;
        self.leave_queue();
    }

    fn leave_queue(&mut self) {
        if self.slot.take().is_some() {
            self.transfers.metrics.slot_waits.dec();
        }
    }

    fn drop_reads(&mut self) {
        self.reads.clear();
        self.plan.rewind(self.verifier.position());
    }

    fn count_resume(&self, reason: &str) {
        self.transfers.metrics.resumes.with_label_values(&[reason]).inc();
        tracing::debug!(transfer = %self.live.id, reason, position = self.verifier.position(), "asking again");
    }

    /// While the reader leaves no room, others that wait for a slot are looked out for.
    fn watch_contention(&mut self, granted: u32, frames: u32) {
        let idle = granted == 0 && frames == 0 && !self.reads.is_empty();
        if !idle {
            self.contention = None;
            return;
        }
        self.live.set_state(State::WaitingForReader);
        if let (None, Some(link)) = (&self.contention, &self.link)
            && !link.slots.is_contended()
        {
            let mut contended = link.slots.contention();
            self.contention = Some(async move { drop(contended.wait_for(|contended| *contended).await) }.boxed());
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if self.cancelled.poll_unpin(cx).is_ready() {
            return Poll::Ready(Event::Cancelled);
        }
        if let Poll::Ready(did) = self.pipe.poll_reader(cx) {
            return Poll::Ready(Event::Reader(did));
        }
        if let Some(asked) = self.reads.front_mut()
            && let Poll::Ready(event) = asked.read.poll_next(cx)
        {
            return Poll::Ready(Event::Read(event));
        }
        if let Some(slot) = &mut self.slot
            && let Poll::Ready(slot) = slot.poll_unpin(cx)
        {
            self.transfers.metrics.slot_waits.dec();
            return Poll::Ready(Event::Slot(slot));
        }
        if self.waiting.as_mut().is_some_and(|waiting| waiting.poll_unpin(cx).is_ready()) {
            return Poll::Ready(Event::Online);
        }
        if self.contention.as_mut().is_some_and(|contention| contention.poll_unpin(cx).is_ready()) {
            return Poll::Ready(Event::Contended);
        }
        self.poll_timer(cx).map(|()| Event::Timer)
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let contended = self.link.as_ref().is_some_and(|link| link.slots.is_contended());
        let reading = self.reads.iter().any(|asked| asked.read.credit() > 0);
        let waits = self.waiting.is_some() || self.slot.is_some();
        let due = [
            self.pause_until,
            reading.then(|| self.last_progress + self.transfers.limits.read_timeout),
            self.wanting_since.filter(|_| waits).map(|since| since + self.patience()),
            self.stuck_since.filter(|_| contended && !self.reads.is_empty()).map(|since| since + STUCK_AFTER),
        ];
        let Some(due) = due.into_iter().flatten().min() else { return Poll::Pending };
        if self.timer.deadline() != due {
            self.timer.as_mut().reset(due);
        }
        self.timer.poll_unpin(cx)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.leave_queue();
    }
}
