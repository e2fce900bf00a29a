//! Whose a URL is: the comparison by which the gateway decides for whom it asks in its own name.
//!
//! Servers decode, normalise and route paths each in their own way, and whoever chooses the URL chooses the spelling. So
//! two URLs are compared only where every server reads them alike; any other spelling is nobody's.

use std::collections::BTreeSet;

use url::{Position, Url};

use super::Principal;

/// How deep a path may be.
const SEGMENTS: usize = 32;
/// What stands in a path for itself, beside letters and digits: what RFC 3986 section 3.3 allows without `%`, and without
/// `;`, after which some servers ignore the rest of a segment.
const PLAIN: &[u8] = b"-._~:!$&'()*+,=";

/// A URL that servers agree about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainUrl {
    /// Scheme, host and port (RFC 6454).
    origin: String,
    authority: String,
    segments: Vec<String>,
}

impl PlainUrl {
    /// None when it is spelt in any way that some server may read as another: escapes, dot or empty segments,
    /// backslashes, a user.
    pub fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok()?;
        let (_, rest) = text.split_once("://")?;
        let path = rest.find('/').map_or("/", |start| &rest[start..]);
        // The parser has left the path as it was written, and it is sent like that.
        if &url[Position::BeforePath..] != path || text.contains(['\\', '#', '@']) {
            return None;
        }
        let path = url.path().strip_prefix('/')?;
        let segments: Vec<String> = if path.is_empty() {
            Vec::new()
        } else {
            path.split('/').map(|segment| segment.replace(COLON[0], ":").replace(COLON[1], ":")).collect()
        };
        if segments.len() > SEGMENTS || !segments.iter().all(|segment| is_plain(segment)) {
            return None;
        }
        Some(Self { origin: url.origin().ascii_serialization(), authority: authority_of(&url)?, segments })
    }

    /// The host and port, whatever the scheme.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Whether it lies below `base`, or is it.
    pub fn is_below(&self, base: &Self) -> bool {
        self.origin == base.origin && self.segments.starts_with(&base.segments)
    }

    /// The agents, known by their URLs, that have it below them and are themselves below `base`.
    pub fn owners_below<'a>(&'a self, base: &Self) -> impl Iterator<Item = Principal> + use<'a> {
        let depths = base.segments.len() + 1..=self.segments.len();
        depths
            .filter_map(|depth| Principal::agent(&format!("{}/{}", self.origin, self.segments[..depth].join("/"))).ok())
    }
}

/// As a colon is written where it need not be: what endpoints name blobs by has one.
const COLON: [&str; 2] = ["%3A", "%3a"];

fn is_plain(segment: &str) -> bool {
    !segment.is_empty()
        && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || PLAIN.contains(&byte))
        && segment.bytes().any(|byte| byte != b'.')
}

/// The host and port of a URL, in whichever way it is spelt; none of what is no http(s) URL.
pub fn authority(text: &str) -> Option<String> {
    authority_of(&Url::parse(text).ok()?)
}

/// The hosts and ports of many URLs, most of which differ in their paths only.
pub fn authorities<'a>(urls: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let origins: BTreeSet<&str> = urls.into_iter().map(up_to_path).collect();
    origins.into_iter().filter_map(authority).collect()
}

fn up_to_path(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    url[start..].find(['/', '?', '#', '\\']).map_or(url, |end| &url[..start + end])
}

