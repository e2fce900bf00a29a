//! Files that hold a secret: made at the first start, and nobody else's business.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Longest file that is read.
const FILE_BYTES: u64 = 4096;

/// Why there is no content.
#[derive(Debug)]
pub(super) enum FileError {
    /// It is there and cannot be read.
    Unreadable(io::Error),
    /// It is not there and cannot be made.
    NotCreated(io::Error),
    /// Longer than 4 KiB.
    TooLong,
}

/// What a file holds.
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    /// Every user of the machine can read it.
    is_open: bool,
}

impl Content {
    /// Tells the log when the file, which turned out to hold a secret, is open to everybody.
    pub(super) fn warn_if_open(&self, path: &Path) {
        if self.is_open {
            tracing::warn!(path = %path.display(), "every user of this machine can read this secret: chmod 600 it");
        }
    }
}

/// What is in `path`; what `make` gives is written there first when there is no such file.
pub(super) fn open(path: &Path, make: impl FnOnce() -> String) -> Result<Content, FileError> {
    match read(path) {
        Err(FileError::Unreadable(source)) if source.kind() == io::ErrorKind::NotFound => {
            create(path, &make()).map_err(FileError::NotCreated)?;
            read(path)
        }
        outcome => outcome,
    }
}

fn read(path: &Path) -> Result<Content, FileError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        let mode = file.metadata()?.permissions().mode();
        file.take(FILE_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(mode)
    });
    let mode = read.map_err(FileError::Unreadable)?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(FileError::TooLong);
    }
    Ok(Content { bytes, is_open: mode & 0o004 != 0 })
}

/// Written beside and linked into place, so that nobody ever reads half a secret, and of two processes that start
/// together the later one takes the earlier one's.
fn create(path: &Path, content: &str) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    let draft = parent.join(format!(".secret.{:016x}", rand::random::<u64>()));
    let placed = write_new(&draft, content).and_then(|()| fs::hard_link(&draft, path));
    let removed = fs::remove_file(&draft);
    match placed {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => removed,
    }
}

fn write_new(path: &Path, content: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}
