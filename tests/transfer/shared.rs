//! Readers of the same bytes at the same time: one read of the agent, each at its own pace.

use futures_util::future::{join, join_all};
use sluice::transfer::State;

use crate::stage::{FRAME, Stage, assert_bytes, body, single, url};
use crate::support::{Behaviour, Fault, What, bytes, span};

const RECEIVED: &str = "sluice_received_bytes_total";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_come_at_once_share_one_read() {
    let stage = Stage::new().await;
    for (n, chunked) in [(0, true), (1, false)] {
        let set = single(bytes(n, 24 * FRAME));
        let set = if chunked { set.chunked(2 * FRAME) } else { set };
        let mut agent = stage.agent_with(&format!("agent-{n}"), &set).await;
        let before = stage.gateway.metric(RECEIVED);
        let path = url(&set);
        agent.cut().await;
        let coming = join_all((0..16).map(|n| stage.over(n % 2 == 0, &path, None)));
        let back = async {
            // However long it takes until they are all there.
            stage.wait_for_state(State::WaitingForAgent, 16).await;
            agent.reconnect().await;
        };
        let (all, ()) = join(coming, back).await;
        for received in join_all(all.into_iter().map(body)).await {
            assert_bytes(&received, &set.files[0].bytes, "one of sixteen");
        }
        let sent = stage.gateway.metric(RECEIVED) - before;
        assert_eq!(sent, (24 * FRAME) as f64, "chunked: {chunked}");
    }
    stage.wait_for_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_stops_does_not_hold_the_others_up() {
    let stage = Stage::new().await;
    let set = single(bytes(2, 160 * FRAME)).chunked(4 * FRAME);
    let _agent = stage.agent_with("ada", &set).await;
    let path = url(&set);
    let mut stopped = stage.slow(&path).await;
    stopped.read(1000).await;
    let readers = join_all((0..3).map(|n| stage.over(n % 2 == 0, &path, None))).await;
    for received in join_all(readers.into_iter().map(body)).await {
        assert_bytes(&received, &set.files[0].bytes, "beside one that stopped");
    }
    // It gets the rest when it goes on, from a read of its own.
    assert_bytes(&body(stopped).await, &set.files[0].bytes[1000..], "the one that stopped");
    stage.wait_for_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_leaves_takes_nothing_from_the_others() {
    let stage = Stage::new().await;
    let set = single(bytes(3, 24 * FRAME)).chunked(FRAME);
    let agent = stage.agent_with("ada", &set).await;
    let path = url(&set);
    // The first to come is the one for whom the read is asked, and wants less than the others.
    let part = format!("bytes=0-{}", 8 * FRAME - 1);
    let mut first = stage.over(false, &path, Some(&part)).await;
    first.read(1000).await;
    let others = join_all((0..3).map(|n| stage.over(n % 2 == 0, &path, None))).await;
    drop(first);
    for received in join_all(others.into_iter().map(body)).await {
        assert_bytes(&received, &set.files[0].bytes, "after the first left");
    }
    stage.wait_for_quiet().await;
    assert!(agent.reads().len() <= 4, "{} reads", agent.reads().len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_dies_or_lies_does_so_for_all() {
    for lies in [false, true] {
        let stage = Stage::with(|layer| layer.resume_window = Some(span("10s"))).await;
        let content = bytes(4, 16 * FRAME);
        let set = single(content.clone()).chunked(2 * FRAME);
        let mut agent = stage.agent_with("ada", &set).await;
        if lies {
            let mut lie = content.clone();
            lie[9 * FRAME + 7] ^= 1;
            agent.serve_as(&set.files[0].sha256, &lie);
        } else {
            agent.behave(Behaviour::obedient().at(9 * FRAME as u64 + 7, Fault::Die));
        }
        let path = url(&set);
        let downloading = join_all((0..6).map(|n| stage.outcome(n % 2 == 0, &path, None)));
        let reconnecting = async {
            if !lies {
                agent.wait_for(|event| event.what == What::Cut).await;
                agent.reconnect().await;
            }
        };
        let (outcomes, ()) = futures_util::future::join(downloading, reconnecting).await;
        for outcome in outcomes {
            assert_eq!(outcome.whole, !lies);
            assert!(content.starts_with(&outcome.bytes) && (lies || outcome.bytes.len() == content.len()));
            assert!(!lies || outcome.bytes.len() < 10 * FRAME);
        }
        stage.wait_for_quiet().await;
    }
}
