//! An object on its way into the cache, for those who would rather wait for it than read it again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Wanted, lock};
use super::vouchers::Voucher;

/// An object that is expected so soon is waited for, whatever holds it up.
const SOON: Duration = Duration::from_millis(250);
/// One that keeps its pace is waited for if it is expected within so long.
const FAR: Duration = Duration::from_secs(5);
/// One that has not come by then is not, whatever its pace promised.
const LONGEST: Duration = Duration::from_secs(10);
/// One of which no byte has come for so long is not.
const SILENCE: Duration = Duration::from_secs(1);
/// Between two looks at its pace.
const LOOK: Duration = Duration::from_millis(50);

/// An object that is being written.
#[derive(Debug)]
pub(super) struct Underway {
    length: u64,
    /// Who serves it.
    agent: Voucher,
    pace: Mutex<Pace>,
    /// Cancelled when the object is held, or will not be.
    over: CancellationToken,
}

#[derive(Debug)]
struct Pace {
    begun: Instant,
    taken: u64,
    moved: Instant,
    /// Since when its own reader leaves no room for more of it, and for how long that was so before.
    held_up_since: Option<Instant>,
    held_up: Duration,
}

/// A wait for an object. It holds none of its bytes.
#[derive(Debug)]
pub struct Waiting {
    cache: Arc<Cache>,
    underway: Arc<Underway>,
    instead: u64,
}

impl Cache {
    /// The wait for an object that one of the agents is serving just now, where that is sooner than to read the `instead`
    /// bytes of it that would have to be asked for otherwise. No wait is longer than ten seconds, and one ends when the
    /// object comes no nearer.
    pub fn awaited(self: &Arc<Self>, wanted: &Wanted<'_>, instead: u64) -> Option<Waiting> {
        let underway = lock(&self.writing).get(&wanted.sha256).cloned()?;
        let is_theirs = underway.length == wanted.length && wanted.agents.contains(&underway.agent);
        (is_theirs && underway.is_near(instead, Instant::now())).then(|| Waiting {
            cache: Arc::clone(self),
            underway,
            instead,
        })
    }
}

impl Waiting {
    /// Waits until the object is held, or is not worth waiting for any more.
    pub async fn wait(self) {
        let longest = Instant::now() + LONGEST;
        let mut over = false;
        while !over && Instant::now() < longest && self.underway.is_near(self.instead, Instant::now()) {
            over = tokio::time::timeout(LOOK, self.underway.over.cancelled()).await.is_ok();
        }
        self.cache.metrics.cache_waits.with_label_values(&[if over { "over" } else { "given_up" }]).inc();
    }
}

impl Underway {
    pub(super) fn new(length: u64, agent: Voucher) -> Self {
        let now = Instant::now();
        let pace = Pace { begun: now, taken: 0, moved: now, held_up_since: None, held_up: Duration::ZERO };
        Self { length, agent, pace: Mutex::new(pace), over: CancellationToken::new() }
    }

    /// More of it has come.
    pub(super) fn advance(&self, bytes: u64) {
        let mut pace = lock(&self.pace);
        pace.taken += bytes;
        pace.moved = Instant::now();
    }

    /// Its own reader leaves no room for more of it, or does again.
    pub(super) fn hold_up(&self, held_up: bool) {
        let mut pace = lock(&self.pace);
        match (held_up, pace.held_up_since) {
            (true, None) => pace.held_up_since = Some(Instant::now()),
            (false, Some(since)) => {
                pace.held_up += since.elapsed();
                pace.held_up_since = None;
            }
            _ => {}
        }
    }

    /// It is held, or will not be.
    pub(super) fn end(&self) {
        self.over.cancel();
    }

    /// Whether it will be here before `instead` bytes of it could be.
    fn is_near(&self, instead: u64, now: Instant) -> bool {
        let pace = lock(&self.pace);
        let missing = self.length.saturating_sub(pace.taken);
        if missing > instead || now > pace.moved + SILENCE {
            return false;
        }
        let so_far = now.saturating_duration_since(pace.begun);
        // Before its first bytes nothing is known of its pace: the next look will tell.
        let expected = so_far.as_secs_f64() * missing as f64 / pace.taken.max(1) as f64;
        let held_up_now = pace.held_up_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        // A reader that is slower than its agent is not waited for with it.
        let follows_its_reader = held_up_now > SOON || (pace.held_up + held_up_now) * 2 > so_far;
        expected <= SOON.as_secs_f64() && held_up_now <= SOON || (expected <= FAR.as_secs_f64() && !follows_its_reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn underway() -> Underway {
        Underway::new(8 * MIB, Voucher::of(&"agent:a".parse().unwrap()))
    }

    async fn pass(millis: u64) {
        tokio::time::advance(Duration::from_millis(millis)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_before_it_could_be_read_again_is_near() {
        let near = |underway: &Underway, instead| underway.is_near(instead, Instant::now());
        let one = underway();
        one.advance(2 * MIB);
        pass(1000).await;
        assert!(near(&one, 6 * MIB), "it keeps its pace, and the rest takes three seconds");
        assert!(!near(&one, 6 * MIB - 1), "what is missing is more than what would be asked for");
        pass(1).await;
        assert!(!near(&one, 8 * MIB), "it is silent");
        one.advance(MIB);
        assert!(near(&one, 8 * MIB));
        let slow = underway();
        slow.advance(MIB);
        pass(900).await;
        assert!(!near(&slow, 8 * MIB), "the rest would take six seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_follows_a_slow_reader_is_not() {
        let near = |underway: &Underway| underway.is_near(8 * MIB, Instant::now());
        let one = underway();
        one.advance(2 * MIB);
        one.hold_up(true);
        pass(200).await;
        assert!(!near(&one), "more than a quarter of a second is left, and its reader is what it takes");
        one.advance(4 * MIB);
        assert!(near(&one), "the rest is as good as here");
        pass(51).await;
        assert!(!near(&one), "its reader has stopped");
        one.hold_up(false);
        pass(400).await;
        one.advance(1);
        assert!(near(&one), "it has been on its way for longer than it was held up");
    }
}
