//! The reads that one connection has in flight, and what is left of those that were cancelled.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;

use super::answer::{Answer, NewRead, ReadEnd};
use super::registry::Kind;
use crate::protocol::data::DataFrame;
use crate::protocol::frames::{BlobEnd, BlobError, BlobErrorCode};
use crate::protocol::limits::DATA_PAYLOAD;
use crate::protocol::{Principal, RequestId};
use crate::read::Violation;

/// Cancelled reads that are remembered. An agent that still answers an older one breaks a rule.
const TOMBSTONES: usize = 256;

/// What the connection's task knows of its reads: a plain map, owned by one task.
#[derive(Debug, Default)]
pub struct Reads {
    running: HashMap<RequestId, Running>,
    /// Reads that their feeds are done with, and what may still be on its way: it is swallowed, and no misbehaviour.
    left: HashMap<RequestId, Left>,
    order: VecDeque<RequestId>,
}

#[derive(Debug)]
struct Running {
    agent: Principal,
    answer: Answer,
}

#[derive(Debug)]
enum Left {
    /// Stopped early: at most so many frames were on their way.
    Cancelled(u32),
    /// Every byte had come: only its `blob.end` was on its way. It keeps the read's slot until then.
    Received(Answer),
}

/// How a read stood when its feed was done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// Bytes were missing: the agent has to be told to stop.
    Early,
    /// Every byte had come.
    Received,
    /// It had ended already.
    Ended,
}

/// What a frame from the agent did.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Bytes for a running read, this many.
    Bytes(usize),
    /// A read ended; how, for metrics.
    Ended(&'static str),
    /// It belonged to a cancelled read.
    Swallowed,
    /// A rule was broken; if it cost a read, the agent has to be told to stop it.
    Broke(Violation, Option<RequestId>),
}

impl Reads {
    /// Takes a read in.
    pub fn insert(&mut self, read: NewRead) {
        self.running.insert(read.frame.request_id, Running { agent: read.agent, answer: read.answer });
    }

    /// A `blob.data` frame came.
    pub fn data(&mut self, frame: DataFrame, now: Instant) -> Outcome {
        let DataFrame { request_id, offset, payload } = frame;
        let Some(read) = self.running.get(&request_id) else {
            return self.swallow(&request_id);
        };
        let len = payload.len();
        match read.answer.data(offset, payload, now) {
            Ok(()) => Outcome::Bytes(len),
            Err(violation) => self.broke(&request_id, violation),
        }
    }

    /// A `blob.end` came.
    pub fn end(&mut self, end: &BlobEnd) -> Outcome {
        let Some(read) = self.running.get(&end.request_id) else {
            return self.bury(&end.request_id, Some(end));
        };
        match read.answer.end(end) {
            Ok(()) => {
                self.finish(&end.request_id, ReadEnd::Complete);
                Outcome::Ended("complete")
            }
            Err(violation) => self.broke(&end.request_id, violation),
        }
    }

    /// A `blob.error` came.
    pub fn error(&mut self, error: &BlobError) -> Outcome {
        if !self.running.contains_key(&error.request_id) {
            return self.bury(&error.request_id, None);
        }
        let code = BlobErrorCode::parse(&error.error.code);
        self.finish(&error.request_id, ReadEnd::Refused(code));
        Outcome::Ended(code.code())
    }

    /// The feed dropped its read.
    pub fn cancel(&mut self, id: &RequestId) -> Dropped {
        let Some(read) = self.running.remove(id) else {
            return Dropped::Ended;
        };
        if read.answer.remaining() == 0 {
            self.remember(id.clone(), Left::Received(read.answer));
            return Dropped::Received;
        }
        self.remember(id.clone(), Left::Cancelled(read.answer.credit()));
        Dropped::Early
    }

    /// Frees the slots of reads whose bytes have all come and whose ends have not.
    pub fn release_received(&self) {
        for left in self.left.values() {
            if let Left::Received(answer) = left {
                answer.release();
            }
        }
    }

    /// Ends every read of one agent, or of all.
    pub fn disconnect(&mut self, agent: Option<&Principal>) -> Vec<RequestId> {
        let gone: Vec<_> = (self.running.iter())
            .filter(|(_, read)| agent.is_none_or(|agent| read.agent == *agent))
            .map(|(id, _)| id.clone())
            .collect();
        for id in &gone {
            let credit = self.running.get(id).map_or(0, |read| read.answer.credit());
            self.finish(id, ReadEnd::Disconnected);
            self.remember(id.clone(), Left::Cancelled(credit));
        }
        gone
    }

