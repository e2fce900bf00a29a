//! Which place is asked when, and what becomes of one that serves badly.

use std::io;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http::header::RANGE;
use serde_json::json;

use crate::stage::{CHUNK, LENGTH, Manners, Place, Stage, at, blob, is_gone, sample};
use crate::support::log::DEADLINE;
use crate::support::{Behaviour, Fault, Origin, SampleSet};

#[tokio::test]
async fn what_is_not_the_blob_is_passed_over_before_a_byte_of_it_is_used() {
    let manners = [
        Manners { wrong_digest: true, ..Manners::default() },
        Manners { ignores_ranges: true, ..Manners::default() },
        Manners { first: Some(StatusCode::FORBIDDEN), ..Manners::default() },
        Manners::default(),
    ];
    let places = manners.map(|manners| Place::of(&blob(), manners));
    let mut origins = Vec::new();
    for place in &places {
        origins.push(place.start().await);
    }
    let locations: Vec<_> = origins.iter().map(|origin| at("https", origin)).collect();
    let stage = Stage::new(sample(), json!(locations)).await;
    let part = stage.range("bytes=262144-524287").await;
    assert_eq!((part.status, part.header("sluice-verified")), (StatusCode::PARTIAL_CONTENT, "full"));
    assert_eq!(part.body, &blob()[CHUNK..2 * CHUNK]);
    assert_eq!((stage.outcome("https", "wrong"), stage.outcome("https", "denied")), (2.0, 1.0));
    // A whole file may come from a server that knows no ranges.
    assert_eq!(stage.get().await.body, blob());
    assert_eq!(places[1].seen().len(), 2);
}

#[tokio::test]
async fn a_transfer_that_loses_a_place_carries_on_from_the_next() {
    // Without a chunk list only the whole file's hash can tell, over what came from both.
    let stops = Manners { stops_after: Some(500_000), ..Manners::default() };
    let (first, second) = (Place::of(&blob(), stops), Place::of(&blob(), Manners::default()));
    let (one, other) = (first.start().await, second.start().await);
    let set = SampleSet::of([("a.bin", blob())]);
    let stage = Stage::new(set, json!([at("s3", &one), at("https", &other)])).await;
    let whole = stage.get().await;
    assert_eq!((whole.status, whole.header("sluice-verified")), (StatusCode::OK, "full"));
    assert_eq!(whole.body, blob());
    let resumed: Vec<_> =
        first.seen().iter().chain(&second.seen()).filter_map(|seen| seen.get(RANGE).cloned()).collect();
    assert_eq!(resumed[0], format!("bytes=500000-{}", LENGTH - 1));
}

#[tokio::test]
async fn a_place_that_is_busy_is_asked_again_when_it_said() {
    let busy = Manners { first: Some(StatusCode::SERVICE_UNAVAILABLE), ..Manners::default() };
    let place = Place::of(&blob(), busy);
    let origin = place.start().await;
    let stage = Stage::new(sample(), json!([at("https", &origin)])).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(stage.get().await.body, blob());
    assert!(begun.elapsed().as_millis() >= 950, "{:?}", begun.elapsed());
    assert_eq!(place.seen().len(), 2);
    // Where somebody else has it, nobody waits.
    let (place, idle) = (Place::of(&blob(), busy), Place::of(&blob(), Manners::default()));
    let (origin, other) = (place.start().await, idle.start().await);
    let stage = Stage::new(sample(), json!([at("https", &origin), at("https", &other)])).await;
    assert_eq!(stage.get().await.body, blob());
    assert_eq!((place.seen().len(), idle.seen().len()), (1, 1));
}

#[tokio::test]
async fn an_unknown_kind_is_passed_over_by_name() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let other = json!({ "kind": "torrent", "url": "magnet:?xt=x" });
    let stage = Stage::new(sample(), json!([other, at("robutler", &origin)])).await;
    assert_eq!(stage.get().await.body, blob());
    assert_eq!(stage.outcome("other", "location_kind_unsupported"), 1.0);
    assert_eq!(stage.outcome("robutler", "answered"), 1.0);
}

#[tokio::test]
async fn the_agent_comes_in_where_places_fail_and_the_other_way_round() {
    let gone = Place::of(&blob(), Manners { first: Some(StatusCode::NOT_FOUND), ..Manners::default() });
    let origin = gone.start().await;
    let mut stage = Stage::new(sample(), json!([at("https", &origin), { "kind": "relay", "agent": "ada" }])).await;
    stage.agent.reconnect().await;
    assert_eq!(stage.get().await.body, blob());
    assert_eq!((stage.agent.reads().len(), gone.seen().len()), (1, 1));
    stage.agent.cut().await;
    is_gone(&stage.gateway).await;
    assert_eq!(stage.get().await.body, blob(), "the place has it by now");
    // A reader in the middle of a file does not wait for the agent that lost its connection either.
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let mut stage = Stage::new(sample(), json!([{ "kind": "relay", "agent": "ada" }, at("https", &origin)])).await;
    stage.agent.behave(Behaviour::obedient().at(CHUNK as u64, Fault::Stall));
    stage.agent.reconnect().await;
    let mut download = stage.gateway.download(&stage.path(), &stage.alice()).await;
    assert!(!download.read(1000).await.is_empty());
    stage.agent.cut().await;
    let (rest, end) = download.rest().await;
    end.unwrap();
    assert_eq!(rest.len() + 1000, LENGTH);
    assert_eq!(place.seen().len(), 1);
}

#[tokio::test]
async fn a_place_that_lies_is_found_out() {
    let liar = Place::of(&blob(), Manners { lies: true, ..Manners::default() });
    let origin = liar.start().await;
    let stage = Stage::new(sample(), json!([at("https", &origin)])).await;
    let mut whole = stage.gateway.download(&stage.path(), &stage.alice()).await;
    let (sent, end) = whole.rest().await;
    assert!(end.is_err() || whole.status == StatusCode::BAD_GATEWAY);
    assert!(sent.len() < CHUNK, "a chunk with a wrong byte is not released whole");
    assert_eq!(stage.gateway.metric("sluice_hash_mismatches_total"), 1.0);
}

#[tokio::test]
async fn a_reader_that_leaves_ends_the_fetch() {
    let (told, closed) = tokio::sync::oneshot::channel::<()>();
    let told = Arc::new(Mutex::new(Some(told)));
    let length = 64 << 20;
    let router = Router::new().fallback(async move || {
        let told = told.lock().unwrap().take();
        let endless = stream::repeat_with(move || {
            let _ = &told;
            Ok::<_, io::Error>(Bytes::from(vec![0; 64 * 1024]))
        });
        ([("content-length", length.to_string())], Body::from_stream(endless))
    });
    let origin = Origin::http(router).await;
    let mut set = SampleSet::of([("a.bin", b"x".to_vec())]);
    set.manifest["entries"][0]["size"] = json!(length);
    let stage = Stage::new(set, json!([at("https", &origin)])).await;
    let mut download = stage.gateway.download(&stage.path(), &stage.alice()).await;
    assert!(!download.read(1000).await.is_empty());
    drop(download);
    let ended = tokio::time::timeout(DEADLINE, closed).await;
    ended.unwrap_or_else(|_| panic!("the place was not told")).unwrap_err();
}
