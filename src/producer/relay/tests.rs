use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::producer::fetch::fetch;
use crate::protocol::Sha256;
use crate::protocol::data::DataFrame;

const FRAME: u64 = DATA_PAYLOAD as u64;

/// Bytes that differ from frame to frame.
fn content(len: u64) -> Bytes {
    (0..len).map(|n| (n / 251 + n) as u8).collect()
}

/// A relay over one blob in memory, driven by hand.
struct Bench {
    relay: Relay,
    bytes: Bytes,
    sha256: Sha256,
}

impl Bench {
    fn new(len: u64) -> Self {
        Self::sharing(len, Slots::default())
    }

    fn sharing(len: u64, slots: Slots) -> Self {
        let bytes = content(len);
        let sha256 = Sha256::of(&bytes);
        let registry = Registry::default();
        registry.add_manifest(sha256, bytes.clone());
        Self { relay: Relay::new(Arc::new(registry), slots, Arc::new(|_| ()), false), bytes, sha256 }
    }

    fn read(&mut self, id: &str, offset: u64, length: u64, credit: Option<u32>) {
        let request_id = id.parse().unwrap();
        self.relay.read(BlobRead { request_id, sha256: self.sha256, offset, length, credit });
    }

    fn credit(&mut self, id: &str, frames: u32) {
        self.relay.credit(&id.parse().unwrap(), frames);
    }

    fn cancel(&mut self, id: &str) {
        self.relay.cancel(&id.parse().unwrap());
    }

    /// Does every fetch that is wanted.
    fn fetch_all(&mut self) {
        while let Some(wanted) = self.relay.next_fetch() {
            self.relay.fetched(fetch(wanted));
        }
    }

    /// Everything that may be sent now, as short lines: `a@0+262144`, `a end 0+300000`, `a range_invalid`.
    fn sent(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            self.fetch_all();
            assert_eq!(self.relay.has_outgoing(), {
                let next = self.relay.next_outgoing();
                let some = next.is_some();
                lines.extend(next.map(|outgoing| self.line(outgoing)));
                some
            });
            if !self.relay.has_outgoing() {
                self.fetch_all();
                if !self.relay.has_outgoing() {
                    return lines;
                }
            }
        }
    }

    fn line(&self, outgoing: Outgoing) -> String {
        match outgoing {
            Outgoing::Data(frame) => {
                let frame = DataFrame::decode(frame).unwrap();
                let start = frame.offset as usize;
                assert_eq!(frame.payload, self.bytes[start..start + frame.payload.len()]);
                format!("{}@{}+{}", frame.request_id, frame.offset, frame.payload.len())
            }
            Outgoing::Reply(Reply::End(end)) => {
                assert_eq!(end.bytes, end.length);
                format!("{} end {}+{}", end.request_id, end.offset, end.length)
            }
            Outgoing::Reply(Reply::Error(error)) => format!("{} {}", error.request_id, error.error.code),
        }
    }
}

#[test]
fn a_read_is_its_range_in_frames_and_an_end() {
    let mut bench = Bench::new(FRAME * 3);
    bench.read("a", 10, FRAME + 5, None);
    assert_eq!(
        bench.sent(),
        [format!("a@10+{FRAME}"), format!("a@{}+5", FRAME + 10), format!("a end 10+{}", FRAME + 5)]
    );
}

#[test]
fn credit_is_four_frames_unless_named_and_nothing_goes_without() {
    let mut bench = Bench::new(FRAME * 8);
    bench.read("a", 0, FRAME * 8, None);
    assert_eq!(bench.sent().len(), 4);
    bench.credit("a", 1);
    assert_eq!(bench.sent(), [format!("a@{}+{FRAME}", FRAME * 4)]);
    bench.credit("b", 9);
    assert_eq!(bench.sent(), [""; 0]);
    bench.read("b", 0, FRAME, Some(0));
    assert_eq!(bench.sent(), [""; 0]);
    bench.credit("b", 1);
    assert_eq!(bench.sent().len(), 2);
}

#[test]
fn credit_held_is_capped() {
    let mut bench = Bench::new(FRAME);
    bench.read("a", 0, FRAME, Some(0));
    bench.credit("a", u32::MAX);
    bench.credit("a", u32::MAX);
    assert_eq!(bench.relay.reads[0].credit, 1024);
    bench.read("b", 0, FRAME, Some(5000));
    assert_eq!(bench.relay.reads[1].credit, 1024);
}

#[test]
fn reads_take_turns_frame_by_frame() {
    let mut bench = Bench::new(FRAME * 3);
    bench.read("large", 0, FRAME * 3, Some(100));
    bench.read("small", 0, 10, None);
    bench.read("two", FRAME, FRAME * 2, None);
    bench.fetch_all();
    let sent = bench.sent();
    let order: Vec<_> = sent.iter().map(|line| line.split(['@', ' ']).next().unwrap()).collect();
    // An end is no turn: it follows the last frame at once.
    assert_eq!(order, ["large", "small", "small", "two", "large", "two", "two", "large", "large"]);
}

