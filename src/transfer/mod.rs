//! From a range that a reader may read to its bytes: feeds that own the upstream side, and cursors that are one
//! reader each.
//!
//! Nothing here knows HTTP, nor whether the caller may read: a [`Readable`] says so. The first byte that may be
//! released decides whether a failure still has a status or cuts the response.

mod beside;
mod budget;
mod cached;
mod course;
mod cursor;
mod doubts;
mod error;
mod feed;
mod feeds;
mod kept;
mod live;
pub mod location;
mod mismatch;
mod pacing;
mod source;
mod spool;
mod tell;
mod watch;
mod whereabouts;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dashmap::DashMap;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use cursor::Cursor;
use cursor::Wanted;
pub use error::{Remedy, TransferError, remedy};
pub use live::{Live, State, TransferId};

use crate::access::{Access, Readable};
use crate::agents::Agents;
use crate::clock::Clock;
use crate::content::Cache;
use crate::events::{Events, Step};
use crate::metrics::Metrics;
use crate::protocol::limits::CREDIT_DEFAULT;
use crate::protocol::{ByteRange, Chunks, Principal, RequestId, Sha256};
use crate::store::Place;
use beside::Beside;
use budget::{Admission, Budget};
use course::Course;
use doubts::Doubts;
use feeds::Feeds;
use location::Locations;
use mismatch::Mismatches;
use pacing::{Pacing, SharedRate};
use whereabouts::Whereabouts;

/// How long and how much a transfer may.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long a transfer that has begun waits for its agent.
    pub resume_window: Duration,
    /// How long a transfer that has not begun waits for its agent.
    pub agent_wait: Duration,
    /// After so long without a byte a read that has credit is asked again.
    pub read_timeout: Duration,
    /// A reader that takes nothing of what is there for it for so long loses its transfer.
    pub stall_timeout: Duration,
    /// Bytes of credit out over all transfers.
    pub memory_budget: u64,
    /// How many transfers may run at once.
    pub max_transfers: usize,
    /// The highest rate of one transfer, in bytes a second.
    pub transfer_rate: Option<u64>,
    /// The highest rate of all transfers of one reader together, in bytes a second.
    pub reader_rate: Option<u64>,
}

/// What one reader has.
#[derive(Debug, Default)]
struct Reader {
    /// How many run.
    running: usize,
    /// What all of them share.
    rate: Option<SharedRate>,
}

/// A transfer, and the ways to end it from outside.
#[derive(Clone)]
struct Running {
    live: Arc<Live>,
    whereabouts: Arc<Whereabouts>,
    cut: Option<CancellationToken>,
    /// The chats that allow it.
    places: Arc<[Place]>,
    /// What vouches for each chunk, where something does.
    chunks: Option<Arc<Chunks>>,
}

impl Reader {
    /// Whether nothing is lost by forgetting it.
    fn is_idle(&self, now: tokio::time::Instant) -> bool {
        // One that is about to begin has its rate already.
        let is_unused = |rate: &SharedRate| Arc::strong_count(rate) == 1 && pacing::is_full(rate, now);
        self.running == 0 && self.rate.as_ref().is_none_or(is_unused)
    }
}

impl Running {
    /// Ends it at once: the read on the agent, and the response where it is.
    fn end(&self, error: TransferError) {
        self.whereabouts.end(error);
        if let Some(cut) = &self.cut {
            cut.cancel();
        }
    }
}

/// From so many transfers on, one that begins gets a smaller window.
const MANY: usize = 4;

/// The transfers of this process.
pub struct Transfers {
    agents: Arc<Agents>,
    locations: Arc<Locations>,
    access: Access,
    limits: Limits,
    budget: Arc<Budget>,
    cache: Option<Arc<Cache>>,
    feeds: Feeds,
    beside: Beside,
    mismatches: Mismatches,
    doubts: Doubts,
    running: DashMap<TransferId, Running>,
    /// Those that have transfers running, or whose rate is not theirs again in full.
    readers: DashMap<Principal, Reader>,
    next_transfer: AtomicU64,
    next_request: AtomicU64,
    request_prefix: String,
    /// A transfer began by an answer that is no longer the newest.
    overtaken: Notify,
    tracker: TaskTracker,
    /// Cancelled when the gateway's end cuts what still runs.
    cut: CancellationToken,
    metrics: Arc<Metrics>,
    events: Events,
    clock: Clock,
}

