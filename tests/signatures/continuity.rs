//! The keys that an agent is known by, and how it comes to others.

use std::collections::BTreeSet;

use http::Method;

use crate::on_both_databases;
use crate::stage::{ask, builder, code, create, refusal, signed};
use crate::support::db::{self, TestDatabase};
use crate::support::{Gateway, SigningAgent};

on_both_databases!(
    a_new_key_is_vouched_for_by_an_old_one,
    the_keys_of_strangers_fill_no_table,
    keys_are_known_for_good_once_their_agent_has_a_name,
);

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
    let keys = gateway.operate(Method::GET, "/v1/agents/mini/keys", None).await.json();
    let thumbprints: BTreeSet<_> =
        keys["keys"].as_array().unwrap().iter().map(|key| key["thumbprint"].as_str()).collect();
    assert_eq!((&keys["agent"], thumbprints.len()), (&agent.principal().into(), 2), "the two that were taken: {keys}");
    assert_eq!(gateway.ask(Method::DELETE, "/v1/agents/mini/keys", "", None).await.status, 401);
    assert_eq!(gateway.ask(Method::DELETE, "/v1/agents/mini/keys", &gateway.operator(), None).await.status, 204);
    assert_eq!(gateway.get("/v1/agents/mini/keys", &gateway.operator()).await.status, 404);
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
