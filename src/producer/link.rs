//! One socket and the reads on it. A link is owned by one task, which does everything on it: takes frames in, serves
//! reads, sends. Reading never waits for writing.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};
use tokio_websockets::{ClientBuilder, CloseCode, Error, Limits, Message, WebSocketStream};

use super::fetch::fetch;
use super::relay::{Fetched, Outgoing, Relay, Reply};
use super::wire::{Received, Sent};
use crate::protocol::frames::{BlobErrorCode, ErrorBody};
use crate::protocol::limits::CONCURRENT_READS;

/// Largest message a platform may send: turns and small frames only.
const RECEIVED_MAX: usize = 1024 * 1024;
/// How often a WebSocket ping asks whether the platform is there.
const PING_EVERY: Duration = Duration::from_secs(20);
/// A platform that has not been heard for this long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// How long a farewell may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// A platform that lets more answers than this wait asks and does not read.
const UNSENT_MAX: usize = 1024;
/// The same for answers to pings.
const PONGS_MAX: usize = 16;

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    /// The platform closed it.
    #[error("the gateway closed the connection ({code}{}{reason})", if reason.is_empty() { "" } else { " " })]
    Closed {
        /// The close code; 1005 when there was none.
        code: u16,
        reason: String,
    },
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] Error),
    /// The connection ended without a farewell.
    #[error("the connection ended")]
    Ended,
    /// Nothing was heard for too long.
    #[error("the gateway has not answered for {SILENCE_MAX:?}")]
    Silent,
    /// The platform asks and does not read the answers.
    #[error("the gateway does not read")]
    Unread,
}

/// An open connection.
pub(super) struct Link {
    socket: WebSocketStream<TokioIo<Upgraded>>,
    relay: Relay,
    fetches: JoinSet<Fetched>,
    in_place: InPlace,
    /// Text and ping frames that go before the next data frame.
    outbox: VecDeque<Message>,
    /// Text frames queued so far, handed to the socket so far, and known to have left it.
    queued: u64,
    handed: u64,
    left: u64,
    /// Something was handed to the socket since it was last known to be empty.
    pending_write: bool,
    /// Pings answered since then. Those that wait keep the memory that the pings came in.
    pongs: usize,
    /// Received messages are taken before the next write; turned after each, so that neither side starves the other.
    reads_first: bool,
    heard: Instant,
    ping: Interval,
}

/// Whether a file is read by the link's own task. A file that the system has in memory is read in less time than it
/// takes to hand the work to another thread, and the bytes then stay in this processor's cache until they are sent. A
/// read that took longer went to a disk: the next ones are made elsewhere, for a while.
#[derive(Default)]
struct InPlace {
    elsewhere: u32,
}

impl InPlace {
    /// Far more than copying a few frames takes, also when other tasks have the processor in between.
    const QUICK: Duration = Duration::from_millis(10);
    /// Fetches made elsewhere before the next try.
    const AWAY: u32 = 64;

    fn is_due(&mut self) -> bool {
        self.elsewhere = self.elsewhere.saturating_sub(1);
        self.elsewhere == 0
    }

    fn took(&mut self, time: Duration) {
        if time > Self::QUICK {
            self.elsewhere = Self::AWAY;
        }
    }
}

/// What one step of a link came to.
enum Step {
    Received(Message),
    Fetched(Fetched),
    Progress,
}

impl Link {
    /// A link over what an upgrade left.
    pub(super) fn new(upgraded: Upgraded, relay: Relay) -> Self {
        let limits = Limits::default().max_payload_len(Some(RECEIVED_MAX));
        let socket = ClientBuilder::new().limits(limits).take_over(TokioIo::new(upgraded));
        let now = Instant::now();
        let mut ping = interval_at(now + PING_EVERY, PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            socket,
            relay,
            fetches: JoinSet::new(),
            in_place: InPlace::default(),
            outbox: VecDeque::new(),
            queued: 0,
            handed: 0,
            left: 0,
            pending_write: false,
            pongs: 0,
            reads_first: true,
            heard: now,
            ping,
        }
    }

    /// Queues a text frame, which leaves while [`next`](Self::next) runs. What is returned tells
    /// [`has_left`](Self::has_left) which frame is meant.
    pub(super) fn send(&mut self, frame: &Sent<'_>) -> u64 {
        self.outbox.push_back(Message::text(frame.to_text()));
        self.queued += 1;
        self.queued
    }

    /// Whether a queued frame has been given to the operating system.
    pub(super) fn has_left(&self, frame: u64) -> bool {
        frame <= self.left
    }

    /// Serves reads until a frame arrives that is not about one. Can be dropped at any point and called again.
    pub(super) async fn next(&mut self) -> Result<Received, Lost> {
        loop {
            self.start_fetches();
            if self.outbox.len() + self.relay.unsent_replies() > UNSENT_MAX || self.pongs > PONGS_MAX {
                return Err(Lost::Unread);
            }
            match poll_fn(|cx| self.poll_step(cx)).await? {
                Step::Received(message) => {
                    if let Some((code, reason)) = message.as_close() {
                        // The answer to it is queued already; whether it arrives changes nothing.
                        _ = timeout(CLOSE_TIMEOUT, self.socket.flush()).await;
                        return Err(Lost::Closed { code: code.into(), reason: reason.to_owned() });
                    }
                    self.heard = Instant::now();
                    match self.receive(message) {
                        Received::Ignored => {}
                        received => return Ok(received),
                    }
                }
                Step::Fetched(fetched) => self.relay.fetched(fetched),
                Step::Progress => {}
            }
        }
    }

