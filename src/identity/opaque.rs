//! Secrets that the gateway hands out and does not keep: a browser's cookie, a sign-in code, a link.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// So many random bytes, and so many of their MAC, which together are these as base64url.
const RANDOM: usize = 20;
const TAG: usize = 12;
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

/// 160 random bits and their MAC, as text that fits a cookie and a path: one that this gateway has never handed out is
/// told without a look at what is kept, however many somebody tries. Kept out of logs.
#[derive(Clone, PartialEq, Eq)]
pub struct OpaqueSecret(Arc<str>);

impl OpaqueSecret {
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

    /// A new secret.
    pub fn issue(&self, purpose: Purpose) -> OpaqueSecret {
        let random: [u8; RANDOM] = rand::random();
        let tag = self.tag(purpose, &random).finalize().into_bytes();
        OpaqueSecret(URL_SAFE_NO_PAD.encode([&random[..], &tag[..TAG]].concat()).into())
    }

    /// One that came back; none when it was never handed out for this.
    pub fn read(&self, purpose: Purpose, text: &str) -> Option<OpaqueSecret> {
        if text.len() != TEXT_BYTES {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (random, tag) = bytes.split_at_checked(RANDOM)?;
        self.tag(purpose, random).verify_truncated_left(tag).ok()?;
        Some(OpaqueSecret(text.into()))
    }

    fn tag(&self, purpose: Purpose, random: &[u8]) -> Hmac<Sha256> {
        with(&*self.0, &[b"tag of a ", purpose.label(), b"\0", random])
    }

    /// What tells this key from that of another tokens' secret, and nothing else about it.
    pub fn fingerprint(&self) -> String {
        hex::encode(mac(&*self.0, &[b"fingerprint"]))
    }

    /// What is kept of a secret.
    pub fn hash(&self, purpose: Purpose, secret: &OpaqueSecret) -> String {
        hex::encode(mac(&*self.0, &[purpose.label(), b"\0", secret.0.as_bytes()]))
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    with(key, parts).finalize().into_bytes().into()
}

fn with(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length (RFC 2104 section 2)")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key is long enough");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> OpaqueKey {
        OpaqueKey::derive(b"one")
    }

    #[test]
    fn a_secret_comes_back_as_it_was_and_for_what_it_was_made() {
        let secret = key().issue(Purpose::Link);
        assert_eq!(secret.expose().len(), TEXT_BYTES);
        assert_eq!(key().read(Purpose::Link, secret.expose()), Some(secret.clone()));
        assert_ne!(key().issue(Purpose::Link), secret);
        for purpose in [Purpose::Browser, Purpose::SignInCode] {
            assert_eq!(key().read(purpose, secret.expose()), None);
        }
        assert_eq!(OpaqueKey::derive(b"other").read(Purpose::Link, secret.expose()), None);
    }

    #[test]
    fn what_was_never_handed_out_is_none() {
        let made = key().issue(Purpose::Browser);
        for text in ["", "x", &"x".repeat(43), &"x".repeat(44), &"/".repeat(43), &"ä".repeat(22)] {
            assert_eq!(key().read(Purpose::Browser, text), None, "{text}");
        }
        // Nor is one that is another at any place.
        for at in 0..TEXT_BYTES {
            let mut text = made.expose().as_bytes().to_vec();
            text[at] = if text[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(key().read(Purpose::Browser, std::str::from_utf8(&text).unwrap()), None, "{at}");
        }
    }

    proptest! {
        #[test]
        fn whatever_text_comes_is_read(text in "\\PC{0,50}") {
            prop_assert_eq!(key().read(Purpose::Link, &text), None);
        }
    }

    #[test]
    fn what_is_kept_depends_on_key_purpose_and_secret() {
        let (one, other) = (key(), OpaqueKey::derive(b"other"));
        let secret = one.issue(Purpose::Link);
        let kept = one.hash(Purpose::Link, &secret);
        assert_eq!(kept, OpaqueKey::derive(b"one").hash(Purpose::Link, &secret));
        assert_ne!(kept, other.hash(Purpose::Link, &secret));
        assert_ne!(kept, one.hash(Purpose::Browser, &secret));
        assert_ne!(kept, one.hash(Purpose::Link, &one.issue(Purpose::Link)));
    }

    #[test]
    fn a_key_is_told_from_others_by_its_fingerprint() {
        assert_eq!(key().fingerprint(), OpaqueKey::derive(b"one").fingerprint());
        assert_ne!(key().fingerprint(), OpaqueKey::derive(b"other").fingerprint());
    }

    #[test]
    fn nothing_shows_a_secret() {
        let secret = key().issue(Purpose::Browser);
        assert!(!format!("{secret:?} {:?}", key()).contains(secret.expose()));
    }
}
