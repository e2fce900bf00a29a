//! Which agent the next read is asked of.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, select_all};

use super::TransferError;
use crate::access::Source;
use crate::agents::{Agents, Link};
use crate::protocol::Chunks;

/// The sources of one transfer, in order, and what is known against them.
#[derive(Debug)]
pub struct Sources {
    sources: Vec<Candidate>,
    current: usize,
    /// Why the last source was given up.
    failed: Option<TransferError>,
}

#[derive(Debug)]
struct Candidate {
    source: Source,
    given_up: bool,
    /// Failures in a row without a byte in between.
    failures: u32,
}

/// Failures without a byte in between after which another source is asked.
const FAILURES: u32 = 2;

impl Sources {
    /// The first is preferred.
    pub fn new(sources: Vec<Source>) -> Self {
        let sources = sources.into_iter().map(|source| Candidate { source, given_up: false, failures: 0 }).collect();
        Self { sources, current: 0, failed: None }
    }

    /// The source in use.
    pub fn current(&self) -> &Source {
        &self.sources[self.current].source
    }

    /// Uses another source from now on.
    pub fn choose(&mut self, place: usize) {
        self.current = place;
    }

    /// Bytes came from the source in use.
    pub fn delivered(&mut self) {
        self.sources[self.current].failures = 0;
    }

    /// The source in use failed, but may be asked again; after two failures in a row it is given up.
    pub fn failed(&mut self, why: TransferError) {
        let candidate = &mut self.sources[self.current];
        candidate.failures += 1;
        if candidate.failures >= FAILURES {
            self.give_up(why);
        }
    }

    /// The source in use is not asked again.
    pub fn give_up(&mut self, why: TransferError) {
        self.sources[self.current].given_up = true;
        self.failed = Some(why);
    }

    /// The error to tell when nobody delivers: what the last source failed with, else that none is online.
    pub fn error(&self) -> TransferError {
        self.failed.unwrap_or(TransferError::AgentOffline)
    }

    /// Those that may be asked, the one in use first. Once bytes were released under a chunk list, only sources with
    /// that very list may go on: a list is never applied to another entry of the same blob.
    fn eligible(&self, bound_to: Option<&Arc<Chunks>>) -> impl Iterator<Item = (usize, &Source)> {
        let order = std::iter::once(self.current).chain((0..self.sources.len()).filter(|place| *place != self.current));
        order.map(|place| (place, &self.sources[place])).filter_map(move |(place, candidate)| {
            let fits = bound_to.is_none_or(|chunks| candidate.source.chunks.as_ref() == Some(chunks));
            (!candidate.given_up && fits).then_some((place, &candidate.source))
        })
    }

    /// A source that is online.
    pub fn online(&self, agents: &Agents, bound_to: Option<&Arc<Chunks>>) -> Option<(usize, Link)> {
        self.eligible(bound_to).find_map(|(place, source)| Some((place, agents.registry.link(&source.agent)?)))
    }

    /// Whether a source beside the one in use is online.
    pub fn another_is_online(&self, agents: &Agents, bound_to: Option<&Arc<Chunks>>) -> bool {
        let mut others = self.eligible(bound_to).filter(|(place, _)| *place != self.current);
        others.any(|(_, source)| agents.registry.is_online(&source.agent))
    }

    /// Waits until one is online; `None` when there is none left to wait for.
    pub fn wait(&self, agents: &Arc<Agents>, bound_to: Option<&Arc<Chunks>>) -> Option<BoxFuture<'static, ()>> {
        let waits: Vec<_> = (self.eligible(bound_to))
            .map(|(_, source)| {
                let (agents, agent) = (Arc::clone(agents), source.agent.clone());
                async move { drop(agents.registry.online(&agent).await) }.boxed()
            })
            .collect();
        (!waits.is_empty()).then(|| select_all(waits).map(|_| ()).boxed())
    }
}
