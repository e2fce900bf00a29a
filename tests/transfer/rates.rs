//! Highest rates: kept to the byte, and taken by nobody for a reader or an agent that has stopped.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sluice::config::Layer;
use sluice::transfer::State;

use crate::stage::{FRAME, Stage, assert_bytes, body, single, url};
use crate::support::{Download, bytes, span};

const RATE: u64 = 1024 * 1024;

/// Times by which whoever is held back would have been given up if it were taken for one that has stopped.
async fn stage(change: impl FnOnce(&mut Layer)) -> Stage {
    Stage::with(|layer| {
        layer.stall_timeout = Some(span("300ms"));
        layer.read_timeout = Some(span("300ms"));
        change(layer);
    })
    .await
}

/// So many bytes cannot have come any sooner: all but what a rate lets through at once.
fn least(bytes: usize, at_once: u64) -> Duration {
    Duration::from_secs_f64((bytes as u64).saturating_sub(at_once) as f64 / RATE as f64)
}

fn held(stage: &Stage, limit: &str) -> f64 {
    stage.gateway.metric(&format!("sluice_rate_waits_total{{limit=\"{limit}\"}}"))
}

async fn all(downloads: Vec<Download>, content: &[u8]) {
    for received in join_all(downloads.into_iter().map(body)).await {
        assert_bytes(&received, content, "a download under a rate");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfers_rate_holds_over_http1_http2_and_from_the_cache() {
    let stage = stage(|layer| {
        layer.transfer_byte_rate = Some("1MiB".parse().unwrap());
        layer.cache_size = Some("1GiB".parse().unwrap());
    })
    .await;
    let set = single(bytes(1, 8 * FRAME)).chunked(2 * FRAME);
    let mut agent = stage.agent_with("ada", &set).await;
    for http2 in [false, true, false, true] {
        let begun = Instant::now();
        let answer = stage.over(http2, &url(&set), None).await;
        stage.wait_for_state(State::HeldByRate, 1).await;
        let list = stage.gateway.operate(http::Method::GET, "/v1/transfers", None).await.json();
        assert_eq!(list["transfers"][0]["sha256"], set.files[0].sha256);
        all(vec![answer], &set.files[0].bytes).await;
        let (took, least) = (begun.elapsed(), least(8 * FRAME, RATE / 4 + FRAME as u64));
        assert!(took >= least, "{took:?} is less than {least:?}");
        // From the cache the next time.
        stage.gateway.wait_for_metric("sluice_cache_objects", 4.0).await;
    }
    assert_eq!(agent.bytes_sent(), 8 * FRAME as u64, "the rest was in the cache");
    agent.cut().await;
    assert!(held(&stage, "transfer") > 0.0);
    assert_eq!(stage.gateway.metric("sluice_transfers_ended_total{outcome=\"complete\"}"), 4.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_readers_rate_is_one_for_all_connections() {
    let stage = stage(|layer| layer.reader_byte_rate = Some("1MiB".parse().unwrap())).await;
    let sets: Vec<_> = (0..4).map(|n| single(bytes(10 + n, 2 * FRAME))).collect();
    let agent = stage.agent("ada").await;
    for set in &sets {
        stage.share(&agent, "c1", set).await;
    }
    let begun = Instant::now();
    // One after the other is no way around it.
    for set in &sets[..2] {
        all(vec![stage.get(&url(set)).await], &set.files[0].bytes).await;
    }
    let downloads = sets[2..].iter().enumerate().map(|(n, set)| {
        let stage = &stage;
        async move {
            let answer = stage.over(n == 0, &url(set), None).await;
            all(vec![answer], &set.files[0].bytes).await;
        }
    });
    join_all(downloads).await;
    let (took, least) = (begun.elapsed(), least(8 * FRAME, RATE / 2));
    assert!(took >= least, "{took:?} is less than {least:?}");
    assert!(held(&stage, "reader") > 0.0);
    assert_eq!(held(&stage, "transfer"), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agents_rate_is_one_for_all_readers() {
    let stage = stage(|layer| layer.agent_byte_rate = Some("1MiB".parse().unwrap())).await;
    let set = single(bytes(20, 6 * FRAME));
    let agent = stage.agent_with("ada", &set).await;
    let bob = stage.gateway.reader("user:bob");
    let path = url(&set);
    let begun = Instant::now();
    let downloads = join_all((0..4).map(|n| {
        let (stage, path, bob) = (&stage, &path, &bob);
        async move {
            let range = format!("bytes={}-", 1 + n % 2);
            let answer = match n {
                0 | 1 => stage.over(n == 0, path, Some(&range)).await,
                _ => stage.gateway.download_range(path, bob, &range).await,
            };
            body(answer).await
        }
    }));
    let downloads = downloads.await;
    let took = begun.elapsed();
    for (n, received) in downloads.into_iter().enumerate() {
        assert_bytes(&received, &set.files[0].bytes[1 + n % 2..], "one of four");
    }
    let sent = usize::try_from(agent.bytes_sent()).unwrap();
    let least = least(sent, RATE / 2 + 2 * FRAME as u64);
    assert!(took >= least, "{sent} bytes in {took:?}, which is less than {least:?}");
    assert!(held(&stage, "agent") > 0.0);
    assert_eq!(stage.gateway.metric("sluice_resumes_total{reason=\"stalled\"}"), 0.0, "nobody took it for stalled");
    stage.wait_for_quiet().await;
}
