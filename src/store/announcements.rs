use std::sync::Arc;

use sqlx::{AnyConnection, Row as _};
use tokio::time::Instant;

use super::{Store, StoreError, manifests, rows, sessions};
use crate::protocol::frames::Progress;
use crate::protocol::{ChatId, Location, Manifest, Principal, SessionId, TaskId};

/// A set to be kept.
#[derive(Debug, Clone)]
pub struct NewAnnouncement {
    /// Who announces it.
    pub agent: Principal,
    /// The relayed turn that produced it, which decides the chat. Absent for a set of no turn: it is in no chat.
    pub session: Option<SessionId>,
    /// The task it answers.
    pub task: Option<TaskId>,
    /// What is announced.
    pub manifest: Arc<Manifest>,
    /// The announcement's own locations, which come after the manifest's.
    pub locations: Option<Vec<Location>>,
    /// Absent for a finished set.
    pub progress: Option<Progress>,
    /// What the agent may have in all.
    pub quota: Quota,
    /// When the answer comes too late: nothing is committed from then on.
    pub deadline: Option<Instant>,
}

/// How much one agent may have announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Sets that are in no chat.
    pub unbound: u64,
    /// Sets in all.
    pub sets: u64,
    /// Bytes of manifests in all.
    pub manifest_bytes: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { unbound: 1000, sets: 10_000, manifest_bytes: 4 << 30 }
    }
}

/// A set that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// Grows with time.
    pub id: i64,
    /// Where it can be read: nowhere while its session is not bound.
    pub chat: Option<ChatId>,
    /// False when it was known and only its progress or locations are new.
    pub new: bool,
}

/// What became of an announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// It is kept.
    Stored(Announced),
    /// The agent has as many of these as it may have.
    QuotaExceeded(&'static str),
    /// The session is another agent's.
    ForeignSession,
}

impl Store {
    /// Keeps an announcement, in one transaction. The same set of the same task announced again by the same agent in
    /// the same chat (or, before it is bound, session) only brings its progress and locations up to date. A new
    /// announcement of a task supersedes that task's unfinished sets in the same place; finished ones stay.
    pub async fn commit_announcement(&self, new: NewAnnouncement) -> Result<Commit, StoreError> {
        let new = Arc::new(new);
        match self.write(commit(self.clone(), new.clone())).await {
            // The manifest was stored, and swept as nobody's, between two statements of ours; or the chat was deleted,
            // and with it the session. Both are settled by looking again.
            Err(StoreError::Failed(error)) if manifests::is_foreign_key(&error) => {
                self.write(commit(self.clone(), new)).await
            }
            outcome => outcome,
        }
    }
}

/// The same set of the same task in the same place.
const FIND: &str = "SELECT id FROM announcements WHERE agent = $1 AND manifest = $2 AND COALESCE(task_id, '') = $3 \
    AND COALESCE('c:' || chat, 's:' || session_id, '') = $4";

/// Unfinished sets of the same task in the same place.
const SUPERSEDE: &str = "DELETE FROM announcements WHERE agent = $1 AND task_id = $2 AND id <> $3 AND done < total \
    AND COALESCE('c:' || chat, 's:' || session_id, '') = $4";

/// What an agent has announced, without what a new announcement of the task would supersede.
const USED: &str = "SELECT count(*), CAST(COALESCE(SUM(manifest_size), 0) AS BIGINT), \
    CAST(COALESCE(SUM(CASE WHEN chat IS NULL THEN 1 ELSE 0 END), 0) AS BIGINT) \
    FROM announcements WHERE agent = $1 AND NOT (COALESCE(task_id, '') = $2 AND $2 <> '' \
    AND COALESCE(done, 0) < COALESCE(total, 0) AND COALESCE('c:' || chat, 's:' || session_id, '') = $3)";

async fn commit(store: Store, new: Arc<NewAnnouncement>) -> Result<Commit, sqlx::Error> {
    let mut tx = store.begin().await?;
    store.0.dialect.lock_agent(&mut tx, &new.agent).await?;
    let chat = match &new.session {
        None => None,
        Some(session) => match sessions::lookup(&mut *tx, session).await? {
            Some(bound) if bound.agent != new.agent => return Ok(Commit::ForeignSession),
            bound => bound.map(|bound| bound.chat),
        },
    };
    // In a chat, waiting with its session, or nowhere: as the statements write it.
    let place = match (&chat, &new.session) {
        (Some(chat), _) => format!("c:{chat}"),
        (None, Some(session)) => format!("s:{session}"),
        (None, None) => String::new(),
    };
    let known = find(&mut tx, &new, &place).await?;
    let id = match known {
        Some(id) => {
            update(&mut tx, id, &new, store.0.clock.unix_millis()).await?;
            id
        }
        None => {
            if let Some(what) = exceeded(&mut tx, &new, &place, chat.is_none()).await? {
                return Ok(Commit::QuotaExceeded(what));
            }
            let id = store.next_id();
            manifests::insert(&mut tx, &new.manifest).await?;
            insert(&mut tx, id, &new, chat.as_ref(), store.0.clock.unix_millis()).await?;
            id
        }
    };
    supersede(&mut tx, id, &new, &place).await?;
    if new.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        // To the caller this is a database that was too slow.
        return Err(sqlx::Error::PoolTimedOut);
    }
    tx.commit().await?;
    Ok(Commit::Stored(Announced { id, chat, new: known.is_none() }))
}

