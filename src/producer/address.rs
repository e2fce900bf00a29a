//! The gateway's URL, and what is dialled for it.

use http::{HeaderValue, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::protocol::AgentName;

/// What a path segment need not escape (RFC 3986 section 2.3).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A gateway URL that cannot be dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGatewayUrl {
    /// Not an absolute URL.
    #[error("{0:?} is not a URL; write it like http://127.0.0.1:8080")]
    NotAUrl(String),
    /// Another scheme.
    #[error("{0:?} is not a scheme to dial; use http, https, ws or wss")]
    Scheme(String),
    /// Credentials in the URL.
    #[error("the URL holds a user name or password; give the token with --token")]
    Credentials,
}

/// Where to dial and what to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) tls: bool,
    /// A name, or an IP address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// The `Host` header (RFC 9110 section 7.2).
    pub(super) authority: HeaderValue,
    control: Uri,
    data: Uri,
}

impl Address {
    /// Reads a gateway URL. Exactly its host and port are dialled: no proxy, no redirect, no other name.
    pub(super) fn parse(url: &str) -> Result<Self, InvalidGatewayUrl> {
        let not_a_url = || InvalidGatewayUrl::NotAUrl(url.to_owned());
        // A URL with credentials must not be repeated in a message.
        if url.contains('@') {
            return Err(InvalidGatewayUrl::Credentials);
        }
        let uri: Uri = url.trim().parse().map_err(|_| not_a_url())?;
        let scheme = uri.scheme().ok_or_else(not_a_url)?;
        let tls = match scheme.as_str() {
            "http" | "ws" => false,
            "https" | "wss" => true,
            other => return Err(InvalidGatewayUrl::Scheme(other.to_owned())),
        };
        let authority = uri.authority().ok_or_else(not_a_url)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(not_a_url());
        }
        let path = match uri.path() {
            "" | "/" => "/ws",
            path => path,
        };
        let target = |query: Option<String>| match query {
            Some(query) => format!("{path}?{query}").parse().map_err(|_| not_a_url()),
            None => path.parse().map_err(|_| not_a_url()),
        };
        let query = uri.query();
        Ok(Self {
            tls,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| not_a_url())?,
            control: target(query.map(str::to_owned))?,
            data: target(Some(query.map_or("conn=data".to_owned(), |query| format!("{query}&conn=data"))))?,
        })
    }

    /// What the control connection's upgrade asks for (RFC 9112 section 3.2.1).
    pub(super) fn control(&self) -> &Uri {
        &self.control
    }

    /// What the data connection's upgrade asks for: the same with `conn=data`.
    pub(super) fn data(&self) -> &Uri {
        &self.data
    }

    /// The agent's own URL at this gateway: what a set names as its producer.
    pub(super) fn agent_url(&self, name: &AgentName) -> String {
        let name = utf8_percent_encode(name.as_str(), SEGMENT);
        let authority = String::from_utf8_lossy(self.authority.as_bytes());
        format!("{}://{authority}/agents/{name}", if self.tls { "https" } else { "http" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_origin_gets_the_path() {
        for url in ["http://gw.example:8080", "ws://gw.example:8080/", "http://gw.example:8080/ws"] {
            let address = Address::parse(url).unwrap();
            assert_eq!((address.host.as_str(), address.port), ("gw.example", 8080), "{url}");
            assert_eq!(
                (&address.authority, address.control()),
                (&HeaderValue::from_static("gw.example:8080"), &Uri::from_static("/ws"))
            );
            assert_eq!(address.data(), "/ws?conn=data");
        }
    }

    #[test]
    fn an_own_path_and_query_stay() {
        let address = Address::parse("ws://gw.example/relay/?zone=a").unwrap();
        assert_eq!(address.port, 80);
        assert_eq!(address.control(), "/relay/?zone=a");
        assert_eq!(address.data(), "/relay/?zone=a&conn=data");
    }

    #[test]
    fn tls_has_its_own_scheme_and_port() {
        for url in ["https://gw.example", "wss://gw.example/ws"] {
            let address = Address::parse(url).unwrap();
            assert_eq!((address.tls, address.port), (true, 443));
            assert_eq!(address.authority, "gw.example");
            assert_eq!(address.agent_url(&"mini".parse().unwrap()), "https://gw.example/agents/mini");
        }
    }

    #[test]
    fn brackets_are_not_part_of_an_address() {
        let address = Address::parse("http://[::1]:9").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 9));
        assert_eq!(address.authority, "[::1]:9");
    }

    #[test]
    fn an_agents_url_holds_its_name_as_one_segment() {
        let address = Address::parse("ws://gw.example:8080").unwrap();
        let url = |name: &str| address.agent_url(&name.parse().unwrap());
        assert_eq!(url("ada.mini"), "http://gw.example:8080/agents/ada.mini");
        assert_eq!(url("a b?"), "http://gw.example:8080/agents/a%20b%3F");
    }

    #[test]
    fn what_cannot_be_dialled_is_refused_without_repeating_secrets() {
        use InvalidGatewayUrl::{Credentials, NotAUrl, Scheme};
        assert!(matches!(Address::parse("gw.example:8080"), Err(NotAUrl(_) | Scheme(_))));
        assert!(matches!(Address::parse("/ws"), Err(NotAUrl(_))));
        assert!(matches!(Address::parse(""), Err(NotAUrl(_))));
        assert!(matches!(Address::parse("ftp://gw.example"), Err(Scheme(_))));
        let refused = Address::parse("http://me:secret@gw.example").unwrap_err();
        assert_eq!(refused, Credentials);
        assert!(!refused.to_string().contains("secret"));
    }
}
