//! Versions of files: the same path of the same agent in the same chat gets the next one when its bytes change.
//!
//! Only finished sets give versions: a version is a promise that its bytes stay, and an unfinished set makes way. What is
//! kept here says what there was, not who may have it: bytes of a version are found through announcements that its
//! reader may read, like all others.

use std::fmt;
use std::str::FromStr;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

use super::{Cursor, Page, Store, StoreError, rows};
use crate::protocol::{AgentName, ChatId, EntryKind, Principal, Sha256};

/// A path of an agent in a chat, across its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId(pub(super) i64);

/// The text is no file's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a file's id is af_ and 16 hex digits")]
pub struct InvalidFileId;

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "af_{:016x}", self.0)
    }
}

impl FromStr for FileId {
    type Err = InvalidFileId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("af_").filter(|digits| digits.len() == 16);
        let digits = digits.filter(|digits| digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')));
        let id = digits.and_then(|digits| i64::from_str_radix(digits, 16).ok());
        id.map(Self).ok_or(InvalidFileId)
    }
}

impl<'de> serde::Deserialize<'de> for FileId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRecord {
    /// The file.
    pub file: FileId,
    /// From 1 on.
    pub version: u64,
    /// The full path in the sets it came with.
    pub path: String,
    /// Whose file it is.
    pub agent: Principal,
    /// A name that the agent holds, when it still holds one.
    pub agent_name: Option<AgentName>,
    /// In bytes.
    pub size: u64,
    /// Of its bytes.
    pub sha256: Sha256,
    /// Attacker controlled.
    pub media_type: String,
    /// A file, or a nested manifest.
    pub kind: EntryKind,
    /// When it came, Unix milliseconds.
    pub created_at: i64,
}

/// A set whose files are to get their versions.
pub(super) struct Set<'a> {
    pub(super) announcement: i64,
    pub(super) agent: &'a Principal,
    pub(super) chat: &'a ChatId,
    pub(super) manifest: Sha256,
    pub(super) entries: u64,
    /// It came earlier than it is kept, so that others may have come in between.
    pub(super) late: bool,
}

/// Files that were not there, and new versions of those whose bytes are others now. Without a join, for which no database
/// knows how many of the rows just written there are: planned for a few, it looks at every pair of thousands.
pub(super) const PUT: &str = "INSERT INTO files (id, chat, agent, path, version, sha256, size, media_type, kind, \
    announcement) SELECT CAST($5 AS BIGINT) + e.position, $1, $2, e.path, 1, e.sha256, e.size, e.media_type, e.kind, $4 \
    FROM entries e WHERE e.manifest = $3 ON CONFLICT (chat, agent, path) DO UPDATE SET version = files.version + 1, \
    sha256 = excluded.sha256, size = excluded.size, media_type = excluded.media_type, kind = excluded.kind, \
    announcement = excluded.announcement WHERE files.sha256 <> excluded.sha256";
/// The same for a set that is kept late: a path that a later announcement of the agent in the chat has given a version is
/// left as it is, for the latest version is the one that was announced last.
pub(super) const PUT_LATE: &str = "INSERT INTO files (id, chat, agent, path, version, sha256, size, media_type, kind, \
    announcement) SELECT CAST($5 AS BIGINT) + e.position, $1, $2, e.path, 1, e.sha256, e.size, e.media_type, e.kind, $4 \
    FROM entries e WHERE e.manifest = $3 AND NOT EXISTS (SELECT 1 FROM announcements l \
    JOIN entries n ON n.manifest = l.manifest AND n.path = e.path \
    WHERE l.chat = $1 AND l.agent = $2 AND l.versioned = 1 AND l.id > $4) \
    ON CONFLICT (chat, agent, path) DO UPDATE SET version = files.version + 1, \
    sha256 = excluded.sha256, size = excluded.size, media_type = excluded.media_type, kind = excluded.kind, \
    announcement = excluded.announcement WHERE files.sha256 <> excluded.sha256";
