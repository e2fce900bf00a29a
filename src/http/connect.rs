//! `GET /ws`: the upgrade of an agent's connection, and the only place that knows axum's WebSocket.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{self, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use http::request::Parts;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::error::ProtocolError;

use super::error::Problem;
use super::json::QueryOf;
use super::{AppState, auth};
use crate::agents::{Agents, Announce, Close, Connection, Credential, Kind, Mailbox, Message, Text};
use crate::protocol::data::FRAME_MAX;
use crate::protocol::frames::{ErrorBody, PlatformFrame};
use crate::protocol::limits::MANIFEST_BYTES;
use crate::protocol::signature::is_signed;
use crate::sets::{Announcer, Decision, Reading, Refusal};

/// A control frame may be an inlined manifest of 16 MiB and its envelope.
const CONTROL_MESSAGE: usize = MANIFEST_BYTES + 64 * 1024;
/// The same where the upgrade itself carried no valid token: enough for sessions, and for manifests of most sets.
const STRANGERS_MESSAGE: usize = 1024 * 1024;
/// Allocated for each connection at once, so small where most of it would lie idle.
const CONTROL_READ_BUFFER: usize = 16 * 1024;
const DATA_READ_BUFFER: usize = 64 * 1024;
const WRITE_BUFFER: usize = 16 * 1024;
/// The connection's task flushes every 64 KiB; a single text frame stays below 1 MiB.
const MAX_WRITE_BUFFER: usize = 4 * 1024 * 1024;
/// Announcements of one connection that wait for their decision.
const PENDING_ANNOUNCEMENTS: usize = 64;
/// How long a refusal waits for an agent whose connection has ended.
const UNTOLD: Duration = Duration::from_secs(600);

/// The parts of the query that mean something here. A token is never logged.
#[derive(Deserialize)]
pub struct ConnectQuery {
    token: Option<String>,
    conn: Option<String>,
}

/// Takes an agent's connection. A token that comes with it is judged by the first frame; a signature, which covers the
/// upgrade, is judged here. Its nonce is spent before the upgrade is answered, and after it was let in: whoever is sent
/// away for a while may come again with the same signature. Either way a refused credential is told why over the socket,
/// and closed with 4001: an answer of 401 would leave an agent's log without the reason.
pub async fn connect(
    State(state): State<AppState>,
    QueryOf(query): QueryOf<ConnectQuery>,
    parts: Parts,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let upgrade =
        upgrade.map_err(|_| Problem::BadRequest("this route is for WebSocket upgrades over HTTP/1.1".into()))?;
    let Parts { headers, extensions, .. } = &parts;
    let named = query.conn.as_deref() == Some("data");
    let marked = headers.get("uamp-connection").is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"data"));
    let kind = if marked || named { Kind::Data } else { Kind::Control };
    let (mut credential, proof) = match auth::bearer(headers).or(query.token.as_deref()) {
        Some(token) => (Some(Credential::token(token)), None),
        // A header that the signature does not cover could make another connection of it than was signed for.
        None if is_signed(headers) && marked && !named => {
            return Err(Problem::BadRequest("a signed data connection names itself in the query: ?conn=data".into()));
        }
        None if is_signed(headers) => match auth::prove(&parts, &state).await {
            Ok(proof) => (None, Some(proof)),
            // It may come again, so nothing is said about its credential.
            Err(problem) if !problem.is_about_credential() => return Err(problem),
            Err(problem) => (Some(refused(&problem)), None),
        },
        None => (None, None),
    };
    // Whoever has not said who they are by now may not fill as much memory as an agent may.
    let mut known = match &proof {
        Some(proof) => auth::knows(&proof.principal, &state).await?,
        None => state.agents.gate.identify(credential.as_ref()).await.is_ok(),
    };
    if !known && credential.is_some() {
        state.limiter.failed(extensions)?;
    }
    state.limiter.admit(known).await?;
    if let Some(proof) = proof {
        let accepted = auth::accept(proof, &state).await;
        if accepted.is_err() {
            known = false;
            state.limiter.failed(extensions)?;
        }
        credential = Some(accepted.map_or_else(|problem| refused(&problem), Credential::signed));
    }
    let (message, read_buffer) = match kind {
        Kind::Control if known => (CONTROL_MESSAGE, CONTROL_READ_BUFFER),
        Kind::Control => (STRANGERS_MESSAGE, CONTROL_READ_BUFFER),
        Kind::Data => (FRAME_MAX, DATA_READ_BUFFER),
    };
    let upgrade = upgrade
        .max_message_size(message)
        .max_frame_size(message)
        .read_buffer_size(read_buffer)
        .write_buffer_size(WRITE_BUFFER)
        .max_write_buffer_size(MAX_WRITE_BUFFER);
    let tracker = state.tracker.clone();
    Ok(upgrade.on_upgrade(move |socket| tracker.track_future(run(state, kind, credential, socket))))
}

