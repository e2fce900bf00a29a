//! The producer endpoint (specification section 2): the agent's files over HTTP, where something can reach it.
//!
//! It serves the gateway alone, which proves itself by its signature (see [`caller`]), and says the same to everybody
//! else. Bytes that are not those that were announced are never sent: a file is looked at before and after each read,
//! as for the relay. It speaks HTTP/1.1 without TLS, which is a proxy's. The proxy keeps `Host` and path, because
//! signatures cover them.

mod answer;
mod base;
mod body;
mod caller;
mod keys;
mod nonces;
mod refusal;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub(super) use base::Base;
pub use base::InvalidEndpointUrl;

use super::address::Address;
use super::registry::Registry;
use crate::clock::Clock;
use crate::net::Socket;
use crate::protocol::TaskId;
use crate::protocol::limits::CONCURRENT_TRANSFERS;
use answer::Answers;
use caller::Callers;
use keys::GatewayKeys;

/// Largest head of a request, and about how much of a response is held for a caller who does not take it.
const BUFFER_BYTES: usize = 64 * 1024;
/// Most fields of a request: a signed one has about ten.
const HEADERS: usize = 64;
/// How long to wait when the process cannot accept, for want of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);
/// How long transfers may take to finish once the agent is to end.
const GRACE: Duration = Duration::from_secs(2);

/// Where the producer endpoint listens, what it is known as, and what it grants.
#[derive(Debug, Clone)]
pub struct EndpointOptions {
    /// Where to listen.
    pub listen: SocketAddr,
    /// What is announced, and the one authority that signatures may be made for: https, or http to loopback. `http://`
    /// and the address that was bound when absent.
    pub url: Option<String>,
    /// Transfers at once; one more is answered 503.
    pub transfers: usize,
    /// Connections at once. Those beyond wait in the kernel's queue.
    pub connections: usize,
    /// How long the head of a request may take to arrive, and how long an idle connection is kept.
    pub head_timeout: Duration,
    /// A connection that takes none of the bytes waiting for it for this long is closed.
    pub stall_timeout: Duration,
    /// How soon the gateway's keys may be fetched again when a signature names one that is not among them.
    pub key_refetch: Duration,
}

impl EndpointOptions {
    /// Listens on `listen`, with every other option at its default.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            url: None,
            transfers: CONCURRENT_TRANSFERS,
            connections: 256,
            head_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            key_refetch: Duration::from_secs(5),
        }
    }
}

/// Why the producer endpoint cannot be.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {address}: {error} (set --serve to another address, or stop what uses this one)")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// Why it failed.
        error: io::Error,
    },
    /// The public URL cannot be announced.
    #[error("--serve-url: {0}")]
    Url(#[from] InvalidEndpointUrl),
    /// Without a public URL only loopback can be announced.
    #[error(
        "--serve: {0} is not loopback, and others are announced over https only: give the https URL that a proxy serves \
         this address under with --serve-url"
    )]
    NotLoopback(SocketAddr),
}

/// A bound endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    listener: TcpListener,
    options: EndpointOptions,
    base: Base,
    answers: Arc<Answers>,
}

impl Endpoint {
    /// Binds the address; connections queue up from here on. What `registry` holds is served to whoever signs with a key
    /// of the gateway at `gateway`, and where the agent works for a `task`, to requests that name it.
    pub(super) async fn bind(
        options: EndpointOptions,
        gateway: &Address,
        registry: Arc<Registry>,
        task: Option<TaskId>,
        clock: Clock,
    ) -> Result<Self, EndpointError> {
        // What cannot be announced is told before anything is bound.
        let named = options.url.as_deref().map(Base::parse).transpose()?;
        let failed = |error| EndpointError::Bind { address: options.listen, error };
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let base = match named {
            Some(base) => base,
            None => Base::of(bound).map_err(|_| EndpointError::NotLoopback(bound))?,
        };
        let callers = Callers::new(&base, GatewayKeys::of(gateway, options.key_refetch), clock);
        let answers = Arc::new(Answers::new(base.clone(), callers, registry, task, options.transfers));
        Ok(Self { listener, options, base, answers })
    }

    pub(super) fn base(&self) -> &Base {
        &self.base
    }

    /// Serves until `stop`, then lets what is running finish for a moment. Nothing outlives it, however it ends.
    pub(super) async fn serve(self, stop: &CancellationToken) {
        let slots = Arc::new(Semaphore::new(self.options.connections.min(Semaphore::MAX_PERMITS)));
        let mut connections = JoinSet::new();
        let answers = self.answers.clone();
        let stopping = stop.clone();
        connections.spawn(async move { _ = stopping.run_until_cancelled(answers.callers.prepare()).await });
        while let Some((stream, slot)) = stop.run_until_cancelled(self.next(&slots)).await.flatten() {
            while connections.try_join_next().is_some() {}
            connections.spawn(self.connection(stream, slot, stop.clone()));
        }
        drop(self.listener);
        let finishing = async { while connections.join_next().await.is_some() {} };
        // What does not finish is cut with the set.
        let _ = timeout(GRACE, finishing).await;
    }

    /// The next connection, with its place among those allowed.
    async fn next(&self, slots: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
        // The semaphore is never closed.
        let slot = slots.clone().acquire_owned().await.ok()?;
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return Some((stream, slot)),
                Err(error) => {
                    tracing::debug!(%error, "the endpoint cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn connection(
        &self,
        stream: TcpStream,
        slot: OwnedSemaphorePermit,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (answers, options) = (self.answers.clone(), &self.options);
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(options.head_timeout)
            .max_buf_size(BUFFER_BYTES)
            .max_headers(HEADERS);
        let socket = Socket::new(stream, options.head_timeout, options.stall_timeout, slot);
        async move {
            let service = service_fn(move |request: http::Request<Incoming>| {
                let answers = answers.clone();
                async move { Ok::<_, Infallible>(answers.answer(&request).await) }
            });
            let connection = builder.serve_connection(TokioIo::new(socket), service);
            tokio::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection of the endpoint ended early");
            }
        }
    }
}
