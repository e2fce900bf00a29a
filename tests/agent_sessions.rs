//! Agents' sessions and the life of their connections, over real sockets against the whole gateway.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use sluice::clock::Clock;
use sluice::identity::{Identity, Tokens};
use sluice::protocol::Principal;
use support::db::{self, TestDatabase};
use support::platform::within;
use support::{Gateway, SampleSet, Wire, bytes, eventually, set_file, span};
use tokio_tungstenite::tungstenite::{Bytes, Message};

on_both_databases!(a_name_belongs_to_the_first_that_held_it, names_and_bindings_outlive_a_restart);

const ENDED: &str = "sluice_agent_connections_ended_total";
const SESSIONS: &str = "sluice_sessions_total";

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// A set of one small file.
fn small(content: &str) -> SampleSet {
    SampleSet::of([("a.txt", content.as_bytes().to_vec())])
}

#[tokio::test]
async fn a_session_is_created_whichever_way_it_is_asked_for() {
    let gateway = Gateway::start().await;
    let token = gateway.agent_token("ada-id", "ada.mini");
    let wrong = gateway.agent_token("other-id", "other");
    let asked = |frame: Value| (frame, "", Vec::<(&str, &str)>::new());
    let bearer = bearer(&token);
    let query = format!("token={token}");
    let cases = vec![
        // As the Python SDK sends it, and as the protocol's page shows it.
        asked(json!({"session": {"agent": "ada.mini", "token": token}})),
        asked(json!({"agent": "ada.mini", "token": token, "session": {"modalities": ["text"]}, "chat": "c"})),
        // The nested one comes first.
        asked(json!({"agent": "other", "token": wrong, "session": {"agent": "ada.mini", "token": token}})),
        // The credential of the connection itself.
        (json!({"session": {"agent": "ada.mini"}}), &query, Vec::new()),
        (json!({"session": {"agent": "ada.mini"}}), "", vec![("authorization", &bearer)]),
        // The session's own token wins over the connection's.
        (json!({"session": {"agent": "ada.mini", "token": token}}), "token=nonsense", Vec::new()),
        (json!({"session": {"agent": "ada.mini"}}), "token=nonsense", vec![("authorization", &bearer)]),
        // An agent's clock says nothing.
        asked(json!({"session": {"agent": "ada.mini", "token": token}, "timestamp": 0})),
        asked(json!({"session": {"agent": "ada.mini", "token": token}, "timestamp": 9_999_999_999_999_u64})),
        asked(json!({"session": {"agent": "ada.mini", "token": token}, "timestamp": -1.5e300})),
        asked(json!({"session": {"agent": "ada.mini", "token": token}, "timestamp": "yesterday"})),
    ];
    for (mut frame, query, headers) in cases {
        let mut wire = Wire::open(&gateway, query, &headers).await;
        frame["type"] = json!("session.create");
        frame["event_id"] = json!("evt_0123456789ab");
        wire.send(frame.clone()).await;
        let created = wire.frame("session.created").await;
        let id = created["session_id"].as_str().unwrap();
        let session = json!({"id": id, "agent": "ada.mini", "agent_id": "ada-id", "agent_username": "ada.mini"});
        assert_eq!(
            (&created["session"], &created["agent"], &created["event_id"], &created["uamp_version"]),
            (&session, &json!("ada.mini"), &json!("evt_0123456789ab"), &json!("1.0")),
            "{frame}"
        );
        assert!(created["timestamp"].as_u64().unwrap() > 1_700_000_000_000, "{created}");
        assert!(!created.to_string().contains(&token));
    }
}

