use std::sync::Arc;

use sqlx::{Any, AnyConnection, AssertSqlSafe, Row as _, Transaction};
use tokio::time::Instant;

use super::entries::Prepared;
use super::hashes::{self, InChat};
use super::quota::{self, Exceeded, Here, Quota, Weight};
use super::ranks::{self, Successor};
use super::versions::{self, Set};
use super::{LARGE_ROWS, Store, StoreError, manifests, rows, sessions};
use crate::protocol::frames::Progress;
use crate::protocol::{ChatId, Location, Principal, SessionId, Sha256, TaskId, Tree};

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
    pub set: NewSet,
    /// The announcement's own locations, which come after the manifest's.
    pub locations: Option<Vec<Location>>,
    /// Absent for a finished set.
    pub progress: Option<Progress>,
    /// What may be announced in all.
    pub quota: Quota,
    /// When the answer comes too late: nothing is committed from then on.
    pub deadline: Option<Instant>,
    /// When the announcement came, for one that is kept much later: see [`Store::order`].
    pub order: Option<Order>,
}

/// What is announced.
#[derive(Debug, Clone)]
pub enum NewSet {
    /// A manifest with everything that is nested in it, all of which came from the agent.
    Tree(Arc<Tree>),
    /// A manifest that the agent has announced before and that is still kept, and how many entries it is thought to have.
    Known(Sha256, u64),
}

/// A place in the order of announcements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order(i64);

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
    /// A later announcement of the same task took its place before it could be kept.
    Overtaken,
    /// There may be no more of these.
    QuotaExceeded(Exceeded),
    /// The session is another agent's.
    ForeignSession,
    /// The agent has not announced this manifest before, or it is kept no longer.
    NotHeld,
}

impl Store {
    /// Takes the place in the order of announcements that one committed now would get. An announcement that is
    /// committed with it later stands, in lists and between the states of its task, where it came in.
    pub fn order(&self) -> Order {
        Order(self.next_id())
    }

    /// Keeps an announcement, in one transaction. The same set of the same task announced again by the same agent in
    /// the same chat (or, before it is bound, session) only brings its progress and locations up to date. A new
    /// announcement of a task supersedes that task's unfinished sets in the same place; finished ones stay. The files of
    /// a finished set get their versions in its chat.
    pub async fn commit_announcement(&self, new: NewAnnouncement) -> Result<Commit, StoreError> {
        let new = Arc::new(new);
        match self.write_if(commit(self.clone(), new.clone()), is_stored).await {
            // The manifest was stored, and swept as nobody's, between two statements of ours; or the chat was deleted,
            // and with it the session. Both are settled by looking again.
            Err(StoreError::Failed(error)) if manifests::is_foreign_key(&error) => {
                self.write_if(commit(self.clone(), new), is_stored).await
            }
            outcome => outcome,
        }
    }
}

/// One that is refused changes nothing.
fn is_stored(commit: &Commit) -> bool {
    matches!(commit, Commit::Stored(_))
}

/// The same set of the same task in the same place.
pub(super) const FIND: &str = "SELECT id, versioned FROM announcements WHERE agent = $1 AND manifest = $2 \
    AND COALESCE(task_id, '') = $3 AND COALESCE('c:' || chat, 's:' || session_id, '') = $4";

/// Earlier unfinished sets of the same task in the same place.
pub(super) const SUPERSEDE: &str = "DELETE FROM announcements WHERE agent = $1 AND task_id = $2 AND id < $3 \
    AND done < total AND versioned = 0 AND COALESCE('c:' || chat, 's:' || session_id, '') = $4";

/// A later set of the same task in the same place.
pub(super) const LATER: &str = "SELECT 1 FROM announcements WHERE agent = $1 AND task_id = $2 AND id > $3 \
    AND COALESCE('c:' || chat, 's:' || session_id, '') = $4 LIMIT 1";

/// A manifest that the agent has announced before.
pub(super) const KNOWN: &str = "SELECT m.size, m.expires_at, m.entry_count, m.total_size, a.manifest_size \
    FROM announcements a JOIN manifests m ON m.sha256 = a.manifest WHERE a.manifest = $1 AND a.agent = $2 LIMIT 1";

async fn commit(store: Store, new: Arc<NewAnnouncement>) -> Result<Commit, sqlx::Error> {
    let (tx, outcome) = match new.deadline {
        // To the caller, one that is missed is a database that was too slow. Dropped, the transaction is rolled back.
        Some(deadline) => {
            let work = tokio::time::timeout_at(deadline, carry_out(&store, &new)).await;
            work.map_err(|_| sqlx::Error::PoolTimedOut)??
        }
        None => carry_out(&store, &new).await?,
    };
    if is_stored(&outcome) {
        tx.commit().await?;
        if rows_of(&new) > LARGE_ROWS {
            store.checkpoint();
        }
    }
    Ok(outcome)
}