/// Adds what [`PUT`] or [`PUT_LATE`] wrote to the versions, with no index of files by announcement: that would be written
/// anew for every file that changes. Where a statement can take rows from another, `put` is part of it.
pub(super) fn number_put(put: &str) -> String {
    format!(
        "WITH put AS ({put} RETURNING id, version, sha256, size, media_type, kind, announcement) \
         INSERT INTO file_versions ({VERSION}) \
         SELECT id, version, sha256, size, media_type, kind, announcement, $6 FROM put"
    )
}
/// The same after `put`, where it cannot. In the order that is written here, which SQLite takes from `CROSS JOIN`.
pub(super) fn number() -> String {
    format!(
        "INSERT INTO file_versions ({VERSION}) \
         SELECT f.id, f.version, f.sha256, f.size, f.media_type, f.kind, f.announcement, $5 FROM entries e \
         CROSS JOIN files f ON f.chat = $1 AND f.agent = $2 AND f.path = e.path AND f.announcement = $4 \
         WHERE e.manifest = $3"
    )
}
const VERSION: &str = "file, version, sha256, size, media_type, kind, announcement, created_at";

/// Gives the files of a finished set their versions.
pub(super) async fn give(store: &Store, conn: &mut AnyConnection, set: &Set<'_>, now: i64) -> Result<(), sqlx::Error> {
    let first_id = store.next_ids(set.entries.max(1));
    let put = if set.late { PUT_LATE } else { PUT };
    let of_set = |sql: String| {
        let query = sqlx::query(AssertSqlSafe(sql)).bind(set.chat.as_str()).bind(set.agent.as_str());
        query.bind(set.manifest.to_hex()).bind(set.announcement)
    };
    if store.0.dialect.hands_rows_on() {
        of_set(number_put(put)).bind(first_id).bind(now).execute(&mut *conn).await?;
    } else {
        of_set(put.to_owned()).bind(first_id).execute(&mut *conn).await?;
        of_set(number()).bind(now).execute(&mut *conn).await?;
    }
    let sql = "UPDATE announcements SET versioned = 1 WHERE id = $1";
    sqlx::query(sql).bind(set.announcement).execute(conn).await.map(drop)
}

/// Removes what is known of a chat's files.
pub(super) async fn forget(conn: &mut AnyConnection, chat: &ChatId) -> Result<(), sqlx::Error> {
    for sql in [
        "DELETE FROM file_versions WHERE file IN (SELECT id FROM files WHERE chat = $1)",
        "DELETE FROM files WHERE chat = $1",
    ] {
        sqlx::query(sql).bind(chat.as_str()).execute(&mut *conn).await?;
    }
    Ok(())
}

const COLUMNS: &str = "f.id, v.version, f.path, f.agent, v.size, v.sha256, v.media_type, v.kind, v.created_at, \
    (SELECT MIN(n.name) FROM agents n WHERE n.principal = f.agent) AS agent_name";
/// The agent still has an announcement in the chat that lists the version's bytes. Looked up for each version: with an
/// `OFFSET` Postgres makes no join of it, for which it would compare each file of the chat with each hash.
const OFFERED: &str = "EXISTS (SELECT 1 FROM chat_hashes h JOIN announcements a \
    ON a.chat = h.chat AND a.manifest = h.manifest AND a.agent = h.agent \
    WHERE h.chat = f.chat AND h.sha256 = v.sha256 AND h.agent = f.agent AND h.position >= 0 LIMIT 1 OFFSET 0)";

/// A chat's files in their latest versions, in the order in which they first came.
pub(super) fn latest_sql() -> String {
    format!(
        "SELECT {COLUMNS} FROM files f JOIN file_versions v ON v.file = f.id AND v.version = f.version \
         WHERE f.chat = $1 AND f.id > $2 AND {OFFERED} ORDER BY f.id LIMIT $3"
    )
}

/// A file's versions, newest first.
pub(super) fn versions_sql() -> String {
    format!(
        "SELECT {COLUMNS} FROM files f JOIN file_versions v ON v.file = f.id \
         WHERE f.chat = $1 AND f.id = $2 AND v.version < $3 AND {OFFERED} ORDER BY v.version DESC LIMIT $4"
    )
}

