//! The door for agents: after a restart all of them come at once, and each costs a handshake and a query.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::{Mutex, Semaphore};

use super::super::keyed::InFlight;

/// How many seconds' worth of agents wait at most. An agent's own patience with a handshake is about ten seconds, and
/// one that was refused comes back on its own, after five as a rule.
const QUEUE_SECONDS: u32 = 2;
/// The part of the rate that those without a valid credential share.
const STRANGERS: u32 = 4;
/// The part of the places for those that wait which they have from one address: some of them are agents whose token comes
/// in their first frame.
const OF_ADDRESS: u32 = 4;
/// When one who is refused may try again, at least and at most: spread, so that they do not come together again.
const RETRY_MS: std::ops::Range<u64> = 2_000..8_000;

/// Lets connections in steadily.
#[derive(Debug)]
pub(super) struct Admission {
    known: Option<Lane>,
    strangers: Option<Lane>,
    of_addresses: Arc<InFlight<IpAddr>>,
}

impl Admission {
    /// So many each second; 0 is no limit.
    pub(super) fn new(rate: u32) -> Self {
        let strangers = if rate == 0 { 0 } else { (rate / STRANGERS).max(1) };
        let of_address = strangers.saturating_mul(QUEUE_SECONDS).div_ceil(OF_ADDRESS);
        Self {
            known: Lane::new(rate),
            strangers: Lane::new(strangers),
            of_addresses: Arc::new(InFlight::new(of_address)),
        }
    }

    /// Waits for its turn, or says when to come again. A `stranger` is known by its address only.
    pub(super) async fn admit(&self, stranger: Option<IpAddr>) -> Result<(), Duration> {
        let Some(address) = stranger else { return pass(&self.known).await };
        let _of_address = self.of_addresses.enter(&address).ok_or_else(retry)?;
        pass(&self.strangers).await
    }
}

async fn pass(lane: &Option<Lane>) -> Result<(), Duration> {
    match lane {
        Some(lane) => lane.pass().await,
        None => Ok(()),
    }
}

fn retry() -> Duration {
    Duration::from_millis(rand::random_range(RETRY_MS))
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
        let outcomes = join_all((0..200).map(|_| admission.admit(None))).await;
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
        let strangers = join_all((0..100).map(|number| admission.admit(Some([192, 0, 2, number].into()))));
        let agent = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            admission.admit(None).await
        };
        tokio::select! {
            outcome = agent => assert_eq!(outcome, Ok(())),
            _ = strangers => panic!("the strangers were first"),
        }
    }

    #[tokio::test]
    async fn the_strangers_of_one_address_leave_places_to_those_of_others() {
        let admission = Admission::new(40);
        let storm = join_all((0..200).map(|_| admission.admit(Some([192, 0, 2, 1].into()))));
        let other = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            admission.admit(Some([192, 0, 2, 2].into())).await
        };
        let (outcomes, other) = tokio::join!(storm, other);
        assert_eq!(other, Ok(()));
        // Five places of twenty, and whoever was let in at once: none waited for the clock to find one free.
        let admitted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!((5..=10).contains(&admitted), "{admitted}");
        assert!(admission.admit(Some([192, 0, 2, 1].into())).await.is_ok(), "and may come again");
    }

    #[tokio::test]
    async fn without_a_limit_nobody_waits() {
        let admission = Admission::new(0);
        let outcomes = join_all((0..1000).map(|_| admission.admit(None))).await;
        assert!(outcomes.iter().all(Result::is_ok));
    }
}
