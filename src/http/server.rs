//! Listeners and their connections: HTTP/1.1, HTTP/2 with prior knowledge, and upgrades.
//!
//! A stranger's connection costs a bounded amount of memory and is given up when it does not move. No task outlives
//! [`serve`], except what a handler made of an upgraded connection.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse as _;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, Version};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use ipnet::IpNet;
use prometheus::IntCounter;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::activity::{Answer, Held};
use super::error::Problem;
use super::keyed::{InFlight, Permit, group};
use crate::net::Socket;

/// How long the head of a request may take to arrive, unless somebody has a reason to choose otherwise.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest head of a request, and about how much of a response HTTP/1.1 holds for a reader who does not take it: with
/// more, a slow reader would pull frames out of an agent that nobody sends on.
const HTTP1_BUFFER: usize = 64 * 1024;
/// What HTTP/2 holds of one response.
const HTTP2_SEND_BUFFER: usize = 256 * 1024;
const HTTP2_HEADERS: u32 = 64 * 1024;
const HTTP2_STREAMS: u32 = 256;
/// Windows for requests' bodies. The connection's is the larger, so that one stream that nobody reads does not stop
/// the others.
const HTTP2_STREAM_WINDOW: u32 = 256 * 1024;
const HTTP2_CONNECTION_WINDOW: u32 = 1024 * 1024;
const HTTP2_PING: Duration = Duration::from_secs(20);
/// Bytes the kernel takes that the network has not: beyond this a slow reader is felt at once.
const UNSENT_BYTES: u32 = 128 * 1024;
/// How long a connection is kept on which nothing is asked and nothing is answered. (HTTP/1.1 gives one up sooner.)
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long one that is given up because it is idle may take to say goodbye. What is asked meanwhile is answered.
const FAREWELL: Duration = Duration::from_secs(1);
/// The part of a listener's places below which idle connections make way, so that nobody waits for one to end.
const SPARE: usize = 16;
/// While there is no place, how often one is asked to make way.
const WAY_PAUSE: Duration = Duration::from_millis(250);
/// How long to wait when the process cannot accept, for want of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

/// The listener's port is taken, or the address is not this machine's.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source} (set --{setting} to another address, or stop what uses this one)")]
pub struct BindError {
    address: SocketAddr,
    setting: &'static str,
    source: io::Error,
}

impl BindError {
    /// Whether something else listens there.
    pub fn is_in_use(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

/// What one listener grants.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once, upgraded ones included. When there are nearly as many, those that have done nothing for longest
    /// make way; where none does, new ones wait in the kernel's queue.
    pub connections: usize,
    /// Of these, from one address.
    pub of_addresses: PerAddress,
    /// How long the head of a request may take to arrive, and how long an idle HTTP/1.1 connection is kept.
    pub head: Duration,
    /// How long a connection is kept on which nothing is asked and nothing is answered.
    pub idle: Duration,
    /// A connection that takes none of the bytes waiting for it for this long is closed.
    pub stall: Duration,
    /// How long connections may take to finish once the listener stops.
    pub grace: Duration,
}

/// How many connections one address may hold (IPv6: each /64), upgraded ones included; one more is closed at once. Only
/// what the system says of the other end counts, for nothing has been asked yet.
#[derive(Debug, Clone)]
pub struct PerAddress {
    held: Arc<InFlight<IpAddr>>,
    /// Proxies, and others behind whom there are many.
    exempt: Arc<[IpNet]>,
    refused: Option<IntCounter>,
}

impl PerAddress {
    /// At most `limit` from one address that is not `exempt`; 0 is no limit. Those `refused` are counted.
    pub fn new((limit, exempt): (u32, Vec<IpNet>), refused: IntCounter) -> Self {
        Self { held: Arc::new(InFlight::new(limit)), exempt: exempt.into(), refused: Some(refused) }
    }

    /// No limit.
    pub fn unlimited() -> Self {
        Self { held: Arc::new(InFlight::new(0)), exempt: Arc::new([]), refused: None }
    }

    fn enter(&self, peer: IpAddr) -> Result<Option<Permit<IpAddr>>, ()> {
        let peer = peer.to_canonical();
        if self.exempt.iter().any(|net| net.contains(&peer)) {
            return Ok(None);
        }
        self.held.enter(&group(peer)).map(Some).ok_or_else(|| self.refused.iter().for_each(IntCounter::inc))
    }
}

/// A connection's place among all, and among those of its address.
type Slot = (OwnedSemaphorePermit, Option<Permit<IpAddr>>);

/// The other end of the connection that a request came on: an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// A bound listener: connections queue up from here on, and [`serve`] takes them.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds `address`, which the setting `setting` named.
    ///
    /// # Errors
    /// When it cannot be bound; the text names the setting.
    pub async fn bind(address: SocketAddr, setting: &'static str) -> Result<Self, BindError> {
        let failed = |source| BindError { address, setting, source };
        let inner = TcpListener::bind(address).await.map_err(failed)?;
        let address = inner.local_addr().map_err(failed)?;
        Ok(Self { inner, address })
    }