#[test]
fn a_cancelled_read_is_silent_even_with_frames_ready_and_a_fetch_under_way() {
    let mut bench = Bench::new(FRAME * 8);
    bench.read("a", 0, FRAME * 8, Some(8));
    let first = bench.relay.next_fetch().unwrap();
    bench.relay.fetched(fetch(first));
    assert!(bench.relay.next_outgoing().is_some() && bench.relay.next_outgoing().is_some());
    let late = bench.relay.next_fetch().unwrap();
    bench.cancel("a");
    assert_eq!(bench.sent(), [""; 0]);
    // The same id again is another read, which the late fetch does not touch.
    bench.read("a", FRAME, 7, None);
    bench.relay.fetched(fetch(late));
    assert_eq!(bench.sent(), [format!("a@{FRAME}+7"), format!("a end {FRAME}+7")]);
}

#[test]
fn a_cancel_takes_back_an_end_that_has_not_left() {
    let mut bench = Bench::new(10);
    bench.read("a", 0, 10, None);
    bench.fetch_all();
    assert!(bench.relay.next_outgoing().is_some());
    bench.cancel("a");
    assert_eq!(bench.relay.next_outgoing(), None);
}

#[test]
fn each_wrong_read_has_its_code() {
    let mut bench = Bench::new(100);
    bench.read("at-end", 90, 11, None);
    bench.read("behind", 101, 0, None);
    bench.read("overflow", u64::MAX, 2, None);
    bench.read("huge", 0, READ_BYTES + 1, None);
    bench.relay.read(BlobRead {
        request_id: "foreign".parse().unwrap(),
        sha256: Sha256::of(b"never published"),
        offset: 0,
        length: 1,
        credit: None,
    });
    bench.relay.refuse("malformed".parse().unwrap(), BlobErrorCode::BadRequest, "no");
    bench.read("twice", 0, 1, Some(0));
    bench.read("twice", 0, 1, None);
    assert_eq!(
        bench.sent(),
        [
            "at-end range_invalid",
            "behind range_invalid",
            "overflow range_invalid",
            "huge bad_request",
            "foreign unknown_blob",
            "malformed bad_request",
            "twice duplicate_request",
        ]
    );
    // The first of the two is unharmed.
    bench.credit("twice", 1);
    assert_eq!(bench.sent(), ["twice@0+1", "twice end 0+1"]);
}

#[test]
fn a_read_of_nothing_ends_at_once() {
    let mut bench = Bench::new(100);
    bench.read("a", 100, 0, Some(0));
    assert_eq!(bench.sent(), ["a end 100+0"]);
    let mut empty = Bench::new(0);
    empty.read("a", 0, 0, None);
    assert_eq!(empty.sent(), ["a end 0+0"]);
}

#[test]
fn the_limit_counts_both_connections_and_comes_back() {
    let slots = Slots::default();
    let (mut control, mut data) = (Bench::sharing(100, slots.clone()), Bench::sharing(100, slots));
    for n in 0..10 {
        control.read(&format!("c{n}"), 0, 1, Some(0));
    }
    for n in 0..7 {
        data.read(&format!("d{n}"), 0, 1, Some(0));
    }
    assert_eq!(data.sent(), ["d6 too_many_reads"]);
    control.cancel("c0");
    data.read("d6", 0, 1, Some(1));
    assert_eq!(data.sent(), ["d6@0+1", "d6 end 0+1"]);
    control.read("c0", 0, 1, Some(0));
    data.read("d7", 0, 1, Some(0));
    assert_eq!(data.sent(), ["d7 too_many_reads"]);
    drop(control);
    data.read("d8", 0, 1, Some(1));
    assert_eq!(data.sent(), ["d8@0+1", "d8 end 0+1"]);
}

#[test]
fn a_file_that_changed_is_a_failed_read() {
    use crate::producer::folder::{self, FoundFile};
    use crate::producer::registry::PublishedFile;

    let root = tempfile::tempdir().unwrap();
    let location = root.path().join("f");
    let bytes = content(FRAME * 8);
    std::fs::write(&location, &bytes).unwrap();
    let FoundFile { location, fingerprint, .. } = folder::scan(root.path(), false, |_, _| ()).unwrap().remove(0);
    let registry = Registry::default();
    registry.add_file(Sha256::of(&bytes), PublishedFile { location: location.clone(), fingerprint });
    let relay = Relay::new(Arc::new(registry), Slots::default(), Arc::new(|_| ()), false);
    let mut bench = Bench { relay, sha256: Sha256::of(&bytes), bytes };

    bench.read("a", 0, FRAME * 8, Some(4));
    assert_eq!(bench.sent().len(), 4);
    std::fs::write(&location, "shorter").unwrap();
    bench.credit("a", 8);
    // One frame had been read before the change.
    assert_eq!(bench.sent().last().unwrap(), "a read_failed");
    bench.read("b", 0, 1, None);
    assert_eq!(bench.sent(), ["b unknown_blob"]);
    std::fs::remove_file(&location).unwrap();
    bench.read("c", 0, 1, None);
    assert_eq!(bench.sent(), ["c unknown_blob"]);
}

