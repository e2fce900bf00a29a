//! The control connection: opens the session, announces sets, and comes back when it is cut.

use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout_at};

use super::connection::{Agent, Ended, Kind};
use super::link::Link;
use super::publish::PublishedSet;
use super::repeats::Repeats;
use super::wire::{NewSession, Received, RelayLocation, Sent};
use super::{AgentError, AgentEvent};
use crate::protocol::frames::ErrorBody;
use crate::protocol::{SessionId, Sha256, TaskId};

/// How often an application-level ping is sent.
const PING_EVERY: Duration = Duration::from_secs(55);
/// Longest delay before there has been a session: with little time allowed for it, most of it should be used.
const FIRST_RETRY_MAX: Duration = Duration::from_secs(1);
/// Refusals of an announcement that pass by themselves.
const PASSING_ANNOUNCEMENT: [&str; 2] = ["rate_limited", "unavailable"];
/// Refusals that every announcement in the same session would meet.
const SESSION_WRONG: [&str; 2] = ["session_unknown", "session_required"];
/// Refusals of a session that pass by themselves.
const PASSING: [&str; 4] = ["rate_limited", "unavailable", "agent_offline", "timeout"];

/// Holds the control connection until shutdown, dialling again whenever it is lost. `connected` is true while a session
/// is open.
///
/// # Errors
/// What dialling again cannot mend, and no session at all within the time allowed.
pub(super) async fn hold(
    agent: &Agent,
    sets: mpsc::Receiver<PublishedSet>,
    connected: watch::Sender<bool>,
) -> Result<(), AgentError> {
    let mut control =
        Control { agent, announcements: Announcements::new(agent, sets), connected, ever_connected: false };
    let give_up = Instant::now() + agent.options.session_timeout;
    let mut failures = 0;
    let mut repeats = Repeats::default();
    let mut earlier = None;
    loop {
        let started = Instant::now();
        let deadline = if control.ever_connected { started + agent.options.session_timeout } else { give_up };
        let ended = control.connect(deadline).await;
        if control.connected.send_replace(false) {
            repeats.succeeded();
        }
        let reason = match ended {
            Ended::Shutdown => return Ok(()),
            Ended::Fatal(error) => return Err(error),
            Ended::Retry(reason) => reason,
        };
        if started.elapsed() > agent.options.backoff.settled {
            failures = 0;
        }
        let mut retry_in = agent.options.backoff.delay(failures);
        failures = failures.saturating_add(1);
        if !control.ever_connected {
            retry_in = retry_in.min(FIRST_RETRY_MAX);
        }
        if !control.ever_connected && Instant::now() + retry_in >= give_up {
            // An attempt that ran out of time says less than the one before it.
            let last = earlier.filter(|_| Instant::now() >= give_up).unwrap_or(reason);
            return Err(AgentError::NotConnected { waited: agent.options.session_timeout, last });
        }
        earlier = Some(reason.clone());
        if let Some(attempts) = repeats.failed(&reason, Instant::now()) {
            (agent.events)(AgentEvent::Disconnected { reason, attempts, retry_in });
        }
        tokio::select! {
            () = sleep(retry_in) => {}
            () = agent.shutdown.cancelled() => return Ok(()),
        }
    }
}

struct Control<'a> {
    agent: &'a Agent,
    announcements: Announcements<'a>,
    connected: watch::Sender<bool>,
    ever_connected: bool,
}

impl Control<'_> {
    /// One connection from dialling to its end.
    async fn connect(&mut self, deadline: Instant) -> Ended {
        let late = || Ended::Retry("the gateway opened no session".to_owned());
        let opened = tokio::select! {
            opened = timeout_at(deadline, self.open()) => opened.unwrap_or_else(|_| Err(late())),
            () = self.agent.shutdown.cancelled() => return Ended::Shutdown,
        };
        match opened {
            Ok((link, session)) => self.serve(link, session).await,
            Err(ended) => ended,
        }
    }

    /// Dials and opens the session.
    async fn open(&self) -> Result<(Link, SessionId), Ended> {
        let mut link = self.agent.dial(Kind::Control).await?;
        let session = NewSession { agent: &self.agent.name, token: &self.agent.options.token };
        link.send(&Sent::SessionCreate { envelope: self.agent.envelope(), session });
        loop {
            match link.next().await? {
                Received::SessionCreated { session_id } => return Ok((link, session_id)),
                Received::SessionError(error) => return Err(refused(error)),
                _ => {}
            }
        }
    }

    /// Serves an open session to its end.
    async fn serve(&mut self, mut link: Link, session: SessionId) -> Ended {
        self.ever_connected = true;
        self.connected.send_replace(true);
        (self.agent.events)(AgentEvent::Connected { session: session.clone() });
        let mut ping = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                received = link.next() => match received {
                    Ok(Received::SessionError(error)) => return refused(error),
                    Ok(Received::ArtifactError { sha256, error }) => {
                        self.announcements.refused(sha256, &error);
                        let ErrorBody { code, message } = error;
                        if SESSION_WRONG.contains(&code.as_str()) {
                            link.close().await;
                            return Ended::Fatal(AgentError::SetRefused { code, message });
                        }
                    }
                    Ok(Received::Turn { session_id }) => {
                        let error = ErrorBody::new("rejected", "this agent serves files and answers no messages");
                        let envelope = self.agent.envelope();
                        link.send(&Sent::ResponseError { envelope, session_id: &session_id, error });
                    }
                    Ok(_) => {}
                    Err(lost) => {
                        self.announcements.lost(&link);
                        return lost.into();
                    }
                },
                () = self.announcements.due() => self.announcements.proceed(&mut link, &session),
                _ = ping.tick() => {
                    link.send(&Sent::Ping { envelope: self.agent.envelope() });
                }
                () = self.agent.shutdown.cancelled() => {
                    link.close().await;
                    return Ended::Shutdown;
                }
            }
        }
    }
}

