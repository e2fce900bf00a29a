//! A TCP proxy whose connections a test can freeze or cut: what a database is like that is there and does not answer.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The proxy. Dropping it ends its connections.
pub struct Proxy {
    pub address: SocketAddr,
    frozen: watch::Sender<bool>,
    _end: DropGuard,
}

impl Proxy {
    /// A proxy to `target`, `host:port`.
    pub async fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let frozen = watch::Sender::new(false);
        let end = CancellationToken::new();
        let (watching, ending) = (frozen.clone(), end.clone());
        spawn(end.clone(), async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&target).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                spawn(ending.clone(), carry(from_client, to_server, watching.subscribe()));
                spawn(ending.clone(), carry(from_server, to_client, watching.subscribe()));
            }
        });
        Self { address, frozen, _end: end.drop_guard() }
    }

    /// Passes nothing on from now on, and keeps it.
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    /// Passes on again.
    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }
}

#[expect(clippy::disallowed_methods, reason = "tests have no task tracker to wait for")]
fn spawn(end: CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(async move { end.run_until_cancelled(task).await });
}

async fn carry(
    from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut frozen: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if from.readable().await.is_err() || frozen.wait_for(|frozen| !frozen).await.is_err() {
            return;
        }
        match from.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => {
                if to.write_all(&buffer[..len]).await.is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
