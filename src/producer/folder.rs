//! What a folder holds: its regular files, in an order that does not depend on the file system.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::protocol::limits::MANIFEST_ENTRIES;
use crate::protocol::manifest::path;

/// A folder that cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The operating system refused.
    #[error("cannot read {path:?}: {error}")]
    Io {
        /// What was read.
        path: PathBuf,
        /// Why it failed.
        error: io::Error,
    },
    /// Not a folder.
    #[error("{0:?} is not a folder; give the folder that holds the files")]
    NotAFolder(PathBuf),
    /// More files than a manifest lists (specification section 6).
    #[error("{0:?} holds more than {MANIFEST_ENTRIES} files, the most that one set lists; publish a smaller folder")]
    TooManyFiles(PathBuf),
}

/// Why something in a folder is not published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// A symbolic link: it could lead out of the folder.
    Link,
    /// A socket, a pipe or a device.
    NotAFile,
    /// A name that no manifest path can hold (specification section 1).
    Name,
    /// The name begins with a dot: what is hidden is often secret, such as keys and histories.
    Hidden,
    /// The operating system refused to read it.
    Unreadable(io::ErrorKind),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link => f.write_str("links are not followed"),
            Self::NotAFile => f.write_str("not a regular file"),
            Self::Name => f.write_str("the name cannot stand in a manifest"),
            Self::Hidden => f.write_str("hidden, and served with --hidden only"),
            Self::Unreadable(kind) => write!(f, "it cannot be read: {kind}"),
        }
    }
}

/// What tells that a file is still the one that was hashed, without hashing it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    pub(super) size: u64,
    modified: Option<SystemTime>,
    /// Device and inode, where there are such things: a link put in a file's place does not match.
    node: (u64, u64),
}

impl Fingerprint {
    pub(super) fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let node = {
            use std::os::unix::fs::MetadataExt as _;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let node = (0, 0);
        Self { size: metadata.len(), modified: metadata.modified().ok(), node }
    }

    /// When the file was last written to, Unix milliseconds; 0 for anything earlier. `None` where nobody knows.
    pub(super) fn modified_millis(&self) -> Option<i64> {
        let since = self.modified?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).ok()
    }
}

/// A regular file of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundFile {
    /// Relative, `/`-separated.
    pub(super) path: String,
    /// Where it is.
    pub(super) location: PathBuf,
    pub(super) fingerprint: Fingerprint,
}

/// Opens a file that was found, if it is still the same file.
pub(super) fn open(location: &Path, expected: Fingerprint) -> io::Result<File> {
    // Asked before opening too, because opening a pipe that was put in the file's place would block.
    if Fingerprint::of(&fs::symlink_metadata(location)?) != expected {
        return Err(changed());
    }
    let file = File::open(location)?;
    unchanged(&file, expected)?;
    Ok(file)
}

/// Fails when an open file has changed since it was found.
pub(super) fn unchanged(file: &File, expected: Fingerprint) -> io::Result<()> {
    if Fingerprint::of(&file.metadata()?) == expected { Ok(()) } else { Err(changed()) }
}

/// The published bytes are there no more than those of a file that was removed.
fn changed() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the file has changed since it was published")
}

