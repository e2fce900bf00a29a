//! The decision about an announcement.

use tokio::time::Instant;

use super::frame::{Claims, Content, Inlined, Refused, named_in, parse_off_task};
use super::keep::{Origin, session_unknown};
use super::places::Party;
use super::reading::Reading;
use super::{AnnounceCode, Announcer, Decision, Refusal, Sets, kib};
use crate::agents::Text;
use crate::protocol::{Principal, SessionId, Sha256};
use crate::store::NewSet;

/// The event id and hash that a refusal echoes, where they could be read.
type Named = Option<(Option<String>, String)>;

impl Sets {
    /// Decides one `artifact.manifest` frame, within [`deadline`](super::SetLimits::deadline) of its arrival. The set is
    /// kept once the answer is [`Decision::Accepted`]; a refusal is for the connection that the frame came in on. What
    /// has to be read from the agent first is handed back, to be read beside the connection's other announcements.
    ///
    /// Frames too long for their connection's task come here unread, so it may be one of another type.
    pub async fn announce(&self, by: &Announcer, text: &Text) -> Result<Decision, Refusal> {
        let deadline = by.received + self.limits.deadline;
        let outcome = match tokio::time::timeout_at(deadline, self.decide(by, text, deadline)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                Err((None, Refused::unavailable("the announcement could not be kept in time; announce it again")))
            }
        };
        match outcome {
            Err((_, Refused::OtherFrame)) => Ok(Decision::OtherFrame),
            Ok(Decision::Read(reading)) => Ok(Decision::Read(reading)),
            decided => {
                self.count(decided.as_ref().map(drop).map_err(|(_, refused)| refused));
                if let Ok(Decision::Accepted(accepted)) = &decided {
                    self.tell(accepted).await;
                }
                decided.map_err(|(named, refused)| {
                    let (event_id, sha256) = named.unwrap_or_else(|| named_in(text.as_str()));
                    Refusal { event_id, sha256, error: refused.body() }
                })
            }
        }
    }

    pub(super) fn count(&self, outcome: Result<(), &Refused>) {
        let label = outcome.map_or_else(Refused::outcome, |()| "accepted");
        self.metrics.announcements.with_label_values(&[label]).inc();
    }

    async fn decide(&self, by: &Announcer, text: &Text, deadline: Instant) -> Result<Decision, (Named, Refused)> {
        if self.draining.is_cancelled() {
            return Err((None, Refused::stopping()));
        }
        // Held until the end: the parsed manifest is larger than its text.
        let permits = kib(text.len()).min(kib(self.limits.budget_bytes as usize));
        let _budget = match self.budget.acquire_many(permits).await {
            Ok(budget) => budget,
            Err(_) => return Err((None, Refused::stopping())),
        };
        let Claims { event_id, sha256, content } = parse_off_task(text).await.map_err(|refused| (None, refused))?;
        let named = (event_id, sha256.to_hex());
        let kept = async {
            let mut content = content?;
            let origin = self.origin_of(by, content.session.take()).await?;
            match std::mem::replace(&mut content.inlined, Inlined::Nothing) {
                Inlined::Whole(tree) => self
                    .keep(origin, sha256, content, (NewSet::Tree(tree), None), deadline)
                    .await
                    .map(Decision::Accepted),
                // The parsed manifest is not kept while it waits: the text is, which its connection has room for.
                Inlined::Root(_) | Inlined::Nothing => {
                    self.keep_or_read(by, text, sha256, origin, content, deadline).await
                }
            }
        };
        kept.await.map_err(|refused| (Some(named), refused))
    }

    /// A set whose manifests are not all here: kept when this agent has announced it before, else to be read.
    async fn keep_or_read(
        &self,
        by: &Announcer,
        text: &Text,
        sha256: Sha256,
        origin: Origin,
        content: Content,
        deadline: Instant,
    ) -> Result<Decision, Refused> {
        let announced = self.store.announced_by(&origin.0, &sha256).await;
        match announced.map_err(|error| Refused::of_store(&error))? {
            Some(held) if held.size != content.size => {
                let message = format!("the manifest's canonical form has {} bytes", held.size);
                return Err(Refused::new(AnnounceCode::SizeMismatch, message));
            }
            Some(held) => {
                let set = (NewSet::Known(sha256, held.entries), None);
                if let Some(kept) = self.try_keep(origin.clone(), sha256, content, set, deadline).await? {
                    return Ok(Decision::Accepted(kept));
                }
            }
            None => {}
        }
        let Some(turn) = self.lanes.enter(&origin.0) else {
            let message = "two announcements of this agent have to be read already: wait for their outcome";
            return Err(Refused::new(AnnounceCode::RateLimited, message));
        };
        let party = Party::of(&origin.0, &by.sessions);
        Ok(Decision::Read(Box::new(Reading::new(self.clone(), text.clone(), origin, (turn, party), by.received))))
    }

    /// Whose announcement it is, and the relayed turn that it belongs to. A control session names its agent only.
    async fn origin_of(&self, by: &Announcer, session: Option<SessionId>) -> Result<Origin, Refused> {
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
        match self.store.session(&session).await.map_err(|error| Refused::of_store(&error))? {
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
