use sqlx::Row as _;

use super::hashes::{self, InChat};
use super::quota::{self, Exceeded};
use super::ranks::{self, Successor};
use super::{Store, StoreError, endpoints, rows, versions};
use crate::protocol::{ChatId, Principal, SessionId};

/// A turn's session, bound to a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Whose turn it is.
    pub agent: Principal,
    /// Where it came from.
    pub chat: ChatId,
}

/// What became of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// Bound now, and with it that many sets that were waiting.
    Bound(u64),
    /// It was bound so already.
    Unchanged,
    /// The session is another agent's or another chat's.
    Conflict,
    /// There is no such chat.
    NoSuchChat,
    /// With the sets that wait for the session the chat would hold more than it may. Nothing was changed.
    QuotaExceeded(Exceeded),
}

impl Store {
    /// Binds an agent's session to a chat, and in the same transaction the sets that the agent has announced with it.
    pub async fn bind_session(
        &self,
        agent: &Principal,
        session: &SessionId,
        chat: &ChatId,
    ) -> Result<Binding, StoreError> {
        let (store, agent, session, chat) = (self.clone(), agent.clone(), session.clone(), chat.clone());
        self.write(async move {
            let mut tx = store.begin().await?;
            store.0.dialect.lock_agent(&mut tx, &agent).await?;
            let known = sqlx::query("UPDATE chats SET title = title WHERE id = $1")
                .bind(chat.as_str())
                .execute(&mut *tx)
                .await?
                .rows_affected();
            if known == 0 {
                return Ok(Binding::NoSuchChat);
            }
            let inserted = sqlx::query(
                "INSERT INTO sessions (session_id, agent, chat, created_at) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT (session_id) DO NOTHING",
            )
            .bind(session.as_str())
            .bind(agent.as_str())
            .bind(chat.as_str())
            .bind(store.0.clock.unix_millis())
            .execute(&mut *tx)
            .await?
            .rows_affected();
            if inserted == 0 {
                let bound = lookup(&mut *tx, &session).await?;
                let same = bound.is_some_and(|bound| bound.agent == agent && bound.chat == chat);
                return Ok(if same { Binding::Unchanged } else { Binding::Conflict });
            }
            endpoints::note(&mut tx, &agent, store.now()).await?;
            move_waiting(&mut tx, SAME, &agent, &session, &chat).await?;
            carry_ranks(&mut tx, &agent, &session, &chat).await?;
            move_waiting(&mut tx, SUPERSEDED, &agent, &session, &chat).await?;
            // The update above holds off whoever would add to the chat.
            let limits = &store.0.quota;
            if let Some(exceeded) = quota::exceeded_by_waiting(&mut tx, limits, &chat, (&agent, &session)).await? {
                return Ok(Binding::QuotaExceeded(exceeded));
            }
            let waiting = bind_waiting(&store, &mut tx, &agent, &session, &chat).await?;
            tx.commit().await?;
            Ok(Binding::Bound(waiting))
        })
        .await
    }

    /// What a session is bound to.
    pub async fn session(&self, session: &SessionId) -> Result<Option<Session>, StoreError> {
        self.bounded(lookup(&self.0.reader, session)).await
    }
}

pub(super) async fn lookup(
    executor: impl sqlx::Executor<'_, Database = sqlx::Any>,
    session: &SessionId,
) -> Result<Option<Session>, sqlx::Error> {
    let sql = "SELECT agent, chat FROM sessions WHERE session_id = $1";
    let found = sqlx::query(sql).bind(session.as_str()).fetch_optional(executor).await?;
    found.map(|row| Ok(Session { agent: rows::parsed(&row, "agent")?, chat: rows::parsed(&row, "chat")? })).transpose()
}

/// Waiting sets that the chat has already, of the same task.
pub(super) const SAME: &str = "DELETE FROM announcements WHERE agent = $1 AND session_id = $2 AND chat IS NULL \
    AND EXISTS (SELECT 1 FROM announcements b WHERE b.agent = $1 AND b.chat = $3 \
    AND b.manifest = announcements.manifest AND COALESCE(b.task_id, '') = COALESCE(announcements.task_id, ''))";
