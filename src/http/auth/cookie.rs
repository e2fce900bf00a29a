//! The cookie of a signed-in browser. It is good for the page and the native routes, and nothing else.
//!
//! `SameSite=Lax`, so that a link to a chat's page in a mail or on the platform finds its reader signed in: what is asked
//! for that way changes nothing. Whatever does needs an `Origin` of this gateway's own pages as well.

use axum::extract::FromRequestParts;
use http::header::{ACCEPT, AUTHORIZATION, COOKIE, ORIGIN};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method};

use super::super::AppState;
use super::super::error::Problem;
use super::super::next::sign_in_first;
use super::{identify_until, reader};
use crate::config::PublicUrl;
use crate::identity::{Caller, OpaqueSecret, Purpose};
use crate::protocol::signature::is_signed;

/// The request carries what [`Reader`](super::Reader) takes, or the cookie of a signed-in browser. It must be a handler's
/// first argument.
#[derive(Debug, Clone)]
pub struct Visitor(pub Caller);

impl FromRequestParts<AppState> for Visitor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
        Stay::from_request_parts(parts, state).await.map(|stay| Self(stay.caller))
    }
}

/// The same for an answer that goes on for long, and for how long the credential is good.
#[derive(Debug, Clone)]
pub struct Stay {
    /// Who it is.
    pub caller: Caller,
    /// When the credential has had its time, in Unix milliseconds; none of its own where it is a signature.
    pub until: Option<i64>,
    /// The cookie, which may be signed out meanwhile.
    pub cookie: Option<OpaqueSecret>,
}

impl FromRequestParts<AppState> for Stay {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
        Self::of(parts, state).await.map_err(|problem| match problem {
            Problem::NoCredential | Problem::SignedOut if is_visited(parts) => {
                Problem::SignIn(sign_in_first(parts.uri.path_and_query().map_or("", PathAndQuery::as_str)))
            }
            problem => problem,
        })
    }
}

impl Stay {
    async fn of(parts: &Parts, state: &AppState) -> Result<Self, Problem> {
        let cookie = if is_meant(&parts.headers) { None } else { cookie(&parts.headers, &state.public_url) };
        let Some(cookie) = cookie else {
            let (identity, until) = identify_until(parts, state).await?;
            return Ok(Self { caller: reader(identity, parts, state)?, until, cookie: None });
        };
        if ![Method::GET, Method::HEAD].contains(&parts.method) {
            same_origin(&parts.headers, &state.public_url)?;
        }
        let cookie = cookie.as_deref().and_then(|value| state.handed_out.read(Purpose::Browser, value));
        let browser = match &cookie {
            Some(secret) => state.handed_out.browser_until(secret).await?,
            None => None,
        };
        let Some((caller, until)) = browser else {
            state.limiter.failed(&parts.extensions)?;
            return Err(Problem::SignedOut);
        };
        state.limiter.reader(&parts.extensions, &caller.principal)?;
        Ok(Self { caller, until: Some(until), cookie })
    }
}

/// Whether a person opens the address in a browser, who can sign in: programs do not ask for pages, or show who they are
/// by something else.
pub(in crate::http) fn is_visited(parts: &Parts) -> bool {
    let Parts { method, headers, .. } = parts;
    *method == Method::GET && !is_meant(headers) && wants_page(headers)
}

/// Whether a page is among what is accepted by its name, and not as whatever else there is (RFC 9110 section 12.5.1).
fn wants_page(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
    ranges.into_iter().any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_page = parts.next().is_some_and(|media| media.eq_ignore_ascii_case("text/html"));
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        is_page && weight.is_none_or(|weight| weight.parse::<f32>().is_ok_and(|weight| weight > 0.0))
    })
}

/// A browser sends its cookie wherever it goes; the others are there because somebody meant them.
fn is_meant(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION) || is_signed(headers)
}

