//! Manifests, whose bytes the gateway has itself: bounded, watched and ended as the bytes of agents are.

use http::Method;
use serde_json::json;
use sluice::transfer::State;

use crate::stage::Stage;
use crate::support::{Download, Gateway, SampleSet, eventually, sha256, span};

const READERS: usize = 8;
/// Far more than lies between a gateway and a reader that has stopped.
const HASHES: usize = 100_000;

/// A set whose manifest has more than 6 MiB.
fn huge() -> SampleSet {
    let hashes: Vec<_> = (0..HASHES).map(|n| sha256(&n.to_be_bytes())).collect();
    let mut set = SampleSet::of([("big", vec![])]);
    set.manifest["entries"][0]["size"] = json!(HASHES * 256 * 1024);
    set.manifest["entries"][0]["sha256"] = json!(sha256(b"big"));
    set.manifest["entries"][0]["chunks"] = json!({"chunkSize": 256 * 1024, "hashes": hashes});
    set
}

/// Its agent is asked for the manifest, which takes what time it takes.
async fn with_huge(gateway: Gateway) -> Stage {
    let mut stage = Stage::with_set(SampleSet::of([("a", b"a".to_vec())]), gateway).await;
    stage.set = huge();
    let frame = |frame: &mut serde_json::Value| {
        frame["session_id"] = json!("turn-1");
        frame.as_object_mut().unwrap().remove("manifest");
    };
    stage.agent.announce_with(&stage.set, frame).await;
    stage.gateway.wait_for_set("c1", &stage.set.identity()).await;
    let transfers = &stage.gateway.state().transfers;
    eventually("the end of reading", async || transfers.running().is_empty().then_some(())).await;
    stage
}

async fn stage() -> (Stage, Vec<u8>, [String; 2]) {
    let gateway = Gateway::builder()
        .with(|layer| {
            layer.max_transfers = Some(READERS as u32);
            layer.stall_timeout = Some(span("1h"));
        })
        .start()
        .await;
    let stage = with_huge(gateway).await;
    let (manifest, identity) = (stage.set.canonical(), stage.set.identity());
    let paths = [format!("/v1/chats/c1/sets/{identity}"), format!("/artifacts/blobs/sha256:{identity}")];
    (stage, manifest, paths)
}

/// A download that has begun, and whose reader does not read on.
async fn begin(stage: &Stage, path: &str, http2: bool) -> Download {
    let client = stage.gateway.client().receive_buffer(32 * 1024);
    let request = stage.gateway.request(Method::GET, path, &stage.alice(), None);
    let mut download = if http2 { client.http2() } else { client }.send(request).await;
    assert_eq!(download.status, 200, "{path}");
    download.read(1000).await;
    download
}

/// Waits until every transfer waits for its reader, and looks at how much each has been sent.
async fn wait_until_stuck(stage: &Stage, count: usize, size: usize) {
    let transfers = &stage.gateway.state().transfers;
    eventually("readers that have stopped", async || {
        let running = transfers.running();
        let stuck = running.iter().filter(|live| live.state() == State::WaitingForReader).count();
        (running.len() == count && stuck == count).then_some(())
    })
    .await;
    for live in transfers.running() {
        assert!(live.sent() < size as u64, "all of it was given to a reader that takes nothing");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_is_sent_as_its_readers_take_it() {
    let (stage, manifest, paths) = stage().await;
    let reads = stage.agent.reads().len();
    let mut downloads = Vec::new();
    for n in 0..READERS {
        downloads.push(begin(&stage, &paths[n % 2], n % 4 < 2).await);
    }
    wait_until_stuck(&stage, READERS, manifest.len()).await;
    // They count among the transfers: one more finds no place, and what sends no bytes needs none.
    let etag = format!("\"sha256-{}\"", stage.set.identity());
    for path in &paths {
        let refused = stage.get(path, &[]).await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (503, "too_many_transfers"));
        let head = stage.ask(false, &Method::HEAD, path, &[]).await;
        assert_eq!(head.header("content-length"), Some(manifest.len().to_string().as_str()));
        assert_eq!(stage.get(path, &[("if-none-match", etag.clone())]).await.status, 304);
        let range = ("range", format!("bytes={}-", manifest.len()));
        assert_eq!(stage.get(path, &[range]).await.status, 416);
        assert_eq!(stage.get(path, &[("if-match", "\"other\"".to_owned())]).await.status, 412);
    }
    // An operator sees them, and ends one.
    let listed = stage.gateway.operate(Method::GET, "/v1/transfers", None).await.json();
    let transfers = listed["transfers"].as_array().unwrap();
    assert_eq!(transfers.len(), READERS);
    let [first, rest @ ..] = &mut downloads[..] else { unreachable!() };
    let id = transfers[0]["id"].as_u64().unwrap();
    stage.gateway.operate(Method::DELETE, &format!("/v1/transfers/{id}"), None).await;
    assert!(first.rest().await.1.is_err(), "the answer ended well");
    // The others get all of it once they read on.
    for download in rest {
        let (body, end) = download.rest().await;
        assert!(end.is_ok(), "{end:?}");
        assert!(body == manifest[1000..], "other bytes");
    }
    eventually("the last transfer's end", async || stage.gateway.state().transfers.running().is_empty().then_some(()))
        .await;
    assert_eq!(stage.agent.reads().len(), reads, "an agent was asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_loses_the_chat_loses_the_rest_of_its_manifest() {
    let (stage, manifest, paths) = stage().await;
    let downloads = [begin(&stage, &paths[0], false).await, begin(&stage, &paths[1], true).await];
    wait_until_stuck(&stage, 2, manifest.len()).await;
    stage.gateway.operate(Method::DELETE, "/v1/chats/c1/participants/user:alice", None).await;
    for mut download in downloads {
        assert!(download.rest().await.1.is_err(), "the answer ended well");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_takes_nothing_of_a_manifest_loses_it() {
    let gateway = Gateway::builder().with(|layer| layer.stall_timeout = Some(span("1s"))).start().await;
    let stage = with_huge(gateway).await;
    let path = format!("/v1/chats/c1/sets/{}", stage.set.identity());
    let mut downloads = [begin(&stage, &path, false).await, begin(&stage, &path, true).await];
    eventually("the end of both", async || stage.gateway.state().transfers.running().is_empty().then_some(())).await;
    for download in &mut downloads {
        assert!(download.rest().await.1.is_err(), "the answer ended well");
    }
}
