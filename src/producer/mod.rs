//! The agent's side of the relay: publishes a folder, holds the outbound connections, announces the set and serves
//! the platform's reads (specification sections 1 and 4), or the files themselves (section 2).
//!
//! Owns everything behind `sluice agent`. Talks to a gateway over the wire only and knows nothing of the gateway's own
//! modules, so that what it proves about the protocol is not proved by shared code.

mod address;
mod backoff;
mod connection;
mod control;
mod data;
mod endpoint;
mod event;
mod fetch;
mod folder;
mod link;
mod media_type;
mod progress;
mod publish;
mod registry;
mod relay;
mod repeats;
mod token;
mod upgrade;
mod watch;
mod wire;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch as latest};
use tokio_util::sync::CancellationToken;

pub use address::InvalidGatewayUrl;
pub use backoff::Backoff;
pub use endpoint::{EndpointError, EndpointOptions, InvalidEndpointUrl};
pub use event::AgentEvent;
pub use folder::{FolderError, SkipReason};
pub use publish::{PublishError, PublishedSet};
pub use registry::Registry;

use endpoint::Endpoint;

use crate::clock::Clock;
use crate::protocol::{AgentName, SessionId, TaskId};

/// What `sluice agent` is asked to do.
#[derive(Clone)]
pub struct AgentOptions {
    /// The folder to publish.
    pub dir: PathBuf,
    /// The gateway: `http`, `https`, `ws` or `wss`. Exactly this host and port are dialled; `/ws` is appended when the
    /// path is empty or `/`.
    pub gateway: String,
    /// The agent's token, sent in headers and frames, never in a URL.
    pub token: String,
    /// The agent's name; the token's `agent_name` claim when absent.
    pub name: Option<AgentName>,
    /// The session of the turn that produced the set, which binds it to that turn's chat; the control session when
    /// absent.
    pub session: Option<SessionId>,
    /// The task the set answers.
    pub task: Option<TaskId>,
    /// Whether to open a data connection beside the control connection.
    pub data: bool,
    /// Whether to publish and announce again when the folder changes.
    pub watch: bool,
    /// Whether to publish hidden files too: those whose name, or a folder's above them, begins with a dot.
    pub hidden: bool,
    /// The producer endpoint, if the agent's files are to be served over HTTP too.
    pub serve: Option<EndpointOptions>,
    /// The delays between attempts to connect.
    pub backoff: Backoff,
    /// How long to wait for the first session before giving up.
    pub session_timeout: Duration,
    /// How long an announcement that draws no refusal is undecided.
    pub confirm_window: Duration,
    /// How long after a refusal that passes by itself a set is announced again.
    pub announce_again: Duration,
    /// How long the watched folder must be quiet before it is published again.
    pub settle: Duration,
    /// Where times in manifests and frames come from.
    pub clock: Clock,
}

impl AgentOptions {
    /// Serves `dir` to `gateway` with every other option at its default.
    pub fn new(dir: impl Into<PathBuf>, gateway: impl Into<String>, token: impl Into<String>) -> Self {
        Self {
            dir: dir.into(),
            gateway: gateway.into(),
            token: token.into(),
            name: None,
            session: None,
            task: None,
            data: false,
            watch: false,
            hidden: false,
            serve: None,
            backoff: Backoff::default(),
            session_timeout: Duration::from_secs(30),
            confirm_window: Duration::from_secs(2),
            announce_again: Duration::from_secs(5),
            settle: Duration::from_millis(500),
            clock: Clock::system(),
        }
    }
}

impl fmt::Debug for AgentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentOptions")
            .field("dir", &self.dir)
            .field("gateway", &self.gateway)
            .field("name", &self.name)
            .field("data", &self.data)
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}

