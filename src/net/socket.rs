//! A connection's socket, which gives itself up when nothing moves.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// The length of HTTP/2's preface (RFC 9113 section 3.4): which protocol is spoken is known once it is read.
const PREFACE_BYTES: usize = 24;
/// How long a peer has, once all is written, to take it and close its side.
const LINGER: Duration = Duration::from_secs(5);

/// A TCP stream with two deadlines that the HTTP library does not have: for the first bytes, while it does not yet
/// know which protocol is spoken, and for a peer that takes nothing of what waits for it.
#[derive(Debug)]
pub struct Socket<S> {
    stream: TcpStream,
    opening: Option<Opening>,
    stalled: Option<Pin<Box<Sleep>>>,
    stall: Duration,
    lingering: Option<Pin<Box<Sleep>>>,
    _slot: S,
}

#[derive(Debug)]
struct Opening {
    deadline: Pin<Box<Sleep>>,
    received: usize,
}

impl<S> Socket<S> {
    /// `opening` is how long the first bytes may take, `stall` how long the peer may take nothing of what waits. `slot` is
    /// given back when the socket is dropped, whatever it was upgraded to in between.
    pub fn new(stream: TcpStream, opening: Duration, stall: Duration, slot: S) -> Self {
        let deadline = Box::pin(tokio::time::sleep(opening));
        Self {
            stream,
            opening: Some(Opening { deadline, received: 0 }),
            stalled: None,
            stall,
            lingering: None,
            _slot: slot,
        }
    }

    /// Reads what nobody wants any more, until the peer closes its side. A socket that is closed with something unread is
    /// reset, and a reset takes with it what the peer has not read yet (RFC 9112 section 9.6): the last bytes of a
    /// response, for a window update or a ping that came meanwhile.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let lingering = self.lingering.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        while Instant::now() < lingering.deadline() {
            let mut unwanted = [MaybeUninit::uninit(); 4096];
            let mut unwanted = ReadBuf::uninit(&mut unwanted);
            match Pin::new(&mut self.stream).poll_read(cx, &mut unwanted) {
                Poll::Ready(Ok(())) if !unwanted.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return lingering.as_mut().poll(cx),
            }
        }
        Poll::Ready(())
    }

    /// Passes a write's outcome on, unless none has got through for too long.
    fn watch(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            self.opening = None;
            return written;
        }
        let stall = self.stall;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + stall)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(timed_out("the reader takes nothing")))
    }
}

fn timed_out(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl<S: Unpin> AsyncRead for Socket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(opening) = &mut self.opening else { return read };
        if read.is_pending() {
            ready!(opening.deadline.as_mut().poll(cx));
            return Poll::Ready(Err(timed_out("the first request does not come")));
        }
        opening.received += buf.filled().len() - before;
        if opening.received >= PREFACE_BYTES {
            self.opening = None;
        }
        read
    }
}

impl<S: Unpin> AsyncWrite for Socket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        self.poll_linger(cx).map(Ok)
    }
}
