//! From a request to its answer: routes, the caller, the task, preconditions and ranges, in this order.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use tokio::sync::Semaphore;

use super::base::{self, Base};
use super::body::{Body, Reading};
use super::caller::Callers;
use super::refusal::Refusal;
use crate::producer::registry::{Blob, Registry};
use crate::protocol::{ByteRange, EntityTag, Precondition, Selection, Sha256, TaskId, digest_field, signature};

const ARTIFACT_TASK: HeaderName = HeaderName::from_static("artifact-task");
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
const MANIFEST_TYPE: HeaderValue = HeaderValue::from_static("application/vnd.webagents.artifact-set+json");
/// A file's own media type is its entry's, which a hash does not name.
const FILE_TYPE: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// What answers requests.
#[derive(Debug)]
pub(super) struct Answers {
    base: Base,
    pub(super) callers: Callers,
    registry: Arc<Registry>,
    /// The task that every set of this agent is published for, if any.
    task: Option<TaskId>,
    transfers: Arc<Semaphore>,
    limit: usize,
}

impl Answers {
    pub(super) fn new(
        base: Base,
        callers: Callers,
        registry: Arc<Registry>,
        task: Option<TaskId>,
        transfers: usize,
    ) -> Self {
        let limit = transfers.min(Semaphore::MAX_PERMITS);
        Self { base, callers, registry, task, transfers: Arc::new(Semaphore::new(limit)), limit }
    }

    pub(super) async fn answer<B: http_body::Body>(&self, request: &Request<B>) -> Response<Body> {
        let mut response = self.find(request).await.unwrap_or_else(Refusal::into_response);
        response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        response
    }

    async fn find<B: http_body::Body>(&self, request: &Request<B>) -> Result<Response<Body>, Refusal> {
        let name = self.base.name(request.uri().path()).ok_or(Refusal::NotFound)?;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Refusal::MethodNotAllowed);
        }
        if !request.body().is_end_stream() {
            return Err(Refusal::BadRequest("the request has a body, and means nothing with one"));
        }
        let headers = request.headers();
        let signed = signature::Request::of(request.method(), request.uri(), headers, None);
        if signature::is_signed(headers) {
            // What is wrong with it is told where it is verified.
            self.registry.asked();
        }
        self.callers.verify(signed).await?;
        let sha256 = base::hash(&name).ok_or(Refusal::NotFound)?;
        let blob = self.registry.find(&sha256).ok_or(Refusal::NotFound)?;
        self.check_task(headers)?;
        self.serve(request.method(), headers, sha256, blob).await
    }

    /// A set that was published for a task is given to whoever names it (specification section 2). Without one the
    /// header means nothing.
    fn check_task(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(task) = &self.task else { return Ok(()) };
        let mut named = headers.get_all(ARTIFACT_TASK).iter();
        match (named.next(), named.next()) {
            (None, _) => Err(Refusal::TaskRequired),
            (Some(named), None) if named.as_bytes() == task.as_str().as_bytes() => Ok(()),
            (Some(_), _) => Err(Refusal::TaskMismatch),
        }
    }

    async fn serve(
        &self,
        method: &Method,
        headers: &HeaderMap,
        sha256: Sha256,
        blob: Blob,
    ) -> Result<Response<Body>, Refusal> {
        let (size, etag) = (blob.size(), EntityTag::of(sha256));
        let selection = match Precondition::of(headers, &etag) {
            Precondition::PreconditionFailed => return Err(Refusal::PreconditionFailed),
            Precondition::NotModified => return Ok(not_modified(&etag)),
            // Range means something for GET only (RFC 9110 section 14.2).
            Precondition::Proceed { range: true } if *method == Method::GET => Selection::asked(headers, size),
            Precondition::Proceed { .. } => Selection::Whole,
        };
        let range = match selection {
            Selection::Unsatisfiable => return Err(Refusal::RangeInvalid { complete_length: size }),
            Selection::Part(range) => Some(range),
            Selection::Whole => None,
        };
        let mut response = head(&blob, sha256, &etag, range, size);
        *response.body_mut() = if *method == Method::HEAD {
            check(blob).await?;
            Body::of(Bytes::new())
        } else {
            let slot = self.transfers.clone().try_acquire_owned();
            let slot = slot.map_err(|_| Refusal::TooManyTransfers { limit: self.limit })?;
            let reading = Reading::open(blob, range.unwrap_or(ByteRange::whole(size)), slot).await;
            Body::Blob(Box::new(reading.map_err(gone)?))
        };
        Ok(response)
    }
}

/// Whether the blob can still be opened as what it was announced as.
async fn check(blob: Blob) -> Result<(), Refusal> {
    let opened = tokio::task::spawn_blocking(move || blob.open().map(drop)).await;
    opened.map_err(std::io::Error::other).flatten().map_err(gone)
}

/// The error's text may hold a path of this machine.
fn gone(error: std::io::Error) -> Refusal {
    tracing::debug!(%error, "a file cannot be served");
    Refusal::BlobGone
}

/// Everything of the answer but its body.
fn head(blob: &Blob, sha256: Sha256, etag: &EntityTag, range: Option<ByteRange>, size: u64) -> Response<Body> {
    let mut response = Response::new(Body::default());
    if let Some(range) = range {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        insert(response.headers_mut(), CONTENT_RANGE, &range.content_range(size));
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(range.map_or(size, ByteRange::len)));
    headers.insert(CONTENT_TYPE, if matches!(blob, Blob::Manifest(_)) { MANIFEST_TYPE } else { FILE_TYPE });
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-transform"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    insert(headers, ETAG, etag.as_str());
    insert(headers, REPR_DIGEST, &digest_field::repr_digest(sha256));
    response
}

/// 304 carries what a cache needs to know, and nothing of the content (RFC 9110 section 15.4.5).
fn not_modified(etag: &EntityTag) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-transform"));
    insert(headers, ETAG, etag.as_str());
    response
}

/// Tags, digests and ranges are visible ASCII.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