async fn find(conn: &mut AnyConnection, new: &NewAnnouncement, place: &str) -> Result<Option<i64>, sqlx::Error> {
    let found = sqlx::query(FIND)
        .bind(new.agent.as_str())
        .bind(new.manifest.identity.to_hex())
        .bind(new.task.as_ref().map_or("", TaskId::as_str))
        .bind(place)
        .fetch_optional(conn)
        .await?;
    found.map(|row| row.try_get(0)).transpose()
}

async fn update(conn: &mut AnyConnection, id: i64, new: &NewAnnouncement, now: i64) -> Result<(), sqlx::Error> {
    let (done, total) = progress(new)?;
    sqlx::query("UPDATE announcements SET done = $2, total = $3, locations = $4, updated_at = $5 WHERE id = $1")
        .bind(id)
        .bind(done)
        .bind(total)
        .bind(rows::locations_text(new.locations.as_deref())?)
        .bind(now)
        .execute(conn)
        .await
        .map(drop)
}

async fn insert(
    conn: &mut AnyConnection,
    id: i64,
    new: &NewAnnouncement,
    chat: Option<&ChatId>,
    now: i64,
) -> Result<(), sqlx::Error> {
    let (done, total) = progress(new)?;
    sqlx::query(
        "INSERT INTO announcements (id, chat, agent, manifest, manifest_size, session_id, task_id, done, total, \
         locations, created_at, updated_at, expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11, $12)",
    )
    .bind(id)
    .bind(chat.map(ChatId::as_str))
    .bind(new.agent.as_str())
    .bind(new.manifest.identity.to_hex())
    .bind(rows::signed(new.manifest.canonical.len() as u64)?)
    .bind(new.session.as_ref().map(SessionId::as_str))
    .bind(new.task.as_ref().map(TaskId::as_str))
    .bind(done)
    .bind(total)
    .bind(rows::locations_text(new.locations.as_deref())?)
    .bind(now)
    .bind(new.manifest.expires_at)
    .execute(conn)
    .await
    .map(drop)
}

/// Removes the unfinished sets of the same task in the same place.
async fn supersede(conn: &mut AnyConnection, id: i64, new: &NewAnnouncement, place: &str) -> Result<(), sqlx::Error> {
    let Some(task) = &new.task else { return Ok(()) };
    sqlx::query(SUPERSEDE)
        .bind(new.agent.as_str())
        .bind(task.as_str())
        .bind(id)
        .bind(place)
        .execute(conn)
        .await
        .map(drop)
}

/// Which part of its quota the agent would exceed. Sets that this announcement supersedes do not count: they make way
/// in the same transaction.
async fn exceeded(
    conn: &mut AnyConnection,
    new: &NewAnnouncement,
    place: &str,
    unbound: bool,
) -> Result<Option<&'static str>, sqlx::Error> {
    let task = new.task.as_ref().map_or("", TaskId::as_str);
    let used = sqlx::query(USED).bind(new.agent.as_str()).bind(task).bind(place).fetch_one(conn).await?;
    let used = |column: usize| used.try_get::<i64, _>(column).map(i64::unsigned_abs);
    let adds = new.manifest.canonical.len() as u64;
    Ok(if used(0)? >= new.quota.sets {
        Some("sets")
    } else if used(1)?.saturating_add(adds) > new.quota.manifest_bytes {
        Some("bytes of manifests")
    } else if unbound && used(2)? >= new.quota.unbound {
        Some("sets whose session is not bound to a chat")
    } else {
        None
    })
}

fn progress(new: &NewAnnouncement) -> Result<(Option<i64>, Option<i64>), sqlx::Error> {
    let Some(Progress { done, total }) = new.progress else { return Ok((None, None)) };
    Ok((Some(rows::signed(done)?), Some(rows::signed(total)?)))
}