    /// Says goodbye.
    pub(super) async fn close(mut self) {
        let close = Message::close(Some(CloseCode::NORMAL_CLOSURE), "the agent ends");
        // Whether it arrives changes nothing.
        _ = timeout(CLOSE_TIMEOUT, self.socket.send(close)).await;
    }

    /// One fetch in place at a time, so that what it brought is sent while it is warm; or as many as there may be on
    /// other threads.
    fn start_fetches(&mut self) {
        // Also bounds the fetches of cancelled reads, which no slot counts any more.
        while self.fetches.len() < CONCURRENT_READS {
            let Some(wanted) = self.relay.next_fetch() else { break };
            if self.in_place.is_due() {
                let begun = Instant::now();
                let fetched = fetch(wanted);
                self.in_place.took(begun.elapsed());
                self.relay.fetched(fetched);
                break;
            }
            self.fetches.spawn_blocking(|| fetch(wanted));
        }
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, Lost>> {
        if self.ping.poll_tick(cx).is_ready() {
            if self.heard.elapsed() > SILENCE_MAX {
                return Poll::Ready(Err(Lost::Silent));
            }
            self.outbox.push_front(Message::ping(Bytes::new()));
        }
        if let Poll::Ready(Some(fetched)) = self.fetches.poll_join_next(cx) {
            // A fetch that did not come back is only seen while the runtime shuts down.
            return Poll::Ready(fetched.map(Step::Fetched).map_err(|_| Lost::Ended));
        }
        self.reads_first = !self.reads_first;
        if self.reads_first {
            if let Poll::Ready(step) = self.poll_receive(cx) {
                return Poll::Ready(step);
            }
            self.poll_send(cx)
        } else {
            if let Poll::Ready(step) = self.poll_send(cx) {
                return Poll::Ready(step);
            }
            self.poll_receive(cx)
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, Lost>> {
        self.socket.poll_next_unpin(cx).map(|message| match message {
            Some(Ok(message)) => Ok(Step::Received(message)),
            Some(Err(error)) => Err(error.into()),
            None => Err(Lost::Ended),
        })
    }

    /// Hands one frame to the socket once everything handed over before has left, and flushes when there is none.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, Lost>> {
        let idle = self.outbox.is_empty() && !self.relay.has_outgoing();
        if idle && !self.pending_write && self.pongs == 0 {
            return Poll::Pending;
        }
        ready!(self.poll_flush(cx))?;
        let message = match self.outbox.pop_front() {
            Some(message) => {
                self.handed += u64::from(message.is_text());
                Some(message)
            }
            None => self.relay.next_outgoing().map(into_message),
        };
        if let Some(message) = message {
            self.pending_write = true;
            self.socket.start_send_unpin(message)?;
            // The end of a read goes out with its last bytes.
            while let Some(reply) = self.relay.next_reply() {
                self.socket.start_send_unpin(into_message(Outgoing::Reply(reply)))?;
            }
            // Whether it left at once is seen the next time.
            if let Poll::Ready(Err(error)) = self.poll_flush(cx) {
                return Poll::Ready(Err(error.into()));
            }
        }
        Poll::Ready(Ok(Step::Progress))
    }

    /// Ready when nothing that was handed to the socket is left in it.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.socket.poll_flush_unpin(cx))?;
        self.pending_write = false;
        self.pongs = 0;
        self.left = self.handed;
        Poll::Ready(Ok(()))
    }

    /// Serves what is about reads and hands on the rest.
    fn receive(&mut self, message: Message) -> Received {
        // Pings are answered by the WebSocket itself, and no platform frame is binary.
        self.pongs += usize::from(message.is_ping());
        if !message.is_text() {
            return Received::Ignored;
        }
        // Not `as_text`, which takes the library's word for it: a character that an empty last fragment leaves unfinished
        // passes there.
        let Ok(text) = std::str::from_utf8(message.as_payload()) else {
            return Received::Ignored;
        };
        match Received::parse(text) {
            Received::Read(read) => self.relay.read(read),
            Received::BadRead { request_id, reason } => match request_id.parse() {
                Ok(request_id) => self.relay.refuse(request_id, BlobErrorCode::BadRequest, &reason),
                Err(_) => {
                    let error = ErrorBody::new(BlobErrorCode::BadRequest.code(), reason);
                    self.send(&Sent::BadRequest { request_id: &request_id, error });
                }
            },
            Received::Credit { request_id, frames } => self.relay.credit(&request_id, frames),
            Received::Cancel { request_id } => self.relay.cancel(&request_id),
            other => return other,
        }
        Received::Ignored
    }
}

fn into_message(outgoing: Outgoing) -> Message {
    match outgoing {
        Outgoing::Data(frame) => Message::binary(frame),
        Outgoing::Reply(Reply::End(end)) => Message::text(Sent::BlobEnd(&end).to_text()),
        Outgoing::Reply(Reply::Error(error)) => Message::text(Sent::BlobError(&error).to_text()),
    }
}
