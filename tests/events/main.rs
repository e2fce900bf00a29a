//! What happens in a chat, as its readers are told over a socket.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod ends;
mod limits;
mod resume;
mod told;

use serde_json::json;
use support::{Agent, EventStream, Gateway, SampleSet, Told, bytes, db::TestDatabase};

const SUBSCRIBERS: &str = "sluice_event_subscribers";

/// Chat `c1` of alice and bob, where ada has a set, and `c2` of carol.
struct House {
    gateway: Gateway,
    ada: Agent,
    set: SampleSet,
}

impl House {
    async fn open(database: &TestDatabase) -> Self {
        Self::on(Gateway::builder().on(database).start().await).await
    }

    async fn on(gateway: Gateway) -> Self {
        gateway.put_chat("c1", &["user:alice", "user:bob"]).await;
        gateway.put_chat("c2", &["user:carol"]).await;
        gateway.bind_session("turn-1", "c1", "agent:ada").await;
        let ada = gateway.agent("ada").await;
        let set = SampleSet::of([("a.bin", bytes(1, 8 << 20))]);
        ada.announce_in("turn-1", &set).await;
        gateway.wait_for_set("c1", &set.identity()).await;
        Self { gateway, ada, set }
    }

    /// A stream of somebody's in `c1`, past its beginning.
    async fn stream(&self, reader: &str) -> EventStream {
        let (stream, first) = EventStream::open(&self.gateway, "c1", &self.gateway.reader(reader), "").await;
        assert_eq!(first.iter().map(|told| told.name.as_str()).collect::<Vec<_>>(), ["transfers"]);
        stream
    }

    /// A stream that goes on from an id, and what it begins with.
    async fn go_on(&self, reader: &str, id: &str) -> (EventStream, Vec<Told>) {
        EventStream::open(&self.gateway, "c1", &self.gateway.reader(reader), id).await
    }

    /// A set of ada's by this number, announced in `c1`.
    async fn announce(&self, number: u64) -> SampleSet {
        let set = SampleSet::of([("n.bin", bytes(number, 100))]);
        self.ada.announce_in("turn-1", &set).await;
        self.gateway.wait_for_set("c1", &set.identity()).await;
        set
    }

    /// Something that takes its place in the history of `c1`.
    fn happen(&self) {
        self.gateway.state().events.lose(&"c1".parse().unwrap());
    }
}

/// The set that a `set` event tells.
async fn next_set(stream: &mut EventStream) -> String {
    stream.expect("set").await["sha256"].as_str().unwrap().to_owned()
}

/// The last event of a stream that ends for this reason.
async fn assert_ends(stream: &mut EventStream, reason: &str) -> std::time::Duration {
    let (last, took) = stream.end().await;
    let last = last.unwrap_or_else(|| panic!("the stream ends without a word instead of {reason}"));
    assert_eq!((last.name.as_str(), last.data), ("end", json!({"reason": reason})));
    took
}