/// Whom a cookie's value stands for.
pub(in crate::http) async fn browser(value: Option<&str>, state: &AppState) -> Result<Option<Caller>, Problem> {
    match value.and_then(|value| state.handed_out.read(Purpose::Browser, value)) {
        Some(secret) => Ok(state.handed_out.browser(&secret).await?),
        None => Ok(None),
    }
}

/// The cookie's name. A browser keeps one with this prefix only if it is `Secure`, of this host alone, and for every
/// path: nobody else's page can plant it.
pub(in crate::http) fn name(public_url: &PublicUrl) -> &'static str {
    if public_url.is_https() { "__Host-sluice" } else { "sluice" }
}

/// The value of the cookie, where there is one: `Some(None)` when it is there twice, for one of them was planted.
pub(in crate::http) fn cookie(headers: &HeaderMap, public_url: &PublicUrl) -> Option<Option<String>> {
    let name = name(public_url);
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut values = pairs.filter(|(found, _)| *found == name).map(|(_, value)| value.to_owned());
    match (values.next(), values.next()) {
        (None, _) => None,
        (Some(value), None) => Some(Some(value)),
        (Some(_), Some(_)) => Some(None),
    }
}

/// Lets a request pass that comes from one of this gateway's own pages (RFC 6454 section 7).
pub(in crate::http) fn same_origin(headers: &HeaderMap, public_url: &PublicUrl) -> Result<(), Problem> {
    let mut all = headers.get_all(ORIGIN).iter();
    match (all.next(), all.next()) {
        (Some(origin), None) if origin.as_bytes() == public_url.to_string().as_bytes() => Ok(()),
        _ => Err(Problem::ForeignOrigin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: http::HeaderName, lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (name.clone(), line.parse().unwrap())).collect()
    }

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        let (plain, secure) = ("http://a.example".parse().unwrap(), "https://a.example".parse().unwrap());
        let of = |lines: &[&str], url| cookie(&headers(COOKIE, lines), url);
        let found = Some(Some("x".to_owned()));
        for lines in [&["sluice=x"][..], &["a=b; sluice=x; c=d"], &["a=b", "sluice=x"], &["sluice2=y;sluice=x"]] {
            assert_eq!(of(lines, &plain), found, "{lines:?}");
        }
        assert_eq!(of(&["__Host-sluice=x; sluice=y"], &secure), found);
        for lines in [&[][..], &["sluice"], &["Sluice=x"], &["xsluice=x"]] {
            assert_eq!(of(lines, &plain), None, "{lines:?}");
        }
        assert_eq!(of(&["sluice=x; sluice=y"], &plain), Some(None));
    }

    #[test]
    fn a_page_is_wanted_by_its_name() {
        let firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for line in [firefox, "text/html", "application/json, TEXT/HTML;level=1;q=0.1"] {
            assert!(wants_page(&headers(ACCEPT, &[line])), "{line}");
        }
        assert!(wants_page(&headers(ACCEPT, &["*/*", "text/html"])));
        for lines in [&[][..], &["*/*"], &["text/*"], &["text/html;q=0"], &["text/html;q=0.0, */*"], &["text/htmlx"]] {
            assert!(!wants_page(&headers(ACCEPT, lines)), "{lines:?}");
        }
    }

    #[test]
    fn an_origin_is_the_public_url_to_the_letter() {
        let url: PublicUrl = "https://files.example".parse().unwrap();
        assert_eq!(same_origin(&headers(ORIGIN, &["https://files.example"]), &url), Ok(()));
        for lines in [
            &[][..],
            &["null"],
            &["http://files.example"],
            &["https://files.example:8443"],
            &["https://files.example.evil.example"],
            &["https://files.example/"],
            &["https://files.example", "https://files.example"],
        ] {
            assert_eq!(same_origin(&headers(ORIGIN, lines), &url), Err(Problem::ForeignOrigin), "{lines:?}");
        }
    }
}
