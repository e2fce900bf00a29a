//! Bodies and paths of requests, read strictly.

use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::Problem;
use super::misread;

/// Largest JSON body, in bytes.
pub const BODY_BYTES: usize = 1024 * 1024;
/// How long a JSON body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A JSON body. What is unknown in it is refused by its type (`deny_unknown_fields`), which is named in the answer.
#[derive(Debug)]
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read_body(&parts.headers, "application/json", body, BODY_BYTES).await?;
        misread::json(&bytes).map(Self).map_err(|reason| Problem::BadRequest(format!("the body: {reason}").into()))
    }
}

/// A body of this media type and of at most so many bytes, in bounded time.
///
/// # Errors
/// [`Problem::UnsupportedMediaType`], [`Problem::TooLarge`], [`Problem::Timeout`], or a body that is cut short.
pub async fn read_body(
    headers: &HeaderMap,
    media_type: &'static str,
    body: Body,
    limit: usize,
) -> Result<Bytes, Problem> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|value| value.split(';').next()).map(str::trim);
    if !essence.is_some_and(|essence| essence.eq_ignore_ascii_case(media_type)) {
        return Err(Problem::UnsupportedMediaType { expected: media_type });
    }
    let body = Limited::new(body, limit);
    let collected = tokio::time::timeout(BODY_TIMEOUT, body.collect()).await.map_err(|_| Problem::Timeout)?;
    let collected = collected.map_err(|error| match error.is::<LengthLimitError>() {
        true => Problem::TooLarge { limit: limit as u64 },
        false => Problem::BadRequest("the body is cut short".into()),
    })?;
    Ok(collected.to_bytes())
}

/// Parameters of a route's path. A value that its type does not take names nothing that exists.
#[derive(Debug)]
pub struct PathOf<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        // No name holds a NUL, and not every database takes one for text.
        if parts.uri.path().contains("%00") {
            return Err(Problem::NotFound);
        }
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(value)| Self(value)).map_err(|_: PathRejection| Problem::NotFound)
    }
}

/// Parameters of a request's query, unknown ones refused by their type.
#[derive(Debug)]
pub struct QueryOf<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        misread::query(parts.uri.query().unwrap_or_default())
            .map(Self)
            .map_err(|reason| Problem::BadRequest(format!("the query: {reason}").into()))
    }
}

/// How many rows a page has at most, as a query's `limit` says. A page of none would never come to an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Limit(u32);

impl TryFrom<String> for Limit {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let rows = text.parse().ok().filter(|rows: &u64| *rows > 0);
        // More than a page ever has.
        let rows = rows.map(|rows| Self(u32::try_from(rows).unwrap_or(u32::MAX)));
        rows.ok_or("a page has a whole number of rows, 1 or more")
    }
}

impl Limit {
    /// So many, up to `most`; `default` when nobody says.
    pub fn of(named: Option<Self>, default: u32, most: u32) -> u32 {
        named.map_or(default, |Self(rows)| rows).min(most)
    }
}

/// Which page of a list, as a query says: what comes after `cursor`, at most `limit` rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageOf<C> {
    /// Where an earlier page ended.
    pub cursor: Option<C>,
    /// At most so many rows.
    pub limit: Option<Limit>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        name: String,
    }

    async fn read(content_type: &str, body: impl Into<Body>) -> Result<String, Problem> {
        let request = Request::builder().header(CONTENT_TYPE, content_type).body(body.into()).unwrap();
        JsonBody::<Wanted>::from_request(request, &()).await.map(|JsonBody(wanted)| wanted.name)
    }

    #[tokio::test]
    async fn json_is_read() {
        assert_eq!(read("application/json; charset=utf-8", r#"{"name":"a"}"#).await.as_deref(), Ok("a"));
    }

    #[tokio::test]
    async fn an_unknown_field_is_named() {
        let problem = read("application/json", r#"{"name":"a","nmae":"b"}"#).await.unwrap_err();
        assert_eq!(problem.status(), 400);
        assert!(problem.to_string().contains("`nmae`"), "{problem}");
    }

    #[tokio::test]
    async fn only_json_is_read() {
        for content_type in ["text/plain", "application/jsonp", "application/x-www-form-urlencoded"] {
            assert_eq!(
                read(content_type, "{}").await,
                Err(Problem::UnsupportedMediaType { expected: "application/json" })
            );
        }
    }

    #[tokio::test]
    async fn a_body_past_the_limit_is_not_read() {
        let body = format!(r#"{{"name":"{}"}}"#, "x".repeat(BODY_BYTES));
        assert_eq!(read("application/json", body).await, Err(Problem::TooLarge { limit: 1 << 20 }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_comes_is_given_up() {
        let never = Body::from_stream(futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
        assert_eq!(read("application/json", never).await, Err(Problem::Timeout));
    }
}
