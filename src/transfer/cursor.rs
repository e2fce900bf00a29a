//! One reader's place in a blob: on a feed, in the cache, or between them.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::budget::Admission;
use super::course::Course;
use super::live::{Live, State, TransferId};
use super::pacing::Pacing;
use super::spool::Given;
use super::whereabouts::Whereabouts;
use super::{TransferError, Transfers};
use crate::access::KeptManifest;
use crate::content::Stored;
use crate::protocol::ByteRange;
use crate::protocol::limits::DATA_PAYLOAD;
use crate::read::Coverage;

/// The bytes of one reader's range, as they may be released. Dropping it ends the transfer: the last cursor's drop
/// cancels the read on the agent at once.
pub struct Cursor {
    transfers: Arc<Transfers>,
    live: Arc<Live>,
    whereabouts: Arc<Whereabouts>,
    _admission: Admission,
    wanted: Wanted,
    from: From,
    position: u64,
    /// What it may have at most, if there is a limit.
    pacing: Option<Box<Pacing>>,
    /// A piece that came before anybody asked for it.
    first: Option<Bytes>,
}

/// What a cursor reads.
pub(super) enum Wanted {
    /// A blob.
    Blob(Course),
    /// A manifest, which the gateway has. Its hash was compared when it was stored.
    Manifest(KeptManifest),
}

