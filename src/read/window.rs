//! The credit window of one transfer: how many frames may be granted and not yet taken by the reader.

use std::time::{Duration, Instant};

use crate::protocol::limits::{CREDIT_MAX, DATA_PAYLOAD};

const FRAME: f64 = DATA_PAYLOAD as f64;
/// The shortest time over which a pace is measured.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
/// From this pace on (bytes a second), more frames keep the path busy while tasks take turns on the processors.
const FAST: f64 = 16.0 * 1024.0 * 1024.0;
/// Up to this pace, what is being written to the reader lasts far longer than tasks wait for their turn.
const SLOW: f64 = 8.0 * 1024.0 * 1024.0;

/// What fits into the empty buffers on the way to most readers.
const FIRST_MORSEL: u64 = 128 * 1024;
/// What a slow reader takes in this time, and in so many round trips, is worth a read of its own; but never less than this.
const MORSEL: (Duration, u32, u64) = (Duration::from_millis(250), 8, 64 * 1024);

/// A pace that grew by this since the last measure is still growing: the window was what held it back.
const GREW: f64 = 1.25;
/// On a path at least this long, a window that opens has so many times what comes in one burst: it grows fourfold in each
/// round trip, and a short file is not over before its path is filled. On a shorter one the first measure comes soon enough.
const OPENING: (Duration, f64) = (Duration::from_millis(5), 4.0);
/// What a window has of the path's need: while the pace grows, so that it doubles in about a round trip as TCP's does, and
/// after.
const GAIN: (f64, f64) = (3.0, 2.0);
/// A link's is less than its feeds', or none of them could take up what it leaves to them. Because its round-trip time is
/// the least ever measured, which may be too little today, it tries from time to time whether more brings more, and
/// believes slowly that less will do.
const LINK_GAIN: (f64, f64) = (2.0, 1.2);
const LINK_TRIES: u32 = 16;
const LINK_DECAY: f64 = 1.0 / 16.0;
/// After so many measures in a row without growth the window is what the path needs.
const SETTLED: u32 = 2;

/// How many frames of a window are granted at a time, so that not each costs a frame of its own: what is on its way never
/// falls below the rest, which has to fill the path until the grant arrives.
pub fn step(window: u32) -> u32 {
    (window / 4).max(window.div_ceil(2).min(2))
}

/// Sizes the window from what is observed: the reader's pace, and the time from granting credit to the first frame
/// that uses it. It grows fast at first and while that makes the reader faster, then keeps a little more than the path
/// needs (pace x round-trip time), and shrinks to 1 for a reader that drains slowly.
#[derive(Debug, Clone)]
pub struct Window {
    frames: u32,
    is_links: bool,
    /// Until the pace first does not grow: when the last burst began, and how much of it was taken.
    opening: Option<(Instant, u64)>,
    pace: Option<f64>,
    /// Measures in a row in which the pace did not grow.
    still: u32,
    round_trip: Option<Duration>,
    interval: Option<(Instant, u64)>,
}

impl Window {
    /// A window of so many frames until a pace was measured.
    pub fn starting(frames: u32) -> Self {
        let frames = frames.clamp(1, CREDIT_MAX);
        Self { frames, is_links: false, opening: None, pace: None, still: 0, round_trip: None, interval: None }
    }

