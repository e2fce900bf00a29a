//! Places that are not asked at all: private ones, and this gateway itself.

use http::{Method, StatusCode};
use serde_json::json;

use crate::stage::{Manners, Place, Stage, at, blob, gateway, sample};
use crate::support::{Gateway, set_file};

#[tokio::test]
async fn private_places_are_closed_unless_they_are_named() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let mut set = sample();
    set.manifest["locations"] = json!([at("https", &origin), at("s3", &origin)]);
    let stage = Stage::on(Gateway::start().await, set).await;
    assert_eq!(stage.get().await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(origin.accepted(), 0);
    assert_eq!((stage.outcome("https", "unreachable"), stage.outcome("s3", "unreachable")), (1.0, 1.0));
}

#[tokio::test]
async fn this_gateways_own_url_grants_nothing() {
    let gateway = gateway().await;
    gateway.put_chat("secret", &["user:bob"]).await;
    gateway.bind_session("turn-0", "secret", "agent:bea").await;
    let bea = gateway.agent("bea").await;
    let secret = sample();
    bea.announce_in("turn-0", &secret).await;
    gateway.wait_for_set("secret", &secret.identity()).await;
    let path = set_file("secret", &secret, "a.bin");
    assert_eq!(gateway.get(&path, &gateway.reader("user:bob")).await.body, blob());
    // Ada knows the hash, and that bea's agent has it here.
    let hash = &secret.files[0].sha256;
    let mut set = sample();
    set.manifest["producer"]["name"] = json!("ada");
    set.manifest["locations"] = json!([
        { "kind": "robutler", "url": format!("{}/api/blob/cas/{hash}", gateway.url) },
        { "kind": "https", "url": format!("{}/agents/bea/artifacts/blobs/sha256:{hash}", gateway.url) },
        { "kind": "relay", "agent": "bea" },
    ]);
    let stage = Stage::on(gateway, set).await;
    assert_eq!(stage.get().await.status, StatusCode::BAD_GATEWAY);
    assert_eq!((stage.outcome("robutler", "own"), stage.outcome("https", "own")), (1.0, 1.0));
    assert_eq!(bea.reads().len(), 1, "only bob's");
}

#[tokio::test]
async fn two_gateways_do_not_ask_in_circles() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let stage = Stage::new(sample(), json!([at("https", &origin)])).await;
    let mut request = stage.gateway.request(Method::GET, &stage.path(), &stage.alice(), None);
    let asked = stage.get().await;
    assert_eq!(asked.status, StatusCode::OK);
    request.headers_mut().insert("via", place.seen()[0]["via"].clone());
    let answer = stage.gateway.client().send(request).await.whole().await;
    assert_eq!((answer.status, place.seen().len()), (StatusCode::NOT_FOUND, 1));
}
