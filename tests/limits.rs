//! What one address and one reader may ask for, with limits small enough to meet.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use futures_util::future::join_all;
use http::Method;
use sluice::config::Layer;
use support::{Answer, Download, Gateway, SampleSet, SigningAgent, bytes, eventually, set_file};

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
    let token = gateway.agent_token("ada", "ada");
    let begun = std::time::Instant::now();
    let mut answers = join_all((0..100).map(|_| upgrade(&gateway, &token))).await;
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
    assert_eq!(upgrade(&gateway, &token).await.status, 101);
}
