//! The names that agents hold, and what is known of each.

use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::support::db::{self, TestDatabase};
use crate::support::{Gateway, Kind, What, Wire, eventually, set_file};
use crate::{bearer, on_both_databases, small};

on_both_databases!(a_name_belongs_to_the_first_that_held_it, names_and_bindings_outlive_a_restart);

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
    gateway.operate(Method::PUT, "/v1/agents/shared", Some(json!({"principal": "agent:second"}))).await;
    let created = Wire::open(&gateway, "", &[]).await.create("shared", &gateway.unnamed_agent_token("second")).await;
    assert_eq!(created["session"]["agent_id"], "second");
}

async fn names_and_bindings_outlive_a_restart(database: &TestDatabase) {
    let mut gateway = Gateway::builder().on(database).start().await;
    gateway.put_chat("c1", &["user:alice"]).await;
    gateway.bind_session("turn-1", "c1", "agent:ada").await;
    let mut agent = gateway.agent("ada").await;
    gateway.restart().await;
    agent.wait_for(|event| matches!(event.what, What::Closed { code: 1012, .. })).await;
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
    assert!(!bob.is_over(Kind::Control));
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
