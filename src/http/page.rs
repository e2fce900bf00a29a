//! Pages that need no script and nothing from anywhere else.

use std::fmt;
use std::sync::LazyLock;

use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, StatusCode};

use crate::protocol::Sha256;

const CROSS_ORIGIN_OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

const STYLE: &str = "\
:root{color-scheme:light dark;font:1rem/1.5 system-ui,sans-serif}\
body{max-width:26rem;margin:12vh auto;padding:0 1rem;overflow-wrap:anywhere}\
h1{font-size:1.4rem}\
input,button{font:inherit;box-sizing:border-box;width:100%;padding:.5rem;margin:.25rem 0}\
[role=alert]{border-left:.25rem solid #c33;padding-left:.75rem}";

/// Only this style, only forms back to here, and no frame around it.
static CSP: LazyLock<HeaderValue> = LazyLock::new(|| {
    let style = STANDARD.encode(Sha256::of(STYLE.as_bytes()).0);
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    );
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// A page with this title and body, of which the body is HTML.
pub fn page(status: StatusCode, title: &str, body: &str) -> Response {
    let title = Escaped(title);
    let html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body><main><h1>{title}</h1>\n{body}</main></body></html>\n"
    );
    (status, headers(), html).into_response()
}

/// What every page is sent with. Its address may hold a code, which is nobody else's business: but a form's `Origin`
/// would be `null` if not even this gateway were told where it comes from (Fetch standard, section 3.2), hence
/// `same-origin`.
fn headers() -> HeaderMap {
    [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, CSP.clone()),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (REFERRER_POLICY, HeaderValue::from_static("same-origin")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CROSS_ORIGIN_OPENER_POLICY, HeaderValue::from_static("same-origin")),
    ]
    .into_iter()
    .collect()
}

/// Text within HTML, also between quotes.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(Escaped("<a b=\"c\" d='e'>&").to_string(), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
    }

    #[test]
    fn the_policy_allows_the_style_and_nothing_else() {
        let policy = CSP.to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; style-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    }
}
