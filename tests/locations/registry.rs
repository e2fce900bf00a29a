//! Blobs from OCI registries: their tokens, and where they redirect to.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse as _;
use http::header::{AUTHORIZATION, LOCATION, RANGE, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use serde_json::json;

use crate::stage::{Manners, Place, Stage, blob, sample};
use crate::support::{Origin, set_file};

/// A registry as the distribution specification has it: a token for whoever asks, and blobs kept elsewhere.
struct Registry {
    registry: Origin,
    store: Origin,
    kept: Place,
    asked: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    token: Arc<Mutex<String>>,
}

impl Registry {
    async fn start() -> Self {
        let kept = Place::of(&blob(), Manners::default());
        let store = kept.start().await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let token = Arc::new(Mutex::new("t0k3n".to_owned()));
        let current = token.clone();
        let (seen, there) = (asked.clone(), store.url("/kept?signature=s"));
        let router = Router::new().fallback(async move |request: Request| {
            let (uri, headers) = (request.uri().clone(), request.headers().clone());
            seen.lock().unwrap().push((uri.to_string(), headers.clone()));
            let token = current.lock().unwrap().clone();
            if uri.path() == "/token" {
                return axum::Json(json!({ "token": token, "expires_in": 60 })).into_response();
            }
            if headers.get(AUTHORIZATION).is_none_or(|value| *value != format!("Bearer {token}")) {
                let host = headers["host"].to_str().unwrap();
                let challenge = format!(
                    "Bearer realm=\"http://{host}/token\",service=\"reg\",scope=\"repository:team/files:pull\""
                );
                return (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, challenge)]).into_response();
            }
            (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, there.clone())]).into_response()
        });
        Self { registry: Origin::http(router).await, store, kept, asked, token }
    }
}

#[tokio::test]
async fn a_registry_is_asked_with_a_token_that_stays_there() {
    let registry = Registry::start().await;
    let reference = format!("{}/team/files:latest", registry.registry.address);
    let stage = Stage::new(sample().task("t"), json!([{ "kind": "oci", "ref": reference }])).await;
    assert_eq!(stage.range("bytes=10-19").await.body, &blob()[10..20]);
    let asked = registry.asked.lock().unwrap();
    let uris: Vec<_> = asked.iter().map(|(uri, _)| uri.as_str()).collect();
    let blob_path = format!("/v2/team/files/blobs/sha256:{}", stage.set.files[0].sha256);
    assert_eq!(uris, [&blob_path, "/token?service=reg&scope=repository%3Ateam%2Ffiles%3Apull", &blob_path]);
    let seen = registry.kept.seen();
    assert_eq!((seen.len(), registry.store.accepted()), (1, 1));
    assert!(seen[0].get(AUTHORIZATION).is_none(), "credentials stay with the registry");
    assert_eq!(seen[0][RANGE], "bytes=10-19");
    assert!(asked.iter().all(|(_, headers)| headers.get("signature").is_none()));
}

#[tokio::test]
async fn a_registrys_token_is_used_again_for_the_same_agent_only() {
    let registry = Registry::start().await;
    let reference = format!("{}/team/files:latest", registry.registry.address);
    let stage = Stage::new(sample(), json!([{ "kind": "oci", "ref": reference }])).await;
    let tokens = || registry.asked.lock().unwrap().iter().filter(|(uri, _)| uri.starts_with("/token")).count();
    for range in ["bytes=10-19", "bytes=0-0", "bytes=100-300"] {
        assert_eq!(stage.range(range).await.status, StatusCode::PARTIAL_CONTENT);
    }
    assert_eq!((tokens(), registry.asked.lock().unwrap().len()), (1, 5), "one round for a token, and the blobs");
    // One that is not taken any more is asked for anew.
    *registry.token.lock().unwrap() = "another".to_owned();
    for range in ["bytes=10-19", "bytes=0-0"] {
        assert_eq!(stage.range(range).await.status, StatusCode::PARTIAL_CONTENT);
    }
    assert_eq!(tokens(), 2);
    // Another agent that names the same place has to ask for its own.
    let gateway = &stage.gateway;
    gateway.put_chat("of-bob", &["user:bob"]).await;
    gateway.bind_session("of-bob", "of-bob", "agent:bob").await;
    let bob = gateway.agent("bob").await;
    let mut set = sample();
    set.manifest["locations"] = json!([{ "kind": "oci", "ref": reference }]);
    bob.announce_in("of-bob", &set).await;
    gateway.wait_for_set("of-bob", &set.identity()).await;
    let path = set_file("of-bob", &set, "a.bin");
    let download = gateway.download_range(&path, &gateway.reader("user:bob"), "bytes=0-9").await;
    assert_eq!(download.status, StatusCode::PARTIAL_CONTENT);
    assert_eq!(tokens(), 3);
}

#[tokio::test]
async fn redirects_of_a_registry_end_and_are_checked() {
    let round = Origin::http(Router::new().fallback(async |request: Request| {
        (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, request.uri().path().to_owned())])
    }))
    .await;
    let inner =
        Origin::http(Router::new().fallback(async || {
            (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, "http://169.254.169.254/latest/meta-data")])
        }))
        .await;
    let reference = |origin: &Origin| json!({ "kind": "oci", "ref": format!("{}/a", origin.address) });
    let stage = Stage::new(sample(), json!([reference(&round), reference(&inner)])).await;
    assert!(stage.get().await.status.is_server_error() || stage.get().await.status == StatusCode::GONE);
    assert_eq!(round.accepted() % 4, 0, "three hops, and no more");
    assert!(stage.outcome("oci", "unreachable") >= 1.0);
}
