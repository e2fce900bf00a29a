//! Who may read what, on both databases.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../support/db.rs"]
mod db;
#[path = "../support/sets.rs"]
mod sets;

mod claims;
mod manifests;
mod participants;
mod sources;
mod stage;
mod tasks;
