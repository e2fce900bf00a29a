//! What a connection's frames about sessions do.

use std::sync::Arc;

use futures_util::{FutureExt as _, Sink, Stream};
use tokio::time::Instant;

use super::OpenSession;
use super::connection::{Connection, Decision};
use super::gate::{Admitted, Credential};
use super::message::{Close, Message};
use super::registry::Kind;
use crate::protocol::frames::{
    DataHello, Envelope, ErrorBody, PlatformFrame, SessionCreate, SessionEnd, SessionInfo, SessionUpdate,
};
use crate::protocol::{Principal, SessionId};
use crate::read::Violation;

/// Most sessions on one connection.
const SESSIONS: usize = 256;

impl<S, E> Connection<S>
where
    S: Stream<Item = Result<Message, E>> + Sink<Message, Error = E> + Unpin,
{
    pub(super) fn on_session_create(&mut self, create: SessionCreate) {
        if self.kind == Kind::Data {
            self.strike(Violation::MalformedText);
            return;
        }
        if self.sessions.len() + self.pending.len() >= SESSIONS {
            let error = ErrorBody::new("rate_limited", "at most 256 sessions fit on one connection");
            self.refuse_session(create.event_id, create.agent, error);
            return;
        }
        let credential = create.token.as_deref().map(Credential::token).or_else(|| self.credential.clone());
        let agents = Arc::clone(&self.agents);
        let decide = async move {
            let admitted = agents.gate.admit(credential.as_ref(), create.agent.as_deref()).await;
            Decision::Create(create.event_id, create.agent, admitted)
        };
        self.pending.push(decide.boxed());
    }

    pub(super) fn on_data_hello(&mut self, hello: DataHello) {
        if self.kind == Kind::Control || !self.sessions.is_empty() || !self.pending.is_empty() {
            self.strike(Violation::MalformedText);
            return;
        }
        let (agents, credential) = (Arc::clone(&self.agents), self.credential.clone());
        let decide = async move {
            let admitted = agents.gate.admit(credential.as_ref(), Some(&hello.agent)).await;
            Decision::Hello(hello.event_id, admitted)
        };
        self.pending.push(decide.boxed());
    }

    pub(super) fn on_decision(&mut self, decision: Decision) {
        match decision {
            Decision::Create(event_id, _, Ok(admitted)) => {
                let session = self.open(admitted);
                self.agents.metrics.sessions.with_label_values(&["created"]).inc();
                tracing::info!(connection = self.id.get(), agent = %session.name, session = %session.id, "a session opened");
                let envelope = self.envelope(event_id);
                let agent_id = session.agent.as_str().trim_start_matches("agent:").to_owned();
                self.answer(&PlatformFrame::SessionCreated {
                    envelope,
                    session_id: session.id.clone(),
                    session: SessionInfo {
                        id: Some(session.id),
                        agent: session.name.clone(),
                        agent_id: Some(agent_id),
                        agent_username: Some(session.name.clone()),
                    },
                    agent: session.name,
                });
            }
            Decision::Create(event_id, agent, Err(error)) => self.refuse_session(event_id, agent, error),
            Decision::Hello(event_id, Ok(admitted)) => {
                let session = self.open(admitted);
                tracing::info!(connection = self.id.get(), agent = %session.name, "a data connection is ready");
                let envelope = self.envelope(event_id);
                self.answer(&PlatformFrame::DataReady { envelope });
            }
            Decision::Hello(event_id, Err(error)) => {
                tracing::info!(connection = self.id.get(), code = error.code, "a data connection was refused");
                let envelope = self.envelope(event_id);
                self.closing = Some(Close::of_refusal(&error));
                self.answer(&PlatformFrame::DataError { envelope, error });
            }
        }
    }

    pub(super) fn on_session_update(&mut self, update: &SessionUpdate) {
        let found = match &update.session_id {
            Some(id) => self.sessions.iter().find(|session| session.id.as_str() == id),
            None if self.sessions.len() == 1 => self.sessions.first(),
            None => None,
        };
        let Some(session) = found.cloned() else {
            let error = ErrorBody::new("bad_request", "session.update names no session of this connection");
            self.session_error(update.event_id.clone(), None, error);
            return;
        };
        if let Some(token) = &update.token {
            let same = self.agents.gate.identify_now(token).and_then(|proven| {
                let same = proven.agent == session.agent;
                same.then_some(()).ok_or_else(|| ErrorBody::new("forbidden", "the token is for another agent"))
            });
            if let Err(error) = same {
                self.session_error(update.event_id.clone(), Some(session.name.to_string()), error);
                return;
            }
        }
        let envelope = self.envelope(update.event_id.clone());
        self.answer(&PlatformFrame::SessionUpdated { envelope, session_id: session.id });
    }

    pub(super) fn on_session_end(&mut self, end: &SessionEnd) {
        let place = match &end.session_id {
            Some(id) => self.sessions.iter().position(|session| session.id.as_str() == id),
            None => (self.sessions.len() == 1).then_some(0),
        };
        if let Some(place) = place {
            let ended = self.sessions.remove(place);
            self.agents.registry.end_session(&ended.id);
            self.leave(&ended.agent);
            if self.sessions.is_empty() {
                self.session_due = Some(Instant::now() + self.agents.timing.handshake_timeout);
            }
        }
    }

    /// A newer connection of this agent took over: its reads move there, and a connection without sessions closes.
    pub(super) fn on_superseded(&mut self, agent: &Principal) {
        if self.agents.registry.is_in_charge(agent, self.id, self.kind) {
            // It opened a session again before it heard of the takeover.
            return;
        }
        let name = self.sessions.iter().find(|session| session.agent == *agent).map(|session| session.name.to_string());
        self.end_sessions(|session| session.agent == *agent);
        self.end_reads(agent);
        if self.sessions.is_empty() && self.pending.is_empty() {
            self.closing = Some(Close::SUPERSEDED);
        } else {
            let error = ErrorBody::new("superseded", "a newer connection of this agent took over");
            self.session_error(None, name, error);
        }
    }

    /// This agent's name was given to another: it is here no longer.
    pub(super) fn on_evicted(&mut self, agent: &Principal) {
        if self.agents.registry.is_in_charge(agent, self.id, self.kind) {
            // It opened a session again meanwhile, under a name that it holds.
            return;
        }
        let of_agent = self.sessions.iter().filter(|session| session.agent == *agent);
        let names: Vec<_> = of_agent.map(|session| session.name.to_string()).collect();
        self.end_sessions(|session| session.agent == *agent);
        self.end_reads(agent);
        for name in names {
            tracing::info!(connection = self.id.get(), agent = name, "an agent lost its name to another");
            if self.kind == Kind::Control {
                let error = ErrorBody::new("forbidden", "the name was given to another agent");
                self.session_error(None, Some(name), error);
            }
        }
        if self.sessions.is_empty() && self.pending.is_empty() {
            self.closing = Some(Close::EVICTED);
        }
    }

    fn open(&mut self, admitted: Admitted) -> OpenSession {
        let Admitted { agent, name, owner } = admitted;
        let now = self.agents.clock.unix_millis();
        let connection = (self.id, self.kind, &self.mailbox);
        self.slots = Some(self.agents.registry.attach(&agent, &name, connection, self.slots.take(), now));
        let session = OpenSession { id: session_id(), agent, name, owner };
        self.end_sessions(|open| open.agent == session.agent && open.name == session.name);
        if self.kind == Kind::Control {
            self.agents.registry.open_session(&session.id);
        }
        self.sessions.push(session.clone());
        self.session_due = None;
        self.unopened = None;
        self.refused = None;
        session
    }

    pub(super) fn end_sessions(&mut self, ends: impl Fn(&OpenSession) -> bool) {
        for session in self.sessions.extract_if(.., |session| ends(session)) {
            self.agents.registry.end_session(&session.id);
        }
    }

    fn leave(&mut self, agent: &Principal) {
        if self.sessions.iter().all(|session| session.agent != *agent) {
            self.agents.registry.detach(agent, self.id);
            self.end_reads(agent);
        }
    }

    fn refuse_session(&mut self, event_id: Option<String>, agent: Option<String>, error: ErrorBody) {
        self.agents.metrics.sessions.with_label_values(&[&error.code]).inc();
        tracing::info!(connection = self.id.get(), code = error.code, "a session was refused");
        let close = Close::of_refusal(&error);
        self.session_error(event_id, agent, error);
        if self.sessions.is_empty() {
            self.refused.get_or_insert_with(|| (Instant::now(), close));
        }
    }

    fn session_error(&mut self, event_id: Option<String>, agent: Option<String>, error: ErrorBody) {
        let envelope = self.envelope(event_id);
        self.answer(&PlatformFrame::SessionError { envelope, agent, error });
    }

    /// An envelope that echoes the event id it answers, or has one of its own.
    fn envelope(&self, event_id: Option<String>) -> Envelope {
        let event_id = event_id.unwrap_or_else(|| format!("evt_{:012x}", rand::random::<u64>() >> 16));
        Envelope::new(event_id, u64::try_from(self.agents.clock.unix_millis()).unwrap_or(0))
    }
}

fn session_id() -> SessionId {
    let id = format!("sess_{:032x}", rand::random::<u128>());
    // 37 hexadecimal characters are a valid session id.
    #[expect(clippy::expect_used, reason = "the text above is always valid")]
    id.parse().expect("a hexadecimal id is valid")
}
