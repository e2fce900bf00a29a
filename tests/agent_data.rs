//! Data connections and takeovers, over real sockets against the whole gateway.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use support::behaviour::data_frame;
use support::{Agent, Behaviour, ConnectError, Event, Fault, Gateway, Kind, SampleSet, What, Wire, bytes, set_file};
use tokio_tungstenite::tungstenite::Message;

const ENDED: &str = "sluice_agent_connections_ended_total";
const LEN: usize = 6 << 20;

/// A gateway with a chat in which alice reads what `agent:ada` announces in `turn-1`.
async fn with_chat(gateway: Gateway) -> Gateway {
    gateway.put_chat("c1", &["user:alice"]).await;
    gateway.bind_session("turn-1", "c1", "agent:ada").await;
    gateway
}

fn ada(gateway: &Gateway) -> support::AgentBuilder {
    Agent::builder(&gateway.url, &gateway.agent_token("ada", "ada"), "ada")
}

async fn announced(gateway: &Gateway, agent: &Agent, seed: u64, len: usize) -> SampleSet {
    let set = SampleSet::of([("a.bin", bytes(seed, len))]).chunked(256 * 1024);
    agent.announce_in("turn-1", &set).await;
    gateway.wait_for_set("c1", &set.identity()).await;
    set
}

async fn download(gateway: &Gateway, set: &SampleSet) -> support::Download {
    let download = gateway.download(&set_file("c1", set, "a.bin"), &gateway.reader("user:alice")).await;
    assert_eq!(download.status, 200);
    download
}

async fn assert_whole(mut download: support::Download, begun: &[u8], set: &SampleSet) {
    let (rest, end) = download.rest().await;
    assert!(end.is_ok(), "{end:?}");
    assert!([begun, &rest].concat() == *set.file("a.bin").bytes, "every byte, once, in order");
}

fn read_on(kind: Kind) -> impl Fn(&Event) -> bool {
    move |event: &Event| event.kind == kind && event.what.is_read()
}

#[tokio::test]
async fn a_data_connection_says_who_it_is_first_and_is_checked() {
    let gateway = Gateway::start().await;
    let own = gateway.agent_token("ada", "ada");
    let hello = |agent: &str| json!({"type": "data.hello", "event_id": "h1", "agent": agent});
    let bearer = format!("Bearer {own}");
    // Marked by header or by query, with the token in either place.
    for (query, headers) in [
        (format!("token={own}&conn=data"), vec![]),
        (format!("conn=data&token={own}"), vec![]),
        ("conn=data".to_owned(), vec![("authorization", bearer.as_str())]),
        (String::new(), vec![("authorization", bearer.as_str()), ("uamp-connection", "data")]),
    ] {
        let mut wire = Wire::open(&gateway, &query, &headers).await;
        wire.send(hello("ada")).await;
        let ready = wire.frame("data.ready").await;
        assert_eq!((&ready["event_id"], &ready["uamp_version"]), (&json!("h1"), &json!("1.0")));
        gateway.wait_for_metric("sluice_agent_connections{kind=\"data\"}", 1.0).await;
    }
    let unnamed = gateway.unnamed_agent_token("bob");
    let reader = gateway.reader("user:alice");
    for (token, agent, code) in [
        ("", "ada", "unauthorized"),
        ("nonsense", "ada", "unauthorized"),
        (own.as_str(), "bob", "forbidden"),
        // The name is ada's by now.
        (unnamed.as_str(), "ada", "forbidden"),
        (reader.as_str(), "ada", "forbidden"),
        (unnamed.as_str(), " ", "bad_request"),
    ] {
        let query = if token.is_empty() { "conn=data".to_owned() } else { format!("conn=data&token={token}") };
        let mut wire = Wire::open(&gateway, &query, &[]).await;
        wire.send(hello(agent)).await;
        let error = wire.frame("data.error").await;
        assert_eq!((&error["error"]["code"], &error["event_id"]), (&json!(code), &json!("h1")), "{error}");
        assert_eq!(wire.closed().await, (4001, vec![]));
    }
}

