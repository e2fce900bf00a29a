//! Failures that repeat themselves: told when they are new, and then once in a while.

use std::time::Duration;

use tokio::time::Instant;

/// How often the same failure is told.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What one connection's attempts last ended in, and when that was told. A gateway that is away for a night must not
/// fill a log with one line.
#[derive(Default)]
pub(super) struct Repeats {
    told: Option<Told>,
}

struct Told {
    reason: String,
    at: Instant,
    /// Attempts that ended likewise since then.
    untold: u32,
}

impl Repeats {
    /// An attempt failed. Answers how many have ended so since that was told last, this one among them, if it is to be
    /// told now.
    pub(super) fn failed(&mut self, reason: &str, now: Instant) -> Option<u32> {
        let attempts = match &mut self.told {
            Some(told) if told.reason == reason => {
                told.untold = told.untold.saturating_add(1);
                if now.saturating_duration_since(told.at) < TELL_EVERY {
                    return None;
                }
                told.untold
            }
            _ => 1,
        };
        self.told = Some(Told { reason: reason.to_owned(), at: now, untold: 0 });
        Some(attempts)
    }

    /// An attempt succeeded: whatever fails next is new.
    pub(super) fn succeeded(&mut self) {
        self.told = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_same_reason_is_told_once_a_minute_with_the_attempts_since() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let told: Vec<_> = (0..150).map(|n| repeats.failed("refused", start + n * SECOND)).collect();
        let told: Vec<_> = told.iter().enumerate().filter_map(|(n, told)| told.map(|tries| (n, tries))).collect();
        assert_eq!(told, [(0, 1), (60, 60), (120, 60)]);
    }

    #[test]
    fn another_reason_and_one_after_a_success_are_told_at_once() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        assert_eq!(repeats.failed("refused", now), Some(1));
        assert_eq!(repeats.failed("refused", now), None);
        assert_eq!(repeats.failed("late", now), Some(1));
        assert_eq!(repeats.failed("refused", now), Some(1));
        repeats.succeeded();
        assert_eq!(repeats.failed("refused", now), Some(1));
        assert_eq!(repeats.failed("refused", now), None);
    }
}
