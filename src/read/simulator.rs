//! An agent's link, its feeds and their readers, simulated: what the windows and shares of this folder come to on paths
//! that no test machine has.
//!
//! The agent sends the frames it has credit for in turns, a frame of each read; the link carries one after the other and
//! delays each; readers take frames at their pace, and some stop from time to time. Nothing waits: time is the next event.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use super::shares::{Sharer, Shares};
use super::window::{Window, step};
use crate::protocol::limits::{CREDIT_DEFAULT, DATA_PAYLOAD};

const FRAME: u64 = DATA_PAYLOAD as u64;

/// A reader, and how it reads.
#[derive(Debug, Clone, Copy)]
pub struct Reader {
    /// Whose connection it is.
    pub name: &'static str,
    /// Bytes a second while it takes any.
    pub pace: f64,
    /// For how long it takes, and for how long it then does not.
    pub rhythm: Option<(Duration, Duration)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The agent is told of credit.
    Credit(usize, u32),
    /// The link can carry the next frame.
    LinkIsFree,
    /// A frame is at the gateway.
    Frame(usize),
    /// The reader is done with a frame, or begins again.
    Reader(usize),
}

struct Feed {
    reader: Reader,
    window: Window,
    sharer: Option<Sharer>,
    /// Granted and not come; come and not taken.
    out: u32,
    spool: u32,
    granted: Option<Instant>,
    untold: u64,
    busy_until: Instant,
    bytes: u64,
    /// What the agent may send of it.
    credit: u32,
}

/// One link.
pub struct Simulation {
    begun: Instant,
    now: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    order: u64,
    bytes_per_second: f64,
    delay: Duration,
    link_busy: bool,
    turns: VecDeque<usize>,
    feeds: Vec<Feed>,
    shares: Option<Shares<&'static str>>,
    /// The most frames that waited for readers at a time.
    pub most_held: u32,
}

impl Simulation {
    /// A link of this many bytes a second and round-trip time.
    pub fn new(bytes_per_second: f64, round_trip: Duration, readers: &[Reader], shared: bool) -> Self {
        let begun = Instant::now();
        let mut shares = shared.then(|| Shares::new(None));
        let feed = |reader: &Reader| Feed {
            reader: *reader,
            window: Window::starting(CREDIT_DEFAULT),
            sharer: shares.as_mut().map(|shares| shares.enter(begun)),
            out: 0,
            spool: 0,
            granted: None,
            untold: 0,
            busy_until: begun,
            bytes: 0,
            credit: 0,
        };
        let feeds = readers.iter().map(feed).collect();
        let mut simulation = Self {
            begun,
            now: begun,
            events: BinaryHeap::new(),
            order: 0,
            bytes_per_second,
            delay: round_trip / 2,
            link_busy: false,
            turns: VecDeque::new(),
            feeds,
            shares,
            most_held: 0,
        };
        (0..readers.len()).for_each(|feed| simulation.grant(feed));
        simulation
    }

