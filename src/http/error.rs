//! What goes wrong, as the native routes tell it: one closed list of codes, each with its status.

use std::borrow::Cow;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

use crate::identity::TokenError;
use crate::protocol::signature::SignatureError;
use crate::store::StoreError;
use crate::transfer::TransferError;

/// An answer that is not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The request is not understood; the text says what about it.
    #[error("{0}")]
    BadRequest(Cow<'static, str>),
    /// No credential was sent.
    #[error("a bearer token or a signature is required")]
    NoCredential,
    /// The credential proves nothing.
    #[error("{0}")]
    BadCredential(TokenError),
    /// A person's browser is not signed in, and is sent to where it can be: to this path.
    #[error("sign in first")]
    SignIn(String),
    /// The browser's cookie stands for nobody, or for nobody any more.
    #[error("this browser is not signed in: sign in again")]
    SignedOut,
    /// A signed-in browser's request that changes something, and does not come from the gateway's own pages.
    #[error("the Origin header is not this gateway's public URL")]
    ForeignOrigin,
    /// Nobody may make links here.
    #[error("links are off on this gateway (its operator may set --links)")]
    LinksOff,
    /// The signature proves nothing.
    #[error("{code}: {0}", code = .0.code())]
    BadSignature(SignatureError),
    /// The operator takes no signatures, or none of an agent that is not known here.
    #[error("this gateway takes no signature of this agent: use a token (its operator may set --signed-agents)")]
    SignatureNotTaken,
    /// A valid credential of the wrong kind, judged by the route alone.
    #[error("this route needs an operator's token")]
    Forbidden,
    /// The set belongs to a task, and the request names none.
    #[error("the Artifact-Task header is required for this set")]
    TaskRequired,
    /// The request names another task than the set's.
    #[error("the Artifact-Task header names another task")]
    TaskMismatch,
    /// There is no such thing, or the caller may not know of it. The two are the same answer.
    #[error("not found")]
    NotFound,
    /// The route exists, the method does not.
    #[error("the method is not allowed here")]
    MethodNotAllowed,
    /// Something that an operator's request names is not there; the text says what. Nobody else is told so.
    #[error("{0}")]
    Missing(Cow<'static, str>),
    /// The body did not arrive in time.
    #[error("the request's body took too long")]
    Timeout,
    /// It contradicts what is there; the text says what.
    #[error("{0}")]
    Conflict(Cow<'static, str>),
    /// The agent no longer has the bytes.
    #[error("the agent no longer has this file")]
    BlobGone,
    /// A precondition of the request is false (RFC 9110 section 13.1).
    #[error("a precondition failed")]
    PreconditionFailed,
    /// The body is larger than `limit` bytes.
    #[error("the request's body is larger than {limit} bytes")]
    TooLarge {
        /// In bytes.
        limit: u64,
    },
    /// The body is of another kind by its Content-Type.
    #[error("the body's Content-Type is {expected}")]
    UnsupportedMediaType {
        /// What it should be.
        expected: &'static str,
    },
    /// The range lies past the end (RFC 9110 section 15.5.17).
    #[error("the range lies outside the file")]
    RangeInvalid {
        /// The representation's length in bytes.
        complete_length: u64,
    },
    /// Too many requests.
    #[error("too many requests")]
    RateLimited {
        /// When to try again.
        retry_after: Duration,
    },
    /// The gateway itself failed; its log says why.
    #[error("the gateway failed")]
    Internal,
    /// The agent cannot serve what it announced.
    #[error("the agent could not serve the file")]
    AgentFailed,
    /// The agent's bytes are not the announced ones.
    #[error("the agent's bytes do not match the announced hash")]
    HashMismatch,
    /// No agent that announced the bytes is connected.
    #[error("the agent is offline")]
    AgentOffline {
        /// When to try again.
        retry_after: Duration,
    },
    /// As many transfers as are allowed are running.
    #[error("too many transfers are running")]
    TooManyTransfers {
        /// How many are allowed.
        limit: usize,
        /// When to try again.
        retry_after: Duration,
    },
    /// Too many agents connect, or sign, at once.
    #[error("too many agents are asking at once; try again")]
    Busy {
        /// When to try again.
        retry_after: Duration,
    },
    /// As many streams of events as there may be are open.
    #[error("too many event streams are open; try again")]
    TooManyStreams {
        /// When to try again.
        retry_after: Duration,
    },
    /// The caller has as many questions at the database as it may have.
    #[error("too many requests of one caller are waiting; try again")]
    Waiting,
    /// Something the gateway needs, such as its database, does not answer.
    #[error("the gateway cannot answer at the moment")]
    Unavailable,
}

/// How soon a client may ask again when nothing better is known.
const SOON: Duration = Duration::from_secs(2);

impl Problem {
    /// The code in the body.
    pub fn code(&self) -> &'static str {
        self.status_and_code().1
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status_and_code().0
    }

    /// Whether the credential is refused, rather than the request at this moment.
    pub fn is_about_credential(&self) -> bool {
        self.status() == StatusCode::UNAUTHORIZED
    }

    fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest(_) => (StatusCode::BAD_REQUEST, "bad_request"),
            Self::NoCredential
            | Self::BadCredential(_)
            | Self::BadSignature(_)
            | Self::SignatureNotTaken
            | Self::SignedOut => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::SignIn(_) => (StatusCode::SEE_OTHER, "unauthorized"),
            Self::Forbidden | Self::ForeignOrigin | Self::LinksOff => (StatusCode::FORBIDDEN, "forbidden"),
            Self::TaskRequired => (StatusCode::FORBIDDEN, "task_required"),
            Self::TaskMismatch => (StatusCode::FORBIDDEN, "task_mismatch"),
            Self::NotFound | Self::Missing(_) => (StatusCode::NOT_FOUND, "not_found"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::Timeout => (StatusCode::REQUEST_TIMEOUT, "timeout"),
            Self::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            Self::BlobGone => (StatusCode::GONE, "blob_gone"),
            Self::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, "precondition_failed"),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            Self::UnsupportedMediaType { .. } => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            Self::RangeInvalid { .. } => (StatusCode::RANGE_NOT_SATISFIABLE, "range_invalid"),
            Self::RateLimited { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            Self::AgentFailed => (StatusCode::BAD_GATEWAY, "agent_failed"),
            Self::HashMismatch => (StatusCode::BAD_GATEWAY, "hash_mismatch"),
            Self::AgentOffline { .. } => (StatusCode::SERVICE_UNAVAILABLE, "agent_offline"),
            Self::TooManyTransfers { .. } => (StatusCode::SERVICE_UNAVAILABLE, "too_many_transfers"),
            Self::Busy { .. } | Self::TooManyStreams { .. } | Self::Waiting | Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
            }
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after }
            | Self::AgentOffline { retry_after }
            | Self::Busy { retry_after }
            | Self::TooManyStreams { retry_after }
            | Self::TooManyTransfers { retry_after, .. } => Some(*retry_after),
            Self::Waiting | Self::Unavailable => Some(SOON),
            _ => None,
        }
    }

    /// The headers that go with the code, whatever the body's shape: other faces have bodies of their own.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        // 404, 410 and 416 may be kept by caches unless they are told not to (RFC 9111 section 4.2.2).
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        match self {
            Self::NoCredential | Self::BadSignature(_) | Self::SignatureNotTaken | Self::SignedOut => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // RFC 6750 section 3.1: only a request that brought a token is told that it is no good.
            Self::BadCredential(_) => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer error=\"invalid_token\""));
            }
            Self::SignIn(path) => {
                if let Ok(path) = HeaderValue::from_str(path) {
                    headers.insert(LOCATION, path);
                }
            }
            Self::RangeInvalid { complete_length } => {
                if let Ok(value) = HeaderValue::from_str(&format!("bytes */{complete_length}")) {
                    headers.insert(CONTENT_RANGE, value);
                }
            }
            _ => {}
        }
        if let Some(wait) = self.retry_after() {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        headers
    }
}

