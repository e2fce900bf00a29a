//! Tokens: JWTs (RFC 7519). The gateway's own are signed with HMAC-SHA-256 and nothing else; those of a platform are
//! for [`platform`]. Which of the two judges a token is decided by its issuer.

pub mod platform;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::secret::{self, SecretError};
use super::{Caller, Identity, OpaqueKey};
use crate::clock::Clock;
use crate::protocol::{AgentName, ChatId, Principal};
use platform::Platform;

/// Longest token that is looked at, in bytes.
pub const TOKEN_BYTES: usize = 8 * 1024;
/// How far two clocks may differ.
pub const LEEWAY: Duration = Duration::from_secs(60);

/// Why a token proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a token of this gateway's shape.
    #[error("the token is malformed")]
    Malformed,
    /// Another secret or key, or of the gateway's own tokens another algorithm than HS256.
    #[error("the token's signature is not its issuer's")]
    BadSignature,
    /// Neither this gateway nor the platform issued it.
    #[error("the token's issuer is not one that this gateway knows")]
    UnknownIssuer,
    /// An algorithm that the platform's tokens are not signed with, or that its key is not for.
    #[error("the token is not signed with its key's algorithm, RS256, ES256 or EdDSA")]
    BadAlgorithm,
    /// The platform's key set has no such key.
    #[error("the token names a key that its issuer does not publish")]
    UnknownKey,
    /// The platform's key set cannot be had now.
    #[error("the issuer's keys cannot be fetched now; try again")]
    KeysUnavailable,
    /// It names no issuer, and the gateway's own secret did not sign it.
    #[error("the token names no issuer: its iss is missing, or no text")]
    NoIssuer,
    /// A token of the platform's for somebody else, or one of the gateway's own that is for anybody in particular.
    #[error("the token is meant for another audience: its aud does not name this gateway, or is missing")]
    WrongAudience,
    /// Its signature is right, and one of its claims is not; the text says which, and never what it holds.
    #[error("the token's claims are not usable: {0}")]
    BadClaim(&'static str),
    /// Past its `exp`.
    #[error("the token has expired (exp)")]
    Expired,
    /// Before its `nbf` or `iat`.
    #[error("the token is not valid yet (nbf, iat)")]
    NotYetValid,
    /// An agent's token that names no agent: its owner could be anyone's.
    #[error("the agent's token carries no agent_id: mint it for one agent")]
    Unbound,
}

impl TokenError {
    /// The code that a caller is told.
    pub fn code(self) -> &'static str {
        match self {
            Self::Malformed
            | Self::BadSignature
            | Self::UnknownIssuer
            | Self::BadAlgorithm
            | Self::UnknownKey
            | Self::NoIssuer
            | Self::WrongAudience
            | Self::BadClaim(_)
            | Self::NotYetValid => "unauthorized",
            Self::KeysUnavailable => "unavailable",
            Self::Expired => "token_expired",
            Self::Unbound => "token_unbound",
        }
    }
}

