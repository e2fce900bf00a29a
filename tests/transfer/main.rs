//! Transfers from agents of every kind to readers of every kind, over real sockets.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod cancel;
mod credit;
mod failover;
mod large;
mod property;
mod refusals;
mod resume;
mod slots;
mod stage;
mod stall;
mod stop;
mod verify;
