//! A gateway with one chat, and agents and readers in it.

use std::sync::Arc;

use http::{HeaderValue, Method};
use sluice::config::Layer;
use sluice::transfer::{Live, State};

use crate::support::platform::within;
use crate::support::{Agent, Download, Gateway, SampleSet, What, eventually, set_file};

/// The payload of a full frame.
pub const FRAME: usize = 256 * 1024;

/// Chat `c1` with alice and bob in it, and chat `c2` with mallory.
pub struct Stage {
    pub gateway: Gateway,
}

impl Stage {
    pub async fn new() -> Self {
        Self::with(|_| ()).await
    }

    pub async fn with(change: impl FnOnce(&mut Layer)) -> Self {
        Self::on(Gateway::builder().with(change).start().await).await
    }

    pub async fn on(gateway: Gateway) -> Self {
        gateway.put_chat("c1", &["user:alice", "user:bob"]).await;
        gateway.put_chat("c2", &["user:mallory"]).await;
        Self { gateway }
    }

    pub async fn agent(&self, id: &str) -> Agent {
        self.gateway.agent(id).await
    }

    /// An agent that has announced this set in `c1`.
    pub async fn agent_with(&self, id: &str, set: &SampleSet) -> Agent {
        let agent = self.agent(id).await;
        self.share(&agent, "c1", set).await;
        agent
    }

    /// Announces a set in a chat and waits until it is there.
    pub async fn share(&self, agent: &Agent, chat: &str, set: &SampleSet) {
        let turn = format!("turn-{chat}-{}", agent.name());
        self.gateway.bind_session(&turn, chat, &format!("agent:{}", agent.name())).await;
        agent.announce_in(&turn, set).await;
        let identity = set.identity();
        eventually("the set", async || {
            let sets = self.gateway.sets(chat).await;
            sets.iter().any(|set| set["sha256"] == identity && set["agent"] == agent.name()).then_some(())
        })
        .await;
    }

    pub fn alice(&self) -> String {
        self.gateway.reader("user:alice")
    }

    /// Alice's download over HTTP/1.1, as far as the head.
    pub async fn get(&self, path: &str) -> Download {
        self.gateway.download(path, &self.alice()).await
    }

    /// Alice's download of a range.
    pub async fn range(&self, path: &str, range: &str) -> Download {
        self.gateway.download_range(path, &self.alice(), range).await
    }

    /// Alice's download over either version, of a range or whole.
    pub async fn over(&self, http2: bool, path: &str, range: Option<&str>) -> Download {
        within(self.try_over(http2, path, range)).await.unwrap()
    }

    async fn try_over(&self, http2: bool, path: &str, range: Option<&str>) -> hyper::Result<Download> {
        let mut request = self.gateway.request(Method::GET, path, &self.alice(), None);
        if let Some(range) = range {
            request.headers_mut().insert("range", HeaderValue::from_str(range).unwrap());
        }
        let client = self.gateway.client();
        let client = if http2 { client.http2() } else { client };
        client.try_send(request).await
    }

    /// The same to its end, which may be a cut.
    pub async fn outcome(&self, http2: bool, path: &str, range: Option<&str>) -> Outcome {
        match within(self.try_over(http2, path, range)).await {
            Ok(mut answer) => {
                let (bytes, end) = answer.rest().await;
                let verified = answer.header("sluice-verified").to_owned();
                Outcome { status: Some(answer.status.as_u16()), verified, bytes, whole: end.is_ok() }
            }
            // A stream that is reset throws away what was not sent yet, be it the head.
            Err(error) => {
                assert!(http2, "{error}");
                Outcome { status: None, verified: String::new(), bytes: Vec::new(), whole: false }
            }
        }
    }

    /// Alice's download with so small a buffer that the gateway soon feels when she stops.
    pub async fn slow(&self, path: &str) -> Download {
        let request = self.gateway.request(Method::GET, path, &self.alice(), None);
        self.gateway.client().receive_buffer(32 * 1024).send(request).await
    }

    /// The transfers that run.
    pub fn running(&self) -> Vec<Arc<Live>> {
        self.gateway.state().transfers.running()
    }

    /// Waits until so many transfers are in this state.
    pub async fn wait_for_state(&self, state: State, count: usize) {
        let what = format!("{count} transfers {}", state.name());
        let in_state = || self.running().iter().filter(|live| live.state() == state).count();
        eventually(&what, async || (in_state() == count).then_some(())).await;
    }

    /// Waits until nothing runs any more: no transfer, no read, nobody in a queue.
    pub async fn wait_for_quiet(&self) {
        for gauge in ["sluice_transfers_running", "sluice_reads_running", "sluice_read_slot_waits"] {
            self.gateway.wait_for_metric(gauge, 0.0).await;
        }
    }
}

/// How a download ended.
#[derive(Debug)]
pub struct Outcome {
    /// None when the cut came before the head.
    pub status: Option<u16>,
    pub verified: String,
    pub bytes: Vec<u8>,
    /// Whether it ended as it should.
    pub whole: bool,
}

/// A set of one file.
pub fn single(bytes: Vec<u8>) -> SampleSet {
    SampleSet::of([("a.bin", bytes)])
}

/// Where the file of a set made by [`single`] is.
pub fn url(set: &SampleSet) -> String {
    set_file("c1", set, "a.bin")
}

/// Where it is by its hash.
pub fn blob_url(set: &SampleSet) -> String {
    format!("/artifacts/blobs/sha256:{}", set.files[0].sha256)
}

/// The status and the code of a refusal.
pub async fn refusal(answer: Download) -> (u16, String) {
    let answer = answer.whole().await;
    (answer.status.as_u16(), answer.code())
}

/// The whole body, which must end as it should.
pub async fn body(mut download: Download) -> Vec<u8> {
    let (bytes, end) = download.rest().await;
    assert!(end.is_ok(), "the answer was cut after {} bytes: {end:?}", bytes.len());
    bytes
}

/// What came of a body that must be cut.
pub async fn cut(mut download: Download) -> Vec<u8> {
    let (bytes, end) = download.rest().await;
    assert!(end.is_err(), "the answer ended well after {} bytes", bytes.len());
    bytes
}

/// Offset and length of each read that an agent was asked for.
pub fn asked(agent: &Agent) -> Vec<(u64, u64)> {
    let range = |what| match what {
        What::Read { offset, length, .. } => (offset, length),
        other => panic!("{other:?} is no read"),
    };
    agent.reads().into_iter().map(|event| range(event.what)).collect()
}

/// What came of a body that was cut after at most so many bytes: the cut itself may throw away what was not sent yet.
pub fn assert_prefix(got: &[u8], content: &[u8], at_most: usize, what: &str) {
    assert!(got.len() <= at_most, "{} bytes: {what}", got.len());
    assert_bytes(got, &content[..got.len()], what);
}

/// Fails without printing megabytes.
pub fn assert_bytes(got: &[u8], expected: &[u8], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differs = got.iter().zip(expected).position(|(one, other)| one != other);
    assert_eq!(differs, None, "the first byte that differs: {what}");
}