fn record(row: &AnyRow) -> Result<VersionRecord, sqlx::Error> {
    Ok(VersionRecord {
        file: FileId(row.try_get("id")?),
        version: rows::unsigned(row, "version")?,
        path: row.try_get("path")?,
        agent: rows::parsed(row, "agent")?,
        agent_name: rows::parsed_option(row, "agent_name")?,
        size: rows::unsigned(row, "size")?,
        sha256: rows::parsed(row, "sha256")?,
        media_type: row.try_get("media_type")?,
        kind: rows::kind(row)?,
        created_at: row.try_get("created_at")?,
    })
}

impl Store {
    /// A chat's files in their latest versions, in the order in which they first came.
    pub async fn latest_files(
        &self,
        chat: &ChatId,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<VersionRecord>, StoreError> {
        self.bounded(async {
            let query = sqlx::query(AssertSqlSafe(latest_sql()))
                .persistent(false)
                .bind(chat.as_str())
                .bind(after.map_or(i64::MIN, |cursor| cursor.0))
                .bind(i64::from(limit) + 1);
            let found = query.fetch_all(&self.0.reader).await?;
            let items = found.iter().map(record).collect::<Result<Vec<_>, _>>()?;
            Ok(Page::cut(items, limit, |item| Cursor(item.file.0)))
        })
        .await
    }

    /// The versions of a chat's file, newest first. Empty when the chat has no such file.
    pub async fn file_versions(
        &self,
        chat: &ChatId,
        file: FileId,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<VersionRecord>, StoreError> {
        self.bounded(async {
            let query = sqlx::query(AssertSqlSafe(versions_sql()))
                .persistent(false)
                .bind(chat.as_str())
                .bind(file.0)
                .bind(after.map_or(i64::MAX, |cursor| cursor.0))
                .bind(i64::from(limit) + 1);
            let found = query.fetch_all(&self.0.reader).await?;
            let items = found.iter().map(record).collect::<Result<Vec<_>, _>>()?;
            Ok(Page::cut(items, limit, |item| Cursor(i64::try_from(item.version).unwrap_or(i64::MAX))))
        })
        .await
    }

    /// Removes the files among up to `limit` after a place whose bytes no announcement of their agent in their chat
    /// lists any more. Returns where the next ones begin; none at the end.
    pub async fn sweep_files(&self, after: Option<Cursor>, limit: u32) -> Result<Option<Cursor>, StoreError> {
        let looked_at = self
            .bounded(async {
                let query = sqlx::query("SELECT id FROM files WHERE id > $1 ORDER BY id LIMIT $2")
                    .bind(after.map_or(i64::MIN, |cursor| cursor.0))
                    .bind(i64::from(limit));
                let found = query.fetch_all(&self.0.reader).await?;
                found.iter().map(|row| row.try_get::<i64, _>("id")).collect::<Result<Vec<_>, _>>()
            })
            .await?;
        let (Some(first), Some(last)) = (looked_at.first().copied(), looked_at.last().copied()) else {
            return Ok(None);
        };
        let store = self.clone();
        self.note(async move {
            let mut tx = store.begin().await?;
            // In one statement for each table: an agent that announces meanwhile is seen by the second or keeps both.
            for sql in [
                format!(
                    "DELETE FROM files WHERE id BETWEEN $1 AND $2 AND NOT EXISTS (SELECT 1 FROM file_versions v \
                     JOIN files f ON f.id = v.file WHERE v.file = files.id AND {OFFERED})"
                ),
                "DELETE FROM file_versions WHERE file BETWEEN $1 AND $2 AND NOT EXISTS \
                 (SELECT 1 FROM files f WHERE f.id = file_versions.file)"
                    .to_owned(),
            ] {
                sqlx::query(AssertSqlSafe(sql)).bind(first).bind(last).execute(&mut *tx).await?;
            }
            tx.commit().await
        })
        .await?;
        Ok((looked_at.len() == usize::try_from(limit).unwrap_or(usize::MAX)).then_some(Cursor(last)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text() {
        for id in [0, 1, i64::MAX] {
            assert_eq!(FileId(id).to_string().parse(), Ok(FileId(id)));
        }
        for text in ["", "af_", "af_1", "af_000000000000000A", "af_ffffffffffffffff", "af_+000000000000001", "x"] {
            assert_eq!(text.parse::<FileId>(), Err(InvalidFileId), "{text}");
        }
    }
}
