//! The demo's own download: plain HTTP/1.1, as any reader would, and the hash of what came.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use bytesize::ByteSize;
use http::header::{AUTHORIZATION, HOST};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::protocol::Hasher;
use crate::protocol::manifest::Entry;

/// Downloads `url` from the listener at `address`, and prints how it went.
///
/// # Errors
/// When the response is not the whole entry.
pub async fn verified(address: SocketAddr, url: &str, token: &str, entry: &Entry) -> anyhow::Result<()> {
    let uri: Uri = url.parse()?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let socket = TcpStream::connect(address).await.context("cannot reach the gateway")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    let request = Request::get(path)
        .header(HOST, host)
        .header(AUTHORIZATION, format!("Bearer {token}"))
        .body(Empty::<Bytes>::new())?;
    let begun = Instant::now();
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let verified = response.headers().get("sluice-verified").cloned();
        let first_byte = begun.elapsed();
        let mut body = response.into_body();
        let (mut hasher, mut bytes) = (Hasher::default(), 0_u64);
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame.context("the response was cut")?.data_ref() {
                hasher.update(data);
                bytes += data.len() as u64;
            }
        }
        if status != StatusCode::OK {
            bail!("the gateway answered {status}");
        }
        anyhow::Ok((first_byte, bytes, hasher.finish(), verified))
    };
    // The connection's own failure shows in the exchange, which it drives.
    let (first_byte, bytes, sha256, verified) = tokio::select! {
        answer = exchange => answer?,
        ended = connection => bail!("the connection ended early: {ended:?}"),
    };
    let elapsed = begun.elapsed();
    ensure!(bytes == entry.size, "{bytes} bytes came instead of {}", entry.size);
    ensure!(sha256 == entry.sha256, "the bytes have the hash {sha256} instead of {}", entry.sha256);
    let rate = bytes as f64 / elapsed.as_secs_f64().max(f64::EPSILON);
    println!("downloaded      {}", entry.path);
    println!("bytes           {bytes} ({})", ByteSize(bytes));
    println!("sha256          {sha256} (as announced)");
    println!("sluice-verified {}", verified.as_ref().and_then(|value| value.to_str().ok()).unwrap_or("missing"));
    println!("first byte      {:.1} ms", first_byte.as_secs_f64() * 1e3);
    println!("duration        {:.2} s ({}/s)", elapsed.as_secs_f64(), ByteSize(rate as u64));
    Ok(())
}
