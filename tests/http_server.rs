//! The listener, by strangers who behave and strangers who do not.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Extension;
use axum::routing::get;
use axum::{Router, http};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluice::http::server::{self, Limits, Listener, Peer, PerAddress};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Long enough that it never ends a test which is right, short enough that one which is wrong ends.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(150);

fn limits() -> Limits {
    Limits { connections: 64, of_addresses: PerAddress::unlimited(), head: LONG, idle: LONG, stall: LONG, grace: LONG }
}

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

#[expect(clippy::disallowed_methods, reason = "a test has no tracker of its own")]
async fn start(router: Router, limits: Limits) -> Running {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), "listen").await.unwrap();
    let address = listener.address();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server::serve(listener, router, limits, stop.clone(), CancellationToken::new()));
    Running { address, stop, serving }
}

async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LONG, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} does not happen"),
    }
}

fn hello() -> Router {
    Router::new().route("/", get(|Extension(Peer(peer)): Extension<Peer>| async move { peer.to_string() }))
}

/// A route whose body is what the test sends, until it drops the sender.
fn fed() -> (Router, mpsc::Sender<Bytes>) {
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let receiver = Arc::new(tokio::sync::Mutex::new(Some(receiver)));
    let route = get(move || async move {
        let receiver = receiver.lock().await.take().unwrap();
        Body::from_stream(stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|bytes| (Ok::<_, Infallible>(bytes), receiver))
        }))
    });
    (Router::new().route("/", route), sender)
}

fn request() -> http::Request<Empty<Bytes>> {
    http::Request::builder().uri("http://sluice.test/").header("host", "sluice.test").body(Empty::new()).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a test has no tracker of its own")]
async fn http1_client(address: SocketAddr) -> http1::SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

#[expect(clippy::disallowed_methods, reason = "a test has no tracker of its own")]
async fn http2_client(address: SocketAddr) -> http2::SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn both_versions_are_spoken_and_the_peer_is_known() {
    let running = start(hello(), limits()).await;
    let mut one = http1_client(running.address).await;
    let mut two = http2_client(running.address).await;
    let answers = [one.send_request(request()).await.unwrap(), two.send_request(request()).await.unwrap()];
    for (answer, version) in answers.into_iter().zip([http::Version::HTTP_11, http::Version::HTTP_2]) {
        assert_eq!((answer.status(), answer.version()), (http::StatusCode::OK, version));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(b"127.0.0.1:"));
    }
}

