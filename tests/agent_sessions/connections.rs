//! The life of connections: pings, floods, bounds in time and size, and how they close.

use std::time::Duration;

use serde_json::{Value, json};
use sluice::config::Layer;
use sluice::protocol::Principal;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::ENDED;
use crate::support::platform::within;
use crate::support::wire::exchange;
use crate::support::{Gateway, Kind, What, Wire, span};

#[tokio::test]
async fn what_is_not_known_is_ignored_and_a_ping_is_answered() {
    let gateway = Gateway::start().await;
    let mut wire = Wire::open(&gateway, "", &[]).await;
    wire.create("ada", &gateway.agent_token("ada", "ada")).await;
    let long = "x".repeat(200_000);
    for frame in [
        json!({"type": "capabilities", "capabilities": {"tools": []}}),
        json!({"type": "session.updated", "session_id": "s"}),
        json!({"type": "extension.message", "namespace": "a.b", "payload": {}}),
        json!({"type": "response.delta", "session_id": "s", "delta": {"type": "text", "text": "hi"}}),
        json!({"type": "response.delta", "session_id": "s", "delta": {"type": "tool_result", "result": long}}),
        json!({"type": "no.such.type", "event_id": 7, "session_id": []}),
    ] {
        wire.send(frame).await;
    }
    wire.send(json!({"type": "ping", "event_id": "evt_1", "timestamp": -5})).await;
    assert_eq!(wire.frame("pong").await, json!({"type": "pong", "event_id": "evt_1"}));
    wire.send(json!({"type": "ping"})).await;
    wire.frame("pong").await;
    assert_eq!(wire.settled().await, Vec::<Value>::new());
    let text = gateway.state().metrics.render().unwrap();
    for line in text.lines().filter(|line| line.starts_with("sluice_violations_total")) {
        assert!(line.ends_with(" 0"), "{line}");
    }
}

#[tokio::test]
async fn who_has_not_shown_a_token_fills_no_memory() {
    let gateway = Gateway::start().await;
    let mut wire = Wire::open(&gateway, "", &[]).await;
    wire.send(json!({"type": "whatever", "text": "x".repeat(2 << 20)})).await;
    assert_eq!(wire.closed().await.0, 1009);
    // A session of its own is all the same within reach.
    let mut wire = Wire::open(&gateway, "", &[]).await;
    wire.create("ada", &gateway.agent_token("ada", "ada")).await;
}

#[tokio::test]
async fn frames_to_an_agent_stay_below_a_mebibyte() {
    let gateway = Gateway::start().await;
    let token = gateway.agent_token("ada", "ada");
    let mut wire = Wire::with_token(&gateway, &token).await;
    wire.create("ada", &token).await;
    let id = "\u{1}".repeat(10_000);
    wire.send(json!({"type": "session.create", "event_id": id, "session": {"agent": "x".repeat(3_000)}})).await;
    wire.send(json!({"type": "ping", "event_id": id})).await;
    wire.send(json!({"type": "artifact.manifest", "event_id": "x".repeat(3 << 20), "sha256": "y".repeat(3 << 20)}))
        .await;
    let mut answers = 0;
    while answers < 3 {
        let Some(Message::Text(text)) = wire.next().await else { panic!("an answer is missing") };
        assert!(text.len() < 1 << 20, "{} bytes", text.len());
        answers += 1;
    }
}

#[tokio::test]
async fn pings_are_answered_while_nothing_can_be_written() {
    let gateway = Gateway::start().await;
    let mut wire = Wire::narrow(&gateway, &gateway.agent_token("ada", "ada")).await;
    wire.create("ada", &gateway.agent_token("ada", "ada")).await;
    // Answers of 60 KB each that are not read: more than the sockets hold, less than the gateway would not put up with.
    let id = "x".repeat(60_000);
    for _ in 0..200 {
        wire.send(json!({"type": "session.update", "event_id": id})).await;
    }
    wire.send_message(Message::Ping(Bytes::from_static(b"are you there"))).await;
    // The gateway goes on reading: these arrive although none of its own has left.
    wire.send(json!({"type": "ping", "event_id": "last"})).await;
    let frames = wire.pong(b"are you there").await;
    assert!(frames.len() < 200, "the pong goes before what waited already");
}

