//! Secrets that the gateway hands out and does not keep: a browser's cookie, a sign-in code, a link.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// 32 random bytes as base64url.
const TEXT_BYTES: usize = 43;

/// What an opaque secret is for. One kind is never taken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A signed-in browser's cookie.
    Browser,
    /// A code that signs a browser in, once.
    SignInCode,
    /// A link to one file.
    Link,
}

impl Purpose {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Browser => b"browser",
            Self::SignInCode => b"sign-in code",
            Self::Link => b"link",
        }
    }
}

/// 256 random bits, as text that fits a cookie and a path. Kept out of logs.
#[derive(Clone, PartialEq, Eq)]
pub struct OpaqueSecret(Arc<str>);

impl OpaqueSecret {
    /// A new one.
    pub fn generate() -> Self {
        let bytes: [u8; 32] = rand::random();
        Self(URL_SAFE_NO_PAD.encode(bytes).into())
    }

    /// One that came back; none when it cannot be one.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = text.len() == TEXT_BYTES && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        fits.then(|| Self(text.into()))
    }

    /// The text, for its holder and nobody else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for OpaqueSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpaqueSecret")
    }
}

/// Turns secrets into what is kept of them. The key comes from the tokens' secret: with another one, whatever was handed
/// out before is void, and whoever reads the database alone can neither use nor make anything.
#[derive(Clone)]
pub struct OpaqueKey(Arc<[u8; 32]>);

impl fmt::Debug for OpaqueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpaqueKey")
    }
}

impl OpaqueKey {
    /// A key of its own for this use of the tokens' secret.
    pub(super) fn derive(token_secret: &[u8]) -> Self {
        Self(Arc::new(mac(token_secret, &[b"sluice opaque secrets, version 1"])))
    }

    /// What is kept of a secret.
    pub fn hash(&self, purpose: Purpose, secret: &OpaqueSecret) -> String {
        hex::encode(mac(&*self.0, &[purpose.label(), b"\0", secret.0.as_bytes()]))
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length (RFC 2104 section 2)")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key is long enough");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_back_as_it_was() {
        let secret = OpaqueSecret::generate();
        assert_eq!(OpaqueSecret::parse(secret.expose()), Some(secret.clone()));
        assert_ne!(OpaqueSecret::generate(), secret);
        for text in ["", "x", &"x".repeat(44), &"/".repeat(43), &"ä".repeat(22)] {
            assert_eq!(OpaqueSecret::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_kept_depends_on_key_purpose_and_secret() {
        let (one, other) = (OpaqueKey::derive(b"one"), OpaqueKey::derive(b"other"));
        let secret = OpaqueSecret::generate();
        let kept = one.hash(Purpose::Link, &secret);
        assert_eq!(kept, OpaqueKey::derive(b"one").hash(Purpose::Link, &secret));
        assert_ne!(kept, other.hash(Purpose::Link, &secret));
        assert_ne!(kept, one.hash(Purpose::Browser, &secret));
        assert_ne!(kept, one.hash(Purpose::Link, &OpaqueSecret::generate()));
    }

    #[test]
    fn nothing_shows_a_secret() {
        let secret = OpaqueSecret::generate();
        assert!(!format!("{secret:?} {:?}", OpaqueKey::derive(b"k")).contains(secret.expose()));
    }
}
