//! Many streams on one HTTP/2 connection: one that stops stops itself.

use futures_util::future::join_all;
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::stage::{FRAME, Stage, single, url};
use crate::support::bytes;
use crate::support::platform::within;

const STALLED: usize = 100;
/// What a client takes of a stream before it says that it has been read.
const STREAM_WINDOW: u32 = 64 * 1024;
/// What is on its way to a stream that stopped, in frames: its window and what HTTP/2 holds of it.
const HELD: usize = 6;

async fn next(body: &mut Incoming) -> Option<usize> {
    loop {
        if let Ok(data) = within(body.frame()).await?.unwrap().into_data() {
            return Some(data.len());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_stop_hold_up_no_other_on_their_connection() {
    let stage = Stage::new().await;
    let (large, small) = (single(bytes(1, FRAME).repeat(80)), single(bytes(2, 40 * FRAME)).chunked(FRAME));
    let agent = stage.agent_with("ada", &large).await;
    stage.share(&agent, "c1", &small).await;
    let stream = TcpStream::connect(stage.gateway.address()).await.unwrap();
    let handshake = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(STREAM_WINDOW)
        // A browser's is far larger than a stream's, too: what one stream does not take is not to keep it from others.
        .initial_connection_window_size((STALLED as u32 + 4) * STREAM_WINDOW)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = within(handshake).await.unwrap();
    let downloads = async {
        let get = |path: String| {
            let mut sender = sender.clone();
            let mut request = stage.gateway.request(Method::GET, &path, &stage.alice(), None);
            request.headers_mut().insert("range", "bytes=1-".parse().unwrap());
            async move { within(sender.send_request(request)).await.unwrap().into_body() }
        };
        let mut stalled = join_all((0..STALLED).map(|_| get(url(&large)))).await;
        for body in &mut stalled {
            assert!(next(body).await.is_some());
        }
        for _ in 0..3 {
            let mut body = get(url(&small)).await;
            let mut received = 0;
            while let Some(len) = next(&mut body).await {
                received += len;
            }
            assert_eq!(received, 40 * FRAME - 1, "the one that moves");
        }
        let sent = stage.gateway.metric("sluice_received_bytes_total") as usize - 3 * 40 * FRAME;
        println!("{} frames for each stream that stopped", sent as f64 / (STALLED * FRAME) as f64);
        assert!(sent <= STALLED * HELD * FRAME, "{sent} bytes for streams that stopped");
        // And they go on when they are read again.
        let mut received = 0;
        let mut body = stalled.swap_remove(0);
        while let Some(len) = next(&mut body).await {
            received += len;
        }
        assert!(received > 79 * FRAME, "{received}");
        drop(stalled);
    };
    tokio::select! {
        end = connection => panic!("the connection ended: {end:?}"),
        () = downloads => {}
    }
    stage.wait_for_quiet().await;
}
