//! The last step of every announcement that is accepted: its commit.

use tokio::time::Instant;

use super::frame::{Content, Refused};
use super::{Accepted, AnnounceCode, Sets};
use crate::access;
use crate::protocol::{Principal, SessionId, Sha256};
use crate::store::{Commit, NewAnnouncement, NewSet, Order};

/// Whose announcement it is, and the relayed turn that it belongs to.
pub(super) type Origin = (Principal, Option<SessionId>);

impl Sets {
    pub(super) async fn keep(
        &self,
        origin: Origin,
        sha256: Sha256,
        content: Content,
        set: (NewSet, Option<Order>),
        deadline: Instant,
    ) -> Result<Accepted, Refused> {
        let kept = self.try_keep(origin, sha256, content, set, deadline).await?;
        kept.ok_or_else(|| Refused::unavailable("the manifest is kept no longer; announce the set again"))
    }

    /// None when a set that was said to be known is not.
    pub(super) async fn try_keep(
        &self,
        (agent, session): Origin,
        sha256: Sha256,
        content: Content,
        (set, order): (NewSet, Option<Order>),
        deadline: Instant,
    ) -> Result<Option<Accepted>, Refused> {
        let tree = match &set {
            NewSet::Tree(tree) => Some(tree),
            NewSet::Known(..) => None,
        };
        let locations = tree.iter().flat_map(|tree| tree.locations()).chain(content.locations.iter().flatten());
        let endpoints = access::endpoints(locations);
        self.store.claim_endpoints(&agent, endpoints).await.map_err(|error| Refused::of_store(&error))?;
        let new = NewAnnouncement {
            agent: agent.clone(),
            session,
            task: content.task.clone(),
            set,
            locations: content.locations,
            progress: content.progress,
            quota: self.limits.quota,
            deadline: Some(deadline),
            order,
        };
        let commit = self.store.commit_announcement(new).await.map_err(|error| Refused::of_store(&error))?;
        let accepted = |id, chat, new| Ok(Some(Accepted { id, agent, chat, sha256, task: content.task, new }));
        match commit {
            Commit::Stored(stored) => accepted(Some(stored.id), stored.chat, stored.new),
            Commit::Overtaken => accepted(None, None, false),
            Commit::QuotaExceeded(exceeded) => Err(Refused::new(AnnounceCode::QuotaExceeded, exceeded.to_string())),
            Commit::ForeignSession => Err(session_unknown()),
            Commit::NotHeld => Ok(None),
        }
    }
}

pub(super) fn session_unknown() -> Refused {
    Refused::new(AnnounceCode::SessionUnknown, "the session is not known, or not this agent's")
}
