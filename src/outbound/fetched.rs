use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use futures_util::future::Fuse;
use http::{HeaderMap, Response};
use http_body::Body as _;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::Connection;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::bounds::Permit;
use super::connect::Stream;
use super::{Fetch, FetchError};

pub(super) type Driver = Fuse<Pin<Box<Connection<TokioIo<Stream>, Empty<Bytes>>>>>;

/// A response whose head has come. Dropping it closes the connection.
#[derive(Debug)]
pub struct Fetched {
    /// The status code.
    pub status: u16,
    /// The headers. The sender chose them.
    pub headers: HeaderMap,
    body: Incoming,
    /// What moves the body.
    connection: Driver,
    taken: u64,
    max_bytes: u64,
    timeout: Duration,
    deadline: Instant,
    _permit: Permit,
}

impl Fetched {
    pub(super) fn new(
        response: Response<Incoming>,
        connection: Driver,
        permit: Permit,
        fetch: &Fetch,
        deadline: Instant,
    ) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            connection,
            taken: 0,
            max_bytes: fetch.max_bytes,
            timeout: fetch.timeout,
            deadline,
            _permit: permit,
        }
    }

    /// The whole body, in the time that was given from the call on.
    ///
    /// # Errors
    /// [`FetchError::TimedOut`], [`FetchError::TooLarge`] or [`FetchError::Broken`].
    pub async fn bytes(mut self) -> Result<Bytes, FetchError> {
        let deadline = self.deadline;
        let reading = async {
            let mut all = BytesMut::new();
            while let Some(part) = std::future::poll_fn(|cx| self.poll_part(cx)).await? {
                all.extend_from_slice(&part);
            }
            Ok(all.freeze())
        };
        tokio::time::timeout_at(deadline, reading).await.unwrap_or(Err(FetchError::TimedOut))
    }

    /// The next bytes of the body; `None` at its end, which is never earlier than its `Content-Length` says. While
    /// nobody asks, nothing is read, and the sender has to wait.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes), with the time that was given for each part.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        let timeout = self.timeout;
        let part = std::future::poll_fn(|cx| self.poll_part(cx));
        tokio::time::timeout(timeout, part).await.unwrap_or(Err(FetchError::TimedOut))
    }

    /// As [`next`](Self::next), without a limit in time.
    pub fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, FetchError>> {
        loop {
            // Its end is no news: the body tells whether it came whole.
            let _ = self.connection.poll_unpin(cx);
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else { return Poll::Ready(Ok(None)) };
            // Trailers are passed over.
            let Ok(part) = frame.map_err(|_| FetchError::Broken)?.into_data() else { continue };
            self.taken += part.len() as u64;
            if self.taken > self.max_bytes {
                return Poll::Ready(Err(FetchError::TooLarge { limit: self.max_bytes }));
            }
            return Poll::Ready(Ok(Some(part)));
        }
    }
}
