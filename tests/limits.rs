//! What one address and one reader may ask for, with limits small enough to meet.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use sluice::config::Layer;
use support::platform::within;
use support::wire::Wire;
use support::{Answer, Download, Gateway, SampleSet, SigningAgent, bytes, eventually, set_file};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::{Bytes, Message};

const SETS: &str = "/v1/chats/c1/sets";
const LIMITED: &str = "sluice_http_requests_limited_total";

async fn gateway(change: impl FnOnce(&mut Layer)) -> Gateway {
    let gateway = Gateway::builder().with(change).start().await;
    gateway.put_chat("c1", &["user:alice", "user:bob"]).await;
    gateway
}

fn limited(gateway: &Gateway, limit: &str) -> f64 {
    gateway.metric(&format!("{LIMITED}{{limit=\"{limit}\"}}"))
}

#[track_caller]
fn assert_refused(answer: &Answer) {
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (429, "rate_limited"));
    let wait: u64 = answer.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
}

/// Asks until that is too often. How many times it was answered: more than a burst, where the machine is slow.
async fn until_refused(gateway: &Gateway, path: &str, token: &str, status: u16) -> usize {
    for answered in 0..200 {
        let answer = gateway.get(path, token).await;
        if answer.status == 429 {
            assert_refused(&answer);
            return answered;
        }
        assert_eq!(answer.status, status);
    }
    panic!("{path} is never refused");
}

#[tokio::test]
async fn a_reader_has_a_rate_and_four_seconds_of_it_at_once() {
    let gateway = gateway(|layer| layer.reader_rate = Some(1)).await;
    let alice = gateway.reader("user:alice");
    assert!(until_refused(&gateway, SETS, &alice, 200).await >= 4);
    // Another token of hers is still her.
    assert_refused(&gateway.get(SETS, &gateway.reader("user:alice")).await);
    assert_eq!(gateway.get(SETS, &gateway.reader("user:bob")).await.status, 200);
    assert_eq!(limited(&gateway, "reader_rate"), 2.0);
    // It comes back by itself.
    eventually("another request", async || (gateway.get(SETS, &alice).await.status == 200).then_some(())).await;
}

#[tokio::test]
async fn an_address_has_a_rate_whoever_asks() {
    // One request has gone into making the chat.
    let gateway = gateway(|layer| layer.address_rate = Some(1)).await;
    assert!(until_refused(&gateway, "/nothing", "", 404).await >= 3);
    assert_refused(&gateway.get(SETS, &gateway.reader("user:alice")).await);
    assert_eq!(limited(&gateway, "address_rate"), 2.0);
}

#[tokio::test]
async fn what_runs_is_counted_until_its_last_byte() {
    let gateway = gateway(|layer| layer.reader_requests = Some(2)).await;
    let set = SampleSet::of([("a.bin", bytes(1, 8 << 20))]);
    gateway.bind_session("turn-1", "c1", "agent:ada").await;
    let agent = gateway.agent("ada").await;
    agent.announce_in("turn-1", &set).await;
    gateway.wait_for_set("c1", &set.identity()).await;
    let (file, alice) = (set_file("c1", &set, "a.bin"), gateway.reader("user:alice"));

    let mut running: Vec<Download> = Vec::new();
    for _ in 0..2 {
        let client = gateway.client().receive_buffer(64 * 1024);
        running.push(client.send(gateway.request(Method::GET, &file, &alice, None)).await);
    }
    assert!(running.iter().all(|download| download.status == 200));
    assert_refused(&gateway.get(SETS, &alice).await);
    assert_eq!(gateway.get(SETS, &gateway.reader("user:bob")).await.status, 200);
    assert_eq!(limited(&gateway, "reader_requests"), 1.0);
    // One reads to the end, one leaves: both places are free again.
    let (body, end) = running.pop().unwrap().rest().await;
    assert!(end.is_ok() && body.len() == 8 << 20);
    drop(running);
    for _ in 0..4 {
        eventually("a place", async || (gateway.get(SETS, &alice).await.status == 200).then_some(())).await;
    }
}

#[tokio::test]
async fn one_address_has_so_many_requests_at_once() {
    let gateway = gateway(|layer| layer.address_requests = Some(1)).await;
    let (alice, bob) = (gateway.reader("user:alice"), gateway.reader("user:bob"));
    let set = SampleSet::of([("a.bin", bytes(1, 8 << 20))]);
    gateway.bind_session("turn-1", "c1", "agent:ada").await;
    let agent = gateway.agent("ada").await;
    agent.announce_in("turn-1", &set).await;
    gateway.wait_for_set("c1", &set.identity()).await;
    // The agent's own connection was let in, and takes no request's place any more.
    let client = gateway.client().receive_buffer(64 * 1024);
    let running = client.send(gateway.request(Method::GET, &set_file("c1", &set, "a.bin"), &alice, None)).await;
    assert_eq!(running.status, 200);
    assert_refused(&gateway.get(SETS, &bob).await);
    assert_eq!(limited(&gateway, "address_requests"), 1.0);
    drop(running);
    eventually("a place", async || (gateway.get(SETS, &bob).await.status == 200).then_some(())).await;
}

