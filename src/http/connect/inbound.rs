//! The bytes of a WebSocket on their way in: where a long message begins, nothing more of it is read until there is
//! room for it.
//!
//! The WebSocket under a connection's task holds whatever has come of a message until all of it is here. This only looks
//! at the frames' heads (RFC 6455 section 5.2) as they pass; it judges nothing.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::http::limit::{MessageRoom, Share};
use crate::protocol::data::FRAME_MAX;

/// Messages of up to this many bytes need no room: every `blob.data` frame, and most of everything else.
const SHORT: u64 = FRAME_MAX as u64;
/// How long a long message may take from its beginning: its room is not its sender's to keep.
const DEADLINE: Duration = Duration::from_secs(60);

/// A connection's stream.
pub(super) struct Inbound<S> {
    stream: S,
    heads: Heads,
    /// What the current message has taken, and until when. Before `share`, which is forgotten with its last holder.
    room: Room,
    share: Share,
}

enum Room {
    None,
    Wanted(BoxFuture<'static, Option<MessageRoom>>),
    Held { _room: MessageRoom, deadline: Pin<Box<Sleep>> },
}

impl<S> Inbound<S> {
    /// Messages longer than `longest` are refused by whoever reads them, at their head.
    pub(super) fn new(stream: S, share: Share, longest: usize) -> Self {
        Self { stream, heads: Heads::new(longest as u64), room: Room::None, share }
    }

    fn follow(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (rest, found) = self.heads.next(bytes);
            bytes = rest;
            match found {
                Some(Found::Long(length)) => {
                    let kib = u32::try_from(length.div_ceil(1024)).unwrap_or(u32::MAX);
                    self.room = Room::Wanted(self.share.room(kib).boxed());
                }
                Some(Found::End) => self.room = Room::None,
                None => {}
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Inbound<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Room::Wanted(wanted) = &mut this.room {
            let Some(room) = ready!(wanted.poll_unpin(cx)) else {
                return Poll::Ready(Err(io::Error::other("there is no room for messages any more")));
            };
            this.room = Room::Held { _room: room, deadline: Box::pin(tokio::time::sleep(DEADLINE)) };
        }
        if let Room::Held { deadline, .. } = &mut this.room
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "a long message does not end")));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.follow(buf.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Inbound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Follows frames' heads through a stream that is cut anywhere.
struct Heads {
    /// What has come of the current head.
    head: [u8; 14],
    have: usize,
    /// Bytes left of the current frame's payload; none while its head is not whole.
    left: Option<u64>,
    /// Whether the current frame is the last of its message; not where it is a control frame, which is part of none.
    ends: bool,
    /// Bytes of the current message, as far as its frames' heads have come.
    message: u64,
    is_long: bool,
    longest: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// A message that is long, of so many bytes or fewer.
    Long(u64),
    /// The end of a message.
    End,
}

impl Heads {
    fn new(longest: u64) -> Self {
        Self { head: [0; 14], have: 0, left: None, ends: false, message: 0, is_long: false, longest }
    }

    /// Goes on to the next thing found, and hands back what comes after it.
    fn next<'a>(&mut self, mut bytes: &'a [u8]) -> (&'a [u8], Option<Found>) {
        while self.left.is_some() || !bytes.is_empty() {
            if let Some(left) = self.left {
                let passed = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left - passed as u64;
                bytes = bytes.get(passed..).unwrap_or_default();
                self.left = (left > 0).then_some(left);
                if left > 0 {
                    break;
                }
                if std::mem::take(&mut self.ends) {
                    (self.message, self.is_long) = (0, false);
                    return (bytes, Some(Found::End));
                }
            } else if let Some((byte, rest)) = bytes.split_first() {
                bytes = rest;
                let found = self.head(*byte);
                if found.is_some() {
                    return (bytes, found);
                }
            }
        }
        (bytes, None)
    }

    fn head(&mut self, byte: u8) -> Option<Found> {
        if let Some(place) = self.head.get_mut(self.have) {
            *place = byte;
            self.have += 1;
        }
        let [first, second, ..] = self.head;
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if second & 0x80 != 0 { 4 } else { 0 };
        if self.have < 2 + extended + mask {
            return None;
        }
        self.have = 0;
        let length = match extended {
            0 => u64::from(second & 0x7f),
            _ => {
                let length = self.head.iter().skip(2).take(extended);
                length.fold(0, |length, byte| (length << 8) | u64::from(*byte))
            }
        };
        self.left = Some(length);
        let (is_last, is_control) = (first & 0x80 != 0, first & 0x08 != 0);
        if is_control {
            return None;
        }
        let is_whole = is_last && self.message == 0;
        self.ends = is_last;
        self.message = self.message.saturating_add(length);
        let is_long = self.message > SHORT && self.message <= self.longest;
        // One in pieces takes as much as it may come to, so that it never waits for more with some in its hands.
        (is_long && !std::mem::replace(&mut self.is_long, is_long)).then_some(Found::Long(if is_whole {
            length
        } else {
            self.longest
        }))
    }
}

#[cfg(test)]
mod tests;
