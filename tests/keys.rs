//! The gateway's own key set.

mod support;

use http::StatusCode;
use serde_json::Value;
use support::Gateway;

#[tokio::test]
async fn the_key_set_is_open_to_everybody_and_outlives_a_restart() {
    let mut gateway = Gateway::start().await;
    let answer = gateway.get("/.well-known/jwks.json", "").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.headers["content-type"], "application/jwk-set+json");
    let set: Value = serde_json::from_slice(&answer.body).unwrap();
    let key = &set["keys"][0];
    assert_eq!((key["kty"].as_str(), key["crv"].as_str()), (Some("OKP"), Some("Ed25519")));
    assert_eq!(key["kid"].as_str().unwrap().len(), 43);
    assert!(key.get("d").is_none());
    gateway.restart().await;
    assert_eq!(gateway.get("/.well-known/jwks.json", "").await.body, answer.body);
}
