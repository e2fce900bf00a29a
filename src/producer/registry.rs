//! What can be asked for: every published blob by its hash.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};

use super::folder::{self, Fingerprint};
use crate::protocol::Sha256;

/// Published blobs. Nothing is ever taken out: a set stays servable after the next one is published, for as long as
/// its files still hold the bytes that were hashed.
#[derive(Debug, Default)]
pub struct Registry {
    blobs: RwLock<HashMap<Sha256, Blob>>,
    /// Files that are no longer as they were hashed, as far as that was told.
    lost: Mutex<HashSet<PathBuf>>,
    /// The producer endpoint's URL, until the gateway asks there or it was told that it does not.
    unasked: Mutex<Option<String>>,
}

/// Something published.
#[derive(Debug, Clone)]
pub(super) enum Blob {
    /// A manifest's canonical form.
    Manifest(Bytes),
    /// The files that held these bytes when they were hashed, the newest first.
    Files(Arc<Vec<PublishedFile>>),
}

/// A file as it was hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublishedFile {
    pub(super) location: PathBuf,
    pub(super) fingerprint: Fingerprint,
}

impl Registry {
    /// Makes a file's bytes servable under their hash.
    pub(super) fn add_file(&self, sha256: Sha256, file: PublishedFile) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).remove(&file.location);
        let mut blobs = self.blobs.write().unwrap_or_else(PoisonError::into_inner);
        match blobs.entry(sha256).or_insert_with(|| Blob::Files(Arc::default())) {
            // The same bytes that happen to be a manifest: already servable, and from memory.
            Blob::Manifest(_) => {}
            Blob::Files(files) => {
                let files = Arc::make_mut(files);
                files.retain(|known| known.location != file.location);
                files.insert(0, file);
            }
        }
    }

    /// Makes a manifest servable under its identity.
    pub(super) fn add_manifest(&self, identity: Sha256, canonical: Bytes) {
        let mut blobs = self.blobs.write().unwrap_or_else(PoisonError::into_inner);
        blobs.insert(identity, Blob::Manifest(canonical));
    }

    /// Files can be asked for at this URL too, from now on.
    pub(super) fn serve_at(&self, url: &str) {
        *self.unasked.lock().unwrap_or_else(PoisonError::into_inner) = Some(url.to_owned());
    }

    /// Where a blob could have been asked for, if nobody ever did; once. Manifests have no place but the connection.
    pub(super) fn take_unasked(&self, blob: &Blob) -> Option<String> {
        let mut unasked = self.unasked.lock().unwrap_or_else(PoisonError::into_inner);
        unasked.take_if(|_| matches!(blob, Blob::Files(_)))
    }

    /// Somebody asked at the endpoint.
    pub(super) fn asked(&self) {
        *self.unasked.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The file of a blob that could not be read: once for each file, until it is published again.
    pub(super) fn lose(&self, blob: &Blob) -> Option<PathBuf> {
        let Blob::Files(files) = blob else { return None };
        let location = &files.first()?.location;
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.insert(location.clone()).then(|| location.clone())
    }

    pub(super) fn find(&self, sha256: &Sha256) -> Option<Blob> {
        self.blobs.read().unwrap_or_else(PoisonError::into_inner).get(sha256).cloned()
    }
}

impl Blob {
    /// Length in bytes.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Manifest(canonical) => canonical.len() as u64,
            Self::Files(files) => files.first().map_or(0, |file| file.fingerprint.size),
        }
    }

    /// Opens the blob for reading. Blocks.
    pub(super) fn open(&self) -> io::Result<OpenBlob> {
        match self {
            Self::Manifest(canonical) => Ok(OpenBlob::Manifest(canonical.clone())),
            Self::Files(files) => {
                let mut failed = io::Error::from(io::ErrorKind::NotFound);
                for file in files.iter() {
                    match folder::open(&file.location, file.fingerprint) {
                        Ok(open) => return Ok(OpenBlob::File { open, expected: file.fingerprint }),
                        Err(error) => failed = error,
                    }
                }
                Err(failed)
            }
        }
    }
}

/// A blob being read.
#[derive(Debug)]
pub(super) enum OpenBlob {
    Manifest(Bytes),
    File { open: File, expected: Fingerprint },
}

impl OpenBlob {
    /// Appends the `len` bytes from `offset`. Blocks. Fails when they are not the bytes that were hashed.
    pub(super) fn append(&self, offset: u64, len: usize, buffer: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Manifest(canonical) => {
                let bytes = usize::try_from(offset).ok().and_then(|start| canonical.get(start..)?.get(..len));
                buffer.extend_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Self::File { open, expected } => {
                let (begin, end) = (buffer.len(), buffer.len() + len);
                buffer.reserve_exact(len);
                while buffer.len() < end {
                    let at = offset + (buffer.len() - begin) as u64;
                    match pread(open, spare_capacity(buffer), at) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                // There may have been room for more.
                buffer.truncate(end);
                // After reading: what was read before a change is what was hashed.
                folder::unchanged(open, *expected)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(location: &std::path::Path) -> PublishedFile {
        let fingerprint = Fingerprint::of(&std::fs::symlink_metadata(location).unwrap());
        PublishedFile { location: location.to_owned(), fingerprint }
    }

    fn read(blob: &Blob, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        blob.open()?.append(offset, len, &mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn a_manifest_is_served_from_memory() {
        let registry = Registry::default();
        let identity = Sha256::of(b"{}");
        registry.add_manifest(identity, Bytes::from_static(b"{}"));
        let blob = registry.find(&identity).unwrap();
        assert_eq!(blob.size(), 2);
        assert_eq!(read(&blob, 1, 1).unwrap(), b"}");
        assert!(read(&blob, 1, 2).is_err());
        assert!(read(&blob, u64::MAX, 1).is_err());
    }

    #[test]
    fn another_file_with_the_same_bytes_steps_in() {
        let root = tempfile::tempdir().unwrap();
        let (old, new) = (root.path().join("old"), root.path().join("new"));
        for location in [&old, &new] {
            std::fs::write(location, "same").unwrap();
        }
        let registry = Registry::default();
        let sha256 = Sha256::of(b"same");
        registry.add_file(sha256, published(&old));
        registry.add_file(sha256, published(&new));
        std::fs::remove_file(&new).unwrap();
        let blob = registry.find(&sha256).unwrap();
        assert_eq!(read(&blob, 1, 3).unwrap(), b"ame");
        std::fs::write(&old, "other").unwrap();
        assert!(read(&blob, 0, 4).is_err());
    }

    #[test]
    fn a_file_replaced_while_open_is_served_to_the_end() {
        let root = tempfile::tempdir().unwrap();
        let location = root.path().join("f");
        std::fs::write(&location, "first").unwrap();
        let registry = Registry::default();
        registry.add_file(Sha256::of(b"first"), published(&location));
        let open = registry.find(&Sha256::of(b"first")).unwrap().open().unwrap();
        std::fs::remove_file(&location).unwrap();
        std::fs::write(&location, "second").unwrap();
        let mut bytes = Vec::new();
        open.append(3, 2, &mut bytes).unwrap();
        assert_eq!(bytes, b"st");
    }
}
