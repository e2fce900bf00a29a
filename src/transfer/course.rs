//! What one reader wants, and what it may be given for it.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::spool::Wish;
use crate::access::Readable;
use crate::content::{Cache, Stored, Voucher, Wanted};
use crate::protocol::ByteRange;
use crate::read::{Coverage, Promise, object_at};

/// A range of a blob on its way to one reader.
#[derive(Debug, Clone)]
pub struct Course {
    /// The blob, and where the caller may have it from.
    pub readable: Arc<Readable>,
    /// Its agents are asked once, and not waited for: the set has expired, or another was waited for already.
    pub impatient: bool,
    promise: Promise,
    /// The agents whose stored bytes the caller may have.
    agents: Arc<[Voucher]>,
}

impl Course {
    /// The course of `range`, on which the caller has already been found to be.
    pub fn new(readable: Readable, range: ByteRange, impatient: bool) -> Self {
        let promise = Promise::new(range, readable.size, readable.chunks.as_deref());
        let mut agents: Vec<Voucher> = Vec::new();
        for source in &readable.sources {
            let agent = Voucher::of(&source.agent);
            if !agents.contains(&agent) {
                agents.push(agent);
            }
        }
        Self { readable: Arc::new(readable), impatient, promise, agents: agents.into() }
    }

    /// How much of the range is checked before it can complete.
    pub fn coverage(&self) -> Coverage {
        self.promise.coverage()
    }

    /// What is still wanted at `position` of a feed that was begun for it.
    pub fn rest(&self, position: u64, end: u64) -> (ByteRange, Wish) {
        let wish = Wish { range: ByteRange { start: position, end }, checked_to: self.promise.checked_to() };
        (self.promise.rest(position), wish)
    }

    /// What is still wanted at `position` of a feed that hashes `whole`, for whomever it was begun; `None` where nothing
    /// of it is good enough.
    pub fn shared(&self, position: u64, end: u64, whole: ByteRange) -> Option<Wish> {
        let here = ByteRange { start: position, end: end.min(whole.end).min(self.promise.whole().end) };
        let good = self.promise.holds(position) && whole.start <= position && here.start < here.end;
        // A ride that ends before the range does ends with a chunk.
        let checked_to = if here.end == end { self.promise.checked_to() } else { here.end };
        good.then_some(Wish { range: here, checked_to })
    }

    /// What of a feed's `range` is hashed.
    pub fn hashed(&self, range: ByteRange) -> ByteRange {
        Promise::new(range, self.readable.size, self.readable.chunks.as_deref()).whole()
    }

    /// Whether a feed that was begun for `other` has these bytes from where this caller may have them, checked as it
    /// would be for this one.
    pub fn shares(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.readable, &other.readable);
        let same_chunks = match (&mine.chunks, &theirs.chunks) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs) || mine == theirs,
            (mine, theirs) => mine.is_none() && theirs.is_none(),
        };
        mine.sha256 == theirs.sha256
            && mine.size == theirs.size
            && self.impatient == other.impatient
            && same_chunks
            && mine.sources == theirs.sources
    }

    /// Looks for the bytes at `position` in the cache, where they may be about to be: another reader's feed may have come
    /// into the middle of them.
    pub fn look_up(&self, cache: &Arc<Cache>, position: u64) -> Option<BoxFuture<'static, Option<Stored>>> {
        let readable = &self.readable;
        let object = object_at(position, (readable.size, readable.sha256), readable.chunks.as_deref())?;
        let (cache, agents) = (Arc::clone(cache), Arc::clone(&self.agents));
        let wanted = Wanted { sha256: object.sha256, length: object.range.len(), agents: &agents };
        let rest = self.promise.rest(position);
        let instead = rest.end.min(object.range.end).saturating_sub(rest.start.max(object.range.start));
        let awaited = cache.awaited(&wanted, instead);
        // What is not held costs nothing but this. It is not written any more before it is held.
        if awaited.is_none() && !cache.holds(&object.sha256) {
            return None;
        }
        let find = async move {
            if let Some(waiting) = awaited {
                waiting.wait().await;
            }
            let wanted = Wanted { sha256: object.sha256, length: object.range.len(), agents: &agents };
            cache.find(wanted, position - object.range.start).await
        };
        Some(find.boxed())
    }
}
