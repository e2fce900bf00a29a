//! The client of the gateway's own fetches, before servers that mean it well and servers that do not.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _};
use http::header::{CONTENT_ENCODING, LOCATION};
use http::{HeaderMap, Method};
use rustls::RootCertStore;
use sluice::metrics::Metrics;
use sluice::outbound::{Bounds, Fetch, FetchError, Outbound, Resolve, Resolver};
use sluice::protocol::address::Allowed;
use support::{Origin, eventually};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use url::Url;

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(100);
const BOUNDS: Bounds = Bounds { total: 8, per_host: 8, waiting: 64, lookups: 8, lookups_per_domain: 8 };

fn allowed(entries: &[&str]) -> Allowed {
    Allowed::new(entries.iter().map(|entry| entry.parse().unwrap()).collect())
}

/// Answers from a script, and says how often it was asked.
#[derive(Default)]
struct Names {
    answers: Vec<(&'static str, Vec<&'static str>)>,
    asked: Mutex<Vec<String>>,
}

impl Resolve for Names {
    fn resolve(&self, host: &str) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        self.asked.lock().unwrap().push(host.to_owned());
        let found = self.answers.iter().find(|(name, _)| *name == host);
        let found = found.map(|(_, found)| found.iter().map(|address| address.parse().unwrap()).collect());
        async move { found.ok_or_else(|| io::Error::other("no such name")) }.boxed()
    }
}

fn client(entries: &[&str], names: Arc<Names>, roots: RootCertStore) -> Outbound {
    let metrics = Arc::new(Metrics::new().unwrap());
    Outbound::with(allowed(entries), BOUNDS, metrics, Resolver::Other(names), roots)
}

fn names(answers: &[(&'static str, &[&'static str])]) -> Arc<Names> {
    let answers = answers.iter().map(|(name, addresses)| (*name, addresses.to_vec())).collect();
    Arc::new(Names { answers, asked: Mutex::default() })
}

fn loopback_client() -> Outbound {
    client(&["127.0.0.1"], names(&[]), RootCertStore::empty())
}

fn fetch(url: &str) -> Fetch {
    Fetch::get(Url::parse(url).unwrap(), 1 << 20, LONG)
}

async fn refusal(client: &Outbound, url: &str) -> FetchError {
    let asked = tokio::time::timeout(LONG, client.get(fetch(url))).await.unwrap();
    asked.map(|fetched| panic!("{url} was fetched: {}", fetched.status)).unwrap_err()
}

#[tokio::test]
async fn a_small_body_is_read_whole() {
    let origin = Origin::http(Router::new().route("/keys", get(async || "{}"))).await;
    let fetched = loopback_client().get(fetch(&origin.url("/keys?a=b"))).await.unwrap();
    assert_eq!((fetched.status, fetched.bytes().await.unwrap()), (200, Bytes::from("{}")));
}

#[tokio::test]
async fn a_request_names_its_host_and_takes_no_compression() {
    let (seen, mut requests) = mpsc::channel(1);
    let router = Router::new().fallback(async move |method: Method, uri: http::Uri, headers: HeaderMap| {
        seen.send((method, uri.to_string(), headers)).await.unwrap();
    });
    let origin = Origin::http(router).await;
    let mut asked = fetch(&origin.url("/a%20b/../c?d=e#fragment"));
    asked.method = Method::HEAD;
    asked.headers.insert("artifact-task", "t1".parse().unwrap());
    asked.headers.insert("accept-encoding", "gzip".parse().unwrap());
    loopback_client().get(asked).await.unwrap();
    let (method, uri, headers) = requests.recv().await.unwrap();
    assert_eq!((method, uri.as_str()), (Method::HEAD, "/c?d=e"));
    assert_eq!(headers["host"], origin.address.to_string());
    assert_eq!(headers["accept-encoding"], "identity");
    assert_eq!(headers["artifact-task"], "t1");
    assert!(headers.get("cookie").is_none());
}

#[tokio::test]
async fn private_addresses_are_refused_however_they_are_written() {
    let origin = Origin::http(Router::new().fallback(async || "secret")).await;
    let port = origin.address.port();
    let names = names(&[("rebound.example", &["127.0.0.1"]), ("mixed.example", &["8.8.8.8", "10.0.0.1"])]);
    let client = client(&[], names, RootCertStore::empty());
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "017700000001",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "rebound.example",
        "mixed.example",
        "REBOUND.example",
    ] {
        let error = refusal(&client, &format!("https://{host}:{port}/")).await;
        assert!(matches!(error, FetchError::Forbidden { .. }), "{host}: {error}");
        assert_eq!(error.to_string().lines().count(), 1);
    }
    assert_eq!(origin.accepted(), 0);
}

