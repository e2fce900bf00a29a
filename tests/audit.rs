//! Who read what, as an operator sees it afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use serde_json::Value;
use sluice::clock::Clock;
use support::db::{self, TestDatabase};
use support::{Agent, Gateway, SampleSet, bytes, eventually, set_file, span};

on_both_databases!(
    reads_are_written_down_with_how_they_ended,
    reads_are_found_by_what_is_known_of_them,
    what_is_left_is_written_when_the_gateway_drains,
    what_the_gateways_end_cuts_is_written_down_as_such,
    a_read_goes_after_its_retention,
);

const CHUNK: usize = 256 * 1024;

struct House {
    gateway: Gateway,
    agent: Agent,
    set: SampleSet,
}

impl House {
    async fn new(gateway: Gateway) -> Self {
        gateway.put_chat("c1", &["user:alice", "user:bob"]).await;
        gateway.bind_session("turn-1", "c1", "agent:ada").await;
        let agent = gateway.agent("ada").await;
        let set = SampleSet::of([("dir/a.bin", bytes(1, 2 * CHUNK)), ("b.txt", b"text".to_vec())]).chunked(CHUNK);
        agent.announce_in("turn-1", &set).await;
        gateway.wait_for_set("c1", &set.identity()).await;
        Self { gateway, agent, set }
    }

    async fn audit(&self, query: &str) -> Value {
        let answer = self.gateway.get(&format!("/v1/audit{query}"), &self.gateway.operator()).await;
        assert_eq!(answer.status, 200, "{query}: {:?}", answer.body);
        answer.json()
    }

    /// So many reads, the latest first, once they are written.
    async fn reads(&self, query: &str, count: usize) -> Vec<Value> {
        eventually("the audit", async || {
            let reads = self.audit(query).await["reads"].as_array().unwrap().clone();
            (reads.len() == count).then_some(reads)
        })
        .await
    }
}

async fn reads_are_written_down_with_how_they_ended(database: &TestDatabase) {
    let house = House::new(Gateway::builder().on(database).with(short_wait).start().await).await;
    let (gateway, set) = (&house.gateway, &house.set);
    let alice = gateway.reader("user:alice");

    let part = gateway.download_range(&set_file("c1", set, "dir/a.bin"), &alice, "bytes=0-99").await.whole().await;
    assert_eq!(part.status, 206);
    let read = house.reads("", 1).await.remove(0);
    assert_eq!(read["principal"], "user:alice");
    assert_eq!(read["chat"], "c1");
    assert_eq!(read["agents"], serde_json::json!(["agent:ada"]));
    assert_eq!(read["sha256"], set.file("dir/a.bin").sha256);
    assert_eq!(read["path"], "dir/a.bin");
    assert_eq!((&read["start"], &read["end"], &read["sent_bytes"]), (&0.into(), &100.into(), &100.into()));
    assert_eq!(read["outcome"], "complete");
    assert!(read["transfer"].is_u64() && read["link"].is_null() && read["duration_ms"].is_u64());

    // A manifest comes from the gateway itself: no agent was asked.
    let manifest = gateway.get(&format!("/v1/chats/c1/sets/{}", set.identity()), &alice).await;
    let read = house.reads("", 2).await.remove(0);
    assert_eq!((&read["sha256"], &read["agents"]), (&set.identity().into(), &serde_json::json!([])));
    assert_eq!(read["sent_bytes"], manifest.body.len());
    assert!(read["transfer"].is_null());

    // Asking what there is, is no read; neither is what one may not have.
    let head = gateway.ask(http::Method::HEAD, &set_file("c1", set, "dir/a.bin"), &alice, None).await;
    assert_eq!(head.status, 200);
    assert_eq!(gateway.get(&set_file("c1", set, "dir/a.bin"), &gateway.reader("user:mallory")).await.status, 404);

    // The file has a hash that the agent does not have any more, and then no agent at all.
    house.agent.forget(&set.file("b.txt").sha256);
    assert_eq!(gateway.get(&set_file("c1", set, "b.txt"), &alice).await.status, 410);
    let read = house.reads("", 3).await.remove(0);
    assert_eq!((&read["outcome"], &read["sent_bytes"]), (&"blob_gone".into(), &0.into()));
}

fn short_wait(layer: &mut sluice::config::Layer) {
    layer.agent_wait = Some(span("300ms"));
}

