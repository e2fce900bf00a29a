//! Who is calling, for handlers: extractors that answer before anything is looked up.

use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;

use super::AppState;
use super::error::Problem;
use crate::identity::{Caller, Identity};

/// The request carries an operator's token. It must be a handler's first argument.
#[derive(Debug, Clone, Copy)]
pub struct Operator;

/// The request carries a reader's or an agent's token. It must be a handler's first argument.
#[derive(Debug, Clone)]
pub struct Reader(pub Caller);

impl FromRequestParts<AppState> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
        match authenticate(&parts.headers, state)? {
            Identity::Operator => Ok(Self),
            Identity::Agent { .. } | Identity::Reader(_) => Err(Problem::Forbidden),
        }
    }
}

impl FromRequestParts<AppState> for Reader {
    type Rejection = Problem;

    /// An operator takes part in no chat, and is told what every stranger is told.
    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
        authenticate(&parts.headers, state)?.caller().map(Self).ok_or(Problem::NotFound)
    }
}

/// Who the bearer token of a request proves its sender to be.
///
/// # Errors
/// [`Problem::NoCredential`] without one, [`Problem::BadCredential`] when it proves nothing.
pub fn authenticate(headers: &HeaderMap, state: &AppState) -> Result<Identity, Problem> {
    let token = bearer(headers).ok_or(Problem::NoCredential)?;
    state.tokens.verify(token, &state.clock).map_err(Problem::BadCredential)
}

/// The token of the request's one `Authorization: Bearer` (RFC 6750 section 2.1; the scheme's case does not matter,
/// RFC 9110 section 11.1). Two such headers are none: it is anyone's guess which of them a proxy looked at.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (all.next(), all.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect()
    }

    #[test]
    fn the_scheme_is_bearer_in_any_case() {
        for value in ["Bearer abc", "bearer abc", "BEARER   abc "] {
            assert_eq!(bearer(&headers(&[value])), Some("abc"), "{value}");
        }
    }

    #[test]
    fn anything_else_is_no_credential() {
        for values in [&[][..], &["Basic abc"], &["Bearer"], &["Bearer "], &["abc"], &["Bearer a", "Bearer b"]] {
            assert_eq!(bearer(&headers(values)), None, "{values:?}");
        }
    }
}
