//! The gateway's own identity: an Ed25519 key that signs what the gateway asks of others (RFC 9421 in the web-bot-auth
//! profile). Whoever is asked finds the public half at the gateway's own URL.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _};
use ed25519_dalek::{Signer as _, SigningKey};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use url::Url;

use super::file::{self, FileError};
use crate::clock::Clock;
use crate::protocol::signature::{JWKS_PATH, thumbprint};

/// Seconds for which a signature is good.
const LIFETIME: i64 = 60;
/// The one label of the signatures made here.
const LABEL: &str = "sig1";
const NONCE_BYTES: usize = 64;

/// Why there is no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file is there and cannot be read.
    #[error("cannot read the signing key {}: {source} (let this user read it, or set --signing-key-file)", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no file and it cannot be made.
    #[error("cannot create the signing key {}: {source} (set --signing-key-file or --data-dir to a writable place)", path.display())]
    NotCreated {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file holds no Ed25519 key.
    #[error("the signing key {} is not an Ed25519 key in PKCS#8 PEM (delete it to have one made)", path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
}

/// The key, and the URL that it is found at. Clones share it.
#[derive(Clone)]
pub struct GatewayKey {
    key: Arc<SigningKey>,
    thumbprint: Arc<str>,
    /// `sig1="<public URL>/.well-known/jwks.json";type=jwks_uri` without the label: the component's value.
    agent: Arc<str>,
}

impl fmt::Debug for GatewayKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayKey").field("thumbprint", &self.thumbprint).finish_non_exhaustive()
    }
}

impl GatewayKey {
    /// Reads the key (PKCS#8 in PEM), or makes one (mode 0600) when there is no file yet. `public_url` has no trailing slash.
    ///
    /// # Errors
    /// When the file cannot be read or made, or holds something else.
    pub fn open(path: &Path, public_url: &str) -> Result<Self, KeyError> {
        let content = file::open(path, make).map_err(|error| {
            let path = path.to_owned();
            match error {
                FileError::Unreadable(source) => KeyError::Unreadable { path, source },
                FileError::NotCreated(source) => KeyError::NotCreated { path, source },
                FileError::TooLong => KeyError::NotAKey { path },
            }
        })?;
        let key = std::str::from_utf8(&content.bytes).ok().and_then(|pem| SigningKey::from_pkcs8_pem(pem).ok());
        let key = key.ok_or_else(|| KeyError::NotAKey { path: path.to_owned() })?;
        content.warn_if_open(path);
        Ok(Self::new(key, public_url))
    }

    /// With this key.
    pub fn new(key: SigningKey, public_url: &str) -> Self {
        Self {
            thumbprint: thumbprint(&URL_SAFE_NO_PAD.encode(key.verifying_key().to_bytes())).into(),
            key: Arc::new(key),
            agent: format!("\"{public_url}{JWKS_PATH}\";type=jwks_uri").into(),
        }
    }

    /// The public half as a key set (RFC 7517 section 5).
    pub fn jwks(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.key.verifying_key().to_bytes());
        let kid = self.thumbprint.as_ref();
        json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid, "use": "sig", "alg": "EdDSA" }] })
    }

    /// Signs a request without a body: adds `Signature-Agent`, `Signature-Input` and `Signature` to `headers`. What they
    /// already hold under the names in `covered` is signed along with it.
    pub fn sign(&self, method: &Method, url: &Url, headers: &mut HeaderMap, covered: &[HeaderName], clock: &Clock) {
        let created = clock.unix_millis().div_euclid(1000);
        let nonce = STANDARD.encode(rand::random::<[u8; NONCE_BYTES]>());
        self.sign_at(method, url, headers, covered, created, &nonce);
    }

    fn sign_at(
        &self,
        method: &Method,
        url: &Url,
        headers: &mut HeaderMap,
        covered: &[HeaderName],
        created: i64,
        nonce: &str,
    ) {
        let mut names = String::from(r#""@method" "@authority" "@path" "@query""#);
        let authority = crate::outbound::authority(url).unwrap_or_default();
        let mut base = format!(
            "\"@method\": {method}\n\"@authority\": {authority}\n\"@path\": {}\n\"@query\": ?{}\n",
            url.path(),
            url.query().unwrap_or_default()
        );
        for name in covered {
            // A header that cannot be said in the base is left out of it.
            let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) else { continue };
            names += &format!(" \"{name}\"");
            base += &format!("\"{name}\": {}\n", value.trim_matches([' ', '\t']));
        }
        names += &format!(" \"signature-agent\";key=\"{LABEL}\"");
        base += &format!("\"signature-agent\";key=\"{LABEL}\": {}\n", self.agent);
        let parameters = format!(
            "({names});created={created};expires={};keyid=\"{}\";alg=\"ed25519\";nonce=\"{nonce}\";tag=\"web-bot-auth\"",
            created + LIFETIME,
            self.thumbprint
        );
        base += &format!("\"@signature-params\": {parameters}");
        let signature = STANDARD.encode(self.key.sign(base.as_bytes()).to_bytes());
        for (name, value) in [
            ("signature-agent", format!("{LABEL}={}", self.agent)),
            ("signature-input", format!("{LABEL}={parameters}")),
            ("signature", format!("{LABEL}=:{signature}:")),
        ] {
            // Each is made of visible ASCII: the public URL is an origin, and the rest is written here.
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }
}

fn make() -> String {
    let key = SigningKey::from_bytes(&rand::random());
    // Writing a key fails only for keys of other kinds; an empty file would be told as no key.
    key.to_pkcs8_pem(LineEnding::LF).map(|pem| pem.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
