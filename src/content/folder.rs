//! The cache's folder: `aa/<hex>` for each object, `tmp/` for what is being written, `lock` for who writes.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstatfs, openat2};

use crate::lock::Lock;
use crate::protocol::Sha256;

/// The number of the file system that is in memory (`TMPFS_MAGIC` of statfs(2)).
const TMPFS: u64 = 0x0102_1994;

/// The cache's folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use by another process: give each its own --data-dir", .0.display())]
    InUse(PathBuf),
    /// It cannot be made, read or written.
    #[error("cannot use {}: {source}; give a folder that can be written, or turn the cache off with --cache-size 0", path.display())]
    Unusable {
        /// What cannot be used.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A file as it was when its bytes were hashed: which one, how long, and when it was last written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    /// Its length in bytes, with what stands behind the object's own.
    pub bytes: u64,
    written: (i64, i64),
}

impl Stamp {
    /// The stamp of an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|metadata| Self::from(&metadata))
    }
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self { inode: metadata.ino(), bytes: metadata.len(), written: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

/// The folder, locked for this process.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held as long as the folder is used.
    lock: Lock,
    /// Its files are in memory: nothing that reads them waits for a disk.
    pub in_memory: bool,
}

/// An object found by a walk.
#[derive(Debug)]
pub struct Found {
    /// Its name.
    pub sha256: Sha256,
    /// What its file takes.
    pub bytes: u64,
    /// When it was last written.
    pub written: SystemTime,
}

impl Folder {
    /// Makes the folder where there is none, locks it, and throws away what an earlier process left half-written.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let unusable = |source| OpenError::Unusable { path: path.to_owned(), source };
        make(path).map_err(unusable)?;
        let lock = Lock::take(&path.join("lock")).map_err(unusable)?;
        let lock = lock.ok_or_else(|| OpenError::InUse(path.to_owned()))?;
        let unfinished = path.join("tmp");
        make(&unfinished).map_err(unusable)?;
        for entry in unfinished.read_dir().map_err(unusable)? {
            std::fs::remove_file(entry.map_err(unusable)?.path()).map_err(unusable)?;
        }
        // The same number has another type on some targets.
        let in_memory = fstatfs(&lock).is_ok_and(|statistics| u64::try_from(statistics.f_type) == Ok(TMPFS));
        Ok(Self { path: path.to_owned(), lock, in_memory })
    }

    /// Whether a process has the folder that `path` names. Leaves no trace.
    pub fn is_in_use(path: &Path) -> Result<bool, OpenError> {
        Lock::is_held(&path.join("lock")).map_err(|source| OpenError::Unusable { path: path.to_owned(), source })
    }

    /// Lets another process have the folder.
    pub fn unlock(&self) -> io::Result<()> {
        self.lock.release()
    }

    /// Makes a file to write an object to. `number` is one that no other unfinished object has.
    pub fn begin(&self, number: u64) -> io::Result<(PathBuf, File)> {
        let path = self.path.join("tmp").join(number.to_string());
        let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path)?;
        Ok((path, file))
    }

    /// Makes a finished object visible under its name.
    pub fn publish(&self, unfinished: &Path, sha256: &Sha256) -> io::Result<()> {
        let path = self.path_of(sha256);
        let publish = || std::fs::rename(unfinished, &path);
        match publish() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                path.parent().map_or(Ok(()), make)?;
                publish()
            }
            outcome => outcome,
        }
    }

    /// Opens an object's file.
    pub fn read(&self, sha256: &Sha256) -> io::Result<File> {
        File::open(self.path_of(sha256))
    }

    /// The same without waiting for the disk: `None` where what that takes is not in memory, or the system cannot say
    /// (before Linux 5.12, or forbidden).
    pub fn read_now(&self, sha256: &Sha256) -> Option<File> {
        let (flags, only) = (OFlags::RDONLY | OFlags::CLOEXEC, ResolveFlags::CACHED);
        openat2(CWD, self.path_of(sha256), flags, Mode::empty(), only).ok().map(File::from)
    }

    /// Opens an object's file to write behind what is there.
    pub fn append(&self, sha256: &Sha256) -> io::Result<File> {
        OpenOptions::new().append(true).open(self.path_of(sha256))
    }

    /// Removes an object's file. One that is not there any more is no error.
    pub fn remove(&self, sha256: &Sha256) -> io::Result<()> {
        match std::fs::remove_file(self.path_of(sha256)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The objects in the folder, the one written first in front. What is not named as an object is left alone.
    pub fn walk(&self) -> io::Result<Vec<Found>> {
        let mut objects = Vec::new();
        for first in 0..=u8::MAX {
            let entries = match self.path.join(format!("{first:02x}")).read_dir() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                let sha256 = entry.file_name().to_str().and_then(|name| name.parse::<Sha256>().ok());
                let Some(sha256) = sha256.filter(|sha256| sha256.0[0] == first) else { continue };
                let metadata = entry.metadata()?;
                if metadata.is_file() {
                    objects.push(Found { sha256, bytes: metadata.len(), written: metadata.modified()? });
                }
            }
        }
        objects.sort_by_key(|object| object.written);
        Ok(objects)
    }

    fn path_of(&self, sha256: &Sha256) -> PathBuf {
        let hex = sha256.to_hex();
        self.path.join(&hex[..2]).join(hex)
    }
}

fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}