/// Waiting sets that may supersede others.
pub(super) const WAITING: &str = "SELECT id, manifest, task_id FROM announcements \
    WHERE agent = $1 AND session_id = $2 AND chat IS NULL AND task_id IS NOT NULL";
/// Unfinished sets of the chat that a waiting set of the same task supersedes.
pub(super) const SUPERSEDED: &str = "DELETE FROM announcements WHERE agent = $1 AND chat = $3 AND done < total AND versioned = 0 \
    AND EXISTS (SELECT 1 FROM announcements w WHERE w.agent = $1 AND w.session_id = $2 AND w.chat IS NULL \
    AND w.task_id = announcements.task_id AND w.id > announcements.id)";
/// The move itself.
pub(super) const BIND: &str =
    "UPDATE announcements SET chat = $3 WHERE agent = $1 AND session_id = $2 AND chat IS NULL";

/// What was moved.
pub(super) const OF_SESSION: &str = "SELECT id, manifest FROM announcements \
    WHERE agent = $1 AND session_id = $2 AND chat = $3";

/// The finished ones among them, in the order in which they were announced.
pub(super) const TO_VERSION: &str = "SELECT id, manifest, entries FROM announcements WHERE agent = $1 \
    AND session_id = $2 AND chat = $3 AND versioned = 0 AND COALESCE(done, 0) >= COALESCE(total, 0) ORDER BY id";

/// Gives the waiting sets of a session the places of those that make way for them.
async fn carry_ranks(
    conn: &mut sqlx::AnyConnection,
    agent: &Principal,
    session: &SessionId,
    chat: &ChatId,
) -> Result<(), sqlx::Error> {
    let waiting = sqlx::query(WAITING).bind(agent.as_str()).bind(session.as_str()).fetch_all(&mut *conn).await?;
    let place = format!("c:{chat}");
    for row in &waiting {
        let (id, task) = (row.try_get("id")?, row.try_get::<String, _>("task_id")?);
        let manifest = rows::parsed(row, "manifest")?;
        ranks::carry(conn, &Successor { id, agent, task: &task, place: &place, manifest }).await?;
    }
    Ok(())
}

/// One step of it; how many rows it met.
async fn move_waiting(
    conn: &mut sqlx::AnyConnection,
    step: &'static str,
    agent: &Principal,
    session: &SessionId,
    chat: &ChatId,
) -> Result<u64, sqlx::Error> {
    let step = sqlx::query(step).bind(agent.as_str()).bind(session.as_str()).bind(chat.as_str());
    Ok(step.execute(conn).await?.rows_affected())
}

/// Moves what is left of the waiting sets of a session into its chat, by the rules that hold for announcing them there.
async fn bind_waiting(
    store: &Store,
    conn: &mut sqlx::AnyConnection,
    agent: &Principal,
    session: &SessionId,
    chat: &ChatId,
) -> Result<u64, sqlx::Error> {
    let bound = move_waiting(conn, BIND, agent, session, chat).await?;
    let query = sqlx::query(OF_SESSION).bind(agent.as_str()).bind(session.as_str()).bind(chat.as_str());
    for row in query.fetch_all(&mut *conn).await? {
        let (announcement, manifest) = (row.try_get("id")?, rows::parsed(&row, "manifest")?);
        hashes::add(conn, &InChat { announcement, chat, agent, manifest: &manifest }).await?;
    }
    let query = sqlx::query(TO_VERSION).bind(agent.as_str()).bind(session.as_str()).bind(chat.as_str());
    for row in query.fetch_all(&mut *conn).await? {
        let set = versions::Set {
            announcement: row.try_get("id")?,
            agent,
            chat,
            manifest: rows::parsed(&row, "manifest")?,
            entries: rows::unsigned(&row, "entries")?,
            late: false,
        };
        versions::give(store, conn, &set, store.0.clock.unix_millis()).await?;
    }
    Ok(bound)
}
