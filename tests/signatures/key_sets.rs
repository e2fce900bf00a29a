//! The key sets that agents name: how often they are fetched, from where, and what becomes of those that cannot be had.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::routing::get;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use http::{HeaderMap, HeaderValue};
use serde_json::json;
use sluice::clock::Clock;
use sluice::identity::{Refusal, Signatures, SignedAgents};
use sluice::metrics::Metrics;
use sluice::outbound::{Bounds, Outbound, Resolve, Resolver};
use sluice::protocol::address::Allowed;
use sluice::protocol::signature::{Request, Rules};
use sluice::store::{Store, StoreOptions};
use tokio_util::task::TaskTracker;

use crate::stage::{ask, builder, code, refusal};
use crate::support::signer::{Signing, redirect};
use crate::support::{Gateway, Origin, SigningAgent, eventually, key_set};

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
        let begun = Instant::now();
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
