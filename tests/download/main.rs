//! Downloads as readers see them: one table of requests over every route that bytes leave by, on both versions of HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod contested;
mod headers;
mod manifests;
mod refusals;
mod stage;
mod table;
