//! From a URL to a connection with an address that was checked.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::FetchError;
use super::bounds::{Lane, Permit};
use crate::net::tls;
use crate::protocol::address::Allowed;

/// Addresses of one name that are tried. Every one is checked.
const ATTEMPTS: usize = 4;
/// For one of them.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For the look-up of its name. The system's resolver may take longer, and blocks a thread, also when nobody waits.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(4);

/// Where the addresses of names come from.
#[derive(Clone)]
pub enum Resolver {
    /// The system.
    System,
    /// Somewhere else.
    Other(Arc<dyn Resolve>),
}

/// Finds the addresses of a name.
pub trait Resolve: Send + Sync {
    /// Every address, in the order of preference.
    fn resolve(&self, host: &str) -> BoxFuture<'_, io::Result<Vec<IpAddr>>>;
}

/// A connection, with or without TLS.
pub(super) type Stream = Box<dyn Transport>;

/// What HTTP is spoken over.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

impl fmt::Debug for dyn Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

/// Connects to what may be reached.
pub(super) struct Connector {
    allowed: Allowed,
    resolver: Resolver,
    tls: Option<TlsConnector>,
}

impl Connector {
    pub(super) fn new(allowed: Allowed, resolver: Resolver, roots: RootCertStore) -> Self {
        Self { allowed, resolver, tls: tls::connector(roots) }
    }

    /// A connection to one of the addresses of the URL's host, each of which may be reached.
    pub(super) async fn connect(&self, url: &Url, lane: &Lane) -> Result<Stream, FetchError> {
        let tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(FetchError::UrlInvalid),
        };
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(FetchError::UrlInvalid);
        };
        let (name, mut addresses) = match host {
            Host::Domain(name) => (name.to_owned(), self.resolve(name, lane).await?),
            Host::Ipv4(address) => (address.to_string(), vec![address.into()]),
            Host::Ipv6(address) => (address.to_string(), vec![address.into()]),
        };
        for address in &addresses {
            if !self.allowed.permits(&name, *address, port, tls) {
                // What is fine over TLS is told so.
                return Err(if self.allowed.permits(&name, *address, port, true) {
                    FetchError::Insecure { host: name }
                } else {
                    FetchError::Forbidden { host: name, address: *address }
                });
            }
        }
        addresses.sort_by_key(IpAddr::is_ipv6);
        let stream = dial(&addresses, port).await.ok_or_else(|| FetchError::Unreachable { host: name.clone() })?;
        if !tls {
            return Ok(Box::new(stream));
        }
        let failed = |reason: String| FetchError::Tls { host: name.clone(), reason };
        let tls = self.tls.as_ref().ok_or_else(|| failed("TLS is not available".to_owned()))?;
        let server = ServerName::try_from(name.clone()).map_err(|_| FetchError::UrlInvalid)?;
        let session =
            tls.connect(server, stream).await.map_err(|error| failed(error.to_string().replace('\n', " ")))?;
        Ok(Box::new(session))
    }

    async fn resolve(&self, host: &str, lane: &Lane) -> Result<Vec<IpAddr>, FetchError> {
        let permit = tokio::time::timeout(LOOKUP_TIMEOUT, lane.look_up(host)).await.ok().flatten();
        let permit = permit.ok_or(FetchError::Busy)?;
        let finding = async {
            match &self.resolver {
                Resolver::Other(resolver) => resolver.resolve(host).await,
                Resolver::System => ask_system(host.to_owned(), permit).await,
            }
        };
        let found = tokio::time::timeout(LOOKUP_TIMEOUT, finding).await.ok().and_then(Result::ok);
        let unresolved = || FetchError::Unresolved { host: host.to_owned() };
        found.filter(|addresses| !addresses.is_empty()).ok_or_else(unresolved)
    }
}

async fn ask_system(host: String, permit: Permit) -> io::Result<Vec<IpAddr>> {
    // The permit goes along with the thread, so that look-ups that nobody waits for are counted as well.
    let asking = move || {
        let _permit = permit;
        let addresses = (host.as_str(), 0).to_socket_addrs()?;
        Ok(addresses.map(|address| address.ip()).collect())
    };
    tokio::task::spawn_blocking(asking).await.map_err(io::Error::other)?
}

async fn dial(addresses: &[IpAddr], port: u16) -> Option<TcpStream> {
    for address in addresses.iter().take(ATTEMPTS) {
        let dialling = TcpStream::connect(SocketAddr::new(*address, port));
        if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_TIMEOUT, dialling).await {
            // Requests are one small write each.
            let _ = stream.set_nodelay(true);
            return Some(stream);
        }
    }
    None
}
