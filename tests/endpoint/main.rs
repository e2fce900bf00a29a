//! The producer endpoint of `sluice agent --serve`: whom it serves, what it refuses, and a gateway that reads from it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod end_to_end;
mod hostile;
mod keys;
mod refusals;
mod requests;
mod stage;
