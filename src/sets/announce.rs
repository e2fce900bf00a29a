use std::sync::Arc;

use serde::Deserialize;
use tokio::time::Instant;

use super::{Accepted, AnnounceCode, Announcer, Refusal, Sets, kib};
use crate::agents::Text;
use crate::protocol::frames::{AgentFrame, Announcement, ErrorBody, Progress};
use crate::protocol::limits::SAFE_INTEGER;
use crate::protocol::manifest::{self, ManifestError};
use crate::protocol::{Location, Manifest, Principal, SessionId, Sha256, TaskId};
use crate::store::{Commit, NewAnnouncement, StoreError};

/// Text up to this long is parsed where it stands; handing it to another thread costs more.
const INLINE_BYTES: usize = 16 * 1024;
/// Longest `event_id` and `sha256` that are echoed.
const ECHO_BYTES: usize = 256;

/// Why an announcement is refused.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("{1}")]
    Code(AnnounceCode, String),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// No announcement at all.
    #[error("not an announcement")]
    OtherFrame,
}

impl Refused {
    fn new(code: AnnounceCode, message: impl Into<String>) -> Self {
        Self::Code(code, message.into())
    }

    fn unavailable(message: &str) -> Self {
        Self::new(AnnounceCode::Unavailable, message)
    }

    fn body(&self) -> ErrorBody {
        match self {
            Self::Code(code, message) => ErrorBody::new(code.code(), message.clone()),
            Self::Manifest(error) => ErrorBody::new(error.code.code(), error.message.clone()),
            Self::OtherFrame => ErrorBody::new(AnnounceCode::BadRequest.code(), self.to_string()),
        }
    }

    /// The strict reader's codes share one series.
    fn outcome(&self) -> &'static str {
        match self {
            Self::Code(code, _) => code.code(),
            Self::Manifest(_) => AnnounceCode::Manifest.code(),
            Self::OtherFrame => AnnounceCode::BadRequest.code(),
        }
    }
}

/// An announcement's own claims, checked as far as one can without asking anybody.
struct Claims {
    event_id: Option<String>,
    sha256: Sha256,
    content: Result<Content, Refused>,
}

struct Content {
    manifest: Arc<Manifest>,
    session: Option<SessionId>,
    task: Option<TaskId>,
    locations: Option<Vec<Location>>,
    progress: Option<Progress>,
}

impl Sets {
    /// Decides one `artifact.manifest` frame. Returns `Ok` only once the set is kept; a refusal is for the connection
    /// that the frame came in on. Takes no longer than [`deadline`](super::SetLimits::deadline).
    ///
    /// A frame of another type is `None`: frames too long for their connection's task come here unread.
    pub async fn announce(&self, by: &Announcer, text: &Text) -> Result<Option<Accepted>, Refusal> {
        let deadline = by.received + self.limits.deadline;
        let outcome = match tokio::time::timeout_at(deadline, self.decide(by, text, deadline)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                Err((None, Refused::unavailable("the announcement could not be kept in time; announce it again")))
            }
        };
        if let Err((_, Refused::OtherFrame)) = outcome {
            return Ok(None);
        }
        let label = outcome.as_ref().map_or_else(|(_, refused)| refused.outcome(), |_| "accepted");
        self.metrics.announcements.with_label_values(&[label]).inc();
        outcome.map(Some).map_err(|(named, refused)| {
            let (event_id, sha256) = named.unwrap_or_else(|| named_in(text.as_str()));
            Refusal { event_id, sha256, error: refused.body() }
        })
    }

    async fn decide(
        &self,
        by: &Announcer,
        text: &Text,
        deadline: Instant,
    ) -> Result<Accepted, (Option<(Option<String>, String)>, Refused)> {
        if self.draining.is_cancelled() {
            return Err((
                None,
                Refused::unavailable("the gateway is stopping; announce the set again after reconnecting"),
            ));
        }
        // Held until the end: the parsed manifest is larger than its text.
        let permits = kib(text.len()).min(kib(self.limits.budget_bytes as usize));
        let _budget = match self.budget.acquire_many(permits).await {
            Ok(budget) => budget,
            Err(_) => return Err((None, Refused::unavailable("the gateway is stopping"))),
        };
        let claims = parse_off_task(text).await.map_err(|refused| (None, refused))?;
        let named = (claims.event_id, claims.sha256.to_hex());
        let kept = async { self.keep(by, claims.sha256, claims.content?, deadline).await };
        kept.await.map_err(|refused| (Some(named), refused))
    }

    async fn keep(
        &self,
        by: &Announcer,
        sha256: Sha256,
        content: Content,
        deadline: Instant,
    ) -> Result<Accepted, Refused> {
        let (agent, session) = self.agent_of(by, content.session).await?;
        let new = NewAnnouncement {
            agent: agent.clone(),
            session,
            task: content.task.clone(),
            manifest: content.manifest,
            locations: content.locations,
            progress: content.progress,
            quota: self.limits.quota,
            deadline: Some(deadline),
        };
        match self.store.commit_announcement(new).await.map_err(store_refusal)? {
            Commit::Stored(stored) => {
                Ok(Accepted { agent, chat: stored.chat, sha256, task: content.task, new: stored.new })
            }
            Commit::QuotaExceeded(what) => {
                Err(Refused::new(AnnounceCode::QuotaExceeded, format!("the agent may not announce more {what}")))
            }
            Commit::ForeignSession => Err(session_unknown()),
        }
    }

    /// Whose announcement it is, and the relayed turn that it belongs to. A control session names its agent only.
    async fn agent_of(
        &self,
        by: &Announcer,
        session: Option<SessionId>,
    ) -> Result<(Principal, Option<SessionId>), Refused> {
        let mut agents: Vec<&Principal> = by.sessions.iter().map(|open| &open.agent).collect();
        agents.sort();
        agents.dedup();
        let Some(session) = session else {
            return match agents[..] {
                [agent] => Ok((agent.clone(), None)),
                [] => Err(session_unknown()),
                _ => Err(Refused::new(
                    AnnounceCode::SessionRequired,
                    "several agents share this connection: name the session",
                )),
            };
        };
        if let Some(open) = by.sessions.iter().find(|open| open.id == session) {
            return Ok((open.agent.clone(), None));
        }
        match self.store.session(&session).await.map_err(store_refusal)? {
            Some(bound) if agents.contains(&&bound.agent) => Ok((bound.agent, Some(session))),
            Some(_) => Err(session_unknown()),
            None if (self.is_open)(&session) => Err(session_unknown()),
            // Whoever relayed the turn may still bind it.
            None => match agents[..] {
                [agent] => Ok((agent.clone(), Some(session))),
                _ => Err(session_unknown()),
            },
        }
    }
}

