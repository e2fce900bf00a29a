//! What an announcement's frame says, checked as far as one can without asking anybody.

use std::sync::Arc;

use serde::Deserialize;

use super::AnnounceCode;
use crate::agents::Text;
use crate::protocol::frames::{AgentFrame, Announcement, ErrorBody, Progress};
use crate::protocol::limits::{MANIFEST_BYTES, SAFE_INTEGER};
use crate::protocol::manifest::{self, ManifestError};
use crate::protocol::{GrowingTree, Location, ManifestCode, SessionId, Sha256, TaskId, Tree};
use crate::store::StoreError;

/// Text up to this long is parsed where it stands; handing it to another thread costs more.
pub(super) const INLINE_BYTES: usize = 16 * 1024;
/// Longest `event_id` and `sha256` that are echoed.
const ECHO_BYTES: usize = 256;

/// Why an announcement is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("{1}")]
    Code(AnnounceCode, String),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// No announcement at all.
    #[error("not an announcement")]
    OtherFrame,
}

impl Refused {
    pub(super) fn new(code: AnnounceCode, message: impl Into<String>) -> Self {
        Self::Code(code, message.into())
    }

    pub(super) fn unavailable(message: &str) -> Self {
        Self::new(AnnounceCode::Unavailable, message)
    }

    pub(super) fn stopping() -> Self {
        Self::unavailable("the gateway is stopping; announce the set again after reconnecting")
    }

    pub(super) fn of_store(error: &StoreError) -> Self {
        if !error.is_unavailable() {
            tracing::error!(%error, "an announcement could not be kept");
        }
        Self::unavailable("the gateway cannot keep anything at the moment; announce the set again later")
    }

    pub(super) fn body(&self) -> ErrorBody {
        match self {
            Self::Code(code, message) => ErrorBody::new(code.code(), message.clone()),
            Self::Manifest(error) => ErrorBody::new(error.code.code(), error.message.clone()),
            Self::OtherFrame => ErrorBody::new(AnnounceCode::BadRequest.code(), self.to_string()),
        }
    }

    /// The strict reader's codes share one series.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::Code(code, _) => code.code(),
            Self::Manifest(_) => AnnounceCode::Manifest.code(),
            Self::OtherFrame => AnnounceCode::BadRequest.code(),
        }
    }
}

/// An announcement's own claims.
pub(super) struct Claims {
    pub(super) event_id: Option<String>,
    pub(super) sha256: Sha256,
    pub(super) content: Result<Content, Refused>,
}

pub(super) struct Content {
    /// The manifest's length.
    pub(super) size: u64,
    pub(super) inlined: Inlined,
    pub(super) session: Option<SessionId>,
    pub(super) task: Option<TaskId>,
    pub(super) locations: Option<Vec<Location>>,
    pub(super) progress: Option<Progress>,
}

/// How much of the set came with the frame.
pub(super) enum Inlined {
    /// All of it.
    Whole(Arc<Tree>),
    /// Its manifest, but not the manifests nested in it.
    Root(Box<GrowingTree>),
    /// Its hash and size.
    Nothing,
}

/// Reads a frame. `held` is what makes room for it: it goes along to where the work is done, which does not end when
/// nobody waits for it any more, and comes back with what was read.
pub(super) async fn parse_off_task<H: Send + 'static>(text: &Text, held: H) -> Result<(Claims, H), Refused> {
    let text = text.clone();
    let (claims, held) = off_task(text.len(), move || (parse(text.as_str()), held)).await?;
    Ok((claims?, held))
}

/// Runs work on so many bytes where it stands or on another thread, whichever costs the others less.
pub(super) async fn off_task<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refused> {
    if bytes <= INLINE_BYTES {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|_| Refused::stopping())
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
    if frame.size > MANIFEST_BYTES as u64 {
        let message = "a manifest is at most 16 MiB".to_owned();
        return Err(ManifestError { code: ManifestCode::ManifestTooLarge, message }.into());
    }
    let inlined = match frame.manifest {
        Some(raw) => inlined(raw.get(), frame)?,
        None => Inlined::Nothing,
    };
    Ok(Content { size: frame.size, inlined, session, task, locations, progress: frame.progress })
}

fn inlined(text: &str, frame: &Announcement<'_>) -> Result<Inlined, Refused> {
    let manifest = manifest::read(text)?;
    if manifest.identity != frame.sha256 {
        let message = format!("the manifest's identity is {}", manifest.identity);
        return Err(Refused::new(AnnounceCode::HashMismatch, message));
    }
    if manifest.canonical.len() as u64 != frame.size {
        let message = format!("the manifest's canonical form has {} bytes", manifest.canonical.len());
        return Err(Refused::new(AnnounceCode::SizeMismatch, message));
    }
    let tree = GrowingTree::of(manifest)?;
    Ok(match tree.wanted() {
        Some(_) => Inlined::Root(Box::new(tree)),
        None => Inlined::Whole(Arc::new(tree.complete()?)),
    })
}

/// What a frame that cannot be read names, as far as that can be told.
pub(super) async fn named_in(text: &Text) -> (Option<String>, String) {
    let text = text.clone();
    off_task(text.len(), move || named(text.as_str())).await.unwrap_or_default()
}

fn named(text: &str) -> (Option<String>, String) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The work does not end when nobody waits for it any more, and neither may what bounds it.
    #[test]
    fn room_for_a_frame_is_held_until_it_has_been_read() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            // The one thread that reads is busy.
            let (release, wait) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || wait.recv());
            let held = Arc::new(());
            let text = Text::from(" ".repeat(INLINE_BYTES + 1));
            {
                let mut reading = std::pin::pin!(parse_off_task(&text, held.clone()));
                assert!(futures_util::poll!(&mut reading).is_pending());
            }
            assert_eq!(Arc::strong_count(&held), 2, "given back although the frame is still to be read");
            release.send(()).unwrap();
            busy.await.unwrap().unwrap();
            // After the reading, which was in the queue before.
            tokio::task::spawn_blocking(|| ()).await.unwrap();
            assert_eq!(Arc::strong_count(&held), 1);
        });
    }

    #[tokio::test]
    async fn what_a_refused_frame_names_is_echoed_when_it_is_short() {
        for padding in [0, INLINE_BYTES] {
            let text = |sha256: &str| {
                let padding = " ".repeat(padding);
                Text::from(format!(r#"{{"event_id":"e1","sha256":"{sha256}","other":[{padding}]}}"#))
            };
            assert_eq!(named_in(&text("ab")).await, (Some("e1".to_owned()), "ab".to_owned()));
            assert_eq!(named_in(&text(&"a".repeat(ECHO_BYTES + 1))).await, (Some("e1".to_owned()), String::new()));
            assert_eq!(named_in(&Text::from("x".repeat(padding + 1))).await, (None, String::new()));
        }
    }
}
