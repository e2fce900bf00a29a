//! Many agents that only are there: a control connection each with its session, which comes back when it is lost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use futures_util::{SinkExt as _, StreamExt as _};
use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How many dial at once before they were all there; afterwards nothing holds them back but their own delays.
const FIRST_DIALS: usize = 64;
/// The delays of `sluice agent` before it dials again.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// How long a connection that came about may take to its session.
const OPEN: Duration = Duration::from_secs(10);
/// How often it is looked whether all are there.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Agents on a thread of their own. Dropping it ends them.
#[derive(Debug)]
pub struct Fleet {
    shared: Arc<Shared>,
    stop: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Agents with a session.
    open: AtomicUsize,
    /// Connections that came about and got no session.
    failed: AtomicUsize,
}

impl Shared {
    fn fail(&self, error: &anyhow::Error) {
        // They are many, and for few reasons.
        if self.failed.fetch_add(1, Ordering::Relaxed) == 0 {
            eprintln!("the first connection of the agents without a session: {error:#}");
        }
    }
}

/// An agent of the fleet.
struct Agent {
    gateway: SocketAddr,
    name: String,
    token: String,
}

type Socket = WebSocketStream<TcpStream>;

impl Fleet {
    /// Starts an agent for each of these names and tokens.
    pub fn start(gateway: SocketAddr, agents: Vec<(String, String)>) -> anyhow::Result<Self> {
        let (shared, stop) = (Arc::<Shared>::default(), CancellationToken::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (counts, ends) = (shared.clone(), stop.clone());
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                let (first, tasks) = (Arc::new(Semaphore::new(FIRST_DIALS)), TaskTracker::new());
                for (name, token) in agents {
                    let agent = Agent { gateway, name, token };
                    tasks.spawn(agent.run(counts.clone(), first.clone()));
                }
                ends.cancelled().await;
            });
        });
        Ok(Self { shared, stop, thread: Some(thread) })
    }

    /// Waits until so many have a session.
    pub fn await_open(&self, agents: usize, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let open = self.shared.open.load(Ordering::Relaxed);
            if open == agents {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{open} of {agents} agents have a session after {limit:?}, and {} tries failed",
                self.failed()
            );
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Connections that came about and got no session.
    pub fn failed(&self) -> usize {
        self.shared.failed.load(Ordering::Relaxed)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic was printed already.
            let _ = thread.join();
        }
    }
}

impl Agent {
    async fn run(self, shared: Arc<Shared>, first: Arc<Semaphore>) {
        let mut place = first.acquire_owned().await.ok();
        let mut failures = 0;
        loop {
            // One that is not accepted at all failed at nothing: there is no gateway.
            if let Ok(stream) = TcpStream::connect(self.gateway).await {
                match tokio::time::timeout(OPEN, self.open(stream)).await {
                    Ok(Ok(socket)) => {
                        drop(place.take());
                        failures = 0;
                        shared.open.fetch_add(1, Ordering::Relaxed);
                        idle(socket).await;
                        shared.open.fetch_sub(1, Ordering::Relaxed);
                    }
                    Ok(Err(error)) => shared.fail(&error),
                    Err(_) => shared.fail(&anyhow!("no session within {OPEN:?}")),
                }
            }
            let step = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_DELAY);
            failures += 1;
            let delay = step.mul_f64(rand::rng().random_range(0.5..=1.0));
            tokio::time::sleep(delay).await;
        }
    }

    async fn open(&self, stream: TcpStream) -> anyhow::Result<Socket> {
        stream.set_nodelay(true)?;
        let mut request = format!("ws://{}/ws", self.gateway).into_client_request()?;
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {}", self.token).parse()?);
        let config = WebSocketConfig::default().read_buffer_size(1024).write_buffer_size(0);
        let (mut socket, _) = client_async_with_config(request, stream, Some(config)).await?;
        let create = json!({
            "type": "session.create", "event_id": "create", "timestamp": 0, "uamp_version": "1.0",
            "session": { "agent": self.name, "token": self.token },
        });
        socket.send(Message::text(create.to_string())).await?;
        loop {
            let Message::Text(text) = socket.next().await.context("the connection ended")?? else { continue };
            match serde_json::from_str::<Value>(&text)?["type"].as_str() {
                Some("session.created") => return Ok(socket),
                Some("session.error") => bail!("{text}"),
                _ => {}
            }
        }
    }
}

/// Answers pings, which reading does, until the connection ends.
async fn idle(mut socket: Socket) {
    while let Some(Ok(_)) = socket.next().await {}
}