fn session_unknown() -> Refused {
    Refused::new(AnnounceCode::SessionUnknown, "the session is not known, or not this agent's")
}

fn store_refusal(error: StoreError) -> Refused {
    if !error.is_unavailable() {
        tracing::error!(%error, "an announcement could not be kept");
    }
    Refused::unavailable("the gateway cannot keep anything at the moment; announce the set again later")
}

async fn parse_off_task(text: &Text) -> Result<Claims, Refused> {
    if text.len() <= INLINE_BYTES {
        return parse(text.as_str());
    }
    let text = text.clone();
    match tokio::task::spawn_blocking(move || parse(text.as_str())).await {
        Ok(parsed) => parsed,
        Err(_) => Err(Refused::unavailable("the gateway is stopping")),
    }
}

fn parse(text: &str) -> Result<Claims, Refused> {
    let frame = match AgentFrame::parse(text) {
        Ok(AgentFrame::Announcement(frame)) => frame,
        Ok(_) => return Err(Refused::OtherFrame),
        Err(error) => return Err(Refused::new(AnnounceCode::BadRequest, error.to_string())),
    };
    Ok(Claims {
        event_id: frame.event_id.clone().filter(|id| id.len() <= ECHO_BYTES),
        sha256: frame.sha256,
        content: content(&frame),
    })
}

fn content(frame: &Announcement<'_>) -> Result<Content, Refused> {
    let bad = |what: &str| Refused::new(AnnounceCode::BadRequest, what);
    let session = frame.session_id.as_deref().map(str::parse::<SessionId>).transpose();
    let session = session.map_err(|error| bad(&error.to_string()))?;
    let task = frame.task_id.as_deref().map(str::parse::<TaskId>).transpose();
    let task = task.map_err(|error| bad(&error.to_string()))?;
    if let Some(Progress { done, total }) = frame.progress
        && (done > total || total > SAFE_INTEGER)
    {
        return Err(bad("progress is not done of total"));
    }
    let locations = frame.locations.map(|raw| manifest::read_locations(raw.get())).transpose()?;
    let Some(raw) = frame.manifest else {
        return Err(Refused::new(
            AnnounceCode::ManifestUnreadable,
            "the manifest is not inlined, and this gateway does not read it elsewhere",
        ));
    };
    let manifest = manifest::read(raw.get())?;
    if manifest.identity != frame.sha256 {
        let message = format!("the manifest's identity is {}", manifest.identity);
        return Err(Refused::new(AnnounceCode::HashMismatch, message));
    }
    if manifest.canonical.len() as u64 != frame.size {
        let message = format!("the manifest's canonical form has {} bytes", manifest.canonical.len());
        return Err(Refused::new(AnnounceCode::SizeMismatch, message));
    }
    Ok(Content { manifest: Arc::new(manifest), session, task, locations, progress: frame.progress })
}

/// What a frame that cannot be read names, as far as that can be told.
fn named_in(text: &str) -> (Option<String>, String) {
    #[derive(Deserialize)]
    struct Named {
        event_id: Option<serde_json::Value>,
        sha256: Option<serde_json::Value>,
    }
    let short = |value: Option<serde_json::Value>| match value {
        Some(serde_json::Value::String(text)) if text.len() <= ECHO_BYTES => Some(text),
        _ => None,
    };
    match serde_json::from_str::<Named>(text) {
        Ok(named) => (short(named.event_id), short(named.sha256).unwrap_or_default()),
        Err(_) => (None, String::new()),
    }
}