/// Signing failed, which only a value that JSON cannot hold can cause.
#[derive(Debug, thiserror::Error)]
#[error("cannot sign the token: {0}")]
pub struct IssueError(#[from] jsonwebtoken::errors::Error);

/// Signs and verifies tokens with one secret, and verifies those of one platform.
#[derive(Clone)]
pub struct Tokens {
    signing: EncodingKey,
    verifying: DecodingKey,
    validation: Arc<Validation>,
    opaque: OpaqueKey,
    platform: Option<Arc<Platform>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    scope: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chats: Option<Vec<ChatId>>,
    /// Seconds since the Unix epoch; a NumericDate may have a fraction (RFC 7519 section 2).
    exp: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iat: Option<f64>,
}

impl Tokens {
    /// Reads the secret, or makes one (32 random bytes, mode 0600) when there is no file yet.
    ///
    /// # Errors
    /// When the file cannot be read or made, or holds less than 32 bytes.
    pub fn open(path: &Path) -> Result<Self, SecretError> {
        let secret = secret::open(path)?;
        Self::with_secret(&secret).ok_or_else(|| SecretError::TooShort { path: path.to_owned() })
    }

    /// Tokens signed with `secret`; none when it is empty.
    pub fn with_secret(secret: &[u8]) -> Option<Self> {
        let mut validation = Validation::new(Algorithm::HS256);
        // Times are judged below, by a clock that tests can set. A token with an audience is meant for someone else
        // (RFC 7519 section 4.1.3), and that check stays on.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        Some(Self {
            signing: EncodingKey::from_secret(secret).ok()?,
            verifying: DecodingKey::from_secret(secret).ok()?,
            validation: Arc::new(validation),
            opaque: OpaqueKey::derive(secret),
            platform: None,
        })
    }

    /// These, and the platform's tokens.
    pub fn with_platform(self, platform: Arc<Platform>) -> Self {
        Self { platform: Some(platform), ..self }
    }

    /// A token that proves `identity` for `ttl` from now.
    ///
    /// # Errors
    /// When the claims cannot be written as JSON.
    pub fn issue(&self, identity: &Identity, ttl: Duration, clock: &Clock) -> Result<String, IssueError> {
        let now = clock.unix_millis().div_euclid(1000);
        #[expect(clippy::cast_precision_loss, reason = "seconds stay below 2^53 for 285 million years")]
        let iat = now as f64;
        let claims = Claims::of(identity, iat, iat + ttl.as_secs_f64().ceil());
        Ok(jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.signing)?)
    }

    /// Who the token proves its bearer to be. It waits only for a platform's keys, and only where they are not known.
    ///
    /// # Errors
    /// See [`TokenError`]. What a token claims is not judged before its signature is verified.
    pub async fn identify(&self, token: &str, clock: &Clock) -> Result<Identity, TokenError> {
        self.identify_until(token, clock).await.map(|(identity, _)| identity)
    }

    /// The same, and until when: Unix milliseconds, without the leeway for clocks that differ.
    ///
    /// # Errors
    /// As [`identify`](Self::identify).
    pub async fn identify_until(&self, token: &str, clock: &Clock) -> Result<(Identity, i64), TokenError> {
        let verified = self.judge(token, clock);
        let Some(platform) = self.platform_of(token) else { return verified };
        let needs = matches!(verified, Err(TokenError::UnknownKey | TokenError::KeysUnavailable));
        platform.refresh(needs).await;
        if needs { self.judge(token, clock) } else { verified }
    }

    /// As [`identify`](Self::identify), by the keys that are known now.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn verify(&self, token: &str, clock: &Clock) -> Result<Identity, TokenError> {
        self.judge(token, clock).map(|(identity, _)| identity)
    }

    fn judge(&self, token: &str, clock: &Clock) -> Result<(Identity, i64), TokenError> {
        if token.len() > TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        if let Some(platform) = self.platform_of(token) {
            return platform.verify(token, clock);
        }
        self.verify_own(token, clock).map_err(|error| match error {
            TokenError::BadSignature if self.platform.is_some() => match issuer(token) {
                Some(_) => TokenError::UnknownIssuer,
                // What is signed as the platform's tokens are was to be one.
                None if !is_hmac(token) => TokenError::NoIssuer,
                None => error,
            },
            error => error,
        })
    }

    fn platform_of(&self, token: &str) -> Option<&Arc<Platform>> {
        let platform = self.platform.as_ref().filter(|_| token.len() <= TOKEN_BYTES)?;
        issuer(token).is_some_and(|issuer| platform.issues(&issuer)).then_some(platform)
    }

    fn verify_own(&self, token: &str, clock: &Clock) -> Result<(Identity, i64), TokenError> {
        let claims = jsonwebtoken::decode::<Claims>(token, &self.verifying, &self.validation)
            .map_err(|error| match error.kind() {
                ErrorKind::InvalidSignature | ErrorKind::InvalidAlgorithm => TokenError::BadSignature,
                _ => why(&error, token),
            })?
            .claims;
        claims.settle(clock)
    }

    /// What the other secrets that the gateway hands out are kept by.
    pub fn opaque_key(&self) -> &OpaqueKey {
        &self.opaque
    }
}

/// The issuer that a token names, unproven.
fn issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Unproven {
        iss: Option<String>,
    }
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<Unproven>(&payload).ok()?.iss
}

/// Whether a token's header says that it is signed with a secret, as the gateway's own are.
fn is_hmac(token: &str) -> bool {
    let algorithm = jsonwebtoken::decode_header(token).map(|header| header.alg);
    algorithm.is_ok_and(|algorithm| matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512))
}

/// What is wrong with a token whose signature is right.
fn why(error: &jsonwebtoken::errors::Error, token: &str) -> TokenError {
    match error.kind() {
        ErrorKind::InvalidAudience => TokenError::WrongAudience,
        ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => TokenError::WrongAudience,
        ErrorKind::Json(_) => bad_claim(token).map_or(TokenError::Malformed, TokenError::BadClaim),
        _ => TokenError::Malformed,
    }
}