/// Where the next bytes come from.
enum From {
    /// Not known yet.
    Nowhere,
    /// It is looked for in the cache.
    Looking(BoxFuture<'static, Option<Stored>>),
    /// The cache. A reader that has stopped holds none of its bytes.
    Cache(Stored),
    /// The cache, whose disk is waited for.
    Disk(BoxFuture<'static, io::Result<(Stored, Bytes)>>),
    /// A feed.
    Feed,
    /// The store.
    Store(BoxFuture<'static, Result<Bytes, TransferError>>),
}

impl Cursor {
    pub(super) fn new(
        transfers: Arc<Transfers>,
        (live, whereabouts, admission): (Arc<Live>, Arc<Whereabouts>, Admission),
        wanted: Wanted,
        pacing: Option<Box<Pacing>>,
    ) -> Self {
        let position = live.range.start;
        Self {
            transfers,
            live,
            whereabouts,
            _admission: admission,
            wanted,
            from: From::Nowhere,
            position,
            pacing,
            first: None,
        }
    }

    /// Waits for the first byte that may be released.
    pub(super) async fn begin(&mut self) -> Result<(), TransferError> {
        let first = std::future::poll_fn(|cx| {
            self.whereabouts.register(cx);
            self.live.polled();
            self.whereabouts.failed().map_or_else(|| self.poll_paced(cx), |error| Poll::Ready(Some(Err(error))))
        });
        self.first = first.await.transpose()?;
        Ok(())
    }

    /// Which transfer this is.
    pub fn id(&self) -> TransferId {
        self.live.id
    }

    /// The transfer as others see it.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// How it would end if it ended now.
    pub fn outcome(&self) -> &'static str {
        // A connection that was given up for its reader was blocked a little before, or a little after, it took its last
        // piece from here.
        let stalled = self.transfers.limits.stall_timeout / 8 * 7;
        let ignored = || self.live.ignored_for(Instant::now()).max(self.live.ignored_before()) >= stalled;
        match self.whereabouts.failed() {
            Some(error) => error.code(),
            None if self.remaining() == 0 => "complete",
            None if self.transfers.cut.is_cancelled() => TransferError::SHUTDOWN,
            None if ignored() => TransferError::ReaderStalled.code(),
            None => TransferError::READER_LEFT,
        }
    }

    /// How much of the range is checked before it can complete.
    pub fn coverage(&self) -> Coverage {
        match &self.wanted {
            Wanted::Blob(course) => course.coverage(),
            Wanted::Manifest(_) => Coverage::Full,
        }
    }

    /// Bytes still to come.
    pub fn remaining(&self) -> u64 {
        self.live.range.len() - self.live.sent()
    }

    /// It cannot be.
    pub(super) fn fail(&self, error: TransferError) -> TransferError {
        self.whereabouts.end(error);
        error
    }

    /// The next bytes; an error after some means that the response must be cut.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TransferError>>> {
        self.whereabouts.register(cx);
        self.live.polled();
        let next = match (self.whereabouts.failed(), self.first.take()) {
            (Some(error), _) => Some(Err(error)),
            (None, Some(first)) => Some(Ok(first)),
            (None, None) => {
                if !matches!(self.from, From::Feed) {
                    self.live.set_state(State::Reading);
                }
                ready!(self.poll_paced(cx))
            }
        };
        if let Some(Ok(piece)) = &next {
            self.live.given(piece.len() as u64);
            if !matches!(self.from, From::Feed) {
                // A feed says so itself.
                self.live.set_state(State::WaitingForReader);
            }
            self.transfers.metrics.bytes_sent.inc_by(piece.len() as u64);
        }
        Poll::Ready(next)
    }

    /// The next bytes, when no rate holds them back.
    fn poll_paced(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TransferError>>> {
        loop {
            if let Some(pacing) = &mut self.pacing
                && let Some(slice) = ready!(pacing.poll(cx, &self.live))
            {
                return Poll::Ready(Some(Ok(slice)));
            }
            let next = ready!(self.poll_piece(cx));
            match (next, &mut self.pacing) {
                (Some(Ok(piece)), Some(pacing)) => pacing.put(piece),
                (next, _) => return Poll::Ready(next),
            }
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TransferError>>> {
        loop {
            if self.position == self.live.range.end {
                return Poll::Ready(None);
            }
            match &mut self.from {
                From::Nowhere => self.look(),
                From::Looking(looking) => match ready!(looking.poll_unpin(cx)) {
                    Some(stored) => self.from = From::Cache(stored),
                    None => self.ride(),
                },
                From::Cache(_) => {
                    if let Some(bytes) = self.read() {
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                }
                From::Disk(reading) => match ready!(reading.poll_unpin(cx)) {
                    Ok((stored, bytes)) => {
                        self.position += bytes.len() as u64;
                        self.from = From::Cache(stored);
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                    Err(error) => self.leave_cache(&error),
                },
                From::Feed => match ready!(self.whereabouts.poll_next(cx)) {
                    Given::Piece(bytes) => {
                        self.position += bytes.len() as u64;
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                    Given::Elsewhere => {
                        self.whereabouts.take(None);
                        self.from = From::Nowhere;
                    }
                    Given::Failed(error) => {
                        self.whereabouts.end(error);
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                From::Store(reading) => {
                    let read = ready!(reading.poll_unpin(cx));
                    self.from = From::Nowhere;
                    match &read {
                        Ok(bytes) => self.position += bytes.len() as u64,
                        Err(error) => self.whereabouts.end(*error),
                    }
                    return Poll::Ready(Some(read));
                }
            }
        }
    }

    /// Rides on a feed that is there already, or looks into the cache; or into the store for a manifest.
    fn look(&mut self) {
        let course = match &self.wanted {
            Wanted::Blob(course) => course,
            Wanted::Manifest(manifest) => {
                let rest = ByteRange { start: self.position, end: self.live.range.end };
                self.from = From::Store(self.transfers.clone().kept_piece(manifest.clone(), rest).boxed());
                return;
            }
        };
        if let Some(seat) = self.transfers.feeds.sit(course, &self.live, self.position) {
            self.whereabouts.take(Some(seat));
            self.from = From::Feed;
            return;
        }
        match self.transfers.cache.as_ref().and_then(|cache| course.look_up(cache, self.position)) {
            Some(looking) => self.from = From::Looking(looking),
            None => self.ride(),
        }
    }

    /// The next bytes of the cache's object, as far as it and the range go, where they are in memory. Otherwise what is to be
    /// done instead has begun.
    fn read(&mut self) -> Option<Bytes> {
        let From::Cache(mut stored) = std::mem::replace(&mut self.from, From::Nowhere) else { return None };
        let left = stored.left().min(self.live.range.end - self.position);
        let most = usize::try_from(left).map_or(DATA_PAYLOAD, |left| left.min(DATA_PAYLOAD));
        if most == 0 {
            return None;
        }
        match stored.read_now(most) {
            Some(Ok(bytes)) => {
                self.position += bytes.len() as u64;
                self.from = From::Cache(stored);
                return Some(bytes);
            }
            Some(Err(error)) => self.leave_cache(&error),
            None => self.from = From::Disk(stored.read(most).boxed()),
        }
        None
    }

    fn leave_cache(&mut self, error: &io::Error) {
        tracing::warn!(transfer = %self.live.id, %error, "the cache failed: asking the agent");
        self.ride();
    }

    /// Rides on a feed: one that is there, or a new one.
    fn ride(&mut self) {
        let Wanted::Blob(course) = &self.wanted else { return };
        let seat = self.transfers.feeds.sit_or_begin(&self.transfers, course, &self.live, self.position);
        self.whereabouts.take(Some(seat));
        self.from = From::Feed;
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        let outcome = self.outcome();
        self.whereabouts.take(None);
        self.transfers.end(&self.live, outcome);
    }
}
