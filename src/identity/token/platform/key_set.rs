//! A JSON Web Key Set (RFC 7517), and of it what may verify tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

/// Most keys of a set.
const KEYS: usize = 32;
/// The sizes of an RSA modulus in bytes: 2048 bits are the least (RFC 7518 section 3.3), and above 8192 a verification
/// costs too much.
const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;
/// An exponent is 65537 or thereabouts.
const EXPONENT_BYTES: usize = 4;

/// Why a set is not usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKeySet {
    /// Not the JSON of a key set.
    #[error("it is not a JSON object with a list of keys")]
    Malformed,
    /// More keys than anybody needs.
    #[error("it holds more than 32 keys")]
    TooMany,
    /// No key of a kind that tokens are signed with here.
    #[error("it holds no signing key for RS256, ES256 or EdDSA")]
    NoKey,
}

/// A key, and the one algorithm that it verifies.
pub struct Key {
    kid: Option<String>,
    pub algorithm: Algorithm,
    pub verifying: DecodingKey,
}

/// The usable keys of a set.
pub struct KeySet(Vec<Key>);

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Keys of other kinds, and keys for other purposes, are passed over.
    pub fn parse(json: &[u8]) -> Result<Self, InvalidKeySet> {
        let set: Jwks = serde_json::from_slice(json).map_err(|_| InvalidKeySet::Malformed)?;
        if set.keys.len() > KEYS {
            return Err(InvalidKeySet::TooMany);
        }
        let keys: Vec<Key> = set.keys.into_iter().filter_map(|jwk| Jwk::deserialize(jwk).ok()?.key()).collect();
        if keys.is_empty() { Err(InvalidKeySet::NoKey) } else { Ok(Self(keys)) }
    }

    /// The key of this id; the only one there is when a token names none.
    pub fn find(&self, kid: Option<&str>) -> Option<&Key> {
        match (kid, self.0.as_slice()) {
            (Some(kid), keys) => keys.iter().find(|key| key.kid.as_deref() == Some(kid)),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }
}

impl Jwk {
    fn key(self) -> Option<Key> {
        let verifies = self.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
            && self.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        if !verifies {
            return None;
        }
        let (algorithm, names, verifying) = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => {
                let (n, e) = (self.n.as_deref()?, self.e.as_deref()?);
                let size = |number: &str| URL_SAFE_NO_PAD.decode(number).ok().map(|bytes| bytes.len());
                if !MODULUS_BYTES.contains(&size(n)?) || size(e)? > EXPONENT_BYTES {
                    return None;
                }
                (Algorithm::RS256, &["RS256"][..], DecodingKey::from_rsa_components(n, e).ok()?)
            }
            ("EC", Some("P-256")) => {
                let key = DecodingKey::from_ec_components(self.x.as_deref()?, self.y.as_deref()?).ok()?;
                (Algorithm::ES256, &["ES256"][..], key)
            }
            // RFC 9864 names the curve, RFC 8037 does not.
            ("OKP", Some("Ed25519")) => {
                (Algorithm::EdDSA, &["EdDSA", "Ed25519"][..], DecodingKey::from_ed_components(self.x.as_deref()?).ok()?)
            }
            _ => return None,
        };
        let fits = self.alg.as_deref().is_none_or(|alg| names.contains(&alg));
        fits.then_some(Key { kid: self.kid, algorithm, verifying })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(keys: &Value) -> Result<KeySet, InvalidKeySet> {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    fn ed25519(kid: &str) -> Value {
        json!({ "kty": "OKP", "crv": "Ed25519", "x": "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs", "kid": kid })
    }

    #[test]
    fn a_key_is_found_by_its_id() {
        let set = parse(&json!([ed25519("a"), ed25519("b")])).ok().unwrap();
        assert_eq!(set.find(Some("b")).unwrap().kid.as_deref(), Some("b"));
        assert!(set.find(Some("c")).is_none());
        assert!(set.find(None).is_none(), "which of the two is anyone's guess");
        assert!(parse(&json!([ed25519("a")])).ok().unwrap().find(None).is_some());
    }

    #[test]
    fn keys_for_other_purposes_are_passed_over() {
        let with = |name: &str, value: Value| {
            let mut key = ed25519("a");
            key[name] = value;
            parse(&json!([key])).map(|_| ())
        };
        assert_eq!(with("use", json!("sig")), Ok(()));
        assert_eq!(with("key_ops", json!(["verify"])), Ok(()));
        assert_eq!(with("alg", json!("EdDSA")), Ok(()));
        for (name, value) in [
            ("use", json!("enc")),
            ("key_ops", json!(["sign"])),
            ("alg", json!("HS256")),
            ("crv", json!("X25519")),
            ("kty", json!("oct")),
            ("x", json!(7)),
        ] {
            assert_eq!(with(name, value.clone()), Err(InvalidKeySet::NoKey), "{name} {value}");
        }
        // A symmetric key in a public set would make everybody a signer.
        let symmetric = json!([{ "kty": "oct", "k": "AAAA", "alg": "HS256", "kid": "a" }]);
        assert_eq!(parse(&symmetric).err(), Some(InvalidKeySet::NoKey));
        let small = json!([{ "kty": "RSA", "n": URL_SAFE_NO_PAD.encode([255; 128]), "e": "AQAB" }]);
        assert_eq!(parse(&small).err(), Some(InvalidKeySet::NoKey));
    }

    #[test]
    fn what_is_no_key_set_is_refused() {
        for json in ["", "[]", "{}", "{\"keys\":{}}", "null"] {
            assert_eq!(KeySet::parse(json.as_bytes()).err(), Some(InvalidKeySet::Malformed), "{json}");
        }
        assert_eq!(parse(&json!([])).err(), Some(InvalidKeySet::NoKey));
        assert_eq!(parse(&json!([ed25519("a"), 1, {}])).map(|set| set.0.len()).ok(), Some(1));
        let many: Vec<_> = (0..33).map(|number| ed25519(&number.to_string())).collect();
        assert_eq!(parse(&json!(many)).err(), Some(InvalidKeySet::TooMany));
    }
}
