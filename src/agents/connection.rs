//! One agent's socket: one task owns it, its reads and its sessions. Everyone else posts to its [`Mailbox`].
//!
//! Reading never waits for writing, nor for a database, a manifest or a reader: frames to send wait in short queues,
//! sessions are decided by futures polled here, announcements are handed up, and bytes go into queues that have room
//! for exactly what was granted.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, Sink, SinkExt as _, Stream, StreamExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::answer::ReadEnd;
use super::gate::{Admitted, Credential};
use super::mailbox::{Mail, Mailbox};
use super::message::{Close, Message, Text};
use super::outbox::Outbox;
use super::reads::{self, Dropped, Outcome, Reads};
use super::registry::{ConnectionId, Kind};
use super::slots::Slots;
use super::{Agents, Announce, OpenSession};
use crate::protocol::frames::{AgentFrame, ErrorBody, InvalidFrame, PlatformFrame};
use crate::protocol::limits::MANIFEST_BYTES;
use crate::protocol::{Principal, RequestId};
use crate::read::Violation;

/// Text frames longer than this are not parsed on the connection's task. Only an announcement may be that long.
const PARSED_HERE: usize = 64 * 1024;
/// How many rules may be broken within [`STRIKE_MEMORY`].
const STRIKES: usize = 8;
const STRIKE_MEMORY: Duration = Duration::from_secs(60);
/// After a refusal that leaves no session, how long further `session.create` frames may still arrive.
const REFUSAL_LINGER: Duration = Duration::from_millis(200);
/// Answers that wait to be written. An agent that asks for more of them than that, and takes none, is not served.
const ANSWERS: usize = 1024;
/// How much text may wait to be decided as announcements, in KiB: two of the largest.
const PENDING_KIB: usize = 2 * (MANIFEST_BYTES / 1024 + 64);
/// What the smallest announcement counts for, until it is decided or its refusal is written: about a thousand refusals
/// may wait for an agent that reads none of them.
const PENDING_LEAST_KIB: usize = 32;
/// How long a close may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A session request that is being decided.
pub(super) type Pending = BoxFuture<'static, Decision>;

/// What became of a session request.
#[derive(Debug)]
pub(super) enum Decision {
    /// A `session.create`, and the event id and agent name that came with it.
    Create(Option<String>, Option<String>, Result<Admitted, ErrorBody>),
    /// A `data.hello`, and the event id that came with it.
    Hello(Option<String>, Result<Admitted, ErrorBody>),
}

/// One agent's connection.
pub struct Connection<S> {
    pub(super) agents: Arc<Agents>,
    pub(super) id: ConnectionId,
    pub(super) kind: Kind,
    pub(super) credential: Option<Credential>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) slots: Option<Arc<Slots>>,
    pub(super) sessions: Vec<OpenSession>,
    pub(super) pending: FuturesUnordered<Pending>,
    pub(super) reads: Reads,
    announcements: mpsc::Sender<Announce>,
    /// Room for announcements that wait, in KiB.
    room: Arc<Semaphore>,
    socket: S,
    outbox: Outbox,
    last_heard: Instant,
    /// When the connection began, and the same as Unix milliseconds.
    begun: (Instant, i64),
    next_ping: Instant,
    pub(super) session_due: Option<Instant>,
    /// What it takes up as long as it has never had a session.
    pub(super) unopened: Option<Box<dyn Send>>,
    /// Since when no session is left because of a refusal, and how that ends the connection.
    pub(super) refused: Option<(Instant, Close)>,
    strikes: VecDeque<Instant>,
    timer: Pin<Box<Sleep>>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The close that was decided, sent when the current event is done with.
    pub(super) closing: Option<Close>,
}

enum Event {
    Message(Message),
    Decided(Decision),
    Mail(Mail),
    Timer,
    Stop,
    Lost,
}

