//! The announcements of each agent that have to be read, one after the other.

use std::sync::{Arc, Mutex, PoisonError};

use dashmap::DashMap;
use tokio_util::sync::CancellationToken;

use crate::protocol::Principal;

/// How many announcements of one agent may be read or wait for it.
const PENDING: usize = 2;

/// Who reads what. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Lanes(Arc<DashMap<Principal, Lane>>);

#[derive(Debug, Default)]
struct Lane {
    pending: usize,
    /// Cancelled when the turn of the latest that entered is over.
    last: Option<CancellationToken>,
}

/// A place in an agent's lane, left when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    lanes: Lanes,
    agent: Principal,
    before: Mutex<Option<CancellationToken>>,
    left: CancellationToken,
}

impl Lanes {
    /// Takes the next place of an agent, when one is free.
    pub(super) fn enter(&self, agent: &Principal) -> Option<Turn> {
        let mut lane = self.0.entry(agent.clone()).or_default();
        if lane.pending == PENDING {
            return None;
        }
        lane.pending += 1;
        let left = CancellationToken::new();
        let before = Mutex::new(lane.last.replace(left.clone()));
        drop(lane);
        Some(Turn { lanes: self.clone(), agent: agent.clone(), before, left })
    }
}

impl Turn {
    /// Waits until the turns of those that entered before are over.
    pub(super) async fn comes(&self) {
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(before) = before {
            before.cancelled().await;
        }
    }

    /// Lets those that entered after go on. The place itself is kept until the turn is dropped.
    pub(super) fn end(&self) {
        self.left.cancel();
    }

    /// Whose it is.
    pub(super) fn agent(&self) -> &Principal {
        &self.agent
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.left.cancel();
        self.lanes.0.remove_if_mut(&self.agent, |_, lane| {
            lane.pending -= 1;
            lane.pending == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn two_at_a_time_in_order_and_nothing_is_left_behind() {
        let lanes = Lanes::default();
        let agent = Principal::agent("a").unwrap();
        let first = lanes.enter(&agent).unwrap();
        let second = lanes.enter(&agent).unwrap();
        assert!(lanes.enter(&agent).is_none());
        assert!(lanes.enter(&Principal::agent("b").unwrap()).is_some(), "others are not counted");
        first.comes().await;
        let mut waiting = Box::pin(second.comes());
        assert!(waiting.as_mut().now_or_never().is_none());
        first.end();
        waiting.await;
        assert!(lanes.enter(&agent).is_none(), "it has its place still");
        drop(first);
        let third = lanes.enter(&agent).unwrap();
        assert!(third.comes().now_or_never().is_none());
        drop(second);
        third.comes().await;
        drop(third);
        assert!(lanes.0.is_empty());
    }
}
