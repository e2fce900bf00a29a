//! Readers share an agent equally, whatever their numbers of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use tokio::sync::Notify;

use crate::stage::{FRAME, Stage, assert_bytes, body, single, url};
use crate::support::{Download, bytes};

/// What some connections took, and who is told of it.
#[derive(Default)]
struct Taken {
    bytes: AtomicU64,
    more: Notify,
}

impl Taken {
    fn now(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits until so many bytes have been taken.
    async fn wait_for(&self, bytes: u64) {
        while self.now() < bytes {
            self.more.notified().await;
        }
    }
}

/// One connection that takes all there is, again and again. Nothing vouches for a part of the file, so no two share a read.
async fn download(stage: &Stage, path: &str, token: &str, taken: &Taken) {
    loop {
        let mut answer: Download = stage.gateway.download_range(path, token, "bytes=1-").await;
        while let Some(Ok(chunk)) = answer.chunk().await {
            taken.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            taken.more.notify_one();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_connections_get_no_more_than_five() {
    let stage = Stage::new().await;
    let set = single(bytes(1, FRAME).repeat(200));
    let agent = stage.agent_with("ada", &set).await;
    let path = url(&set);
    let readers = [("user:alice", 50), ("user:bob", 5)]
        .map(|(reader, count)| (stage.gateway.reader(reader), count, Arc::new(Taken::default())));
    let connections = readers.iter().flat_map(|(token, count, taken)| {
        std::iter::repeat_with(|| download(&stage, &path, token, taken)).take(*count)
    });
    let measured = async {
        let [(.., alice), (.., bob)] = &readers;
        // Until all of them are there, and windows are what they are.
        bob.wait_for(40 * FRAME as u64).await;
        alice.wait_for(40 * FRAME as u64).await;
        let before = [alice.now(), bob.now()];
        bob.wait_for(before[1] + 200 * FRAME as u64).await;
        [alice.now() - before[0], bob.now() - before[1]]
    };
    let [alice, bob] = tokio::select! {
        _ = join_all(connections) => panic!("downloads never end"),
        measured = measured => measured,
    };
    let ratio = alice as f64 / bob as f64;
    println!("50 connections took {alice} bytes and 5 took {bob}: {ratio:.2}");
    assert!((0.5..=1.6).contains(&ratio), "50 connections took {alice} bytes and 5 took {bob}");
    let most = agent.most_concurrent_reads();
    assert!(most <= 16, "{most} reads at once");
    stage.wait_for_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_readers_short_range_waits_for_none_of_anothers_fifty() {
    let stage = Stage::new().await;
    let set = single(bytes(2, FRAME).repeat(200));
    let agent = stage.agent_with("ada", &set).await;
    let path = url(&set);
    let (alice, bob) = (stage.alice(), stage.gateway.reader("user:bob"));
    let taken = Taken::default();
    let many = join_all(std::iter::repeat_with(|| download(&stage, &path, &alice, &taken)).take(50));
    let one = async {
        taken.wait_for(100 * FRAME as u64).await;
        let mut asked = Vec::new();
        for n in 0..20 {
            let before = agent.reads().len();
            let answer = stage.gateway.download_range(&path, &bob, &format!("bytes={n}-{}", n + 999)).await;
            assert_bytes(&body(answer).await, &set.files[0].bytes[n..n + 1000], "a short range");
            asked.push(agent.reads().len() - before);
        }
        asked
    };
    let mut asked = tokio::select! {
        _ = many => panic!("downloads never end"),
        asked = one => asked,
    };
    // Its own read is the next one that is asked; others are asked while it is on its way.
    println!("reads asked from request to answer: {asked:?}");
    // Not the worst: the request itself may have to wait for a processor.
    asked.sort_unstable();
    assert!(asked[asked.len() / 2] <= 40, "{asked:?}");
}
