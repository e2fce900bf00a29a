//! The one way bytes leave: ranges, preconditions and headers are the same on every route.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, ETAG, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::error::Problem;
pub use super::reading::Way;
use super::reading::{Reading, Transferred};
use super::{AppState, server};
use crate::access::{KeptManifest, Readable};
use crate::identity::Caller;
use crate::protocol::conditional::{EntityTag, Precondition};
use crate::protocol::range::Selection;
use crate::protocol::{ByteRange, Sha256, digest_field, disposition};
use crate::read::{Coverage, Promise};
use crate::transfer::location;

const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
const SLUICE_VERIFIED: HeaderName = HeaderName::from_static("sluice-verified");
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// What may be shown of a file by a browser that ignores the disposition: nothing.
const CSP: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

/// A file or manifest that a caller may read, as one representation (RFC 9110 section 3.2).
#[derive(Debug)]
pub struct Representation {
    /// The file's name for the reader, or its path.
    pub name: String,
    /// A media type that passed the strict reader: valid in syntax, and no more to be believed.
    pub media_type: String,
    /// Where the bytes are.
    pub content: Content,
    /// How the caller came to it.
    pub way: Way,
}

/// Where a representation's bytes are.
#[derive(Debug)]
pub enum Content {
    /// With agents.
    Remote(Readable),
    /// Here.
    Here(KeptManifest),
}

impl Content {
    fn by_relay(self) -> Option<Self> {
        match self {
            Self::Remote(readable) => readable.by_relay().map(Self::Remote),
            here @ Self::Here(_) => Some(here),
        }
    }

    fn sha256(&self) -> Sha256 {
        match self {
            Self::Remote(readable) => readable.sha256,
            Self::Here(manifest) => manifest.sha256,
        }
    }

    fn size(&self) -> u64 {
        match self {
            Self::Remote(readable) => readable.size,
            Self::Here(manifest) => manifest.size,
        }
    }
}

/// Answers a GET or HEAD of a representation that the caller may read. What has no body asks no agent, and reads nothing
/// of what is here.
pub async fn serve(
    state: &AppState,
    caller: &Caller,
    method: &Method,
    headers: &HeaderMap,
    mut representation: Representation,
) -> Result<Response, Problem> {
    if location::is_from_gateway(headers) {
        representation.content = representation.content.by_relay().ok_or(Problem::NotFound)?;
    }
    let (sha256, size) = (representation.content.sha256(), representation.content.size());
    let etag = EntityTag::of(sha256);
    let selection = match Precondition::of(headers, &etag) {
        Precondition::PreconditionFailed => return Err(Problem::PreconditionFailed),
        Precondition::NotModified => return Ok(not_modified(&etag)),
        // Range means something for GET only (RFC 9110 section 14.2).
        Precondition::Proceed { range: true } if method == Method::GET => Selection::asked(headers, size),
        Precondition::Proceed { .. } => Selection::Whole,
    };
    let range = match selection {
        Selection::Unsatisfiable => return Err(Problem::RangeInvalid { complete_length: size }),
        Selection::Part(range) => match &representation.content {
            Content::Remote(readable) if state.transfers.is_spoilt(&caller.principal, readable, range.start) => None,
            _ => Some(range),
        },
        Selection::Whole => None,
    };
    let bytes = range.unwrap_or(ByteRange::whole(size));
    let mut response = head(&representation, &etag, range, size);
    let (body, coverage) = if method == Method::GET {
        let reading = Reading::begin(state, caller, representation.way.clone(), sha256, bytes);
        let (reader, cut) = (caller.principal.clone(), server::stream_cut());
        let opened = match representation.content {
            Content::Here(manifest) => state.transfers.open_kept(reader, manifest, bytes, cut).await,
            Content::Remote(readable) => state.transfers.open(reader, readable, bytes, cut).await,
        };
        let cursor = match opened {
            Ok(cursor) => cursor,
            Err(error) => return Err(reading.fail(error).into()),
        };
        let coverage = cursor.coverage();
        (Body::new(Transferred::new(cursor, reading)), coverage)
    } else {
        let coverage = match representation.content {
            Content::Here(_) => Coverage::Full,
            Content::Remote(readable) => Promise::new(bytes, size, readable.chunks.as_deref()).coverage(),
        };
        (Body::empty(), coverage)
    };
    response.headers_mut().insert(SLUICE_VERIFIED, HeaderValue::from_static(coverage_name(coverage)));
    *response.body_mut() = body;
    Ok(response)
}

/// Everything of the answer but its body and `Sluice-Verified`.
fn head(representation: &Representation, etag: &EntityTag, range: Option<ByteRange>, size: u64) -> Response {
    let mut response = Response::default();
    let length = range.map_or(size, ByteRange::len);
    if let Some(range) = range {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        insert(response.headers_mut(), CONTENT_RANGE, &range.content_range(size));
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-transform"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(CSP));
    headers.insert(CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    insert(headers, ETAG, etag.as_str());
    insert(headers, REPR_DIGEST, &digest_field::repr_digest(representation.content.sha256()));
    insert(headers, CONTENT_DISPOSITION, &disposition::attachment(&representation.name));
    if !insert(headers, CONTENT_TYPE, &representation.media_type) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    }
    response
}

/// 304 carries what a cache needs to know, and nothing of the content (RFC 9110 section 15.4.5).
fn not_modified(etag: &EntityTag) -> Response {
    // With a body known to be empty, `Content-Length: 0` would be added, which is not the representation's.
    let body = Body::from_stream(futures_util::stream::empty::<Result<Bytes, Infallible>>());
    let mut response = (StatusCode::NOT_MODIFIED, body).into_response();
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-transform"));
    insert(headers, ETAG, etag.as_str());
    response
}

/// The task that a request names (specification section 2). Two lines are one list (RFC 9110 section 5.3), which is no
/// task's name.
pub fn named_task(headers: &HeaderMap) -> Option<String> {
    let lines: Vec<_> = headers.get_all("artifact-task").iter().map(|line| line.as_bytes()).collect();
    (!lines.is_empty()).then(|| String::from_utf8_lossy(&lines.join(&b", "[..])).into_owned())
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) -> bool {
    HeaderValue::from_str(value).map(|value| headers.insert(name, value)).is_ok()
}

/// The value of `Sluice-Verified`.
fn coverage_name(coverage: Coverage) -> &'static str {
    match coverage {
        Coverage::Full => "full",
        Coverage::Chunks => "chunks",
        Coverage::None => "none",
    }
}
