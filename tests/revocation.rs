//! Who loses a chat loses what runs from it, within a second; nothing else does.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::{Duration, Instant};

use http::Method;
use serde_json::json;
use sluice::store::{Store, StoreOptions};
use support::db::{self, TestDatabase};
use support::{Agent, Download, Gateway, SampleSet, bytes, eventually, set_file, span};

const FRAME: usize = 256 * 1024;
const REVOKED: &str = "sluice_transfers_ended_total{outcome=\"revoked\"}";
const SECOND: Duration = Duration::from_secs(1);

/// Chats `c1` and `c2` with the same set in both; alice and bob in the first.
struct House {
    gateway: Gateway,
    agent: Agent,
    set: SampleSet,
}

impl House {
    async fn open(database: &TestDatabase) -> Self {
        Self::on(Gateway::builder().on(database).start().await).await
    }

    async fn on(gateway: Gateway) -> Self {
        gateway.put_chat("c1", &["user:alice", "user:bob"]).await;
        gateway.put_chat("c2", &["user:carol"]).await;
        let set = SampleSet::of([("a.bin", bytes(1, 64 * FRAME))]).chunked(4 * FRAME);
        let agent = gateway.agent("ada").await;
        for chat in ["c1", "c2"] {
            gateway.bind_session(&format!("turn-{chat}"), chat, "agent:ada").await;
            agent.announce_in(&format!("turn-{chat}"), &set).await;
            gateway.wait_for_set(chat, &set.identity()).await;
        }
        Self { gateway, agent, set }
    }

    fn by_path(&self, chat: &str) -> String {
        set_file(chat, &self.set, "a.bin")
    }

    fn by_hash(&self) -> String {
        format!("/artifacts/blobs/sha256:{}", self.set.files[0].sha256)
    }

    /// A download that has begun, and whose reader does not read on.
    async fn begin(&self, path: &str, reader: &str, http2: bool) -> Download {
        let request = self.gateway.request(Method::GET, path, &self.gateway.reader(reader), None);
        let client = self.gateway.client().receive_buffer(32 * 1024);
        let mut download = if http2 { client.http2() } else { client }.send(request).await;
        assert_eq!(download.status, 200);
        download.read(1000).await;
        download
    }

    async fn allow(&self, chat: &str, principal: &str) {
        self.gateway.operate(Method::PUT, &format!("/v1/chats/{chat}/participants/{principal}"), None).await;
    }

    /// Waits until at least so many transfers have been ended, and says for how long.
    async fn wait_for_revoked(&self, count: usize) -> Duration {
        let begun = Instant::now();
        eventually(REVOKED, async || (self.gateway.metric(REVOKED) >= count as f64).then_some(())).await;
        begun.elapsed()
    }
}

async fn assert_cut(mut download: Download) {
    assert!(download.rest().await.1.is_err(), "the answer ended well");
}

/// The rest comes, and is what was announced.
async fn assert_goes_on(mut download: Download, set: &SampleSet) {
    let (rest, end) = download.rest().await;
    assert!(end.is_ok(), "{end:?}");
    assert!(rest == set.files[0].bytes[1000..], "other bytes");
}

