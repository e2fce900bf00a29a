//! Agents' sessions and the life of their connections, over real sockets against the whole gateway.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod connections;
mod names;
mod sessions;

use support::SampleSet;

const ENDED: &str = "sluice_agent_connections_ended_total";

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// A set of one small file.
fn small(content: &str) -> SampleSet {
    SampleSet::of([("a.txt", content.as_bytes().to_vec())])
}
