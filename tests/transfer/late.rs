//! Readers that come to bytes which are on their way to another reader already.

use futures_util::future::join_all;

use crate::cached::with_cache;
use crate::stage::{FRAME, Stage, assert_bytes, body, single, url};
use crate::support::{Behaviour, bytes};

const RECEIVED: &str = "sluice_received_bytes_total";

const CHUNK: usize = 4 * FRAME;

/// When each of `count` late readers comes: after how many bytes of the first one's `len`.
fn moments(seed: u64, count: usize, len: usize) -> Vec<usize> {
    let words = bytes(seed, 8 * count);
    let mut moments: Vec<_> =
        words.as_chunks().0.iter().map(|word| (u64::from_le_bytes(*word) % len as u64) as usize).collect();
    moments.sort_unstable();
    moments
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_late_readers_come_the_agent_sends_about_one_file() {
    for (seed, chunked) in [(1, true), (2, true), (3, false)] {
        let stage = Stage::with(with_cache).await;
        // Without a list the file is one object, which whoever comes late waits for as a whole.
        let content = bytes(seed, 4 * CHUNK + 1000);
        let set = single(content.clone());
        let set = if chunked { set.chunked(CHUNK) } else { set };
        let agent = stage.agent_with("ada", &set).await;
        // Small frames, so that there is a middle of a chunk to come to.
        agent.behave(Behaviour::obedient().frames_of(32 * 1024));
        let path = url(&set);
        let mut first = stage.get(&path).await;
        let (mut received, mut late) = (Vec::new(), Vec::new());
        for moment in moments(seed, 20, content.len()) {
            let missing = moment.saturating_sub(received.len());
            received.extend(first.read(missing).await);
            late.push(async { body(stage.get(&path).await).await });
        }
        let rest = async { body(first).await };
        let (rest, late) = futures_util::future::join(rest, join_all(late)).await;
        received.extend(rest);
        assert_bytes(&received, &content, "the first");
        late.iter().for_each(|received| assert_bytes(received, &content, "a late one"));
        let sent = stage.gateway.metric(RECEIVED) / content.len() as f64;
        println!("seed {seed}: the agent sent {sent:.2} times the file");
        assert!(sent < 3.0, "{sent} times the file for 21 readers");
        stage.wait_for_quiet().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_one_whose_reader_has_stopped() {
    let stage = Stage::with(with_cache).await;
    // More than a feed keeps for those that come at about the same time.
    let set = single(bytes(4, 96 * FRAME)).chunked(96 * FRAME);
    let _agent = stage.agent_with("ada", &set).await;
    let path = url(&set);
    let mut stopped = stage.slow(&path).await;
    let begun = stopped.read(40 * FRAME).await;
    stage.wait_for_state(sluice::transfer::State::WaitingForReader, 1).await;
    // By one client that takes the first answer only after the others: none may wait for that.
    for n in 0..2 {
        let late = body(stage.over(n % 2 == 0, &path, None).await).await;
        assert_bytes(&late, &set.files[0].bytes, "beside one that stopped");
    }
    let rest = body(stopped).await;
    assert_bytes(&[begun, rest].concat(), &set.files[0].bytes, "the one that stopped");
    stage.wait_for_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waited_goes_on_alone_when_the_one_it_waited_for_leaves() {
    let stage = Stage::with(with_cache).await;
    let set = single(bytes(5, 24 * FRAME)).chunked(12 * FRAME);
    let agent = stage.agent_with("ada", &set).await;
    agent.behave(Behaviour::obedient().frames_of(16 * 1024));
    let path = url(&set);
    for n in 0..3 {
        let mut first = stage.get(&path).await;
        first.read((1 + 4 * n) * FRAME).await;
        let late = join_all((0..4).map(|n| stage.over(n % 2 == 0, &path, None)));
        let leaving = async {
            first.read(FRAME).await;
            drop(first);
        };
        let (late, ()) = futures_util::future::join(late, leaving).await;
        for received in join_all(late.into_iter().map(body)).await {
            assert_bytes(&received, &set.files[0].bytes, "a late one");
        }
        stage.wait_for_quiet().await;
    }
}
