//! How one link's credit is shared: by readers first, and by their feeds second.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

use super::rate::Rate;
use super::window::Window;
use crate::protocol::limits::{CONCURRENT_READS, DATA_PAYLOAD};

const FRAME: u64 = DATA_PAYLOAD as u64;
/// What several readers have on their way together until it is known what the path needs.
const FIRST: u32 = CONCURRENT_READS as u32;
/// The least that they have, whatever was measured: tasks on both sides take turns on their processors.
const LEAST: u32 = 6;
/// Credit of a feed that has brought nothing for so long does not keep others from theirs.
const STALE: Duration = Duration::from_secs(1);
/// What a rate lets through at once: more than a long path has on its way.
const BURST: Duration = Duration::from_millis(500);
/// The least time between two looks at a rate.
const TICK: Duration = Duration::from_millis(1);
/// Readers that have left and are remembered for having had more than others.
const REMEMBERED: usize = 1024;

/// A feed that shares the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sharer(u64);

/// The credit of one link, in frames. `K` is who reads: a principal, however many connections it has.
///
/// While one reader alone uses the link, its feeds get what their own windows want. With several, no more is on its way in
/// all than keeps the path busy, and each frame of it that becomes free goes to the reader that has been given the fewest:
/// so readers who always want more get equally many, whatever their numbers of feeds. A reader with nothing on its way
/// always gets a frame. A relay serves its reads in any order it likes; what it has no credit for it cannot serve.
///
/// What several readers take goes in the name, and on the account, of the one that has been given the fewest.
#[derive(Debug)]
pub struct Shares<K> {
    window: Window,
    /// The least ever measured: others were waited for in any that is longer, and a window that has room for them would
    /// only have them wait longer.
    round_trip: Option<Duration>,
    rate: Option<Rate>,
    feeds: HashMap<Sharer, Feed<K>>,
    /// Frames given to each reader, counted from where the others were when it came.
    given: HashMap<K, u64>,
    next: u64,
}

#[derive(Debug)]
struct Feed<K> {
    name: Option<K>,
    /// Frames that it may have sent and have not come.
    out: u32,
    /// Frames that it may fetch here.
    kept: u32,
    wanted: u32,
    /// When a frame came, or was given to one that had none on its way.
    moved: Instant,
}

/// What a feed is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// It may grant so many frames, which count as on their way.
    pub frames: u32,
    /// It wants more than the link's rate allows now.
    pub held: Option<Held>,
}

/// What a rate holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// When it may be tried again; `None` where frames have to come first.
    pub until: Option<Instant>,
}

