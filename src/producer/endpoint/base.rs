//! The endpoint's public URL: what is announced, and what signatures are made for.

use std::borrow::Cow;
use std::net::SocketAddr;

use percent_encoding::percent_decode_str;
use url::{Position, Url};

use crate::protocol::signature::normal_authority;
use crate::protocol::{Location, LocationKind, Sha256};

/// Where blobs are, below the base (specification section 2).
const BLOBS: &str = "/artifacts/blobs/";
const NAME_PREFIX: &str = "sha256:";

/// A URL under which no blob can be announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the endpoint's URL is an https URL (http only to loopback) without a user, query or fragment")]
pub struct InvalidEndpointUrl;

/// The specification's `<base>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::producer) struct Base {
    /// Without a slash at its end.
    url: String,
    /// Its path, which proxies keep: signatures cover it.
    path: String,
    /// As [`normal_authority`] spells it.
    pub(super) authority: String,
    pub(super) scheme: &'static str,
}

impl Base {
    /// Of an address that is reached without a proxy, over http.
    pub(super) fn of(address: SocketAddr) -> Result<Self, InvalidEndpointUrl> {
        Self::parse(&format!("http://{address}"))
    }

    pub(in crate::producer) fn parse(url: &str) -> Result<Self, InvalidEndpointUrl> {
        let url: Url = url.parse().map_err(|_| InvalidEndpointUrl)?;
        let scheme = if url.scheme() == "https" { "https" } else { "http" };
        let has_more = url.query().is_some() || url.fragment().is_some();
        let base = Self {
            authority: normal_authority(&url[Position::BeforeHost..Position::AfterPort]),
            path: url.path().trim_end_matches('/').to_owned(),
            url: url.as_str().trim_end_matches('/').to_owned(),
            scheme,
        };
        let Location { kind, target } = base.location(&Sha256::of(b""));
        if has_more || kind.check(&target).is_err() { Err(InvalidEndpointUrl) } else { Ok(base) }
    }

    pub(in crate::producer) fn url(&self) -> &str {
        &self.url
    }

    /// Where a blob can be fetched.
    pub(in crate::producer) fn location(&self, sha256: &Sha256) -> Location {
        Location { kind: LocationKind::Https, target: format!("{}{BLOBS}{NAME_PREFIX}{sha256}", self.url) }
    }

    /// The blob's name in a path, where the path is one of a blob.
    pub(super) fn name<'a>(&self, path: &'a str) -> Option<Cow<'a, str>> {
        let name = path.strip_prefix(&self.path)?.strip_prefix(BLOBS)?;
        if name.contains('/') {
            return None;
        }
        Some(percent_decode_str(name).decode_utf8_lossy())
    }
}

/// The hash that a blob's name says; none in any other spelling than the specification's.
pub(super) fn hash(name: &str) -> Option<Sha256> {
    name.strip_prefix(NAME_PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_blob_is_found_where_it_is_announced() {
        for (url, written, authority) in [
            ("https://Agent.Example/agents/flow/", "https://agent.example/agents/flow", "agent.example"),
            ("https://agent.example:443", "https://agent.example", "agent.example"),
            ("https://agent.example:8443/a/../b", "https://agent.example:8443/b", "agent.example:8443"),
            ("http://127.0.0.1:9300", "http://127.0.0.1:9300", "127.0.0.1:9300"),
            ("http://[::1]:9300/x", "http://[::1]:9300/x", "[::1]:9300"),
            ("http://localhost", "http://localhost", "localhost"),
        ] {
            let base = Base::parse(url).unwrap();
            assert_eq!((base.url(), base.authority.as_str()), (written, authority), "{url}");
            let sha256 = Sha256::of(b"x");
            let Location { kind, target } = base.location(&sha256);
            assert_eq!((kind, &target), (LocationKind::Https, &format!("{written}/artifacts/blobs/sha256:{sha256}")));
            let path = Url::parse(&target).unwrap().path().to_owned();
            assert_eq!(base.name(&path).as_deref().and_then(hash), Some(sha256));
            assert_eq!(base.name(&path.replace(':', "%3A")).as_deref().and_then(hash), Some(sha256));
        }
    }

    #[test]
    fn other_paths_are_no_blobs() {
        let base = Base::parse("https://agent.example/agents/flow").unwrap();
        let hex = Sha256::of(b"x").to_hex();
        for path in [
            "/",
            "/agents/flow",
            "/agents/flow/artifacts/blobs",
            &format!("/artifacts/blobs/sha256:{hex}"),
            &format!("/agents/flow2/artifacts/blobs/sha256:{hex}"),
            &format!("/agents/flow/artifacts/blobs/sha256:{hex}/"),
            &format!("/agents/flow/artifacts/blobs//sha256:{hex}"),
        ] {
            assert_eq!(base.name(path), None, "{path}");
        }
        for name in ["", "sha256:", &hex, &format!("sha256:{}", hex.to_uppercase()), &format!("sha512:{hex}")] {
            assert_eq!(hash(name), None, "{name}");
        }
    }

    #[test]
    fn only_what_a_manifest_may_name_is_announced() {
        for url in [
            "",
            "agent.example",
            "http://agent.example",
            "http://10.0.0.5:9300",
            "http://0.0.0.0:9300",
            "ftp://127.0.0.1",
            "https://user:secret@agent.example",
            "https://agent.example/?q",
            "https://agent.example/#f",
            &format!("https://agent.example/{}", "x".repeat(2048)),
        ] {
            assert_eq!(Base::parse(url), Err(InvalidEndpointUrl), "{url}");
        }
    }

    proptest! {
        #[test]
        fn any_path_is_read(path in "/?(agents/flow)?(/artifacts/blobs/)?\\PC{0,80}") {
            let base = Base::parse("https://agent.example/agents/flow").unwrap();
            let _ = base.name(&path).as_deref().and_then(hash);
        }
    }
}
