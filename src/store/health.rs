//! Whether the database answers, and takes what is written.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::{Store, StoreError};

/// The file of a SQLite database, and which one it was when it was opened.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl DatabaseFile {
    pub(super) fn open(path: PathBuf) -> Self {
        let identity = identity(&path);
        Self { path, identity }
    }

    /// A file that was moved away or replaced is written to as before, and whatever goes there is lost to the next start.
    fn is_in_place(&self) -> bool {
        identity(&self.path) == self.identity
    }
}

fn identity(path: &PathBuf) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

impl Store {
    /// Whether the database answers, in bounded time.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.bounded(async { sqlx::query("SELECT 1").execute(&self.0.reader).await.map(drop) }).await
    }

    /// Whether the database takes a row, in bounded time: one that is read-only, whose disk is full or whose file is gone
    /// still answers.
    pub async fn beat(&self) -> Result<(), StoreError> {
        if self.0.file.as_ref().is_some_and(|file| !file.is_in_place()) {
            return Err(StoreError::Unavailable("the database's file was moved away or replaced".to_owned()));
        }
        let store = self.clone();
        self.note(async move {
            let mut tx = store.begin().await?;
            sqlx::query(
                "INSERT INTO heartbeat (id, at) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET at = excluded.at",
            )
            .bind(store.0.clock.unix_millis())
            .execute(&mut *tx)
            .await?;
            tx.commit().await
        })
        .await
    }
}