impl Transfers {
    /// No transfer runs. Feeds run on `tracker`, and leave what they verify in the cache; `cut` is cancelled when the
    /// gateway's end cuts what still runs; what transfers do is told through `events`.
    pub fn new(
        agents: Arc<Agents>,
        access: Access,
        (locations, cache): (Arc<Locations>, Option<Arc<Cache>>),
        limits: Limits,
        (tracker, cut, events): (TaskTracker, CancellationToken, Events),
    ) -> Arc<Self> {
        for outcome in TransferError::OUTCOMES {
            let _ = agents.metrics.transfers_ended.with_label_values(&[outcome]);
        }
        for limit in ["transfer", "reader", "agent"] {
            let _ = agents.metrics.rate_waits.with_label_values(&[limit]);
        }
        for reason in feed::RESUMES {
            let _ = agents.metrics.resumes.with_label_values(&[reason]);
        }
        Arc::new(Self {
            budget: Budget::new(limits.memory_budget, limits.max_transfers),
            cache,
            feeds: Feeds::default(),
            beside: Beside::default(),
            locations,
            limits,
            access,
            mismatches: Mismatches::default(),
            doubts: Doubts::default(),
            running: DashMap::new(),
            readers: DashMap::new(),
            next_transfer: AtomicU64::new(1),
            next_request: AtomicU64::new(1),
            request_prefix: format!("{:08x}", rand::random::<u32>()),
            overtaken: Notify::new(),
            tracker,
            cut,
            events,
            metrics: agents.metrics.clone(),
            clock: agents.clock.clone(),
            agents,
        })
    }

    /// Begins a transfer, and answers with the first byte that may be released: what fails earlier has a status.
    /// `cut` ends a response whose cursor may not be asked for a next byte for as long as its reader takes none; `waits`:
    /// for agents that cannot be asked at once.
    pub async fn open(
        self: &Arc<Self>,
        reader: Principal,
        (readable, waits): (Readable, bool),
        range: ByteRange,
        cut: Option<CancellationToken>,
    ) -> Result<Cursor, TransferError> {
        let pacing = self.pacing(&reader);
        self.open_at(reader, (readable, waits), range, (cut, pacing)).await
    }

    /// The same at any pace.
    async fn open_at(
        self: &Arc<Self>,
        reader: Principal,
        (readable, waits): (Readable, bool),
        range: ByteRange,
        (cut, pacing): (Option<CancellationToken>, Option<Box<Pacing>>),
    ) -> Result<Cursor, TransferError> {
        let begun = tokio::time::Instant::now();
        let allowed = (readable.places.clone(), readable.as_of, readable.chunks.clone());
        let agent = readable.sources.first().map(|source| source.agent.clone()).ok_or(TransferError::BlobGone)?;
        let wanted = (readable.sha256, readable.size, range);
        let lies = range.is_empty() && readable.size == 0 && readable.sha256 != Sha256::of(b"");
        let expires_at = readable.expires_at;
        let course = |now| Course::new(readable, range, !waits || expires_at.is_some_and(|at| at <= now));
        let mut cursor =
            self.enter((reader, agent), wanted, allowed, (cut, pacing), |now| Wanted::Blob(course(now)))?;
        let expired = expires_at.is_some_and(|at| at <= cursor.live().since);
        if lies {
            return Err(cursor.fail(TransferError::HashMismatch));
        }
        if let Err(error) = cursor.begin().await {
            return Err(if expired { error.of_expired() } else { error });
        }
        if !range.is_empty() {
            self.metrics.first_byte_seconds.observe(begun.elapsed().as_secs_f64());
        }
        Ok(cursor)
    }

    /// Admits a transfer, which is running from here on. The cursor's drop ends it, whichever way it goes.
    fn enter(
        self: &Arc<Self>,
        (reader, agent): (Principal, Principal),
        blob: (Sha256, u64, ByteRange),
        (places, as_of, chunks): (Arc<[Place]>, u64, Option<Arc<Chunks>>),
        (cut, pacing): (Option<CancellationToken>, Option<Box<Pacing>>),
        wanted: impl FnOnce(i64) -> Wanted,
    ) -> Result<Cursor, TransferError> {
        let admission = self.admit(&reader).inspect_err(|error| self.count_end(error.code()))?;
        let id = TransferId(self.next_transfer.fetch_add(1, Ordering::Relaxed));
        let now = self.clock.unix_millis();
        let live = Arc::new(Live::new(id, (reader, agent), blob, now));
        let whereabouts = Arc::<Whereabouts>::default();
        let running = Running { live: live.clone(), whereabouts: whereabouts.clone(), cut, places, chunks };
        self.running.insert(id, running.clone());
        self.tell(&running, Step::Begin, None);
        if self.access.has_moved_on(as_of) {
            // What was written meanwhile may have looked for this transfer before it was here.
            self.overtaken.notify_one();
        }
        self.metrics.transfers_started.inc();
        self.metrics.transfers_running.inc();
        Ok(Cursor::new(self.clone(), (live, whereabouts, admission), wanted(now), pacing))
    }