/// The first claim that is not of its type, in a token whose claims could not be read.
fn bad_claim(token: &str) -> Option<&'static str> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: serde_json::Map<String, Value> = serde_json::from_slice(&payload).ok()?;
    let claim = |name| claims.get(name).filter(|value| !value.is_null());
    let is_time = |name| claim(name).is_none_or(Value::is_number);
    let is_text = |name| claim(name).is_none_or(Value::is_string);
    let is_chats = |value: &Value| Vec::<ChatId>::deserialize(value).is_ok();
    let rules = [
        (claim("exp").is_some_and(Value::is_number), "exp is missing, or no number"),
        (claim("scope").is_some_and(Value::is_string), "scope is missing, or no text"),
        (is_time("nbf"), "nbf is no number"),
        (is_time("iat"), "iat is no number"),
        (is_text("sub"), "sub is no text"),
        (is_text("agent_id"), "agent_id is no text"),
        (is_text("agent_name"), "agent_name is no text"),
        (claim("chats").is_none_or(is_chats), "chats is no list of chats' names"),
    ];
    rules.into_iter().find(|(holds, _)| !holds).map(|(_, text)| text)
}

impl Claims {
    fn of(identity: &Identity, iat: f64, exp: f64) -> Self {
        let base = Self {
            sub: None,
            scope: String::new(),
            agent_id: None,
            agent_name: None,
            chats: None,
            exp,
            nbf: None,
            iat: Some(iat),
        };
        match identity {
            Identity::Agent { principal, name, owner } => Self {
                sub: owner.clone(),
                scope: "agent".to_owned(),
                agent_id: principal.as_str().strip_prefix("agent:").map(str::to_owned),
                agent_name: name.as_ref().map(|name| name.as_str().to_owned()),
                ..base
            },
            Identity::Reader(caller) => Self {
                sub: Some(caller.principal.as_str().to_owned()),
                scope: "reader".to_owned(),
                chats: caller.chats.as_ref().map(|chats| chats.to_vec()),
                ..base
            },
            Identity::Operator => Self { scope: "operator".to_owned(), ..base },
        }
    }

    /// What claims prove once their signature is verified: who, and until when in Unix milliseconds.
    fn settle(self, clock: &Clock) -> Result<(Identity, i64), TokenError> {
        self.judge_times(clock)?;
        #[expect(clippy::cast_possible_truncation, reason = "a time past the end of i64 is cut to that end")]
        let expires_at = (self.exp * 1000.0) as i64;
        self.identity().map(|identity| (identity, expires_at))
    }

    fn judge_times(&self, clock: &Clock) -> Result<(), TokenError> {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds stay below 2^53 for 285 thousand years")]
        let now = clock.unix_millis() as f64 / 1000.0;
        let leeway = LEEWAY.as_secs_f64();
        if self.exp + leeway <= now {
            return Err(TokenError::Expired);
        }
        if [self.nbf, self.iat].into_iter().flatten().any(|start| start > now + leeway) {
            return Err(TokenError::NotYetValid);
        }
        Ok(())
    }

    fn identity(self) -> Result<Identity, TokenError> {
        // A scope is a list (RFC 6749 section 3.3); words that mean nothing here are left alone, two that do are not.
        let mut known = self.scope.split(' ').filter(|word| matches!(*word, "agent" | "reader" | "operator"));
        let scope = match (known.next(), known.next()) {
            (Some(scope), None) => scope,
            _ => return Err(TokenError::BadClaim("scope has to hold one of agent, reader and operator")),
        };
        match scope {
            "agent" => {
                let id = self.agent_id.filter(|id| !id.is_empty()).ok_or(TokenError::Unbound)?;
                let principal = Principal::agent(&id).map_err(|_| TokenError::BadClaim("agent_id is no agent's id"))?;
                let name = self.agent_name.map(|name| name.parse::<AgentName>()).transpose();
                let name = name.map_err(|_| TokenError::BadClaim("agent_name is no agent's name"))?;
                Ok(Identity::Agent { principal, name, owner: self.sub })
            }
            "reader" => {
                const NOBODY: TokenError =
                    TokenError::BadClaim("sub has to be user:<id> or agent:<id> in a reader's token");
                let principal: Principal = self.sub.and_then(|sub| sub.parse().ok()).ok_or(NOBODY)?;
                // `*` stands for every verified caller in a list of participants, and is nobody himself.
                if principal == Principal::everyone() {
                    return Err(NOBODY);
                }
                Ok(Identity::Reader(Caller { principal, chats: self.chats.map(Arc::from) }))
            }
            _ => Ok(Identity::Operator),
        }
    }
}

#[cfg(test)]
mod tests;
