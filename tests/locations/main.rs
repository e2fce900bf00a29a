//! Bytes from places that an announcement names: asked in order, each held against what it should be.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod closed;
mod order;
mod own_name;
mod registry;
mod stage;
