//! Memory that objects are read into, used again once their readers have taken what was in it: new memory of this size
//! costs about as much to be had from the system as the bytes cost to be copied into it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::protocol::limits::DATA_PAYLOAD;

/// Buffers that are kept for the next readers.
const IDLE: usize = 8;

/// Buffers that nobody uses.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Vec<Box<[u8]>>>);

/// A buffer until it is dropped, and how much of it counts.
pub(super) struct Buffer {
    bytes: Box<[u8]>,
    len: usize,
    home: Arc<Buffers>,
}

impl Buffers {
    /// A buffer of `len` bytes, at most [`DATA_PAYLOAD`]. What is in it is left of another use.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let idle = self.idle().pop();
        let bytes = idle.unwrap_or_else(|| vec![0; DATA_PAYLOAD].into_boxed_slice());
        Buffer { len: len.min(bytes.len()), bytes, home: Arc::clone(self) }
    }

    /// The guard, also after a panic elsewhere: every change under it is whole.
    fn idle(&self) -> MutexGuard<'_, Vec<Box<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// No more than `len` bytes of it count.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(super) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// What is in it, without a copy.
    pub(super) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut idle = self.home.idle();
        if idle.len() < IDLE {
            idle.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("idle", &self.idle().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_once_nobody_reads_it_any_more() {
        let buffers = Arc::<Buffers>::default();
        let mut first = buffers.take(10);
        first.as_mut().copy_from_slice(b"0123456789");
        first.truncate(4);
        let place = first.bytes.as_ptr();
        let bytes = first.freeze();
        let part = bytes.slice(1..3);
        drop(bytes);
        let second = buffers.take(DATA_PAYLOAD);
        assert_ne!(second.bytes.as_ptr(), place, "a part of it is read still");
        assert_eq!(part, "12");
        drop(part);
        assert_eq!(buffers.take(DATA_PAYLOAD + 1).bytes.as_ptr(), place);
    }

    #[test]
    fn no_more_are_kept_than_are_of_use() {
        let buffers = Arc::<Buffers>::default();
        let many: Vec<_> = (0..2 * IDLE).map(|_| buffers.take(1)).collect();
        drop(many);
        assert_eq!(buffers.idle().len(), IDLE);
    }
}