#[tokio::test]
async fn the_system_s_own_names_are_checked_as_well() {
    let origin = Origin::http(Router::new().fallback(async || "secret")).await;
    let metrics = Arc::new(Metrics::new().unwrap());
    let client = Outbound::new(allowed(&[]), BOUNDS, metrics.clone());
    let error = refusal(&client, &format!("https://localhost:{}/", origin.address.port())).await;
    assert!(matches!(error, FetchError::Forbidden { .. }), "{error}");
    assert_eq!(metrics.fetches.with_label_values(&["forbidden"]).get(), 1);
    let client = Outbound::new(allowed(&["localhost"]), BOUNDS, metrics.clone());
    let fetched = client.get(fetch(&format!("http://localhost:{}/", origin.address.port()))).await.unwrap();
    assert_eq!(fetched.bytes().await.unwrap(), "secret");
    assert_eq!(metrics.fetches.with_label_values(&["answered"]).get(), 1);
}

#[tokio::test]
async fn what_was_checked_is_what_is_connected_to() {
    let origin = Origin::https("files.example", Router::new().fallback(async || "here")).await;
    let names = names(&[("files.example", &["127.0.0.1"])]);
    let client = client(&["files.example"], names.clone(), origin.roots());
    let fetched = client.get(fetch(&format!("https://files.example:{}/", origin.address.port()))).await.unwrap();
    assert_eq!(fetched.bytes().await.unwrap(), "here");
    // A name that answers otherwise the second time gains nothing: it is asked once.
    assert_eq!(*names.asked.lock().unwrap(), ["files.example"]);
}

#[tokio::test]
async fn the_server_has_to_be_who_the_url_says() {
    let origin = Origin::https("files.example", Router::new().fallback(async || "here")).await;
    let names = names(&[("other.example", &["127.0.0.1"])]);
    let port = origin.address.port();
    let trusting = client(&["127.0.0.1"], names.clone(), origin.roots());
    for host in ["other.example", "127.0.0.1"] {
        let error = refusal(&trusting, &format!("https://{host}:{port}/")).await;
        assert!(matches!(error, FetchError::Tls { .. }), "{error}");
    }
    let strict = client(&["127.0.0.1"], names, RootCertStore::empty());
    assert!(matches!(refusal(&strict, &format!("https://other.example:{port}/")).await, FetchError::Tls { .. }));
}

#[tokio::test]
async fn plain_http_is_for_hosts_that_the_operator_named() {
    let client = client(&["10.0.0.0/8"], names(&[("public.example", &["8.8.8.8"])]), RootCertStore::empty());
    for url in ["http://8.8.8.8/", "http://public.example/"] {
        assert!(matches!(refusal(&client, url).await, FetchError::Insecure { .. }), "{url}");
    }
    for url in ["ftp://8.8.8.8/", "file:///etc/passwd", "https://user:pw@8.8.8.8/", "https://user@8.8.8.8/"] {
        assert_eq!(refusal(&client, url).await, FetchError::UrlInvalid, "{url}");
    }
    assert!(matches!(refusal(&client, "https://unknown.example/").await, FetchError::Unresolved { .. }));
}

#[tokio::test]
async fn a_redirect_is_an_answer_like_any_other() {
    let target = Origin::http(Router::new().fallback(async || "secret")).await;
    let there = target.url("/");
    let router = Router::new().fallback(async move || (http::StatusCode::FOUND, [(LOCATION, there.clone())]));
    let origin = Origin::http(router).await;
    let fetched = loopback_client().get(fetch(&origin.url("/"))).await.unwrap();
    assert_eq!((fetched.status, &fetched.headers[LOCATION]), (302, &target.url("/").parse().unwrap()));
    assert_eq!(target.accepted(), 0);
}

#[tokio::test]
async fn too_much_is_refused_named_or_not() {
    let named = Origin::http(Router::new().fallback(async || vec![0; 2 << 20])).await;
    assert_eq!(refusal(&loopback_client(), &named.url("/")).await, FetchError::TooLarge { limit: 1 << 20 });
    let router = Router::new().fallback(async || {
        Body::from_stream(stream::repeat_with(|| Ok::<_, io::Error>(Bytes::from(vec![0; 64 * 1024]))))
    });
    let unnamed = Origin::http(router).await;
    let fetched = loopback_client().get(fetch(&unnamed.url("/"))).await.unwrap();
    assert_eq!(fetched.bytes().await, Err(FetchError::TooLarge { limit: 1 << 20 }));
    let mut fetched = loopback_client().get(fetch(&unnamed.url("/"))).await.unwrap();
    let mut taken = 0;
    let error = loop {
        match fetched.next().await {
            Ok(part) => taken += part.unwrap().len(),
            Err(error) => break error,
        }
    };
    assert_eq!((error, taken <= 1 << 20), (FetchError::TooLarge { limit: 1 << 20 }, true));
}

#[tokio::test]
async fn a_body_is_never_shorter_than_it_says() {
    let origin = Origin::raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc").await;
    let fetched = loopback_client().get(fetch(&origin.url("/"))).await.unwrap();
    assert_eq!(fetched.bytes().await, Err(FetchError::Broken));
    let origin = Origin::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
    let fetched = loopback_client().get(fetch(&origin.url("/"))).await.unwrap();
    assert_eq!(fetched.bytes().await, Err(FetchError::Broken));
    // Without either the end of the connection is the end of the body, and nobody can tell.
    let origin = Origin::raw("HTTP/1.0 200 OK\r\n\r\nabc").await;
    let fetched = loopback_client().get(fetch(&origin.url("/"))).await.unwrap();
    assert_eq!(fetched.bytes().await.unwrap(), "abc");
}

