//! What one reader, and one that does not read, may take up.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluice::events::Limits;
use tokio::net::TcpStream;

use super::support::{EventStream, Gateway, bearer, eventually, span};
use super::{House, SUBSCRIBERS, assert_ends};

#[tokio::test]
async fn a_reader_has_so_many_streams_and_others_have_theirs() {
    let house = House::on(Gateway::start().await).await;
    let gateway = &house.gateway;
    let alice = gateway.reader("user:alice");
    let mut streams = Vec::new();
    for _ in 0..Limits::default().per_principal {
        streams.push(EventStream::open(gateway, "c1", &alice, "").await.0);
    }
    let refused = gateway.get("/v1/chats/c1/events", &alice).await;
    assert_eq!(
        (refused.status.as_u16(), refused.code().as_str(), refused.header("retry-after")),
        (429, "rate_limited", "5")
    );
    assert_eq!(gateway.metric("sluice_http_requests_limited_total{limit=\"reader_streams\"}"), 1.0);
    // A foreign chat is as unknown as ever.
    assert_eq!(gateway.get("/v1/chats/c2/events", &alice).await.status, 404);
    house.stream("user:bob").await;
    drop(streams.pop());
    eventually("another stream", async || {
        let headers = [bearer(&alice)];
        (EventStream::head(gateway.client(), gateway, "c1", &headers, "").await.status() == 200).then_some(())
    })
    .await;
    drop(streams);
    gateway.wait_for_metric(SUBSCRIBERS, 0.0).await;
}

#[tokio::test]
async fn a_slow_reader_is_told_that_it_was() {
    let house = House::on(Gateway::start().await).await;
    let gateway = &house.gateway;
    let headers = [bearer(&gateway.reader("user:alice"))];
    let client = gateway.client().receive_buffer(4096);
    let (mut slow, _) = EventStream::open_by(client, gateway, "c1", &headers, "").await;
    let mut quick = house.stream("user:bob").await;
    // More than any buffer between the two holds, each in its own time for those who read.
    let history = Limits::default().history;
    for number in 0..24 * history {
        house.happen();
        if number % (history / 2) == 0 {
            while quick.last_event_id != gateway_head(&house) {
                quick.expect("reset").await;
            }
        }
    }
    assert_ends(&mut slow, "lagged").await;
    assert!(gateway.metric("sluice_events_dropped_total") > history as f64);
    gateway.wait_for_metric(SUBSCRIBERS, 1.0).await;
}

/// The id that who comes now begins with.
fn gateway_head(house: &House) -> String {
    let (alice, chat) = ("user:alice".parse().unwrap(), "c1".parse().unwrap());
    let events = &house.gateway.state().events;
    let place = events.subscribers().iter().find(|reader| reader.place.chat == chat).unwrap().place.clone();
    events.subscribe(&alice, &place, sluice::events::Since::Now, None).unwrap().id().to_string()
}

#[tokio::test]
async fn a_reader_of_http1_that_stops_is_dropped() {
    let gateway = Gateway::builder().with(|layer| layer.stall_timeout = Some(span("400ms"))).start().await;
    let house = House::on(gateway).await;
    let gateway = &house.gateway;
    let headers = [bearer(&gateway.reader("user:alice"))];
    let client = gateway.client().receive_buffer(4096);
    let (mut stopped, _) = EventStream::open_by(client, gateway, "c1", &headers, "").await;
    // Slowly enough for whoever reads.
    eventually("the end of a reader that stopped", async || {
        (0..50).for_each(|_| house.happen());
        (gateway.metric(SUBSCRIBERS) == 0.0).then_some(())
    })
    .await;
    assert!(gateway.metric("sluice_events_dropped_total") > 0.0);
    let (last, _) = stopped.end().await;
    assert_eq!(last.unwrap().name, "reset", "it was cut, and not told anything any more");
}

#[tokio::test]
async fn a_reader_of_http2_that_stops_is_dropped() {
    let gateway = Gateway::builder().with(|layer| layer.stall_timeout = Some(span("400ms"))).start().await;
    let house = House::on(gateway).await;
    let gateway = &house.gateway;
    let stream = TokioIo::new(TcpStream::connect(gateway.address()).await.unwrap());
    // A window that a few events fill, and a connection that goes on otherwise.
    let (mut client, connection) =
        http2::Builder::new(TokioExecutor::new()).initial_stream_window_size(1000).handshake(stream).await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "tests have no task tracker to wait for")]
    let connection = tokio::spawn(connection);
    let ask = |reader: &str| {
        let token = gateway.reader(reader);
        gateway.request(Method::GET, "/v1/chats/c1/events", &token, None)
    };
    let mut stopped = client.send_request(ask("user:alice")).await.unwrap();
    let mut reading = client.send_request(ask("user:bob")).await.unwrap();
    assert_eq!((stopped.status().as_u16(), reading.status().as_u16()), (200, 200));
    let mut read = 0;
    for _ in 0..50 {
        house.happen();
        read += reading.body_mut().frame().await.unwrap().unwrap().into_data().map_or(0, |data: Bytes| data.len());
    }
    assert!(read > 2000, "{read}");
    gateway.wait_for_metric(SUBSCRIBERS, 1.0).await;
    // What was on its way comes, and then the stream is reset.
    let cut = loop {
        match stopped.body_mut().frame().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break Some(error),
            None => break None,
        }
    };
    assert!(cut.is_some());
    // The other one of the same connection goes on.
    tokio::time::sleep(Duration::from_millis(600)).await;
    house.happen();
    let told = reading.body_mut().frame().await;
    assert!(matches!(told, Some(Ok(_))), "{told:?}");
    connection.abort();
}
