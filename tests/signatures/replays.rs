//! A signature is good once, and not for ever.

use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue};
use serde_json::json;
use sluice::clock::Clock;
use sluice::config::Layer;
use sluice::identity::Refusal;
use sluice::protocol::signature::Request;

use crate::on_both_databases;
use crate::stage::{builder, open, refusal, send, upgrade};
use crate::support::db::{self, TestDatabase};
use crate::support::signer::Signing;
use crate::support::{SigningAgent, eventually};

on_both_databases!(a_nonce_is_spent_for_good);

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