#[tokio::test]
async fn guesses_are_refused_and_those_who_know_go_on() {
    let gateway = gateway(|layer| layer.failed_auth_rate = Some(3)).await;
    for _ in 0..3 {
        assert_eq!(gateway.get(SETS, "guess").await.status, 401);
    }
    assert_refused(&gateway.get(SETS, "guess").await);
    assert_refused(&gateway.get("/v1/agents", "guess").await);
    assert_eq!(gateway.get(SETS, "").await.status, 401, "no credential is no guess");
    assert_eq!(gateway.get(SETS, &gateway.reader("user:alice")).await.status, 200);
    assert_eq!(limited(&gateway, "failed_auth"), 2.0);
    // The same holds at the agents' door.
    assert_refused(&upgrade(&gateway, "guess").await.whole().await);
    assert_eq!(upgrade(&gateway, &gateway.agent_token("ada", "ada")).await.status, 101);
}

async fn signed(gateway: &Gateway, agent: &SigningAgent, method: Method, path: &str) -> Answer {
    let mut request = gateway.request(method.clone(), path, "", None);
    for (name, value) in agent.sign(gateway, method.as_str(), path).headers() {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    gateway.client().send(request).await.whole().await
}

#[tokio::test]
async fn what_is_fetched_for_strangers_is_limited_and_not_only_what_they_are_told() {
    let settings = |layer: &mut Layer| {
        layer.failed_auth_rate = Some(2);
        layer.allow_hosts = Some(vec!["127.0.0.1".parse().unwrap()]);
    };
    let gateway = gateway(settings).await;
    let mut strangers = Vec::new();
    for _ in 0..5 {
        strangers.push(SigningAgent::start(&[1]).await);
    }
    for stranger in &strangers[..2] {
        assert_eq!(signed(&gateway, stranger, Method::GET, SETS).await.status, 404, "verified, and no participant");
    }
    for (stranger, path) in strangers[2..].iter().zip([SETS, "/nothing", "/ws"]) {
        let answer = signed(&gateway, stranger, Method::GET, path).await;
        assert!(answer.status == 429 || path != SETS, "{path}: {}", answer.status);
        assert_eq!(stranger.origin.accepted(), 0, "{path}");
    }
    // Whose keys are here already goes on, and so does an agent that is known, whatever others at its address did.
    assert_eq!(signed(&gateway, &strangers[0], Method::GET, SETS).await.status, 404);
    gateway.put_chat("c1", &["user:alice", &strangers[4].principal()]).await;
    assert_eq!(signed(&gateway, &strangers[4], Method::GET, SETS).await.status, 200);
}

#[tokio::test]
async fn the_users_of_a_link_use_up_nothing_of_its_makers() {
    let gateway = gateway(|layer| (layer.reader_rate, layer.links) = (Some(1), Some(true))).await;
    let set = SampleSet::of([("a.bin", bytes(1, 1000))]);
    gateway.bind_session("turn-1", "c1", "agent:ada").await;
    let agent = gateway.agent("ada").await;
    agent.announce_in("turn-1", &set).await;
    gateway.wait_for_set("c1", &set.identity()).await;
    let alice = gateway.reader("user:alice");
    let body = serde_json::json!({"set": set.identity(), "path": "a.bin"});
    let link = gateway.ask(Method::POST, "/v1/chats/c1/links", &alice, Some(body)).await.json();
    let path = link["url"].as_str().unwrap().strip_prefix(&gateway.url).unwrap().to_owned();
    assert!(until_refused(&gateway, &path, "", 200).await >= 4);
    assert_eq!(gateway.get(SETS, &alice).await.status, 200);
}

#[tokio::test]
async fn a_trusted_proxy_says_whose_requests_they_are() {
    let behind = async |gateway: &Gateway, client: &str| {
        let mut request = gateway.request(Method::GET, SETS, "guess", None);
        request.headers_mut().insert("x-forwarded-for", client.parse().unwrap());
        gateway.client().send(request).await.whole().await
    };
    let proxies = |layer: &mut Layer| layer.trusted_proxies = Some(vec!["127.0.0.0/8".parse().unwrap()]);
    let trusting = gateway(|layer| (layer.failed_auth_rate, ()) = (Some(1), proxies(layer))).await;
    assert_eq!(behind(&trusting, "192.0.2.1").await.status, 401);
    assert_refused(&behind(&trusting, "192.0.2.1").await);
    assert_refused(&behind(&trusting, "198.51.100.1, 192.0.2.1").await);
    assert_eq!(behind(&trusting, "192.0.2.2").await.status, 401);

    // Without trust the header is nobody's business.
    let wary = gateway(|layer| layer.failed_auth_rate = Some(1)).await;
    assert_eq!(behind(&wary, "192.0.2.1").await.status, 401);
    assert_refused(&behind(&wary, "192.0.2.2").await);
}

async fn upgrade(gateway: &Gateway, token: &str) -> Download {
    let mut request = gateway.request(Method::GET, "/ws", token, None);
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    gateway.client().send(request).await
}

#[tokio::test]
async fn agents_that_all_come_at_once_are_let_in_steadily() {
    let gateway = gateway(|layer| layer.agent_admission = Some(4)).await;
    let tokens: Vec<_> = (0..101).map(|number| gateway.agent_token(&format!("a{number}"), "a")).collect();
    let begun = std::time::Instant::now();
    let mut answers = join_all(tokens[1..].iter().map(|token| upgrade(&gateway, token))).await;
    let most = 4.0 * (begun.elapsed().as_secs_f64() + 1.0);
    let refused: Vec<_> = answers.extract_if(.., |answer| answer.status != 101).collect();
    // Two seconds' worth may wait, and never more are let in than the time is worth.
    assert!(answers.len() >= 8 && answers.len() as f64 <= most, "{} were let in, of {most}", answers.len());
    assert_eq!(limited(&gateway, "agent_admission"), refused.len() as f64);
    for answer in refused {
        let answer = answer.whole().await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "unavailable"));
        assert!((2..=8).contains(&answer.header("retry-after").parse::<u64>().unwrap()));
    }
    // Whoever comes again later finds a place.
    assert_eq!(upgrade(&gateway, &tokens[0]).await.status, 101);
}

