//! A WebSocket as the connection's task sees one.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_websockets::proto::ProtocolError;
use tokio_websockets::{self as websocket, CloseCode, Error, Limits, ServerBuilder, WebSocketStream};

use super::inbound::Inbound;
use crate::agents::{Close, Message, Text};
use crate::http::limit::Share;

/// Answers to pings that may wait to be written. Each keeps the memory its ping came in.
const PONGS: u32 = 16;

pub(super) struct Socket {
    stream: WebSocketStream<Inbound<TokioIo<Upgraded>>>,
    /// Pings answered since everything was last written.
    pongs: u32,
}

impl Socket {
    /// Messages longer than `longest` are refused.
    pub(super) fn new(upgraded: Upgraded, longest: usize, share: Share) -> Self {
        let inbound = Inbound::new(TokioIo::new(upgraded), share, longest);
        let limits = Limits::default().max_payload_len(Some(longest));
        Self { stream: ServerBuilder::new().limits(limits).serve(inbound), pongs: 0 }
    }

    fn receive(&mut self, message: websocket::Message) -> Message {
        let (is_text, is_ping, is_pong) = (message.is_text(), message.is_ping(), message.is_pong());
        if message.is_close() {
            return Message::Close(None);
        }
        let bytes = Bytes::from(message.into_payload());
        if is_text {
            // The library does not see a character that an empty last fragment leaves unfinished.
            return Text::new(bytes).map_or(Message::Unreadable(Close::NOT_TEXT), Message::Text);
        }
        if is_pong {
            return Message::Pong(bytes);
        }
        if !is_ping {
            return Message::Binary(bytes);
        }
        self.pongs += 1;
        if self.pongs > PONGS { Message::Unreadable(Close::BROKEN_RULES) } else { Message::Ping(bytes) }
    }

    fn flushed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let flushed = self.stream.poll_flush_unpin(cx);
        if flushed.is_ready() {
            self.pongs = 0;
        }
        flushed
    }
}

impl Stream for Socket {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.pongs > 0
            && let Poll::Ready(Err(error)) = self.flushed(cx)
        {
            return Poll::Ready(Some(Err(error)));
        }
        self.stream.poll_next_unpin(cx).map(|next| {
            Some(match next? {
                Ok(message) => Ok(self.receive(message)),
                Err(error) => unreadable(error).map(Message::Unreadable),
            })
        })
    }
}

/// How an error of the peer's making ends the connection. Any other is handed back: there is no connection any more.
fn unreadable(error: Error) -> Result<Close, Error> {
    match error {
        Error::PayloadTooLong { .. } => Ok(Close::TOO_LONG),
        Error::Protocol(ProtocolError::InvalidUtf8) => Ok(Close::NOT_TEXT),
        Error::Protocol(_) => Ok(Close::MALFORMED),
        error => Err(error),
    }
}

impl Sink<Message> for Socket {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.stream.poll_ready_unpin(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        let sent = self.stream.start_send_unpin(match message {
            Message::Text(text) => websocket::Message::text(text.into_bytes()),
            Message::Binary(bytes) => websocket::Message::binary(bytes),
            Message::Ping(bytes) => websocket::Message::ping(bytes),
            Message::Pong(bytes) => websocket::Message::pong(bytes),
            // Only ever received.
            Message::Unreadable(_) => return Ok(()),
            Message::Close(close) => match close.map(|Close { code, reason }| (CloseCode::try_from(code), reason)) {
                Some((Ok(code), reason)) => websocket::Message::close(Some(code), reason),
                _ => websocket::Message::close(None, ""),
            },
        });
        match sent {
            // The peer's close, or what was wrong with its frame, is answered already.
            Err(Error::AlreadyClosed) => Ok(()),
            sent => sent,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.flushed(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.stream.poll_close_unpin(cx)
    }
}