impl<S, E> Connection<S>
where
    S: Stream<Item = Result<Message, E>> + Sink<Message, Error = E> + Unpin,
{
    /// Takes a socket over. `credential` is what came with the upgrade.
    pub fn new(
        agents: Arc<Agents>,
        kind: Kind,
        credential: Option<Credential>,
        announcements: mpsc::Sender<Announce>,
        socket: S,
    ) -> Self {
        let now = Instant::now();
        let id = agents.registry.connection_id();
        let stop = Box::pin(agents.stop.clone().cancelled_owned());
        Self {
            kind,
            credential,
            mailbox: Mailbox::new(),
            slots: None,
            sessions: Vec::new(),
            pending: FuturesUnordered::new(),
            reads: Reads::default(),
            announcements,
            room: Arc::new(Semaphore::new(PENDING_KIB)),
            socket,
            outbox: Outbox::default(),
            last_heard: now,
            begun: (now, agents.clock.unix_millis()),
            next_ping: now + agents.timing.ping_interval,
            session_due: Some(now + agents.timing.handshake_timeout),
            unopened: None,
            refused: None,
            strikes: VecDeque::new(),
            timer: Box::pin(tokio::time::sleep_until(now + agents.timing.handshake_timeout)),
            stop,
            closing: None,
            agents,
            id,
        }
    }

    /// The same, which drops `place` once it has a session.
    pub fn unopened(mut self, place: Option<impl Send + 'static>) -> Self {
        self.unopened = place.map(|place| Box::new(place) as Box<dyn Send>);
        self
    }

    /// Runs until the connection ends.
    pub async fn run(mut self) {
        let kind = self.kind.name();
        self.agents.metrics.connections.with_label_values(&[kind]).inc();
        tracing::debug!(connection = self.id.get(), kind, "an agent's connection opened");
        let (reason, close) = loop {
            let event = std::future::poll_fn(|cx| self.poll_event(cx)).await;
            match event {
                Event::Message(Message::Close(_)) => {
                    self.hear(Instant::now());
                    break ("closed by the agent", Some(Close::NORMAL));
                }
                Event::Message(message) => self.on_message(message),
                Event::Decided(decision) => self.on_decision(decision),
                Event::Mail(mail) => self.on_mail(mail),
                Event::Timer => self.on_timer(),
                Event::Stop => break ("restart", Some(Close::RESTART)),
                Event::Lost => break ("lost", None),
            }
            if let Some(close) = self.closing.take() {
                break (close.reason, Some(close));
            }
        };
        let sessions = self.sessions.clone();
        self.end();
        self.agents.metrics.connections.with_label_values(&[kind]).dec();
        let label = close.as_ref().map_or("lost".to_owned(), |close| close.code.to_string());
        self.agents.metrics.connections_ended.with_label_values(&[&label]).inc();
        if sessions.is_empty() {
            tracing::info!(connection = self.id.get(), kind, reason, "a connection without an agent ended");
        }
        for session in &sessions {
            tracing::info!(connection = self.id.get(), kind, agent = %session.name, reason, "an agent's connection ended");
        }
        if let Some(close) = close {
            self.say_goodbye(close).await;
        }
        let (agents, heard_at) = (Arc::clone(&self.agents), self.mailbox.heard_at());
        // The socket is not kept for what is written down.
        drop(self);
        let left = sessions.into_iter().map(|session| (session.name, session.agent));
        // In memory of its own: a connection's task has to be as large as its largest moment for as long as it lives.
        async move { agents.gate.left(left.collect(), heard_at).await }.boxed().await;
    }

    /// Queues the answer to something that the agent sent. Its answers are bounded: one that asks and does not read
    /// would fill memory otherwise.
    pub(super) fn answer(&mut self, frame: &PlatformFrame) {
        if self.outbox.len() >= ANSWERS {
            self.strike(Violation::Flood);
            self.closing = Some(Close::BROKEN_RULES);
        } else if matches!(frame, PlatformFrame::Pong { .. }) {
            self.outbox.push_urgent(Message::Text(Text::from(frame.to_text())));
        } else {
            self.outbox.push(frame);
        }
    }

    /// Notes a broken rule; too many close the connection.
    pub(super) fn strike(&mut self, violation: Violation) {
        let now = Instant::now();
        self.agents.metrics.violations.with_label_values(&[violation.rule()]).inc();
        tracing::warn!(connection = self.id.get(), rule = violation.rule(), "an agent broke a rule: it {violation}");
        self.strikes.retain(|strike| now - *strike < STRIKE_MEMORY);
        self.strikes.push_back(now);
        if self.strikes.len() >= STRIKES {
            self.closing = Some(Close::BROKEN_RULES);
        }
    }

    /// Without a look at the clock for each frame.
    fn hear(&mut self, now: Instant) {
        self.last_heard = now;
        let (begun, unix_millis) = self.begun;
        let since = i64::try_from((now - begun).as_millis()).unwrap_or(i64::MAX);
        self.mailbox.hear(unix_millis.saturating_add(since));
    }

    fn on_message(&mut self, message: Message) {
        self.hear(Instant::now());
        match message {
            Message::Text(text) => self.on_text(text),
            Message::Binary(bytes) => self.on_data(bytes),
            Message::Unreadable(close) => self.closing = Some(close),
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => {}
        }
        // The timer is polled when there is nothing to read, which an agent could see to that there never is.
        if self.last_heard >= self.timer.deadline() {
            self.on_timer();
        }
    }

    fn on_text(&mut self, text: Text) {
        let parsed = (text.len() <= PARSED_HERE).then(|| AgentFrame::parse(text.as_str()));
        match parsed {
            // A malformed announcement too: only an answer keeps its sender from taking silence for acceptance.
            None | Some(Ok(AgentFrame::Announcement(_)) | Err(InvalidFrame::Announcement(_))) => match self.kind {
                Kind::Control => self.hand_up(text),
                Kind::Data => self.strike(Violation::MalformedText),
            },
            Some(Ok(frame)) => self.on_frame(frame),
            Some(Err(_)) => self.strike(Violation::MalformedText),
        }
    }

    fn on_frame(&mut self, frame: AgentFrame<'_>) {
        match frame {
            AgentFrame::BlobEnd(end) => {
                let outcome = self.reads.end(&end);
                self.on_outcome(outcome);
            }
            AgentFrame::BlobError(error) => {
                let outcome = self.reads.error(&error);
                self.on_outcome(outcome);
            }
            AgentFrame::Ping(ping) => {
                self.answer(&PlatformFrame::Pong { event_id: ping.event_id.unwrap_or_default() });
            }
            AgentFrame::SessionCreate(create) => self.on_session_create(create),
            AgentFrame::SessionUpdate(update) => self.on_session_update(&update),
            AgentFrame::SessionEnd(end) => self.on_session_end(&end),
            AgentFrame::DataHello(hello) => self.on_data_hello(hello),
            AgentFrame::Announcement(_) | AgentFrame::Unknown(_) => {}
        }
    }

    fn on_data(&mut self, bytes: Bytes) {
        let outcome = match reads::decode(bytes, self.kind) {
            Ok(frame) => self.reads.data(frame, self.last_heard.into_std()),
            Err(violation) => Outcome::Broke(violation, None),
        };
        self.on_outcome(outcome);
    }

    fn on_outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Bytes(len) => self.agents.metrics.bytes_received.inc_by(len as u64),
            Outcome::Ended(how) => self.count_ended(how),
            Outcome::Swallowed => {}
            Outcome::Broke(violation, lost) => {
                if let Some(request_id) = lost {
                    self.count_ended("violation");
                    self.outbox.push(&PlatformFrame::BlobCancel { request_id });
                }
                self.strike(violation);
            }
        }
    }

    fn hand_up(&mut self, text: Text) {
        let kib = u32::try_from(text.len().div_ceil(1024).max(PENDING_LEAST_KIB)).unwrap_or(u32::MAX);
        if let Ok(room) = self.room.clone().try_acquire_many_owned(kib)
            && let Ok(place) = self.announcements.try_reserve()
        {
            let (by, reply) = (self.sessions.clone(), self.mailbox.clone());
            place.send(Announce { text, received: self.last_heard, by, reply, room });
            return;
        }
        self.strike(Violation::Flood);
        if let Ok(AgentFrame::Announcement(announcement)) = AgentFrame::parse(text.as_str()) {
            let error = ErrorBody::new("rate_limited", "too many announcements are pending: wait for their outcome");
            self.agents.metrics.announcements.with_label_values(&[&error.code]).inc();
            let sha256 = announcement.sha256.to_hex();
            self.answer(&PlatformFrame::ArtifactError { event_id: announcement.event_id, sha256, error });
        }
    }

    fn on_mail(&mut self, mail: Mail) {
        for agent in &mail.superseded {
            self.on_superseded(agent);
        }
        for agent in &mail.evicted {
            self.on_evicted(agent);
        }
        let mut unasked = Vec::new();
        for id in mail.cancels {
            if let Some(place) = mail.reads.iter().position(|read| read.frame.request_id == id) {
                unasked.push(place);
                continue;
            }
            match self.reads.cancel(&id) {
                Dropped::Early => {
                    self.count_ended("cancelled");
                    self.outbox.push(&PlatformFrame::BlobCancel { request_id: id });
                }
                Dropped::Received => self.count_ended("complete"),
                Dropped::Ended => {}
            }
        }
        for (frame, room) in mail.refusals {
            self.outbox.push_holding(&frame, room);
        }
        for (request_id, frames) in mail.credit {
            self.outbox.push(&PlatformFrame::BlobCredit { request_id, frames });
        }
        for (place, read) in mail.reads.into_iter().enumerate() {
            if unasked.contains(&place) {
                continue;
            }
            if !self.serves(&read.agent) {
                read.answer.finish(ReadEnd::Disconnected);
                continue;
            }
            self.outbox.push(&PlatformFrame::BlobRead(read.frame.clone()));
            self.agents.metrics.reads_started.inc();
            self.agents.metrics.reads_running.inc();
            self.reads.insert(read);
        }
        if let Some(close) = mail.close {
            self.closing = Some(close);
        }
    }

    fn on_timer(&mut self) {
        let now = Instant::now();
        let timing = &self.agents.timing;
        if now >= self.last_heard + timing.ping_interval + timing.ping_timeout
            || self.outbox.blocked_since().is_some_and(|since| now >= since + timing.ping_timeout)
        {
            self.closing = Some(Close::DEAD);
        } else if self.session_due.is_some_and(|due| now >= due) && self.pending.is_empty() {
            self.closing = Some(Close::HANDSHAKE_TIMEOUT);
        } else if let Some((at, close)) = &self.refused
            && now >= *at + REFUSAL_LINGER
            && self.pending.is_empty()
        {
            self.closing = Some(close.clone());
        }
        if now >= self.next_ping {
            self.next_ping = now + timing.ping_interval;
            // An agent that forgets its ends has some slots again from time to time.
            self.reads.release_received();
            self.outbox.push_urgent(Message::Ping(Bytes::new()));
        }
    }

    /// The agents whose reads may go over this connection.
    fn serves(&self, agent: &Principal) -> bool {
        self.sessions.iter().any(|session| session.agent == *agent)
    }

    /// Ends the reads of one agent on this connection, which stays open.
    pub(super) fn end_reads(&mut self, agent: &Principal) {
        for request_id in self.reads.disconnect(Some(agent)) {
            self.count_ended("disconnected");
            self.outbox.push(&PlatformFrame::BlobCancel { request_id });
        }
    }

    fn count_ended(&self, how: &str) {
        self.agents.metrics.reads_ended.with_label_values(&[how]).inc();
        self.agents.metrics.reads_running.dec();
    }

    /// Leaves the registry before the reads end, so that whoever asks again finds a newer connection or none.
    fn end(&mut self) {
        for session in &self.sessions {
            self.agents.registry.detach(&session.agent, self.id);
        }
        self.end_sessions(|_| true);
        let left = self.mailbox.shut();
        for read in left.reads {
            read.answer.finish(ReadEnd::Disconnected);
        }
        let ended: Vec<RequestId> = self.reads.disconnect(None);
        ended.iter().for_each(|_| self.count_ended("disconnected"));
    }

    /// Sends what was decided already, then the close.
    async fn say_goodbye(&mut self, close: Close) {
        let goodbye = async {
            if self.outbox.close(&mut self.socket, close).await.is_err() {
                return;
            }
            // The peer's own close ends the stream; what it still sends before is of no use any more.
            while let Some(Ok(_)) = self.socket.next().await {}
            // Whatever is left of it would reset the connection, and the close with it, if nobody read it.
            let _ = self.socket.close().await;
        };
        // A peer that does not take the close in time is dropped without it.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, goodbye).await;
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if self.outbox.poll_write(&mut self.socket, cx).is_err() {
            return Poll::Ready(Event::Lost);
        }
        if let Poll::Ready(Some(decision)) = self.pending.poll_next_unpin(cx) {
            return Poll::Ready(Event::Decided(decision));
        }
        // While frames wait to be written the mail waits too, and is summed up there.
        if self.outbox.is_clear()
            && let Poll::Ready(mail) = self.mailbox.poll(cx)
        {
            return Poll::Ready(Event::Mail(mail));
        }
        // Before the socket, which may always have more.
        if self.stop.poll_unpin(cx).is_ready() {
            return Poll::Ready(Event::Stop);
        }
        match self.socket.poll_next_unpin(cx) {
            Poll::Ready(Some(Ok(message))) => return Poll::Ready(Event::Message(message)),
            Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(Event::Lost),
            Poll::Pending => {}
        }
        self.poll_timer(cx).map(|()| Event::Timer)
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timing = &self.agents.timing;
        let due = [
            Some(self.next_ping),
            Some(self.last_heard + timing.ping_interval + timing.ping_timeout),
            self.outbox.blocked_since().map(|since| since + timing.ping_timeout),
            self.session_due.filter(|_| self.pending.is_empty()),
            self.refused.as_ref().filter(|_| self.pending.is_empty()).map(|(at, _)| *at + REFUSAL_LINGER),
        ];
        let due = due.into_iter().flatten().min().unwrap_or(self.next_ping);
        if self.timer.deadline() != due {
            self.timer.as_mut().reset(due);
        }
        self.timer.poll_unpin(cx)
    }
}
