//! The file that holds the secret of the gateway's own tokens.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Shortest secret, in bytes: an HS256 key is as long as its hash (RFC 7518 section 3.2).
const SECRET_BYTES: usize = 32;
/// Longest secret file that is read.
const FILE_BYTES: u64 = 4096;

/// Why there is no secret to sign with.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file is there and cannot be read.
    #[error("cannot read the token secret {}: {source} (let this user read it, or set --token-secret-file)", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no file and it cannot be made.
    #[error("cannot create the token secret {}: {source} (set --token-secret-file or --data-dir to a writable place)", path.display())]
    NotCreated {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file holds too little to be safe.
    #[error("the token secret {} is shorter than 32 bytes (delete it to have one made)", path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
    },
    /// The file is no secret at all.
    #[error("the token secret {} is longer than 4 KiB (check --token-secret-file)", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
}

/// The secret in `path`, without a final line break; made first when there is no such file.
pub(super) fn open(path: &Path) -> Result<Vec<u8>, SecretError> {
    match read(path) {
        Err(SecretError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            create(path).map_err(|source| SecretError::NotCreated { path: path.to_owned(), source })?;
            read(path)
        }
        outcome => outcome,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, SecretError> {
    let mut secret = Vec::new();
    let read = File::open(path).and_then(|file| {
        let mode = file.metadata()?.permissions().mode();
        file.take(FILE_BYTES + 1).read_to_end(&mut secret)?;
        Ok(mode)
    });
    let mode = read.map_err(|source| SecretError::Unreadable { path: path.to_owned(), source })?;
    if secret.len() as u64 > FILE_BYTES {
        return Err(SecretError::TooLong { path: path.to_owned() });
    }
    // A secret written by hand usually ends a line; the line break is not part of it.
    if secret.ends_with(b"\n") {
        secret.pop();
        if secret.ends_with(b"\r") {
            secret.pop();
        }
    }
    if secret.len() < SECRET_BYTES {
        return Err(SecretError::TooShort { path: path.to_owned() });
    }
    if mode & 0o004 != 0 {
        tracing::warn!(path = %path.display(), "every user of this machine can read the token secret: chmod 600 it");
    }
    Ok(secret)
}

/// Written beside and linked into place, so that nobody ever reads half a secret, and of two processes that start
/// together the later one takes the earlier one's.
fn create(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    let draft = parent.join(format!(".token.secret.{:016x}", rand::random::<u64>()));
    let placed = write_new(&draft).and_then(|()| fs::hard_link(&draft, path));
    let removed = fs::remove_file(&draft);
    match placed {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => removed,
    }
}

fn write_new(path: &Path) -> io::Result<()> {
    let secret: [u8; SECRET_BYTES] = rand::random();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // As text, so that the same string can be given to whatever else mints tokens.
    writeln!(file, "{}", URL_SAFE_NO_PAD.encode(secret))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_start_makes_a_secret_that_the_next_one_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/token.secret");
        let made = open(&path).unwrap();
        assert_eq!(made.len(), 43);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(open(&path).unwrap(), made);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "the draft is gone");
    }

    #[test]
    fn starts_at_the_same_time_agree() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token.secret");
        let secrets: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&path).unwrap())).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        assert!(secrets.iter().all(|secret| *secret == secrets[0]));
    }

    #[test]
    fn a_line_break_is_not_part_of_the_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for end in ["", "\n", "\r\n"] {
            fs::write(&path, format!("{}{end}", "x".repeat(32))).unwrap();
            assert_eq!(open(&path).unwrap(), vec![b'x'; 32]);
        }
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for (content, fits) in [(0, false), (31, false), (32, true), (4096, true), (4097, false)] {
            fs::write(&path, vec![b'x'; content]).unwrap();
            assert_eq!(open(&path).is_ok(), fits, "{content}");
        }
        assert!(matches!(open(dir.path()), Err(SecretError::Unreadable { .. })));
        assert!(matches!(
            open(&path.join("below-a-file")),
            Err(SecretError::Unreadable { .. } | SecretError::NotCreated { .. })
        ));
    }
}
