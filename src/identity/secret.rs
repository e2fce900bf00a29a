//! The file that holds the secret of the gateway's own tokens.

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::file::{self, FileError};

/// Shortest secret, in bytes: an HS256 key is as long as its hash (RFC 7518 section 3.2).
const SECRET_BYTES: usize = 32;

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
    // As text, so that the same string can be given to whatever else mints tokens.
    let make = || format!("{}\n", URL_SAFE_NO_PAD.encode(rand::random::<[u8; SECRET_BYTES]>()));
    let content = file::open(path, make).map_err(|error| {
        let path = path.to_owned();
        match error {
            FileError::Unreadable(source) => SecretError::Unreadable { path, source },
            FileError::NotCreated(source) => SecretError::NotCreated { path, source },
            FileError::TooLong => SecretError::TooLong { path },
        }
    })?;
    let mut secret = content.bytes.clone();
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
    content.warn_if_open(path);
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

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