async fn reads_are_found_by_what_is_known_of_them(database: &TestDatabase) {
    let house = House::new(Gateway::builder().on(database).start().await).await;
    let (gateway, set) = (&house.gateway, &house.set);
    for (principal, file) in [("user:alice", "dir/a.bin"), ("user:bob", "dir/a.bin"), ("user:bob", "b.txt")] {
        assert_eq!(gateway.get(&set_file("c1", set, file), &gateway.reader(principal)).await.status, 200);
    }
    let by_hash = format!("/api/blob/cas/{}", set.file("b.txt").sha256);
    assert_eq!(gateway.get(&by_hash, &gateway.reader("agent:ada")).await.status, 404, "ada takes no part");
    assert_eq!(gateway.get(&by_hash, &gateway.reader("user:alice")).await.status, 200);
    house.reads("", 4).await;

    let hash = &set.file("b.txt").sha256;
    let expected = [
        ("?principal=user:bob".to_owned(), 2),
        ("?chat=c1".to_owned(), 3),
        ("?chat=c2".to_owned(), 0),
        ("?agent=agent:ada".to_owned(), 4),
        ("?agent=agent:eve".to_owned(), 0),
        (format!("?sha256={hash}"), 2),
        (format!("?sha256={hash}&principal=user:bob&agent=agent:ada&chat=c1"), 1),
        ("?since=2020-01-01T00:00:00Z".to_owned(), 4),
        ("?until=2020-01-01T00:00:00Z".to_owned(), 0),
    ];
    for (query, count) in expected {
        assert_eq!(house.audit(&query).await["reads"].as_array().unwrap().len(), count, "{query}");
    }
    let mut seen = Vec::new();
    let mut query = "?limit=3".to_owned();
    loop {
        let page = house.audit(&query).await;
        seen.extend(page["reads"].as_array().unwrap().iter().map(|read| read["transfer"].as_u64().unwrap()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        query = format!("?limit=3&cursor={cursor}");
    }
    let mut sorted = seen.clone();
    sorted.sort_by(|a, b| b.cmp(a));
    sorted.dedup();
    assert_eq!((seen.len(), &seen), (4, &sorted), "the latest first, each once");

    for query in ["?since=yesterday", "?cursor=x", "?agent=ada", "?who=me", "?sha256=12"] {
        let answer = gateway.get(&format!("/v1/audit{query}"), &gateway.operator()).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "bad_request"), "{query}");
    }
}

async fn what_is_left_is_written_when_the_gateway_drains(database: &TestDatabase) {
    let mut house = House::new(Gateway::builder().on(database).start().await).await;
    let alice = house.gateway.reader("user:alice");
    let path = set_file("c1", &house.set, "b.txt");
    assert_eq!(house.gateway.get(&path, &alice).await.status, 200);
    house.gateway.restart().await;
    // At once, and not after what gathers for a while has been written.
    assert_eq!(house.audit("").await["reads"].as_array().unwrap().len(), 1);
}

async fn what_the_gateways_end_cuts_is_written_down_as_such(database: &TestDatabase) {
    let short = Gateway::builder().on(database).with(|layer| layer.shutdown_grace = Some(span("100ms")));
    let mut house = House::new(short.start().await).await;
    let large = SampleSet::of([("large.bin", bytes(2, 32 * CHUNK))]).chunked(CHUNK);
    house.agent.announce_in("turn-1", &large).await;
    house.gateway.wait_for_set("c1", &large.identity()).await;
    let alice = house.gateway.reader("user:alice");
    let request = house.gateway.request(http::Method::GET, &set_file("c1", &large, "large.bin"), &alice, None);
    let mut slow = house.gateway.client().receive_buffer(16 * 1024).send(request).await;
    slow.read(1000).await;
    house.gateway.restart().await;
    assert!(slow.rest().await.1.is_err(), "it was not cut");
    let read = house.reads("", 1).await.remove(0);
    assert_eq!(read["outcome"], "shutdown");
    assert!(read["sent_bytes"].as_u64().unwrap() < 32 * CHUNK as u64);
}

async fn a_read_goes_after_its_retention(database: &TestDatabase) {
    let clock = Clock::fixed(1_800_000_000_000);
    let gateway = Gateway::builder().on(database).clock(clock.clone());
    let gateway = gateway.with(|layer| layer.audit_retention = Some(span("1h"))).start().await;
    let mut house = House::new(gateway).await;
    let alice = house.gateway.reader("user:alice");
    assert_eq!(house.gateway.get(&set_file("c1", &house.set, "b.txt"), &alice).await.status, 200);
    house.reads("", 1).await;

    clock.set(1_800_000_000_000 + 59 * 60 * 1000);
    house.gateway.restart().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(house.audit("").await["reads"].as_array().unwrap().len(), 1);

    clock.set(1_800_000_000_000 + 61 * 60 * 1000);
    house.gateway.restart().await;
    house.reads("", 0).await;
}

#[tokio::test]
async fn nothing_is_written_down_where_nothing_is_kept() {
    let house =
        House::new(Gateway::builder().with(|layer| layer.audit_retention = Some(span("0s"))).start().await).await;
    let alice = house.gateway.reader("user:alice");
    assert_eq!(house.gateway.get(&set_file("c1", &house.set, "b.txt"), &alice).await.status, 200);
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(house.audit("").await["reads"], Value::Array(Vec::new()));
}