    /// The address that was bound: its port is a real one even if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Serves `router` on `listener` until `stop`, then lets what is running finish for the grace period, cuts the rest,
/// and returns. `cut` is cancelled when the rest is cut, and before: whoever is cut can tell why.
pub async fn serve(
    listener: Listener,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
    cut: CancellationToken,
) {
    let tasks = TaskTracker::new();
    let grace = limits.grace;
    let slots = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let connections = Connections {
        builder: Arc::new(builder(&limits, &tasks, &cut)),
        router,
        held: Arc::default(),
        limits: Arc::new(limits),
        stop: stop.clone(),
        cut: cut.clone(),
    };
    while let Some((stream, peer, slot)) = connections.next(&listener, &slots).await {
        // Dropped, it is closed.
        if let Ok(of_address) = connections.limits.of_addresses.enter(peer.ip()) {
            tasks.spawn(connections.clone().run(stream, peer, (slot, of_address)));
        }
    }
    drop(listener);
    tasks.close();
    if tokio::time::timeout(grace, tasks.wait()).await.is_err() {
        tracing::warn!(connections = tasks.len(), "cutting what did not finish within the grace period");
        cut.cancel();
        tasks.wait().await;
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// What all connections of a listener share.
#[derive(Clone)]
struct Connections {
    builder: Arc<Builder<Tracked>>,
    router: Router,
    held: Arc<Held>,
    limits: Arc<Limits>,
    stop: CancellationToken,
    cut: CancellationToken,
}

impl Connections {
    /// The next connection, with its place among those allowed; `None` once the listener stops.
    async fn next(
        &self,
        listener: &Listener,
        slots: &Arc<Semaphore>,
    ) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let accept = async {
            let slot = self.place(listener, slots).await?;
            loop {
                match listener.inner.accept().await {
                    Ok((stream, peer)) => return Some((stream, peer, slot)),
                    // The connection was gone before it was taken: the next one is another.
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        tracing::warn!(listener = %listener.address, %error, "cannot accept connections");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        self.stop.run_until_cancelled(accept).await.flatten()
    }

    /// A place for a connection, which idle ones make way for.
    async fn place(&self, listener: &Listener, slots: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        let free = slots.available_permits();
        if free <= self.limits.connections / SPARE {
            self.held.make_way();
        }
        if free == 0 {
            tracing::warn!(listener = %listener.address, "as many connections as may be held: new ones wait");
        }
        loop {
            match tokio::time::timeout(WAY_PAUSE, slots.clone().acquire_owned()).await {
                // The semaphore is never closed, and a listener without places would have nothing left to do.
                Ok(slot) => return slot.ok(),
                Err(_) => self.held.make_way(),
            }
        }
    }

    async fn run(self, stream: TcpStream, peer: SocketAddr, slot: Slot) {
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%peer, %error, "the connection was gone before it began");
            return;
        }
        let socket = TokioIo::new(Socket::new(stream, self.limits.head, self.limits.stall, slot));
        let (router, held) = (self.router, self.held.enter());
        let running = held.activity.clone();
        let service = service_fn(move |mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            let (router, running) = (router.clone(), running.begin());
            async move {
                let response = match names_its_host(request.version(), request.headers()) {
                    true => router.oneshot(request).await?,
                    false => Problem::BadRequest("the request names one Host".into()).into_response(),
                };
                Ok::<_, Infallible>(response.map(|body| Answer { body, _running: running }))
            }
        });
        let connection = self.builder.serve_connection_with_upgrades(socket, service);
        let mut connection = std::pin::pin!(connection);
        let ended = async {
            tokio::select! {
                ended = connection.as_mut() => return ended,
                () = self.stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    return connection.await;
                }
                () = held.activity.ceases(self.limits.idle) => {}
                () = held.makes_way.cancelled() => {}
            }
            connection.as_mut().graceful_shutdown();
            // HTTP/2 waits for an answer before it ends, which a peer may never give.
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = held.activity.ceases(FAREWELL) => Ok(()),
            }
        };
        if let Some(Err(error)) = self.cut.run_until_cancelled(ended).await {
            tracing::debug!(%peer, error = error.as_ref(), "a connection ended early");
        }
    }
}

/// Whether a request says for which host it is, and only once: two that disagree would be one to this listener and
/// another to a proxy (RFC 9112 section 3.2). HTTP/2 says so elsewhere, and may leave it at that.
fn names_its_host(version: Version, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => version != Version::HTTP_11,
        (Some(host), None) => {
            let bytes = host.as_bytes();
            bytes.is_empty() || Authority::try_from(bytes).is_ok_and(|host| !host.as_str().contains('@'))
        }
        (Some(_), Some(_)) => false,
    }
}

/// The token that cuts the HTTP/2 stream which this code answers; none where the response has a connection of its own.
/// A response that waits for its reader's window asks nobody whether it still has anything to say.
pub(super) fn stream_cut() -> Option<CancellationToken> {
    STREAM.try_with(Clone::clone).ok()
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES)
}

fn builder(limits: &Limits, tasks: &TaskTracker, cut: &CancellationToken) -> Builder<Tracked> {
    let mut builder = Builder::new(Tracked { tasks: tasks.clone(), cut: cut.clone() });
    // What HTTP/2 lets a peer send beside requests costs no memory: SETTINGS and PING are answered one at a time, and
    // nothing more is read while an answer is not taken; streams that are reset early and CONTINUATIONs are counted, and end
    // the connection (h2's own limits: 20 resets not yet accepted, 1024 of our own). What is left is the time it takes to
    // read them, shared by turns with every other connection.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(HTTP1_BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .max_header_list_size(HTTP2_HEADERS)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .max_send_buf_size(HTTP2_SEND_BUFFER)
        .keep_alive_interval(HTTP2_PING)
        .keep_alive_timeout(HTTP2_PING);
    builder
}

tokio::task_local! {
    static STREAM: CancellationToken;
}

/// Runs HTTP/2's streams where [`serve`] waits for them, and cuts them with their connection, or one by one.
#[derive(Debug, Clone)]
struct Tracked {
    tasks: TaskTracker,
    cut: CancellationToken,
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tracked {
    fn execute(&self, stream: F) {
        let cut = self.cut.child_token();
        let running = STREAM.scope(cut.clone(), stream);
        // Dropped before its end, a stream is reset.
        self.tasks.spawn(async move { cut.run_until_cancelled_owned(running).await });
    }
}
