//! The smallest platform there is: accepts an agent's connections and does what the test says. For tests of agents; a
//! test of the gateway uses the gateway.

use http::HeaderMap;
use serde_json::{Value, json};
use sluice::protocol::data::DataFrame;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use futures_util::{SinkExt as _, StreamExt as _};

use super::log::DEADLINE;

/// A listener for agents.
pub struct Platform {
    listener: TcpListener,
    pub url: String,
}

/// One accepted connection.
pub struct Peer {
    socket: WebSocketStream<TcpStream>,
    pub path: String,
    pub headers: HeaderMap,
    /// Frames that were read past while looking for another.
    pub passed: Vec<Value>,
}

/// What ended a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadEnd {
    End {
        bytes: u64,
    },
    Error {
        code: String,
    },
    /// The connection ended first.
    Lost,
}

impl Platform {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        Self { listener, url }
    }

    /// The next connection.
    pub async fn accept(&self) -> Peer {
        self.try_accept().await.unwrap()
    }

    /// The next connection, which may not speak WebSocket.
    pub async fn try_accept(&self) -> Result<Peer, Error> {
        let (stream, _) = within(self.listener.accept()).await.unwrap();
        let (mut path, mut headers) = (String::new(), HeaderMap::new());
        #[expect(clippy::result_large_err, reason = "the type is the WebSocket crate's")]
        let callback = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
            path = request.uri().to_string();
            headers = request.headers().clone();
            Ok(response)
        };
        let socket = within(accept_hdr_async(stream, callback)).await?;
        Ok(Peer { socket, path, headers, passed: Vec::new() })
    }

    /// Answers the next upgrade with a status.
    pub async fn refuse(&self, status: u16) {
        let (stream, _) = within(self.listener.accept()).await.unwrap();
        #[expect(clippy::result_large_err, reason = "the type is the WebSocket crate's")]
        let callback = |_: &Request, _: Response| -> Result<Response, ErrorResponse> {
            Err(http::Response::builder().status(status).body(None).unwrap())
        };
        assert!(within(accept_hdr_async(stream, callback)).await.is_err());
    }

    /// The next connection, with its session opened under this id.
    pub async fn accept_session(&self, session_id: &str) -> Peer {
        let mut peer = self.accept().await;
        let create = peer.frame("session.create").await;
        peer.send(json!({
            "type": "session.created", "event_id": create["event_id"], "timestamp": 0, "uamp_version": "1.0",
            "session_id": session_id, "session": {"id": session_id, "agent": create["session"]["agent"]},
        }))
        .await;
        peer
    }
}

impl Peer {
    pub async fn send(&mut self, frame: Value) {
        self.send_message(Message::text(frame.to_string())).await;
    }

    pub async fn send_message(&mut self, message: Message) {
        within(self.socket.send(message)).await.unwrap();
    }

    /// The next message, pings and pongs aside; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<Message> {
        loop {
            match within(self.socket.next()).await {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(message)) => return Some(message),
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// The next text frame of this type. Others are put aside.
    pub async fn frame(&mut self, wanted: &str) -> Value {
        loop {
            match self.next().await {
                Some(Message::Text(text)) => {
                    let frame: Value = serde_json::from_str(&text).unwrap();
                    if frame["type"] == wanted {
                        return frame;
                    }
                    self.passed.push(frame);
                }
                other => panic!("{other:?} instead of {wanted}"),
            }
        }
    }

    /// Asks for a range and grants credit frame by frame, never more than `credit` at a time.
    pub async fn read(&mut self, sha256: &str, offset: u64, length: u64, credit: u32) -> (Vec<u8>, ReadEnd) {
        self.send(json!({
            "type": "blob.read", "request_id": "r", "sha256": sha256, "offset": offset, "length": length,
            "credit": credit,
        }))
        .await;
        self.take(offset, true).await
    }

    /// Takes the frames of read `r` up to its end, with or without granting a frame for each.
    pub async fn take(&mut self, offset: u64, grant: bool) -> (Vec<u8>, ReadEnd) {
        let mut bytes = Vec::new();
        loop {
            match self.next().await {
                Some(Message::Binary(frame)) => {
                    let frame = DataFrame::decode(frame).unwrap();
                    assert_eq!((frame.request_id.as_str(), frame.offset), ("r", offset + bytes.len() as u64));
                    bytes.extend_from_slice(&frame.payload);
                    if grant {
                        self.send(json!({"type": "blob.credit", "request_id": "r", "frames": 1})).await;
                    }
                }
                Some(Message::Text(text)) => {
                    let frame: Value = serde_json::from_str(&text).unwrap();
                    match frame["type"].as_str() {
                        Some("blob.end") => return (bytes, ReadEnd::End { bytes: frame["bytes"].as_u64().unwrap() }),
                        Some("blob.error") => {
                            let code = frame["error"]["code"].as_str().unwrap().to_owned();
                            return (bytes, ReadEnd::Error { code });
                        }
                        _ => self.passed.push(frame),
                    }
                }
                Some(_) | None => return (bytes, ReadEnd::Lost),
            }
        }
    }

    /// Data frames that arrive before the answer to a ping sent now: what was sent without waiting for more.
    pub async fn frames_before_pong(&mut self) -> Vec<DataFrame> {
        within(self.socket.send(Message::Ping(Bytes::from_static(b"mark")))).await.unwrap();
        let mut frames = Vec::new();
        loop {
            match within(self.socket.next()).await {
                Some(Ok(Message::Pong(payload))) if payload == "mark" => return frames,
                Some(Ok(Message::Binary(frame))) => frames.push(DataFrame::decode(frame).unwrap()),
                Some(Ok(_)) => {}
                other => panic!("{other:?} instead of a pong"),
            }
        }
    }

    /// Closes with this code and waits for the end.
    pub async fn close(mut self, code: u16) {
        let close = CloseFrame { code: code.into(), reason: "closed by the test".into() };
        self.send_message(Message::Close(Some(close))).await;
        while self.next().await.is_some() {}
    }
}

/// Waits, but not for ever.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("it takes too long")
}