#[test]
fn no_more_is_read_ahead_than_a_few_frames() {
    let mut bench = Bench::new(FRAME * 64);
    bench.read("stuck", 0, FRAME * 64, Some(0));
    bench.read("fast", 0, FRAME * 64, Some(1000));
    bench.fetch_all();
    let held: Vec<_> = bench.relay.reads.iter().map(|read| read.fetched.len()).collect();
    assert_eq!(held, [1, READ_AHEAD]);
}

#[derive(Debug, Clone)]
enum Op {
    Read { id: u8, offset: u64, length: u64, credit: Option<u32> },
    Credit { id: u8, frames: u32 },
    Cancel { id: u8 },
    StartFetch,
    FinishFetch,
    Send,
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..20u8;
    prop_oneof![
        3 => (id.clone(), 0..FRAME * 6, 0..FRAME * 7, prop::option::of(0..6u32))
            .prop_map(|(id, offset, length, credit)| Op::Read { id, offset, length, credit }),
        2 => (id.clone(), 0..4u32).prop_map(|(id, frames)| Op::Credit { id, frames }),
        1 => id.prop_map(|id| Op::Cancel { id }),
        4 => Just(Op::StartFetch),
        4 => Just(Op::FinishFetch),
        8 => Just(Op::Send),
    ]
}

/// What the platform knows of a read in progress.
struct Known {
    next: u64,
    end: u64,
    credit: u32,
    last_turn: usize,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the platform sends and however the disk keeps up: nothing without credit, nothing out of order, nothing
    /// after the end or a cancel, never a second turn for one read while another that was ready before waits.
    #[test]
    fn every_order_of_events_keeps_the_rules(ops in prop::collection::vec(op(), 1..120)) {
        let mut bench = Bench::new(FRAME * 6);
        let mut known: HashMap<String, Known> = HashMap::new();
        let mut fetches = VecDeque::new();
        for (turn, op) in ops.into_iter().enumerate() {
            match op {
                Op::Read { id, offset, length, credit } => {
                    let id = format!("r{id}");
                    bench.read(&id, offset, length, credit);
                    let valid = offset + length <= FRAME * 6;
                    if valid && length > 0 && known.len() < CONCURRENT_READS && !known.contains_key(&id) {
                        let credit = credit.unwrap_or(CREDIT_DEFAULT);
                        known.insert(id, Known { next: offset, end: offset + length, credit, last_turn: turn });
                    }
                }
                Op::Credit { id, frames } => {
                    bench.credit(&format!("r{id}"), frames);
                    if let Some(read) = known.get_mut(&format!("r{id}")) {
                        read.credit += frames;
                    }
                }
                Op::Cancel { id } => {
                    bench.cancel(&format!("r{id}"));
                    known.remove(&format!("r{id}"));
                }
                Op::StartFetch => fetches.extend(bench.relay.next_fetch()),
                Op::FinishFetch => {
                    if let Some(wanted) = fetches.pop_front() {
                        bench.relay.fetched(fetch(wanted));
                    }
                }
                Op::Send => {
                    let ready: Vec<_> = bench.relay.reads.iter().filter(|read| read.is_sendable())
                        .map(|read| read.request_id.as_str().to_owned()).collect();
                    match bench.relay.next_outgoing() {
                        Some(Outgoing::Data(frame)) => {
                            let frame = DataFrame::decode(frame).unwrap();
                            let id = frame.request_id.as_str().to_owned();
                            let longest = ready.iter().min_by_key(|id| known[*id].last_turn);
                            prop_assert_eq!(longest, Some(&id), "another read had waited longer");
                            let read = known.get_mut(&id).expect("data of a read that is over");
                            prop_assert!(read.credit > 0, "data without credit");
                            prop_assert_eq!(frame.offset, read.next);
                            let start = frame.offset as usize;
                            prop_assert_eq!(&frame.payload[..], &bench.bytes[start..start + frame.payload.len()]);
                            read.credit -= 1;
                            read.next += frame.payload.len() as u64;
                            read.last_turn = turn;
                            // Whole frames, but for the last.
                            prop_assert!(frame.payload.len() == DATA_PAYLOAD || read.next == read.end);
                            if read.next == read.end {
                                known.remove(&id);
                            }
                        }
                        Some(Outgoing::Reply(_)) => {}
                        None => prop_assert!(ready.is_empty()),
                    }
                }
            }
            prop_assert_eq!(bench.relay.reads.len(), known.len());
        }
    }
}
