//! A gateway that may fetch key sets, and how an agent that signs comes to it.

use http::Method;
use serde_json::{Value, json};

use crate::support::gateway::GatewayBuilder;
use crate::support::signer::Signing;
use crate::support::{Answer, Download, Gateway, SigningAgent, Wire};

/// A gateway that may fetch key sets from loopback.
pub fn builder() -> GatewayBuilder {
    Gateway::builder().with(|layer| layer.allow_hosts = Some(vec!["127.0.0.1".parse().unwrap()]))
}

pub async fn open(gateway: &Gateway, query: &str, headers: &[(&'static str, String)]) -> Wire {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Wire::open(gateway, query, &headers).await
}

pub async fn signed(gateway: &Gateway, agent: &SigningAgent) -> Wire {
    open(gateway, "", &agent.sign(gateway, "GET", "/ws").headers()).await
}

/// `session.create` as the SDK sends it when it signs: without a token.
pub fn create(name: &str) -> Value {
    json!({"type": "session.create", "event_id": "e-create", "session": {"agent": name}})
}

/// Why a connection with these headers gets no session.
pub async fn refusal(gateway: &Gateway, query: &str, headers: &[(&'static str, String)]) -> String {
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

pub async fn ask(gateway: &Gateway, signing: &Signing) -> Answer {
    let body = signing.body.clone().map(|body| serde_json::from_slice(&body).unwrap());
    let method: Method = signing.method.parse().unwrap();
    send(gateway, method, &signing.target, &signing.headers(), body).await
}

pub async fn send(
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
pub fn code(answer: &Answer) -> String {
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (401, "unauthorized"));
    assert_eq!(answer.header("www-authenticate"), "Bearer");
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    message.split(':').next().unwrap().to_owned()
}

/// The head of the answer to an upgrade with these headers.
pub async fn upgrade(gateway: &Gateway, headers: &[(&'static str, String)]) -> Download {
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
