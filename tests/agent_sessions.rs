//! Agents' sessions, over real sockets against the whole gateway.

mod support;

use support::{Gateway, SampleSet, bytes, set_file};

#[tokio::test]
async fn a_set_is_announced_and_downloaded() {
    let gateway = Gateway::start().await;
    gateway.put_chat("c1", &["user:alice"]).await;
    gateway.bind_session("turn-1", "c1", "agent:ada").await;
    let agent = gateway.agent("ada").await;
    let set = SampleSet::of([("a.bin", bytes(1, 1 << 20))]).chunked(256 * 1024);
    agent.announce_in("turn-1", &set).await;
    gateway.wait_for_set("c1", &set.identity()).await;
    let answer = gateway.get(&set_file("c1", &set, "a.bin"), &gateway.reader("user:alice")).await;
    assert_eq!((answer.status.as_u16(), answer.header("sluice-verified")), (200, "full"));
    assert!(answer.body == *set.file("a.bin").bytes);
}
