//! Sluice: a gateway between agents that can only dial out and the readers of their files.
//!
//! # What happens to a request
//! An agent holds a WebSocket to [`http`], whose task is in [`agents`]; it announces a set of files, which [`sets`]
//! checks and [`store`] keeps for a chat. A reader asks [`http`] for a range of one of them. [`identity`] says who that
//! is, [`access`] whether they may read it and from which agents. [`transfer`] then cuts the range into reads with
//! [`read`] and asks the agent for them through [`agents`], never for more bytes at once than the reader has drained.
//! What comes back is hashed on the way and handed on; when the agent's connection drops, the transfer waits and asks
//! for the remaining bytes, and the reader sees nothing but a pause.
//!
//! # Modules, in layer order
//! A module may use what stands above it, never below, and siblings (on one line here, in one group below) do not use
//! each other. `tests/layers.rs` reads the order from the groups of this file and holds every path to it.
//!
//! - [`protocol`]: what goes over the wire, and nothing that waits: identifiers, frames, manifests, ranges, hashes
//! - [`read`]: the relay's decisions as state machines; `now` is an argument
//! - [`clock`], [`lock`], [`metrics`], [`net`]: the time; which process has something to itself; what an operator can
//!   count; what sockets and TLS have in common
//! - [`store`], [`outbound`]: everything that outlives the process, and all SQL; the one client for the gateway's own
//!   fetches
//! - [`content`]: bytes at rest, by their hash
//! - [`identity`]: who is calling
//! - [`events`]: what happens in a chat, told while it happens
//! - [`access`]: who may read what
//! - [`audit`]: who read what
//! - [`agents`]: who is connected, and the reads in flight
//! - [`transfer`]: from a range to its bytes, across reconnects
//! - [`sets`]: what agents announced, and what a chat lists
//! - [`logging`]: log lines
//! - [`config`]: the settings
//! - [`http`]: routes, status codes and listeners; the only place with axum
//! - [`app`]: builds the parts, wires them, drains them
//! - [`producer`]: the agent's side of the wire; uses [`protocol`], [`clock`] and [`net`] only
//! - [`cli`]: the command line
//! - [`demo`]: all of it in one process

pub mod protocol;

pub mod read;

pub mod clock;
pub mod lock;
pub mod metrics;
pub mod net;

pub mod outbound;
pub mod store;

pub mod content;

pub mod identity;

pub mod events;

pub mod access;

pub mod audit;

pub mod agents;

pub mod transfer;

pub mod sets;

pub mod logging;

pub mod config;

pub mod http;

pub mod app;

pub mod producer;

pub mod cli;

pub mod demo;
