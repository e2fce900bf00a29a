//! The `Signature-Agent` field: whose key set a signature is verified by, and so who the signer is.

use sfv::{Dictionary, Item, ListEntry};
use url::Url;

use super::SignatureError;
use super::field;
use crate::protocol::Principal;

/// Longest value, in bytes.
const VALUE_BYTES: usize = 2048;
/// Where an agent's keys, and a gateway's, are found below its URL.
pub const JWKS_PATH: &str = "/.well-known/jwks.json";
const DIRECTORY: &str = "/.well-known/http-message-signatures-directory";

/// Where a key set is, and what kind it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeySource {
    /// Fetched from here.
    pub url: Url,
    /// A directory (its media type is required, and a `kid` must be the key's thumbprint) rather than a JWK set.
    pub directory: bool,
}

/// The field as it was sent.
#[derive(Debug)]
pub(super) enum SignatureAgent {
    /// A member for each label.
    Members(Dictionary),
    /// One string, of an earlier draft.
    Legacy(Item),
}

impl SignatureAgent {
    pub(super) fn parse(value: &str) -> Result<Self, SignatureError> {
        // A quote starts no key, so the two cannot be confused.
        let read = if value.trim_start_matches(' ').starts_with('"') {
            field::item(value).map(Self::Legacy)
        } else {
            field::dictionary(value).map(Self::Members)
        };
        read.map_err(|_| SignatureError::Malformed("Signature-Agent is a dictionary of strings, or one string"))
    }

    /// Who the member `key` names, or the one string where there is no key.
    pub(super) fn resolve(
        &self,
        key: Option<&str>,
        plain_http: bool,
    ) -> Result<(Principal, KeySource), SignatureError> {
        let (item, legacy) = match (self, key) {
            (Self::Legacy(item), None) => (item, true),
            (Self::Members(members), Some(key)) => match members.get(key) {
                Some(ListEntry::Item(item)) => (item, false),
                _ => return Err(invalid("Signature-Agent has no such member as the signature covers")),
            },
            _ => return Err(invalid("the signature covers Signature-Agent in another form than it was sent in")),
        };
        resolve(item, legacy, plain_http)
    }
}

fn invalid(rule: &'static str) -> SignatureError {
    SignatureError::AgentInvalid(rule)
}

fn resolve(item: &Item, legacy: bool, plain_http: bool) -> Result<(Principal, KeySource), SignatureError> {
    let value = item.bare_item.as_string().ok_or(invalid("a member of Signature-Agent is a string"))?.as_str();
    let mut kind = None;
    for (name, parameter) in &item.params {
        match parameter.as_token() {
            Some(token) if name.as_str() == "type" && !legacy => kind = Some(token.as_str()),
            _ => return Err(invalid("the only parameter in Signature-Agent is type, a token")),
        }
    }
    let (url, path) = locate(value, plain_http)?;
    let is_origin = matches!(path, "" | "/");
    let base = path.strip_suffix(JWKS_PATH);
    let agent = match (kind, base) {
        (Some("jwks_uri"), Some(base)) => Some(base),
        (None, Some(base)) if !legacy => Some(base),
        (None | Some("directory"), _) if is_origin => None,
        _ => return Err(invalid("Signature-Agent names <agent URL>/.well-known/jwks.json, or an origin's directory")),
    };
    let origin = url.origin().ascii_serialization();
    let principal = format!("{origin}{}", agent.unwrap_or_default().trim_end_matches('/'));
    let principal = Principal::agent(&principal).map_err(|_| invalid("the agent URL is at most 506 bytes"))?;
    let source = match agent {
        Some(_) => KeySource { url, directory: false },
        None => {
            let mut url = url;
            url.set_path(DIRECTORY);
            KeySource { url, directory: true }
        }
    };
    Ok((principal, source))
}

