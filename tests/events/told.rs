//! What is told, and to whom.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use sluice::identity::{Caller, Identity};

use super::support::db::{self, TestDatabase};
use super::support::{Agent, EventStream, Gateway, SampleSet, bearer, bytes, set_file};
use super::{House, next_set};
use crate::on_both_databases;

on_both_databases!(
    a_set_is_told_as_it_is_listed,
    sets_that_come_with_their_session_are_told,
    agents_of_the_chat_come_and_go,
    a_reader_is_told_its_own_transfers,
    only_participants_are_told,
);

async fn a_set_is_told_as_it_is_listed(database: &TestDatabase) {
    let house = House::open(database).await;
    let (mut alice, mut bob) = (house.stream("user:alice").await, house.stream("user:bob").await);
    let elsewhere = EventStream::open(&house.gateway, "c2", &house.gateway.reader("user:carol"), "").await;
    let set = SampleSet::of([("b.bin", bytes(2, 100))]);
    let announce = async |progress: Option<Value>| {
        let change = |frame: &mut Value| {
            frame["session_id"] = json!("turn-1");
            frame["task_id"] = json!("t1");
            if let Some(progress) = progress {
                frame["progress"] = progress;
            }
        };
        house.ada.announce_with(&set, change).await;
    };
    announce(Some(json!({"done": 1, "total": 3}))).await;
    let told = alice.expect("set").await;
    assert_eq!(bob.expect("set").await, told);
    let token = house.gateway.reader("user:alice");
    let listed = house.gateway.get("/v1/chats/c1/sets", &token).await.json();
    assert_eq!(told, listed["sets"][0]);
    assert_eq!((&told["online"], &told["progress"]["done"]), (&json!(true), &json!(1)));

    announce(Some(json!({"done": 2, "total": 3}))).await;
    let wanted = json!({"sha256": set.identity(), "task_id": "t1", "agent": "ada", "done": 2, "total": 3});
    assert_eq!(alice.expect("progress").await, wanted);
    announce(None).await;
    let told = alice.expect("set").await;
    let listed = house.gateway.get("/v1/chats/c1/sets", &token).await.json();
    assert_eq!((&told, &told["progress"]), (&listed["sets"][0], &Value::Null));
    drop(elsewhere);
}

async fn sets_that_come_with_their_session_are_told(database: &TestDatabase) {
    let house = House::open(database).await;
    let mut alice = house.stream("user:alice").await;
    let sets: Vec<_> = (10..13).map(|seed| SampleSet::of([("b.bin", bytes(seed, 100))])).collect();
    let bea = house.gateway.agent("bea").await;
    for set in &sets {
        bea.announce_in("turn-2", set).await;
    }
    house.gateway.wait_for_metric("sluice_announcements_total{outcome=\"accepted\"}", 4.0).await;
    house.gateway.bind_session("turn-2", "c1", "agent:bea").await;
    for set in &sets {
        assert_eq!(next_set(&mut alice).await, set.identity());
    }
    // Bea is one of the chat's agents now.
    drop(bea);
    assert_eq!(alice.expect("agent").await, json!({"name": "bea", "online": false}));
}

async fn agents_of_the_chat_come_and_go(database: &TestDatabase) {
    let mut house = House::open(database).await;
    house.gateway.operate(Method::PUT, "/v1/chats/c1/participants/agent:bea", None).await;
    let mut alice = house.stream("user:alice").await;
    let agent = |name: &str, online: bool| json!({"name": name, "online": online});
    let eve = house.gateway.agent("eve").await;
    let bea = house.gateway.agent("bea").await;
    assert_eq!(alice.expect("agent").await, agent("bea", true));
    house.ada.cut().await;
    assert_eq!(alice.expect("agent").await, agent("ada", false));
    house.ada.reconnect().await;
    assert_eq!(alice.expect("agent").await, agent("ada", true));
    // A newer connection takes over, and the agent was there all the time.
    let held = house.ada.take_over().await;
    drop((eve, bea));
    assert_eq!(alice.expect("agent").await, agent("bea", false));
    drop(held);
    // Who is one of the chat's no longer is nobody's business here.
    house.gateway.operate(Method::DELETE, "/v1/chats/c1/participants/agent:bea", None).await;
    let _bea = house.gateway.agent("bea").await;
    let set = house.announce(20).await;
    assert_eq!(next_set(&mut alice).await, set.identity());
}

