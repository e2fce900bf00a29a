//! An object that is being read.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

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
    left: u64,
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
        let agents = wanted.agents.to_vec();
        let open = move || {
            let wanted = Wanted { sha256, length, agents: &agents };
            let found = cache.open_verified(&wanted, known.as_ref());
            if let Err(error) = &found {
                tracing::warn!(%sha256, %error, "an object of the cache cannot be read");
                cache.forget(&sha256);
            }
            let (file, stamp) = found.ok().flatten()?;
            Stored::new(cache, wanted.sha256, file, stamp, from..length).ok()
        };
        let stored = tokio::task::spawn_blocking(open).await.ok().flatten();
        drop(place);
        self.count_lookup(if stored.is_some() { "found" } else { "not_served" });
        stored
    }
}

impl Stored {
    pub(super) fn new(
        cache: Arc<Cache>,
        sha256: Sha256,
        mut file: File,
        stamp: Stamp,
        range: Range<u64>,
    ) -> io::Result<Self> {
        file.seek(SeekFrom::Start(range.start))?;
        Ok(Self { cache, sha256, file, stamp, left: range.end.saturating_sub(range.start) })
    }

    /// Bytes not read yet, up to the object's end.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The next bytes, at most `most`.
    ///
    /// # Errors
    /// The file cannot be read, or is not what was hashed any more: what was read before still is right.
    pub fn read(self, most: usize) -> impl Future<Output = io::Result<(Self, Bytes)>> {
        // Begun at once, so that it is done by the time it is asked for.
        let reading = tokio::task::spawn_blocking(move || self.read_blocking(most));
        async { reading.await.map_err(io::Error::other)? }
    }

    fn read_blocking(mut self, most: usize) -> io::Result<(Self, Bytes)> {
        let most = self.left.min(most as u64);
        let mut bytes = Vec::with_capacity(usize::try_from(most).map_err(io::Error::other)?);
        (&mut self.file).take(most).read_to_end(&mut bytes)?;
        let now = Stamp::of(&self.file)?;
        if (bytes.len() as u64) < most || !self.cache.is_sound(&self.sha256, self.stamp, now) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file was changed while it was read"));
        }
        self.left -= most;
        self.cache.metrics.cache_read_bytes.inc_by(most);
        Ok((self, bytes.into()))
    }
}
