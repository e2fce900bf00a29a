//! A set of public keys (RFC 7517 section 5), as agents publish theirs.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::VerifyingKey;
use http::HeaderMap;
use http::header::CACHE_CONTROL;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::SignatureError;

/// Longest document that is read for a set, in bytes.
pub const KEY_SET_BYTES: u64 = 64 * 1024;
/// How long a set is good for, whatever its server says (RFC 9111 section 5.2.2.1), in seconds.
const SHORTEST: u64 = 300;
const LONGEST: u64 = 86_400;
/// Most keys in a set.
const KEYS: usize = 16;
/// The Ed25519 key of RFC 9421 appendix B.1.4. Its private half is printed there.
const TEST_KEY: &str = "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs";

/// The keys of a set that verify signatures, by thumbprint (RFC 7638).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySet(Vec<(String, VerifyingKey)>);

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

/// What matters of a key. Others of its members may be anything.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: String,
    x: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
}

impl KeySet {
    /// Reads a document. Keys that verify no Ed25519 signature are skipped; in a `directory`, so is one whose `kid` is
    /// not its thumbprint.
    ///
    /// # Errors
    /// [`SignatureError::KeySetInvalid`] for anything but a set of 1 to 16 keys, when none is left, or when one of them
    /// is a test key that everybody has.
    pub fn parse(document: &[u8], directory: bool) -> Result<Self, SignatureError> {
        let Document { keys } = serde_json::from_slice(document).map_err(|_| SignatureError::KeySetInvalid)?;
        if keys.len() > KEYS {
            return Err(SignatureError::KeySetInvalid);
        }
        let mut usable: Vec<(String, VerifyingKey)> = Vec::new();
        for key in keys {
            let Ok(key) = serde_json::from_value::<Jwk>(key) else { continue };
            if key.x == TEST_KEY {
                return Err(SignatureError::KeySetInvalid);
            }
            if let Some((thumbprint, verifying)) = key.usable()
                && (!directory || key.kid.as_ref().is_none_or(|kid| *kid == thumbprint))
            {
                usable.push((thumbprint, verifying));
            }
        }
        if usable.is_empty() { Err(SignatureError::KeySetInvalid) } else { Ok(Self(usable)) }
    }

    /// A set of these keys, whoever else has their private halves.
    #[cfg(test)]
    pub(super) fn trusting(xs: &[&str]) -> Self {
        let key = |x: &&str| {
            let bytes = URL_SAFE_NO_PAD.decode(x).unwrap().try_into().unwrap();
            (thumbprint(x), VerifyingKey::from_bytes(&bytes).unwrap())
        };
        Self(xs.iter().map(key).collect())
    }

    /// The key of this thumbprint.
    pub fn get(&self, thumbprint: &str) -> Option<&VerifyingKey> {
        self.0.iter().find(|(known, _)| known == thumbprint).map(|(_, key)| key)
    }
}

impl Jwk {
    fn usable(&self) -> Option<(String, VerifyingKey)> {
        let fits = self.kty == "OKP"
            && self.crv == "Ed25519"
            && self.purpose.as_ref().is_none_or(|purpose| purpose == "sig")
            && self.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"))
            && self.alg.as_ref().is_none_or(|alg| matches!(alg.as_str(), "ed25519" | "EdDSA" | "Ed25519"));
        if !fits || self.x.len() != 43 {
            return None;
        }
        let bytes: [u8; 32] = URL_SAFE_NO_PAD.decode(&self.x).ok()?.try_into().ok()?;
        let key = VerifyingKey::from_bytes(&bytes).ok().filter(|key| !key.is_weak())?;
        Some((thumbprint(&self.x), key))
    }
}

/// The thumbprint of an Ed25519 key, given its `x` (RFC 7638 section 3, RFC 8037 appendix A.3).
pub fn thumbprint(x: &str) -> String {
    let members = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    URL_SAFE_NO_PAD.encode(Sha256::digest(members))
}