async fn a_reader_is_told_its_own_transfers(database: &TestDatabase) {
    let house = House::open(database).await;
    let gateway = &house.gateway;
    let (mut alice, mut bob) = (house.stream("user:alice").await, house.stream("user:bob").await);
    let request =
        gateway.request(Method::GET, &set_file("c1", &house.set, "a.bin"), &gateway.reader("user:alice"), None);
    let mut download = gateway.client().receive_buffer(32 * 1024).send(request).await;
    download.read(1000).await;
    let begun = alice.expect("transfer").await;
    let id = begun["id"].clone();
    let wanted = json!({
        "id": id, "sha256": house.set.files[0].sha256, "size": 8 << 20, "start": 0, "end": 8 << 20,
        "sent_bytes": 0, "state": begun["state"],
    });
    assert_eq!(begun, wanted);
    loop {
        let going = alice.expect("transfer").await;
        assert_eq!(going["id"], id);
        if going["sent_bytes"].as_u64().unwrap() > 0 {
            break;
        }
    }
    // Who comes later begins with what runs.
    let (mut again, first) = house.go_on("user:alice", "").await;
    assert_eq!(first[0].data["transfers"][0]["id"], id);
    drop(download);
    for stream in [&mut alice, &mut again] {
        let ended = loop {
            let told = stream.expect("transfer").await;
            if told["state"] == "ended" {
                break told;
            }
        };
        assert_eq!((&ended["id"], &ended["outcome"]), (&id, &json!("reader_left")));
    }
    let (_, first) = house.go_on("user:alice", "").await;
    assert_eq!(first[0].data, json!({"transfers": []}));
    // Bob was told nothing of it: the next thing that he hears of is something else.
    let before = bob.last_event_id.clone();
    let set = house.announce(21).await;
    assert_eq!(next_set(&mut bob).await, set.identity());
    let position = |id: &str| id.split_once('-').unwrap().1.parse::<u64>().unwrap();
    assert_eq!(position(&bob.last_event_id), position(&before) + 1, "nor can he tell by the ids");
}

async fn only_participants_are_told(database: &TestDatabase) {
    let house = House::open(database).await;
    let gateway = &house.gateway;
    let limited = |chats: &[&str]| {
        let chats = Some(chats.iter().map(|chat| chat.parse().unwrap()).collect());
        gateway.token(&Identity::Reader(Caller { principal: "user:alice".parse().unwrap(), chats }))
    };
    let mut seen = Vec::new();
    for (chat, token) in [
        ("c1", gateway.reader("user:carol")),
        ("nowhere", gateway.reader("user:carol")),
        ("c1", limited(&["c2"])),
        ("c2", limited(&["c2"])),
        ("c1", gateway.operator()),
        ("c1", gateway.reader("agent:ada")),
    ] {
        for method in [Method::GET, Method::HEAD] {
            for id in ["", "0000000000000000-1", "x"] {
                let path = format!("/v1/chats/{chat}/events");
                let mut request = gateway.request(method.clone(), &path, &token, None);
                if !id.is_empty() {
                    request.headers_mut().insert("last-event-id", id.parse().unwrap());
                }
                let mut answer = gateway.client().send(request).await.whole().await;
                for name in ["x-request-id", "date"] {
                    answer.headers.remove(name);
                }
                assert_eq!(answer.status, 404, "{method} {path} {id}");
                seen.push((method.clone(), answer.headers, answer.body));
            }
        }
    }
    for (method, headers, body) in &seen {
        let first = seen.iter().find(|(other, ..)| other == method).unwrap();
        assert_eq!((headers, body), (&first.1, &first.2));
    }
    assert_eq!(gateway.metric(super::SUBSCRIBERS), 0.0);
    EventStream::open(gateway, "c1", &limited(&["c1"]), "").await;
}

#[tokio::test]
async fn the_head_says_what_it_is_and_that_nobody_keeps_it() {
    let house = House::on(Gateway::start().await).await;
    let gateway = &house.gateway;
    for http2 in [false, true] {
        let client = if http2 { gateway.client().http2() } else { gateway.client() };
        let alice = [bearer(&gateway.reader("user:alice")), ("accept-encoding", "gzip, br".to_owned())];
        let (mut stream, _) = EventStream::open_by(client, gateway, "c1", &alice, "").await;
        let mut headers = stream.headers().clone();
        for (name, value) in [
            ("content-type", "text/event-stream"),
            ("cache-control", "no-store, no-transform"),
            ("x-accel-buffering", "no"),
            ("x-content-type-options", "nosniff"),
        ] {
            assert_eq!(headers[name], value, "{name}");
        }
        assert!(!headers.contains_key("content-encoding") && !headers.contains_key("content-length"));
        assert!((1000..5000).contains(&stream.retry.unwrap()));
        let set = house.announce(30 + u64::from(http2)).await;
        assert_eq!(next_set(&mut stream).await, set.identity());

        let request = gateway.request(Method::HEAD, "/v1/chats/c1/events", &gateway.reader("user:alice"), None);
        let mut answer = client.send(request).await.whole().await;
        assert!(answer.body.is_empty());
        for headers in [&mut headers, &mut answer.headers] {
            for name in ["x-request-id", "date", "transfer-encoding"] {
                headers.remove(name);
            }
        }
        assert_eq!((answer.status.as_u16(), &answer.headers), (200, &headers));
    }
    gateway.wait_for_metric(super::SUBSCRIBERS, 0.0).await;
}

/// The data connection of an agent whose control connection goes is still the agent.
#[tokio::test]
async fn an_agent_is_there_as_long_as_one_of_its_connections_is() {
    let house = House::on(Gateway::start().await).await;
    let gateway = &house.gateway;
    gateway.operate(Method::PUT, "/v1/chats/c1/participants/agent:bea", None).await;
    let mut alice = house.stream("user:alice").await;
    let token = gateway.agent_token("bea", "bea");
    let mut bea = Agent::builder(&gateway.url, &token, "bea").data().connect().await;
    assert_eq!(alice.expect("agent").await["online"], true);
    bea.cut_one(super::support::Kind::Control).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    bea.cut().await;
    assert_eq!(alice.expect("agent").await, json!({"name": "bea", "online": false}));
    let set = house.announce(40).await;
    assert_eq!(next_set(&mut alice).await, set.identity());
}
