//! A server that the gateway fetches from: any router, over http or https, or whatever bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use base64::Engine as _;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The server. Dropping it ends its connections.
pub struct Origin {
    pub address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    certificate: Option<CertificateDer<'static>>,
    _end: DropGuard,
}

impl Origin {
    /// Over http, on loopback.
    pub async fn http(router: Router) -> Self {
        Self::serve(None, move |stream| serve_http(stream, router.clone())).await
    }

    /// Over https, on loopback, as `name`.
    pub async fn https(name: &str, router: Router) -> Self {
        Self::tls(name, move |stream| serve_http(stream, router.clone())).await
    }

    /// TLS in front of what listens at `behind`, as `name`.
    pub async fn tls_before(name: &str, behind: SocketAddr) -> Self {
        Self::tls(name, move |mut stream| async move {
            if let Ok(mut behind) = TcpStream::connect(behind).await {
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut behind).await;
            }
        })
        .await
    }

    async fn tls<F: Future<Output = ()> + Send + 'static>(
        name: &str,
        each: impl Fn(TlsStream<TcpStream>) -> F + Clone + Send + 'static,
    ) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate.clone()], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self::serve(Some(certificate), move |stream| {
            let (acceptor, each) = (acceptor.clone(), each.clone());
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    each(stream).await;
                }
            }
        })
        .await
    }

    /// Reads the head of a request, answers these bytes, and closes.
    pub async fn raw(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::serve(None, move |mut stream| {
            let answer = answer.clone();
            async move {
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let _ = stream.write_all(&answer).await;
                let _ = stream.shutdown().await;
            }
        })
        .await
    }

    async fn serve<F: Future<Output = ()> + Send + 'static>(
        certificate: Option<CertificateDer<'static>>,
        each: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let end = CancellationToken::new();
        let accepted = Arc::new(AtomicUsize::new(0));
        let (ending, counting) = (end.clone(), accepted.clone());
        spawn(end.clone(), async move {
            while let Ok((stream, _)) = listener.accept().await {
                counting.fetch_add(1, Ordering::SeqCst);
                spawn(ending.clone(), each(stream));
            }
        });
        Self { address, accepted, certificate, _end: end.drop_guard() }
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// What one has to trust to believe this server.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone().unwrap()).unwrap();
        roots
    }

    /// The same as a file's text (RFC 7468).
    pub fn pem(&self) -> String {
        let certificate = base64::engine::general_purpose::STANDARD.encode(self.certificate.as_ref().unwrap());
        format!("-----BEGIN CERTIFICATE-----\n{certificate}\n-----END CERTIFICATE-----\n")
    }

    /// `http://127.0.0.1:port` and `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

#[expect(clippy::disallowed_methods, reason = "tests have no task tracker to wait for")]
fn spawn(end: CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(async move { end.run_until_cancelled(task).await });
}

async fn serve_http(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    router: Router,
) {
    let service = TowerToHyperService::new(router);
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
