//! The request that a signature covers.

use http::header::HOST;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, Method, Uri};
use url::Url;

/// Longest target that is looked at, in bytes.
const TARGET_BYTES: usize = 16 * 1024;

/// A request as it came.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// As sent.
    pub method: &'a str,
    /// What the client asked for, by `Host` or by the target itself.
    pub authority: Option<&'a str>,
    /// Path and query as sent.
    pub target: &'a str,
    /// All fields.
    pub headers: &'a HeaderMap,
    /// The least that the body may measure, in bytes; `None` where there is no body.
    pub body: Option<u64>,
}

impl<'a> Request<'a> {
    /// A request as a server has it. `body` is the least that its body may measure, in bytes.
    pub fn of(method: &'a Method, uri: &'a Uri, headers: &'a HeaderMap, body: Option<u64>) -> Self {
        // HTTP/2 and requests in absolute form name the authority in the target, which then counts (RFC 9112 section
        // 3.2.2). Two Host headers name nobody.
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok(),
            _ => None,
        };
        let authority = uri.authority().map(Authority::as_str).or(host);
        let target = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        Self { method: method.as_str(), authority, target, headers, body }
    }

    /// All lines of a field as one value (RFC 9110 section 5.3); `None` where it is absent or not printable.
    pub(super) fn field(&self, name: &HeaderName) -> Option<String> {
        let mut lines = self.headers.get_all(name).iter();
        let mut value = lines.next()?.to_str().ok()?.trim().to_owned();
        for line in lines {
            value.push_str(", ");
            value.push_str(line.to_str().ok()?.trim());
        }
        value.bytes().all(|byte| matches!(byte, b' '..=b'~')).then_some(value)
    }

    /// The authority as signatures name it: in lower case, without a default port.
    pub(super) fn authority(&self) -> Option<String> {
        self.authority.map(normal_authority)
    }

    /// The target in the spelling that both sides make of it (WHATWG URL): dot segments resolved, escapes kept.
    pub(super) fn url(&self, scheme: &str) -> Option<Url> {
        let authority = self.authority()?;
        if self.target.len() > TARGET_BYTES || !self.target.starts_with('/') {
            return None;
        }
        Url::parse(&format!("{scheme}://{authority}{}", self.target)).ok()
    }
}

/// An authority in lower case, without `:80` and `:443`: the scheme is not known to both sides behind a proxy.
pub fn normal_authority(authority: &str) -> String {
    let authority = authority.to_ascii_lowercase();
    let bare = authority.strip_suffix(":80").or_else(|| authority.strip_suffix(":443"));
    bare.map_or_else(|| authority.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_ports_go() {
        for (written, normal) in [
            ("A.Example", "a.example"),
            ("a.example:443", "a.example"),
            ("a.example:80", "a.example"),
            ("a.example:8443", "a.example:8443"),
            ("[::1]:80", "[::1]"),
        ] {
            assert_eq!(normal_authority(written), normal);
        }
    }

    #[test]
    fn lines_of_a_field_are_one_value() {
        let name = HeaderName::from_static("x");
        let mut headers = HeaderMap::new();
        headers.append("x", " a ".parse().unwrap());
        headers.append("x", "b".parse().unwrap());
        let field = |headers: &HeaderMap| {
            Request { method: "GET", authority: None, target: "/", headers, body: None }.field(&name)
        };
        assert_eq!(field(&headers).as_deref(), Some("a, b"));
        headers.append("x", http::HeaderValue::from_bytes(b"\xe9").unwrap());
        assert_eq!(field(&headers), None);
        assert_eq!(field(&HeaderMap::new()), None);
    }
}