impl<K: Clone + Eq + Hash> Shares<K> {
    /// Nobody uses the link, which has this highest rate in bytes a second.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            window: Window::of_link(FIRST),
            round_trip: None,
            rate: bytes_per_second.map(|bytes| Rate::new(bytes, BURST)),
            feeds: HashMap::new(),
            given: HashMap::new(),
            next: 0,
        }
    }

    /// A feed comes.
    pub fn enter(&mut self, now: Instant) -> Sharer {
        self.next += 1;
        let sharer = Sharer(self.next);
        self.feeds.insert(sharer, Feed { name: None, out: 0, kept: 0, wanted: 0, moved: now });
        sharer
    }

    /// A feed has `out` frames on their way and wants `wanted` more for these readers. It is told how many it gets now;
    /// what it does not get it is woken for, as the last part of the answer says of others.
    pub fn ask(
        &mut self,
        sharer: Sharer,
        readers: &[K],
        (out, wanted): (u32, u32),
        now: Instant,
    ) -> (Share, Vec<Sharer>) {
        let least = readers.iter().min_by_key(|reader| self.given.get(reader).copied().unwrap_or_default()).cloned();
        let first = self.first();
        let Some(feed) = self.feeds.get_mut(&sharer) else {
            return (Share { frames: 0, held: None }, Vec::new());
        };
        // What was kept for it and is not wanted any more goes to others.
        let unwanted = feed.kept.saturating_sub(wanted);
        feed.kept -= unwanted;
        feed.wanted = wanted - feed.kept;
        if feed.out == 0 && out == 0 {
            feed.moved = now;
        }
        feed.out = out;
        if unwanted > 0
            && let Some(given) = feed.name.as_ref().and_then(|name| self.given.get_mut(name))
        {
            *given -= u64::from(unwanted);
        }
        if let Some(least) = least {
            // One that was away does not get what it missed, nor loses what it owes.
            if wanted > 0 {
                let given = self.given.entry(least.clone()).or_insert(first);
                *given = (*given).max(first);
            }
            feed.name = Some(least);
        }
        let mut woken = self.settle(now);
        woken.retain(|other| *other != sharer);
        let held = self.held(now);
        let Some(feed) = self.feeds.get_mut(&sharer) else {
            return (Share { frames: 0, held: None }, woken);
        };
        let frames = std::mem::take(&mut feed.kept);
        feed.out += frames;
        (Share { frames, held: held.filter(|_| feed.wanted > 0) }, woken)
    }

    /// Bytes of a feed came, perhaps with a new measure of the round-trip time.
    pub fn came(&mut self, sharer: Sharer, bytes: u64, round_trip: Option<Duration>, now: Instant) {
        if let Some(feed) = self.feeds.get_mut(&sharer) {
            feed.moved = now;
        }
        if let Some(rate) = &mut self.rate {
            rate.reserve(now, bytes);
        }
        if let Some(sample) = round_trip {
            let least = self.round_trip.map_or(sample, |known| known.min(sample));
            self.round_trip = Some(least);
            self.window.round_trip(least);
        }
        self.window.consumed(now, bytes);
    }

    /// A feed leaves. Answers whom to wake.
    pub fn leave(&mut self, sharer: Sharer, now: Instant) -> Vec<Sharer> {
        if let Some(feed) = self.feeds.remove(&sharer)
            && let Some(given) = feed.name.as_ref().and_then(|name| self.given.get_mut(name))
        {
            *given -= u64::from(feed.kept);
        }
        let first = self.first();
        let Self { given, feeds, .. } = self;
        let here: HashSet<&K> = feeds.values().filter_map(|feed| feed.name.as_ref()).collect();
        // A debt towards the others is remembered, or leaving would settle it.
        let remembers = !feeds.is_empty() && given.len() <= REMEMBERED + feeds.len();
        given.retain(|name, given| (remembers && *given > first) || here.contains(name));
        self.settle(now)
    }

    /// What the rate allows nobody now; `None` where it allows another frame.
    pub fn held(&self, now: Instant) -> Option<Held> {
        let rate = self.rate.as_ref()?;
        let out = u64::from(self.feeds.values().map(|feed| feed.out + feed.kept).sum::<u32>()) * FRAME;
        if rate.balance(now) >= i128::from(out) {
            return None;
        }
        // Frames may be shorter than they may be at most: then their coming leaves more than it seems.
        let until = (out <= rate.burst_bytes()).then(|| rate.holds_at(now, out).max(now + TICK));
        Some(Held { until })
    }

    /// Where the reader stands that uses the link and has been given the fewest.
    fn first(&self) -> u64 {
        let using = self.feeds.values().filter(|feed| feed.uses());
        using.filter_map(|feed| self.given.get(feed.name.as_ref()?).copied()).min().unwrap_or_default()
    }

    /// Gives out what is free. Answers which feeds have something to fetch.
    fn settle(&mut self, now: Instant) -> Vec<Sharer> {
        let mut woken = Vec::new();
        let most = self.window.frames().max(LEAST);
        while let Some(sharer) = self.due(most, now) {
            let Some(feed) = self.feeds.get_mut(&sharer) else { break };
            if feed.out + feed.kept == 0 {
                feed.moved = now;
            }
            feed.kept += 1;
            feed.wanted -= 1;
            if let Some(given) = feed.name.as_ref().and_then(|name| self.given.get_mut(name)) {
                *given += 1;
            }
            if !woken.contains(&sharer) {
                woken.push(sharer);
            }
        }
        woken
    }

    /// Whose turn it is to be given a frame, if there is one to give.
    fn due(&self, most: u32, now: Instant) -> Option<Sharer> {
        if !self.feeds.values().any(|feed| feed.wanted > 0) || self.held(now).is_some() {
            return None;
        }
        let mut names = self.feeds.values().filter(|feed| feed.uses()).map(|feed| feed.name.as_ref());
        let name = names.next()?;
        let alone = names.all(|other| other == name);
        let stuck = |feed: &Feed<K>| now.saturating_duration_since(feed.moved) >= STALE;
        let out = self.feeds.values().filter(|feed| !stuck(feed)).map(|feed| feed.out + feed.kept).sum::<u32>();
        let is_free = alone || out < most;
        let wanting = |feed: &Feed<K>| feed.wanted > 0 && (is_free || feed.out + feed.kept == 0);
        let mut served = HashSet::new();
        if !is_free && self.feeds.values().any(wanting) {
            let using = self.feeds.values().filter(|feed| feed.out + feed.kept > 0);
            served.extend(using.map(|feed| feed.name.as_ref()));
        }
        let wanting = self.feeds.iter().filter(|(_, feed)| wanting(feed) && !served.contains(&feed.name.as_ref()));
        let order = |(sharer, feed): &(&Sharer, &Feed<K>)| {
            let given = feed.name.as_ref().and_then(|name| self.given.get(name).copied());
            (given.unwrap_or_default(), feed.out + feed.kept, **sharer)
        };
        wanting.min_by_key(order).map(|(sharer, _)| *sharer)
    }
}

impl<K> Feed<K> {
    fn uses(&self) -> bool {
        self.out + self.kept + self.wanted > 0
    }
}

#[cfg(test)]
mod tests;
