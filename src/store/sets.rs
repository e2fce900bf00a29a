use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{Cursor, Page, Place, Store, StoreError, rows};
use crate::protocol::frames::Progress;
use crate::protocol::{AgentName, ChatId, EntryKind, Principal, SessionId, Sha256, TaskId};

/// A set, as a chat's list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetRecord {
    /// Its announcement, growing with time.
    pub id: i64,
    /// The manifest's identity.
    pub sha256: Sha256,
    /// The task it answers.
    pub task: Option<TaskId>,
    /// Who announced it.
    pub agent: Principal,
    /// A name that the agent holds, when it still holds one.
    pub agent_name: Option<AgentName>,
    /// Bytes of all its entries.
    pub size: u64,
    /// Bytes of the manifest's canonical form.
    pub manifest_size: u64,
    /// How many entries.
    pub entries: u64,
    /// The manifest's `createdAt`, Unix milliseconds.
    pub created_at: i64,
    /// The manifest's `expiresAt`, Unix milliseconds.
    pub expires_at: Option<i64>,
    /// When it was announced, Unix milliseconds.
    pub announced_at: i64,
    /// Absent for a finished set.
    pub progress: Option<Progress>,
}

/// An entry, as a set's list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryRecord {
    /// Where it stands in the manifest.
    pub position: i64,
    /// Within the set.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// Of its bytes.
    pub sha256: Sha256,
    /// Attacker controlled.
    pub media_type: String,
    /// A file, or a nested manifest.
    pub kind: EntryKind,
    /// The version of the file that this is, once it has one.
    pub version: Option<u64>,
}

/// A chat's sets, newest first.
pub(super) const SETS: &str = "SELECT a.id, a.manifest, a.task_id, a.agent, a.done, a.total, a.created_at, m.size, \
    m.total_size, m.entry_count, m.created_at AS manifest_created_at, m.expires_at, \
    (SELECT MIN(n.name) FROM agents n WHERE n.principal = a.agent) AS agent_name \
    FROM announcements a JOIN manifests m ON m.sha256 = a.manifest \
    WHERE a.chat = $1 AND a.id < $2 ORDER BY a.id DESC LIMIT $3";

/// One announcement, in whichever chat it is, and when that was made.
pub(super) const SET: &str = "SELECT a.id, a.manifest, a.task_id, a.agent, a.done, a.total, a.created_at, m.size, \
    m.total_size, m.entry_count, m.created_at AS manifest_created_at, m.expires_at, \
    (SELECT MIN(n.name) FROM agents n WHERE n.principal = a.agent) AS agent_name, \
    c.id AS chat, c.created_at AS made_at \
    FROM announcements a JOIN manifests m ON m.sha256 = a.manifest JOIN chats c ON c.id = a.chat WHERE a.id = $1";

/// The announcements of an agent's session that a chat has, in their order.
pub(super) const OF_SESSION: &str = "SELECT id FROM announcements \
    WHERE agent = $1 AND session_id = $2 AND chat = $3 ORDER BY id LIMIT $4";

/// Whether a chat has a set.
pub(super) const HAS_SET: &str = "SELECT 1 FROM announcements WHERE chat = $1 AND manifest = $2 LIMIT 1";

/// The first announcement of a set in a chat.
pub(super) const FIRST: &str =
    "SELECT id, agent FROM announcements WHERE chat = $1 AND manifest = $2 ORDER BY id LIMIT 1";

/// A set's entries, in order, and which version each is of its announcement's agent's file in the chat: of versions with
/// the same bytes the one that was there when the set was announced.
pub(super) const ENTRIES: &str = "SELECT e.position, e.path, e.size, e.sha256, e.media_type, e.kind, \
    (SELECT COALESCE(MAX(CASE WHEN v.announcement <= $4 THEN v.version END), MIN(v.version)) FROM files f \
    JOIN file_versions v ON v.file = f.id \
    WHERE f.chat = $1 AND f.agent = $3 AND f.path = e.path AND v.sha256 = e.sha256) AS version \
    FROM entries e WHERE e.manifest = $2 AND e.position > $5 ORDER BY e.position LIMIT $6";