#[tokio::test]
async fn answers_that_nobody_reads_are_bounded() {
    let gateway = Gateway::start().await;
    let mut wire = Wire::narrow(&gateway, &gateway.agent_token("ada", "ada")).await;
    wire.create("ada", &gateway.agent_token("ada", "ada")).await;
    let ping = json!({"type": "ping", "event_id": "x".repeat(10_000)}).to_string();
    while gateway.metric(&format!("{ENDED}{{reason=\"1008\"}}")) == 0.0 {
        wire.try_send(Message::text(ping.clone())).await;
    }
    assert_eq!(gateway.metric("sluice_violations_total{rule=\"flood\"}"), 1.0);
}

#[tokio::test]
async fn a_peer_that_is_silent_is_found_and_one_that_answers_pings_is_not() {
    let timing = |layer: &mut Layer| {
        layer.ping_interval = Some(span("150ms"));
        layer.ping_timeout = Some(span("350ms"));
    };
    let gateway = Gateway::builder().with(timing).start().await;
    let agent = gateway.agent("alive").await;
    let mut silent = Wire::open(&gateway, "", &[]).await;
    silent.create("silent", &gateway.agent_token("silent", "silent")).await;
    let begun = Instant::now();
    // Nothing reads from `silent` any more, so nothing answers.
    gateway.wait_for_metric(&format!("{ENDED}{{reason=\"1011\"}}"), 1.0).await;
    let found = begun.elapsed();
    assert!(found > Duration::from_millis(350), "{found:?}");
    assert!(!gateway.state().agents.registry.is_online(&Principal::agent("silent").unwrap()));
    assert_eq!(silent.closed().await, (1011, vec![]));
    agent.wait_for(|event| event.what == What::Ping).await;
    assert!(!agent.is_over(Kind::Control));
}

#[tokio::test]
async fn a_connection_without_a_session_is_closed_in_time_whatever_it_sends() {
    let gateway = Gateway::builder().with(|layer| layer.handshake_timeout = Some(span("300ms"))).start().await;
    let mut quiet = Wire::open(&gateway, "", &[]).await;
    let mut data = Wire::open(&gateway, "conn=data", &[]).await;
    let mut left = Wire::open(&gateway, "", &[]).await;
    let session = left.create("left", &gateway.agent_token("left", "left")).await["session_id"].clone();
    left.send(json!({"type": "session.end", "session_id": session})).await;
    for wire in [&mut quiet, &mut data, &mut left] {
        assert_eq!(wire.closed().await, (1008, vec![]));
    }
    // As fast as it can: the gateway always has something to read.
    let mut flood = Wire::open(&gateway, "", &[]).await;
    let begun = Instant::now();
    let frame = Message::text(r#"{"type":"x"}"#);
    while flood.try_send(frame.clone()).await {
        assert!(begun.elapsed() < Duration::from_secs(10), "it is never closed");
    }
}

#[tokio::test]
async fn what_is_no_upgrade_is_told_so() {
    let gateway = Gateway::start().await;
    let answer = gateway.get("/ws", "").await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "bad_request"));
    let head = "GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n";
    for more in [
        "sec-websocket-version: 12\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nconnection: close\r\n\r\n",
        "sec-websocket-version: 13\r\nconnection: close\r\n\r\n",
    ] {
        let answer = exchange(&gateway, format!("{head}{more}").as_bytes()).await;
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
    }
    // Another agent is served.
    gateway.agent("ada").await;
}

#[tokio::test]
async fn a_gateway_that_stops_closes_with_1012_also_what_never_rests() {
    let mut gateway = Gateway::start().await;
    let agent = gateway.agent("ada").await;
    let mut fresh = Wire::open(&gateway, "", &[]).await;
    let mut busy = Wire::open(&gateway, "", &[]).await;
    busy.create("busy", &gateway.agent_token("busy", "busy")).await;
    let flood = async {
        let frame = Message::text(r#"{"type":"x"}"#);
        while busy.try_send(frame.clone()).await {}
    };
    let begun = Instant::now();
    within(async { tokio::join!(gateway.stop(), flood) }).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "nobody waited for a flood to end");
    assert_eq!(fresh.closed().await, (1012, vec![]));
    agent.wait_for(|event| matches!(event.what, What::Closed { code: 1012, .. })).await;
    assert_eq!(gateway.metric(&format!("{ENDED}{{reason=\"1012\"}}")), 3.0);
}