#[tokio::test]
async fn a_data_connection_carries_bulk_and_nothing_else() {
    let gateway = with_chat(Gateway::start().await).await;
    let mut agent = ada(&gateway).data().connect().await;
    let set = announced(&gateway, &agent, 1, 1 << 20).await;
    // A session, a second hello, an announcement: each a broken rule here, and answered by nothing.
    let token = gateway.agent_token("ada", "ada");
    for frame in [
        json!({"type": "session.create", "session": {"agent": "ada", "token": token}}),
        json!({"type": "data.hello", "agent": "ada"}),
        json!({"type": "artifact.manifest", "sha256": "0".repeat(64), "size": 1, "x": "y".repeat(100_000)}),
        json!({"type": "artifact.manifest", "sha256": "0".repeat(64), "size": 1}),
    ] {
        agent.send_message(Kind::Data, Message::text(frame.to_string())).await;
    }
    gateway.wait_for_metric("sluice_violations_total{rule=\"malformed_text\"}", 4.0).await;
    assert_whole(download(&gateway, &set).await, &[], &set).await;
    assert!(agent.reads().iter().all(|read| read.kind == Kind::Data));
    // And a hello on the control connection.
    agent.send(json!({"type": "data.hello", "agent": "ada"})).await;
    gateway.wait_for_metric("sluice_violations_total{rule=\"malformed_text\"}", 5.0).await;
    // Without it reads go over the control connection, and with a new one they do not.
    agent.cut_one(Kind::Data).await;
    gateway.wait_for_metric("sluice_agent_connections{kind=\"data\"}", 0.0).await;
    let other = announced(&gateway, &agent, 2, 1 << 20).await;
    assert_whole(download(&gateway, &other).await, &[], &other).await;
    agent.wait_for(read_on(Kind::Control)).await;
    agent.open_data().await.unwrap();
    let mark = agent.log().mark();
    let third = announced(&gateway, &agent, 3, 1 << 20).await;
    assert_whole(download(&gateway, &third).await, &[], &third).await;
    assert!(agent.log().all()[mark..].iter().all(|event| !read_on(Kind::Control)(event)));
}

#[tokio::test]
async fn a_data_connection_that_drops_is_a_pause() {
    let gateway = with_chat(Gateway::start().await).await;
    let mut agent = ada(&gateway).data().connect().await;
    let set = announced(&gateway, &agent, 1, LEN).await;
    agent.behave(Behaviour::obedient().at(1_000_000, Fault::Die));
    let mut running = download(&gateway, &set).await;
    let begun = running.read(500_000).await;
    let resumed = agent.wait_for(read_on(Kind::Control)).await;
    let What::Read { offset, .. } = resumed.what else { unreachable!() };
    assert!((262_144..=1_000_000).contains(&offset), "it goes on where it was: {offset}");
    assert_whole(running, &begun, &set).await;
    agent.wait_for(|event| event.what == What::Cut).await;
    assert_eq!(gateway.metric("sluice_resumes_total{reason=\"disconnected\"}"), 1.0);

    // The other way round: the control connection goes, and the data connection serves on.
    agent.open_data().await.unwrap();
    agent.cut_one(Kind::Control).await;
    gateway.wait_for_metric("sluice_agent_connections{kind=\"control\"}", 0.0).await;
    let range =
        gateway.download_range(&set_file("c1", &set, "a.bin"), &gateway.reader("user:alice"), "bytes=5-99").await;
    assert_eq!((range.status.as_u16(), range.whole().await.body), (206, set.file("a.bin").bytes[5..=99].to_vec()));
}

#[tokio::test]
async fn answers_on_the_wrong_connection_do_not_count() {
    let gateway = with_chat(Gateway::start().await).await;
    let agent = ada(&gateway).data().behaviour(Behaviour::obedient().at(0, Fault::Stall)).connect().await;
    let set = announced(&gateway, &agent, 1, 300_000).await;
    let answer = async {
        let read = agent.wait_for(read_on(Kind::Data)).await;
        let What::Read { request_id, .. } = read.what else { unreachable!() };
        let blob = set.file("a.bin").bytes.clone();
        let end = json!({
            "type": "blob.end", "request_id": request_id, "offset": 0, "length": blob.len(), "bytes": blob.len(),
        });
        let error = json!({"type": "blob.error", "request_id": request_id, "error": {"code": "unknown_blob"}});
        let lie = data_frame(&request_id, 0, &[0; 1000]);
        agent.send_message(Kind::Control, Message::binary(lie)).await;
        agent.send(end.clone()).await;
        agent.send(error).await;
        gateway.wait_for_metric("sluice_violations_total{rule=\"unknown_read\"}", 3.0).await;
        // On the right one the same read is still there.
        for (place, piece) in blob.chunks(256 * 1024).enumerate() {
            let frame = data_frame(&request_id, place as u64 * 256 * 1024, piece);
            agent.send_message(Kind::Data, Message::binary(frame)).await;
        }
        agent.send_message(Kind::Data, Message::text(end.to_string())).await;
    };
    let whole = async { assert_whole(download(&gateway, &set).await, &[], &set).await };
    tokio::join!(answer, whole);
    assert_eq!(gateway.metric("sluice_violations_total{rule=\"unknown_read\"}"), 3.0);
}

#[tokio::test]
async fn a_newer_connection_takes_over_and_the_download_goes_on() {
    let gateway = with_chat(Gateway::start().await).await;
    for (seed, data) in [(1, false), (2, true)] {
        let builder = if data { ada(&gateway).data() } else { ada(&gateway) };
        let mut agent = builder.connect().await;
        let set = announced(&gateway, &agent, seed, LEN).await;
        agent.behave(Behaviour::obedient().at(700_000, Fault::Stall));
        let mut running = download(&gateway, &set).await;
        let begun = running.read(400_000).await;
        let superseded = gateway.metric(&format!("{ENDED}{{reason=\"4009\"}}"));
        let old = agent.take_over().await;
        assert_whole(running, &begun, &set).await;
        let count = if data { 2.0 } else { 1.0 };
        gateway.wait_for_metric(&format!("{ENDED}{{reason=\"4009\"}}"), superseded + count).await;
        agent.wait_for(|event| matches!(event.what, What::Closed { code: 4009, .. })).await;
        // The late end of the old one changes nothing.
        drop(old);
        gateway.wait_for_metric("sluice_agent_connections{kind=\"control\"}", 1.0).await;
        let again = announced(&gateway, &agent, seed + 10, 300_000).await;
        assert_whole(download(&gateway, &again).await, &[], &again).await;
        agent.cut().await;
        gateway.wait_for_metric("sluice_agents_online", 0.0).await;
    }
}

