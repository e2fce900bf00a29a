//! A highest rate in bytes a second, as a token bucket that may go into debt.

use std::time::{Duration, Instant};

/// A bucket that fills at a rate up to what comes in within its burst.
///
/// It is kept as the time at which it would be empty again had nothing but the rate counted (the virtual scheduling form
/// of the generic cell rate algorithm, ITU-T I.371): nothing has to be added as time passes, and nothing is rounded away.
#[derive(Debug, Clone)]
pub struct Rate {
    bytes_per_second: u64,
    burst: Duration,
    /// Everything taken so far is paid for by then; `None` while nothing was.
    paid_at: Option<Instant>,
}

impl Rate {
    /// A full bucket. A rate is at least a byte a second.
    pub fn new(bytes_per_second: u64, burst: Duration) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), burst, paid_at: None }
    }

    /// Bytes a second.
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// The most that it holds, in bytes.
    pub fn burst_bytes(&self) -> u64 {
        let bytes = self.burst.as_nanos() * u128::from(self.bytes_per_second) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Takes `bytes` now, and says when they may go: at once while the bucket holds anything, else when what was taken
    /// before is paid for. Whoever asks in turn goes in turn.
    pub fn reserve(&mut self, now: Instant, bytes: u64) -> Instant {
        let from = self.from(now);
        self.paid_at = Some(from + self.lasts(bytes));
        from.max(now)
    }

    /// Bytes that may be taken now without going into debt; negative is the debt.
    pub fn balance(&self, now: Instant) -> i128 {
        let (from, full) = (self.from(now), i128::try_from(self.burst.as_nanos()).unwrap_or(i128::MAX));
        let nanos = match now.checked_duration_since(from) {
            Some(ahead) => i128::try_from(ahead.as_nanos()).unwrap_or(i128::MAX).min(full),
            None => -i128::try_from((from - now).as_nanos()).unwrap_or(i128::MAX),
        };
        nanos * i128::from(self.bytes_per_second) / 1_000_000_000
    }

    /// When the balance will be `bytes`, which is now where it is already.
    pub fn holds_at(&self, now: Instant, bytes: u64) -> Instant {
        (self.from(now) + self.lasts(bytes).min(self.burst)).max(now)
    }

    /// Whether nothing that was taken is left to be remembered.
    pub fn is_full(&self, now: Instant) -> bool {
        self.paid_at.is_none_or(|paid_at| paid_at + self.burst <= now)
    }

    /// When what was taken is paid for, no longer ago than the burst.
    fn from(&self, now: Instant) -> Instant {
        let full = now.checked_sub(self.burst);
        match (self.paid_at, full) {
            (Some(paid_at), Some(full)) => paid_at.max(full),
            (Some(paid_at), None) => paid_at,
            (None, full) => full.unwrap_or(now),
        }
    }

    fn lasts(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 2))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let start = Instant::now() + 10 * SECOND;
        let mut rate = Rate::new(1000, SECOND);
        assert!(rate.is_full(start));
        assert_eq!(rate.balance(start), 1000);
        assert_eq!(rate.reserve(start, 1000), start);
        assert_eq!(rate.balance(start), 0);
        assert_eq!(rate.reserve(start, 500), start, "an empty bucket is no debt");
        assert_eq!(rate.balance(start), -500);
        assert_eq!(rate.reserve(start, 500), start + SECOND / 2);
        assert_eq!(rate.reserve(start, 1), start + SECOND);
        assert!(!rate.is_full(start + SECOND));
        assert!(rate.is_full(start + 3 * SECOND));
    }

    #[test]
    fn time_without_use_fills_it_no_further_than_the_burst() {
        let start = Instant::now() + 10 * SECOND;
        let mut rate = Rate::new(1000, SECOND / 10);
        rate.reserve(start, 100);
        assert_eq!(rate.balance(start + 60 * SECOND), 100);
        assert_eq!(rate.holds_at(start, 50), start + SECOND / 20);
        assert_eq!(rate.holds_at(start, 5000), start + SECOND / 10, "more than it ever holds is when it is full");
    }

    proptest! {
        /// Whoever waits as told sends, in any stretch of time, no more than the rate, a burst, and the last piece.
        #[test]
        fn the_rate_is_kept(
            bytes_per_second in 1024_u64..1 << 34,
            pieces in prop::collection::vec((1_u64..1 << 20, 0_u64..200), 1..200),
        ) {
            let start = Instant::now() + 10 * SECOND;
            let mut now = start;
            let mut rate = Rate::new(bytes_per_second, SECOND / 8);
            let mut sent: Vec<(Instant, u64)> = Vec::new();
            for (bytes, pause) in pieces {
                now += Duration::from_millis(pause);
                now = rate.reserve(now, bytes);
                sent.push((now, bytes));
            }
            for (first, (from, _)) in sent.iter().enumerate() {
                let mut total = 0_f64;
                for (at, bytes) in &sent[first..] {
                    let most = (*at - *from).as_secs_f64().mul_add(bytes_per_second as f64, bytes_per_second as f64 / 8.0);
                    prop_assert!(total <= most + 1.0 + pieces_error(sent.len()), "{total} by then, and {most} may");
                    total += *bytes as f64;
                }
            }
        }
    }

    /// Each reservation rounds down by less than a nanosecond's worth.
    fn pieces_error(pieces: usize) -> f64 {
        pieces as f64 * 20.0
    }
}
