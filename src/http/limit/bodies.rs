//! Whose signed bodies are read at once: each may be a few MiB, and come as slowly as its sender likes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::keyed::{InFlight, Permit};
use crate::protocol::Principal;

/// At once, of agents that are known here, of strangers, and of one agent.
const KNOWN: usize = 32;
const STRANGERS: usize = 4;
const EACH: u32 = 2;
/// How long one waits for a place.
const WAIT: Duration = Duration::from_secs(1);

/// The places.
#[derive(Debug)]
pub(super) struct Bodies {
    known: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    each: Arc<InFlight<Principal>>,
}

/// One of them, given up when it is dropped.
#[derive(Debug)]
pub struct BodyPlace {
    _of_principal: Permit<Principal>,
    _place: OwnedSemaphorePermit,
}

impl Default for Bodies {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self { known: places(KNOWN), strangers: places(STRANGERS), each: Arc::new(InFlight::new(EACH)) }
    }
}

impl Bodies {
    pub(super) async fn enter(&self, principal: &Principal, known: bool) -> Option<BodyPlace> {
        let of_principal = self.each.enter(principal)?;
        let places = if known { &self.known } else { &self.strangers };
        let place = tokio::time::timeout(WAIT, Arc::clone(places).acquire_owned()).await.ok()?.ok()?;
        Some(BodyPlace { _of_principal: of_principal, _place: place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(number: usize) -> Principal {
        Principal::agent(&format!("https://{number}.example")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_strangers_hold_off_neither_known_agents_nor_each_other_for_long() {
        let bodies = Bodies::default();
        let mut held = Vec::new();
        for number in 0..STRANGERS {
            held.push(bodies.enter(&agent(number), false).await.unwrap());
        }
        assert!(bodies.enter(&agent(100), false).await.is_none(), "refused after a short wait");
        assert!(bodies.enter(&agent(101), true).await.is_some());
        held.pop();
        assert!(bodies.enter(&agent(100), false).await.is_some());
    }

    #[tokio::test]
    async fn one_agent_has_few_places() {
        let bodies = Bodies::default();
        let first = bodies.enter(&agent(1), true).await;
        let second = bodies.enter(&agent(1), true).await;
        assert!(first.is_some() && second.is_some());
        assert!(bodies.enter(&agent(1), true).await.is_none());
        drop(first);
        assert!(bodies.enter(&agent(1), true).await.is_some());
    }
}