#[tokio::test]
async fn a_head_that_does_not_come_is_given_up() {
    let running = start(hello(), Limits { head: SHORT, ..limits() }).await;
    for begun in ["", "G", "PRI * HT", "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A reset is as good as an end.
        let _ = within("the end of the connection", stream.read_to_end(&mut answer)).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{begun}");
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let running = start(hello(), limits()).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Large: {}\r\n\r\n", "x".repeat(80 * 1024));
    // The server may stop reading before everything is written.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = [0; 12];
    within("an answer", stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
}

#[tokio::test]
async fn a_request_names_one_host() {
    let running = start(hello(), limits()).await;
    for (hosts, status) in [
        ("Host: a\r\n", 200),
        ("Host: a:80\r\n", 200),
        ("Host: [::1]:80\r\n", 200),
        ("Host:\r\n", 200),
        ("", 400),
        ("Host: a\r\nHost: a\r\n", 400),
        ("Host: a\r\nhost: b\r\n", 400),
        ("Host: a b\r\n", 400),
        ("Host: a/b\r\n", 400),
        ("Host: user@a\r\n", 400),
    ] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(format!("GET / HTTP/1.1\r\n{hosts}\r\n").as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        within("an answer", stream.read_exact(&mut answer)).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"), "{hosts:?}");
    }
    // Before HTTP/1.1 there was none.
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    within("an answer", stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.0 200");
}

#[tokio::test]
async fn a_running_body_finishes_before_the_listener_is_done() {
    for version in [1, 2] {
        let (router, feed) = fed();
        let running = start(router, limits()).await;
        let mut body = if version == 1 {
            http1_client(running.address).await.send_request(request()).await.unwrap().into_body()
        } else {
            http2_client(running.address).await.send_request(request()).await.unwrap().into_body()
        };
        feed.send(Bytes::from_static(b"first ")).await.unwrap();
        body.frame().await.unwrap().unwrap();
        running.stop.cancel();
        within("the listener's end", async { while TcpStream::connect(running.address).await.is_ok() {} }).await;
        assert!(!running.serving.is_finished());
        feed.send(Bytes::from_static(b"second")).await.unwrap();
        drop(feed);
        assert_eq!(within("the body's end", body.collect()).await.unwrap().to_bytes(), "second", "HTTP/{version}");
        within("the server's end", running.serving).await.unwrap();
    }
}

#[tokio::test]
async fn a_body_that_outlasts_the_grace_period_is_visibly_cut() {
    for version in [1, 2] {
        let (router, feed) = fed();
        let running = start(router, Limits { grace: SHORT, ..limits() }).await;
        let mut body = if version == 1 {
            http1_client(running.address).await.send_request(request()).await.unwrap().into_body()
        } else {
            http2_client(running.address).await.send_request(request()).await.unwrap().into_body()
        };
        feed.send(Bytes::from_static(b"first")).await.unwrap();
        body.frame().await.unwrap().unwrap();
        running.stop.cancel();
        assert!(within("the cut", body.collect()).await.is_err(), "HTTP/{version}");
        within("the server's end", running.serving).await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_up_the_end() {
    let running = start(hello(), limits()).await;
    let silent = TcpStream::connect(running.address).await.unwrap();
    let mut idle = http1_client(running.address).await;
    idle.send_request(request()).await.unwrap().into_body().collect().await.unwrap();
    running.stop.cancel();
    within("the server's end", running.serving).await.unwrap();
    drop((silent, idle));
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_a_place() {
    let served = Arc::new(AtomicU64::new(0));
    let counted = served.clone();
    let router =
        Router::new().route("/", get(move || async move { counted.fetch_add(1, Ordering::SeqCst).to_string() }));
    let running = start(router, Limits { connections: 1, ..limits() }).await;
    let mut first = http1_client(running.address).await;
    first.send_request(request()).await.unwrap().into_body().collect().await.unwrap();
    let mut second = http1_client(running.address).await;
    let mut waiting = std::pin::pin!(second.send_request(request()));
    for _ in 0..20 {
        first.ready().await.unwrap();
        let answer = tokio::select! {
            biased;
            _ = waiting.as_mut() => panic!("the second connection is served"),
            answer = first.send_request(request()) => answer.unwrap(),
        };
        answer.into_body().collect().await.unwrap();
    }
    assert_eq!(served.load(Ordering::SeqCst), 21);
    drop(first);
    assert_eq!(within("a place", waiting).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_stranger_who_says_nothing_does_not_keep_a_place() {
    let running = start(hello(), Limits { connections: 1, head: SHORT, ..limits() }).await;
    let _silent = TcpStream::connect(running.address).await.unwrap();
    let mut second = http1_client(running.address).await;
    assert_eq!(within("a place", second.send_request(request())).await.unwrap().status(), 200);
}

/// Tells when the body that holds it is dropped.
struct Dropped(Option<tokio::sync::oneshot::Sender<u64>>, Arc<AtomicU64>);

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            let _ = tell.send(self.1.load(Ordering::SeqCst));
        }
    }
}

#[tokio::test]
async fn a_reader_who_takes_nothing_holds_little_and_is_given_up() {
    const FRAME: usize = 256 * 1024;
    let (tell, told) = tokio::sync::oneshot::channel();
    let tell = Arc::new(std::sync::Mutex::new(Some(tell)));
    let route = get(move || async move {
        let produced = Arc::new(AtomicU64::new(0));
        let guard = Dropped(tell.lock().unwrap().take(), produced.clone());
        Body::from_stream(stream::unfold(guard, |guard| async move {
            guard.1.fetch_add(FRAME as u64, Ordering::SeqCst);
            Some((Ok::<_, Infallible>(Bytes::from(vec![0; FRAME])), guard))
        }))
    });
    let running = start(Router::new().route("/", route), Limits { stall: SHORT, ..limits() }).await;
    let mut stuck = TcpStream::connect(running.address).await.unwrap();
    stuck.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let produced = within("giving up", told).await.unwrap();
    // What the kernel's two buffers take, and not much more.
    assert!(produced <= 16 * 1024 * 1024, "{produced}");
}

fn per_address(exempt: &[&str]) -> (PerAddress, prometheus::IntCounter) {
    let refused = prometheus::IntCounter::new("refused", "refused").unwrap();
    let exempt = exempt.iter().map(|net| net.parse().unwrap()).collect();
    (PerAddress::new((2, exempt), refused.clone()), refused)
}

#[tokio::test]
async fn one_address_holds_so_many_connections() {
    let (of_addresses, refused) = per_address(&["10.0.0.0/8"]);
    let running = start(hello(), Limits { of_addresses, ..limits() }).await;
    let mut first = http1_client(running.address).await;
    let mut second = http2_client(running.address).await;
    for _ in 0..2 {
        first.ready().await.unwrap();
        first.send_request(request()).await.unwrap().into_body().collect().await.unwrap();
    }
    second.send_request(request()).await.unwrap().into_body().collect().await.unwrap();
    for _ in 0..3 {
        let mut third = TcpStream::connect(running.address).await.unwrap();
        // A reset is as good as an end.
        let answered = within("the end of the connection", third.read(&mut [0; 1])).await;
        assert!(matches!(answered, Ok(0) | Err(_)));
    }
    assert_eq!(refused.get(), 3);
    drop(second);
    within("a place", async {
        loop {
            let stream = TcpStream::connect(running.address).await.unwrap();
            let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
            let served = tokio::select! {
                answer = client.send_request(request()) => answer.is_ok(),
                _ = connection => false,
            };
            if served {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn connections_of_proxies_are_not_counted() {
    let (of_addresses, refused) = per_address(&["127.0.0.0/8"]);
    let running = start(hello(), Limits { of_addresses, ..limits() }).await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = http1_client(running.address).await;
        client.send_request(request()).await.unwrap().into_body().collect().await.unwrap();
        clients.push(client);
    }
    assert_eq!(refused.get(), 0);
}

#[tokio::test]
async fn an_http2_connection_on_which_nothing_runs_is_closed() {
    let (router, feed) = fed();
    let running = start(router, Limits { idle: SHORT, ..limits() }).await;
    let mut client = http2_client(running.address).await;
    let mut body = client.send_request(request()).await.unwrap().into_body();
    feed.send(Bytes::from_static(b"first ")).await.unwrap();
    body.frame().await.unwrap().unwrap();
    // As long as something runs it is not idle.
    tokio::time::sleep(SHORT * 4).await;
    feed.send(Bytes::from_static(b"second")).await.unwrap();
    drop(feed);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "second");
    // Nor is one kept on which nothing was ever asked.
    let silent = http2_client(running.address).await;
    for client in [client, silent] {
        let closed = async {
            while !client.is_closed() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("the end of the connection", closed).await;
    }
}

/// Speaks HTTP/2 as far as it has to, and answers nothing.
async fn mute(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    stream.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..]].concat()).await.unwrap();
    stream
}

#[tokio::test]
async fn an_idle_connection_that_answers_nothing_is_closed_as_any() {
    let running = start(hello(), Limits { idle: SHORT, ..limits() }).await;
    let mut stream = mute(running.address).await;
    let mut came = Vec::new();
    // A reset is as good as an end.
    let _ = within("the end of the connection", stream.read_to_end(&mut came)).await;
    assert!(!came.is_empty());
}

#[tokio::test]
async fn where_a_listener_is_full_what_is_idle_makes_way_and_what_runs_does_not() {
    let (router, feed) = fed();
    let router = router.route("/other", get(async || "other"));
    let running = start(router, Limits { connections: 4, ..limits() }).await;
    let mut busy = http2_client(running.address).await;
    let mut body = busy.send_request(request()).await.unwrap().into_body();
    feed.send(Bytes::from_static(b"first ")).await.unwrap();
    body.frame().await.unwrap().unwrap();
    let mute = [mute(running.address).await, mute(running.address).await];
    let idle = http2_client(running.address).await;
    let mut others = Vec::new();
    // Each finds a place, and keeps it.
    for _ in 0..3 {
        let mut other = http1_client(running.address).await;
        let asked = http::Request::get("http://sluice.test/other").header("host", "sluice.test");
        let answer = other.send_request(asked.body(Empty::new()).unwrap());
        assert_eq!(within("a place", answer).await.unwrap().status(), 200);
        others.push(other);
    }
    within("the end of the idle one", async {
        while !idle.is_closed() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    feed.send(Bytes::from_static(b"second")).await.unwrap();
    drop((feed, mute, others));
    assert_eq!(body.collect().await.unwrap().to_bytes(), "second");
}