#[tokio::test]
async fn several_agents_share_a_socket_and_a_refused_one_harms_nobody() {
    let gateway = Gateway::start().await;
    let mut wire = Wire::with_token(&gateway, &gateway.agent_token("one", "one")).await;
    // All at once, without waiting, as the SDK does.
    for (event, agent, token) in [
        ("e1", "one", gateway.agent_token("one", "one")),
        ("e2", "two", gateway.agent_token("two", "two")),
        ("e3", "three", "nonsense".to_owned()),
        ("e4", "four", gateway.agent_token("two", "two")),
    ] {
        let session = json!({"agent": agent, "token": token});
        wire.send(json!({"type": "session.create", "event_id": event, "session": session})).await;
    }
    let mut answers = Vec::new();
    while answers.len() < 4 {
        let Some(Message::Text(text)) = wire.next().await else { panic!("the connection ends: {answers:?}") };
        answers.push(serde_json::from_str::<Value>(&text).unwrap());
    }
    answers.sort_by_key(|answer| answer["event_id"].as_str().unwrap().to_owned());
    let told = |answer: &Value| {
        let code = answer["error"]["code"].as_str().unwrap_or_default().to_owned();
        (answer["type"].as_str().unwrap().to_owned(), answer["agent"].as_str().unwrap().to_owned(), code)
    };
    let expected = [
        ("session.created", "one", ""),
        ("session.created", "two", ""),
        ("session.error", "three", "unauthorized"),
        ("session.error", "four", "forbidden"),
    ];
    assert_eq!(answers.iter().map(told).collect::<Vec<_>>(), expected.map(|(a, b, c)| (a.into(), b.into(), c.into())));
    assert!(answers[3]["error"]["message"].as_str().unwrap().contains("two"), "it says which name is right");
    // The connection stays for those who are left, also after one of them leaves.
    wire.send(json!({"type": "session.end", "session_id": answers[0]["session_id"]})).await;
    wire.send(json!({"type": "ping", "event_id": "p"})).await;
    assert_eq!(wire.frame("pong").await, json!({"type": "pong", "event_id": "p"}));
    let online = |name: &str| gateway.state().agents.registry.is_online(&Principal::agent(name).unwrap());
    assert_eq!((online("one"), online("two")), (false, true));
}

