//! Whether the database answers, and takes what is written.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::{fs, io};

use super::dialect::Dialect;
use super::{Store, StoreError};

/// What has to fit on the database's disk beside it, in bytes.
const ROOM: usize = 256 * 1024;

/// The file of a SQLite database, and which one it was when it was opened.
#[derive(Debug, Clone)]
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

    /// Whether there is room left on its disk. A row may find a place in what the database's files hold already long
    /// after nothing larger does. What is written is removed at once, so hardly any of it ever gets to the disk; it is
    /// random, because some file systems keep zeros in no room at all.
    fn try_room(&self) -> io::Result<()> {
        let mut name = self.path.clone().into_os_string();
        name.push("-room");
        let bytes: Vec<u8> = (0..ROOM / 8).flat_map(|_| rand::random::<u64>().to_le_bytes()).collect();
        let written = fs::write(&name, bytes);
        // Also what was written in part.
        let removed = fs::remove_file(&name);
        written.and(removed)
    }
}

fn identity(path: &PathBuf) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

impl Store {
    /// Whether the database answers, in bounded time, however many others ask it.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.bounded(async { sqlx::query("SELECT 1").execute(&self.0.health).await.map(drop) }).await
    }

    /// Whether the database takes a row, in bounded time: one that is read-only, whose disk is full or whose file is gone
    /// still answers. One that is busy taking others' rows takes them.
    pub async fn beat(&self) -> Result<(), StoreError> {
        if let Some(file) = self.0.file.clone() {
            if !file.is_in_place() {
                return Err(StoreError::Unavailable("the database's file was moved away or replaced".to_owned()));
            }
            let room = tokio::task::spawn_blocking(move || file.try_room()).await;
            let room = room.unwrap_or_else(|_| Err(io::Error::other("the gateway is stopping")));
            room.map_err(|error| StoreError::Unavailable(format!("the database's disk takes nothing: {error}")))?;
        }
        let store = self.clone();
        let written = self.0.written.load(Ordering::Relaxed);
        let taken = self.note(async move {
            // SQLite has one writer, for which this waits with the others.
            let pool = match store.0.dialect {
                Dialect::Sqlite => &store.0.writer,
                Dialect::Postgres => &store.0.health,
            };
            let mut tx = pool.begin_with(store.0.dialect.begin()).await?;
            sqlx::query(
                "INSERT INTO heartbeat (id, at) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET at = excluded.at",
            )
            .bind(store.0.clock.unix_millis())
            .execute(&mut *tx)
            .await?;
            tx.commit().await
        });
        let taken = taken.await;
        // What single small writes have left, every time.
        self.checkpoint();
        match taken {
            Err(StoreError::Unavailable(_)) if self.0.written.load(Ordering::Relaxed) != written => Ok(()),
            taken => taken,
        }
    }
}
