//! The gateway's key set, fetched where this agent dials the gateway and kept for a while.

use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONNECTION, HOST};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use crate::net::tls;
use crate::producer::address::Address;
use crate::protocol::signature::{JWKS_PATH, KEY_SET_BYTES, KeySet, SignatureError, lifetime};

/// From dialling to the last byte.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a set serves beyond its time while a newer one cannot be had.
const STALE: Duration = Duration::from_secs(3600);
/// How soon it is asked for again where there is none at all: the gateway may have come up since.
const RETRY: Duration = Duration::from_millis(100);
/// Most bytes of a response's head.
const HEAD_BYTES: usize = 16 * 1024;

/// The keys of the one gateway. Exactly its host and port are dialled: no proxy, no redirect, no other name.
pub(super) struct GatewayKeys {
    address: Address,
    tls: Option<TlsConnector>,
    /// How soon the set may be fetched again, whatever came of it last.
    refetch: Duration,
    known: RwLock<Option<Known>>,
    /// When the set was asked for last. Whoever holds this asks.
    asked: Mutex<Option<Instant>>,
}

impl fmt::Debug for GatewayKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayKeys").field("address", &self.address).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone)]
struct Known {
    set: Arc<KeySet>,
    until: Instant,
}

/// Why there is no new set.
#[derive(Debug, thiserror::Error)]
enum Unfetched {
    #[error("cannot reach the gateway: {0}")]
    Io(#[from] io::Error),
    #[error("the gateway's answer broke off: {0}")]
    Http(#[from] hyper::Error),
    #[error("the gateway does not answer within {FETCH_TIMEOUT:?}")]
    Timeout,
    #[error("the gateway answers {0}")]
    Status(StatusCode),
    #[error("the gateway's answer is longer than {KEY_SET_BYTES} bytes, or broke off")]
    Body,
    #[error("the gateway's answer is no key set")]
    Invalid,
    #[error("the gateway's URL makes no request")]
    Url,
}

impl GatewayKeys {
    pub(super) fn of(gateway: &Address, refetch: Duration) -> Self {
        let tls = gateway.tls.then(|| tls::connector(tls::system_roots())).flatten();
        Self { address: gateway.clone(), tls, refetch, known: RwLock::default(), asked: Mutex::default() }
    }

    /// The set, if possible one in which `has_keys` finds what it looks for: one that lacks it, or is old, is fetched
    /// again, unless that was tried just now. A caller whose key is known waits for nobody.
    ///
    /// # Errors
    /// [`SignatureError::KeySetUnreachable`] when there is none that may still serve.
    pub(super) async fn holding(&self, has_keys: impl Fn(&KeySet) -> bool) -> Result<Arc<KeySet>, SignatureError> {
        let serves = |known: &Known| Instant::now() < known.until && has_keys(&known.set);
        if let Some(known) = self.known().filter(&serves) {
            return Ok(known.set);
        }
        let mut asked = self.asked.lock().await;
        // Somebody else may have fetched it meanwhile.
        let known = self.known();
        let pause = if known.is_none() { RETRY.min(self.refetch) } else { self.refetch };
        if !known.is_some_and(|known| serves(&known)) && asked.is_none_or(|at| at.elapsed() >= pause) {
            *asked = Some(Instant::now());
            match timeout(FETCH_TIMEOUT, self.fetch()).await.unwrap_or(Err(Unfetched::Timeout)) {
                Ok(fetched) => *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(fetched),
                Err(error) => {
                    // One that was waited for in vain is left alone from now on, and not from when it was asked.
                    *asked = Some(Instant::now());
                    tracing::warn!(%error, "the gateway's keys cannot be fetched");
                }
            }
        }
        let good = self.known().filter(|known| Instant::now() < known.until + STALE);
        good.map(|known| known.set).ok_or(SignatureError::KeySetUnreachable)
    }

    fn known(&self) -> Option<Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn fetch(&self) -> Result<Known, Unfetched> {
        let Address { host, port, .. } = &self.address;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        let (headers, document) = match &self.tls {
            Some(tls) => {
                let server = ServerName::try_from(host.clone()).map_err(|_| Unfetched::Url)?;
                self.ask(tls.connect(server, stream).await?).await?
            }
            // Without a connector nothing goes out in the clear that should not.
            None if self.address.tls => return Err(Unfetched::Url),
            None => self.ask(stream).await?,
        };
        let set = KeySet::parse(&document, false).map_err(|_| Unfetched::Invalid)?;
        Ok(Known { set: Arc::new(set), until: Instant::now() + lifetime(&headers) })
    }

    async fn ask(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<(HeaderMap, Bytes), Unfetched> {
        let request = Request::get(JWKS_PATH)
            .header(HOST, &self.address.authority)
            .header(ACCEPT_ENCODING, "identity")
            .header(CONNECTION, "close");
        let request = request.body(Empty::<Bytes>::new()).map_err(|_| Unfetched::Url)?;
        let (mut sender, connection) =
            http1::Builder::new().max_buf_size(HEAD_BYTES).handshake(TokioIo::new(stream)).await?;
        let answer = async move {
            let (head, body) = sender.send_request(request).await?.into_parts();
            if head.status != StatusCode::OK {
                return Err(Unfetched::Status(head.status));
            }
            // It fits a usize anywhere.
            let body = Limited::new(body, KEY_SET_BYTES as usize).collect().await.map_err(|_| Unfetched::Body)?;
            Ok((head.headers, body.to_bytes()))
        };
        tokio::pin!(answer);
        // The connection moves only while its caller waits, and ends with its caller.
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            // It ends when it has read the whole response, or broke; the answer tells which.
            _ = connection => answer.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures_util::FutureExt as _;
    use tokio::net::TcpListener;

    use super::*;

    const UNREACHABLE: Result<Arc<KeySet>, SignatureError> = Err(SignatureError::KeySetUnreachable);

    fn keys(address: SocketAddr, refetch: Duration) -> GatewayKeys {
        GatewayKeys::of(&Address::parse(&format!("http://{address}")).unwrap(), refetch)
    }

    fn set() -> Arc<KeySet> {
        let document = br#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"ebVWLo_mVPlAeLES6KmLp5AfhTrmlb7X4OORC60ElmQ"}]}"#;
        Arc::new(KeySet::parse(document, false).unwrap())
    }

    fn know(keys: &GatewayKeys, lifetime: Duration) {
        *keys.known.write().unwrap() = Some(Known { set: set(), until: Instant::now() + lifetime });
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_never_answers_is_not_waited_for_long() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let keys = keys(silent.local_addr().unwrap(), Duration::from_secs(60));
        let begun = Instant::now();
        assert_eq!(keys.holding(|_| true).await, UNREACHABLE);
        assert_eq!(begun.elapsed().as_secs(), FETCH_TIMEOUT.as_secs());
        // Nor asked again at once.
        assert_eq!(keys.holding(|_| true).now_or_never().unwrap(), UNREACHABLE);
    }

    #[tokio::test(start_paused = true)]
    async fn whose_key_is_known_waits_for_nobody() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let keys = keys(silent.local_addr().unwrap(), Duration::ZERO);
        know(&keys, Duration::from_secs(300));
        let mut asking = Box::pin(keys.holding(|_| false));
        assert!((&mut asking).now_or_never().is_none());
        assert_eq!(keys.holding(|_| true).now_or_never().unwrap(), Ok(set()));
        assert_eq!(asking.await, Ok(set()), "the one that is there, whatever it lacks");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_set_serves_for_a_while_when_there_is_no_newer_one() {
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let keys = keys(nobody, Duration::ZERO);
        know(&keys, Duration::from_secs(300));
        tokio::time::advance(Duration::from_secs(300) + STALE / 2).await;
        assert_eq!(keys.holding(|_| true).await, Ok(set()));
        tokio::time::advance(STALE / 2).await;
        assert_eq!(keys.holding(|_| true).await, UNREACHABLE);
    }
}