    /// What one more transfer of a reader may have at most.
    pub(super) fn pacing(&self, reader: &Principal) -> Option<Box<Pacing>> {
        let mut rates = Vec::new();
        let held = |limit| self.metrics.rate_waits.with_label_values(&[limit]);
        if let Some(rate) = self.limits.transfer_rate {
            rates.push((pacing::shared(rate), held("transfer")));
        }
        if let Some(rate) = self.limits.reader_rate {
            let mut reader = self.readers.entry(reader.clone()).or_default();
            rates.push((reader.rate.get_or_insert_with(|| pacing::shared(rate)).clone(), held("reader")));
        }
        Pacing::new(rates)
    }

    /// All of a blob, in memory. The caller bounds its size. Bytes are added to `brought` as they come.
    pub async fn fetch(
        self: &Arc<Self>,
        reader: Principal,
        readable: Readable,
        brought: &AtomicU64,
    ) -> Result<Bytes, TransferError> {
        let range = ByteRange::whole(readable.size);
        // What the gateway reads for itself has deadlines of its own.
        let mut cursor = self.open_at(reader, (readable, true), range, (None, None)).await?;
        let mut bytes = BytesMut::with_capacity(usize::try_from(range.len()).unwrap_or(0));
        while let Some(piece) = std::future::poll_fn(|cx| cursor.poll_next(cx)).await {
            let piece = piece?;
            brought.fetch_add(piece.len() as u64, Ordering::Relaxed);
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }

    /// Whether a range from `start` on would continue bytes of one of these agents that may be wrong in `reader`'s hands:
    /// it is then answered whole.
    pub fn is_spoilt(&self, reader: &Principal, agents: &[Principal], sha256: Sha256, start: u64) -> bool {
        agents.iter().any(|agent| self.mismatches.spoil(reader, agent, sha256, start))
    }

    /// Lets another process have the cache, once no transfer runs any more.
    pub fn close(&self) {
        if let Some(cache) = &self.cache {
            cache.close();
        }
    }

    /// The transfers that run, oldest first.
    pub fn running(&self) -> Vec<Arc<Live>> {
        let mut running: Vec<_> = self.running.iter().map(|entry| entry.live.clone()).collect();
        running.sort_by_key(|live| live.id);
        running
    }

    /// How many may run at once.
    pub fn limit(&self) -> usize {
        self.budget.limit()
    }

    /// Ends a transfer; its response is cut. Whether there was one.
    pub fn cancel(&self, id: TransferId) -> bool {
        let running = self.running.get(&id).map(|running| running.value().clone());
        running.inspect(|running| running.end(TransferError::Cancelled)).is_some()
    }

    /// Admits a transfer: one reader gets about its share of them at most (two that come at once may both pass).
    fn admit(&self, reader: &Principal) -> Result<Admission, TransferError> {
        let share = self.budget.share();
        if self.readers.get(reader).is_some_and(|reader| reader.running >= share) {
            return Err(TransferError::TooManyTransfers { limit: share });
        }
        let admitted = self.budget.admit()?;
        self.readers.entry(reader.clone()).or_default().running += 1;
        Ok(admitted)
    }

    /// The window of a transfer whose reader's pace is not known yet: the least when many run, most of whose readers are
    /// likely to be slow.
    fn first_window(&self) -> u32 {
        if self.are_many() { 1 } else { CREDIT_DEFAULT }
    }

    /// Whether so many run that what each of them holds adds up.
    fn are_many(&self) -> bool {
        self.running.len() > MANY
    }

    fn end(&self, live: &Live, outcome: &'static str) {
        if let Some((_, running)) = self.running.remove(&live.id) {
            self.tell(&running, Step::End, Some(outcome));
        }
        let now = tokio::time::Instant::now();
        self.readers.remove_if_mut(&live.reader, |_, reader| {
            reader.running = reader.running.saturating_sub(1);
            reader.is_idle(now)
        });
        self.metrics.transfers_running.dec();
        self.count_end(outcome);
        tracing::info!(transfer = live.id.0, reader = %live.reader, sha256 = %live.sha256, outcome,
            sent_bytes = live.sent(), size_bytes = live.range.len(),
            duration_ms = self.clock.unix_millis() - live.since, "a transfer ended");
    }

    fn count_end(&self, outcome: &str) {
        self.metrics.transfers_ended.with_label_values(&[outcome]).inc();
    }

    /// A request id that no other read of any gateway process has had lately.
    fn request_id(&self) -> RequestId {
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number:x}", self.request_prefix);
        // 8 + 1 + at most 16 characters are within the 64 bytes of a request id.
        #[expect(clippy::expect_used, reason = "the text above is always valid")]
        id.parse().expect("a short id is valid")
    }
}
