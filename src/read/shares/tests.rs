use proptest::prelude::*;

use super::*;

/// A link, and what each feed has been told.
struct Link {
    shares: Shares<u8>,
    feeds: Vec<(Sharer, u8)>,
    out: HashMap<Sharer, u32>,
    /// Frames given to each reader.
    given: HashMap<u8, u64>,
    now: Instant,
}

impl Link {
    fn new(readers: &[usize]) -> Self {
        let now = Instant::now() + Duration::from_secs(10);
        let mut shares = Shares::new(None);
        let mut feeds = Vec::new();
        for (reader, count) in readers.iter().enumerate() {
            feeds.extend((0..*count).map(|_| (shares.enter(now), reader as u8)));
        }
        Self { shares, feeds, out: HashMap::new(), given: HashMap::new(), now }
    }

    /// A feed asks for so many frames, and everyone who is woken for it asks for as many again.
    fn ask(&mut self, feed: usize, wanted: u32) -> u32 {
        let (sharer, reader) = self.feeds[feed];
        let out = self.out.entry(sharer).or_default();
        let (share, mut woken) = self.shares.ask(sharer, &[reader], (*out, wanted), self.now);
        *out += share.frames;
        *self.given.entry(reader).or_default() += u64::from(share.frames);
        while let Some(other) = woken.pop() {
            let place = self.feeds.iter().position(|(sharer, _)| *sharer == other).unwrap();
            self.ask(place, wanted);
        }
        share.frames
    }

    fn came(&mut self, feed: usize) -> bool {
        let (sharer, _) = self.feeds[feed];
        let out = self.out.entry(sharer).or_default();
        if *out == 0 {
            return false;
        }
        *out -= 1;
        self.shares.came(sharer, FRAME, None, self.now);
        true
    }

    fn out(&self, reader: u8) -> u32 {
        let own = self.feeds.iter().filter(|(_, other)| *other == reader);
        own.map(|(sharer, _)| self.out.get(sharer).copied().unwrap_or_default()).sum()
    }
}

#[test]
fn a_reader_alone_has_all_it_wants() {
    let mut link = Link::new(&[3]);
    assert_eq!((0..3).map(|feed| link.ask(feed, 1000)).collect::<Vec<_>>(), [1000, 1000, 1000]);
}

#[test]
fn one_that_comes_later_gets_a_frame_at_once_and_then_its_part() {
    let mut link = Link::new(&[1, 1]);
    assert_eq!(link.ask(0, 100), 100);
    assert_eq!(link.ask(1, 100), 1, "the other's credit cannot be taken back");
    for _ in 0..84 {
        assert!(link.came(0));
        link.ask(0, 100);
    }
    assert_eq!((link.out(0), link.out(1)), (16, 1), "until what is on its way is no more than it may be");
    for _ in 0..10 {
        assert!(link.came(0));
        link.ask(0, 100);
    }
    let got = [link.given[&0] - 100, link.given[&1] - 1];
    assert!(got[0] + got[1] >= 9 && got[0].abs_diff(got[1]) <= 1, "they take turns: {got:?}");
}

#[test]
fn what_is_stuck_keeps_nobody_from_the_rest() {
    let mut link = Link::new(&[1, 1]);
    link.ask(0, 16);
    link.ask(1, 16);
    assert_eq!(link.out(1), 1);
    link.now += STALE;
    assert!(link.came(1));
    link.ask(1, 15);
    assert_eq!(link.out(1), 15);
}

#[test]
fn leaving_settles_no_debt() {
    let mut link = Link::new(&[1, 1]);
    assert_eq!(link.ask(1, 1), 1);
    for _ in 0..100 {
        link.ask(0, 1);
        link.came(0);
    }
    let before = link.shares.given[&0];
    assert!(before > link.shares.given[&1] + 50);
    link.shares.leave(link.feeds[0].0, link.now);
    link.feeds[0].0 = link.shares.enter(link.now);
    link.ask(0, 1);
    assert_eq!(link.shares.given[&0], before + 1);
    link.shares.leave(link.feeds[0].0, link.now);
    link.shares.leave(link.feeds[1].0, link.now);
    assert!(link.shares.given.is_empty(), "nobody is left to owe anything");
}

#[test]
fn what_several_take_is_on_the_account_of_the_one_that_was_given_the_fewest() {
    let now = Instant::now();
    let mut shares = Shares::new(None);
    let (own, common) = (shares.enter(now), shares.enter(now));
    shares.ask(own, &["a"], (0, 10), now);
    shares.ask(common, &["a", "b"], (0, 4), now);
    assert!(shares.given["b"] >= 10, "one that comes begins where the others are");
    assert_eq!(shares.feeds[&common].name, Some("b"));
}

#[test]
fn a_rate_is_kept_and_used() {
    const RATE: u64 = 1024 * 1024;
    let begun = Instant::now() + Duration::from_secs(10);
    let mut shares = Shares::new(Some(RATE));
    let feeds = [shares.enter(begun), shares.enter(begun)];
    let (mut now, mut bytes) = (begun, [0_u64; 2]);
    let end = begun + Duration::from_secs(20);
    while now < end {
        let mut until = None;
        for (feed, name) in [(0, "a"), (1, "b")] {
            let (share, _) = shares.ask(feeds[feed], &[name], (0, 4), now);
            for _ in 0..share.frames {
                bytes[feed] += FRAME;
                shares.came(feeds[feed], FRAME, None, now);
            }
            until = share.held.and_then(|held| held.until);
        }
        now = until.unwrap_or(now).max(now + Duration::from_millis(1));
    }
    let total = bytes[0] + bytes[1];
    assert!(total <= 20 * RATE + RATE / 2 + 2 * FRAME, "{bytes:?}");
    assert!(total >= 19 * RATE, "{bytes:?}");
    assert!(bytes[0].abs_diff(bytes[1]) <= 4 * FRAME, "{bytes:?}");
}

proptest! {
    /// Whatever the numbers of feeds and the order in which an agent serves them: readers who always want more are given
    /// equally much, and one with nothing on its way gets something at once.
    #[test]
    fn readers_are_given_equally_much(
        readers in prop::collection::vec(1_usize..12, 2..4),
        served in prop::collection::vec(any::<usize>(), 1..2000),
        wanted in 16_u32..40,
    ) {
        let mut link = Link::new(&readers);
        let all = link.feeds.len();
        (0..all).rev().for_each(|feed| _ = link.ask(feed, wanted));
        let from = link.given.clone();
        for turn in served {
            let feed = turn % all;
            if link.came(feed) {
                link.now += Duration::from_millis(1);
                link.ask(feed, wanted);
            }
            for reader in 0..readers.len() {
                prop_assert!(link.out(reader as u8) > 0, "{reader} waits with nothing on its way");
            }
        }
        let got: Vec<_> = (0..readers.len() as u8).map(|reader| link.given[&reader] - from[&reader]).collect();
        // The first to come had the link alone for a moment.
        let slack = u64::from(wanted) * 12 + 2;
        prop_assert!(got.iter().max().unwrap() - got.iter().min().unwrap() <= slack, "{got:?}");
    }
}