/// How long a set that came with these headers is good for: as its server says, between five minutes and a day.
pub fn lifetime(headers: &HeaderMap) -> Duration {
    let directives = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let seconds = directives.flat_map(|value| value.split(',')).find_map(|directive| {
        let (name, seconds) = directive.trim().split_once('=')?;
        name.eq_ignore_ascii_case("max-age").then(|| seconds.trim_matches('"').parse().ok())?
    });
    Duration::from_secs(seconds.unwrap_or(SHORTEST).clamp(SHORTEST, LONGEST))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// A public key without a private one that anybody here knows, and its thumbprint.
    const X: &str = "ebVWLo_mVPlAeLES6KmLp5AfhTrmlb7X4OORC60ElmQ";
    const THUMBPRINT: &str = "WWpn_pfHui9YKR4CZtQsDGMu7_Gch2zYChfSvnxgtPk";

    fn parse(keys: &[Value], directory: bool) -> Result<KeySet, SignatureError> {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes(), directory)
    }

    fn key(change: Value) -> Value {
        let mut key = json!({"kty": "OKP", "crv": "Ed25519", "x": X});
        key.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        key
    }

    #[test]
    fn a_thumbprint_is_over_the_required_members_alone() {
        assert_eq!(thumbprint(X), THUMBPRINT);
        // RFC 8037 appendix A.3.
        let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        assert_eq!(thumbprint(x), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    #[test]
    fn usable_keys() {
        for change in [
            json!({}),
            json!({"use": "sig"}),
            json!({"alg": "EdDSA", "key_ops": ["verify", "sign"], "kid": "any", "x5c": 7}),
            json!({"alg": "ed25519"}),
            json!({"alg": "Ed25519", "use": null}),
        ] {
            assert!(parse(&[key(change.clone())], false).unwrap().get(THUMBPRINT).is_some(), "{change}");
        }
    }

    #[test]
    fn other_keys_are_skipped_and_none_is_not_enough() {
        for change in [
            json!({"kty": "RSA"}),
            json!({"crv": "X25519"}),
            json!({"use": "enc"}),
            json!({"key_ops": ["sign"]}),
            json!({"alg": "ES256"}),
            json!({"x": "short"}),
            json!({"x": format!("{X}A")}),
            // The last character says more bits than the key has.
            json!({"x": format!("{}R", &X[..42])}),
            // The neutral element, under which anything verifies.
            json!({"x": "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}),
            json!({"x": 1}),
        ] {
            assert_eq!(parse(&[key(change.clone())], false), Err(SignatureError::KeySetInvalid), "{change}");
            assert!(parse(&[key(change), json!(1), key(json!({}))], false).is_ok());
        }
    }

    #[test]
    fn a_set_is_kept_as_long_as_its_server_says_within_bounds() {
        for (value, seconds) in [
            ("", 300),
            ("no-store", 300),
            ("max-age=0", 300),
            ("public, max-age=3600", 3600),
            ("Max-Age=\"600\"", 600),
            ("max-age=99999999", 86_400),
            ("max-age=x", 300),
            ("s-maxage=9999", 300),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, value.parse().unwrap());
            assert_eq!(lifetime(&headers), Duration::from_secs(seconds), "{value}");
        }
    }

    #[test]
    fn a_key_that_everybody_has_spoils_the_set() {
        assert!(parse(&[key(json!({})), key(json!({"x": TEST_KEY}))], false).is_err());
    }

    #[test]
    fn in_a_directory_a_kid_is_the_thumbprint() {
        assert!(parse(&[key(json!({"kid": "any"}))], true).is_err());
        assert!(parse(&[key(json!({"kid": THUMBPRINT}))], true).is_ok());
        assert!(parse(&[key(json!({}))], true).is_ok());
    }

    #[test]
    fn a_set_has_sixteen_keys_at_most() {
        let keys = |count| (0..count).map(|_| key(json!({}))).collect::<Vec<_>>();
        assert!(parse(&keys(16), false).is_ok());
        assert!(parse(&keys(17), false).is_err());
        for document in ["", "[]", "{}", r#"{"keys": {}}"#, r#"{"keys": []}"#] {
            assert!(KeySet::parse(document.as_bytes(), false).is_err(), "{document}");
        }
    }

    proptest! {
        #[test]
        fn any_document_is_a_set_or_an_error(document in "\\PC{0,80}", x in "[A-Za-z0-9_-]{43}") {
            let _ = KeySet::parse(document.as_bytes(), false);
            if let Ok(set) = parse(&[key(json!({ "x": x }))], false) {
                prop_assert_eq!(set.get(&thumbprint(&x)).unwrap().to_bytes().to_vec(), URL_SAFE_NO_PAD.decode(&x).unwrap());
            }
        }
    }
}
