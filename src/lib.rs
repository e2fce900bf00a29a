//! Sluice: a gateway between agents that can only dial out and the readers of their files.

pub mod protocol;

pub mod clock;
pub mod metrics;

pub mod identity;

pub mod access;

pub mod agents;

pub mod producer;