/// What a transfer's failure is for a reader who has not been sent a byte. Afterwards it cuts the response.
impl From<TransferError> for Problem {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::AgentOffline => Self::AgentOffline { retry_after: SOON },
            TransferError::AgentFailed | TransferError::Shorter => Self::AgentFailed,
            TransferError::HashMismatch => Self::HashMismatch,
            TransferError::BlobGone => Self::BlobGone,
            TransferError::TooManyTransfers { limit } => Self::TooManyTransfers { limit, retry_after: SOON },
            TransferError::Revoked => Self::NotFound,
            TransferError::Unavailable | TransferError::Cancelled | TransferError::ReaderStalled => Self::Unavailable,
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if matches!(error, StoreError::Busy) {
            // One caller's own doing, and no news of the database.
            tracing::debug!(%error, "a request waited too long for its turn");
            Self::Waiting
        } else if error.is_unavailable() {
            tracing::warn!(%error, "a request fails for want of the database");
            Self::Unavailable
        } else {
            tracing::error!(%error, "a request fails by a defect");
            Self::Internal
        }
    }
}

#[derive(Serialize)]
struct Body<'a> {
    error: Detail<'a>,
}

#[derive(Serialize)]
struct Detail<'a> {
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<usize>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let limit = match self {
            Self::TooManyTransfers { limit, .. } => Some(limit),
            _ => None,
        };
        let body = Body { error: Detail { code: self.code(), message: &self.to_string(), limit } };
        // Strings and a number: writing them as JSON has no way to fail.
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut headers = self.headers();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        (self.status(), headers, body).into_response()
    }
}