#[tokio::test]
async fn an_agent_has_few_connections_without_a_session() {
    let gateway = gateway(|_| {}).await;
    let token = gateway.agent_token("ada", "ada");
    let mut wires = Vec::new();
    for _ in 0..8 {
        wires.push(Wire::with_token(&gateway, &token).await);
    }
    let refused = upgrade(&gateway, &token).await.whole().await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (503, "unavailable"));
    assert_eq!(limited(&gateway, "agent_unopened"), 1.0);
    let other = gateway.agent_token("bob", "bob");
    assert_eq!(upgrade(&gateway, &other).await.status, 101, "nobody else has fewer");
    // One that has a session is none of them, nor is one that is gone.
    wires[0].create("ada", &token).await;
    wires.push(Wire::with_token(&gateway, &token).await);
    assert_eq!(upgrade(&gateway, &token).await.status, 503);
    wires.pop();
    eventually("a place", async || (upgrade(&gateway, &token).await.status == 101).then_some(())).await;
}

#[tokio::test]
async fn long_messages_of_one_agent_wait_for_each_other() {
    let gateway = gateway(|_| {}).await;
    let token = gateway.agent_token("ada", "ada");
    let mut unfinished = Vec::new();
    for _ in 0..2 {
        let mut wire = Wire::with_token(&gateway, &token).await;
        // A text frame that says to be of 16 MiB, and a part of it.
        let head = [&[0x81, 0x80 | 127][..], &(16u64 << 20).to_be_bytes(), &[0; 4]].concat();
        wire.send_raw(&head).await;
        wire.send_raw(&vec![b' '; 100 * 1024]).await;
        unfinished.push(wire);
    }
    let mut third = Wire::with_token(&gateway, &token).await;
    third.send_message(Message::text(" ".repeat(300 * 1024))).await;
    third.send_message(Message::Ping(Bytes::from_static(b"behind it"))).await;
    let waits = tokio::time::timeout(Duration::from_millis(300), third.next()).await;
    assert!(waits.is_err(), "{waits:?}");
    // Nobody else does.
    let other = gateway.agent_token("bob", "bob");
    let mut bob = Wire::with_token(&gateway, &other).await;
    bob.send_message(Message::text(" ".repeat(300 * 1024))).await;
    bob.settled().await;
    unfinished.pop();
    third.pong(b"behind it").await;
}

/// As many connections as this address may hold, of those that were tried.
async fn held(from: &str, to: SocketAddr, tried: usize) -> (Vec<TcpStream>, usize) {
    let mut held = Vec::new();
    for _ in 0..tried {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
        let mut stream = socket.connect(to).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        // Nothing, where it was closed at once.
        if within(stream.read(&mut [0; 12])).await.is_ok_and(|read| read > 0) {
            held.push(stream);
        }
    }
    let count = held.len();
    (held, count)
}

#[tokio::test]
async fn one_address_does_not_fill_a_listener() {
    let gateway = gateway(|layer| layer.max_connections = Some(64)).await;
    for (to, most, tried) in [(gateway.address(), 16, 20), (gateway.ops_address(), 64, 70)] {
        let (_held, count) = held("127.0.0.2", to, tried).await;
        assert_eq!(count, most);
        assert_eq!(held("127.0.0.3", to, 1).await.1, 1);
        assert_eq!(held("127.0.0.1", to, 20).await.1, 20, "behind loopback there may be many");
    }
    assert_eq!(limited(&gateway, "address_connections"), 10.0);
}
