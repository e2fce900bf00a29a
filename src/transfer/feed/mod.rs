//! The upstream side of a range: reads, credit, resume, verification and hold-back.
//!
//! A feed asks agents, one read after the other, and the next one early when a slot is free; or other places, all that
//! is left at once. Every decision is made in
//! [`Feed::ask`] and in the handlers of the events that it then waits for; nothing else waits.

mod ask;
mod events;
mod search;
mod turn;
mod upstream;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::live::Live;
use super::pipe::{Pipe, ReaderDid};
use super::source::{Path, Sources};
use super::{TransferError, Transfers};
use crate::access::Readable;
use crate::agents::{Slot, SlotRequest};
use crate::protocol::{ByteRange, Sha256};
use crate::read::{Coverage, Plan, Verifier, Window};

pub use events::RESUMES;

use ask::Asked;
use search::PAUSES;
use turn::Turn;
use upstream::UpstreamEvent;

/// One range of a blob on its way to a cursor.
pub struct Feed {
    transfers: Arc<Transfers>,
    sha256: Sha256,
    size: u64,
    range: ByteRange,
    sources: Sources,
    verifier: Verifier,
    /// The place of the source that every byte of the span being hashed came from, if it was one.
    span_source: Option<usize>,
    plan: Plan,
    window: Window,
    pipe: Arc<Pipe>,
    live: Arc<Live>,
    path: Option<Path>,
    reads: VecDeque<Asked>,
    slot: Option<SlotRequest>,
    turn: Turn,
    waiting: Option<BoxFuture<'static, ()>>,
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    timer: Pin<Box<Sleep>>,
    /// Nothing is asked before.
    pause_until: Option<Instant>,
    pause: Duration,
    /// The last time a byte came, or the agent was given a reason to send one.
    last_progress: Instant,
    /// Since when there is room and no byte has come.
    wanting_since: Option<Instant>,
    /// The set has expired: its agents are asked once, and not waited for.
    expired: bool,
    released: bool,
}

enum Event {
    Upstream(UpstreamEvent),
    Slot(Slot),
    Reachable,
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
        (range, expired): (ByteRange, bool),
        pipe: Arc<Pipe>,
        live: Arc<Live>,
    ) -> Self {
        let now = Instant::now();
        let verifier = Verifier::new(range, readable.size, readable.sha256, readable.chunks);
        let mut sources = readable.sources;
        if verifier.coverage() != Coverage::Full {
            // Bytes that nothing checks are taken on nobody's word but the first's.
            let first = sources.first().map(|source| source.agent.clone());
            sources.retain(|source| Some(&source.agent) == first.as_ref());
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
            path: None,
            reads: VecDeque::new(),
            slot: None,
            turn: Turn::default(),
            waiting: None,
            cancelled: Box::pin(live.cancel.clone().cancelled_owned()),
            live,
            timer: Box::pin(tokio::time::sleep_until(now)),
            pause_until: None,
            pause: PAUSES.0,
            last_progress: now,
            wanting_since: None,
            expired,
            released: false,
            transfers,
        }
    }

    /// How much of the range is checked.
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
            // Whoever ended it from outside left the reason there.
            let error = self.pipe.error().unwrap_or(error);
            tracing::warn!(transfer = self.live.id.0, sha256 = %self.sha256, position = self.verifier.position(),
                error = error.code(), "a transfer was cut");
        }
        self.pipe.finish(end);
    }

    async fn step(&mut self) -> Result<(), TransferError> {
        self.ask()?;
        let event = std::future::poll_fn(|cx| self.poll_event(cx)).await;
        match event {
            Event::Upstream(UpstreamEvent::Data(bytes)) => self.on_data(bytes),
            Event::Upstream(UpstreamEvent::ReadEnded(end)) => self.on_end(&end),
            Event::Upstream(UpstreamEvent::FetchEnded(end)) => self.on_fetch_end(end),
            Event::Slot(slot) => {
                self.slot = None;
                self.send_read(slot);
                Ok(())
            }
            Event::Reachable => {
                self.waiting = None;
                Ok(())
            }
            Event::Reader(ReaderDid::Take(bytes)) => {
                self.window.consumed(Instant::now().into_std(), bytes);
                Ok(())
            }
            // The cursor is gone; dropping the feed cancels its reads.
            Event::Reader(ReaderDid::Leave) | Event::Cancelled => Err(TransferError::Cancelled),
            Event::Contended => Ok(()),
            Event::Timer => self.on_timer(),
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
            && let Poll::Ready(event) = asked.upstream.poll_next(cx)
        {
            return Poll::Ready(Event::Upstream(event));
        }
        if let Some(slot) = &mut self.slot
            && let Poll::Ready(slot) = slot.poll_unpin(cx)
        {
            self.transfers.metrics.slot_waits.dec();
            return Poll::Ready(Event::Slot(slot));
        }
        if self.waiting.as_mut().is_some_and(|waiting| waiting.poll_unpin(cx).is_ready()) {
            return Poll::Ready(Event::Reachable);
        }
        if self.turn.poll_contention(cx).is_ready() {
            return Poll::Ready(Event::Contended);
        }
        self.poll_timer(cx).map(|()| Event::Timer)
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let reading = self.reads.iter().any(|asked| asked.upstream.credit() > 0);
        let waits = self.waiting.is_some() || self.slot.is_some();
        let due = [
            self.pause_until,
            reading.then(|| self.last_progress + self.transfers.limits.read_timeout),
            self.wanting_since.filter(|_| waits).map(|since| since + self.patience()),
            self.turn.stuck_at().filter(|_| self.is_contended() && !self.reads.is_empty()),
            self.turn.idle_at().filter(|_| self.reads.front().is_some_and(|asked| asked.upstream.is_location())),
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