async fn carry_out(store: &Store, new: &NewAnnouncement) -> Result<(Transaction<'static, Any>, Commit), sqlx::Error> {
    let _turn = store.turn(rows_of(new)).await;
    let entries = match &new.set {
        NewSet::Tree(tree) if store.0.dialect.has_one_writer() => {
            Some(Prepared::of(tree, store.0.dialect).made().await?)
        }
        NewSet::Tree(_) | NewSet::Known(..) => None,
    };
    let mut tx = store.begin().await?;
    store.0.dialect.lock_agent(&mut tx, &new.agent).await?;
    let chat = match &new.session {
        None => None,
        Some(session) => match sessions::lookup(&mut *tx, session).await? {
            Some(bound) if bound.agent != new.agent => return Ok((tx, Commit::ForeignSession)),
            bound => bound.map(|bound| bound.chat),
        },
    };
    // In a chat, waiting with its session, or nowhere: as the statements write it.
    let place = match (&chat, &new.session) {
        (Some(chat), _) => format!("c:{chat}"),
        (None, Some(session)) => format!("s:{session}"),
        (None, None) => String::new(),
    };
    let Some(weight) = weigh(&mut tx, new).await? else { return Ok((tx, Commit::NotHeld)) };
    let now = store.0.clock.unix_millis();
    let mut known = find(store, &mut tx, new, &weight, &place).await?;
    if let Some((id, _)) = known
        && !update(&mut tx, id, new, now).await?
    {
        known = None;
    }
    let (id, versioned) = match known {
        Some(known) => known,
        None => {
            let id = new.order.map_or_else(|| store.next_id(), |order| order.0);
            if new.order.is_some() && is_overtaken(&mut tx, id, new, &place).await? {
                return Ok((tx, Commit::Overtaken));
            }
            let here = Here { agent: &new.agent, task: new.task.as_ref(), place: &place, chat: chat.as_ref() };
            if let Some(exceeded) = quota::exceeded(&mut tx, &new.quota, &here, &weight).await? {
                return Ok((tx, Commit::QuotaExceeded(exceeded)));
            }
            if let NewSet::Tree(tree) = &new.set {
                manifests::insert(&mut tx, tree, entries).await?;
            }
            // Asked first because most of the work is above, and again because others were not held off meanwhile.
            if let Some(chat) = &chat
                && store.0.dialect.lock_chat(&mut tx, chat).await?
                && let Some(exceeded) = quota::exceeded_in_chat(&mut tx, &new.quota, &here, &weight).await?
            {
                return Ok((tx, Commit::QuotaExceeded(exceeded)));
            }
            insert(&mut tx, id, new, &weight, chat.as_ref(), now).await?;
            (id, false)
        }
    };
    let carried = supersede(&mut tx, id, new, (&weight.manifest, &place)).await?;
    if let Some(chat) = &chat {
        let set = InChat { announcement: id, chat, agent: &new.agent, manifest: &weight.manifest };
        match known {
            None => hashes::list(&mut tx, &set, new.order.is_some(), carried).await?,
            Some(_) if carried => hashes::add(&mut tx, &set).await?,
            Some(_) => {}
        }
    }
    if let (Some(chat), true, false) = (&chat, is_finished(new.progress), versioned) {
        let set = Set {
            announcement: id,
            agent: &new.agent,
            chat,
            manifest: weight.manifest,
            entries: weight.entries,
            late: new.order.is_some() && known.is_none(),
        };
        versions::give(store, &mut tx, &set, now).await?;
    }
    Ok((tx, Commit::Stored(Announced { id, chat, new: known.is_none() })))
}

/// How many rows of each kind it brings.
fn rows_of(new: &NewAnnouncement) -> u64 {
    match &new.set {
        NewSet::Tree(tree) => tree.entries().len() as u64,
        NewSet::Known(_, entries) => *entries,
    }
}

/// A set with nothing left to do.
fn is_finished(progress: Option<Progress>) -> bool {
    progress.is_none_or(|Progress { done, total }| done >= total)
}

