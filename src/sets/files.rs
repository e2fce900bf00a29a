//! What a chat's files are, across the sets they came with, and their versions.

use serde::Serialize;

use super::Sets;
use super::list::kind_name;
use crate::protocol::{ChatId, Sha256, timestamp};
use crate::store::{Cursor, FileId, Page, StoreError, VersionRecord};

/// A page of files, or of one file's versions.
#[derive(Debug, Clone, Serialize)]
pub struct VersionList {
    /// Files in the order in which they first came; versions newest first.
    pub files: Vec<VersionItem>,
    /// Where the next page begins; null on the last one.
    pub next_cursor: Option<String>,
}

/// A version of a file.
#[derive(Debug, Clone, Serialize)]
pub struct VersionItem {
    /// The file: the same in all versions. A path is not enough, for two agents may use the same one.
    pub id: String,
    /// From 1 on.
    pub version: u64,
    /// The full path in the sets it came with.
    pub path: String,
    /// The agent's name, or its principal when it holds no name any more.
    pub agent: String,
    /// In bytes.
    pub size: u64,
    /// Of its bytes.
    pub sha256: Sha256,
    /// Attacker controlled.
    pub media_type: String,
    /// `file`, or `manifest` for a nested set.
    pub kind: &'static str,
    /// When the version came, RFC 3339.
    pub created_at: String,
    /// Where to download it: filled in by whoever knows the routes.
    pub url: String,
}

impl Sets {
    /// A chat's files in their latest versions. Asks nobody whether the reader may see them.
    pub async fn files(&self, chat: &ChatId, after: Option<Cursor>, limit: u32) -> Result<VersionList, StoreError> {
        self.store.latest_files(chat, after, limit).await.map(list)
    }

    /// The versions of a chat's file. `None` when the chat has no such file.
    pub async fn versions(
        &self,
        chat: &ChatId,
        file: FileId,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Option<VersionList>, StoreError> {
        let page = self.store.file_versions(chat, file, after, limit).await?;
        // There is always a row after a cursor that was handed out.
        Ok((!page.items.is_empty()).then(|| list(page)))
    }
}

fn list(page: Page<VersionRecord>) -> VersionList {
    let files = page.items.into_iter().map(|record| VersionItem {
        id: record.file.to_string(),
        version: record.version,
        path: record.path,
        agent: record.agent_name.map_or_else(|| record.agent.to_string(), |name| name.to_string()),
        size: record.size,
        sha256: record.sha256,
        media_type: record.media_type,
        kind: kind_name(record.kind),
        created_at: timestamp::format_nearest(record.created_at),
        url: String::new(),
    });
    VersionList { files: files.collect(), next_cursor: page.next.map(|cursor| cursor.to_string()) }
}
