//! An agent that signs its requests (RFC 9421, web-bot-auth). It shares no code with the gateway's verifier.
//!
//! ```ignore
//! let agent = SigningAgent::start(&[1]).await;                        // serves its key set
//! let headers = agent.sign(&gateway, "GET", "/ws?conn=data").headers();
//! ```

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ed25519_dalek::pkcs8::EncodePrivateKey as _;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::gateway::Gateway;
use super::origin::Origin;

/// The key that grows from a seed.
fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn x(seed: u8) -> String {
    URL_SAFE_NO_PAD.encode(key(seed).verifying_key().to_bytes())
}

/// The RFC 7638 thumbprint of a seed's key.
pub fn thumbprint(seed: u8) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, x(seed))))
}

/// A seed's key as a gateway keeps its own: PKCS#8 in PEM.
pub fn pem(seed: u8) -> String {
    key(seed).to_pkcs8_pem(LineEnding::LF).unwrap().to_string()
}

/// A JWK set of these seeds' keys.
pub fn key_set(seeds: &[u8]) -> Value {
    let keys: Vec<_> = seeds.iter().map(|seed| json!({"kty": "OKP", "crv": "Ed25519", "x": x(*seed)})).collect();
    json!({ "keys": keys })
}

/// An agent with a server for its key set.
pub struct SigningAgent {
    /// `http://127.0.0.1:port/agents/mini`.
    pub url: String,
    /// The seeds of the keys that it signs with.
    pub seeds: Vec<u8>,
    pub origin: Origin,
    published: Arc<Mutex<Value>>,
}

impl SigningAgent {
    /// One that publishes the keys that it signs with.
    pub async fn start(seeds: &[u8]) -> Self {
        let published = Arc::new(Mutex::new(key_set(seeds)));
        let answer = published.clone();
        let agent = Self::serving(seeds, get(async move || answer.lock().unwrap().to_string())).await;
        Self { published, ..agent }
    }

    /// One whose key set is answered by `route`.
    pub async fn serving(seeds: &[u8], route: axum::routing::MethodRouter) -> Self {
        let origin = Origin::http(Router::new().route("/agents/mini/.well-known/jwks.json", route)).await;
        let url = origin.url("/agents/mini");
        Self { url, seeds: seeds.to_vec(), origin, published: Arc::default() }
    }

    /// Publishes these keys from now on, and signs with those.
    pub fn rotate(&mut self, published: &[u8], seeds: &[u8]) {
        *self.published.lock().unwrap() = key_set(published);
        self.seeds = seeds.to_vec();
    }

    /// Publishes something from now on that is no key set.
    pub fn spoil(&self) {
        *self.published.lock().unwrap() = Value::Null;
    }

    /// Who it is once it has proven it.
    pub fn principal(&self) -> String {
        format!("agent:{}", self.url)
    }

    /// A request of this agent to a gateway, for changing before it is signed.
    pub fn sign(&self, gateway: &Gateway, method: &str, target: &str) -> Signing {
        Signing::new(&self.seeds, &self.url, method, &gateway.address().to_string(), target)
    }
}

fn unix_now() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "a signer has a clock of its own")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed()
}

/// What is to be signed.
#[derive(Debug, Clone)]
pub struct Signing {
    pub seeds: Vec<u8>,
    pub source: String,
    pub method: String,
    pub authority: String,
    pub target: String,
    pub body: Option<Vec<u8>>,
    /// In Unix seconds.
    pub created: i64,
    pub expires: i64,
}

impl Signing {
    /// A request that is signed now with these seeds' keys, by whoever `url` is.
    pub fn new(seeds: &[u8], url: &str, method: &str, authority: &str, target: &str) -> Self {
        let now = unix_now();
        Self {
            seeds: seeds.to_vec(),
            source: format!("{url}/.well-known/jwks.json"),
            method: method.to_owned(),
            authority: authority.to_owned(),
            target: target.to_owned(),
            body: None,
            created: now,
            expires: now + 60,
        }
    }

    /// The fields of the signed request, with a nonce of their own.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let digest = self.body.as_ref().map(|body| format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(body))));
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let member = format!("\"{}\";type=jwks_uri", self.source);
        let (mut inputs, mut signatures, mut agents) = (Vec::new(), Vec::new(), Vec::new());
        for (place, seed) in self.seeds.iter().enumerate() {
            let label = format!("sig{}", place + 1);
            let mut lines = vec![
                ("\"@method\"".to_owned(), self.method.clone()),
                ("\"@authority\"".to_owned(), self.authority.clone()),
                ("\"@path\"".to_owned(), path.to_owned()),
                ("\"@query\"".to_owned(), format!("?{query}")),
            ];
            lines.extend(digest.iter().map(|digest| ("\"content-digest\"".to_owned(), digest.clone())));
            lines.push((format!("\"signature-agent\";key=\"{label}\""), member.clone()));
            let nonce = STANDARD.encode(rand::random::<[u8; 32]>());
            let covered: Vec<_> = lines.iter().map(|(name, _)| name.as_str()).collect();
            let input = format!(
                "({});created={};expires={};keyid=\"{}\";alg=\"ed25519\";nonce=\"{nonce}\";tag=\"web-bot-auth\"",
                covered.join(" "),
                self.created,
                self.expires,
                thumbprint(*seed),
            );
            lines.push(("\"@signature-params\"".to_owned(), input.clone()));
            let base: Vec<_> = lines.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            let signature = STANDARD.encode(key(*seed).sign(base.join("\n").as_bytes()).to_bytes());
            inputs.push(format!("{label}={input}"));
            signatures.push(format!("{label}=:{signature}:"));
            agents.push(format!("{label}={member}"));
        }
        let mut headers = vec![
            ("signature-agent", agents.join(", ")),
            ("signature-input", inputs.join(", ")),
            ("signature", signatures.join(", ")),
        ];
        headers.extend(digest.map(|digest| ("content-digest", digest)));
        headers
    }
}

/// A key set that is not there.
pub fn redirect(to: &str) -> Response {
    (http::StatusCode::FOUND, [("location", to.to_owned())]).into_response()
}