#[tokio::test]
async fn what_is_not_http_or_not_plain_is_refused() {
    for answer in [
        "SSH-2.0-OpenSSH_9.2\r\n".to_owned(),
        String::new(),
        format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)),
        format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: x\r\n".repeat(1000)),
    ] {
        let origin = Origin::raw(answer).await;
        assert_eq!(refusal(&loopback_client(), &origin.url("/")).await, FetchError::Broken);
    }
    let router = Router::new().fallback(async || ([(CONTENT_ENCODING, "gzip")], "bomb"));
    assert_eq!(refusal(&loopback_client(), &Origin::http(router).await.url("/")).await, FetchError::Encoded);
}

#[tokio::test]
async fn an_empty_answer_that_closes_is_an_answer() {
    for answer in
        ["HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"]
    {
        let origin = Origin::raw(answer).await;
        let fetched = loopback_client().get(fetch(&origin.url("/"))).await.unwrap();
        assert_eq!(fetched.bytes().await.unwrap(), "");
    }
}

#[tokio::test]
async fn slow_servers_are_given_up() {
    let never = Router::new().fallback(async || std::future::pending::<()>().await);
    let dripping = Router::new().fallback(async || {
        let drip = stream::iter([Ok::<_, io::Error>(Bytes::from("a"))]).chain(stream::pending());
        Body::from_stream(drip)
    });
    let (never, dripping) = (Origin::http(never).await, Origin::http(dripping).await);
    let client = loopback_client();
    let within = |url: String, timeout| Fetch { timeout, ..fetch(&url) };
    assert_eq!(client.get(within(never.url("/"), SHORT)).await.unwrap_err(), FetchError::TimedOut);
    let fetched = client.get(within(dripping.url("/"), SHORT * 5)).await.unwrap();
    assert_eq!(fetched.bytes().await, Err(FetchError::TimedOut));
    let mut fetched = client.get(within(dripping.url("/"), SHORT * 5)).await.unwrap();
    assert_eq!(fetched.next().await, Ok(Some(Bytes::from("a"))));
    assert_eq!(fetched.next().await, Err(FetchError::TimedOut));
}

#[tokio::test]
async fn a_place_is_held_until_the_body_is_dropped() {
    let origin = Origin::http(Router::new().fallback(async || "abc")).await;
    let client = loopback_client().lane(Bounds { total: 4, per_host: 1, ..Bounds::default() });
    let held = client.get(fetch(&origin.url("/"))).await.unwrap();
    let second = Fetch { timeout: SHORT, ..fetch(&origin.url("/")) };
    assert_eq!(client.get(second.clone()).await.unwrap_err(), FetchError::Busy);
    assert_eq!(origin.accepted(), 1, "nothing is dialled while there is no place");
    drop(held);
    assert_eq!(client.get(Fetch { timeout: LONG, ..second }).await.unwrap().status, 200);
}

#[tokio::test]
async fn dropping_an_answer_closes_its_connection() {
    struct Told(CancellationToken);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
    let closed = CancellationToken::new();
    let told = Arc::new(Mutex::new(Some(Told(closed.clone()))));
    let router = Router::new().fallback(async move || {
        let told = told.lock().unwrap().take();
        Body::from_stream(stream::repeat_with(move || {
            let _ = &told;
            Ok::<_, io::Error>(Bytes::from(vec![0; 64 * 1024]))
        }))
    });
    let origin = Origin::http(router).await;
    let mut fetched = loopback_client().get(fetch(&origin.url("/"))).await.unwrap();
    assert!(fetched.next().await.unwrap().is_some());
    drop(fetched);
    tokio::time::timeout(LONG, closed.cancelled()).await.unwrap();
}

#[tokio::test]
async fn while_nobody_asks_the_sender_waits() {
    let (sent, mut parts) = mpsc::channel(4096);
    let router = Router::new().fallback(async move || {
        let sent = sent.clone();
        Body::from_stream(stream::repeat_with(move || {
            let _ = sent.try_send(());
            Ok::<_, io::Error>(Bytes::from(vec![0; 64 * 1024]))
        }))
    });
    let origin = Origin::http(router).await;
    let big = Fetch { max_bytes: u64::MAX, ..fetch(&origin.url("/")) };
    let mut fetched = loopback_client().get(big).await.unwrap();
    fetched.next().await.unwrap();
    // It fills the socket's buffers, and then stands still.
    let mut count = 0;
    eventually("a sender that waits", async || {
        let before = count;
        tokio::time::sleep(SHORT).await;
        while parts.try_recv().is_ok() {
            count += 1;
        }
        (count == before && count > 0).then_some(())
    })
    .await;
    assert!(count < 1024, "{count} parts of 64 KiB went nowhere");
}
