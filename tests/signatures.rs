//! Agents that sign (RFC 9421, web-bot-auth) instead of sending a token: on both kinds of connection, and as readers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use axum::routing::get;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use sluice::clock::Clock;
use sluice::config::Layer;
use sluice::identity::{Refusal, Signatures, SignedAgents};
use sluice::metrics::Metrics;
use sluice::outbound::{Bounds, Outbound, Resolve, Resolver};
use sluice::protocol::address::Allowed;
use sluice::protocol::signature::{Request, Rules};
use sluice::store::{Store, StoreOptions};
use support::db::{self, TestDatabase};
use support::signer::{Signing, redirect};
use support::{
    Agent, Answer, Download, Gateway, Origin, SampleSet, SigningAgent, Wire, bytes, eventually, key_set, set_file,
};
use tokio_util::task::TaskTracker;

on_both_databases!(
    the_keys_of_strangers_fill_no_table,
    keys_are_known_for_good_once_their_agent_has_a_name,
    a_nonce_is_spent_for_good,
    a_new_key_is_vouched_for_by_an_old_one,
    a_signed_agent_serves_and_reads
);

/// A gateway that may fetch key sets from loopback.
fn builder() -> support::gateway::GatewayBuilder {
    Gateway::builder().with(|layer| layer.allow_hosts = Some(vec!["127.0.0.1".parse().unwrap()]))
}