fn refused(error: ErrorBody) -> Ended {
    if PASSING.contains(&error.code.as_str()) {
        Ended::Retry(format!("the gateway refused the session for now: {}: {}", error.code, error.message))
    } else {
        Ended::Fatal(AgentError::SessionRefused { code: error.code, message: error.message })
    }
}

/// The sets on their way to being announced: one at a time, each decided before the next is sent. Outlives connections.
struct Announcements<'a> {
    agent: &'a Agent,
    sets: mpsc::Receiver<PublishedSet>,
    /// To be sent as soon as there is a session.
    waiting: Option<PublishedSet>,
    /// Not before then.
    not_before: Option<Instant>,
    undecided: Option<Undecided>,
    told_audience: bool,
}

/// An announcement within its confirm window.
struct Undecided {
    set: PublishedSet,
    /// The frame on the link that carries it.
    frame: u64,
    until: Instant,
}

impl<'a> Announcements<'a> {
    fn new(agent: &'a Agent, sets: mpsc::Receiver<PublishedSet>) -> Self {
        Self { agent, sets, waiting: None, not_before: None, undecided: None, told_audience: false }
    }

    /// Waits until [`proceed`](Self::proceed) has something to do. Can be dropped at any point and called again.
    async fn due(&mut self) {
        if let Some(undecided) = &self.undecided {
            return sleep_until(undecided.until).await;
        }
        if let Some(not_before) = self.not_before.filter(|_| self.waiting.is_some()) {
            return sleep_until(not_before).await;
        }
        if self.waiting.is_none() {
            match self.sets.recv().await {
                Some(set) => self.waiting = Some(set),
                // The publisher is gone only when everything is being dropped.
                None => std::future::pending().await,
            }
        }
    }

    /// Ends a confirm window, or sends the waiting announcement.
    fn proceed(&mut self, link: &mut Link, session: &SessionId) {
        if let Some(undecided) = self.undecided.take() {
            (self.agent.events)(AgentEvent::Accepted { sha256: undecided.set.manifest.identity });
            if !std::mem::replace(&mut self.told_audience, true) {
                let (agent, session) = (self.agent.name.clone(), self.agent.options.session.clone());
                (self.agent.events)(AgentEvent::Audience { agent, session });
            }
        } else if let Some(set) = self.waiting.take() {
            self.not_before = None;
            let sha256 = set.manifest.identity;
            let Some(frame) = self.send(link, session, &set) else { return };
            let confirm_window = self.agent.options.confirm_window;
            (self.agent.events)(AgentEvent::Announced { sha256, confirm_window });
            let until = Instant::now() + confirm_window;
            self.undecided = Some(Undecided { set, frame, until });
        }
    }

    fn send(&self, link: &mut Link, session: &SessionId, set: &PublishedSet) -> Option<u64> {
        let manifest = &set.manifest;
        // The canonical form is JSON text, so neither step can fail.
        let text = std::str::from_utf8(&manifest.canonical).ok()?;
        let inlined: &RawValue = serde_json::from_str(text).ok()?;
        let own_task = task_of(manifest.identity);
        Some(link.send(&Sent::Announcement {
            envelope: self.agent.envelope(),
            task_id: self.agent.options.task.as_ref().or(own_task.as_ref())?,
            sha256: manifest.identity,
            size: manifest.canonical.len(),
            locations: [RelayLocation::of(&self.agent.name)],
            manifest: inlined,
            session_id: self.agent.options.session.as_ref().unwrap_or(session),
        }))
    }

    /// Reports a refusal, and takes it as the decision when it is about the undecided one. That is announced again where
    /// the reason passes by itself.
    fn refused(&mut self, sha256: String, error: &ErrorBody) {
        let decided = self.undecided.take_if(|undecided| undecided.set.manifest.identity.to_hex() == sha256);
        if PASSING_ANNOUNCEMENT.contains(&error.code.as_str()) {
            self.not_before = decided.as_ref().map(|_| Instant::now() + self.agent.options.announce_again);
            self.waiting = decided.map(|undecided| undecided.set);
        }
        let (code, message) = (error.code.clone(), error.message.clone());
        (self.agent.events)(AgentEvent::Refused { sha256, code, message });
    }

    /// The link is gone. What has not left it is sent on the next one; what has is not announced again.
    fn lost(&mut self, link: &Link) {
        let Some(undecided) = self.undecided.take() else { return };
        if link.has_left(undecided.frame) {
            (self.agent.events)(AgentEvent::Unconfirmed { sha256: undecided.set.manifest.identity });
        } else {
            self.waiting = Some(undecided.set);
        }
    }
}

/// An announcement names a task (specification section 4): without one of its own the set stands for itself.
fn task_of(identity: Sha256) -> Option<TaskId> {
    format!("set-{}", &identity.to_hex()[..16]).parse().ok()
}
