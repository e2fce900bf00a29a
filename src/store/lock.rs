//! Which process is the gateway of a SQLite file. Two would each remember who may read what, and have agents of which
//! the other knows nothing.

use std::path::{Path, PathBuf};

use super::options::OpenError;
use super::target::Target;
use crate::lock::Lock;

/// Locks the database for this process, where it is a file of SQLite's.
pub(super) fn take(target: &Target) -> Result<Option<Lock>, OpenError> {
    let Some(file) = &target.file else { return Ok(None) };
    let path = target.shown.clone();
    match Lock::take(&place(file)) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => Err(OpenError::InUse { path }),
        Err(error) => Err(OpenError::NotWritable { path, reason: error.to_string() }),
    }
}

/// Whether a gateway has the database.
pub(super) fn is_held(target: &Target) -> bool {
    target.file.as_deref().is_some_and(|file| Lock::is_held(&place(file)).unwrap_or(false))
}

/// Lets another process have it.
pub(super) fn release(lock: &Lock) {
    if let Err(error) = lock.release() {
        tracing::warn!(%error, "the database's file stays locked until this process ends");
    }
}

/// Where the lock of a database is, whichever link its file was reached by: beside the file and not on it, for closing any
/// handle of that would let go of SQLite's own.
fn place(file: &Path) -> PathBuf {
    let mut place = file.canonicalize().unwrap_or_else(|_| file.to_owned()).into_os_string();
    place.push("-lock");
    place.into()
}