fn set(row: &AnyRow) -> Result<SetRecord, sqlx::Error> {
    let done: Option<i64> = row.try_get("done")?;
    let progress = match done {
        None => None,
        Some(_) => Some(Progress { done: rows::unsigned(row, "done")?, total: rows::unsigned(row, "total")? }),
    };
    Ok(SetRecord {
        id: row.try_get("id")?,
        sha256: rows::parsed(row, "manifest")?,
        task: rows::parsed_option(row, "task_id")?,
        agent: rows::parsed(row, "agent")?,
        agent_name: rows::parsed_option(row, "agent_name")?,
        size: rows::unsigned(row, "total_size")?,
        manifest_size: rows::unsigned(row, "size")?,
        entries: rows::unsigned(row, "entry_count")?,
        created_at: row.try_get("manifest_created_at")?,
        expires_at: row.try_get("expires_at")?,
        announced_at: row.try_get("created_at")?,
        progress,
    })
}

impl Store {
    /// A chat's sets, newest first.
    pub async fn sets(&self, chat: &ChatId, after: Option<Cursor>, limit: u32) -> Result<Page<SetRecord>, StoreError> {
        self.bounded(async {
            let query = sqlx::query(SETS)
                .bind(chat.as_str())
                .bind(after.map_or(i64::MAX, |cursor| cursor.0))
                .bind(i64::from(limit) + 1);
            let found = query.fetch_all(&self.0.reader).await?;
            let items = found.iter().map(set).collect::<Result<Vec<_>, _>>()?;
            Ok(Page::cut(items, limit, |set| Cursor(set.id)))
        })
        .await
    }

    /// A set by its announcement, and the chat that it is in. None when it is in no chat, or not there any more.
    pub async fn set(&self, announcement: i64) -> Result<Option<(Place, SetRecord)>, StoreError> {
        self.bounded(async {
            let query = sqlx::query(SET).bind(announcement);
            let Some(row) = query.fetch_optional(&self.0.reader).await? else { return Ok(None) };
            let place = Place { chat: rows::parsed(&row, "chat")?, made_at: row.try_get("made_at")? };
            Ok(Some((place, set(&row)?)))
        })
        .await
    }

    /// The announcements of an agent's session that a chat has, in their order, at most `limit` of them.
    pub async fn announcements_of(
        &self,
        (agent, session): (&Principal, &SessionId),
        chat: &ChatId,
        limit: u32,
    ) -> Result<Vec<i64>, StoreError> {
        self.bounded(async {
            let query = sqlx::query(OF_SESSION).bind(agent.as_str()).bind(session.as_str());
            let found = query.bind(chat.as_str()).bind(i64::from(limit)).fetch_all(&self.0.reader).await?;
            found.iter().map(|row| row.try_get("id")).collect()
        })
        .await
    }

    /// Whether a manifest is announced in a chat.
    pub async fn has_set(&self, chat: &ChatId, manifest: &Sha256) -> Result<bool, StoreError> {
        self.bounded(async {
            let query = sqlx::query(HAS_SET).bind(chat.as_str()).bind(manifest.to_hex());
            Ok(query.fetch_optional(&self.0.reader).await?.is_some())
        })
        .await
    }

    /// The entries of a chat's set, each nested manifest's behind the entry that names it. Empty when the chat has no such
    /// set.
    pub async fn entries(
        &self,
        chat: &ChatId,
        manifest: &Sha256,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<EntryRecord>, StoreError> {
        self.bounded(async {
            let query = sqlx::query(FIRST).bind(chat.as_str()).bind(manifest.to_hex());
            let Some(first) = query.fetch_optional(&self.0.reader).await? else {
                return Ok(Page { items: Vec::new(), next: None });
            };
            // Planned anew each time: a plan that is remembered from few files is none for many.
            let query = sqlx::query(ENTRIES)
                .persistent(false)
                .bind(chat.as_str())
                .bind(manifest.to_hex())
                .bind(first.try_get::<String, _>("agent")?)
                .bind(first.try_get::<i64, _>("id")?)
                .bind(after.map_or(-1, |cursor| cursor.0))
                .bind(i64::from(limit) + 1);
            let found = query.fetch_all(&self.0.reader).await?;
            let items = found.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
            Ok(Page::cut(items, limit, |entry| Cursor(entry.position)))
        })
        .await
    }
}

fn entry(row: &AnyRow) -> Result<EntryRecord, sqlx::Error> {
    Ok(EntryRecord {
        position: row.try_get("position")?,
        path: row.try_get("path")?,
        size: rows::unsigned(row, "size")?,
        sha256: rows::parsed(row, "sha256")?,
        media_type: row.try_get("media_type")?,
        kind: rows::kind(row)?,
        version: row.try_get::<Option<i64>, _>("version")?.map(i64::unsigned_abs),
    })
}
