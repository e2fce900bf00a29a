//! One log line and one count for each request.
//!
//! A line names the route's pattern, never the path or the query as sent: they hold names of files, and tokens.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use super::limit::{Client, Permits};
use super::server::Peer;
use crate::metrics::Metrics;
use crate::transfer::TransferError;

/// Carries a request's id, in both directions.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is taken over from a request, in bytes.
const REQUEST_ID_BYTES: usize = 128;

/// The status, in the metric, of a request whose sender left before there was an answer.
const UNANSWERED: &str = "none";

/// What a request is called in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The request's own id when it is fit for a log line, else a new one.
    fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
        let fit = |id: &&str| {
            (1..=REQUEST_ID_BYTES).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        match sent.filter(fit) {
            Some(id) => Self(id.into()),
            None => Self(format!("{:032x}", rand::random::<u128>()).into()),
        }
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Makes the series of a download's two good answers, so that they exist before the first.
pub fn touch_metrics(metrics: &Metrics, route: &str) {
    for status in [StatusCode::OK, StatusCode::PARTIAL_CONTENT] {
        let _ = metrics.requests.with_label_values(&[route, status.as_str()]);
    }
}

/// A request from its beginning to the end of its answer's body.
pub struct Trace {
    span: Span,
    line: Line,
}

impl Trace {
    /// Gives the request an id. It is counted in `metrics`; `cut` is cancelled when the gateway's end cuts what still runs.
    pub fn begin(request: &mut Request, metrics: Arc<Metrics>, cut: CancellationToken) -> Self {
        let id = RequestId::of(request.headers());
        let extensions = request.extensions();
        let line = Line {
            started: Instant::now(),
            id: id.clone(),
            route: extensions.get::<MatchedPath>().cloned(),
            method: request.method().clone(),
            peer: extensions.get::<Peer>().copied(),
            client: extensions.get::<Client>().copied(),
            status: None,
            bytes: 0,
            end: None,
            metrics,
            cut,
            _permits: extensions.get::<Permits>().cloned(),
        };
        let span = tracing::info_span!("request", request_id = id.as_str());
        request.extensions_mut().insert(id);
        Self { span, line }
    }

    /// Counts the answer, and writes the request's line when its body is over, or when nobody waits for the answer any
    /// more. What is logged until then names the request.
    pub async fn follow(self, answer: impl Future<Output = Response>) -> Response {
        let Self { span, mut line } = self;
        let mut response = answer.instrument(span.clone()).await;
        line.answered(response.status());
        if let Ok(value) = HeaderValue::from_str(line.id.as_str()) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        response.map(|inner| Body::new(Measured { inner, line, span }))
    }
}

/// How a response's body ended.
#[derive(Debug, Clone, Copy)]
enum End {
    Complete,
    Failed,
}

/// A body that counts what passes. The request's line is written when it is dropped: the reader may leave at any time.
struct Measured {
    inner: Body,
    line: Line,
    span: Span,
}

impl http_body::Body for Measured {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Self { inner, span, .. } = &mut *self;
        let polled = span.in_scope(|| Pin::new(inner).poll_frame(cx));
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.line.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            Poll::Ready(Some(Err(_))) => self.line.end = Some(End::Failed),
            Poll::Ready(None) => self.line.end = Some(End::Complete),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        // A body whose length is known is often dropped once it is sent, without being asked for its end.
        let nothing_left = self.inner.is_end_stream() || self.inner.size_hint().exact() == Some(0);
        // The body of an answer to HEAD is never sent, and neither is that of 304.
        let bodiless = self.line.method == Method::HEAD || self.line.status == Some(StatusCode::NOT_MODIFIED);
        if self.line.end.is_none() && (nothing_left || bodiless) {
            self.line.end = Some(End::Complete);
        }
        // What ends with it says so before the request does, and names it.
        let inner = std::mem::take(&mut self.inner);
        self.span.in_scope(|| drop(inner));
    }
}

/// What is known of one request. It is written when it is dropped.
struct Line {
    started: Instant,
    id: RequestId,
    route: Option<MatchedPath>,
    method: Method,
    peer: Option<Peer>,
    client: Option<Client>,
    /// None until there is an answer.
    status: Option<StatusCode>,
    bytes: u64,
    end: Option<End>,
    metrics: Arc<Metrics>,
    cut: CancellationToken,
    /// Given back with the body.
    _permits: Option<Permits>,
}

impl Line {
    fn route(&self) -> &str {
        self.route.as_ref().map_or("unmatched", MatchedPath::as_str)
    }

    fn answered(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.metrics.requests.with_label_values(&[self.route(), status.as_str()]).inc();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.metrics.requests.with_label_values(&[self.route(), UNANSWERED]).inc();
        }
        let outcome = match self.end {
            Some(End::Complete) => "complete",
            _ if self.cut.is_cancelled() => TransferError::SHUTDOWN,
            Some(End::Failed) => "failed",
            None => "abandoned",
        };
        tracing::info!(
            request_id = self.id.as_str(),
            method = self.method.as_str(),
            route = self.route(),
            status = self.status.map(|status| status.as_u16()),
            duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            size_bytes = self.bytes,
            outcome,
            client = self.client.map(|Client(address)| tracing::field::display(address)),
            peer = self.peer.map(|Peer(address)| tracing::field::display(address)),
            "request"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(id: &str) -> HeaderMap {
        [(REQUEST_ID, HeaderValue::from_str(id).unwrap())].into_iter().collect()
    }

    #[test]
    fn a_fit_id_is_taken_over() {
        assert_eq!(RequestId::of(&sent("abc-1.2_3")).as_str(), "abc-1.2_3");
    }

    #[test]
    fn any_other_id_is_replaced() {
        for id in ["", "a b", "a\"b", "a=1,b", &"x".repeat(129)] {
            let made = RequestId::of(&sent(id));
            assert_eq!(made.as_str().len(), 32, "{id}");
        }
        assert_ne!(RequestId::of(&HeaderMap::new()), RequestId::of(&HeaderMap::new()));
    }
}
