//! Artifact sets: announced by agents, listed for readers.
//!
//! Owns the decision about an announcement (which agent, which chat, whether its manifest is what it says, whether the
//! agent may have another set) and the shape of a chat's list of sets (specification section 4). It must not know
//! sockets: whoever holds one hands the text in, and sends the refusal back.

mod announce;
mod codes;
mod files;
mod frame;
mod keep;
mod lanes;
mod list;
mod places;
mod reading;
mod tell;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::Readable;
use crate::agents::OpenSession;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::protocol::frames::ErrorBody;
use crate::protocol::{ChatId, Principal, SessionId, Sha256, TaskId};
use crate::store::{Quota, Store};
use crate::transfer::TransferError;
use lanes::Lanes;
use places::Places;

pub use codes::AnnounceCode;
pub use files::{VersionItem, VersionList};
pub use list::{EntryItem, EntryList, SetItem, SetList};
pub use reading::Reading;

/// Who holds the connection that an announcement came in on.
#[derive(Debug, Clone)]
pub struct Announcer {
    /// The control sessions open on it. Several agents may share a connection.
    pub sessions: Vec<OpenSession>,
    /// When the announcement came: how long it waited for its turn counts as well.
    pub received: Instant,
}

/// A set that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Its announcement; none where a later one has taken its place already.
    pub id: Option<i64>,
    /// Who announced it.
    pub agent: Principal,
    /// Where it can be read: nowhere while its session is not bound.
    pub chat: Option<ChatId>,
    /// The manifest's identity.
    pub sha256: Sha256,
    /// The task it answers.
    pub task: Option<TaskId>,
    /// False when only its progress or locations changed.
    pub new: bool,
}

/// What became of a frame.
#[derive(Debug)]
pub enum Decision {
    /// The set is kept.
    Accepted(Accepted),
    /// Its manifest, or one nested in it, has to be read first: nothing is kept yet.
    Read(Box<Reading>),
    /// It was no announcement.
    OtherFrame,
}

/// An announcement that is not kept: what `artifact.error` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The announcement's own, where it had one.
    pub event_id: Option<String>,
    /// What the announcement named, where that could be read.
    pub sha256: String,
    /// Why.
    pub error: ErrorBody,
}

/// How announcements are bounded.
#[derive(Debug, Clone, Copy)]
pub struct SetLimits {
    /// What one agent may have.
    pub quota: Quota,
    /// Bytes of announcements that are worked on at once, over all connections.
    pub budget_bytes: u32,
    /// How long after it came an announcement is decided. The SDK takes silence for acceptance after 2 s.
    pub deadline: Duration,
    /// The same for one whose manifests have to be read. Long enough for 16 MiB over a slow line and a reconnect.
    pub reading: Duration,
    /// How many announcements are read at once. Each may take 32 MiB and what parsing adds.
    pub readings: usize,
    /// How long one of these that brings nothing may keep others waiting.
    pub patience: Duration,
}

impl Default for SetLimits {
    fn default() -> Self {
        Self {
            quota: Quota::default(),
            budget_bytes: 64 << 20,
            deadline: Duration::from_millis(1700),
            reading: Duration::from_secs(120),
            readings: 8,
            patience: Duration::from_secs(5),
        }
    }
}

/// Whether a control session is open on any connection.
pub type IsOpen = Arc<dyn Fn(&SessionId) -> bool + Send + Sync>;

/// Whether an agent is connected.
pub type IsOnline = Arc<dyn Fn(&Principal) -> bool + Send + Sync>;

/// Reads all of a blob for an agent, verified; the size has been bounded. Bytes are added to the count as they come.
pub type Fetch =
    Arc<dyn Fn(Principal, Readable, Arc<AtomicU64>) -> BoxFuture<'static, Result<Bytes, TransferError>> + Send + Sync>;

/// The sets of every chat. Clones share them.
#[derive(Clone)]
pub struct Sets {
    store: Store,
    metrics: Arc<Metrics>,
    limits: SetLimits,
    is_open: IsOpen,
    fetch: Fetch,
    events: Events,
    is_online: IsOnline,
    draining: CancellationToken,
    lanes: Lanes,
    places: Places,
    /// In KiB, for a semaphore counts to 2^32 - 1 at a time.
    budget: Arc<Semaphore>,
}

impl fmt::Debug for Sets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sets").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Sets {
    /// Sets kept in `store`, their manifests read by `fetch` where they are not inlined. Their chats are told through
    /// `events`. Once `draining` is cancelled every announcement is refused as `unavailable`.
    pub fn new(
        store: Store,
        metrics: Arc<Metrics>,
        limits: SetLimits,
        is_open: IsOpen,
        fetch: Fetch,
        (events, is_online): (Events, IsOnline),
        draining: CancellationToken,
    ) -> Self {
        // Every series of the outcome exists from the start.
        for outcome in AnnounceCode::ALL.iter().map(|code| code.code()).chain(["accepted"]) {
            let _ = metrics.announcements.with_label_values(&[outcome]);
        }
        let budget = Arc::new(Semaphore::new(kib(limits.budget_bytes as usize) as usize));
        let places = Places::new(limits.readings, limits.patience);
        Self {
            store,
            metrics,
            limits,
            is_open,
            fetch,
            events,
            is_online,
            draining,
            lanes: Lanes::default(),
            places,
            budget,
        }
    }
}

/// Bytes in KiB, rounded up.
fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}
