//! What waits to be written to one socket.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{Sink, SinkExt as _};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::message::{Close, Message, Text};
use crate::protocol::frames::PlatformFrame;

/// Bytes handed to the socket before it is flushed.
const BATCH: usize = 64 * 1024;

/// A message, and the room that is free once it is written.
#[derive(Debug)]
struct Waiting(Message, Option<OwnedSemaphorePermit>);

/// The frames of one connection in the order in which they are written: reading never waits for it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Frames that go before everything else.
    urgent: VecDeque<Waiting>,
    queue: VecDeque<Waiting>,
    flushing: bool,
    blocked_since: Option<Instant>,
}

impl Outbox {
    /// Queues a frame behind those that wait already.
    pub(super) fn push(&mut self, frame: &PlatformFrame) {
        self.queue.push_back(Waiting(Message::Text(Text::from(frame.to_text())), None));
    }

    /// The same for a frame that keeps `room` taken until it is written.
    pub(super) fn push_holding(&mut self, frame: &PlatformFrame, room: Option<OwnedSemaphorePermit>) {
        self.queue.push_back(Waiting(Message::Text(Text::from(frame.to_text())), room));
    }

    /// Queues a message before all that are not urgent.
    pub(super) fn push_urgent(&mut self, message: Message) {
        self.urgent.push_back(Waiting(message, None));
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.queue.len()
    }

    /// Whether nothing but what is urgent waits.
    pub(super) fn is_clear(&self) -> bool {
        self.queue.is_empty()
    }

    /// Since when the socket has taken nothing of what waits.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked_since
    }

    /// Writes as much as the socket takes.
    pub(super) fn poll_write<S: Sink<Message> + Unpin>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Result<(), S::Error> {
        match self.poll_written(Pin::new(socket), cx) {
            Poll::Ready(written) => {
                self.blocked_since = None;
                written
            }
            Poll::Pending => {
                self.blocked_since.get_or_insert_with(Instant::now);
                Ok(())
            }
        }
    }

    /// Ready when nothing is left to write.
    fn poll_written<S: Sink<Message> + Unpin>(
        &mut self,
        mut socket: Pin<&mut S>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), S::Error>> {
        loop {
            if self.flushing {
                ready!(socket.as_mut().poll_flush(cx))?;
                self.flushing = false;
            }
            let mut batch = 0;
            while batch < BATCH && self.len() > 0 {
                ready!(socket.as_mut().poll_ready(cx))?;
                let next = self.urgent.pop_front().or_else(|| self.queue.pop_front());
                let Some(Waiting(message, _room)) = next else { break };
                if let Message::Text(text) = &message {
                    batch += text.len();
                }
                socket.as_mut().start_send(message)?;
                self.flushing = true;
            }
            if !self.flushing {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Writes everything, and then the close.
    pub(super) async fn close<S: Sink<Message> + Unpin>(
        &mut self,
        socket: &mut S,
        close: Close,
    ) -> Result<(), S::Error> {
        for Waiting(message, _room) in self.urgent.drain(..).chain(self.queue.drain(..)) {
            socket.feed(message).await?;
        }
        socket.send(Message::Close(Some(close))).await
    }
}
