//! Which source the next bytes are asked of.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, select_all};
use tokio::time::Instant;

use super::TransferError;
use crate::access::{Remote, Source, Way};
use crate::agents::{Agents, Link};
use crate::protocol::Principal;

/// The way to the source in use.
#[derive(Debug, Clone)]
pub enum Path {
    /// An agent's connection, and its slots.
    Relay(Link),
    /// A place that is asked anew each time.
    Location(Arc<Remote>),
}

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
    /// It is left alone until then: it asked for that, or it was silent.
    busy_until: Option<Instant>,
    /// As [`Doubts::about`](super::doubts::Doubts::about) its agent.
    doubt: u32,
}

/// Failures without a byte in between after which another source is asked.
const FAILURES: u32 = 2;

impl Sources {
    /// The first is preferred, of those that are doubted least.
    pub fn new(sources: Vec<Source>, doubt: impl Fn(&Principal) -> u32) -> Self {
        let candidate = |source: Source| {
            let doubt = doubt(&source.agent);
            Candidate { source, given_up: false, failures: 0, busy_until: None, doubt }
        };
        let mut sources: Vec<_> = sources.into_iter().map(candidate).collect();
        sources.sort_by_key(|candidate| candidate.doubt);
        Self { sources, current: 0, failed: None }
    }

    /// The agent of one of them.
    pub fn agent(&self, place: usize) -> &Principal {
        &self.sources[place].source.agent
    }

    /// Something else is known against them now.
    pub fn doubt_again(&mut self, doubt: impl Fn(&Principal) -> u32) {
        self.sources.iter_mut().for_each(|candidate| candidate.doubt = doubt(&candidate.source.agent));
    }

    /// The source in use.
    pub fn current(&self) -> &Source {
        &self.sources[self.current].source
    }

    /// Which one that is.
    pub fn place(&self) -> usize {
        self.current
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

    /// The source in use is not asked before `until`; where nobody else delivers, `why` is told.
    pub fn leave_alone(&mut self, until: Instant, why: TransferError) {
        self.sources[self.current].busy_until = Some(until);
        self.failed = Some(why);
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

    /// Those that may be asked, the ones doubted least in front, and among these the one in use first. Where it is
    /// `strict`, nobody who is doubted more goes on from another's bytes.
    fn eligible(&self, strict: bool) -> impl Iterator<Item = (usize, &Candidate)> {
        let mut left: Vec<_> = self.sources.iter().enumerate().filter(|(_, candidate)| !candidate.given_up).collect();
        left.sort_by_key(|(place, candidate)| (candidate.doubt, *place != self.current));
        let least = left.first().map(|(_, candidate)| candidate.doubt);
        let current = self.current;
        left.into_iter()
            .filter(move |(place, candidate)| !strict || *place == current || Some(candidate.doubt) == least)
    }

    /// The first that can be asked now, and the way to it.
    pub fn reachable(&self, agents: &Agents, now: Instant, strict: bool) -> Option<(usize, Path)> {
        self.eligible(strict).find_map(|(place, candidate)| Some((place, candidate.path(agents, now)?)))
    }

    /// Whether one beside the one in use can be asked now.
    pub fn another_is_reachable(&self, agents: &Agents, now: Instant) -> bool {
        let mut others = self.eligible(true).filter(|(place, _)| *place != self.current);
        others.any(|(_, candidate)| candidate.path(agents, now).is_some())
    }

    /// Waits until one can be asked; `None` when there is none left to wait for.
    pub fn wait(&self, agents: &Arc<Agents>, now: Instant, strict: bool) -> Option<BoxFuture<'static, ()>> {
        let waits: Vec<_> = self.eligible(strict).map(|(_, candidate)| candidate.wait(agents, now)).collect();
        (!waits.is_empty()).then(|| select_all(waits).map(|_| ()).boxed())
    }
}

impl Candidate {
    fn path(&self, agents: &Agents, now: Instant) -> Option<Path> {
        if self.busy_until.is_some_and(|until| now < until) {
            return None;
        }
        match &self.source.way {
            Way::Relay => agents.registry.link(&self.source.agent).map(Path::Relay),
            Way::Location(remote) => Some(Path::Location(Arc::clone(remote))),
        }
    }

    fn wait(&self, agents: &Arc<Agents>, now: Instant) -> BoxFuture<'static, ()> {
        let busy_until = self.busy_until.filter(|until| now < *until);
        match (&self.source.way, busy_until) {
            (Way::Relay, None) => {
                let (agents, agent) = (Arc::clone(agents), self.source.agent.clone());
                async move { drop(agents.registry.online(&agent).await) }.boxed()
            }
            (_, until) => tokio::time::sleep_until(until.unwrap_or(now)).boxed(),
        }
    }
}