#[tokio::test]
async fn a_takeover_is_of_one_agent_and_one_kind() {
    let gateway = with_chat(Gateway::start().await).await;
    let (ada_token, bob_token) = (gateway.agent_token("ada", "ada"), gateway.agent_token("bob", "bob"));
    let builder = ada(&gateway).session("bob", Some(&bob_token));
    let shared = builder.behaviour(Behaviour::obedient().at(700_000, Fault::Stall)).connect().await;
    let set = announced(&gateway, &shared, 1, LEN).await;
    let mut running = download(&gateway, &set).await;
    let begun = running.read(400_000).await;

    // Another kind takes nothing over.
    let mut data = Wire::open(&gateway, &format!("conn=data&token={bob_token}"), &[]).await;
    data.send(json!({"type": "data.hello", "agent": "bob"})).await;
    data.frame("data.ready").await;
    assert!(!shared.is_over(Kind::Control));

    // Another socket takes ada over: bob stays where he is, and is told about her by name.
    let alone = ada(&gateway).without_session().connect().await;
    alone.serve(&set);
    alone.send(json!({"type": "session.create", "session": {"agent": "ada", "token": ada_token}})).await;
    let told = shared.wait_for_frame("session.error").await;
    assert_eq!((&told["error"]["code"], &told["agent"]), (&json!("superseded"), &json!("ada")));
    assert_whole(running, &begun, &set).await;
    let moved = alone.wait_for(|event| event.what.is_read()).await;
    assert!(matches!(moved.what, What::Read { offset, .. } if offset >= 262_144), "{moved:?}");
    shared.wait_for(|event| event.what.is_cancel()).await;
    let online = |name: &str| {
        let agent = sluice::protocol::Principal::agent(name).unwrap();
        gateway.state().agents.registry.get(&agent).is_some_and(|online| online.control)
    };
    assert!(online("ada") && online("bob") && !shared.is_over(Kind::Control));

    // What she announced there is no longer hers to announce.
    let late = SampleSet::of([("late", b"late".to_vec())]);
    let event_id = shared.announce_in("turn-1", &late).await;
    let refused = shared.wait_for(|event| matches!(event.what, What::ArtifactError { .. })).await;
    let expected =
        What::ArtifactError { event_id: Some(event_id), sha256: late.identity(), code: "session_unknown".into() };
    assert_eq!(refused.what, expected);

    // When bob goes elsewhere too, nothing is left of the shared one.
    let mut elsewhere = Wire::open(&gateway, "", &[]).await;
    elsewhere.create("bob", &bob_token).await;
    shared.wait_for(|event| matches!(event.what, What::Closed { code: 4009, .. })).await;
    assert!(online("ada") && online("bob"));
    drop(data);
}

#[tokio::test]
async fn two_that_take_each_other_over_end_with_one() {
    let gateway = with_chat(Gateway::start().await).await;
    let token = gateway.agent_token("ada", "ada");
    let racers = (0..20).map(async |_| {
        let mut wire = Wire::open(&gateway, "", &[]).await;
        wire.send(json!({"type": "session.create", "session": {"agent": "ada", "token": token}})).await;
        wire.frame("session.created").await;
        wire
    });
    let wires = futures_util::future::join_all(racers).await;
    gateway.wait_for_metric(&format!("{ENDED}{{reason=\"4009\"}}"), 19.0).await;
    gateway.wait_for_metric("sluice_agent_connections{kind=\"control\"}", 1.0).await;
    assert_eq!(gateway.metric("sluice_agents_online"), 1.0);
    let alive = wires.into_iter().map(async |mut wire| {
        wire.send_message(Message::Ping("alive".into())).await;
        match wire.next().await {
            Some(Message::Pong(_)) => 1,
            Some(Message::Close(Some(close))) if u16::from(close.code) == 4009 => 0,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(futures_util::future::join_all(alive).await.into_iter().sum::<i32>(), 1);
}

#[tokio::test]
async fn an_agent_that_is_refused_a_data_connection_keeps_its_control_connection() {
    let gateway = with_chat(Gateway::start().await).await;
    let agent = ada(&gateway).connect().await;
    let mut other =
        Agent::builder(&gateway.url, &gateway.agent_token("bob", "bob"), "ada").without_session().connect().await;
    assert!(matches!(other.open_data().await, Err(ConnectError::Data(Value::Object(_)))));
    let set = announced(&gateway, &agent, 1, 300_000).await;
    assert_whole(download(&gateway, &set).await, &[], &set).await;
}
