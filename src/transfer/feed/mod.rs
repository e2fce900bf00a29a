//! The upstream side of a range: reads, credit, resume, verification and hold-back.
//!
//! A feed asks agents, one read after the other, and the next one early when a slot is free; or other places, all that
//! is left at once. Every decision is made in
//! [`Feed::ask`] and in the handlers of the events that it then waits for; nothing else waits.

mod ask;
mod events;
mod keeping;
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

use super::course::Course;
use super::source::{Path, Sources};
use super::spool::{ReadersDid, Spool};
use super::{TransferError, Transfers};
use crate::agents::{Sharing, Slot, SlotRequest};
use crate::protocol::{ByteRange, Principal, Sha256};
use crate::read::{Coverage, Held, Plan, Promise, Verifier, Window};

pub use events::RESUMES;

use ask::Asked;
use keeping::Keeping;
use search::PAUSES;
use turn::Turn;
use upstream::UpstreamEvent;

/// One range of a blob on its way to its cursors.
pub struct Feed {
    transfers: Arc<Transfers>,
    sha256: Sha256,
    size: u64,
    range: ByteRange,
    sources: Sources,
    verifier: Verifier,
    /// The places of the sources that the bytes of the span being hashed came from, each once.
    span_sources: Vec<usize>,
    plan: Plan,
    window: Window,
    spool: Arc<Spool>,
    keeping: Keeping,
    path: Option<Path>,
    reads: VecDeque<Asked>,
    slot: Option<SlotRequest>,
    /// A slot whose read waits for its first credit.
    ready: Option<Slot>,
    /// The part in the credit of the link in use.
    sharing: Option<Sharing>,
    /// The agent's highest rate is reached; it may be tried again then.
    held: Option<Held>,
    turn: Turn,
    waiting: Option<BoxFuture<'static, ()>>,
    timer: Pin<Box<Sleep>>,
    /// Nothing is asked before.
    pause_until: Option<Instant>,
    pause: Duration,
    /// The last time a byte came, or the agent was given a reason to send one.
    last_progress: Instant,
    /// Since when there is room and no byte has come.
    wanting_since: Option<Instant>,
    /// As [`Course::impatient`].
    impatient: bool,
    /// A reader's response has begun, or may have.
    released: bool,
}

enum Event {
    Upstream(UpstreamEvent),
    Slot(Slot),
    Reachable,
    Readers(ReadersDid),
    Contended,
    Credit,
    Timer,
}

impl Feed {
    /// A feed of `range` for the cursors of `spool` that has asked nothing yet. `begun`: the response it is for has.
    pub fn new(transfers: Arc<Transfers>, course: &Course, range: ByteRange, spool: Arc<Spool>, begun: bool) -> Self {
        let now = Instant::now();
        let readable = &course.readable;
        let doubt = |agent: &Principal| transfers.doubts.about(agent, readable.sha256);
        let mut sources = readable.sources.clone();
        if Promise::new(range, readable.size, readable.chunks.as_deref()).coverage() != Coverage::Full {
            // Bytes that nothing checks are taken on nobody's word but the first's, whatever is doubted.
            let first = sources.first().map(|source| source.agent.clone());
            sources.retain(|source| Some(&source.agent) == first.as_ref());
        }
        Self {
            sha256: readable.sha256,
            size: readable.size,
            range,
            verifier: Verifier::new(range, readable.size, readable.sha256, readable.chunks.clone()),
            sources: Sources::new(sources, doubt),
            span_sources: Vec::new(),
            plan: Plan::new(range),
            window: Window::starting(transfers.first_window()),
            spool,
            keeping: Keeping::new(transfers.cache.clone()),
            path: None,
            reads: VecDeque::new(),
            slot: None,
            ready: None,
            sharing: None,
            held: None,
            turn: Turn::default(),
            waiting: None,
            timer: Box::pin(tokio::time::sleep_until(now)),
            pause_until: None,
            pause: PAUSES.0,
            last_progress: now,
            wanting_since: None,
            impatient: course.impatient,
            released: begun,
            transfers,
        }
    }

    /// Runs to the end, or until nobody rides on it any more, and tells its cursors how it ended.
    pub async fn run(mut self) {
        let mut end = Ok(());
        while end.is_ok() && self.verifier.position() < self.range.end {
            end = self.step().await;
        }
        if let Err(error) = end
            && self.released
        {
            for live in self.spool.transfers() {
                tracing::warn!(transfer = live.id.0, sha256 = %self.sha256, position = self.verifier.position(),
                    error = error.code(), "a transfer was cut");
            }
        }
        self.spool.finish(end);
    }

    /// The transfers that ride on it, for log lines.
    fn riders(&self) -> String {
        self.spool.transfers().iter().map(|live| live.id.to_string()).collect::<Vec<_>>().join(",")
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
                self.ready = Some(slot);
                Ok(())
            }
            Event::Reachable => {
                self.waiting = None;
                Ok(())
            }
            Event::Readers(ReadersDid::Take(0)) => Ok(()),
            Event::Readers(ReadersDid::Take(bytes)) => {
                self.window.consumed(Instant::now().into_std(), bytes);
                Ok(())
            }
            // Dropping the feed cancels its reads.
            Event::Readers(ReadersDid::Leave) => Err(TransferError::Cancelled),
            Event::Contended | Event::Credit => Ok(()),
            Event::Timer => self.on_timer(),
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Poll::Ready(did) = self.spool.poll_readers(cx) {
            return Poll::Ready(Event::Readers(did));
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
        if self.sharing.as_ref().is_some_and(|sharing| sharing.poll_rung(cx).is_ready()) {
            return Poll::Ready(Event::Credit);
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
            self.held.and_then(|held| held.until).map(Instant::from_std),
            reading.then(|| self.last_progress + self.transfers.limits.read_timeout),
            self.wanting_since.filter(|_| waits).map(|since| since + self.patience()),
            self.spool.due(),
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
        self.transfers.feeds.remove(&self.sha256, &self.spool);
    }
}
