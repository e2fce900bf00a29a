//! Agents that sign (RFC 9421, web-bot-auth) instead of sending a token: on both kinds of connection, and as readers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod continuity;
mod key_sets;
mod proven;
mod refusals;
mod replays;
mod stage;
