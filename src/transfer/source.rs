//! Which source the next bytes are asked of.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, select_all};

use super::TransferError;
use crate::access::Source;
use crate::agents::{Agents, Link};

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

    /// The error to tell when nobody delivers: what the last source failed with, else that none can be reached.
    pub fn error(&self) -> TransferError {
        self.failed.unwrap_or(TransferError::AgentOffline)
    }

    /// Those that may be asked, the one in use first.
    fn eligible(&self) -> impl Iterator<Item = (usize, &Source)> {
        let order = std::iter::once(self.current).chain((0..self.sources.len()).filter(|place| *place != self.current));
        order.map(|place| (place, &self.sources[place])).filter_map(|(place, candidate)| {
            let Candidate { source, given_up, .. } = candidate;
            (!given_up).then_some((place, source))
        })
    }

    /// The first that can be asked now, and the way to it.
    pub fn reachable(&self, agents: &Agents) -> Option<(usize, Link)> {
        self.eligible().find_map(|(place, source)| Some((place, agents.registry.link(&source.agent)?)))
    }

    /// Whether one beside the one in use can be asked now.
    pub fn another_is_reachable(&self, agents: &Agents) -> bool {
        let mut others = self.eligible().filter(|(place, _)| *place != self.current);
        others.any(|(_, source)| agents.registry.is_online(&source.agent))
    }

    /// Waits until one can be asked; `None` when there is none left to wait for.
    pub fn wait(&self, agents: &Arc<Agents>) -> Option<BoxFuture<'static, ()>> {
        let waits: Vec<_> = (self.eligible())
            .map(|(_, source)| {
                let (agents, agent) = (Arc::clone(agents), source.agent.clone());
                async move { drop(agents.registry.online(&agent).await) }.boxed()
            })
            .collect();
        (!waits.is_empty()).then(|| select_all(waits).map(|_| ()).boxed())
    }
}
