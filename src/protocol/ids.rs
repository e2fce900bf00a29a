//! The names of things, each a type of its own so that one cannot be passed for another.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::limits::REQUEST_ID_BYTES;

/// A name breaks the rule of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {rule}")]
pub struct InvalidId {
    what: &'static str,
    rule: &'static str,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text, exactly as it was given.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(InvalidId { what: $what, rule: $rule })
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

text_id!(
    /// Who someone is: `user:<id>`, `agent:<agent URL>` or `agent:<agent_id>`, or `*` (as a participant: every
    /// verified caller).
    Principal,
    "a principal",
    "is user:<id>, agent:<id> or *, printable, at most 512 bytes",
    |text| {
        let id = text.strip_prefix("user:").or_else(|| text.strip_prefix("agent:"));
        text == "*" || id.is_some_and(|id| printable(id, 506))
    }
);

text_id!(
    /// The name the platform knows an agent by: in routes and frames, never in access decisions.
    AgentName,
    "an agent name",
    "is 1 to 128 printable characters' bytes without / and surrounding spaces",
    |text| printable(text, 128) && !text.contains('/')
);

text_id!(
    /// A chat, as the platform names it.
    ChatId,
    "a chat id",
    "is 1 to 200 bytes, printable, without /",
    |text| printable(text, 200) && !text.contains('/')
);

text_id!(
    /// What `session.create` opens, or the id of one relayed turn.
    SessionId,
    "a session id",
    "is 1 to 256 bytes, printable",
    |text| printable(text, 256)
);

text_id!(
    /// The task that a set answers.
    TaskId,
    "a task id",
    "is 1 to 256 bytes, printable",
    |text| printable(text, 256)
);

text_id!(
    /// One `blob.read` (specification section 4): 1 to 64 bytes.
    RequestId,
    "a request id",
    "is 1 to 64 bytes",
    |text| !text.is_empty() && text.len() <= REQUEST_ID_BYTES
);

impl Principal {
    /// The participant that stands for every verified caller.
    pub fn everyone() -> Self {
        Self("*".into())
    }

    /// The principal of an agent known by its token's `agent_id`, or by its agent URL.
    pub fn agent(id: &str) -> Result<Self, InvalidId> {
        format!("agent:{id}").parse()
    }

    /// Whether this is an agent.
    pub fn is_agent(&self) -> bool {
        self.0.starts_with("agent:")
    }

    /// The URL of an agent that is known by it.
    pub fn agent_url(&self) -> Option<&str> {
        let id = self.0.strip_prefix("agent:")?;
        let scheme = id.split_once("://")?.0;
        (scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http")).then_some(id)
    }
}

/// Neither empty, too long, padded with spaces, nor holding a control character: safe in a log line and a header.
fn printable(text: &str, max_bytes: usize) -> bool {
    !text.is_empty() && text.len() <= max_bytes && text.trim() == text && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn principals() {
        for text in ["*", "user:alice", "agent:a1", "agent:https://agent.example/agents/flow", "user:a b"] {
            assert!(text.parse::<Principal>().is_ok(), "{text}");
        }
        for text in ["", "alice", "user:", "agent:", "User:alice", "user: a", "user:a ", "user:a\nb", "**", " *"] {
            assert!(text.parse::<Principal>().is_err(), "{text:?}");
        }
        assert!(format!("user:{}", "a".repeat(506)).parse::<Principal>().is_ok());
        assert!(format!("user:{}", "a".repeat(507)).parse::<Principal>().is_err());
        assert_eq!(Principal::everyone(), "*".parse().unwrap());
        assert!(Principal::agent("a1").unwrap().is_agent());
        assert!(Principal::agent("").is_err());
        assert!(!"user:agent:a1".parse::<Principal>().unwrap().is_agent());
    }

    #[test]
    fn lengths_are_counted_in_bytes() {
        assert!("é".repeat(64).parse::<AgentName>().is_ok());
        assert!("é".repeat(65).parse::<AgentName>().is_err());
        assert!("é".repeat(32).parse::<RequestId>().is_ok());
        assert!("é".repeat(33).parse::<RequestId>().is_err());
        assert!("a".repeat(200).parse::<ChatId>().is_ok());
        assert!("a".repeat(201).parse::<ChatId>().is_err());
        assert!("a".repeat(257).parse::<SessionId>().is_err());
        assert!("a".repeat(257).parse::<TaskId>().is_err());
        assert!("".parse::<RequestId>().is_err());
    }

    #[test]
    fn names_in_routes_hold_no_slash() {
        assert!("a/b".parse::<AgentName>().is_err());
        assert!("a/b".parse::<ChatId>().is_err());
        assert!("a/b".parse::<SessionId>().is_ok());
    }

    #[test]
    fn an_error_does_not_repeat_the_text() {
        let error = "secret\n".parse::<SessionId>().unwrap_err();
        assert_eq!(error.to_string(), "a session id is 1 to 256 bytes, printable");
    }

    proptest! {
        #[test]
        fn text_is_kept_exactly(text in any::<String>()) {
            if let Ok(id) = text.parse::<AgentName>() {
                prop_assert_eq!(id.as_str(), &text);
                prop_assert!(!text.chars().any(char::is_control));
                let json = serde_json::to_string(&id).unwrap();
                prop_assert_eq!(serde_json::from_str::<AgentName>(&json).unwrap(), id);
            } else {
                prop_assert!(serde_json::from_value::<AgentName>(serde_json::json!(text)).is_err());
            }
        }
    }
}
