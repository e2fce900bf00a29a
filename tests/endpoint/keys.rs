//! The gateway's keys: where they come from, how they change, and what is done without them.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use serde_json::json;
use sluice::producer::AgentOptions;

use crate::stage::{KEY, Stage, large, large_blob, request, serving, signs_with};
use crate::support::running::{Running, folder};
use crate::support::signer::{Signing, key_set, redirect};
use crate::support::{Client, Origin, eventually, sha256};

const AGAIN: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_gateway_that_changed_its_key_is_known_again() {
    let mut stage = Stage::with(|options| options.serve.as_mut().unwrap().key_refetch = AGAIN).await;
    let hash = sha256(&large());
    let status = async |stage: &Stage, seed: u8| {
        let signing = Signing { seeds: vec![seed], ..stage.signing("HEAD", &hash) };
        stage.whole(request(stage.address, &signing, &[])).await.status.as_u16()
    };
    assert_eq!((status(&stage, KEY).await, status(&stage, KEY + 1).await), (200, 401));
    let keys = stage.keys.path().to_owned();
    stage.gateway.restart_with(|layer| signs_with(layer, &keys, KEY + 1)).await;
    // It is asked for again as soon as it may be.
    eventually("the new key", async || (status(&stage, KEY + 1).await == 200).then_some(())).await;
    assert_eq!(status(&stage, KEY).await, 401);
}

/// What a gateway's address answers.
struct Keys {
    answer: Arc<Mutex<Box<dyn Fn() -> Response + Send>>>,
    origin: Origin,
}

impl Keys {
    async fn answering(answer: impl Fn() -> Response + Send + 'static) -> Self {
        let answer: Arc<Mutex<Box<dyn Fn() -> Response + Send>>> = Arc::new(Mutex::new(Box::new(answer)));
        let answers = answer.clone();
        let route = get(async move || (answers.lock().unwrap())());
        Self { answer, origin: Origin::http(Router::new().route("/.well-known/jwks.json", route)).await }
    }

    fn answer(&self, answer: impl Fn() -> Response + Send + 'static) {
        *self.answer.lock().unwrap() = Box::new(answer);
    }
}

fn published(seeds: &'static [u8]) -> impl Fn() -> Response + Send + 'static {
    move || key_set(seeds).to_string().into_response()
}

async fn agent(dir: &std::path::Path, keys: &Keys, key_refetch: Duration) -> (Running, std::net::SocketAddr) {
    let mut options = AgentOptions::new(dir, keys.origin.url(""), "t");
    options.name = Some("ada".parse().unwrap());
    options.session_timeout = Duration::from_secs(600);
    let mut serve = sluice::producer::EndpointOptions::new("127.0.0.1:0".parse().unwrap());
    serve.key_refetch = key_refetch;
    options.serve = Some(serve);
    let mut agent = Running::start(options);
    let url = serving(&mut agent).await;
    agent.event(|event| matches!(event, sluice::producer::AgentEvent::Published { .. })).await;
    (agent, url.strip_prefix("http://").unwrap().parse().unwrap())
}

async fn ask(address: std::net::SocketAddr, seed: u8) -> (u16, String) {
    // Whatever it calls itself: its key is who it is.
    let url = "https://gateway.example";
    let signing = Signing::new(&[seed], url, "GET", &address.to_string(), &large_blob());
    let answer = Client::of(address).send(request(address, &signing, &[])).await.whole().await;
    if answer.status.is_success() {
        return (200, String::new());
    }
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    (answer.status.as_u16(), message.split(':').next().unwrap().to_owned())
}

#[tokio::test]
async fn what_is_no_key_set_lets_nobody_in() {
    let dir = folder(&[("large.bin", &large())]);
    let elsewhere = Origin::http(Router::new().fallback(async || key_set(&[KEY]).to_string())).await;
    let to = elsewhere.url("/");
    let keys = Keys::answering(|| StatusCode::SERVICE_UNAVAILABLE.into_response()).await;
    let (agent, address) = agent(dir.path(), &keys, Duration::ZERO).await;
    let unreachable = (401, "key_set_unreachable".to_owned());
    assert_eq!(ask(address, KEY).await, unreachable);
    keys.answer(move || redirect(&to));
    assert_eq!(ask(address, KEY).await, unreachable);
    assert_eq!(elsewhere.accepted(), 0, "a redirect was followed");
    keys.answer(|| "{}".into_response());
    assert_eq!(ask(address, KEY).await, unreachable);
    keys.answer(|| {
        let mut set = key_set(&[KEY]);
        set["more"] = json!("x".repeat(70_000));
        set.to_string().into_response()
    });
    assert_eq!(ask(address, KEY).await, unreachable);
    keys.answer(|| {
        Body::from_stream(stream::once(async { Err::<Bytes, _>(io::Error::other("gone")) })).into_response()
    });
    assert_eq!(ask(address, KEY).await, unreachable);
    keys.answer(published(&[KEY]));
    assert_eq!(ask(address, KEY).await, (200, String::new()));
    // What was good stays good while nothing better is to be had.
    keys.answer(|| StatusCode::SERVICE_UNAVAILABLE.into_response());
    assert_eq!(ask(address, KEY + 1).await, (401, "signature_key_unknown".to_owned()));
    assert_eq!(ask(address, KEY).await, (200, String::new()));
    agent.stop().await;
}

#[tokio::test]
async fn strangers_do_not_make_the_agent_ask_again_and_again() {
    let dir = folder(&[("large.bin", &large())]);
    let asked = Arc::new(Mutex::new(0));
    let counted = asked.clone();
    let keys = Keys::answering(move || {
        *counted.lock().unwrap() += 1;
        published(&[KEY])()
    })
    .await;
    let (agent, address) = agent(dir.path(), &keys, Duration::from_secs(600)).await;
    assert_eq!(ask(address, KEY).await, (200, String::new()));
    for _ in 0..20 {
        assert_eq!(ask(address, KEY + 1).await, (401, "signature_key_unknown".to_owned()));
    }
    assert_eq!(*asked.lock().unwrap(), 1);
    assert_eq!(ask(address, KEY).await, (200, String::new()));
    agent.stop().await;
}

#[tokio::test]
async fn a_gateway_that_comes_up_after_its_agent_is_let_in_at_once() {
    let dir = folder(&[("large.bin", &large())]);
    let keys = Keys::answering(|| StatusCode::SERVICE_UNAVAILABLE.into_response()).await;
    // Longer than this test may take.
    let (agent, address) = agent(dir.path(), &keys, Duration::from_secs(600)).await;
    assert_eq!(ask(address, KEY).await, (401, "key_set_unreachable".to_owned()));
    keys.answer(published(&[KEY]));
    eventually("its key", async || (ask(address, KEY).await.0 == 200).then_some(())).await;
    agent.stop().await;
}