/// The URL and its path as it is written, which must be the path that a parser makes of it: two spellings of one agent
/// would be two agents.
fn locate(value: &str, plain_http: bool) -> Result<(Url, &str), SignatureError> {
    let rest = match value.strip_prefix("https://") {
        Some(rest) => rest,
        None if plain_http => value.strip_prefix("http://").ok_or(invalid("Signature-Agent is an http(s) URL"))?,
        None => return Err(invalid("Signature-Agent is an https URL")),
    };
    if value.len() > VALUE_BYTES || value.contains(['?', '#', '@', '\\', ' ']) {
        return Err(invalid("Signature-Agent is at most 2048 bytes, without userinfo, query or fragment"));
    }
    let path = rest.find('/').map_or("", |start| &rest[start..]);
    let url = Url::parse(value).map_err(|_| invalid("Signature-Agent is an absolute URL"))?;
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let has_gap = segments.iter().rev().skip(1).any(|segment| segment.is_empty());
    if has_gap || !(url.path() == path || path.is_empty()) {
        return Err(invalid("the path in Signature-Agent is canonical: no dot or empty segments, escaped as in a URL"));
    }
    Ok((url, path))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(field: &str) -> Result<(String, String, bool), &'static str> {
        let key = (!field.starts_with('"')).then_some("sig1");
        SignatureAgent::parse(field)
            .and_then(|agent| agent.resolve(key, false))
            .map(|(principal, source)| (principal.to_string(), source.url.to_string(), source.directory))
            .map_err(SignatureError::code)
    }

    fn jwks(agent: &str, url: &str) -> Result<(String, String, bool), &'static str> {
        Ok((format!("agent:{agent}"), url.to_owned(), false))
    }

    #[test]
    fn an_agent_url_is_what_stands_before_its_key_set() {
        let url = "https://a.example/agents/x/.well-known/jwks.json";
        for field in [format!("sig1=\"{url}\";type=jwks_uri"), format!("sig1=\"{url}\"")] {
            assert_eq!(of(&field), jwks("https://a.example/agents/x", url), "{field}");
        }
        let root = "https://a.example/.well-known/jwks.json";
        assert_eq!(of(&format!("sig1=\"{root}\"")), jwks("https://a.example", root));
        assert_eq!(
            of("sig1=\"https://A.Example:443/x/.well-known/jwks.json\""),
            jwks("https://a.example/x", "https://a.example/x/.well-known/jwks.json")
        );
        assert_eq!(
            of("sig1=\"https://a.example:8443/.well-known/jwks.json\""),
            jwks("https://a.example:8443", "https://a.example:8443/.well-known/jwks.json")
        );
    }

    #[test]
    fn an_origin_has_a_directory() {
        let directory = "https://a.example/.well-known/http-message-signatures-directory";
        let expected = Ok(("agent:https://a.example".to_owned(), directory.to_owned(), true));
        for field in [
            "\"https://a.example\"",
            "\"https://a.example/\"",
            "sig1=\"https://a.example\"",
            "sig1=\"https://a.example\";type=directory",
        ] {
            assert_eq!(of(field), expected, "{field}");
        }
    }

    #[test]
    fn anything_else_names_nobody() {
        let refused = "signature_agent_invalid";
        let (long, nested) = ("x".repeat(2048), "x".repeat(500));
        for value in [
            "\"http://a.example/.well-known/jwks.json\"",
            "\"ftp://a.example/.well-known/jwks.json\"",
            "\"HTTPS://a.example/.well-known/jwks.json\"",
            "\"/.well-known/jwks.json\"",
            "\"https://u@a.example/.well-known/jwks.json\"",
            "\"https://a.example/.well-known/jwks.json?x\"",
            "\"https://a.example/.well-known/jwks.json#x\"",
            "\"https://a.example/./.well-known/jwks.json\"",
            "\"https://a.example/%2e/.well-known/jwks.json\"",
            "\"https://a.example//.well-known/jwks.json\"",
            "\"https://a.example/x//.well-known/jwks.json\"",
            "\"https://a.example\\\\x/.well-known/jwks.json\"",
            "\"https://a.example/x y/.well-known/jwks.json\"",
            "\"https:///.well-known/jwks.json\"",
            "\"https://a.example/agents/x\"",
            "\"https://a.example/agents/x\";type=jwks_uri",
            "\"https://a.example/agents/x\";type=directory",
            "\"https://a.example/.well-known/agent.json\"",
            "\"https://a.example/.well-known/agent.json\";type=cimd",
            "\"https://a.example/.well-known/jwks.json\";type=directory",
            "\"https://a.example/.well-known/jwks.json\";type=other",
            "\"https://a.example/.well-known/jwks.json\";type=\"jwks_uri\"",
            "\"https://a.example/.well-known/jwks.json\";x=1",
            "token",
            "(\"https://a.example/.well-known/jwks.json\")",
            &format!("\"https://a.example/{long}/.well-known/jwks.json\""),
            &format!("\"https://a.example/{nested}/.well-known/jwks.json\""),
        ] {
            assert_eq!(of(&format!("sig1={value}")), Err(refused), "{value}");
        }
        // The legacy string is an origin and nothing more.
        for field in ["\"https://a.example/.well-known/jwks.json\"", "\"https://a.example\";type=directory"] {
            assert_eq!(of(field), Err(refused), "{field}");
        }
        assert_eq!(of("sig2=\"https://a.example/.well-known/jwks.json\""), Err(refused));
        assert_eq!(of("sig1=\"https://a.example"), Err("signature_malformed"));
    }

    #[test]
    fn plain_http_is_taken_where_it_is_allowed() {
        let field = SignatureAgent::parse("sig1=\"http://127.0.0.2:9/x/.well-known/jwks.json\"").unwrap();
        assert_eq!(field.resolve(Some("sig1"), true).unwrap().0.as_str(), "agent:http://127.0.0.2:9/x");
        assert!(field.resolve(Some("sig1"), false).is_err());
        assert!(field.resolve(None, true).is_err());
    }

    proptest! {
        #[test]
        fn an_agent_has_one_spelling(path in "[a-z./%2eE~-]{0,30}", host in "[a-zA-Z.]{1,10}", port in 1u16..) {
            let field = format!("sig1=\"https://{host}:{port}/{path}/.well-known/jwks.json\"");
            if let Ok((principal, url, _)) = of(&field) {
                let principal = principal.strip_prefix("agent:").unwrap();
                prop_assert_eq!(format!("{principal}/.well-known/jwks.json"), url.clone());
                prop_assert_eq!(of(&format!("sig1=\"{url}\"")), jwks(principal, &url));
            }
        }
    }
}