    /// The window of a link that several feeds share: of what they may have on their way in all.
    pub fn of_link(frames: u32) -> Self {
        Self { is_links: true, ..Self::starting(frames) }
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

    /// How many bytes of a slow reader's range to ask for at a time where memory matters more than requests do: a frame is
    /// as large as the agent makes it, but no larger than its read. A reader whose window begins with one frame may be slow
    /// until its pace is known. None for one that is not.
    pub fn morsel(&self) -> Option<u64> {
        if self.frames > 1 {
            return None;
        }
        let Some(pace) = self.pace else { return Some(FIRST_MORSEL) };
        let (time, round_trips, least) = MORSEL;
        if pace > SLOW {
            return None;
        }
        let lasts = time.max(round_trips * self.round_trip.unwrap_or_default());
        Some(((pace * lasts.as_secs_f64()) as u64).max(least))
    }

    /// The reader took `bytes`.
    pub fn consumed(&mut self, now: Instant, bytes: u64) {
        let Some((since, total)) = &mut self.interval else {
            // What the reader's first piece took says nothing of its pace: it filled empty buffers on the way.
            self.interval = Some((now, 0));
            // A window of one frame is for a reader that is likely to be slow.
            self.opening = (self.frames > 1 && !self.is_links).then_some((now, 0));
            return self.open(now, bytes);
        };
        *total += bytes;
        let (elapsed, total) = (now.saturating_duration_since(*since), *total);
        self.open(now, bytes);
        if elapsed < MIN_INTERVAL.max(self.round_trip.unwrap_or_default()) {
            return;
        }
        let measured = total as f64 / elapsed.as_secs_f64();
        self.interval = Some((now, 0));
        let grew = self.pace.is_none_or(|pace| measured >= GREW * pace);
        self.still = if grew { 0 } else { self.still.wrapping_add(1) };
        self.opening.take_if(|_| !grew);
        self.pace = Some(match self.pace {
            // The first bytes of a slow reader rush into the buffers on the way.
            Some(pace) if !grew && measured >= pace / 4.0 => {
                let weight = if self.is_links && measured < pace { LINK_DECAY } else { 0.5 };
                (measured - pace).mul_add(weight, pace)
            }
            _ => measured,
        });
        self.resize();
    }

    /// Makes a window that opens as large as a burst that was taken allows.
    fn open(&mut self, now: Instant, bytes: u64) {
        let (Some((since, taken)), Some(round_trip)) = (&mut self.opening, self.round_trip) else { return };
        let (long, times) = OPENING;
        if round_trip < long {
            return;
        }
        // What comes at once was granted at once, a round trip ago.
        if now.saturating_duration_since(*since) > round_trip / 2 {
            (*since, *taken) = (now, 0);
        }
        *taken += bytes;
        self.frames = self.frames.max(whole(times * *taken as f64 / FRAME));
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
        let (growing, settled) = if self.is_links { LINK_GAIN } else { GAIN };
        let tries = self.is_links && self.still.is_multiple_of(LINK_TRIES);
        let gain = if self.still < SETTLED || tries { growing } else { settled };
        let in_flight = (gain * pace * round_trip.as_secs_f64() / FRAME).ceil().max(1.0);
        let spare = match pace {
            _ if self.is_fast() => 3.0,
            slow if slow <= SLOW => 0.0,
            _ => 1.0,
        };
        let least = if self.opening.is_some() { self.frames } else { 1 };
        self.frames = whole(in_flight + spare).max(least);
    }
}

/// As many whole frames, within what a read may hold.
fn whole(frames: f64) -> u32 {
    // Between zero and a small integer the cast cannot wrap.
    frames.clamp(0.0, f64::from(CREDIT_MAX)) as u32
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
    fn a_slow_reader_is_asked_for_in_morsels_that_outlast_the_path() {
        for (pace, round_trip, morsel) in
            [(200_000.0, 1, 64 * 1024), (1_000_000.0, 1, 250_000), (200_000.0, 150, 240_000)]
        {
            let window = settle(pace, Duration::from_millis(round_trip), 10.0);
            let asked = window.morsel().unwrap();
            assert!(asked.abs_diff(morsel) <= morsel / 10, "{pace} bytes a second at {round_trip} ms: {asked}");
        }
        assert_eq!(settle(100e6, Duration::from_millis(1), 10.0).morsel(), None);
        assert_eq!(Window::starting(1).morsel(), Some(FIRST_MORSEL), "nothing is known of it yet");
        assert_eq!(Window::starting(4).morsel(), None);
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
            assert!(carried <= 3.0 * pace, "no more than the path needs: {window:?}");
        }
    }

    #[test]
    fn a_long_path_is_filled_within_a_few_round_trips() {
        let round_trip = Duration::from_millis(150);
        let mut window = Window::starting(4);
        let (mut now, mut round_trips) = (Instant::now(), 0);
        // All of a window comes at about the same time, and is taken.
        while window.frames() < 256 {
            round_trips += 1;
            now += round_trip;
            window.round_trip(round_trip);
            let frames = window.frames();
            (0..frames).for_each(|n| window.consumed(now + n * Duration::from_micros(100), DATA_PAYLOAD as u64));
        }
        assert!(round_trips <= 4, "{round_trips}");
    }

    #[test]
    fn the_window_is_never_empty_nor_over_the_cap() {
        assert!(settle(1.0, Duration::from_micros(1), 1e6).frames() >= 1);
        assert!(settle(1e12, Duration::from_secs(5), 100.0).frames() <= CREDIT_MAX);
    }
}
