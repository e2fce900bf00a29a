//! Callers that waste the endpoint's time and memory.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::stage::{Stage, large, request};
use crate::support::platform::within;
use crate::support::{Client, sha256};

/// What is answered to these bytes until the endpoint closes.
async fn answer(stage: &Stage, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(stage.address).await.unwrap();
    // The endpoint may hang up before all is sent.
    let _ = stream.write_all(bytes).await;
    let mut text = Vec::new();
    let _ = within(stream.read_to_end(&mut text)).await;
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn heads_are_bounded() {
    let stage = Stage::new().await;
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nx: {}", "x".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "x: y\r\n".repeat(100));
    for (head, status) in [(long, "431"), (many, "431"), ("no HTTP\r\n\r\n".to_owned(), "400")] {
        let answer = answer(&stage, head.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    // A body that does not come is not waited for.
    let body = "GET /artifacts/blobs/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n";
    assert!(answer(&stage, body.as_bytes()).await.starts_with("HTTP/1.1 400"));
    assert!(stage.ask("GET", &sha256(&large()), &[]).await.whole().await.body == large());
}

#[tokio::test]
async fn connections_that_say_nothing_are_given_up() {
    let stage = Stage::with(|options| {
        let serve = options.serve.as_mut().unwrap();
        serve.connections = 1;
        serve.head_timeout = Duration::from_millis(200);
    })
    .await;
    for said in ["", "GET / HTTP/1.1\r\nHo"] {
        let mut silent = TcpStream::connect(stage.address).await.unwrap();
        silent.write_all(said.as_bytes()).await.unwrap();
        // It has the only place, and loses it.
        assert!(stage.ask("GET", &sha256(&large()), &[]).await.whole().await.body == large());
        let mut rest = Vec::new();
        let _ = within(silent.read_to_end(&mut rest)).await;
    }
}

#[tokio::test]
async fn a_caller_that_takes_nothing_loses_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let huge = crate::support::bytes(3, 16 << 20);
    std::fs::write(dir.path().join("huge.bin"), &huge).unwrap();
    let stage = Stage::with(|options| {
        options.dir = dir.path().to_owned();
        let serve = options.serve.as_mut().unwrap();
        serve.transfers = 1;
        serve.stall_timeout = Duration::from_millis(200);
    })
    .await;
    let hash = sha256(&huge);
    let slow = Client::of(stage.address).receive_buffer(64 * 1024);
    let mut stopped = slow.send(request(stage.address, &stage.signing("GET", &hash), &[])).await;
    assert_eq!(stopped.status.as_u16(), 200);
    crate::support::eventually("its place", async || {
        let answer = stage.ask("GET", &hash, &[("range", "bytes=0-0".to_owned())]).await.whole().await;
        (answer.status.as_u16() == 206).then_some(())
    })
    .await;
    let (rest, end) = stopped.rest().await;
    assert!(end.is_err() && huge.starts_with(&rest), "a stopped transfer ended as if nothing had happened");
}

#[tokio::test]
async fn the_agents_end_is_not_held_up() {
    let stage = Stage::new().await;
    let _idle = TcpStream::connect(stage.address).await.unwrap();
    let _waiting = stage.ask("GET", &sha256(&large()), &[]).await;
    let address = stage.address;
    stage.agent.stop().await;
    assert!(TcpStream::connect(address).await.is_err(), "it listens although its agent ended");
}
