//! What an agent may do that has proven who it is: serve under its name, and read what its chats allow.

use http::Method;
use serde_json::json;

use crate::on_both_databases;
use crate::stage::{ask, builder, code, create, open, send, signed};
use crate::support::db::{self, TestDatabase};
use crate::support::signer::Signing;
use crate::support::{Agent, Gateway, SampleSet, SigningAgent, bytes, set_file};

on_both_databases!(a_signed_agent_serves_and_reads);

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
async fn a_token_goes_before_a_signature() {
    let gateway = builder().start().await;
    let agent = SigningAgent::start(&[9]).await;
    gateway.put_chat("c", &["user:alice"]).await;
    let mut headers = agent.sign(&gateway, "GET", "/other").headers();
    headers.push(("authorization", format!("Bearer {}", gateway.reader("user:alice"))));
    assert_eq!(send(&gateway, Method::GET, "/v1/chats/c/sets", &headers, None).await.status, 200);
    assert_eq!(agent.origin.accepted(), 0);
}
