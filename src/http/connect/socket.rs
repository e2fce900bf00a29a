//! A WebSocket as the connection's task sees one.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Error};

use super::inbound::Inbound;
use crate::agents::{Close, Message, Text};
use crate::http::limit::Share;

pub(super) struct Socket(WebSocketStream<Inbound<TokioIo<Upgraded>>>);

impl Socket {
    pub(super) async fn new(upgraded: Upgraded, config: WebSocketConfig, longest: usize, share: Share) -> Self {
        let inbound = Inbound::new(TokioIo::new(upgraded), share, longest);
        Self(WebSocketStream::from_raw_socket(inbound, Role::Server, Some(config)).await)
    }
}

impl Stream for Socket {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx).map(|next| {
            Some(match next? {
                Ok(tungstenite::Message::Text(text)) => Ok(Message::Text(Text::new(Bytes::from(text)))),
                Ok(tungstenite::Message::Binary(bytes)) => Ok(Message::Binary(bytes)),
                Ok(tungstenite::Message::Ping(bytes)) => Ok(Message::Ping(bytes)),
                Ok(tungstenite::Message::Pong(bytes)) => Ok(Message::Pong(bytes)),
                Ok(tungstenite::Message::Close(_)) => Ok(Message::Close(None)),
                // Nobody who reads whole messages is handed a frame.
                Ok(tungstenite::Message::Frame(_)) => Ok(Message::Unreadable(Close::MALFORMED)),
                Err(error) => unreadable(error).map(Message::Unreadable),
            })
        })
    }
}

/// How an error of the peer's making ends the connection. Any other is handed back: there is no connection any more.
fn unreadable(error: Error) -> Result<Close, Error> {
    match error {
        Error::Capacity(_) => Ok(Close::TOO_LONG),
        Error::Utf8(_) => Ok(Close::NOT_TEXT),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Err(error),
        Error::Protocol(_) => Ok(Close::MALFORMED),
        error => Err(error),
    }
}

impl Sink<Message> for Socket {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready_unpin(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        self.0.start_send_unpin(match message {
            Message::Text(text) => tungstenite::Message::text(text.as_str()),
            Message::Binary(bytes) => tungstenite::Message::Binary(bytes),
            Message::Ping(bytes) => tungstenite::Message::Ping(bytes),
            Message::Pong(bytes) => tungstenite::Message::Pong(bytes),
            // Only ever received.
            Message::Unreadable(_) => return Ok(()),
            Message::Close(close) => tungstenite::Message::Close(
                close.map(|Close { code, reason }| CloseFrame { code: code.into(), reason: reason.into() }),
            ),
        })
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_flush_unpin(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_close_unpin(cx)
    }
}
