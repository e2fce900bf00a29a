//! How long to wait before dialling again.

use std::time::Duration;

use rand::RngExt as _;

/// Jittered exponential back-off. The real delay is between half of the step and the step, so that agents cut at the
/// same moment do not come back at the same moment.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The first step.
    pub first: Duration,
    /// No step is longer.
    pub cap: Duration,
    /// A connection that lasted this long starts the steps over.
    pub settled: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), cap: Duration::from_secs(10), settled: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// The full step after `failures` failures in a row.
    fn step(self, failures: u32) -> Duration {
        self.first.saturating_mul(2u32.saturating_pow(failures)).min(self.cap)
    }

    /// The delay after `failures` failures in a row, counted from zero.
    pub(super) fn delay(self, failures: u32) -> Duration {
        let step = self.step(failures);
        step.mul_f64(rand::rng().random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_double_up_to_the_cap() {
        let backoff = Backoff::default();
        let steps: Vec<_> = [0, 1, 2, 6, 7, 40, u32::MAX].map(|n| backoff.step(n).as_millis()).into();
        assert_eq!(steps, [100, 200, 400, 6400, 10_000, 10_000, 10_000]);
    }

    #[test]
    fn the_delay_stays_within_its_step() {
        for failures in 0..20 {
            let backoff = Backoff::default();
            let delay = backoff.delay(failures);
            assert!(delay >= backoff.step(failures) / 2 && delay <= backoff.step(failures));
        }
    }
}
