//! One download whose agent is cut many times: one response, the right bytes, little asked again, and soon.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use sluice::producer::{self, AgentEvent, AgentOptions, Backoff};
use sluice::protocol::limits::{CREDIT_DEFAULT, DATA_PAYLOAD};
use sluice::protocol::{Hasher, Sha256};
use tokio_util::sync::CancellationToken;

use crate::client::BUFFER;
use crate::figure::{Figure, median, quantile};
use crate::proxy::Proxy;
use crate::stage::{Gateway, Place, file_path};

/// How long the agent may take to hash its folder and to be accepted.
const READY: Duration = Duration::from_secs(60);
/// The agent dials again almost at once, so that the row is not about the agent's own patience.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(100), cap: Duration::from_millis(100), settled: Duration::ZERO };

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let (bytes, cuts) = place.pick((300 << 20, 20), (64 << 20, 4));
    let folder = place.folder("cuts-shared", bytes)?;
    let expected = Sha256::of(&std::fs::read(folder.join("data.bin"))?);
    let gateway = Gateway::start(place, "cuts")?;
    let proxy = Proxy::start(gateway.address)?;
    let agent = Agent::start(&gateway, &proxy, folder)?;

    let mut reader = gateway.connect()?;
    let sent_before = proxy.sent();
    reader.get(&agent.path, None)?;
    let (mut hasher, mut taken) = (Hasher::default(), 0_u64);
    let (mut cut, mut waits) = (0, Vec::new());
    // Whether bytes after the last cut are still waited for.
    let mut interrupted = false;
    loop {
        let piece = reader.next(BUFFER)?;
        if piece.is_empty() {
            break;
        }
        hasher.update(piece);
        taken += piece.len() as u64;
        if interrupted && let Some(returned) = proxy.returned() {
            waits.push(Instant::now().saturating_duration_since(returned).as_secs_f64() * 1e3);
            interrupted = false;
        }
        if !interrupted && cut < cuts && taken >= bytes / (cuts + 1) * (cut + 1) {
            proxy.cut();
            cut += 1;
            interrupted = true;
        }
    }
    ensure!(cut == cuts && !interrupted, "the agent was cut {cut} times of {cuts}");
    ensure!(taken == bytes && hasher.finish() == expected, "the bytes that came are not those of the file");
    let again = proxy.sent().saturating_sub(sent_before + bytes) as f64 / cuts as f64;
    let window = f64::from(CREDIT_DEFAULT) * DATA_PAYLOAD as f64;
    Ok(vec![
        Figure::value("agent cut: times in one response, byte identical", cut as f64, ""),
        Figure::ratio("sent again for each cut, beside a window of 4 frames", again / 1024.0, window / 1024.0, "KiB")
            .at_most(1.0),
        Figure::value("bytes flow after the agent dials again, median", median(&waits), "ms"),
        Figure::value("bytes flow after the agent dials again, at worst", quantile(&waits, 1.0), "ms").at_most(250.0),
    ])
}

/// An agent inside the bench, for the sake of its back-off. Dropping it ends it.
struct Agent {
    path: String,
    shutdown: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl Agent {
    fn start(gateway: &Gateway, proxy: &Proxy, folder: PathBuf) -> anyhow::Result<Self> {
        let name = "bench-cuts";
        let token = gateway.expect_agent(name)?;
        let options = AgentOptions {
            session: Some(name.parse()?),
            data: true,
            backoff: BACKOFF,
            ..AgentOptions::new(folder, format!("http://{}", proxy.address), token)
        };
        let (events, seen) = mpsc::channel();
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::spawn(move || {
            let events = move |event| {
                if let AgentEvent::Accepted { sha256 } = event {
                    // Nobody listens any more once the set is known.
                    let _ = events.send(sha256);
                }
            };
            if let Err(error) = runtime.block_on(producer::run(options, stop, events)) {
                eprintln!("the agent ended: {error}");
            }
        });
        let mut agent = Self { path: String::new(), shutdown, thread: Some(thread) };
        let set = seen.recv_timeout(READY).context("the agent's set was not accepted")?;
        agent.path = file_path(&set.to_string());
        Ok(agent)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shutdown.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic was printed already.
            let _ = thread.join();
        }
    }
}
