//! Sluice: a gateway between agents that can only dial out and the readers of their files.

pub mod protocol;

pub mod read;

pub mod clock;
pub mod metrics;

pub mod store;

pub mod identity;

pub mod access;

pub mod agents;

pub mod transfer;

pub mod sets;

pub mod http;

pub mod app;
pub mod cli;
pub mod config;
pub mod logging;

pub mod producer;

pub mod demo;
