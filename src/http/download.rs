//! The one way bytes leave: ranges, preconditions and headers are the same on every route.

use std::convert::Infallible;
use std::sync::Arc;

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
use crate::access::{Claims, KeptManifest, Readable};
use crate::identity::Caller;
use crate::protocol::conditional::{EntityTag, Precondition};
use crate::protocol::range::Selection;
use crate::protocol::{ByteRange, Principal, Sha256, digest_field, disposition};
use crate::read::{Coverage, Promise};
use crate::transfer::{Cursor, TransferError, location};

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
    /// With agents, as they say.
    Remote(Claims),
    /// Here.
    Here(KeptManifest),
}

impl Content {
    fn by_relay(self) -> Option<Self> {
        match self {
            Self::Remote(claims) => claims.by_relay().map(Self::Remote),
            here @ Self::Here(_) => Some(here),
        }
    }

    fn sha256(&self) -> Sha256 {
        match self {
            Self::Remote(claims) => claims.first().sha256,
            Self::Here(manifest) => manifest.sha256,
        }
    }

    /// What may be sent, in the order in which it is tried.
    fn bodies(self) -> Vec<Source> {
        match self {
            Self::Remote(claims) => claims.into_all().into_iter().map(Source::Remote).collect(),
            Self::Here(manifest) => vec![Source::Here(manifest)],
        }
    }

    /// Whose bytes a reader may already hold.
    fn agents(&self) -> Arc<[Principal]> {
        match self {
            Self::Remote(claims) => claims.agents(),
            Self::Here(_) => Arc::default(),
        }
    }
}

/// What one body is read from.
enum Source {
    Remote(Readable),
    Here(KeptManifest),
}

impl Source {
    fn size(&self) -> u64 {
        match self {
            Self::Remote(readable) => readable.size,
            Self::Here(manifest) => manifest.size,
        }
    }

    /// How much of a range would be checked.
    fn coverage(&self, range: ByteRange) -> Coverage {
        match self {
            Self::Remote(readable) => Promise::new(range, readable.size, readable.chunks.as_deref()).coverage(),
            Self::Here(_) => Coverage::Full,
        }
    }

    /// Begins to send a range. `waits`: for agents that cannot be asked at once.
    async fn open(
        self,
        state: &AppState,
        reader: Principal,
        (range, waits): (ByteRange, bool),
    ) -> Result<Cursor, TransferError> {
        let cut = server::stream_cut();
        match self {
            Self::Remote(readable) => state.transfers.open(reader, (readable, waits), range, cut).await,
            Self::Here(manifest) => state.transfers.open_kept(reader, manifest, range, cut).await,
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
    let Representation { name, media_type, content, way } = representation;
    let (sha256, agents) = (content.sha256(), content.agents());
    let etag = EntityTag::of(sha256);
    // Range means something for GET only (RFC 9110 section 14.2).
    let by_range = match Precondition::of(headers, &etag) {
        Precondition::PreconditionFailed => return Err(Problem::PreconditionFailed),
        Precondition::NotModified => return Ok(not_modified(&etag)),
        Precondition::Proceed { range } => range && method == Method::GET,
    };
    let is_spoilt = |start| state.transfers.is_spoilt(&caller.principal, &agents, sha256, start);
    let head = Head { name, media_type, sha256, etag };
    let mut reading = None;
    let (mut waits, mut refused) = (true, None);
    // Until a byte has been sent, what an announcement says may prove wrong, and another's turn come.
    for body in content.bodies() {
        let size = body.size();
        let range = match by_range.then(|| Selection::asked(headers, size)) {
            Some(Selection::Unsatisfiable) => {
                refused.get_or_insert(Problem::RangeInvalid { complete_length: size });
                continue;
            }
            Some(Selection::Part(range)) => Some(range).filter(|range| !is_spoilt(range.start)),
            Some(Selection::Whole) | None => None,
        };
        let bytes = range.unwrap_or(ByteRange::whole(size));
        if method != Method::GET {
            return Ok(head.response(range, size, body.coverage(bytes), Body::empty()));
        }
        reading.get_or_insert_with(|| Reading::begin(state, caller, way.clone(), sha256, bytes)).of(bytes);
        match body.open(state, caller.principal.clone(), (bytes, waits)).await {
            Ok(cursor) => {
                let coverage = cursor.coverage();
                let body = reading.map_or_else(Body::empty, |reading| Body::new(Transferred::new(cursor, reading)));
                return Ok(head.response(range, size, coverage, body));
            }
            Err(error) => {
                let gives_way = error.is_of_sources();
                waits &= !error.is_of_waiting();
                refused.get_or_insert_with(|| reading.as_mut().map_or(error, |reading| reading.fail(error)).into());
                if !gives_way {
                    break;
                }
            }
        }
    }
    Err(refused.unwrap_or(Problem::NotFound))
}

/// What every answer about a representation says.
struct Head {
    name: String,
    media_type: String,
    sha256: Sha256,
    etag: EntityTag,
}

impl Head {
    /// The answer with this of it.
    fn response(&self, range: Option<ByteRange>, size: u64, coverage: Coverage, body: Body) -> Response {
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
        headers.insert(SLUICE_VERIFIED, HeaderValue::from_static(coverage_name(coverage)));
        insert(headers, ETAG, self.etag.as_str());
        insert(headers, REPR_DIGEST, &digest_field::repr_digest(self.sha256));
        insert(headers, CONTENT_DISPOSITION, &disposition::attachment(&self.name));
        if !insert(headers, CONTENT_TYPE, &self.media_type) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        }
        *response.body_mut() = body;
        response
    }
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
