//! What agents have, for announcements whose manifests are read: in place of sockets and transfers.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt as _;
use sluice::access::{Readable, Way};
use sluice::protocol::{Manifest, Principal, Sha256};
use sluice::sets::Fetch;
use sluice::transfer::TransferError;
use tokio::sync::Semaphore;

/// The blobs of every agent, and who was asked for what.
#[derive(Default)]
pub struct Blobs {
    held: Mutex<HashMap<(Principal, Sha256), Bytes>>,
    asked: Mutex<Vec<(Principal, Sha256)>>,
    /// Agents that never answer.
    silent: Mutex<HashSet<Principal>>,
    /// When set, each read takes a permit.
    gate: Mutex<Option<Arc<Semaphore>>>,
}

impl Blobs {
    /// An agent has this manifest from now on.
    pub fn give(&self, agent: &str, manifest: &Manifest) {
        self.give_bytes(agent, manifest.identity, manifest.canonical.clone());
    }

    /// An agent answers with these bytes for this hash from now on.
    pub fn give_bytes(&self, agent: &str, sha256: Sha256, bytes: impl Into<Bytes>) {
        self.held.lock().unwrap().insert((agent.parse().unwrap(), sha256), bytes.into());
    }

    /// What was asked of an agent so far.
    pub fn asked(&self, agent: &str) -> Vec<Sha256> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(of, _)| of.as_str() == agent).map(|(_, sha256)| *sha256).collect()
    }

    /// How often any agent was asked so far.
    pub fn asked_in_all(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// An agent answers nothing from now on.
    pub fn silence(&self, agent: &str) {
        self.silent.lock().unwrap().insert(agent.parse().unwrap());
    }

    /// Reads wait for permits from now on.
    pub fn close(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    /// Reads from here, checked as a transfer checks them.
    pub fn fetch(self: &Arc<Self>) -> Fetch {
        let blobs = Arc::clone(self);
        Arc::new(move |agent, readable, brought| {
            let blobs = Arc::clone(&blobs);
            async move {
                let silent = blobs.silent.lock().unwrap().contains(&agent);
                blobs.asked.lock().unwrap().push((agent, readable.sha256));
                if silent {
                    std::future::pending::<()>().await;
                }
                let gate = blobs.gate.lock().unwrap().clone();
                if let Some(gate) = gate {
                    gate.acquire().await.unwrap().forget();
                }
                let bytes = blobs.read(&readable)?;
                brought.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Ok(bytes)
            }
            .boxed()
        })
    }

    fn read(&self, readable: &Readable) -> Result<Bytes, TransferError> {
        // Agents only: there is no way to any other place from here.
        let relay = readable.sources.iter().find(|source| source.way == Way::Relay);
        let agent = relay.ok_or(TransferError::AgentFailed)?.agent.clone();
        let held = self.held.lock().unwrap().get(&(agent, readable.sha256)).cloned();
        let bytes = held.ok_or(TransferError::BlobGone)?;
        let size = readable.size as usize;
        if bytes.len() < size {
            return Err(TransferError::Shorter);
        }
        let bytes = bytes.slice(..size);
        if Sha256::of(&bytes) == readable.sha256 { Ok(bytes) } else { Err(TransferError::HashMismatch) }
    }
}
