//! How an agent serves reads: by the rules, or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::log::What;

/// How reads are served. Starts obedient; each method bends one thing.
///
/// ```ignore
/// Behaviour::obedient().at(1_000_000, Fault::Die)              // once: what is asked again is served
/// Behaviour::obedient().at(0, Fault::Error("read_failed")).always()
/// Behaviour::obedient().greedy().frames_of(1000)
/// ```
#[derive(Debug, Clone)]
pub struct Behaviour {
    pub(super) frame_size: usize,
    pub(super) greedy: bool,
    pub(super) ignores_cancel: bool,
    fault: Option<(u64, Fault)>,
    /// How often the fault still takes place; shared by clones, so that "once" means once.
    left: Arc<AtomicUsize>,
}

/// What goes wrong when the byte at the fault's offset in the blob is about to be sent. Exactly the bytes before it
/// have been sent by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection that the read is on ends, without a close frame. The platform gets exactly the bytes before.
    Die,
    /// The connection that the read is on is reset. Bytes sent before may be lost with it.
    Reset,
    /// Nothing more comes for this read. The connection lives and other reads are served.
    Stall,
    /// The connection stays open, but nothing is read from it or written to it any more, pongs neither.
    HalfOpen,
    /// `blob.error` with this code.
    Error(&'static str),
    /// This byte is another one.
    Corrupt,
    /// The frame that starts here claims to start one byte later.
    WrongOffset,
    /// The frame that starts here is left out.
    Gap,
    /// The frame that starts here is sent twice.
    Duplicate,
    /// The frame that starts here names a read that is not in progress.
    WrongRequestId,
    /// A frame with one byte of payload more than the most allowed.
    Oversize,
    /// A frame without payload, before the right one.
    Empty,
    /// A frame of version 2.
    WrongVersion,
    /// A frame of kind 7.
    WrongKind,
    /// A frame that ends inside its header.
    Truncated,
    /// `blob.end` here, telling the truth about the bytes sent.
    Short,
    /// `blob.end` here, claiming that everything was sent.
    ShortLie,
    /// When the read is done: one more byte than asked for, before the end. The offset is not looked at.
    TooLong,
    /// When the read is done: `blob.end` with one byte more in `bytes`. The offset is not looked at.
    WrongEndBytes,
    /// When the read is done: no `blob.end`. The offset is not looked at.
    NoEnd,
    /// When the read is done: `blob.end` twice. The offset is not looked at.
    EndTwice,
}

impl Fault {
    pub(super) fn is_at_end(self) -> bool {
        matches!(self, Self::TooLong | Self::WrongEndBytes | Self::NoEnd | Self::EndTwice)
    }
}

impl Behaviour {
    /// By the rules, in full frames.
    pub fn obedient() -> Self {
        Self { frame_size: 256 * 1024, greedy: false, ignores_cancel: false, fault: None, left: Arc::default() }
    }

    /// Sends without waiting for credit.
    pub fn greedy(mut self) -> Self {
        self.greedy = true;
        self
    }

    /// Goes on with a read that was cancelled, within its credit.
    pub fn ignoring_cancel(mut self) -> Self {
        self.ignores_cancel = true;
        self
    }

    /// Sends frames of at most this many bytes.
    pub fn frames_of(mut self, bytes: usize) -> Self {
        self.frame_size = bytes;
        self
    }

    /// This goes wrong, once, at this offset in the blob.
    pub fn at(mut self, offset: u64, fault: Fault) -> Self {
        self.fault = Some((offset, fault));
        self.times(1)
    }

    /// The fault takes place this many times.
    pub fn times(mut self, times: usize) -> Self {
        self.left = Arc::new(AtomicUsize::new(times));
        self
    }

    /// The fault takes place every time.
    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }

    /// The offset of the fault that is still to come, if any.
    pub(super) fn pending(&self) -> Option<(u64, Fault)> {
        self.fault.filter(|_| self.left.load(Ordering::Relaxed) > 0)
    }

    /// Takes one of the fault's times. False when another read has taken the last.
    pub(super) fn take(&self) -> bool {
        let less = |left: usize| if left == usize::MAX { Some(left) } else { left.checked_sub(1) };
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// A `blob.data` frame, by hand and therefore free to be wrong.
pub fn data_frame(request_id: &str, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![1, 1];
    frame.extend((request_id.len() as u16).to_be_bytes());
    frame.extend(request_id.as_bytes());
    frame.extend(offset.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The reads that were in progress at the same time, at most, by a log.
pub fn most_concurrent<'a>(events: impl Iterator<Item = &'a What>) -> usize {
    let mut open = std::collections::HashSet::new();
    let mut most = 0;
    for what in events {
        match what {
            What::Read { request_id, .. } => _ = open.insert(request_id),
            What::Cancel { request_id } | What::SentEnd { request_id } | What::SentError { request_id, .. } => {
                open.remove(request_id);
            }
            What::Closed { .. } | What::Lost | What::Cut => open.clear(),
            _ => {}
        }
        most = most.max(open.len());
    }
    most
}