#[tokio::test]
async fn a_refusal_says_why_and_closes_when_no_session_is_left() {
    let gateway = Gateway::start().await;
    let secret = tempfile::tempdir().unwrap();
    let foreign = Tokens::open(&secret.path().join("secret")).unwrap();
    let ada = Identity::Agent { principal: Principal::agent("ada").unwrap(), name: None, owner: None };
    let hour = Duration::from_secs(3600);
    let long_ago = Clock::fixed(1_000_000_000_000);
    let later = Clock::fixed(4_000_000_000_000);
    let good = gateway.unnamed_agent_token("ada");
    let far = json!(4_000_000_000_u64);
    let cases = [
        ("ada", None, "unauthorized"),
        ("ada", Some(String::new()), "unauthorized"),
        ("ada", Some("not.a.token".to_owned()), "unauthorized"),
        ("ada", Some(foreign.issue(&ada, hour, &Clock::system()).unwrap()), "unauthorized"),
        ("ada", Some(format!("{}x", good)), "unauthorized"),
        ("ada", Some("x".repeat(60_000)), "unauthorized"),
        ("ada", Some(gateway.state().tokens.issue(&ada, hour, &long_ago).unwrap()), "token_expired"),
        ("ada", Some(gateway.state().tokens.issue(&ada, hour, &later).unwrap()), "unauthorized"),
        ("ada", Some(gateway.raw_token(&json!({"sub": "olga", "scope": "agent", "exp": far}))), "token_unbound"),
        ("ada", Some(gateway.raw_token(&json!({"scope": "agent", "agent_id": "", "exp": far}))), "token_unbound"),
        ("ada", Some(gateway.reader("user:alice")), "forbidden"),
        ("ada", Some(gateway.operator()), "forbidden"),
        ("ada", Some(gateway.agent_token("ada", "ada.mini")), "forbidden"),
        (" ada", Some(good.clone()), "bad_request"),
        ("", Some(good.clone()), "bad_request"),
        ("a\nb", Some(good), "bad_request"),
    ];
    let refusals = cases.iter().map(async |(agent, token, code)| {
        let mut wire = Wire::open(&gateway, "", &[]).await;
        let mut session = json!({"agent": agent});
        if let Some(token) = token {
            session["token"] = json!(token);
        }
        wire.send(json!({"type": "session.create", "event_id": "e7", "session": session})).await;
        let error = wire.frame("session.error").await;
        let told = (&error["event_id"], &error["agent"], &error["error"]["code"]);
        assert_eq!(told, (&json!("e7"), &json!(agent), &json!(code)), "{error}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty());
        if let Some(token) = token.as_deref().filter(|token| token.len() > 5) {
            assert!(!error.to_string().contains(token));
        }
        assert_eq!(wire.closed().await, (4001, vec![]), "{code}");
    });
    futures_util::future::join_all(refusals).await;
    gateway.wait_for_metric(&format!("{ENDED}{{reason=\"4001\"}}"), cases.len() as f64).await;
    assert_eq!(gateway.metric(&format!("{SESSIONS}{{outcome=\"token_unbound\"}}")), 2.0);
    assert_eq!(gateway.metric(&format!("{SESSIONS}{{outcome=\"created\"}}")), 0.0);
    gateway.wait_for_metric("sluice_agent_connections{kind=\"control\"}", 0.0).await;
}

async fn a_name_belongs_to_the_first_that_held_it(database: &TestDatabase) {
    let gateway = Gateway::builder().on(database).start().await;
    drop(Wire::open(&gateway, "", &[]).await.create("shared", &gateway.unnamed_agent_token("first")).await);
    let mut thief = Wire::open(&gateway, "", &[]).await;
    let session = json!({"agent": "shared", "token": gateway.unnamed_agent_token("second")});
    thief.send(json!({"type": "session.create", "session": session})).await;
    assert_eq!(thief.frame("session.error").await["error"]["code"], "forbidden");
    assert_eq!(thief.closed().await, (4001, vec![]));

    // Two at the same moment: one of them holds it.
    let (a, b) = (gateway.unnamed_agent_token("a"), gateway.unnamed_agent_token("b"));
    let race = async |token: &str| {
        let mut wire = Wire::open(&gateway, "", &[]).await;
        wire.send(json!({"type": "session.create", "session": {"agent": "raced", "token": token}})).await;
        let Some(Message::Text(text)) = wire.next().await else { panic!("no answer") };
        text.contains("session.created")
    };
    let (first, second) = tokio::join!(race(&a), race(&b));
    assert!(first ^ second);

    // An operator hands it over.
    gateway.operate(http::Method::PUT, "/v1/agents/shared", Some(json!({"principal": "agent:second"}))).await;
    let created = Wire::open(&gateway, "", &[]).await.create("shared", &gateway.unnamed_agent_token("second")).await;
    assert_eq!(created["session"]["agent_id"], "second");
}

async fn names_and_bindings_outlive_a_restart(database: &TestDatabase) {
    let mut gateway = Gateway::builder().on(database).start().await;
    gateway.put_chat("c1", &["user:alice"]).await;
    gateway.bind_session("turn-1", "c1", "agent:ada").await;
    let mut agent = gateway.agent("ada").await;
    gateway.restart().await;
    agent.wait_for(|event| matches!(event.what, support::What::Closed { code: 1012, .. })).await;
    agent.reconnect().await;
    let set = small("after the restart");
    agent.announce_in("turn-1", &set).await;
    gateway.wait_for_set("c1", &set.identity()).await;
    let answer = gateway.get(&set_file("c1", &set, "a.txt"), &gateway.reader("user:alice")).await;
    assert_eq!((answer.status.as_u16(), answer.body.as_slice()), (200, &b"after the restart"[..]));
    let mut thief = Wire::open(&gateway, "", &[]).await;
    let session = json!({"agent": "ada", "token": gateway.unnamed_agent_token("second")});
    thief.send(json!({"type": "session.create", "session": session})).await;
    assert_eq!(thief.frame("session.error").await["error"]["code"], "forbidden");
}

#[tokio::test]
async fn a_session_is_updated_and_ended() {
    let gateway = Gateway::start().await;
    let mut wire = Wire::open(&gateway, "", &[]).await;
    let ada = wire.create("ada", &gateway.agent_token("ada", "ada")).await["session_id"].clone();
    let update = async |wire: &mut Wire, members: Value| {
        let mut frame = json!({"type": "session.update", "event_id": "u1"});
        frame.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        wire.send(frame).await;
        let Some(Message::Text(text)) = wire.next().await else { panic!("no answer") };
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["event_id"], "u1", "{answer}");
        answer["error"]["code"].as_str().or(answer["session_id"].as_str()).unwrap().to_owned()
    };
    let id = ada.as_str().unwrap();
    let (own, other) = (gateway.agent_token("ada", "ada"), gateway.agent_token("bob", "bob"));
    assert_eq!(update(&mut wire, json!({"session_id": ada, "token": own})).await, id);
    assert_eq!(update(&mut wire, json!({"session_id": ada, "payment_token": "p"})).await, id);
    // The only session needs no name.
    assert_eq!(update(&mut wire, json!({})).await, id);
    assert_eq!(update(&mut wire, json!({"token": other})).await, "forbidden");
    assert_eq!(update(&mut wire, json!({"token": "nonsense"})).await, "unauthorized");
    assert_eq!(update(&mut wire, json!({"session_id": "another"})).await, "bad_request");
    wire.create("bob", &other).await;
    assert_eq!(update(&mut wire, json!({})).await, "bad_request");

    // Ending one of two leaves the connection; a session that is over announces nothing.
    wire.send(json!({"type": "session.end", "session_id": "another"})).await;
    wire.send(json!({"type": "session.end", "session_id": ada})).await;
    let set = small("x");
    let frame = json!({
        "type": "artifact.manifest", "event_id": "a1", "sha256": set.identity(), "size": set.canonical().len(),
        "manifest": set.manifest, "session_id": ada,
    });
    wire.send(frame).await;
    // It is bob's connection alone by now, and to him that id is one that nobody knows yet.
    assert_eq!(wire.settled().await, Vec::<Value>::new());
    assert!(!gateway.state().agents.registry.is_online(&Principal::agent("ada").unwrap()));
    assert!(gateway.state().agents.registry.is_online(&Principal::agent("bob").unwrap()));
}

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

