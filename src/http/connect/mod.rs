//! `GET /ws`: the upgrade of an agent's connection, and the only place that knows a WebSocket library.

mod inbound;
mod socket;
mod upgrade;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use futures_util::FutureExt as _;
use http::request::Parts;
use hyper::upgrade::OnUpgrade;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::error::Problem;
use super::json::QueryOf;
use super::keyed::group;
use super::limit::{Client, Sender, Share, Unopened};
use super::{AppState, auth};
use crate::agents::{Agents, Announce, Connection, Credential, Kind, Mailbox};
use crate::protocol::data::FRAME_MAX;
use crate::protocol::frames::{ErrorBody, PlatformFrame};
use crate::protocol::limits::MANIFEST_BYTES;
use crate::protocol::signature::is_signed;
use crate::sets::{Announcer, Decision, Reading, Refusal};
use socket::Socket;
use upgrade::Upgrade;

/// A control frame may be an inlined manifest of 16 MiB and its envelope.
const CONTROL_MESSAGE: usize = MANIFEST_BYTES + 64 * 1024;
/// The same where the upgrade itself carried no valid token: enough for sessions, and for manifests of most sets.
const STRANGERS_MESSAGE: usize = 1024 * 1024;
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
) -> Result<Response, Problem> {
    let Some(upgrade) = Upgrade::of(&parts) else {
        return Err(Problem::BadRequest("this route is for WebSocket upgrades over HTTP/1.1".into()));
    };
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
        Some(proof) => auth::knows(&proof.principal, &state).await?.then(|| proof.principal.clone()),
        None => state.agents.gate.identify(credential.as_ref()).await.ok().map(|proven| proven.agent),
    };
    if known.is_none() && credential.is_some() {
        state.limiter.failed(extensions)?;
    }
    let Client(address) = extensions.get().copied().unwrap_or(Client(IpAddr::V6(Ipv6Addr::UNSPECIFIED)));
    let address = group(address);
    let unopened = known.as_ref().map(|agent| state.limiter.unopened(agent)).transpose()?;
    state.limiter.admit(known.is_none().then_some(address)).await?;
    if let Some(proof) = proof {
        let accepted = auth::accept(proof, &state).await;
        if accepted.is_err() {
            known = None;
            state.limiter.failed(extensions)?;
        }
        credential = Some(accepted.map_or_else(|problem| refused(&problem), Credential::signed));
    }
    let longest = match kind {
        Kind::Control if known.is_some() => CONTROL_MESSAGE,
        Kind::Control => STRANGERS_MESSAGE,
        Kind::Data => FRAME_MAX,
    };
    let share = state.limiter.messages(known.map_or(Sender::Stranger(address), Sender::Agent));
    let (accepted, upgraded) = upgrade.accept();
    let tracker = state.tracker.clone();
    tracker.spawn(run(state, (kind, credential, unopened), upgraded, (longest, share)));
    Ok(accepted)
}

fn refused(problem: &Problem) -> Credential {
    Credential::refused(ErrorBody::new(problem.code(), problem.to_string()))
}

async fn run(
    state: AppState,
    (kind, credential, unopened): (Kind, Option<Credential>, Option<Unopened>),
    upgraded: OnUpgrade,
    (longest, share): (usize, Share),
) {
    // It may be gone before it was accepted.
    let Ok(upgraded) = upgraded.await else { return };
    let socket = Socket::new(upgraded, longest, share);
    let (sender, announcements) = mpsc::channel(PENDING_ANNOUNCEMENTS);
    if kind == Kind::Control {
        state.tracker.spawn(decide(state.clone(), announcements));
    }
    Connection::new(Arc::clone(&state.agents), kind, credential, sender, socket).unopened(unopened).run().await;
}

/// Decides the announcements of one connection in their order, beside its task.
async fn decide(state: AppState, mut announcements: mpsc::Receiver<Announce>) {
    while let Some(Announce { text, received, by, reply, room }) = announcements.recv().await {
        // In memory of its own while it is decided: most connections wait here for an announcement all day.
        match state.sets.announce(&Announcer { sessions: by, received }, &text).boxed().await {
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