fn authority_of(url: &Url) -> Option<String> {
    let host = url.host_str()?.trim_end_matches('.');
    if host.is_empty() || !matches!(url.scheme(), "http" | "https") {
        return None;
    }
    Some(format!("{host}:{}", url.port_or_known_default()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(text: &str) -> PlainUrl {
        PlainUrl::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn a_place_is_below_whole_segments_of_its_own_origin() {
        let blob = place("https://A.example:443/agents/x/artifacts/blobs/sha256:00");
        for base in
            ["https://a.example", "https://a.example/", "https://a.example/agents", "https://a.example/agents/x"]
        {
            assert!(blob.is_below(&place(base)), "{base}");
        }
        for base in [
            "http://a.example/agents/x",
            "https://a.example:8443/agents/x",
            "https://b.example/agents/x",
            "https://a.example/agents/X",
            "https://a.example/agent",
            "https://a.example/agents/x/artifacts/blobs/sha256:00/more",
        ] {
            assert!(!blob.is_below(&place(base)), "{base}");
        }
        let owners: Vec<_> = blob.owners_below(&place("https://a.example/agents")).map(|who| who.to_string()).collect();
        assert_eq!(owners[0], "agent:https://a.example/agents/x");
        assert_eq!(owners.len(), 4);
    }

    #[test]
    fn what_servers_may_read_in_two_ways_is_no_place() {
        for path in [
            "/agents/%78/b",
            "/agents/%2578/b",
            "/agents/y/..%2fx/b",
            "/agents/y/..%5cx/b",
            "/agents/y%2Fx/b",
            "/agents//x/b",
            "//agents/x/b",
            "/agents/x/b/",
            "/agents/./x/b",
            "/agents/y/../x/b",
            "/../agents/x/b",
            "/agents/y/%2e%2e/x/b",
            "/agents/y/.../x/b",
            "/agents/y/..;/x/b",
            "/agents/x;v=1/b",
            "/agents\\x/b",
            "/agents/x/b#f",
            "/agents/x y/b",
            "/agents/\u{fc}/b",
            "/agents/x|y/b",
            "/agents/x\t/b",
            "/@x/b",
        ] {
            assert_eq!(PlainUrl::parse(&format!("https://a.example{path}")), None, "{path}");
        }
        for text in
            ["", "/agents/x", "ftp://a.example/x", "https://u@a.example/x", "https:a.example/x", "https:\\\\a/x"]
        {
            assert_eq!(PlainUrl::parse(text), None, "{text}");
        }
        assert_eq!(PlainUrl::parse(&format!("https://a.example{}", "/x".repeat(SEGMENTS + 1))), None);
        assert!(PlainUrl::parse("https://a.example/agents/x/artifacts/blobs/sha256:00?a=%2f").is_some());
    }

    #[test]
    fn an_authority_has_one_spelling() {
        for text in
            ["https://A.example./x", "https://a.example:443//y", "http://a.example:443/%78", "https://u@a.example"]
        {
            assert_eq!(authority(text).as_deref(), Some("a.example:443"), "{text}");
        }
        assert_eq!(authority("http://0x7f.1:80/").as_deref(), Some("127.0.0.1:80"));
        for text in ["", "data:,x", "s3://bucket/x", "https://"] {
            assert_eq!(authority(text), None, "{text}");
        }
    }

    #[test]
    fn many_urls_have_few_authorities() {
        let urls = ["https://a.example/x/y", "https://a.example?x", "https://A.example\\x", "https://b.example:1", "x"];
        let found: Vec<_> = authorities(urls).into_iter().collect();
        assert_eq!(found, ["a.example:443", "b.example:1"]);
    }

    proptest! {
        /// However a server decodes and normalises a path, a place below an agent stays there.
        #[test]
        fn a_place_is_read_alike_by_every_server(path in "(/|\\\\|\\.|%2[eEfF]|%5c|%78|;|x|y|agents|[ -~]){0,20}") {
            let text = format!("https://a.example/agents/{path}");
            if let Some(place) = PlainUrl::parse(&text) && place.is_below(&PlainUrl::parse("https://a.example/agents/y").unwrap()) {
                let path = path.split('?').next().unwrap_or_default();
                let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy().replace('\\', "/");
                let segments: Vec<&str> = decoded.split('/').collect();
                prop_assert_eq!(segments[0], "y");
                prop_assert!(segments.iter().all(|segment| !["", ".", ".."].contains(segment)), "{}", decoded);
            }
        }
    }
}
