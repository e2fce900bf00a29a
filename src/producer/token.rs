//! What an agent may learn from its own token without being able to verify it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use crate::protocol::AgentName;

/// The `agent_name` claim of a JWT, read without verifying anything: only the gateway decides whether it is true.
/// `None` for an opaque token, or one without that claim.
pub(super) fn agent_name(token: &str) -> Option<AgentName> {
    #[derive(Deserialize)]
    struct Claims {
        agent_name: Option<AgentName>,
    }
    let payload = token.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    serde_json::from_slice::<Claims>(&claims).ok()?.agent_name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn the_name_is_the_claim() {
        assert_eq!(agent_name(&jwt(r#"{"sub":"ada","agent_name":"ada.mini"}"#)).unwrap().as_str(), "ada.mini");
    }

    #[test]
    fn no_name_without_a_readable_claim() {
        for token in
            ["", "opaque", "a.b.c", "a.!.c", &jwt("{}"), &jwt(r#"{"agent_name":7}"#), &jwt(r#"{"agent_name":""}"#)]
        {
            assert_eq!(agent_name(token), None, "{token}");
        }
    }
}
