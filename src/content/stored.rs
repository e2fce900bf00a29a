//! An object that is being read.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::buffers::Buffer;
use super::cache::{Cache, Wanted};
use super::folder::Stamp;
use crate::protocol::Sha256;

/// Bytes of an object, which was hashed as its file is now. They may be read although the object is removed meanwhile.
#[derive(Debug)]
pub struct Stored {
    cache: Arc<Cache>,
    sha256: Sha256,
    file: File,
    stamp: Stamp,
    /// What has not been read yet.
    rest: Range<u64>,
}

impl Cache {
    /// Begins to read an object at `from`, if it is held and one of the agents has served it. The first use of a file since
    /// the process started, or since the file was changed, hashes it.
    pub async fn find(self: &Arc<Self>, wanted: Wanted<'_>, from: u64) -> Option<Stored> {
        let known = || self.index().look_up(&wanted.sha256).map(|known| known.cloned());
        let mut found = known()?;
        let mut place = None;
        if found.is_none() {
            // The semaphore is never closed.
            place = self.hashing.acquire().await.ok();
            // Whoever had the place before may have hashed this very object.
            found = known()?;
        }
        if found.is_some() {
            drop(place.take());
        }
        let known = found;
        if known.as_ref().is_some_and(|known| !known.is_for(&wanted)) {
            self.count_lookup("not_served");
            return None;
        }
        let (cache, sha256, length) = (Arc::clone(self), wanted.sha256, wanted.length);
        if let Some((file, stamp)) = known.as_ref().and_then(|known| self.open_now(&sha256, known)) {
            self.count_lookup("found");
            return Some(Stored { cache, sha256, file, stamp, rest: from..length });
        }
        let agents = wanted.agents.to_vec();
        let open = move || {
            let wanted = Wanted { sha256, length, agents: &agents };
            let found = cache.open_verified(&wanted, known.as_ref());
            if let Err(error) = &found {
                tracing::warn!(%sha256, %error, "an object of the cache cannot be read");
                cache.forget(&sha256);
            }
            let (file, stamp) = found.ok().flatten()?;
            Some(Stored { cache, sha256, file, stamp, rest: from..length })
        };
        let stored = tokio::task::spawn_blocking(open).await.ok().flatten();
        drop(place);
        self.count_lookup(if stored.is_some() { "found" } else { "not_served" });
        stored
    }
}

impl Stored {
    /// Bytes not read yet, up to the object's end.
    pub fn left(&self) -> u64 {
        self.rest.end.saturating_sub(self.rest.start)
    }

    /// The next bytes, at most `most`, without waiting for the disk: what of them is in memory. `None` where nothing is, or
    /// the disk does not say; [`read`](Self::read) then waits.
    ///
    /// # Errors
    /// The file is not what was hashed any more: what was read before still is right.
    pub fn read_now(&mut self, most: usize) -> Option<io::Result<Bytes>> {
        let mut bytes = self.buffer(most);
        let (into, from) = (bytes.as_mut(), self.rest.start);
        let read = match self.cache.folder.in_memory {
            true => pread(&self.file, into, from),
            false => preadv2(&self.file, &mut [IoSliceMut::new(into)], from, ReadWriteFlags::NOWAIT),
        };
        match read {
            // At the end of a file that is too short: the other way says so.
            Ok(0) | Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::INTR) => None,
            Ok(read) => {
                bytes.truncate(read);
                Some(self.passed(bytes))
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    /// The next bytes, at most `most` and at most [`DATA_PAYLOAD`](crate::protocol::limits::DATA_PAYLOAD).
    ///
    /// # Errors
    /// The file cannot be read, or is not what was hashed any more: what was read before still is right.
    pub async fn read(mut self, most: usize) -> io::Result<(Self, Bytes)> {
        let read = move || {
            let mut bytes = self.buffer(most);
            self.file.read_exact_at(bytes.as_mut(), self.rest.start)?;
            let bytes = self.passed(bytes)?;
            Ok((self, bytes))
        };
        tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
    }

    fn buffer(&self, most: usize) -> Buffer {
        self.cache.buffers.take(usize::try_from(self.left()).map_or(most, |left| left.min(most)))
    }

    /// Bytes that were just read, if the file still is what was hashed.
    fn passed(&mut self, bytes: Buffer) -> io::Result<Bytes> {
        let now = Stamp::of(&self.file)?;
        if !self.cache.is_sound(&self.sha256, self.stamp, now) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file was changed while it was read"));
        }
        self.rest.start += bytes.len() as u64;
        self.cache.metrics.cache_read_bytes.inc_by(bytes.len() as u64);
        Ok(bytes.freeze())
    }
}