fn refused(problem: &Problem) -> Credential {
    Credential::refused(ErrorBody::new(problem.code(), problem.to_string()))
}

async fn run(state: AppState, kind: Kind, credential: Option<Credential>, socket: WebSocket) {
    let (sender, announcements) = mpsc::channel(PENDING_ANNOUNCEMENTS);
    if kind == Kind::Control {
        state.tracker.spawn(decide(state.clone(), announcements));
    }
    Connection::new(Arc::clone(&state.agents), kind, credential, sender, Socket(socket)).run().await;
}

/// Decides the announcements of one connection in their order, beside its task.
async fn decide(state: AppState, mut announcements: mpsc::Receiver<Announce>) {
    while let Some(Announce { text, received, by, reply, room }) = announcements.recv().await {
        match state.sets.announce(&Announcer { sessions: by, received }, &text).await {
            Ok(Decision::Accepted(_) | Decision::OtherFrame) => {}
            // Beside the others, which may be what it waits for.
            Ok(Decision::Read(reading)) => {
                state.tracker.spawn(read(Arc::clone(&state.agents), reading, reply, room));
            }
            Err(refusal) => {
                drop(text);
                if reply.refuse(artifact_error(refusal), Some(room)).is_err() {
                    tracing::debug!("a refusal found its connection gone");
                }
            }
        }
    }
}

/// Decides an announcement whose manifests have to be read. It may outlive its connection: a refusal then goes to the
/// agent's next one, for the agent has taken the silence so far for acceptance.
async fn read(agents: Arc<Agents>, reading: Box<Reading>, reply: Arc<Mailbox>, room: OwnedSemaphorePermit) {
    let Err(refusal) = reading.run().await else { return };
    let code = refusal.error.code.clone();
    let frame = artifact_error(refusal);
    if reply.refuse(frame.clone(), Some(room)).is_ok() {
        return;
    }
    let told = async {
        // One that ends in the moment it is found is not the one that tells.
        while agents.registry.control(reading.agent()).await.refuse(frame.clone(), None).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = told => {}
        () = tokio::time::sleep(UNTOLD) => {
            tracing::warn!(agent = %reading.agent(), code, "an agent that is gone was not told of a refusal");
        }
        () = agents.stop.cancelled() => {}
    }
}

fn artifact_error(refusal: Refusal) -> PlatformFrame {
    let Refusal { event_id, sha256, error } = refusal;
    PlatformFrame::ArtifactError { event_id, sha256, error }
}

/// axum's WebSocket as the connection's task sees one.
struct Socket(WebSocket);

impl Stream for Socket {
    type Item = Result<Message, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx).map(|next| {
            Some(match next? {
                Ok(ws::Message::Text(text)) => Ok(Message::Text(Text::new(Bytes::from(text)))),
                Ok(ws::Message::Binary(bytes)) => Ok(Message::Binary(bytes)),
                Ok(ws::Message::Ping(bytes)) => Ok(Message::Ping(bytes)),
                Ok(ws::Message::Pong(bytes)) => Ok(Message::Pong(bytes)),
                Ok(ws::Message::Close(_)) => Ok(Message::Close(None)),
                Err(error) => unreadable(error).map(Message::Unreadable),
            })
        })
    }
}

/// How an error of the peer's making ends the connection. Any other is handed back: there is no connection any more.
fn unreadable(error: axum::Error) -> Result<Close, axum::Error> {
    let inner = error.into_inner();
    match inner.downcast_ref::<tungstenite::Error>() {
        Some(tungstenite::Error::Capacity(_)) => Ok(Close::TOO_LONG),
        Some(tungstenite::Error::Utf8(_)) => Ok(Close::NOT_TEXT),
        Some(tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => Err(axum::Error::new(inner)),
        Some(tungstenite::Error::Protocol(_)) => Ok(Close::MALFORMED),
        _ => Err(axum::Error::new(inner)),
    }
}

impl Sink<Message> for Socket {
    type Error = axum::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        self.0.poll_ready_unpin(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), axum::Error> {
        self.0.start_send_unpin(match message {
            Message::Text(text) => ws::Message::text(text.as_str()),
            Message::Binary(bytes) => ws::Message::Binary(bytes),
            Message::Ping(bytes) => ws::Message::Ping(bytes),
            Message::Pong(bytes) => ws::Message::Pong(bytes),
            // Only ever received.
            Message::Unreadable(_) => return Ok(()),
            Message::Close(close) => {
                ws::Message::Close(close.map(|Close { code, reason }| ws::CloseFrame { code, reason: reason.into() }))
            }
        })
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        self.0.poll_flush_unpin(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        self.0.poll_close_unpin(cx)
    }
}