    /// Lets so much time pass, and says how many bytes each reader took meanwhile.
    pub fn run(&mut self, time: Duration) -> Vec<u64> {
        let (until, before) = (self.now + time, self.feeds.iter().map(|feed| feed.bytes).collect::<Vec<_>>());
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= until) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            match event {
                Event::Credit(feed, frames) => {
                    if self.feeds[feed].credit == 0 {
                        self.turns.push_back(feed);
                    }
                    self.feeds[feed].credit += frames;
                    self.send();
                }
                Event::LinkIsFree => {
                    self.link_busy = false;
                    self.send();
                }
                Event::Frame(feed) => self.receive(feed),
                Event::Reader(feed) => self.take(feed),
            }
            self.most_held = self.most_held.max(self.feeds.iter().map(|feed| feed.spool).sum());
        }
        self.now = until;
        self.feeds.iter().zip(before).map(|(feed, before)| feed.bytes - before).collect()
    }

    /// The window of one feed.
    pub fn window(&self, feed: usize) -> u32 {
        self.feeds[feed].window.frames()
    }

    fn after(&mut self, time: Duration, event: Event) {
        self.order += 1;
        self.events.push(Reverse((self.now + time, self.order, event)));
    }

    /// The agent's side: the next frame of the read whose turn it is.
    fn send(&mut self) {
        if self.link_busy {
            return;
        }
        let Some(feed) = self.turns.pop_front() else { return };
        self.link_busy = true;
        self.feeds[feed].credit -= 1;
        if self.feeds[feed].credit > 0 {
            self.turns.push_back(feed);
        }
        let lasts = Duration::from_secs_f64(FRAME as f64 / self.bytes_per_second);
        self.after(lasts, Event::LinkIsFree);
        self.after(lasts + self.delay, Event::Frame(feed));
    }

    fn receive(&mut self, index: usize) {
        let (now, feed) = (self.now, &mut self.feeds[index]);
        feed.out -= 1;
        feed.spool += 1;
        let sample = feed.granted.take().map(|granted| now - granted);
        if let Some(sample) = sample {
            feed.window.round_trip(sample);
        }
        if let (Some(shares), Some(sharer)) = (&mut self.shares, feed.sharer) {
            shares.came(sharer, FRAME, sample, now);
        }
        self.take(index);
        self.grant(index);
    }

    /// The reader takes the next frame, if it is there and the reader is not busy with another.
    fn take(&mut self, index: usize) {
        let (now, feed) = (self.now, &mut self.feeds[index]);
        if let Some((goes, stops)) = feed.reader.rhythm {
            let into = Duration::from_nanos(((now - self.begun).as_nanos() % (goes + stops).as_nanos()) as u64);
            if into >= goes {
                feed.busy_until = now + (goes + stops - into);
                let pause = feed.busy_until - now;
                return self.after(pause, Event::Reader(index));
            }
        }
        if feed.spool == 0 || now < feed.busy_until {
            return;
        }
        feed.spool -= 1;
        feed.bytes += FRAME;
        feed.untold += FRAME;
        let lasts = Duration::from_secs_f64(FRAME as f64 / feed.reader.pace);
        feed.busy_until = now + lasts;
        if feed.spool == 0 || feed.untold >= u64::from(step(feed.window.frames())) * FRAME {
            feed.window.consumed(now, std::mem::take(&mut feed.untold));
        }
        self.after(lasts, Event::Reader(index));
        self.grant(index);
    }

    /// As a feed does: in steps of half a window, or when nothing is on its way.
    fn grant(&mut self, index: usize) {
        let (now, feed) = (self.now, &mut self.feeds[index]);
        let room = feed.window.frames().saturating_sub(feed.out + feed.spool);
        let wanted = if room >= step(feed.window.frames()) || feed.out == 0 { room } else { 0 };
        let (frames, woken) = match (&mut self.shares, feed.sharer) {
            (Some(shares), Some(sharer)) => {
                let (share, woken) = shares.ask(sharer, &[feed.reader.name], (feed.out, wanted), now);
                (share.frames, woken)
            }
            _ => (wanted, Vec::new()),
        };
        if frames > 0 {
            if feed.out == 0 {
                feed.granted.get_or_insert(now);
            }
            feed.out += frames;
            self.after(self.delay, Event::Credit(index, frames));
        }
        for sharer in woken {
            if let Some(other) = self.feeds.iter().position(|feed| feed.sharer == Some(sharer)) {
                self.grant(other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: f64 = 1e6 / 8.0;

    fn alone(pace: f64, rhythm: Option<(Duration, Duration)>) -> [Reader; 1] {
        [Reader { name: "a", pace, rhythm }]
    }

    /// What one download gets of links of every kind: in all of its first ten seconds and in the last half of them.
    #[test]
    fn one_reader_fills_its_link() {
        println!("{:>9} {:>6} | {:>6} {:>6} | {:>6} {:>5}", "Mbit/s", "ms", "10 s", "5..10", "window", "held");
        for mbits in [1.0, 10.0, 100.0, 1000.0, 10_000.0] {
            for millis in [0, 1, 10, 50, 150, 300] {
                let link = mbits * MBIT;
                let mut simulation = Simulation::new(link, Duration::from_millis(millis), &alone(1e12, None), false);
                let first = simulation.run(Duration::from_secs(5))[0] as f64;
                let second = simulation.run(Duration::from_secs(5))[0] as f64;
                let (all, settled) = ((first + second) / 10.0 / link, second / 5.0 / link);
                let (window, held) = (simulation.window(0), simulation.most_held);
                println!("{mbits:>9} {millis:>6} | {all:>6.3} {settled:>6.3} | {window:>6} {held:>5}");
                // The most credit that a read may hold carries this much.
                let most = (1024.0 * FRAME as f64 / (millis as f64 / 1000.0).max(1e-6) / link).min(1.0);
                // In so few frames the last one counts.
                let frames = link * 5.0 / FRAME as f64;
                let goal = if millis <= 150 { 0.9 } else { 0.7 };
                assert!(settled >= goal * most - 1.0 / frames, "{mbits} Mbit/s, {millis} ms: {settled} of {most}");
                if millis <= 150 {
                    assert!(all >= 0.85 * most - 1.0 / frames, "{mbits} Mbit/s, {millis} ms: {all} from the start");
                }
                assert!(held <= 2, "a reader that waits has nothing waiting for it: {held}");
                let needed = link * (millis as f64 / 1000.0) / FRAME as f64;
                assert!(f64::from(window) <= 3.0 * needed + 8.0, "{window} frames where {needed} are on their way");
            }
        }
    }

    /// Readers that stop and go, and ones slower than their link.
    #[test]
    fn windows_follow_their_reader() {
        println!("{:>9} {:>6} {:>16} | {:>6} | {:>6} {:>5}", "pace", "ms", "goes, stops", "taken", "window", "held");
        let seconds = Duration::from_secs;
        let rhythms =
            [None, Some((seconds(2), seconds(2))), Some((seconds(5), seconds(1))), Some((seconds(1), seconds(9)))];
        for pace in [0.2e6, 5e6, 50e6] {
            for millis in [1, 50, 150] {
                for rhythm in rhythms {
                    let link = 1000.0 * MBIT;
                    let readers = alone(pace, rhythm);
                    let mut simulation = Simulation::new(link, Duration::from_millis(millis), &readers, false);
                    let taken = simulation.run(seconds(40))[0] as f64;
                    let going = rhythm.map_or(1.0, |(goes, stops)| goes.as_secs_f64() / (goes + stops).as_secs_f64());
                    let taken = taken / (40.0 * going * pace);
                    let (window, held) = (simulation.window(0), simulation.most_held);
                    println!(
                        "{pace:>9} {millis:>6} {:>16} | {taken:>6.3} | {window:>6} {held:>5}",
                        format!("{rhythm:?}")
                    );
                    assert!(taken >= 0.5, "{pace} {millis} {rhythm:?}: {taken}");
                    if rhythm.is_none() {
                        assert!(taken >= 0.85, "{pace} {millis}: {taken}");
                    }
                    let needed = pace * (millis as f64 / 1000.0) / FRAME as f64;
                    assert!(
                        f64::from(held) <= 6.0 * needed + 8.0,
                        "{held} frames held where {needed} are on their way"
                    );
                    if pace < 1e6 {
                        assert!(window <= 2, "a slow reader holds little: {window}");
                    }
                }
            }
        }
    }

    /// Two readers with any numbers of connections get equal parts of every link, and together all of it.
    #[test]
    fn readers_share_a_link_equally() {
        println!("{:>9} {:>6} {:>9} | {:>6} {:>6}", "Mbit/s", "ms", "reads", "ratio", "used");
        for mbits in [10.0, 1000.0, 10_000.0] {
            for millis in [0, 1, 50, 150] {
                for (many, few) in [(11, 5), (15, 1), (8, 8)] {
                    let reader = |name| Reader { name, pace: 1e12, rhythm: None };
                    let mut readers = vec![reader("many"); many];
                    readers.extend(vec![reader("few"); few]);
                    let link = mbits * MBIT;
                    let mut simulation = Simulation::new(link, Duration::from_millis(millis), &readers, true);
                    let time = if mbits > 1000.0 { 5 } else { 15 };
                    simulation.run(Duration::from_secs(time));
                    let bytes = simulation.run(Duration::from_secs(time));
                    let (first, second) = bytes.split_at(many);
                    let (first, second) = (first.iter().sum::<u64>() as f64, second.iter().sum::<u64>() as f64);
                    let (ratio, used) = (first / second, (first + second) / time as f64 / link);
                    println!("{mbits:>9} {millis:>6} {many:>6}:{few:<2} | {ratio:>6.3} {used:>6.3}");
                    // What a single read has on its way is its own window, which is too small for half of some paths.
                    let is_extreme = few == 1;
                    assert!(
                        is_extreme || (0.8..=1.25).contains(&ratio),
                        "{mbits} Mbit/s, {millis} ms, {many}:{few}: {ratio}"
                    );
                    assert!(used >= 0.9, "{mbits} Mbit/s, {millis} ms, {many}:{few}: {used}");
                }
            }
        }
    }
    /// The least round-trip time ever measured is not the path's any more.
    #[test]
    fn a_path_that_becomes_longer_is_filled_again() {
        let reader = |name| Reader { name, pace: 1e12, rhythm: None };
        let readers: Vec<_> = (0..12).map(|n| reader(if n < 8 { "many" } else { "few" })).collect();
        let link = 1000.0 * MBIT;
        let mut simulation = Simulation::new(link, Duration::from_millis(30), &readers, true);
        simulation.run(Duration::from_secs(10));
        simulation.delay = Duration::from_millis(30);
        simulation.run(Duration::from_secs(10));
        let bytes = simulation.run(Duration::from_secs(20));
        let (many, few) = bytes.split_at(8);
        let (many, few) = (many.iter().sum::<u64>() as f64, few.iter().sum::<u64>() as f64);
        let used = (many + few) / 20.0 / link;
        println!("30 ms, then 60: {used:.3} used, ratio {:.3}", many / few);
        assert!(used >= 0.6, "{used}");
        assert!((0.8..=1.25).contains(&(many / few)), "{many} and {few}");
    }
}
