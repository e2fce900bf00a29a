use serde::Serialize;

use super::Sets;
use crate::protocol::frames::Progress;
use crate::protocol::{ChatId, EntryKind, Principal, Sha256, TaskId, timestamp};
use crate::store::{Cursor, SetRecord, StoreError};

/// A page of a chat's sets.
#[derive(Debug, Clone, Serialize)]
pub struct SetList {
    /// Newest first.
    pub sets: Vec<SetItem>,
    /// Where the next page begins; null on the last one.
    pub next_cursor: Option<String>,
}

/// One set of a chat.
#[derive(Debug, Clone, Serialize)]
pub struct SetItem {
    /// The manifest's identity.
    pub sha256: Sha256,
    /// The task it answers.
    pub task_id: Option<TaskId>,
    /// The agent's name, or its principal when it holds no name any more.
    pub agent: String,
    /// Bytes of all entries.
    pub size: u64,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339, or null.
    pub expires_at: Option<String>,
    /// Whether it has expired: its agent may not have its files any more.
    pub expired: bool,
    /// Null for a finished set.
    pub progress: Option<Progress>,
    /// Whether the agent is connected: filled in by whoever knows.
    pub online: bool,
    /// How many entries.
    pub entries: u64,
    /// The agent, for `online`.
    #[serde(skip)]
    pub principal: Principal,
}

/// A page of a set's entries.
#[derive(Debug, Clone, Serialize)]
pub struct EntryList {
    /// In the manifest's order, each nested manifest's behind the entry that names it.
    pub entries: Vec<EntryItem>,
    /// Where the next page begins; null on the last one.
    pub next_cursor: Option<String>,
}

/// One entry of a set.
#[derive(Debug, Clone, Serialize)]
pub struct EntryItem {
    /// Within the set, from the top of its tree.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// Of its bytes.
    pub sha256: Sha256,
    /// Attacker controlled.
    pub media_type: String,
    /// `file`, or `manifest` for a nested set.
    pub kind: &'static str,
    /// The version of the file that this is; null while the set is unfinished and its bytes are none yet.
    pub version: Option<u64>,
    /// Where to download it: filled in by whoever knows the routes.
    pub url: String,
}

impl Sets {
    /// A page of a chat's sets, newest first. Asks nobody whether the reader may see them.
    pub async fn list(&self, chat: &ChatId, after: Option<Cursor>, limit: u32) -> Result<SetList, StoreError> {
        let page = self.store.sets(chat, after, limit).await?;
        let now = self.store.now();
        Ok(SetList {
            sets: page.items.into_iter().map(|set| item(set, now)).collect(),
            next_cursor: page.next.map(|cursor| cursor.to_string()),
        })
    }

    /// A page of the entries of a chat's set. `None` when the chat has no such set.
    pub async fn entries(
        &self,
        chat: &ChatId,
        set: &Sha256,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Option<EntryList>, StoreError> {
        let page = self.store.entries(chat, set, after, limit).await?;
        if page.items.is_empty() && !self.store.has_set(chat, set).await? {
            return Ok(None);
        }
        let entries = page.items.into_iter().map(|entry| EntryItem {
            path: entry.path,
            size: entry.size,
            sha256: entry.sha256,
            media_type: entry.media_type,
            kind: kind_name(entry.kind),
            version: entry.version,
            url: String::new(),
        });
        Ok(Some(EntryList { entries: entries.collect(), next_cursor: page.next.map(|cursor| cursor.to_string()) }))
    }

    /// The canonical bytes of a chat's set. `None` when the chat has no such set.
    pub async fn manifest(&self, chat: &ChatId, set: &Sha256) -> Result<Option<bytes::Bytes>, StoreError> {
        if !self.store.has_set(chat, set).await? {
            return Ok(None);
        }
        self.store.manifest_bytes(set).await
    }
}

/// An entry's kind on the wire.
pub(super) fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Manifest => "manifest",
    }
}

pub(super) fn item(set: SetRecord, now: i64) -> SetItem {
    SetItem {
        sha256: set.sha256,
        task_id: set.task,
        agent: set.agent_name.map_or_else(|| set.agent.to_string(), |name| name.to_string()),
        size: set.size,
        created_at: timestamp::format_nearest(set.created_at),
        expires_at: set.expires_at.map(timestamp::format_nearest),
        expired: set.expires_at.is_some_and(|at| at <= now),
        progress: set.progress,
        online: false,
        entries: set.entries,
        principal: set.agent,
    }
}
