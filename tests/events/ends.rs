//! How streams end.

use std::time::{Duration, Instant};

use http::Method;
use http_body_util::Full;
use serde_json::json;
use sluice::clock::Clock;
use sluice::store::{Store, StoreOptions};

use super::support::db::{self, TestDatabase};
use super::support::{EventStream, Gateway, bearer, span};
use super::{House, assert_ends};
use crate::on_both_databases;

on_both_databases!(
    who_loses_the_chat_is_told_nothing_more,
    what_another_process_writes_is_heard_of,
    a_browser_that_signs_out_is_told_nothing_more,
);

const SECOND: Duration = Duration::from_secs(1);

async fn who_loses_the_chat_is_told_nothing_more(database: &TestDatabase) {
    let house = House::open(database).await;
    let gateway = &house.gateway;
    let open = async |http2: bool, reader: &str| {
        let client = if http2 { gateway.client().http2() } else { gateway.client() };
        EventStream::open_by(client, gateway, "c1", &[bearer(&gateway.reader(reader))], "").await.0
    };
    let (c1, alice) = ("/v1/chats/c1", "/v1/chats/c1/participants/user:alice");
    let without = json!({"participants": ["user:bob"]});
    let mut bob = house.stream("user:bob").await;
    for (method, path, body) in [(Method::DELETE, alice, None), (Method::PUT, c1, Some(without))] {
        gateway.operate(Method::PUT, alice, None).await;
        let mut hers = [open(false, "user:alice").await, open(true, "user:alice").await];
        gateway.operate(method, path, body).await;
        for stream in &mut hers {
            let took = assert_ends(stream, "revoked").await;
            assert!(took < SECOND, "{took:?}");
        }
        let token = gateway.reader("user:alice");
        let refused =
            EventStream::head(gateway.client(), gateway, "c1", &[bearer(&token)], &hers[0].last_event_id).await;
        assert_eq!(refused.status(), 404);
    }
    // Nobody else noticed.
    house.happen();
    bob.expect("reset").await;
    gateway.operate(Method::DELETE, c1, None).await;
    // Made anew, it is another chat: what happened in the old one is nobody's any more.
    gateway.put_chat("c1", &["user:bob"]).await;
    let took = assert_ends(&mut bob, "revoked").await;
    assert!(took < SECOND, "{took:?}");
    let (_, first) = house.go_on("user:bob", &bob.last_event_id).await;
    assert_eq!(first[0].data, json!({"reason": "unknown"}));
}

async fn what_another_process_writes_is_heard_of(database: &TestDatabase) {
    let house = House::open(database).await;
    let mut alice = house.stream("user:alice").await;
    let other = Store::open(&database.url, StoreOptions::default()).await.unwrap();
    other.remove_participant(&"c1".parse().unwrap(), &"user:alice".parse().unwrap()).await.unwrap();
    assert_ends(&mut alice, "revoked").await;
}

/// Posts a form as a browser does on the gateway's own page; what came back of `Set-Cookie`.
async fn post(gateway: &Gateway, path: &str, cookie: &str, form: String) -> String {
    let (mut head, _) = gateway.request(Method::POST, path, "", None).into_parts();
    head.headers.insert("content-type", "application/x-www-form-urlencoded".parse().unwrap());
    head.headers.insert("origin", gateway.state().public_url.to_string().parse().unwrap());
    head.headers.insert("cookie", cookie.parse().unwrap());
    let answer = gateway.client().send(http::Request::from_parts(head, Full::from(form))).await;
    assert_eq!(answer.status, 303);
    answer.header("set-cookie").split(';').next().unwrap().to_owned()
}

async fn a_browser_that_signs_out_is_told_nothing_more(database: &TestDatabase) {
    let house = House::open(database).await;
    let gateway = &house.gateway;
    let cookie = post(gateway, "/signin", "", format!("token={}", gateway.reader("user:alice"))).await;
    let headers = [("cookie", cookie.clone())];
    let (mut alice, _) = EventStream::open_by(gateway.client(), gateway, "c1", &headers, "").await;
    house.happen();
    alice.expect("reset").await;
    post(gateway, "/signout", &cookie, String::new()).await;
    assert_ends(&mut alice, "expired").await;
    assert_eq!(EventStream::head(gateway.client(), gateway, "c1", &headers, "").await.status(), 401);
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let clock = Clock::fixed(1_800_000_000_000);
    let house = House::on(Gateway::builder().clock(clock).start().await).await;
    let claims = json!({"sub": "user:alice", "scope": "reader", "exp": 1_800_000_000.5});
    let token = house.gateway.raw_token(&claims);
    let (mut alice, _) = EventStream::open(&house.gateway, "c1", &token, "").await;
    let took = assert_ends(&mut alice, "expired").await;
    assert!(took > Duration::from_millis(300) && took < SECOND * 5, "{took:?}");
}

#[tokio::test]
async fn a_gateway_that_drains_says_so_and_waits_for_no_stream() {
    let mut house =
        House::on(Gateway::builder().with(|layer| layer.shutdown_grace = Some(span("20s"))).start().await).await;
    let gateway = &house.gateway;
    let mut streams = Vec::new();
    for http2 in [false, true] {
        let client = if http2 { gateway.client().http2() } else { gateway.client() };
        let headers = [bearer(&gateway.reader("user:alice"))];
        streams.push(EventStream::open_by(client, gateway, "c1", &headers, "").await.0);
    }
    gateway.begin_stop();
    for stream in &mut streams {
        assert_ends(stream, "draining").await;
    }
    drop(streams);
    let begun = Instant::now();
    house.gateway.stop().await;
    assert!(begun.elapsed() < SECOND * 10, "{:?}", begun.elapsed());
}

/// What a connection is given up for is not a stream on which nothing happens.
#[tokio::test]
async fn a_stream_on_which_nothing_happens_stays() {
    let gateway = Gateway::builder().with(|layer| layer.stall_timeout = Some(span("200ms"))).start().await;
    let house = House::on(gateway).await;
    let gateway = &house.gateway;
    let mut streams = Vec::new();
    for http2 in [false, true] {
        let client = if http2 { gateway.client().http2() } else { gateway.client() };
        let headers = [bearer(&gateway.reader("user:alice"))];
        streams.push(EventStream::open_by(client, gateway, "c1", &headers, "").await.0);
    }
    // Many times what a reader may take nothing for, and long enough for a comment.
    tokio::time::sleep(Duration::from_secs(16)).await;
    house.happen();
    for stream in &mut streams {
        stream.expect("reset").await;
        assert_eq!(stream.comments, 1);
    }
}
