//! Sessions: how they are asked for, changed, taken over and ended.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use sluice::clock::Clock;
use sluice::identity::{Identity, Tokens};
use sluice::protocol::Principal;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Gateway, SampleSet, Wire, bytes, eventually, set_file};
use crate::{ENDED, bearer, small};

const SESSIONS: &str = "sluice_sessions_total";

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
    join_all(refusals).await;
    gateway.wait_for_metric(&format!("{ENDED}{{reason=\"4001\"}}"), cases.len() as f64).await;
    assert_eq!(gateway.metric(&format!("{SESSIONS}{{outcome=\"token_unbound\"}}")), 2.0);
    assert_eq!(gateway.metric(&format!("{SESSIONS}{{outcome=\"created\"}}")), 0.0);
    gateway.wait_for_metric("sluice_agent_connections{kind=\"control\"}", 0.0).await;
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
