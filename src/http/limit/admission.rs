//! The door for agents: after a restart all of them come at once, and each costs a handshake and a query.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::{Mutex, Semaphore};

/// How many seconds' worth of agents wait at most. An agent's own patience with a handshake is about ten seconds, and
/// one that was refused comes back on its own, after five as a rule.
const QUEUE_SECONDS: u32 = 2;
/// The part of the rate that those without a valid credential share.
const STRANGERS: u32 = 4;
/// When one who is refused may try again, at least and at most: spread, so that they do not come together again.
const RETRY_MS: std::ops::Range<u64> = 2_000..8_000;

/// Lets connections in steadily.
#[derive(Debug)]
pub(super) struct Admission {
    known: Option<Lane>,
    strangers: Option<Lane>,
}

impl Admission {
    /// So many each second; 0 is no limit.
    pub(super) fn new(rate: u32) -> Self {
        let strangers = if rate == 0 { 0 } else { (rate / STRANGERS).max(1) };
        Self { known: Lane::new(rate), strangers: Lane::new(strangers) }
    }

    /// Waits for its turn, or says when to come again.
    pub(super) async fn admit(&self, known: bool) -> Result<(), Duration> {
        let lane = if known { &self.known } else { &self.strangers };
        match lane {
            Some(lane) => lane.pass().await,
            None => Ok(()),
        }
    }
}

struct Lane {
    bucket: DefaultDirectRateLimiter,
    /// Whoever may wait.
    places: Semaphore,
    /// Whose turn it is: they wait in line, and the first of them for the bucket.
    turn: Mutex<()>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("places", &self.places.available_permits()).finish_non_exhaustive()
    }
}

impl Lane {
    fn new(rate: u32) -> Option<Self> {
        let rate = NonZeroU32::new(rate)?;
        let burst = NonZeroU32::new(rate.get() / 4).unwrap_or(NonZeroU32::MIN);
        let places = usize::try_from(rate.get().saturating_mul(QUEUE_SECONDS)).unwrap_or(usize::MAX);
        Some(Self {
            bucket: RateLimiter::direct(Quota::per_second(rate).allow_burst(burst)),
            places: Semaphore::new(places.min(Semaphore::MAX_PERMITS)),
            turn: Mutex::new(()),
        })
    }

    async fn pass(&self) -> Result<(), Duration> {
        let retry = || Duration::from_millis(rand::random_range(RETRY_MS));
        let _place = self.places.try_acquire().map_err(|_| retry())?;
        let _turn = self.turn.lock().await;
        while let Err(not_until) = self.bucket.check() {
            tokio::time::sleep(not_until.wait_time_from(DefaultClock::default().now())).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn a_storm_is_let_in_steadily_and_the_rest_is_sent_away() {
        let admission = Admission::new(40);
        let begun = Instant::now();
        let outcomes = join_all((0..200).map(|_| admission.admit(true))).await;
        let admitted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let took = begun.elapsed();
        // Two seconds' worth; a busy machine gives time for more, and never for more than its time is worth.
        assert!(admitted >= 80, "{admitted}");
        assert!(admitted as f64 <= 40.0 * (took.as_secs_f64() + 1.0), "{admitted} in {took:?}");
        let waits: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
        assert!(waits.iter().all(|wait| (2..8).contains(&wait.as_secs())), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait != waits[0]), "not all at once again");
    }

    #[tokio::test]
    async fn strangers_do_not_stand_in_the_way_of_agents() {
        let admission = Admission::new(4);
        let strangers = join_all((0..100).map(|_| admission.admit(false)));
        let agent = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            admission.admit(true).await
        };
        tokio::select! {
            outcome = agent => assert_eq!(outcome, Ok(())),
            _ = strangers => panic!("the strangers were first"),
        }
    }

    #[tokio::test]
    async fn without_a_limit_nobody_waits() {
        let admission = Admission::new(0);
        let outcomes = join_all((0..1000).map(|_| admission.admit(true))).await;
        assert!(outcomes.iter().all(Result::is_ok));
    }
}
