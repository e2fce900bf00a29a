//! A response's body: from memory, or from a blob, read as it is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use crate::producer::registry::{Blob, OpenBlob};
use crate::protocol::ByteRange;
use crate::protocol::limits::DATA_PAYLOAD;

/// Bytes read from a file at once: the one buffer of a transfer (specification section 2).
const BUFFER: u64 = DATA_PAYLOAD as u64;

/// The body of any answer.
#[derive(Debug, Default)]
pub(super) enum Body {
    /// None at all, and nothing said about the length of one: of a 304 that would not be the representation's.
    #[default]
    Absent,
    Memory(Bytes),
    Blob(Box<Reading>),
}

impl Body {
    pub(super) fn of(bytes: Bytes) -> Self {
        Self::Memory(bytes)
    }
}

/// A range of a blob being sent.
#[derive(Debug)]
pub(super) struct Reading {
    /// Bytes that are not sent yet, those of `next` included.
    remaining: u64,
    /// Where the next read begins.
    offset: u64,
    next: Next,
    /// Held for as long as the body lives.
    _slot: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Next {
    Read(OpenBlob, Bytes),
    Idle(OpenBlob),
    Pending(JoinHandle<io::Result<(OpenBlob, Bytes)>>),
    Failed,
}

impl Reading {
    /// Opens the blob and reads the first bytes of the range, so that a file which is not what was announced is told
    /// before the head of the response.
    pub(super) async fn open(blob: Blob, range: ByteRange, slot: OwnedSemaphorePermit) -> io::Result<Self> {
        let opening = tokio::task::spawn_blocking(move || read(blob.open()?, range.start, range.len()));
        let (open, first) = opening.await.map_err(io::Error::other)??;
        let offset = range.start + first.len() as u64;
        Ok(Self { remaining: range.len(), offset, next: Next::Read(open, first), _slot: slot })
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            if self.remaining == 0 {
                return Poll::Ready(None);
            }
            match std::mem::replace(&mut self.next, Next::Failed) {
                Next::Read(open, bytes) => {
                    self.next = Next::Idle(open);
                    self.remaining -= bytes.len() as u64;
                    return Poll::Ready(Some(Ok(bytes)));
                }
                Next::Idle(open) => {
                    let (offset, length) = (self.offset, self.remaining);
                    self.next = Next::Pending(tokio::task::spawn_blocking(move || read(open, offset, length)));
                }
                Next::Pending(mut reading) => {
                    let Poll::Ready(read) = reading.poll_unpin(cx) else {
                        self.next = Next::Pending(reading);
                        return Poll::Pending;
                    };
                    match read.map_err(io::Error::other).flatten() {
                        Ok((open, bytes)) => {
                            self.offset += bytes.len() as u64;
                            self.next = Next::Read(open, bytes);
                        }
                        Err(error) => {
                            tracing::debug!(%error, "a transfer is cut: its file cannot be read on");
                            return Poll::Ready(Some(Err(error)));
                        }
                    }
                }
                Next::Failed => return Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into()))),
            }
        }
    }
}

/// The next bytes of at most `length`. Blocks.
fn read(open: OpenBlob, offset: u64, length: u64) -> io::Result<(OpenBlob, Bytes)> {
    // At most BUFFER, so the cast cannot lose anything.
    let mut buffer = Vec::new();
    open.append(offset, length.min(BUFFER) as usize, &mut buffer)?;
    Ok((open, buffer.into()))
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let bytes = match this {
            Self::Absent => None,
            Self::Memory(bytes) if bytes.is_empty() => None,
            Self::Memory(bytes) => Some(Ok(std::mem::take(bytes))),
            Self::Blob(reading) => ready!(reading.poll_read(cx)),
        };
        Poll::Ready(bytes.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Absent => false,
            Self::Memory(bytes) => bytes.is_empty(),
            Self::Blob(reading) => reading.remaining == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Absent => SizeHint::default(),
            Self::Memory(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Blob(reading) => SizeHint::with_exact(reading.remaining),
        }
    }
}
