//! Heartbeats beside bulk: who is alive is known to be, and who is not is found out.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use serde_json::json;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::stage::{FRAME, Stage, body, single, url};
use crate::support::log::Kind;
use crate::support::proxy::Proxy;
use crate::support::{Agent, Gateway, What, bytes, span};

/// Answers that may go before a pong: what the connection's task had in its hands when the ping came.
const BEFORE: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_are_answered_beside_sixteen_readers_at_full_speed() {
    let stage = Stage::with(|layer| {
        layer.ping_interval = Some(span("100ms"));
        layer.ping_timeout = Some(span("5s"));
    })
    .await;
    let set = single(bytes(1, FRAME).repeat(100));
    let agent = stage.agent_with("ada", &set).await;
    let path = url(&set);
    let over = AtomicBool::new(false);
    let readers = join_all((0..16).map(|n| {
        let (stage, path, over) = (&stage, &path, &over);
        async move {
            while !over.load(Ordering::Relaxed) {
                drop(body(stage.over(n % 2 == 0, path, Some("bytes=1-")).await).await);
            }
        }
    }));
    let pings = async {
        agent.wait_for_reads(16).await;
        for n in 0..20 {
            let mark = agent.log().mark();
            let id = format!("ping-{n}");
            agent.send(json!({"type": "ping", "event_id": id})).await;
            agent.send_message(Kind::Control, Message::Ping(Bytes::from_static(b"also"))).await;
            let is_pong = |what: &What| matches!(what, What::Frame(frame) if frame["type"] == "pong" && frame["event_id"] == id.as_str());
            agent.log().wait_from(mark, |event| is_pong(&event.what)).await;
            let events = agent.log().all().split_off(mark);
            // What this agent had in its own queue when it asked goes before its ping, and so do the answers to that.
            let before = events.iter().take_while(|event| !is_pong(&event.what));
            let credit = before.filter(|event| matches!(event.what, What::Credit { .. } | What::Read { .. })).count();
            assert!(credit <= BEFORE, "{credit} frames went before a pong");
        }
        // The gateway's own pings come through too.
        let mark = agent.log().mark();
        agent.log().wait_from(mark, |event| event.what == What::Ping).await;
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(readers, pings);
    assert!(!agent.is_over(Kind::Control), "one that is alive was declared dead");
    assert_eq!(stage.gateway.metric("sluice_agent_connections{kind=\"control\"}"), 1.0);
    stage.wait_for_quiet().await;
}

/// A gateway, and an agent at it through a proxy.
async fn through_proxy(gateway: &Gateway, proxy: &Proxy) -> Agent {
    let url = format!("http://{}", proxy.address);
    Agent::connect(&url, &gateway.agent_token("ada", "ada"), "ada").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_swallows_everything_is_found_out_in_the_middle_of_downloads() {
    let stage = Stage::with(|layer| {
        layer.ping_interval = Some(span("200ms"));
        layer.ping_timeout = Some(span("1s"));
        // Not what finds it out.
        layer.read_timeout = Some(span("60s"));
        layer.resume_window = Some(span("60s"));
    })
    .await;
    let set = single(bytes(2, 64 * FRAME)).chunked(FRAME);
    let proxy = Proxy::to(stage.gateway.address().to_string()).await;
    let agent = through_proxy(&stage.gateway, &proxy).await;
    stage.share(&agent, "c1", &set).await;
    let path = url(&set);
    let mut readers = join_all((0..4).map(|n| stage.over(n % 2 == 0, &path, None))).await;
    for reader in &mut readers {
        reader.read(FRAME).await;
    }
    proxy.freeze();
    stage.gateway.wait_for_metric("sluice_agent_connections_ended_total{reason=\"1011\"}", 1.0).await;
    stage.gateway.wait_for_metric("sluice_agents_online", 0.0).await;
    // The downloads go on once it is there again, by another way.
    let again = stage.gateway.agent("ada").await;
    again.serve(&set);
    for received in join_all(readers.into_iter().map(body)).await {
        assert_eq!(received.len(), 63 * FRAME);
    }
    drop(agent);
}