/// What a set is, as far as rows and quotas need to know. None when it is said to be known and is not.
async fn weigh(conn: &mut AnyConnection, new: &NewAnnouncement) -> Result<Option<Weight>, sqlx::Error> {
    let sha256 = match &new.set {
        NewSet::Tree(tree) => {
            return Ok(Some(Weight {
                manifest: tree.root().identity,
                manifest_bytes: tree.manifest_bytes(),
                expires_at: tree.root().expires_at,
                entries: tree.entries().len() as u64,
                kib: tree.total_size().div_ceil(1024),
            }));
        }
        NewSet::Known(sha256, _) => *sha256,
    };
    let query = sqlx::query(KNOWN).bind(sha256.to_hex()).bind(new.agent.as_str());
    let Some(row) = query.fetch_optional(conn).await? else { return Ok(None) };
    Ok(Some(Weight {
        manifest: sha256,
        manifest_bytes: rows::unsigned(&row, "manifest_size")?,
        expires_at: row.try_get("expires_at")?,
        entries: rows::unsigned(&row, "entry_count")?,
        kib: rows::unsigned(&row, "total_size")?.div_ceil(1024),
    }))
}

/// The row stays until the end of the transaction: what is said to be kept is not removed meanwhile as outdated, or with
/// its chat.
async fn find(
    store: &Store,
    conn: &mut AnyConnection,
    new: &NewAnnouncement,
    weight: &Weight,
    place: &str,
) -> Result<Option<(i64, bool)>, sqlx::Error> {
    let found = sqlx::query(AssertSqlSafe(format!("{FIND}{}", store.0.dialect.for_update())))
        .bind(new.agent.as_str())
        .bind(weight.manifest.to_hex())
        .bind(new.task.as_ref().map_or("", TaskId::as_str))
        .bind(place)
        .fetch_optional(conn)
        .await?;
    found.map(|row| Ok((row.try_get("id")?, row.try_get::<i64, _>("versioned")? > 0))).transpose()
}

/// Whether the task has gone on to a later state, so that this unfinished one would only come to make way.
async fn is_overtaken(
    conn: &mut AnyConnection,
    id: i64,
    new: &NewAnnouncement,
    place: &str,
) -> Result<bool, sqlx::Error> {
    let (Some(task), false) = (&new.task, is_finished(new.progress)) else { return Ok(false) };
    let query = sqlx::query(LATER).bind(new.agent.as_str()).bind(task.as_str()).bind(id).bind(place);
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// False when it is not there any more.
async fn update(conn: &mut AnyConnection, id: i64, new: &NewAnnouncement, now: i64) -> Result<bool, sqlx::Error> {
    let (done, total) = progress(new)?;
    let updated =
        sqlx::query("UPDATE announcements SET done = $2, total = $3, locations = $4, updated_at = $5 WHERE id = $1")
            .bind(id)
            .bind(done)
            .bind(total)
            .bind(rows::locations_text(new.locations.as_deref())?)
            .bind(now)
            .execute(conn)
            .await?;
    Ok(updated.rows_affected() > 0)
}

async fn insert(
    conn: &mut AnyConnection,
    id: i64,
    new: &NewAnnouncement,
    weight: &Weight,
    chat: Option<&ChatId>,
    now: i64,
) -> Result<(), sqlx::Error> {
    let (done, total) = progress(new)?;
    sqlx::query(
        "INSERT INTO announcements (id, chat, agent, manifest, manifest_size, session_id, task_id, done, total, \
         locations, created_at, updated_at, expires_at, entries, announced_kib) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11, $12, $13, $14)",
    )
    .bind(id)
    .bind(chat.map(ChatId::as_str))
    .bind(new.agent.as_str())
    .bind(weight.manifest.to_hex())
    .bind(rows::signed(weight.manifest_bytes)?)
    .bind(new.session.as_ref().map(SessionId::as_str))
    .bind(new.task.as_ref().map(TaskId::as_str))
    .bind(done)
    .bind(total)
    .bind(rows::locations_text(new.locations.as_deref())?)
    .bind(now)
    .bind(weight.expires_at)
    .bind(rows::signed(weight.entries)?)
    .bind(rows::signed(weight.kib)?)
    .execute(conn)
    .await
    .map(drop)
}

/// Removes the earlier unfinished sets of the same task in the same place. Whether it got a place of theirs.
async fn supersede(
    conn: &mut AnyConnection,
    id: i64,
    new: &NewAnnouncement,
    (manifest, place): (&Sha256, &str),
) -> Result<bool, sqlx::Error> {
    let Some(task) = &new.task else { return Ok(false) };
    let successor = Successor { id, agent: &new.agent, task: task.as_str(), place, manifest: *manifest };
    let carried = ranks::carry(conn, &successor).await?;
    sqlx::query(SUPERSEDE).bind(new.agent.as_str()).bind(task.as_str()).bind(id).bind(place).execute(conn).await?;
    Ok(carried)
}

fn progress(new: &NewAnnouncement) -> Result<(Option<i64>, Option<i64>), sqlx::Error> {
    let Some(Progress { done, total }) = new.progress else { return Ok((None, None)) };
    Ok((Some(rows::signed(done)?), Some(rows::signed(total)?)))
}
