//! What is asked in the gateway's own name, with its signature, and what is not.

use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use serde_json::json;

use crate::stage::{Manners, Place, Stage, at, blob, gateway, sample};
use crate::support::{Agent, Gateway, Origin, SampleSet, eventually, set_file, sha256};

#[tokio::test]
async fn a_producers_endpoint_is_asked_in_the_gateways_name() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let stage = Stage::new(sample().task("task-7"), json!([at("https", &origin)])).await;
    let whole = stage.get().await;
    assert_eq!((whole.status, whole.header("sluice-verified")), (StatusCode::OK, "full"));
    assert_eq!(whole.body, blob());
    let part = stage.range("bytes=300000-300009").await;
    assert_eq!((part.status, &part.body[..]), (StatusCode::PARTIAL_CONTENT, &blob()[300_000..300_010]));
    let seen = place.seen();
    assert_eq!((seen[0].get("range"), &seen[1]["range"]), (None, &"bytes=300000-300009".parse().unwrap()));
    for headers in &seen {
        assert_eq!(headers["artifact-task"], "task-7");
        let input = headers["signature-input"].to_str().unwrap();
        assert!(input.contains("\"artifact-task\" \"signature-agent\";key=\"sig1\""), "{input}");
        let agent = format!("sig1=\"{}/.well-known/jwks.json\";type=jwks_uri", stage.gateway.url);
        assert_eq!(headers["signature-agent"], agent);
        assert!(headers.get(AUTHORIZATION).is_none() && headers.get("cookie").is_none());
    }
    assert_eq!(stage.outcome("https", "answered"), 2.0);
}

#[tokio::test]
async fn a_presigned_url_is_asked_for_as_it_is() {
    let (expired, good) = (
        Place::of(&blob(), Manners { first: Some(StatusCode::FORBIDDEN), ..Manners::default() }),
        Place::of(&blob(), Manners::default()),
    );
    let (one, other) = (expired.start().await, good.start().await);
    let presigned =
        |origin: &Origin| json!({ "kind": "s3", "url": origin.url("/bucket/it?X-Amz-Signature=s%2Fs&x=1") });
    let stage = Stage::new(sample().task("t"), json!([presigned(&one), presigned(&other)])).await;
    assert_eq!(stage.range("bytes=0-9").await.body, &blob()[..10]);
    let seen = good.seen.lock().unwrap();
    assert_eq!(seen[0].0, "/bucket/it?X-Amz-Signature=s%2Fs&x=1");
    for name in ["signature", "signature-input", "signature-agent", "artifact-task", "authorization"] {
        assert!(seen[0].1.get(name).is_none(), "{name}");
    }
}

#[tokio::test]
async fn a_url_that_does_not_name_the_blob_is_not_asked_in_the_gateways_name() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let hash = sha256(&blob());
    for path in ["/private/report".to_owned(), format!("/artifacts/blobs/sha256:{hash}?and=more")] {
        let stage = Stage::new(sample(), json!([{ "kind": "https", "url": origin.url(&path) }])).await;
        assert_eq!(stage.get().await.status, StatusCode::OK, "{path}");
    }
    let seen = place.seen();
    assert!(seen.len() == 2 && seen.iter().all(|headers| headers.get("signature").is_none()), "{seen:?}");
}

/// What a gateway is asked with, for a set of ada's at this URL; ada is known by its token.
async fn asked_at(gateway: &Gateway, place: &Place, ada: &mut Agent, url: &str) -> HeaderMap {
    let before = place.seen().len();
    let mut set = sample();
    set.manifest["locations"] = json!([{"kind": "https", "url": url}]);
    set.manifest["producer"]["task"] = json!(format!("t{before}"));
    ada.announce_with(&set, |frame| {
        frame["session_id"] = json!("turn-1");
        frame["locations"] = json!([]);
    })
    .await;
    gateway.wait_for_set("c1", &set.identity()).await;
    gateway.get(&set_file("c1", &set, "a.bin"), &gateway.reader("user:alice")).await;
    eventually("a request", async || place.seen().get(before).cloned()).await
}

fn is_signed(headers: &HeaderMap) -> bool {
    headers.contains_key("signature") || headers.contains_key("signature-agent")
}

#[tokio::test]
async fn a_place_of_another_agents_is_not_asked_in_the_gateways_name_however_it_is_spelt() {
    let place = Place::of(&blob(), Manners::default());
    let (origin, alone) = (place.start().await, place.start().await);
    let gateway = gateway().await;
    gateway.put_chat("c1", &["user:alice"]).await;
    gateway.bind_session("turn-1", "c1", "agent:ada").await;
    let mut ada = gateway.agent("ada").await;
    let name = format!("artifacts/blobs/sha256:{}", sha256(&blob()));
    // Nobody else is known there.
    for path in [format!("/{name}"), format!("/any/where/{name}")] {
        assert!(is_signed(&asked_at(&gateway, &place, &mut ada, &alone.url(&path)).await), "{path}");
    }
    for odd in ["/%78/", "//", "/a/..%2f", "/a/%2e%2e/", "/a;b/"] {
        let url = alone.url(&format!("{odd}{name}"));
        assert!(!is_signed(&asked_at(&gateway, &place, &mut ada, &url).await), "{odd}");
    }
    // An agent that is known by its URL.
    let owner = origin.url("/agents/x");
    let _owner = Agent::connect(&gateway.url, &gateway.agent_token(&owner, "owner"), "owner").await;
    for path in [
        "/agents/x",
        "/agents/%78",
        "/agents//x",
        "//agents/x",
        "/agents/y/..%2fx",
        "/agents/y/..%5cx",
        "/agents/x/.",
        "/agents/y/%2e%2e/x",
        "/agents/y/../x",
        "/AGENTS/x",
        "/agents/x;y",
        "/agents/y",
        "/a/b/c/d/e/f/g/h/i/j/x",
        "",
    ] {
        let url = origin.url(&format!("{path}/{name}"));
        assert!(!is_signed(&asked_at(&gateway, &place, &mut ada, &url).await), "{path}");
    }
    // Another agent that is known by its token, and has announced something there before.
    let bob = gateway.agent("bob").await;
    gateway.bind_session("turn-2", "c1", "agent:bob").await;
    let mut set = SampleSet::of([("b.bin", b"b".to_vec())]);
    set.manifest["locations"] = json!([{"kind": "https", "url": alone.url("/")}]);
    bob.announce_in("turn-2", &set).await;
    gateway.wait_for_set("c1", &set.identity()).await;
    assert!(!is_signed(&asked_at(&gateway, &place, &mut ada, &alone.url(&format!("/more/{name}"))).await));
}

#[tokio::test]
async fn a_task_that_servers_may_read_in_two_ways_is_not_sent() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let mut set = sample();
    set.manifest["producer"]["task"] = json!("Aufgabe für Ärzte");
    let stage = Stage::new(set, json!([at("https", &origin)])).await;
    assert_eq!(stage.gateway.get(&stage.path(), &stage.alice()).await.body, blob());
    assert!(place.seen()[0].get("artifact-task").is_none());
}
