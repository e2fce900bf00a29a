//! A WebSocket to a gateway that does nothing by itself: what the scriptable agent would answer or refuse to send.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::gateway::Gateway;
use super::platform::within;

/// One WebSocket.
pub struct Wire {
    socket: WebSocketStream<TcpStream>,
}

impl Wire {
    /// Opens `/ws` with this query (without `?`) and these headers.
    pub async fn open(gateway: &Gateway, query: &str, headers: &[(&'static str, &str)]) -> Self {
        Self::open_with(gateway, query, headers, None).await
    }

    /// Opens `/ws` with this token in the query.
    pub async fn with_token(gateway: &Gateway, token: &str) -> Self {
        Self::open(gateway, &format!("token={token}"), &[]).await
    }

    /// The same, with a system that buffers as little as it can of what is not read.
    pub async fn narrow(gateway: &Gateway, token: &str) -> Self {
        Self::open_with(gateway, &format!("token={token}"), &[], Some(4096)).await
    }

    async fn open_with(
        gateway: &Gateway,
        query: &str,
        headers: &[(&'static str, &str)],
        receive_buffer: Option<u32>,
    ) -> Self {
        let mark = if query.is_empty() { "" } else { "?" };
        let mut request = format!("ws://{}/ws{mark}{query}", gateway.address()).into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(bytes) = receive_buffer {
            socket.set_recv_buffer_size(bytes).unwrap();
        }
        let stream = within(socket.connect(gateway.address())).await.unwrap();
        let (socket, _) = within(client_async(request, stream)).await.unwrap();
        Self { socket }
    }

    /// Sends a text frame.
    pub async fn send(&mut self, frame: Value) {
        self.send_message(Message::text(frame.to_string())).await;
    }

    /// Sends any message.
    pub async fn send_message(&mut self, message: Message) {
        within(self.socket.send(message)).await.unwrap();
    }

    /// Sends a message unless the connection ends meanwhile.
    pub async fn try_send(&mut self, message: Message) -> bool {
        within(self.socket.send(message)).await.is_ok()
    }

    /// Sends bytes as they are, below the WebSocket's framing.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        self.try_send_raw(bytes).await.unwrap();
    }

    /// The same where the gateway may have closed.
    pub async fn try_send_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        within(self.socket.get_mut().write_all(bytes)).await
    }

    /// Opens a session.
    pub async fn create(&mut self, agent: &str, token: &str) -> Value {
        self.send(
            json!({"type": "session.create", "event_id": "e-create", "session": {"agent": agent, "token": token}}),
        )
        .await;
        self.frame("session.created").await
    }

    /// The next message, pings of the gateway aside; `None` when the connection ends without a close.
    pub async fn next(&mut self) -> Option<Message> {
        // The deadline is for all of it: a gateway that only pings has nothing to say.
        let socket = &mut self.socket;
        let next = async move {
            loop {
                match socket.next().await {
                    Some(Ok(Message::Ping(_))) => {}
                    Some(Ok(message)) => return Some(message),
                    Some(Err(_)) | None => return None,
                }
            }
        };
        within(next).await
    }

    /// The next message, which is this kind of text frame.
    pub async fn frame(&mut self, wanted: &str) -> Value {
        match self.next().await {
            Some(Message::Text(text)) => {
                let frame: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(frame["type"], wanted, "{frame}");
                frame
            }
            other => panic!("{other:?} instead of {wanted}"),
        }
    }

    /// Reads on until the gateway closes: the code, and every text frame before.
    pub async fn closed(&mut self) -> (u16, Vec<Value>) {
        let mut frames = Vec::new();
        loop {
            match self.next().await {
                Some(Message::Close(close)) => return (close.map_or(1005, |close| close.code.into()), frames),
                Some(Message::Text(text)) => frames.push(serde_json::from_str(&text).unwrap()),
                Some(_) => {}
                None => panic!("the connection is lost without a close, after {frames:?}"),
            }
        }
    }

    /// Waits for the WebSocket pong with this payload, and returns the text frames before it.
    pub async fn pong(&mut self, payload: &[u8]) -> Vec<Value> {
        let mut frames = Vec::new();
        loop {
            match self.next().await {
                Some(Message::Pong(got)) if got == payload => return frames,
                Some(Message::Text(text)) => frames.push(serde_json::from_str(&text).unwrap()),
                Some(Message::Pong(_) | Message::Binary(_)) => {}
                other => panic!("{other:?} instead of a pong"),
            }
        }
    }

    /// Everything that the gateway had to say so far: the frames before the answer to a ping sent now.
    pub async fn settled(&mut self) -> Vec<Value> {
        self.send_message(Message::Ping(Bytes::from_static(b"settled"))).await;
        self.pong(b"settled").await
    }
}

/// Opens a TCP connection, sends these bytes, and reads whatever comes until the end.
pub async fn exchange(gateway: &Gateway, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    _ = within(stream.read_to_end(&mut answer)).await;
    answer
}
