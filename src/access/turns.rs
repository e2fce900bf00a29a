//! How many questions one principal may have at the database at once.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::protocol::Principal;
use crate::store::StoreError;

/// Questions of one principal at once: of the database's few connections most stay free for everybody else.
const AT_ONCE: usize = 2;
/// How long a question waits for its turn. A question takes a few milliseconds, so that hundreds can wait.
const PATIENCE: Duration = Duration::from_secs(1);

/// The turns of each principal that asks. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns(Arc<DashMap<Principal, Line>>);

/// Those of one principal.
#[derive(Debug)]
struct Line {
    turns: Arc<Semaphore>,
    /// Who waits and who has a turn.
    people: usize,
}

/// A question may be asked for as long as this lives.
#[derive(Debug)]
pub struct Turn {
    // Given back before the line is left.
    _permit: Option<OwnedSemaphorePermit>,
    _place: Place,
}

/// A place in a line, which goes with the last one that has a place.
#[derive(Debug)]
struct Place {
    turns: Turns,
    principal: Principal,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.turns.0.remove_if_mut(&self.principal, |_, line| {
            line.people = line.people.saturating_sub(1);
            line.people == 0
        });
    }
}

impl Turns {
    /// Waits for the principal's turn, not for long.
    pub(super) async fn enter(&self, principal: &Principal) -> Result<Turn, StoreError> {
        let turns = {
            let new = || Line { turns: Arc::new(Semaphore::new(AT_ONCE)), people: 0 };
            let mut line = self.0.entry(principal.clone()).or_insert_with(new);
            line.people += 1;
            Arc::clone(&line.turns)
        };
        let place = Place { turns: self.clone(), principal: principal.clone() };
        match tokio::time::timeout(PATIENCE, turns.acquire_owned()).await {
            // Never closed, so a permit always comes.
            Ok(permit) => Ok(Turn { _permit: permit.ok(), _place: place }),
            Err(_) => Err(StoreError::Busy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_principal_has_a_few_turns_and_nobody_elses() {
        let turns = Turns::default();
        let (one, other): (Principal, Principal) = ("user:a".parse().unwrap(), "user:b".parse().unwrap());
        let mut held = Vec::new();
        for _ in 0..AT_ONCE {
            held.push(turns.enter(&one).await.unwrap());
        }
        let began = tokio::time::Instant::now();
        assert!(matches!(turns.enter(&one).await, Err(StoreError::Busy)));
        assert_eq!(began.elapsed(), PATIENCE);
        drop(turns.enter(&other).await.unwrap());
        // Whoever waits is next.
        let (next, ()) = tokio::join!(turns.enter(&one), async { drop(held.pop()) });
        drop((next.unwrap(), held));
        assert!(turns.0.is_empty(), "nobody is remembered who asks nothing");
    }
}