async fn open(gateway: &Gateway, query: &str, headers: &[(&'static str, String)]) -> Wire {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Wire::open(gateway, query, &headers).await
}

async fn signed(gateway: &Gateway, agent: &SigningAgent) -> Wire {
    open(gateway, "", &agent.sign(gateway, "GET", "/ws").headers()).await
}

/// `session.create` as the SDK sends it when it signs: without a token.
fn create(name: &str) -> Value {
    json!({"type": "session.create", "event_id": "e-create", "session": {"agent": name}})
}

/// Why a connection with these headers gets no session.
async fn refusal(gateway: &Gateway, query: &str, headers: &[(&'static str, String)]) -> String {
    let mut wire = open(gateway, query, headers).await;
    if query.contains("data") {
        wire.send(json!({"type": "data.hello", "agent": "mini"})).await;
    } else {
        wire.send(create("mini")).await;
    }
    let (close, frames) = wire.closed().await;
    assert_eq!(close, 4001, "{frames:?}");
    let error = &frames[0]["error"];
    assert_eq!(error["code"], "unauthorized", "{error}");
    let message = error["message"].as_str().unwrap();
    message.split(':').next().unwrap().to_owned()
}

async fn ask(gateway: &Gateway, signing: &Signing) -> Answer {
    let body = signing.body.clone().map(|body| serde_json::from_slice(&body).unwrap());
    let method: Method = signing.method.parse().unwrap();
    send(gateway, method, &signing.target, &signing.headers(), body).await
}

async fn send(
    gateway: &Gateway,
    method: Method,
    path: &str,
    headers: &[(&'static str, String)],
    body: Option<Value>,
) -> Answer {
    let mut request = gateway.request(method, path, "", body);
    for (name, value) in headers {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    gateway.client().send(request).await.whole().await
}

/// The code at the front of a refusal's message.
fn code(answer: &Answer) -> String {
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (401, "unauthorized"));
    assert_eq!(answer.header("www-authenticate"), "Bearer");
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    message.split(':').next().unwrap().to_owned()
}

async fn a_signed_agent_serves_and_reads(database: &TestDatabase) {
    let gateway = builder().on(database).start().await;
    let agent = SigningAgent::start(&[1]).await;
    let mut control = signed(&gateway, &agent).await;
    control.send(create("mini")).await;
    let created = control.frame("session.created").await;
    assert_eq!((&created["agent"], &created["session"]["agent_id"]), (&json!("mini"), &json!(agent.url)));
    let mut data = open(&gateway, "conn=data", &agent.sign(&gateway, "GET", "/ws?conn=data").headers()).await;
    data.send(json!({"type": "data.hello", "event_id": "e-hello", "agent": "mini"})).await;
    data.frame("data.ready").await;

    // Its announcements are its principal's.
    gateway.put_chat("c", &["user:alice", &agent.principal()]).await;
    gateway.bind_session("turn", "c", &agent.principal()).await;
    let set = SampleSet::of([("a.bin", bytes(1, 1000))]);
    let frame = json!({
        "type": "artifact.manifest", "event_id": "e", "sha256": set.identity(), "size": set.canonical().len(),
        "locations": [{"kind": "relay", "agent": "mini"}], "manifest": set.manifest, "session_id": "turn",
    });
    control.send(frame).await;
    gateway.wait_for_set("c", &set.identity()).await;

    // It reads what its chats allow, and nothing else.
    let sets = agent.sign(&gateway, "GET", "/v1/chats/c/sets");
    let listed = ask(&gateway, &sets).await;
    assert_eq!(listed.json()["sets"][0]["sha256"], set.identity());
    assert_eq!(
        code(&send(&gateway, Method::GET, "/v1/chats/c/sets", &sets_twice(&gateway, &sets).await, None).await),
        "signature_replayed"
    );
    gateway.put_chat("other", &["user:alice"]).await;
    assert_eq!(ask(&gateway, &agent.sign(&gateway, "GET", "/v1/chats/other/sets")).await.status, 404);
    let path = set_file("c", &set, "a.bin");
    let head = ask(&gateway, &agent.sign(&gateway, "HEAD", &path)).await;
    assert_eq!((head.status.as_u16(), head.header("content-length")), (200, "1000"));
    for path in [format!("/artifacts/blobs/sha256:{}", set.identity()), format!("/api/blob/cas/{}", set.identity())] {
        assert_eq!(ask(&gateway, &agent.sign(&gateway, "GET", &path)).await.body, set.canonical());
    }
    assert_eq!(gateway.metric("sluice_signatures_total{outcome=\"signature_replayed\"}"), 1.0);
    assert!(gateway.metric("sluice_signatures_total{outcome=\"verified\"}") >= 6.0);
}

/// Headers that were used already.
async fn sets_twice(gateway: &Gateway, signing: &Signing) -> Vec<(&'static str, String)> {
    let headers = signing.headers();
    let first = send(gateway, Method::GET, &signing.target, &headers, None).await;
    assert_eq!(first.status, 200);
    headers
}

#[tokio::test]
async fn a_signature_is_read_over_http2_too() {
    let gateway = builder().start().await;
    let agent = SigningAgent::start(&[1]).await;
    gateway.put_chat("c", &[&agent.principal()]).await;
    let signing = agent.sign(&gateway, "GET", "/v1/chats/c/sets?limit=5");
    let mut request = gateway.request(Method::GET, &signing.target, "", None);
    for (name, value) in signing.headers() {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    assert_eq!(gateway.client().http2().send(request).await.status, 200);
}

async fn a_nonce_is_spent_for_good(database: &TestDatabase) {
    let mut gateway = builder().on(database).start().await;
    let agent = SigningAgent::start(&[1]).await;
    let (control, data) =
        (agent.sign(&gateway, "GET", "/ws").headers(), agent.sign(&gateway, "GET", "/ws?conn=data").headers());
    for (query, headers) in [("", &control), ("conn=data", &data)] {
        let mut wire = open(&gateway, query, headers).await;
        assert!(wire.settled().await.is_empty());
        assert_eq!(refusal(&gateway, query, headers).await, "signature_replayed", "{query}");
    }
    assert_eq!(refusal(&gateway, "conn=data", &control).await, "signature_invalid", "of the other connection");
    gateway.restart().await;
    assert_eq!(refusal(&gateway, "", &control).await, "signature_replayed", "after a restart");
    if database.is_postgres() {
        let other = builder()
            .on(database)
            .with(|layer| layer.accept_authority = Some(vec![gateway.address().to_string().parse().unwrap()]))
            .start()
            .await;
        let mut control = control;
        control.push(("host", gateway.address().to_string()));
        assert_eq!(refusal(&other, "", &control).await, "signature_replayed", "on another node");
    }
}

async fn a_new_key_is_vouched_for_by_an_old_one(database: &TestDatabase) {
    let gateway = builder().on(database).start().await;
    let mut agent = SigningAgent::start(&[1, 2, 3]).await;
    gateway.put_chat("c", &[&agent.principal()]).await;
    let outcome = async |agent: &SigningAgent| {
        let answer = ask(&gateway, &agent.sign(&gateway, "GET", "/v1/chats/c/sets")).await;
        if answer.status == 200 { "ok".to_owned() } else { code(&answer) }
    };
    for (seeds, expected) in [
        (&[1][..], "ok"),
        (&[2], "signature_key_not_continued"),
        (&[2, 3], "signature_key_not_continued"),
        (&[2, 1], "ok"),
        (&[2], "ok"),
        (&[1], "ok"),
        (&[3], "signature_key_not_continued"),
    ] {
        agent.seeds = seeds.to_vec();
        assert_eq!(outcome(&agent).await, expected, "{seeds:?}");
    }
    // An operator helps an agent that lost its keys, once it has a name to call it by.
    assert_eq!(gateway.ask(Method::DELETE, "/v1/agents/mini/keys", &gateway.operator(), None).await.status, 404);
    agent.seeds = vec![1];
    let mut wire = signed(&gateway, &agent).await;
    wire.send(create("mini")).await;
    wire.frame("session.created").await;
    assert_eq!(gateway.ask(Method::DELETE, "/v1/agents/mini/keys", "", None).await.status, 401);
    assert_eq!(gateway.ask(Method::DELETE, "/v1/agents/mini/keys", &gateway.operator(), None).await.status, 204);
    agent.seeds = vec![3];
    assert_eq!(outcome(&agent).await, "ok");
    agent.seeds = vec![1];
    assert_eq!(outcome(&agent).await, "signature_key_not_continued");
    // One that only reads has no name, but a principal.
    let principal = agent.principal().replace('/', "%2F").replace(':', "%3A");
    let path = format!("/v1/agents/{principal}/keys");
    assert_eq!(gateway.ask(Method::DELETE, &path, "", None).await.status, 401);
    assert_eq!(gateway.ask(Method::DELETE, &path, &gateway.operator(), None).await.status, 204);
    assert_eq!(gateway.ask(Method::DELETE, &path, &gateway.operator(), None).await.status, 404);
    assert_eq!(outcome(&agent).await, "ok");
}

#[tokio::test]
async fn continuity_can_be_switched_off() {
    let gateway = builder().with(|layer| layer.key_continuity = Some(false)).start().await;
    let mut agent = SigningAgent::start(&[1, 2]).await;
    gateway.put_chat("c", &[&agent.principal()]).await;
    for seed in [1, 2] {
        agent.seeds = vec![seed];
        assert_eq!(ask(&gateway, &agent.sign(&gateway, "GET", "/v1/chats/c/sets")).await.status, 200);
    }
}

#[tokio::test]
async fn a_signature_opens_sessions_of_its_own_agent_only() {
    let gateway = builder().start().await;
    let agent = SigningAgent::start(&[1]).await;
    let mut wire = signed(&gateway, &agent).await;
    wire.send(create("mini")).await;
    wire.frame("session.created").await;
    wire.send(create("other")).await;
    let error = wire.frame("session.error").await;
    assert_eq!((&error["error"]["code"], &error["agent"]), (&json!("forbidden"), &json!("other")));
    // With a token of its own the other agent is welcome on the same socket.
    let session = json!({"agent": "other", "token": gateway.agent_token("other-id", "other")});
    wire.send(json!({"type": "session.create", "session": session})).await;
    assert_eq!(wire.frame("session.created").await["session"]["agent_id"], "other-id");
    // The name is the agent's from now on, whichever connection it comes by.
    let mut again = signed(&gateway, &agent).await;
    again.send(create("third")).await;
    let (close, frames) = again.closed().await;
    assert_eq!((close, &frames[0]["error"]["code"]), (4001, &json!("forbidden")));
    let taken = Agent::builder(&gateway.url, &gateway.agent_token("thief", "mini"), "mini").try_connect().await;
    assert!(taken.is_err(), "a name that a signed agent holds is nobody else's");
}

#[tokio::test]
async fn a_signature_that_proves_nothing_is_told_why() {
    let gateway = builder().start().await;
    let agent = SigningAgent::start(&[1]).await;
    let good = agent.sign(&gateway, "GET", "/ws");
    let cases = [
        ("signature_expired", Signing { created: good.created - 600, expires: good.created - 540, ..good.clone() }),
        ("signature_expired", Signing { created: good.created + 120, expires: good.created + 180, ..good.clone() }),
        ("signature_params_invalid", Signing { expires: good.created + 7200, ..good.clone() }),
        ("signature_invalid", Signing { target: "/ws?conn=data".to_owned(), ..good.clone() }),
        ("signature_invalid", Signing { method: "POST".to_owned(), ..good.clone() }),
        ("signature_key_unknown", Signing { seeds: vec![9], ..good.clone() }),
        ("signature_key_unknown", Signing { seeds: vec![1, 9], ..good.clone() }),
        ("signature_malformed", Signing { seeds: vec![1, 1, 1], ..good.clone() }),
        ("signature_agent_invalid", Signing { source: format!("{}/other", agent.url), ..good.clone() }),
        ("key_set_unreachable", Signing { source: format!("{}/x/.well-known/jwks.json", agent.url), ..good.clone() }),
    ];
    for (expected, signing) in cases {
        assert_eq!(refusal(&gateway, "", &signing.headers()).await, expected, "{signing:?}");
        let path = "/v1/chats/c/sets";
        let reading = Signing { target: signing.target.replace("/ws", path), ..signing.clone() };
        assert_eq!(code(&send(&gateway, Method::GET, path, &reading.headers(), None).await), expected, "{signing:?}");
    }
    let mut elsewhere = good.headers();
    elsewhere.push(("host", "other.example".to_owned()));
    assert_eq!(refusal(&gateway, "", &elsewhere).await, "signature_authority_mismatch");
    let only_agent: Vec<_> = good.headers().into_iter().filter(|(name, _)| *name == "signature-agent").collect();
    assert_eq!(refusal(&gateway, "", &only_agent).await, "signature_malformed");
}

#[tokio::test]
async fn authorities_are_those_that_are_named() {
    let gateway =
        builder().with(|layer| layer.accept_authority = Some(vec!["Files.Example:443".parse().unwrap()])).start().await;
    let agent = SigningAgent::start(&[1]).await;
    assert_eq!(
        refusal(&gateway, "", &agent.sign(&gateway, "GET", "/ws").headers()).await,
        "signature_authority_mismatch"
    );
    let named = Signing { authority: "files.example".to_owned(), ..agent.sign(&gateway, "GET", "/ws") };
    let mut headers = named.headers();
    headers.push(("host", "files.example".to_owned()));
    let mut wire = open(&gateway, "", &headers).await;
    wire.send(create("mini")).await;
    wire.frame("session.created").await;
}

#[tokio::test]
async fn a_token_goes_before_a_signature() {
    let gateway = builder().start().await;
    let agent = SigningAgent::start(&[9]).await;
    gateway.put_chat("c", &["user:alice"]).await;
    let mut headers = agent.sign(&gateway, "GET", "/other").headers();
    headers.push(("authorization", format!("Bearer {}", gateway.reader("user:alice"))));
    assert_eq!(send(&gateway, Method::GET, "/v1/chats/c/sets", &headers, None).await.status, 200);
    assert_eq!(agent.origin.accepted(), 0);
}

#[tokio::test]
async fn a_body_is_covered_and_checked() {
    let gateway = builder().start().await;
    let agent = SigningAgent::start(&[1]).await;
    let body = json!({"session_id": "s", "chat": "c", "agent": "agent:x"});
    let good = Signing { body: Some(body.to_string().into_bytes()), ..agent.sign(&gateway, "POST", "/v1/sessions") };
    // An agent is no operator; but who it is was proven, or it would be 401.
    assert_eq!(ask(&gateway, &good).await.status, 403);
    let other = Some(json!({"session_id": "s", "chat": "other", "agent": "agent:x"}));
    let changed = send(&gateway, Method::POST, "/v1/sessions", &good.headers(), other).await;
    assert_eq!(code(&changed), "content_digest_mismatch");
    let uncovered = agent.sign(&gateway, "POST", "/v1/sessions").headers();
    let bare = send(&gateway, Method::POST, "/v1/sessions", &uncovered, Some(body)).await;
    assert_eq!(code(&bare), "signature_coverage_insufficient");
    let large = json!("x".repeat(4 << 20));
    let large = Signing { body: Some(large.to_string().into_bytes()), ..good };
    assert_eq!(code(&ask(&gateway, &large).await), "signature_body_too_large");
}

/// The head of the answer to an upgrade with these headers.
async fn upgrade(gateway: &Gateway, headers: &[(&'static str, String)]) -> Download {
    let mut request = gateway.request(Method::GET, "/ws", "", None);
    let handshake = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let signed = headers.iter().map(|(name, value)| (*name, value.as_str()));
    for (name, value) in handshake.into_iter().chain(signed) {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    gateway.client().send(request).await
}

#[tokio::test]
async fn whoever_is_sent_away_may_come_again_with_the_same_signature() {
    let limits = |layer: &mut Layer| (layer.agent_admission, layer.reader_rate) = (Some(1), Some(1));
    let gateway = builder().with(limits).start().await;
    let agent = SigningAgent::start(&[1]).await;
    gateway.put_chat("c", &[&agent.principal()]).await;
    let body = json!({"session_id": "s", "chat": "c", "agent": "agent:x"}).to_string().into_bytes();

    let upgrades: Vec<_> = (0..6).map(|_| agent.sign(&gateway, "GET", "/ws").headers()).collect();
    let answers = join_all(upgrades.iter().map(|headers| upgrade(&gateway, headers))).await;
    let refused = answers.iter().position(|answer| answer.status == 503).expect("too many at once");
    eventually("a place", async || (upgrade(&gateway, &upgrades[refused]).await.status == 101).then_some(())).await;

    for (method, target, body, status) in
        [("GET", "/v1/chats/c/sets", None, 200), ("POST", "/v1/sessions", Some(body), 403)]
    {
        let signed: Vec<_> =
            (0..8).map(|_| Signing { body: body.clone(), ..agent.sign(&gateway, method, target) }).collect();
        let requests: Vec<_> = signed.iter().map(|signing| (signing, signing.headers())).collect();
        let send = |at: usize| {
            let (signing, headers) = &requests[at];
            let body = signing.body.as_ref().map(|body| serde_json::from_slice(body).unwrap());
            send(&gateway, method.parse().unwrap(), target, headers, body)
        };
        let answers = join_all((0..8).map(&send)).await;
        let refused = answers.iter().position(|answer| answer.status == 429).expect("too many at once");
        eventually("an answer", async || (send(refused).await.status == status).then_some(())).await;
    }
    assert_eq!(gateway.metric("sluice_signatures_total{outcome=\"signature_replayed\"}"), 0.0);
}

#[tokio::test]
async fn a_key_set_is_fetched_once_for_all_who_wait_for_it() {
    let gateway = builder().start().await;
    let agent = SigningAgent::start(&[1]).await;
    let targets: Vec<_> = (0..20).map(|_| agent.sign(&gateway, "GET", "/v1/chats/c/sets")).collect();
    let answers = join_all(targets.iter().map(|signing| ask(&gateway, signing))).await;
    assert!(answers.iter().all(|answer| answer.status == 404), "verified, and no participant");
    assert_eq!(agent.origin.accepted(), 1);
}

#[tokio::test]
async fn a_key_that_is_new_in_the_set_is_found_without_a_restart() {
    let gateway = builder().start().await;
    let mut agent = SigningAgent::start(&[1]).await;
    gateway.put_chat("c", &[&agent.principal()]).await;
    assert_eq!(ask(&gateway, &agent.sign(&gateway, "GET", "/v1/chats/c/sets")).await.status, 200);
    agent.rotate(&[1, 2], &[1, 2]);
    // The set was fetched just now, so it is not fetched again for every signature that names an unknown key.
    for _ in 0..5 {
        let answer = ask(&gateway, &agent.sign(&gateway, "GET", "/v1/chats/c/sets")).await;
        assert_eq!(code(&answer), "signature_key_unknown");
    }
    assert_eq!(agent.origin.accepted(), 1);
    eventually("the new key", async || {
        let answer = ask(&gateway, &agent.sign(&gateway, "GET", "/v1/chats/c/sets")).await;
        (answer.status == 200).then_some(())
    })
    .await;
    assert_eq!(agent.origin.accepted(), 2);
}

#[tokio::test]
async fn key_sets_that_are_none() {
    let gateway = builder().start().await;
    let elsewhere = SigningAgent::start(&[1]).await;
    let to = format!("{}/.well-known/jwks.json", elsewhere.url);
    let cases = [
        ("key_set_unreachable", get(async move || redirect(&to))),
        ("key_set_unreachable", get(async || (http::StatusCode::NOT_FOUND, key_set(&[1]).to_string()))),
        ("key_set_unreachable", get(async || ([("content-encoding", "gzip")], key_set(&[1]).to_string()))),
        ("key_set_invalid", get(async || format!("{}{}", key_set(&[1]), " ".repeat(64 * 1024)))),
        ("key_set_invalid", get(async || "<html>")),
        ("key_set_invalid", get(async || json!({"keys": []}).to_string())),
        // Nothing comes, which is noticed after some seconds.
        ("key_set_unreachable", get(async || std::future::pending::<String>().await)),
    ];
    let trials = cases.map(|(expected, route)| {
        let gateway = &gateway;
        async move {
            let agent = SigningAgent::serving(&[1], route).await;
            for _ in 0..3 {
                let answer = ask(gateway, &agent.sign(gateway, "GET", "/v1/chats/c/sets")).await;
                assert_eq!(code(&answer), expected);
            }
            assert_eq!(agent.origin.accepted(), 1, "a failure is remembered");
        }
    });
    join_all(trials).await;
    assert_eq!(elsewhere.origin.accepted(), 0, "no redirect is followed");
}

#[tokio::test]
async fn private_addresses_are_not_asked_for_keys() {
    let gateway = Gateway::start().await;
    let agent = SigningAgent::start(&[1]).await;
    let good = agent.sign(&gateway, "GET", "/ws");
    assert_eq!(refusal(&gateway, "", &good.headers()).await, "signature_agent_invalid", "plain http");
    for host in ["127.0.0.1", "localhost", "[::1]", "2130706433", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254"] {
        let source = format!("https://{host}:{}/agents/mini/.well-known/jwks.json", agent.origin.address.port());
        let signing = Signing { source, ..good.clone() };
        assert_eq!(refusal(&gateway, "", &signing.headers()).await, "key_set_unreachable", "{host}");
    }
    assert_eq!(agent.origin.accepted(), 0);
}

/// One name that has a public address and a private one, whichever is asked for first.
struct Rebinding;

impl Resolve for Rebinding {
    fn resolve(&self, _: &str) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        async { Ok(vec!["93.184.215.14".parse().unwrap(), "127.0.0.1".parse().unwrap()]) }.boxed()
    }
}

#[tokio::test]
async fn a_name_that_leads_inside_as_well_is_not_asked_for_keys() {
    let origin = Origin::https("agent.example", axum::Router::new()).await;
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", dir.path().join("db").display());
    let store = Store::open(&store, StoreOptions::default()).await.unwrap();
    let metrics = Arc::new(Metrics::new().unwrap());
    let bounds = Bounds { total: 4, per_host: 4, ..Bounds::default() };
    let resolver = Resolver::Other(Arc::new(Rebinding));
    let outbound = Outbound::with(Allowed::default(), bounds, metrics.clone(), resolver, origin.roots());
    let rules = Rules { authorities: ["gateway.example".to_owned()].into(), scheme: "https", plain_http: false };
    let signatures = Signatures::new(
        rules,
        (SignedAgents::Any, true),
        &outbound,
        (store, Clock::system(), metrics),
        TaskTracker::new(),
    );

    let gateway = Gateway::start().await;
    let agent = SigningAgent::start(&[1]).await;
    let signing = Signing {
        source: format!("https://agent.example:{}/.well-known/jwks.json", origin.address.port()),
        authority: "gateway.example".to_owned(),
        ..agent.sign(&gateway, "GET", "/ws")
    };
    let mut headers = HeaderMap::new();
    for (name, value) in signing.headers() {
        headers.insert(name, HeaderValue::from_str(&value).unwrap());
    }
    let request =
        Request { method: "GET", authority: Some("gateway.example"), target: "/ws", headers: &headers, body: None };
    let refused = signatures.prove(request, || Ok(())).await.unwrap_err();
    assert!(matches!(refused, Refusal::Signature(error) if error.code() == "key_set_unreachable"), "{refused}");
    assert_eq!(origin.accepted(), 0);
}

#[tokio::test]
async fn the_series_exist_from_the_start() {
    let gateway = Gateway::start().await;
    for outcome in ["verified", "unavailable", "signature_replayed", "key_set_unreachable"] {
        assert_eq!(gateway.metric(&format!("sluice_signatures_total{{outcome=\"{outcome}\"}}")), 0.0);
    }
}

/// Whether an operator finds keys to forget.
async fn has_keys(gateway: &Gateway, agent: &SigningAgent) -> bool {
    let principal =
        percent_encoding::utf8_percent_encode(&agent.principal(), percent_encoding::NON_ALPHANUMERIC).to_string();
    let path = format!("/v1/agents/{principal}/keys");
    let answer = gateway.ask(Method::DELETE, &path, &gateway.operator(), None).await;
    assert!([204, 404].contains(&answer.status.as_u16()), "{}", answer.status);
    answer.status == 204
}

async fn the_keys_of_strangers_fill_no_table(database: &TestDatabase) {
    let gateway = builder().on(database).start().await;
    let mut agent = SigningAgent::start(&[1, 2]).await;
    let outcome = async |agent: &SigningAgent| ask(&gateway, &agent.sign(&gateway, "GET", "/v1/chats/c/sets")).await;
    agent.seeds = vec![1];
    assert_eq!(outcome(&agent).await.status, 404, "verified, and no participant");
    agent.seeds = vec![2];
    assert_eq!(code(&outcome(&agent).await), "signature_key_not_continued", "it is known as long as it comes");
    // It becomes one that matters, and the keys that it came with stay its own.
    gateway.put_chat("c", &[&agent.principal()]).await;
    assert_eq!(code(&outcome(&agent).await), "signature_key_not_continued");
    agent.seeds = vec![1];
    assert_eq!(outcome(&agent).await.status, 200);
    assert!(has_keys(&gateway, &agent).await);
    let stranger = SigningAgent::start(&[1]).await;
    assert_eq!(outcome(&stranger).await.status, 404);
    assert!(!has_keys(&gateway, &stranger).await);
}

async fn keys_are_known_for_good_once_their_agent_has_a_name(database: &TestDatabase) {
    let mut gateway = builder().on(database).start().await;
    let mut agent = SigningAgent::start(&[1, 2]).await;
    agent.seeds = vec![1];
    let mut wire = signed(&gateway, &agent).await;
    wire.send(create("mini")).await;
    wire.frame("session.created").await;
    drop(wire);
    gateway.restart().await;
    agent.seeds = vec![2];
    assert_eq!(
        refusal(&gateway, "", &agent.sign(&gateway, "GET", "/ws").headers()).await,
        "signature_key_not_continued"
    );
}

#[tokio::test]
async fn the_operator_says_who_may_sign() {
    let with = async |taken: SignedAgents| builder().with(|layer| layer.signed_agents = Some(taken)).start().await;
    let (none, known) = (with(SignedAgents::None).await, with(SignedAgents::Known).await);
    let agent = SigningAgent::start(&[1]).await;
    for gateway in [&none, &known] {
        let answer = ask(gateway, &agent.sign(gateway, "GET", "/v1/chats/c/sets")).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (401, "unauthorized"));
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("--signed-agents"));
        let reason = refusal(gateway, "", &agent.sign(gateway, "GET", "/ws").headers()).await;
        assert!(reason.contains("this gateway takes no signature"), "{reason}");
        gateway.put_chat("c", &[&agent.principal()]).await;
    }
    assert_eq!(agent.origin.accepted(), 0, "nothing is fetched for those who may not sign");
    assert_eq!(ask(&none, &agent.sign(&none, "GET", "/v1/chats/c/sets")).await.status, 401);
    assert_eq!(ask(&known, &agent.sign(&known, "GET", "/v1/chats/c/sets")).await.status, 200);
    assert_eq!(known.metric("sluice_signatures_total{outcome=\"not_taken\"}"), 2.0);
}

#[tokio::test]
async fn strangers_keep_no_known_agent_out_and_are_not_held_against_honest_ones() {
    let gateway = builder().with(|layer| layer.failed_auth_rate = Some(0)).start().await;
    let stuck: Vec<SigningAgent> =
        join_all((0..40).map(|_| SigningAgent::serving(&[1], get(async || std::future::pending::<String>().await))))
            .await;
    let (known, honest) = (SigningAgent::start(&[1]).await, SigningAgent::start(&[1]).await);
    gateway.put_chat("c", &[&known.principal()]).await;
    let signings: Vec<_> = stuck.iter().map(|agent| agent.sign(&gateway, "GET", "/v1/chats/c/sets")).collect();
    let flood = join_all(signings.iter().map(|signing| ask(&gateway, signing)));
    let meanwhile = async {
        eventually("a flood", async || stuck.iter().any(|agent| agent.origin.accepted() > 0).then_some(())).await;
        let answer = ask(&gateway, &known.sign(&gateway, "GET", "/v1/chats/c/sets")).await;
        assert_eq!(answer.status, 200);
        let begun = std::time::Instant::now();
        let answer = ask(&gateway, &honest.sign(&gateway, "GET", "/v1/chats/c/sets")).await;
        assert!([404, 503].contains(&answer.status.as_u16()), "{}", answer.status);
        begun.elapsed()
    };
    let (answers, _) = futures_util::future::join(flood, meanwhile).await;
    assert!(answers.iter().any(|answer| answer.status == 503), "most are told at once that there is no place");
    // Nothing is remembered against the one that found no place.
    eventually("a place", async || {
        let answer = ask(&gateway, &honest.sign(&gateway, "GET", "/v1/chats/c/sets")).await;
        (answer.status == 404).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_signature_that_expired_while_its_request_waited_is_worth_nothing() {
    let clock = Clock::fixed(1_790_000_000_000);
    let gateway = builder().clock(clock.clone()).start().await;
    let agent = SigningAgent::start(&[1]).await;
    let now = 1_790_000_000;
    let signing = Signing { created: now, expires: now + 60, ..agent.sign(&gateway, "GET", "/ws") };
    let mut headers = HeaderMap::new();
    for (name, value) in signing.headers() {
        headers.insert(name, HeaderValue::from_str(&value).unwrap());
    }
    let authority = gateway.address().to_string();
    let request =
        || Request { method: "GET", authority: Some(&authority), target: "/ws", headers: &headers, body: None };
    let signatures = &gateway.state().signatures;
    let prove = async || signatures.prove(request(), || Ok(())).await.unwrap();
    let (first, second, third) = (prove().await, prove().await, prove().await);
    signatures.accept(first, &[]).await.unwrap();
    let code = async |proof| match signatures.accept(proof, &[]).await.unwrap_err() {
        Refusal::Signature(error) => error.code(),
        other => panic!("{other}"),
    };
    // To the end of its time with the leeway it is remembered; from then on it is no good.
    clock.set((now + 120) * 1000);
    assert_eq!(code(second).await, "signature_replayed");
    clock.set((now + 121) * 1000);
    gateway.state().store.sweep_nonces((now + 121) * 1000, 100).await.unwrap();
    assert_eq!(code(third).await, "signature_expired");
}

#[tokio::test]
async fn a_set_that_cannot_be_renewed_goes_on_serving() {
    let gateway = builder().with(|layer| layer.failed_auth_rate = Some(0)).start().await;
    let mut agent = SigningAgent::start(&[1]).await;
    gateway.put_chat("c", &[&agent.principal()]).await;
    let outcome = async |agent: &SigningAgent| ask(&gateway, &agent.sign(&gateway, "GET", "/v1/chats/c/sets")).await;
    assert_eq!(outcome(&agent).await.status, 200);
    // Whoever names a key that is not in the set has it fetched again, which fails from now on.
    agent.spoil();
    agent.seeds = vec![2];
    eventually("another fetch", async || {
        assert_eq!(code(&outcome(&agent).await), "signature_key_unknown");
        (agent.origin.accepted() >= 2).then_some(())
    })
    .await;
    agent.seeds = vec![1];
    assert_eq!(outcome(&agent).await.status, 200);
}

#[tokio::test]
async fn a_signed_upgrade_is_what_its_signature_covers() {
    let gateway = builder().start().await;
    let agent = SigningAgent::start(&[1]).await;
    let mut headers = agent.sign(&gateway, "GET", "/ws").headers();
    headers.push(("uamp-connection", "data".to_owned()));
    let refused = upgrade(&gateway, &headers).await.whole().await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (400, "bad_request"));
    // The rest of a query is refused as every other is.
    let refused = gateway.get("/ws?conn=data&conn=control", "").await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (400, "bad_request"));
}
