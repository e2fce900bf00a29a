//! What is read from the cache, and for whom.

use futures_util::future::join_all;
use sluice::config::Layer;

use crate::stage::{FRAME, Stage, assert_bytes, body, single, url};
use crate::support::{Agent, SampleSet, bytes, span};

const CHUNK: usize = 2 * FRAME;

pub fn with_cache(layer: &mut Layer) {
    layer.cache_size = Some("64MiB".parse().unwrap());
    layer.agent_wait = Some(span("100ms"));
    // On a busy machine the others' bytes take their time, and some readers here stop until they have come.
    layer.stall_timeout = Some(span("10m"));
}

/// The set is downloaded once, and everything that the cache wants of it is there.
async fn warm(stage: &Stage, set: &SampleSet, objects: f64) {
    assert_bytes(&body(stage.get(&url(set)).await).await, &set.files[0].bytes, "the first time");
    stage.gateway.wait_for_metric("sluice_cache_objects", objects).await;
}

fn asked(agent: &Agent) -> usize {
    agent.reads().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_read_once_costs_the_agent_nothing() {
    for chunked in [true, false] {
        let stage = Stage::with(with_cache).await;
        let set = single(bytes(1, 5 * CHUNK + 1000));
        let set = if chunked { set.chunked(CHUNK) } else { set };
        let agent = stage.agent_with("ada", &set).await;
        warm(&stage, &set, if chunked { 6.0 } else { 1.0 }).await;
        let (reads, content) = (asked(&agent), &set.files[0].bytes);
        for http2 in [false, true] {
            let whole = stage.over(http2, &url(&set), None).await;
            assert_eq!(whole.header("sluice-verified"), "full");
            assert_bytes(&body(whole).await, content, "whole");
            for (start, end) in
                [(0, 1), (CHUNK - 1, CHUNK + 1), (CHUNK + 5, 4 * CHUNK + 7), (5 * CHUNK + 999, 5 * CHUNK + 1000)]
            {
                let range = format!("bytes={start}-{}", end - 1);
                let part = body(stage.over(http2, &url(&set), Some(&range)).await).await;
                assert_bytes(&part, &content[start..end], &range);
            }
        }
        assert_eq!(asked(&agent), reads);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_there_while_the_agent_is_not_and_after_a_restart() {
    let mut stage = Stage::with(with_cache).await;
    let set = single(bytes(2, 4 * CHUNK)).chunked(CHUNK);
    let mut agent = stage.agent_with("ada", &set).await;
    warm(&stage, &set, 4.0).await;
    agent.close(1000).await;
    stage.gateway.wait_for_metric("sluice_agents_online", 0.0).await;
    assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "offline");
    stage.gateway.restart().await;
    stage.gateway.wait_for_metric("sluice_cache_objects", 4.0).await;
    assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "after a restart");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hash_alone_grants_nothing() {
    let stage = Stage::with(with_cache).await;
    let set = single(bytes(3, 4 * CHUNK)).chunked(CHUNK);
    let _ada = stage.agent_with("ada", &set).await;
    warm(&stage, &set, 4.0).await;
    // Mallory's agent announces the same entry in her chat, and has nothing.
    let eve = stage.agent("eve").await;
    stage.share(&eve, "c2", &set).await;
    eve.forget(&set.files[0].sha256);
    let mallory = stage.gateway.reader("user:mallory");
    let path = crate::support::set_file("c2", &set, "a.bin");
    for range in ["bytes=0-0", "bytes=0-", "bytes=1000-"] {
        let refused = stage.gateway.download_range(&path, &mallory, range).await;
        assert_eq!(refused.status.as_u16(), 410, "{range}");
    }
    // One who takes part in both chats has the bytes from the agent that has served them.
    stage.gateway.put_chat("c2", &["user:mallory", "user:alice"]).await;
    let by_hash = format!("/artifacts/blobs/sha256:{}", set.files[0].sha256);
    assert_bytes(&body(stage.get(&by_hash).await).await, &set.files[0].bytes, "alice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_readers_cost_nothing_and_wrong_bytes_are_not_kept() {
    let stage = Stage::with(with_cache).await;
    let content = bytes(4, 32 * CHUNK);
    let set = single(content.clone()).chunked(CHUNK);
    let agent = stage.agent_with("ada", &set).await;
    let path = url(&set);
    let mut first = stage.slow(&path).await;
    first.read(3 * CHUNK).await;
    let late = join_all((0..20).map(|n| stage.over(n % 2 == 0, &path, None))).await;
    for received in join_all(late.into_iter().map(body)).await {
        assert_bytes(&received, &content, "late");
    }
    assert_bytes(&body(first).await, &content[3 * CHUNK..], "the first");
    let sent = stage.gateway.metric("sluice_received_bytes_total");
    // The chunk that was on its way when the others came may be read for them too.
    assert!(sent <= (content.len() + 8 * CHUNK) as f64, "{sent} for {}", content.len());
    let mut lie = content.clone();
    lie[CHUNK + 1] ^= 1;
    let other = single(bytes(5, 4 * CHUNK)).chunked(CHUNK);
    stage.share(&agent, "c1", &other).await;
    agent.serve_as(&other.files[0].sha256, &lie[..4 * CHUNK]);
    assert!(!stage.outcome(false, &url(&other), None).await.whole);
    assert_eq!(stage.gateway.metric("sluice_cache_writes_total{outcome=\"kept\"}"), 32.0);
}