async fn whoever_loses_the_chat_is_cut_off(database: &TestDatabase) {
    let house = House::open(database).await;
    let gateway = &house.gateway;
    let (c1, alice) = ("/v1/chats/c1", "/v1/chats/c1/participants/user:alice");
    let mut ended = 0;
    for (method, path, body) in
        [(Method::DELETE, alice, None), (Method::PUT, c1, Some(json!({"participants": ["user:bob"]})))]
    {
        house.allow("c1", "user:alice").await;
        let hers = [
            house.begin(&house.by_path("c1"), "user:alice", false).await,
            house.begin(&house.by_path("c1"), "user:alice", true).await,
            house.begin(&house.by_hash(), "user:alice", true).await,
        ];
        let bobs = house.begin(&house.by_path("c1"), "user:bob", false).await;
        gateway.operate(method, path, body).await;
        ended += hers.len();
        // Some end only when their connection is polled; what counts is that nothing more goes out.
        let quiet = house.wait_for_revoked(ended - 1).await;
        assert!(quiet < SECOND, "{quiet:?}");
        for download in hers {
            assert_cut(download).await;
        }
        house.wait_for_revoked(ended).await;
        assert_goes_on(bobs, &house.set).await;
    }
    // A chat made anew under the old one's name is another.
    let bobs = house.begin(&house.by_path("c1"), "user:bob", true).await;
    gateway.operate(Method::DELETE, c1, None).await;
    gateway.put_chat("c1", &["user:bob"]).await;
    let quiet = house.wait_for_revoked(ended + 1).await;
    assert!(quiet < SECOND, "{quiet:?}");
    assert_cut(bobs).await;
    gateway.wait_for_metric("sluice_reads_running", 0.0).await;
    assert_eq!(gateway.get(&house.by_path("c1"), &gateway.reader("user:bob")).await.status, 404);
}

async fn whoever_still_may_reads_on(database: &TestDatabase) {
    let house = House::open(database).await;
    house.allow("c2", "user:alice").await;
    house.allow("c1", "*").await;
    let by_hash = house.begin(&house.by_hash(), "user:alice", false).await;
    let by_path = house.begin(&house.by_path("c2"), "user:alice", true).await;
    let stranger = house.begin(&house.by_hash(), "user:dave", true).await;
    let gateway = &house.gateway;
    // She is one of everybody still; then she has the other chat; then neither.
    gateway.operate(Method::DELETE, "/v1/chats/c1/participants/user:alice", None).await;
    gateway.operate(Method::DELETE, "/v1/chats/c1/participants/*", None).await;
    house.wait_for_revoked(1).await;
    assert_cut(stranger).await;
    gateway.operate(Method::DELETE, "/v1/chats/c1", None).await;
    assert_goes_on(by_hash, &house.set).await;
    gateway.operate(Method::DELETE, "/v1/chats/c2", None).await;
    house.wait_for_revoked(2).await;
    assert_cut(by_path).await;
}

async fn what_another_process_writes_is_heard_of(database: &TestDatabase) {
    let house = House::open(database).await;
    let hers = house.begin(&house.by_path("c1"), "user:alice", true).await;
    let other = Store::open(&database.url, StoreOptions::default()).await.unwrap();
    other.remove_participant(&"c1".parse().unwrap(), &"user:alice".parse().unwrap()).await.unwrap();
    house.wait_for_revoked(1).await;
    assert_cut(hers).await;
}

async fn a_reader_who_waits_for_its_agent_is_told_what_strangers_are(database: &TestDatabase) {
    let gateway = Gateway::builder().on(database).with(|layer| layer.agent_wait = Some(span("20s"))).start().await;
    let mut house = House::on(gateway).await;
    house.agent.cut().await;
    let gateway = &house.gateway;
    gateway.wait_for_metric("sluice_agents_online", 0.0).await;
    let (path, alice) = (house.by_path("c1"), gateway.reader("user:alice"));
    let revoke = async {
        gateway.wait_for_metric("sluice_transfers_running", 1.0).await;
        gateway.operate(Method::DELETE, "/v1/chats/c1/participants/user:alice", None).await;
    };
    let (answer, ()) = futures_util::future::join(gateway.get(&path, &alice), revoke).await;
    let stranger = gateway.get(&path, &gateway.reader("user:dave")).await;
    assert_eq!((answer.status, answer.body), (stranger.status, stranger.body));
}

on_both_databases!(
    whoever_loses_the_chat_is_cut_off,
    whoever_still_may_reads_on,
    what_another_process_writes_is_heard_of,
    a_reader_who_waits_for_its_agent_is_told_what_strangers_are,
);
