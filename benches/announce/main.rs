//! How long a large announcement takes from its frame to its commit, on either database, and what small announcements of
//! another agent feel of it. See `benches/README.md`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench that cannot go on ends")]

#[path = "../../tests/support/db.rs"]
mod db;

use std::sync::Arc;
use std::time::{Duration, Instant};

use db::TestDatabase;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use sluice::agents::{OpenSession, Text};
use sluice::events::{self, Events};
use sluice::metrics::Metrics;
use sluice::protocol::{Sha256, manifest};
use sluice::sets::{Announcer, Decision, SetLimits, Sets};
use sluice::store::{Store, StoreOptions};
use sluice::transfer::TransferError;
use tokio_util::sync::CancellationToken;

const ROUNDS: u64 = 5;
const GOAL: Duration = Duration::from_millis(600);

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        measure("SQLite", &TestDatabase::sqlite()).await;
        match TestDatabase::postgres().await {
            Some(database) => measure("PostgreSQL", &database).await,
            None => println!("PostgreSQL: no server; set SLUICE_TEST_POSTGRES"),
        }
    });
}

async fn measure(name: &str, database: &TestDatabase) {
    // A slow machine is to be measured, not refused.
    let options = StoreOptions { operation_timeout: Duration::from_secs(60), ..StoreOptions::default() };
    let store = Store::open(&database.url, options).await.unwrap();
    for (chat, agent) in [("c1", "agent:huge"), ("c2", "agent:small")] {
        store.put_chat(&chat.parse().unwrap(), None, &[]).await.unwrap();
        let (agent, session) = (agent.parse().unwrap(), agent.parse().unwrap());
        store.bind_session(&agent, &session, &chat.parse().unwrap()).await.unwrap();
    }
    let metrics = Arc::new(Metrics::new().unwrap());
    let sets = Sets::new(
        store,
        metrics.clone(),
        SetLimits { deadline: Duration::from_secs(60), ..SetLimits::default() },
        Arc::new(|_| false),
        Arc::new(|_, _, _| async { Err(TransferError::BlobGone) }.boxed()),
        (Events::new(events::Limits::default(), metrics), Arc::new(|_| true)),
        CancellationToken::new(),
    );
    let small: Vec<Text> = (0..200).map(|n| frame("agent:small", &manifest_of(n, 2, 0))).collect();
    let alone = slowest(&sets, &small[..100]).await;
    // The first round creates what the others find: paths of files. The others give each of them another version.
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        let text = frame("agent:huge", &manifest_of(round, 10_000, 20));
        let (elapsed, entries) = (announce(&sets, "agent:huge", &text).await, text.len());
        println!("{name}: {entries} bytes of frame, 10,000 entries: {} ms", elapsed.as_millis());
        took.push(elapsed);
    }
    took.sort_unstable();
    let median = took[took.len() / 2];
    let text = frame("agent:huge", &manifest_of(ROUNDS, 10_000, 20));
    let (_, beside) = tokio::join!(announce(&sets, "agent:huge", &text), slowest(&sets, &small[100..]));
    let goal = match (cfg!(debug_assertions), median <= GOAL) {
        (true, _) => "not judged in an unoptimised build",
        (false, true) => "kept",
        (false, false) => "MISS",
    };
    println!("{name}: median {} ms (goal {} ms: {goal})", median.as_millis(), GOAL.as_millis());
    println!("{name}: slowest small announcement {} ms alone, {} ms beside one", alone.as_millis(), beside.as_millis());
}

async fn slowest(sets: &Sets, texts: &[Text]) -> Duration {
    let mut slowest = Duration::ZERO;
    for text in texts {
        slowest = slowest.max(announce(sets, "agent:small", text).await);
    }
    slowest
}

async fn announce(sets: &Sets, agent: &str, text: &Text) -> Duration {
    let begun = Instant::now();
    let session = OpenSession {
        id: "control".parse().unwrap(),
        agent: agent.parse().unwrap(),
        name: "bench".parse().unwrap(),
        owner: None,
    };
    let by = Announcer { sessions: vec![session], received: tokio::time::Instant::now() };
    let decision = sets.announce(&by, text).await.expect("it is accepted");
    assert!(matches!(decision, Decision::Accepted(_)));
    begun.elapsed()
}

fn manifest_of(seed: u64, entries: u64, chunks: usize) -> Value {
    let entry = |n: u64| {
        let hash = Sha256::of(&(seed << 32 | n).to_be_bytes()).to_hex();
        let mut entry = json!({
            "path": format!("results/{n:05}.bin"), "size": chunks.max(1) * 262_144, "sha256": hash,
            "mediaType": "application/octet-stream",
        });
        if chunks > 0 {
            entry["chunks"] = json!({ "chunkSize": 262_144, "hashes": vec![hash; chunks] });
        }
        entry
    };
    json!({
        "kind": "webagents.artifact-set/v1", "createdAt": "2026-10-17T10:00:00Z", "expiresAt": null,
        "producer": { "agent": "https://agent.example/agents/flow" }, "entries": (0..entries).map(entry).collect::<Vec<_>>(),
    })
}

fn frame(session: &str, value: &Value) -> Text {
    let read = manifest::read(&value.to_string()).unwrap();
    let frame = json!({
        "type": "artifact.manifest", "event_id": "e", "task_id": "t", "session_id": session,
        "sha256": read.identity, "size": read.canonical.len(), "manifest": value,
    });
    Text::from(frame.to_string())
}
