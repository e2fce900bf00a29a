//! One fetch of a range, driven by its feed: it takes no more bytes than it has credit for.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{Locations, Refusal, Wanted};
use crate::access::Remote;
use crate::outbound::{FetchError, Fetched};
use crate::protocol::ByteRange;
use crate::protocol::limits::DATA_PAYLOAD;

const FRAME: u64 = DATA_PAYLOAD as u64;
/// The least that a part counts for, so that a server that sends tiny parts gains no room by it.
const PART_COST: u64 = 4 * 1024;

/// How a fetch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchEnd {
    /// Every byte has come.
    Complete,
    /// The connection broke off, or nothing came in time.
    Broken,
    /// There is nothing to be had at this place, or not now.
    Refused(Refusal),
}

/// A fetch in flight. Dropping it closes its connection.
pub struct Fetching {
    range: ByteRange,
    state: State,
    /// Bytes that may still be taken.
    credit: u64,
    taken: u64,
    /// When it got credit and had none left, until the next bytes.
    granted: Option<Instant>,
    round_trip: Option<Duration>,
}

enum State {
    Asking(BoxFuture<'static, Result<Fetched, Refusal>>),
    Body(Box<Fetched>),
    Over(FetchEnd),
}

impl fmt::Debug for Fetching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetching").field("range", &self.range).field("taken", &self.taken).finish_non_exhaustive()
    }
}

impl Fetching {
    /// Asks for what is `wanted`, with credit for so many frames.
    pub fn start(
        locations: &Arc<Locations>,
        remote: &Arc<Remote>,
        wanted: Wanted,
        credit: u32,
        timeout: Duration,
    ) -> Self {
        let (locations, remote) = (Arc::clone(locations), Arc::clone(remote));
        let asking = async move { locations.ask(&remote, wanted, timeout).await }.boxed();
        Self {
            range: wanted.range,
            state: State::Asking(asking),
            credit: u64::from(credit) * FRAME,
            taken: 0,
            granted: Some(Instant::now()),
            round_trip: None,
        }
    }

    /// What was asked.
    pub fn range(&self) -> ByteRange {
        self.range
    }

    /// The next bytes, or the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, FetchEnd>> {
        loop {
            match &mut self.state {
                State::Asking(asking) => {
                    self.state = match ready!(asking.poll_unpin(cx)) {
                        Ok(fetched) => State::Body(Box::new(fetched)),
                        Err(refusal) => State::Over(FetchEnd::Refused(refusal)),
                    };
                }
                State::Body(_) if self.credit == 0 => return Poll::Pending,
                State::Body(body) => match ready!(body.poll_part(cx)) {
                    Ok(Some(part)) if part.is_empty() => {}
                    Ok(Some(part)) => {
                        self.taken += part.len() as u64;
                        self.credit = self.credit.saturating_sub((part.len() as u64).max(PART_COST));
                        self.round_trip = self.granted.take().map(|at| at.elapsed()).or(self.round_trip);
                        return Poll::Ready(Ok(part));
                    }
                    Ok(None) if self.taken == self.range.len() => self.state = State::Over(FetchEnd::Complete),
                    Ok(None) | Err(FetchError::Broken | FetchError::TimedOut) => {
                        self.state = State::Over(FetchEnd::Broken);
                    }
                    Err(error) => self.state = State::Over(FetchEnd::Refused(error.into())),
                },
                State::Over(end) => return Poll::Ready(Err(end.clone())),
            }
        }
    }

    /// Lets it take more.
    pub fn grant(&mut self, frames: u32) {
        if self.credit == 0 {
            self.granted.get_or_insert_with(Instant::now);
        }
        self.credit += u64::from(frames) * FRAME;
    }

    /// Frames' worth of bytes that it may still take.
    pub fn credit(&self) -> u32 {
        match self.state {
            State::Over(_) => 0,
            _ => u32::try_from(self.credit.div_ceil(FRAME)).unwrap_or(u32::MAX),
        }
    }

    /// How much more credit the rest needs.
    pub fn credit_needed(&self) -> u32 {
        match self.state {
            State::Over(_) => 0,
            _ => {
                let rest = (self.range.len() - self.taken.min(self.range.len())).saturating_sub(self.credit);
                u32::try_from(rest.div_ceil(FRAME)).unwrap_or(u32::MAX)
            }
        }
    }

    /// The latest time from getting credit to the first bytes that used it.
    pub fn take_round_trip(&mut self) -> Option<Duration> {
        self.round_trip.take()
    }
}
