//! Transfers from agents of every kind to readers of every kind, over real sockets.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod cached;
mod cancel;
mod credit;
mod doubted;
mod failover;
mod fair;
mod full_disk;
mod heartbeat;
mod large;
mod late;
mod property;
mod rates;
mod refusals;
mod resume;
mod shared;
mod slots;
mod stage;
mod stall;
mod stop;
mod streams;
mod verify;
