//! The one client for the gateway's own fetches: key sets, locations, files that a message names by URL.
//!
//! A stranger chooses what is fetched, so this module decides what may be reached (see [`crate::protocol::address`]):
//! https only, no redirects, no proxies, no cookies, no compression, bounded in time, size and number. Every address
//! that a name resolves to is checked, and a checked address is what the socket connects to: there is no second look-up
//! that could answer otherwise, and no pool of connections that some other check let in.
//!
//! It knows neither what is fetched nor for whom. A caller that follows a redirect makes a new [`Fetch`] of it, which
//! goes through the same checks.

mod bounds;
mod connect;
mod error;
mod fetched;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use url::Url;

pub use bounds::Bounds;
pub use connect::{Resolve, Resolver};
pub use error::FetchError;
pub use fetched::Fetched;

use crate::metrics::Metrics;
use crate::net::tls;
use crate::protocol::address::Allowed;
use bounds::Lane;
use connect::{Connector, Stream};
use fetched::Driver;

/// Most bytes of a response's head, and of what is read at once of its body.
const BUFFER_BYTES: usize = 64 * 1024;
const AGENT: &str = concat!("sluice/", env!("CARGO_PKG_VERSION"));

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Fetch {
    /// GET, or another method without a body.
    pub method: Method,
    /// Where. A fragment is dropped; a user or password in it is refused.
    pub url: Url,
    /// Sent as they are, beside `Host`, `User-Agent` and `Accept-Encoding: identity`.
    pub headers: HeaderMap,
    /// Most bytes of the response's body.
    pub max_bytes: u64,
    /// From the call to the head of the response, or to the last byte where the body is read by [`Fetched::bytes`]. A
    /// body that is read in parts may take so long for each.
    pub timeout: Duration,
}

impl Fetch {
    /// A GET without headers of its own.
    pub fn get(url: Url, max_bytes: u64, timeout: Duration) -> Self {
        Self { method: Method::GET, url, headers: HeaderMap::new(), max_bytes, timeout }
    }
}

/// The client. Clones share its bounds and settings.
#[derive(Clone)]
pub struct Outbound {
    connector: Arc<Connector>,
    lane: Lane,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound").field("bounds", &self.lane.bounds()).finish_non_exhaustive()
    }
}

impl Outbound {
    /// Trusts the certificates that the system trusts (or `SSL_CERT_FILE`, `SSL_CERT_DIR`), and asks the system's resolver.
    pub fn new(allowed: Allowed, bounds: Bounds, metrics: Arc<Metrics>) -> Self {
        Self::with(allowed, bounds, metrics, Resolver::System, tls::system_roots())
    }

    /// With another resolver and other trusted certificates.
    pub fn with(
        allowed: Allowed,
        bounds: Bounds,
        metrics: Arc<Metrics>,
        resolver: Resolver,
        roots: rustls::RootCertStore,
    ) -> Self {
        for outcome in FetchError::OUTCOMES {
            let _ = metrics.fetches.with_label_values(&[outcome]);
        }
        Self { connector: Arc::new(Connector::new(allowed, resolver, roots)), lane: Lane::new(bounds), metrics }
    }

    /// The same client with bounds of its own, so that long fetches of one purpose do not keep out those of another.
    pub fn lane(&self, bounds: Bounds) -> Self {
        Self { lane: Lane::new(bounds), ..self.clone() }
    }

    /// Asks, and answers with the head of the response, whatever its status; a redirect is not followed.
    ///
    /// # Errors
    /// See [`FetchError`]. None of them tells more of the URL than its host.
    pub async fn get(&self, fetch: Fetch) -> Result<Fetched, FetchError> {
        let deadline = Instant::now() + fetch.timeout;
        let outcome = self.ask(fetch, deadline).await;
        let code = outcome.as_ref().err().map_or("answered", FetchError::code);
        self.metrics.fetches.with_label_values(&[code]).inc();
        outcome
    }

    async fn ask(&self, fetch: Fetch, deadline: Instant) -> Result<Fetched, FetchError> {
        let request = request(&fetch)?;
        let host = fetch.url.host_str().ok_or(FetchError::UrlInvalid)?;
        let place = tokio::time::timeout_at(deadline, self.lane.enter(host)).await;
        let permit = place.ok().flatten().ok_or(FetchError::Busy)?;
        let connecting = tokio::time::timeout_at(deadline, self.connector.connect(&fetch.url, &self.lane)).await;
        let stream = connecting.unwrap_or_else(|_| Err(FetchError::Unreachable { host: host.to_owned() }))?;
        let exchange = tokio::time::timeout_at(deadline, exchange(stream, request)).await;
        let (response, connection) = exchange.unwrap_or(Err(FetchError::TimedOut))?;
        let encoded = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
        if response.headers().get_all(CONTENT_ENCODING).iter().any(encoded) {
            return Err(FetchError::Encoded);
        }
        let length = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        // What a HEAD names is not sent.
        if fetch.method != Method::HEAD && length.is_some_and(|length| length > fetch.max_bytes) {
            return Err(FetchError::TooLarge { limit: fetch.max_bytes });
        }
        Ok(Fetched::new(response, connection, permit, &fetch, deadline))
    }
}

/// Sends the request, and waits for the head of the response.
async fn exchange(stream: Stream, request: Request<Empty<Bytes>>) -> Result<(Response<Incoming>, Driver), FetchError> {
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER_BYTES)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|_| FetchError::Broken)?;
    let mut connection = Box::pin(connection).fuse();
    let answer = sender.send_request(request);
    tokio::pin!(answer);
    // The connection has no task of its own: it moves only while its caller waits, and ends with its caller.
    let response = tokio::select! {
        biased;
        answer = &mut answer => answer,
        // It ends when it has read the whole response, or broke; the response tells which.
        _ = &mut connection => answer.await,
    };
    Ok((response.map_err(|_| FetchError::Broken)?, connection))
}

/// The request in origin form (RFC 9112 section 3.2.1): there is no proxy to tell the whole URL.
fn request(fetch: &Fetch) -> Result<Request<Empty<Bytes>>, FetchError> {
    let url = &fetch.url;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(FetchError::UrlInvalid);
    }
    let target = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let authority = authority(url).ok_or(FetchError::UrlInvalid)?;
    let mut request = Request::new(Empty::new());
    *request.method_mut() = fetch.method.clone();
    *request.uri_mut() = target.parse().map_err(|_| FetchError::UrlInvalid)?;
    *request.headers_mut() = fetch.headers.clone();
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_str(&authority).map_err(|_| FetchError::UrlInvalid)?);
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Ok(request)
}

/// Host and port as the `Host` header has them, without the scheme's default port.
pub fn authority(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    Some(match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    })
}
