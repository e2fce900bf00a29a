//! Files that say which process has something to itself.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// A lock on a file that is there for nothing else (flock(2)). The system lets go of it when the process ends, however it
/// does.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Locks the file for this process, and makes it where there is none. `None` when another has it.
    ///
    /// # Errors
    /// When it cannot be made or locked.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(path)?;
        Ok(is_free(file.try_lock())?.then_some(Self(file)))
    }

    /// Whether a process has it. Leaves no trace.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn is_held(path: &Path) -> io::Result<bool> {
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            file => Ok(!is_free(file?.try_lock_shared())?),
        }
    }

    /// Lets another process have it.
    ///
    /// # Errors
    /// When it stays locked until this process ends.
    pub fn release(&self) -> io::Result<()> {
        self.0.unlock()
    }
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is_free(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_until_it_lets_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(!Lock::is_held(&path).unwrap());
        assert!(!path.exists(), "looking leaves no trace");
        let lock = Lock::take(&path).unwrap().unwrap();
        assert!(Lock::is_held(&path).unwrap());
        assert!(Lock::take(&path).unwrap().is_none());
        lock.release().unwrap();
        assert!(!Lock::is_held(&path).unwrap());
        drop(Lock::take(&path).unwrap().unwrap());
        assert!(Lock::take(&path).unwrap().is_some(), "what is dropped is let go of");
        assert!(Lock::take(&dir.path().join("missing/lock")).is_err());
    }
}
