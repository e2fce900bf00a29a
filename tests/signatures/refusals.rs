//! Signatures that prove nothing, or that nobody takes, and what each is told.

use http::Method;
use serde_json::json;
use sluice::identity::SignedAgents;

use crate::stage::{ask, builder, code, create, open, refusal, send, upgrade};
use crate::support::signer::Signing;
use crate::support::{Gateway, SigningAgent};

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

#[tokio::test]
async fn the_series_exist_from_the_start() {
    let gateway = Gateway::start().await;
    for outcome in ["verified", "unavailable", "signature_replayed", "key_set_unreachable"] {
        assert_eq!(gateway.metric(&format!("sluice_signatures_total{{outcome=\"{outcome}\"}}")), 0.0);
    }
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
