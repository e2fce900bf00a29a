//! Which process is the gateway of a SQLite file. Two would each remember who may read what, and have agents of which
//! the other knows nothing.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::options::OpenError;
use super::target::Target;

/// A lock beside the database's file, and not on it: closing any handle of that would let go of SQLite's own. The system
/// lets go of it when the process ends, however it does.
#[derive(Debug)]
pub(super) struct FileLock(File);

impl FileLock {
    /// Locks the database's file for this process, where it is SQLite's.
    pub(super) fn take(target: &Target) -> Result<Option<Self>, OpenError> {
        let Some(file) = &target.file else { return Ok(None) };
        let refused =
            |error: io::Error| OpenError::NotWritable { path: target.shown.clone(), reason: error.to_string() };
        let mut options = OpenOptions::new();
        let lock = options.create(true).truncate(false).write(true).mode(0o600).open(place(file)).map_err(refused)?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Self(lock))),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: target.shown.clone() }),
            Err(TryLockError::Error(error)) => Err(refused(error)),
        }
    }

    /// Whether a process holds the lock. Leaves no trace.
    pub(super) fn is_held(target: &Target) -> bool {
        let lock = target.file.as_deref().map(place).and_then(|place| File::open(place).ok());
        lock.is_some_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Lets another process have it.
    pub(super) fn release(&self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "the database's file stays locked until this process ends");
        }
    }
}

/// Where the lock of a database is, whichever link its file was reached by.
fn place(file: &Path) -> PathBuf {
    let mut place = file.canonicalize().unwrap_or_else(|_| file.to_owned()).into_os_string();
    place.push("-lock");
    place.into()
}
