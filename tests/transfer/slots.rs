//! Sixteen reads at a time, any number of readers.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use http::Method;
use sluice::transfer::State;

use crate::stage::{FRAME, Stage, assert_bytes, body, single, url};
use crate::support::{Download, bytes};

/// Well below the deadline of a test, and far above what an idle machine needs.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_sixteen_reads_are_in_flight() {
    let stage = Stage::new().await;
    let set = single(bytes(1, 4 * FRAME));
    let agent = stage.agent_with("ada", &set).await;
    let path = url(&set);
    // Nothing vouches for a part of the file, so no two share a read.
    let all = join_all((0..48).map(|n| stage.over(n % 2 == 0, &path, Some("bytes=1-")))).await;
    for received in join_all(all.into_iter().map(body)).await {
        assert_bytes(&received, &set.files[0].bytes[1..], "one of many");
    }
    let most = agent.most_concurrent_reads();
    assert!((2..=16).contains(&most), "{most} reads at once");
    stage.wait_for_quiet().await;
}

/// A file without a chunk list that is longer than this is read for each of its readers alone.
const UNSHARED: usize = 65 * FRAME;

/// So many readers who have read something and then stopped.
async fn stuck(stage: &Stage, path: &str, count: usize) -> Vec<Download> {
    let mut readers = join_all((0..count).map(|_| stage.slow(path))).await;
    for reader in &mut readers {
        assert_eq!(reader.status, 200);
        reader.read(1000).await;
    }
    readers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_readers_who_stopped_do_not_block_another() {
    let stage = Stage::new().await;
    let (large, small) = (single(bytes(2, UNSHARED)), single(bytes(3, 4 * FRAME)).chunked(FRAME));
    let agent = stage.agent_with("ada", &large).await;
    stage.share(&agent, "c1", &small).await;
    let readers = stuck(&stage, &url(&large), 64).await;
    for range in [None, Some("bytes=0-99")] {
        let begun = Instant::now();
        let mut answer = stage.over(false, &url(&small), range).await;
        answer.read(100).await;
        assert!(begun.elapsed() < SOON, "the first byte took {:?}", begun.elapsed());
        body(answer).await;
        assert!(begun.elapsed() < SOON, "the last byte took {:?}", begun.elapsed());
    }
    let most = agent.most_concurrent_reads();
    assert!(most <= 16, "{most} reads at once");
    drop(readers);
    stage.wait_for_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_all_get_on() {
    const STEPS: usize = 3;
    let stage = Stage::new().await;
    let set = single(bytes(4, FRAME * (STEPS + 6))).chunked(FRAME);
    let agent = stage.agent_with("ada", &set).await;
    let mut readers = stuck(&stage, &url(&set), 24).await;
    for step in 0..STEPS {
        for reader in &mut readers {
            let (from, to) = (1000 + step * FRAME, 1000 + (step + 1) * FRAME);
            assert_bytes(&reader.read(FRAME).await, &set.files[0].bytes[from..to], "a slow reader");
        }
    }
    let rest = &set.files[0].bytes[1000 + STEPS * FRAME..];
    for received in join_all(readers.into_iter().map(body)).await {
        assert_bytes(&received, rest, "a slow reader's rest");
    }
    let most = agent.most_concurrent_reads();
    assert!(most <= 16, "{most} reads at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_ranges_are_not_starved_by_long_ones() {
    let stage = Stage::new().await;
    let set = single(bytes(5, FRAME).repeat(400));
    let agent = stage.agent_with("ada", &set).await;
    let path = url(&set);
    // Twenty downloads that never end by themselves.
    let long = join_all((0..20).map(|_| async {
        let mut answer = stage.get(&path).await;
        while let Some(Ok(_)) = answer.chunk().await {}
        panic!("a long download ended before the short ones");
    }));
    let short = async {
        stage.wait_for_state(State::Reading, 16).await;
        for n in 0..8 {
            let begun = Instant::now();
            let answer = stage.range(&path, &format!("bytes={n}-{}", n + 999)).await;
            assert_bytes(&body(answer).await, &set.files[0].bytes[n..n + 1000], "a short range");
            assert!(begun.elapsed() < SOON, "a short range took {:?}", begun.elapsed());
        }
    };
    tokio::select! {
        _ = long => {}
        () = short => {}
    }
    let most = agent.most_concurrent_reads();
    assert!(most <= 16, "{most} reads at once");
    stage.wait_for_quiet().await;
}

#[tokio::test]
async fn a_reader_has_its_share_and_no_more() {
    let stage = Stage::with(|layer| layer.max_transfers = Some(64)).await;
    let set = single(bytes(7, UNSHARED));
    let _agent = stage.agent_with("ada", &set).await;
    let mut readers = stuck(&stage, &url(&set), 32).await;
    let answer = stage.range(&url(&set), "bytes=0-0").await.whole().await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "too_many_transfers"));
    assert_eq!(answer.json()["error"]["limit"], 32);
    let bob = stage.gateway.reader("user:bob");
    assert_eq!(stage.gateway.download_range(&url(&set), &bob, "bytes=0-0").await.status, 206, "another has its own");
    readers.pop();
    stage.gateway.wait_for_metric("sluice_transfers_running", 31.0).await;
    assert_eq!(stage.range(&url(&set), "bytes=0-0").await.status, 206);
}

#[tokio::test]
async fn past_the_most_transfers_one_is_told_to_come_back() {
    let stage = Stage::with(|layer| layer.max_transfers = Some(2)).await;
    let set = single(bytes(6, UNSHARED));
    let _agent = stage.agent_with("ada", &set).await;
    let mut readers = stuck(&stage, &url(&set), 2).await;
    for http2 in [false, true] {
        let answer = stage.over(http2, &url(&set), Some("bytes=0-0")).await;
        assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1);
        let answer = answer.whole().await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "too_many_transfers"));
        assert_eq!(answer.json()["error"]["limit"], 2);
    }
    let (head, list) = join(
        stage.gateway.ask(Method::HEAD, &url(&set), &stage.alice(), None),
        stage.gateway.operate(Method::GET, "/v1/transfers", None),
    )
    .await;
    assert_eq!((head.status.as_u16(), &list.json()["limit"]), (200, &serde_json::json!(2)));
    readers.pop();
    stage.gateway.wait_for_metric("sluice_transfers_running", 1.0).await;
    assert_eq!(stage.range(&url(&set), "bytes=0-0").await.status, 206);
}