/// A connection that could not be told in time that another one took over, and that opened a session again meanwhile.
#[tokio::test]
async fn a_late_takeover_does_not_end_a_newer_session() {
    let gateway = Gateway::start().await;
    let token = gateway.agent_token("ada", "ada");
    let mut first = Wire::narrow(&gateway, &token).await;
    first.create("ada", &token).await;
    // Its answers fill what the systems buffer, so that its mail waits.
    for _ in 0..120 {
        first.send(json!({"type": "session.update", "event_id": "e".repeat(60_000)})).await;
    }
    let mut second = Wire::with_token(&gateway, &token).await;
    second.create("ada", &token).await;
    first.send(json!({"type": "session.create", "session": {"agent": "ada", "token": token}})).await;
    let (code, _) = second.closed().await;
    assert_eq!(code, 4009, "the first connection took over again");
    loop {
        let Some(Message::Text(text)) = first.next().await else { panic!("the session is not there") };
        if text.contains("session.created") {
            break;
        }
    }
    drop(first);
    gateway.wait_for_metric("sluice_agents_online", 0.0).await;
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
async fn an_agent_whose_name_was_given_away_is_told_so() {
    let gateway = Gateway::start().await;
    let token = gateway.agent_token("ada", "ada");
    let mut control = Wire::open(&gateway, "", &[]).await;
    control.create("ada", &token).await;
    let mut data = Wire::open(&gateway, "conn=data", &[("authorization", &bearer(&token))]).await;
    data.send(json!({"type": "data.hello", "agent": "ada"})).await;
    data.frame("data.ready").await;
    let bob = gateway.agent("bob").await;

    gateway.operate(Method::PUT, "/v1/agents/ada", Some(json!({"principal": "agent:eve"}))).await;
    let told = control.frame("session.error").await;
    assert_eq!((&told["agent"], &told["error"]["code"]), (&json!("ada"), &json!("forbidden")));
    assert!(told["error"]["message"].as_str().unwrap().contains("given to another agent"), "{told}");
    for wire in [&mut control, &mut data] {
        let close = loop {
            match wire.next().await {
                Some(Message::Close(close)) => break close.unwrap(),
                Some(_) => {}
                None => panic!("no close"),
            }
        };
        assert_eq!((u16::from(close.code), close.reason.as_str()), (4001, "the name was given to another agent"));
    }
    assert!(!bob.is_over(support::Kind::Control));
}

#[tokio::test]
async fn an_agent_was_last_seen_when_something_last_came_from_it() {
    let gateway = Gateway::start().await;
    let seen = async || {
        let agent = gateway.get("/v1/agents/ada", &gateway.operator()).await.json();
        let list = gateway.get("/v1/agents", &gateway.operator()).await.json();
        assert_eq!(list["agents"][0]["name"], "ada");
        (agent["online"] == true, agent["last_seen_at"].as_str().unwrap().to_owned())
    };
    let mut wire = Wire::open(&gateway, "", &[]).await;
    wire.create("ada", &gateway.agent_token("ada", "ada")).await;
    let (_, mut last) = seen().await;
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        wire.send(json!({"type": "ping"})).await;
        wire.frame("pong").await;
        let (online, now) = seen().await;
        assert!(online && now > last, "{now} after {last}");
        assert_eq!(seen().await.1, now, "asking is no sign of it");
        last = now;
    }
    // Its farewell is the last that came from it, and stays so.
    tokio::time::sleep(Duration::from_millis(5)).await;
    wire.send_message(Message::Close(None)).await;
    let at_the_end = eventually("the time of its end", async || {
        let (online, now) = seen().await;
        (!online && now > last).then_some(now)
    })
    .await;
    assert_eq!(seen().await.1, at_the_end);
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
    let timing = |layer: &mut sluice::config::Layer| {
        layer.ping_interval = Some(span("150ms"));
        layer.ping_timeout = Some(span("350ms"));
    };
    let gateway = Gateway::builder().with(timing).start().await;
    let agent = gateway.agent("alive").await;
    let mut silent = Wire::open(&gateway, "", &[]).await;
    silent.create("silent", &gateway.agent_token("silent", "silent")).await;
    let begun = tokio::time::Instant::now();
    // Nothing reads from `silent` any more, so nothing answers.
    gateway.wait_for_metric(&format!("{ENDED}{{reason=\"1011\"}}"), 1.0).await;
    let found = begun.elapsed();
    assert!(found > Duration::from_millis(350), "{found:?}");
    assert!(!gateway.state().agents.registry.is_online(&Principal::agent("silent").unwrap()));
    assert_eq!(silent.closed().await, (1011, vec![]));
    agent.wait_for(|event| event.what == support::What::Ping).await;
    assert!(!agent.is_over(support::Kind::Control));
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
    let begun = tokio::time::Instant::now();
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
        let answer = support::wire::exchange(&gateway, format!("{head}{more}").as_bytes()).await;
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
    let begun = tokio::time::Instant::now();
    within(async { tokio::join!(gateway.stop(), flood) }).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "nobody waited for a flood to end");
    assert_eq!(fresh.closed().await, (1012, vec![]));
    agent.wait_for(|event| matches!(event.what, support::What::Closed { code: 1012, .. })).await;
    assert_eq!(gateway.metric(&format!("{ENDED}{{reason=\"1012\"}}")), 3.0);
}

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
    eventually("the agent's line", async || (agent.reads().len() == 1).then_some(())).await;
}
