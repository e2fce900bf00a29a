//! The bearer token of a request (RFC 6750).

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::super::AppState;
use super::super::error::Problem;
use crate::identity::{Identity, TokenError};

/// Who a token proves its sender to be, and until when, in Unix milliseconds and without the leeway for clocks that
/// differ.
///
/// # Errors
/// [`Problem::BadCredential`] when it proves nothing, [`Problem::Unavailable`] when nobody can tell now.
pub(super) async fn identify_until(token: &str, state: &AppState) -> Result<(Identity, i64), Problem> {
    state.tokens.identify_until(token, &state.clock).await.map_err(|error| match error {
        TokenError::KeysUnavailable => Problem::Unavailable,
        error => Problem::BadCredential(error),
    })
}

/// The token of the request's one `Authorization: Bearer` (RFC 6750 section 2.1; the scheme's case does not matter,
/// RFC 9110 section 11.1). Two such headers are none: it is anyone's guess which of them a proxy looked at.
pub(in crate::http) fn bearer(headers: &HeaderMap) -> Option<&str> {
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