    fn broke(&mut self, id: &RequestId, violation: Violation) -> Outcome {
        let credit = self.running.get(id).map_or(0, |read| read.answer.credit());
        self.finish(id, ReadEnd::Broke(violation));
        // Frames that were granted may still be on their way.
        self.remember(id.clone(), Left::Cancelled(credit));
        Outcome::Broke(violation, Some(id.clone()))
    }

    fn finish(&mut self, id: &RequestId, end: ReadEnd) {
        if let Some(read) = self.running.remove(id) {
            read.answer.finish(end);
        }
    }

    fn remember(&mut self, id: RequestId, left: Left) {
        if self.order.len() == TOMBSTONES
            && let Some(oldest) = self.order.pop_front()
        {
            self.left.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.left.insert(id, left);
    }

    /// A data frame of a read that is not running: at most the credit that was outstanding.
    fn swallow(&mut self, id: &RequestId) -> Outcome {
        match self.left.get_mut(id) {
            Some(Left::Cancelled(credit)) if *credit > 0 => {
                *credit -= 1;
                Outcome::Swallowed
            }
            Some(Left::Cancelled(_)) => Outcome::Broke(Violation::NoCredit, None),
            Some(Left::Received(_)) => Outcome::Broke(Violation::BeyondLength, None),
            None => Outcome::Broke(Violation::UnknownRead, None),
        }
    }

    /// The last word on a read that is not running: nothing of it may follow.
    fn bury(&mut self, id: &RequestId, end: Option<&BlobEnd>) -> Outcome {
        match (self.left.insert(id.clone(), Left::Cancelled(0)), end) {
            (Some(Left::Received(answer)), Some(end)) => match answer.end(end) {
                Ok(()) => Outcome::Swallowed,
                Err(violation) => Outcome::Broke(violation, None),
            },
            (Some(_), _) => Outcome::Swallowed,
            (None, _) => {
                self.left.remove(id);
                Outcome::Broke(Violation::UnknownRead, None)
            }
        }
    }
}

/// Payloads below this are copied out of the buffer they came in.
const COPIED_BELOW: usize = DATA_PAYLOAD / 2;

/// Reads a binary message as a `blob.data` frame.
///
/// A payload keeps the whole buffer it came in from being freed. On a data connection that is little more than a full
/// frame; a control connection's may have held a manifest of 16 MiB before, and a frame may carry a single byte. What
/// could pin far more than it counts for is copied.
pub fn decode(message: Bytes, kind: Kind) -> Result<DataFrame, Violation> {
    let mut frame = DataFrame::decode(message).map_err(|_| Violation::MalformedData)?;
    if kind == Kind::Control || frame.payload.len() < COPIED_BELOW {
        frame.payload = Bytes::copy_from_slice(&frame.payload);
    }
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::mailbox::Mailbox;
    use super::super::read::{Read, ReadEvent};
    use super::super::slots::Slots;
    use super::*;
    use crate::protocol::frames::ErrorBody;
    use crate::protocol::limits::CONCURRENT_READS;
    use crate::protocol::{ByteRange, Sha256};

    struct Fixture {
        reads: Reads,
        mailbox: Arc<Mailbox>,
        slots: Arc<Slots>,
    }

    impl Fixture {
        fn new() -> Self {
            Self { reads: Reads::default(), mailbox: Mailbox::new(), slots: Slots::new(None) }
        }

        fn ask(&mut self, id: &str, len: u64, credit: u32) -> Read {
            let read = self.post(id, len, credit);
            let mut mail = self.mail();
            self.reads.insert(mail.reads.pop().unwrap());
            read
        }

        /// A read that the connection has not taken from its mail yet.
        fn post(&self, id: &str, len: u64, credit: u32) -> Read {
            let slot = self.slots.try_take(&["user:a".parse().unwrap()]).unwrap();
            let range = ByteRange { start: 0, end: len };
            Read::ask(
                &self.mailbox,
                slot,
                Principal::agent("a").unwrap(),
                Sha256::of(b""),
                (id.parse().unwrap(), range, credit),
                Instant::now(),
            )
            .unwrap()
        }

        fn mail(&self) -> super::super::mailbox::Mail {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            match self.mailbox.poll(&mut cx) {
                std::task::Poll::Ready(mail) => mail,
                std::task::Poll::Pending => Default::default(),
            }
        }

        fn data(&mut self, id: &str, offset: u64, payload: &'static [u8]) -> Outcome {
            let frame = DataFrame { request_id: id.parse().unwrap(), offset, payload: Bytes::from_static(payload) };
            self.reads.data(frame, Instant::now())
        }
    }

    fn next(read: &mut Read) -> Option<ReadEvent> {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match read.poll_next(&mut cx) {
            std::task::Poll::Ready(event) => Some(event),
            std::task::Poll::Pending => None,
        }
    }

    fn end(id: &str, length: u64) -> BlobEnd {
        BlobEnd { request_id: id.parse().unwrap(), offset: 0, length, bytes: length }
    }

    #[test]
    fn a_read_runs_to_its_end_and_frees_its_slot() {
        let mut f = Fixture::new();
        let mut read = f.ask("r", 4, 4);
        assert_eq!(next(&mut read), None);
        assert_eq!(f.data("r", 0, b"ab"), Outcome::Bytes(2));
        assert_eq!(f.data("r", 2, b"cd"), Outcome::Bytes(2));
        assert_eq!(f.reads.end(&end("r", 4)), Outcome::Ended("complete"));
        assert_eq!(next(&mut read), Some(ReadEvent::Data(Bytes::from_static(b"ab"))));
        assert_eq!(next(&mut read), Some(ReadEvent::Data(Bytes::from_static(b"cd"))));
        assert_eq!(next(&mut read), Some(ReadEvent::Ended(ReadEnd::Complete)));
        drop(read);
        assert!(f.mail().cancels.is_empty(), "a read that is over is not cancelled");
    }

    #[test]
    fn credit_never_goes_ahead_of_its_read() {
        let f = Fixture::new();
        let frame = DATA_PAYLOAD as u64;
        let (first, second) = (f.post("r1", 9 * frame, 2), f.post("r2", 9 * frame, 1));
        second.grant(3, Instant::now());
        first.grant(1, Instant::now());
        second.grant(1, Instant::now());
        let mail = f.mail();
        assert_eq!(mail.reads.iter().map(|read| read.frame.credit).collect::<Vec<_>>(), [Some(3), Some(5)]);
        assert!(mail.credit.is_empty(), "an agent that does not know the read yet would ignore it");
        second.grant(2, Instant::now());
        assert_eq!(f.mail().credit, [("r2".parse().unwrap(), 2)].into(), "what was sent is topped up by a frame");
    }

    #[test]
    fn a_frame_without_credit_costs_the_read_but_not_what_came_before() {
        let mut f = Fixture::new();
        let mut read = f.ask("r", 4, 1);
        assert_eq!(f.data("r", 0, b"a"), Outcome::Bytes(1));
        let outcome = f.data("r", 1, b"b");
        assert_eq!(outcome, Outcome::Broke(Violation::NoCredit, Some("r".parse().unwrap())));
        assert_eq!(next(&mut read), Some(ReadEvent::Data(Bytes::from_static(b"a"))));
        assert_eq!(next(&mut read), Some(ReadEvent::Ended(ReadEnd::Broke(Violation::NoCredit))));
        assert_eq!(f.data("r", 2, b"c"), Outcome::Broke(Violation::NoCredit, None));
    }

    #[test]
    fn a_dropped_read_is_cancelled_and_its_late_frames_are_swallowed_up_to_its_credit() {
        let mut f = Fixture::new();
        drop(f.ask("r", 4, 2));
        let cancels = f.mail().cancels;
        assert_eq!(cancels, ["r".parse().unwrap()]);
        assert_eq!(f.reads.cancel(&cancels[0]), Dropped::Early);
        assert_eq!(f.reads.cancel(&cancels[0]), Dropped::Ended);
        assert_eq!(f.data("r", 0, b"a"), Outcome::Swallowed);
        assert_eq!(f.data("r", 1, b"b"), Outcome::Swallowed);
        assert_eq!(f.data("r", 2, b"c"), Outcome::Broke(Violation::NoCredit, None));
        assert_eq!(f.reads.end(&end("r", 4)), Outcome::Swallowed);
    }

    #[test]
    fn the_end_of_a_read_that_was_received_is_still_checked() {
        for (bytes, expected) in [(2, Outcome::Swallowed), (1, Outcome::Broke(Violation::EndMismatch, None))] {
            let mut f = Fixture::new();
            let read = f.ask("r", 2, 1);
            assert_eq!(f.data("r", 0, b"ab"), Outcome::Bytes(2));
            drop(read);
            assert_eq!(f.reads.cancel(&f.mail().cancels[0]), Dropped::Received);
            assert_eq!(f.data("r", 2, b"c"), Outcome::Broke(Violation::BeyondLength, None));
            assert_eq!(f.reads.end(&BlobEnd { bytes, ..end("r", 2) }), expected);
            assert_eq!(f.reads.end(&end("r", 2)), Outcome::Swallowed);
        }
    }

    #[test]
    fn a_read_keeps_its_slot_until_its_end() {
        for ends in [true, false] {
            let mut f = Fixture::new();
            let held: Vec<_> =
                (1..CONCURRENT_READS).map(|_| f.slots.try_take(&["user:a".parse().unwrap()]).unwrap()).collect();
            let read = f.ask("r", 2, 1);
            f.data("r", 0, b"ab");
            drop(read);
            f.reads.cancel(&f.mail().cancels[0]);
            assert!(f.slots.try_take(&["user:a".parse().unwrap()]).is_none(), "the agent still counts it");
            if ends {
                assert_eq!(f.reads.end(&end("r", 2)), Outcome::Swallowed);
            } else {
                f.reads.release_received();
            }
            assert!(f.slots.try_take(&["user:a".parse().unwrap()]).is_some());
            drop(held);
        }
    }

    #[test]
    fn an_answer_to_nothing_is_a_broken_rule() {
        let mut f = Fixture::new();
        assert_eq!(f.data("x", 0, b"a"), Outcome::Broke(Violation::UnknownRead, None));
        assert_eq!(f.reads.end(&end("x", 1)), Outcome::Broke(Violation::UnknownRead, None));
    }

    #[test]
    fn too_many_reads_lowers_the_slots() {
        let mut f = Fixture::new();
        let mut read = f.ask("r", 4, 2);
        let error = BlobError { request_id: "r".parse().unwrap(), error: ErrorBody::new("too_many_reads", "") };
        assert_eq!(f.reads.error(&error), Outcome::Ended("too_many_reads"));
        let ended = ReadEvent::Ended(ReadEnd::Refused(BlobErrorCode::TooManyReads));
        assert_eq!(next(&mut read), Some(ended));
        let first = f.slots.try_take(&["user:a".parse().unwrap()]);
        assert!(first.is_some() && f.slots.try_take(&["user:a".parse().unwrap()]).is_none());
    }

    #[test]
    fn remembered_cancels_are_bounded() {
        let mut f = Fixture::new();
        for n in 0..TOMBSTONES + 10 {
            let id = format!("r{n}");
            drop(f.ask(&id, 4, 1));
            f.mail();
            assert_eq!(f.reads.cancel(&id.parse().unwrap()), Dropped::Early);
        }
        assert_eq!(f.reads.left.len(), TOMBSTONES);
        assert_eq!(f.data("r0", 0, b"a"), Outcome::Broke(Violation::UnknownRead, None));
    }

    #[test]
    fn a_disconnect_ends_the_reads_of_one_agent() {
        let mut f = Fixture::new();
        let mut read = f.ask("r", 4, 1);
        assert!(f.reads.disconnect(Some(&Principal::agent("other").unwrap())).is_empty());
        assert_eq!(next(&mut read), None);
        assert_eq!(f.reads.disconnect(None).len(), 1);
        assert_eq!(next(&mut read), Some(ReadEvent::Ended(ReadEnd::Disconnected)));
    }

    /// What is copied leaves the buffer it came in free to go.
    #[test]
    fn only_what_little_else_is_pinned_for_shares_its_buffer() {
        for (kind, len, shared) in [
            (Kind::Data, COPIED_BELOW, true),
            (Kind::Data, COPIED_BELOW - 1, false),
            (Kind::Data, 0, false),
            (Kind::Control, 256 * 1024, false),
        ] {
            let payload = Bytes::from(vec![7; len]);
            let message = DataFrame { request_id: "r".parse().unwrap(), offset: 0, payload: payload.clone() }.encode();
            let (held, header) = (message.clone(), message.len() - len);
            let frame = decode(message, kind).unwrap();
            assert_eq!(frame.payload, payload);
            assert_eq!(frame.payload.as_ptr() == held[header..].as_ptr(), shared, "{len} bytes, {}", kind.name());
            drop(frame);
        }
    }
}
