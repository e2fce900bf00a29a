//! Dialling: the upgrade of both kinds of connection, and what a refused one means.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::upgrade::Upgraded;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::address::Address;
use super::link::{Link, Lost};
use super::registry::Registry;
use super::relay::{Relay, Slots};
use super::upgrade::{NotUpgraded, upgrade};
use super::{AgentError, AgentOptions, EventSink};
use crate::net::tls;
use crate::protocol::AgentName;
use crate::protocol::frames::Envelope;

/// How long the TCP connection and the upgrade may take together.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// What both connections of one agent share.
pub(super) struct Agent {
    pub(super) options: AgentOptions,
    pub(super) name: AgentName,
    pub(super) dialler: Dialler,
    pub(super) registry: Arc<Registry>,
    /// One limit for both connections.
    pub(super) slots: Slots,
    pub(super) events: EventSink,
    pub(super) shutdown: CancellationToken,
}

impl Agent {
    /// An envelope with a fresh event id.
    pub(super) fn envelope(&self) -> Envelope {
        let timestamp = u64::try_from(self.options.clock.unix_millis()).unwrap_or(0);
        Envelope::new(format!("evt_{:016x}", rand::random::<u64>()), timestamp)
    }

    /// Dials, with a relay of its own behind the new link.
    pub(super) async fn dial(&self, kind: Kind) -> Result<Link, Undialled> {
        let (registry, slots, events) = (self.registry.clone(), self.slots.clone(), self.events.clone());
        self.dialler.dial(kind, Relay::new(registry, slots, events, self.options.watch)).await
    }
}

/// Which of an agent's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Control,
    Data,
}

/// A connection that did not come about.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undialled {
    /// The credential was refused: no retry mends that.
    #[error("the gateway answered {0} to the upgrade")]
    Refused(StatusCode),
    /// The upgrade was answered with something else.
    #[error("the gateway answered {0} to the upgrade; {advice}", advice = advice(*.0))]
    Status(StatusCode),
    /// No TLS. What is wrong with a certificate says what to do by itself.
    #[error(
        "cannot speak TLS with {at}: {reason}{}",
        if reason.contains("certificate") { "" } else { "; where the gateway has no TLS, --gateway begins with http://" }
    )]
    Tls { at: String, reason: String },
    /// Something else than HTTP.
    #[error("what answers at {at} speaks no HTTP ({reason}); check the port of --gateway, and whether it is https://")]
    NotHttp { at: String, reason: String },
    /// No connection.
    #[error("cannot reach {host}:{port}: {error}")]
    Unreachable { host: String, port: u16, error: std::io::Error },
    /// The upgrade failed otherwise.
    #[error("the upgrade failed: {0}")]
    Upgrade(NotUpgraded),
    /// It took too long.
    #[error("the gateway did not answer within {OPEN_TIMEOUT:?}")]
    Timeout,
}

/// What to do about a status that no upgrade has.
fn advice(status: StatusCode) -> &'static str {
    match status.is_server_error() {
        true => "it may be busy, or not be reached by the proxy in front of it",
        false => "check the port and the path of --gateway",
    }
}

/// Where to dial, and the credential to show.
pub(super) struct Dialler {
    address: Address,
    authorization: HeaderValue,
    /// Where the address asks for it.
    tls: Option<TlsConnector>,
}

impl Dialler {
    pub(super) fn new(address: Address, token: &str) -> Result<Self, AgentError> {
        let mut authorization = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| AgentError::Token)?;
        authorization.set_sensitive(true);
        let tls = if address.tls { tls::connector(tls::system_roots()) } else { None };
        Ok(Self { address, authorization, tls })
    }

    async fn dial(&self, kind: Kind, relay: Relay) -> Result<Link, Undialled> {
        timeout(OPEN_TIMEOUT, self.open(kind, relay)).await.unwrap_or(Err(Undialled::Timeout))
    }

    async fn open(&self, kind: Kind, relay: Relay) -> Result<Link, Undialled> {
        let Address { host, port, .. } = &self.address;
        let unreachable = |error| Undialled::Unreachable { host: host.clone(), port: *port, error };
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
        // Frames are written whole; waiting to fill a segment would only delay small ones.
        stream.set_nodelay(true).map_err(unreachable)?;
        self.upgrade(stream, kind).await.map(|upgraded| Link::new(upgraded, relay))
    }

    async fn upgrade(&self, stream: TcpStream, kind: Kind) -> Result<Upgraded, Undialled> {
        let Address { host, port, tls, authority, .. } = &self.address;
        let at = || format!("{host}:{port}");
        let request = self.request(kind);
        let upgraded = if *tls {
            let failed = |reason: String| Undialled::Tls { at: at(), reason };
            let connector = self.tls.as_ref().ok_or_else(|| failed("TLS is not available".to_owned()))?;
            let server = ServerName::try_from(host.clone()).map_err(|error| failed(error.to_string()))?;
            let stream = connector.connect(server, stream).await.map_err(|error| failed(error.to_string()))?;
            upgrade(stream, authority.clone(), request).await
        } else {
            upgrade(stream, authority.clone(), request).await
        };
        upgraded.map_err(|error| match error {
            NotUpgraded::Status(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)) => {
                Undialled::Refused(status)
            }
            NotUpgraded::Status(status) => Undialled::Status(status),
            NotUpgraded::Http(error) if error.is_parse() => Undialled::NotHttp { at: at(), reason: error.to_string() },
            error => Undialled::Upgrade(error),
        })
    }

    fn request(&self, kind: Kind) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = match kind {
            Kind::Control => self.address.control().clone(),
            Kind::Data => self.address.data().clone(),
        };
        let headers = request.headers_mut();
        headers.insert(AUTHORIZATION, self.authorization.clone());
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("sluice-agent/", env!("CARGO_PKG_VERSION"))));
        if kind == Kind::Data {
            headers.insert("UAMP-Connection", HeaderValue::from_static("data"));
        }
        request
    }
}

/// How one connection ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The agent is to end, without an error.
    Shutdown,
    /// Dialling again may help.
    Retry(String),
    /// It cannot.
    Fatal(AgentError),
}

/// The credential was refused.
const CLOSE_REFUSED: u16 = 4001;
/// Another connection of the same agent and kind took over.
const CLOSE_SUPERSEDED: u16 = 4009;

impl From<Lost> for Ended {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Closed { code: CLOSE_REFUSED, reason } => Self::Fatal(AgentError::TokenRefused(reason)),
            Lost::Closed { code: CLOSE_SUPERSEDED, .. } => Self::Fatal(AgentError::Superseded),
            lost => Self::Retry(lost.to_string()),
        }
    }
}

impl From<Undialled> for Ended {
    fn from(undialled: Undialled) -> Self {
        match undialled {
            Undialled::Refused(_) => Self::Fatal(AgentError::TokenRefused(undialled.to_string())),
            undialled => Self::Retry(undialled.to_string()),
        }
    }
}