/// Every regular file below `root`, sorted by path. Links are not followed, and what is hidden is looked at only with
/// `hidden`; what is left out is told to `skipped`.
pub(super) fn scan(
    root: &Path,
    hidden: bool,
    mut skipped: impl FnMut(String, SkipReason),
) -> Result<Vec<FoundFile>, FolderError> {
    let io_error = |path: &Path| {
        let path = path.to_owned();
        move |error| FolderError::Io { path, error }
    };
    let root = fs::canonicalize(root).map_err(io_error(root))?;
    if !root.is_dir() {
        return Err(FolderError::NotAFolder(root));
    }
    let mut found = Vec::new();
    let mut folders = vec![(root.clone(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        let items = match fs::read_dir(&folder) {
            Ok(items) => items,
            Err(error) if !prefix.is_empty() => {
                // Gone since it was found: as if it had never been there.
                if error.kind() != io::ErrorKind::NotFound {
                    skipped(prefix.trim_end_matches('/').to_owned(), SkipReason::Unreadable(error.kind()));
                }
                continue;
            }
            Err(error) => return Err(io_error(&folder)(error)),
        };
        for item in items {
            let item = item.map_err(io_error(&folder))?;
            let location = item.path();
            let Some(relative) = item.file_name().to_str().map(|name| format!("{prefix}{name}")) else {
                skipped(location.display().to_string(), SkipReason::Name);
                continue;
            };
            let metadata = match fs::symlink_metadata(&location) {
                Ok(metadata) => metadata,
                // Gone since the folder was listed: as if it had never been there.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    skipped(relative, SkipReason::Unreadable(error.kind()));
                    continue;
                }
            };
            if !hidden && item.file_name().as_encoded_bytes().starts_with(b".") {
                skipped(relative, SkipReason::Hidden);
            } else if path::check(&relative).is_err() {
                skipped(relative, SkipReason::Name);
            } else if metadata.is_dir() {
                folders.push((location, format!("{relative}/")));
            } else if metadata.is_symlink() {
                skipped(relative, SkipReason::Link);
            } else if !metadata.is_file() {
                skipped(relative, SkipReason::NotAFile);
            } else if found.len() == MANIFEST_ENTRIES {
                return Err(FolderError::TooManyFiles(root));
            } else {
                found.push(FoundFile { path: relative, location, fingerprint: Fingerprint::of(&metadata) });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(root: &Path, hidden: bool) -> (Vec<String>, Vec<(String, SkipReason)>) {
        let mut skipped = Vec::new();
        let found = scan(root, hidden, |path, reason| skipped.push((path, reason))).unwrap();
        skipped.sort_by(|a, b| a.0.cmp(&b.0));
        (found.into_iter().map(|file| file.path).collect(), skipped)
    }

    #[test]
    fn files_come_sorted_by_their_whole_path() {
        let root = tempfile::tempdir().unwrap();
        for path in ["b.txt", "a/z.txt", "a-b.txt", "a/b/c.txt"] {
            let location = root.path().join(path);
            fs::create_dir_all(location.parent().unwrap()).unwrap();
            fs::write(location, path).unwrap();
        }
        fs::create_dir(root.path().join("empty")).unwrap();
        let (found, skipped) = paths(root.path(), false);
        assert_eq!(found, ["a-b.txt", "a/b/c.txt", "a/z.txt", "b.txt"]);
        assert_eq!(skipped, []);
    }

    #[test]
    fn what_is_hidden_is_left_out_unless_asked_for() {
        let root = tempfile::tempdir().unwrap();
        for path in [".env", ".git/config", "a/.ssh/id", "a/b.txt", "not.hidden"] {
            let location = root.path().join(path);
            fs::create_dir_all(location.parent().unwrap()).unwrap();
            fs::write(location, path).unwrap();
        }
        let (found, skipped) = paths(root.path(), false);
        assert_eq!(found, ["a/b.txt", "not.hidden"]);
        let expected = [".env", ".git", "a/.ssh"].map(|path| (path.to_owned(), SkipReason::Hidden));
        assert_eq!(skipped, expected);
        let (found, skipped) = paths(root.path(), true);
        assert_eq!(found, [".env", ".git/config", "a/.ssh/id", "a/b.txt", "not.hidden"]);
        assert_eq!(skipped, []);
        // The folder itself was named by whoever serves it.
        assert_eq!(paths(&root.path().join(".git"), false).0, ["config"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_odd_names_are_left_out_and_said_so() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("real"), "r").unwrap();
        fs::write(root.path().join("back\\slash"), "r").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("out")).unwrap();
        std::os::unix::fs::symlink("real", root.path().join("alias")).unwrap();
        let (found, skipped) = paths(root.path(), false);
        assert_eq!(found, ["real"]);
        let expected = [("alias", SkipReason::Link), ("back\\slash", SkipReason::Name), ("out", SkipReason::Link)];
        assert_eq!(skipped, expected.map(|(path, reason)| (path.to_owned(), reason)));
    }

    #[test]
    fn a_file_that_changed_does_not_open() {
        let root = tempfile::tempdir().unwrap();
        let location = root.path().join("f");
        fs::write(&location, "one").unwrap();
        let file = scan(root.path(), false, |_, _| ()).unwrap().remove(0);
        let held = open(&file.location, file.fingerprint).unwrap();
        fs::write(&location, "longer").unwrap();
        assert!(open(&file.location, file.fingerprint).is_err());
        assert!(unchanged(&held, file.fingerprint).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_the_files_place_does_not_open() {
        let root = tempfile::tempdir().unwrap();
        let location = root.path().join("f");
        fs::write(&location, "one").unwrap();
        let file = scan(root.path(), false, |_, _| ()).unwrap().remove(0);
        fs::rename(&location, root.path().join("g")).unwrap();
        std::os::unix::fs::symlink("g", &location).unwrap();
        assert!(open(&file.location, file.fingerprint).is_err());
    }

    #[test]
    fn what_is_no_folder_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(scan(file.path(), false, |_, _| ()), Err(FolderError::NotAFolder(_))));
        assert!(matches!(scan(Path::new("/no/such/folder"), false, |_, _| ()), Err(FolderError::Io { .. })));
    }
}
