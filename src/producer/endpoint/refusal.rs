//! What is answered instead of bytes: the specification's codes (section 2), each with its status.

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde_json::json;

use super::body::Body;
use super::caller::Unverified;
use crate::protocol::range::unsatisfied_content_range;

const ACCEPT_SIGNATURE: HeaderName = HeaderName::from_static("accept-signature");
/// What a signature has to be like (RFC 9421 section 5.1).
const WANTED_SIGNATURE: HeaderValue = HeaderValue::from_static(
    r#"sig1=("@method" "@authority" "@path" "@query" "signature-agent";key="sig1");created;expires;keyid;nonce;alg="ed25519";tag="web-bot-auth""#,
);
/// How soon a caller may ask again when every place is taken, in seconds.
const SOON: HeaderValue = HeaderValue::from_static("1");

/// An answer without the blob's bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    BadRequest(&'static str),
    /// Nobody who may know of anything here.
    #[error("{0}")]
    Unauthorized(#[from] Unverified),
    #[error("the Artifact-Task header is required for this set")]
    TaskRequired,
    #[error("the Artifact-Task header names another task")]
    TaskMismatch,
    /// No route, or no such blob.
    #[error("not found")]
    NotFound,
    #[error("the method is not allowed here")]
    MethodNotAllowed,
    /// The file no longer holds the bytes that were announced.
    #[error("the file has changed or is gone")]
    BlobGone,
    #[error("a precondition failed")]
    PreconditionFailed,
    #[error("the range lies outside the file")]
    RangeInvalid { complete_length: u64 },
    #[error("too many transfers are running")]
    TooManyTransfers { limit: usize },
}

impl Refusal {
    fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest(_) => (StatusCode::BAD_REQUEST, "bad_request"),
            Self::Unauthorized(_) => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::TaskRequired => (StatusCode::FORBIDDEN, "task_required"),
            Self::TaskMismatch => (StatusCode::FORBIDDEN, "task_mismatch"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::BlobGone => (StatusCode::GONE, "blob_gone"),
            Self::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, "precondition_failed"),
            Self::RangeInvalid { .. } => (StatusCode::RANGE_NOT_SATISFIABLE, "range_invalid"),
            Self::TooManyTransfers { .. } => (StatusCode::SERVICE_UNAVAILABLE, "too_many_transfers"),
        }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let (status, code) = self.status_and_code();
        let mut error = json!({ "code": code, "message": self.to_string() });
        let mut response = Response::new(Body::default());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // 404, 405, 410 and 416 may be kept by caches unless they are told not to (RFC 9111 section 4.2.2).
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        match self {
            // A body that nobody reads would be taken for the next request.
            Self::BadRequest(_) => _ = headers.insert(CONNECTION, HeaderValue::from_static("close")),
            Self::Unauthorized(_) => {
                // A scheme has to be named (RFC 9110 section 15.5.2), and for RFC 9421 none is registered.
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Signature"));
                headers.insert(ACCEPT_SIGNATURE, WANTED_SIGNATURE);
                // A stranger's connection is not kept.
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Self::MethodNotAllowed => _ = headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD")),
            Self::RangeInvalid { complete_length } => {
                if let Ok(range) = HeaderValue::from_str(&unsatisfied_content_range(complete_length)) {
                    headers.insert(CONTENT_RANGE, range);
                }
            }
            Self::TooManyTransfers { limit } => {
                headers.insert(RETRY_AFTER, SOON);
                error["limit"] = json!(limit);
            }
            _ => {}
        }
        *response.body_mut() = Body::of(Bytes::from(json!({ "error": error }).to_string()));
        response
    }
}
