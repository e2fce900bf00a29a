//! Who may read what.

use std::sync::Arc;

use crate::protocol::{Chunks, Principal, Sha256};

/// Bytes that a caller may read, and where they may come from.
///
/// Every source stands for an announcement that this caller may read: a hash alone grants nothing.
#[derive(Debug, Clone)]
pub struct Readable {
    /// The blob.
    pub sha256: Sha256,
    /// Its complete length in bytes. Every source's entry agrees on it.
    pub size: u64,
    /// Never empty, the preferred one first.
    pub sources: Vec<Source>,
}

/// One announcement that offers the bytes.
#[derive(Debug, Clone)]
pub struct Source {
    /// Who announced it; a `relay` location reaches this agent only.
    pub agent: Principal,
    /// The chunk list of this announcement's own entry, never that of another entry of the same blob.
    pub chunks: Option<Arc<Chunks>>,
}