/// What a route without such a path answers.
pub async fn not_found() -> Problem {
    Problem::NotFound
}

/// What a route answers to a method that it does not have; the router adds `Allow`.
pub async fn method_not_allowed() -> Problem {
    Problem::MethodNotAllowed
}

/// Says on errors, too, that the route takes ranges. For the routes of downloads.
pub async fn accept_ranges(mut response: Response) -> Response {
    response.headers_mut().entry(ACCEPT_RANGES).or_insert(HeaderValue::from_static("bytes"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn body(problem: Problem) -> serde_json::Value {
        let body = problem.into_response().into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn a_problem_is_a_code_and_a_message() {
        assert_eq!(
            body(Problem::NotFound).await,
            serde_json::json!({"error": {"code": "not_found", "message": "not found"}})
        );
    }

    #[tokio::test]
    async fn the_transfer_limit_is_told() {
        let problem = Problem::TooManyTransfers { limit: 7, retry_after: Duration::from_millis(1500) };
        assert_eq!(problem.headers()[RETRY_AFTER], "2");
        assert_eq!(problem.status(), 503);
        assert_eq!(body(problem).await["error"]["limit"], 7);
    }

    #[test]
    fn what_may_be_tried_again_says_when() {
        let soon = Duration::ZERO;
        for problem in [
            Problem::Unavailable,
            Problem::Waiting,
            Problem::RateLimited { retry_after: soon },
            Problem::AgentOffline { retry_after: soon },
            Problem::TooManyStreams { retry_after: soon },
        ] {
            assert!(problem.headers().contains_key(RETRY_AFTER), "{problem:?}");
        }
    }

    #[test]
    fn an_unsatisfiable_range_learns_the_length() {
        assert_eq!(Problem::RangeInvalid { complete_length: 10 }.headers()[CONTENT_RANGE], "bytes */10");
    }

    #[test]
    fn every_challenge_is_bearer() {
        assert_eq!(Problem::NoCredential.headers()[WWW_AUTHENTICATE], "Bearer");
        let bad = Problem::BadCredential(TokenError::Expired);
        assert_eq!(bad.headers()[WWW_AUTHENTICATE], "Bearer error=\"invalid_token\"");
        assert_eq!(bad.code(), "unauthorized");
    }
}
