//! The credit window of one transfer: how many frames may be granted and not yet taken by the reader.

use std::time::{Duration, Instant};

use crate::protocol::limits::{CREDIT_MAX, DATA_PAYLOAD};

const FRAME: f64 = DATA_PAYLOAD as f64;
/// The shortest time over which a pace is measured.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
/// From this pace on (bytes a second), more frames keep the path busy while tasks take turns on the processors.
const FAST: f64 = 16.0 * 1024.0 * 1024.0;
/// Up to this pace, the frame that is being written to the reader lasts far longer than the next one takes to come.
const SLOW: f64 = 2.0 * 1024.0 * 1024.0;

/// Sizes the window from what is observed: the reader's pace, and the time from granting credit to the first frame
/// that uses it. It grows while a longer path would leave the reader waiting (pace x round-trip time), and shrinks to 1
/// for a reader that drains slowly.
#[derive(Debug, Clone)]
pub struct Window {
    frames: u32,
    pace: Option<f64>,
    round_trip: Option<Duration>,
    interval: Option<(Instant, u64)>,
}

impl Window {
    /// A window of so many frames until a pace was measured.
    pub fn starting(frames: u32) -> Self {
        Self { frames: frames.clamp(1, CREDIT_MAX), pace: None, round_trip: None, interval: None }
    }

    /// The window, in frames.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Whether the reader takes bytes about as fast as they come.
    pub fn is_fast(&self) -> bool {
        self.pace.is_some_and(|pace| pace >= FAST)
    }

    /// The reader's pace in bytes a second, once it has been measured.
    pub fn pace(&self) -> Option<u64> {
        self.pace.map(|pace| pace as u64)
    }

    /// The reader took `bytes`.
    pub fn consumed(&mut self, now: Instant, bytes: u64) {
        let Some((since, total)) = &mut self.interval else {
            // What the reader's first piece took says nothing: it filled empty buffers on the way.
            self.interval = Some((now, 0));
            return;
        };
        *total += bytes;
        let elapsed = now.saturating_duration_since(*since);
        if elapsed < MIN_INTERVAL.max(self.round_trip.unwrap_or_default()) {
            return;
        }
        let measured = *total as f64 / elapsed.as_secs_f64();
        self.interval = Some((now, 0));
        self.pace = Some(match self.pace {
            // The first bytes of a slow reader rush into the buffers on the way.
            Some(pace) if measured >= pace / 4.0 => (pace + measured) / 2.0,
            _ => measured,
        });
        self.resize();
    }

    /// The time from granting credit to an agent that had none left until the first frame that used it.
    pub fn round_trip(&mut self, sample: Duration) {
        self.round_trip = Some(match self.round_trip {
            Some(known) if sample > known => known + (sample - known) / 16,
            _ => sample,
        });
    }

    fn resize(&mut self) {
        let (Some(pace), Some(round_trip)) = (self.pace, self.round_trip) else { return };
        let in_flight = (1.25 * pace * round_trip.as_secs_f64() / FRAME).ceil().max(1.0);
        let spare = match pace {
            _ if self.is_fast() => 3.0,
            slow if slow <= SLOW => 0.0,
            _ => 1.0,
        };
        // Both bounds are small integers; the cast cannot wrap.
        self.frames = (in_flight + spare).min(f64::from(CREDIT_MAX)) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that takes `pace` bytes a second through a path of `round_trip`, for `seconds`.
    fn settle(pace: f64, round_trip: Duration, seconds: f64) -> Window {
        let start = Instant::now();
        let mut window = Window::starting(4);
        let mut time = 0.0;
        while time < seconds {
            window.round_trip(round_trip);
            // The path carries one window a round trip.
            let carried = f64::from(window.frames()) * FRAME / round_trip.as_secs_f64();
            time += FRAME / pace.min(carried);
            window.consumed(start + Duration::from_secs_f64(time), DATA_PAYLOAD as u64);
        }
        window
    }

    #[test]
    fn a_slow_reader_holds_one_frame() {
        assert_eq!(settle(200_000.0, Duration::from_millis(1), 10.0).frames(), 1);
    }

    #[test]
    fn a_fast_reader_on_a_short_path_keeps_a_few() {
        let frames = settle(600e6, Duration::from_micros(300), 2.0).frames();
        assert!((4..=12).contains(&frames), "{frames}");
    }

    #[test]
    fn a_long_path_is_filled() {
        for (pace, round_trip) in [(100e6, 0.05), (100e6, 0.15), (1e9, 0.05)] {
            let window = settle(pace, Duration::from_secs_f64(round_trip), 10.0);
            let carried = f64::from(window.frames()) * FRAME / round_trip;
            assert!(carried >= pace.min(f64::from(CREDIT_MAX) * FRAME / round_trip), "{pace} {round_trip} {window:?}");
            assert!(carried <= 2.0 * pace, "no more than the path needs: {window:?}");
        }
    }

    #[test]
    fn the_window_is_never_empty_nor_over_the_cap() {
        assert!(settle(1.0, Duration::from_micros(1), 1e6).frames() >= 1);
        assert!(settle(1e12, Duration::from_secs(5), 100.0).frames() <= CREDIT_MAX);
    }
}