/// Why the agent ended. Each message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The gateway URL cannot be dialled.
    #[error("--gateway, or SLUICE_GATEWAY: {0}")]
    Gateway(#[from] InvalidGatewayUrl),
    /// The token cannot be put into a header.
    #[error(
        "--token, or SLUICE_TOKEN: the token holds characters that no token has; pass it without quotes or line breaks"
    )]
    Token,
    /// Neither the options nor the token name the agent.
    #[error(
        "--token, or SLUICE_TOKEN, names no agent: check that it is an agent's (sluice token agent prints one), or give the agent's name \
         with --name"
    )]
    NoName,
    /// The producer endpoint cannot be.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The folder could not be published.
    #[error("{0}{advice}", advice = .0.advice())]
    Publish(#[from] PublishError),
    /// The folder cannot be watched.
    #[error("cannot watch the folder: {0}; run without --watch")]
    Watch(String),
    /// No session within the time allowed.
    #[error("not_connected: no session with the gateway after {waited:?} ({last}); check --gateway and that it runs")]
    NotConnected {
        /// How long was waited.
        waited: Duration,
        /// What the last attempt ended in.
        last: String,
    },
    /// The gateway refused the token.
    #[error("the gateway refused the token ({0}); get a new one and start again")]
    TokenRefused(String),
    /// The gateway refused the session.
    #[error("the gateway refused the session: {code}: {message}; {advice}", advice = advice(code))]
    SessionRefused {
        /// The gateway's code.
        code: String,
        /// The gateway's message.
        message: String,
    },
    /// The gateway refused the set for its session, and would refuse every other.
    #[error("the gateway refused the set: {code}: {message}; give --session the id of a session of this agent's")]
    SetRefused {
        /// The gateway's code.
        code: String,
        /// The gateway's message.
        message: String,
    },
    /// Another connection of the same agent took over.
    #[error("another connection of this agent took over; stop the other one, or use another name and a token for it")]
    Superseded,
}

/// What to do about a refused session.
fn advice(code: &str) -> &'static str {
    match code {
        "unauthorized" | "token_expired" | "token_unbound" => {
            "get a token for this agent from this gateway (sluice token agent) and start again"
        }
        _ => "check --name, and that --token is this agent's",
    }
}

/// Publishes the folder, connects, announces the set and serves reads, where asked to also over HTTP, until `shutdown` is
/// cancelled.
///
/// A dropped connection is dialled again for ever, with back-off; after a reconnect nothing is announced again unless
/// the folder was watched and changed (specification section 4).
///
/// # Errors
/// What no retry can mend: options that cannot work, an address that cannot be listened on, a folder that cannot be published, no session within the time
/// allowed, a refused token or session, a takeover by another connection.
pub async fn run(
    options: AgentOptions,
    shutdown: CancellationToken,
    events: impl Fn(AgentEvent) + Send + Sync + 'static,
) -> Result<(), AgentError> {
    let name = match &options.name {
        Some(name) => name.clone(),
        None => token::agent_name(&options.token).ok_or(AgentError::NoName)?,
    };
    let events: EventSink = Arc::new(events);
    let registry = Arc::new(Registry::default());
    let address = address::Address::parse(&options.gateway)?;
    let agent_url = address.agent_url(&name);
    let endpoint = match options.serve.clone() {
        Some(serve) => {
            let (task, clock) = (options.task.clone(), options.clock.clone());
            Some(Endpoint::bind(serve, &address, registry.clone(), task, clock).await?)
        }
        None => None,
    };
    let base = endpoint.as_ref().map(|endpoint| endpoint.base().clone());
    if let Some(base) = &base {
        registry.serve_at(base.url());
        events(AgentEvent::Serving { url: base.url().to_owned() });
    }
    let agent = connection::Agent {
        dialler: connection::Dialler::new(address, &options.token)?,
        name: name.clone(),
        registry: registry.clone(),
        slots: relay::Slots::default(),
        events: events.clone(),
        shutdown: shutdown.clone(),
        options,
    };
    let publisher = publish::Publisher::new(
        &agent.options,
        name,
        agent_url,
        base,
        registry,
        events.clone(),
        shutdown.child_token(),
    );

    // One set may wait to be announced while the next is hashed.
    let (sets, to_announce) = mpsc::channel(1);
    let (looked, first_look) = oneshot::channel();
    let (session, sessions) = latest::channel(false);
    let publishing = async {
        tokio::select! {
            ended = watch::publish(publisher, &agent.options, sets, looked, events) => ended,
            () = shutdown.cancelled() => Ok(()),
        }
    };
    let connecting = async {
        // An agent that is online before it can serve refuses the reads of transfers that waited for it.
        tokio::select! {
            _ = first_look => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        tokio::try_join!(control::hold(&agent, to_announce, session), data::hold(&agent, sessions)).map(drop)
    };
    let serving = async {
        if let Some(endpoint) = endpoint {
            endpoint.serve(&shutdown).await;
        }
        Ok(())
    };
    tokio::try_join!(publishing, connecting, serving)?;
    Ok(())
}

/// Where events go.
type EventSink = Arc<dyn Fn(AgentEvent) + Send + Sync>;
