//! The platform's own tokens: RS256, ES256 and EdDSA under a key set that the gateway fetches.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rustls::RootCertStore;
use serde_json::{Value, json};
use sluice::clock::Clock;
use sluice::identity::{Identity, KeySetError, Platform, PlatformOptions, TokenError, Tokens};
use sluice::metrics::Metrics;
use sluice::outbound::{Bounds, FetchError, Outbound, Resolver};
use sluice::protocol::address::Allowed;
use support::{Agent, Gateway, Origin};
use tokio_util::task::TaskTracker;

const NOW: i64 = 1_800_000_000;
const ISSUER: &str = "https://issuer.example";
const AUDIENCE: &str = "https://files.example";

/// A key of the platform's.
#[derive(Clone)]
struct Signer {
    kid: &'static str,
    algorithm: Algorithm,
    key: EncodingKey,
}

impl Signer {
    fn rsa(kid: &'static str) -> Self {
        let key = EncodingKey::from_rsa_pem(include_bytes!("support/keys/rsa.pem")).unwrap();
        Self { kid, algorithm: Algorithm::RS256, key }
    }

    fn p256(kid: &'static str) -> Self {
        let key = EncodingKey::from_ec_pem(include_bytes!("support/keys/p256.pem")).unwrap();
        Self { kid, algorithm: Algorithm::ES256, key }
    }

    fn ed25519(kid: &'static str) -> Self {
        let key = EncodingKey::from_ed_pem(include_bytes!("support/keys/ed25519.pem")).unwrap();
        Self { kid, algorithm: Algorithm::EdDSA, key }
    }

    fn jwk(&self) -> Value {
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&self.key, self.algorithm).unwrap()).unwrap();
        jwk["kid"] = self.kid.into();
        jwk
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.kid.to_owned()), ..Header::new(self.algorithm) };
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }
}

/// Serves whatever set it holds, and counts how often.
#[derive(Clone, Default)]
struct KeyServer {
    keys: Arc<Mutex<Vec<Value>>>,
    served: Arc<AtomicUsize>,
    broken: Arc<Mutex<bool>>,
}

impl KeyServer {
    fn of(signers: &[Signer]) -> Self {
        let server = Self::default();
        server.publish(signers);
        server
    }

    fn publish(&self, signers: &[Signer]) {
        *self.keys.lock().unwrap() = signers.iter().map(Signer::jwk).collect();
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }

    async fn start(&self) -> Origin {
        let server = self.clone();
        Origin::http(Router::new().fallback(async move || {
            server.served.fetch_add(1, Ordering::SeqCst);
            if *server.broken.lock().unwrap() {
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
            axum::Json(json!({ "keys": *server.keys.lock().unwrap() })).into_response()
        }))
        .await
    }
}

fn platform(url: &str, allow: &[&str]) -> Arc<Platform> {
    let allowed = Allowed::new(allow.iter().map(|entry| entry.parse().unwrap()).collect());
    let (metrics, bounds) = (Arc::new(Metrics::new().unwrap()), Bounds { total: 4, per_host: 4, ..Bounds::default() });
    let outbound = Outbound::with(allowed, bounds, metrics, Resolver::System, RootCertStore::empty());
    let options =
        PlatformOptions { jwks_url: url.parse().unwrap(), issuer: ISSUER.to_owned(), audience: AUDIENCE.to_owned() };
    Platform::new(options, outbound, TaskTracker::new())
}

fn tokens(origin: &Origin) -> Tokens {
    let platform = platform(&origin.url("/keys"), &["127.0.0.1"]);
    Tokens::with_secret(&[7; 32]).unwrap().with_platform(platform)
}

fn claims() -> Value {
    json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": "user:alice", "scope": "reader", "iat": NOW, "exp": NOW + 60 })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

async fn ask(tokens: &Tokens, token: &str) -> Result<String, TokenError> {
    let identity = tokens.identify(token, &Clock::fixed(NOW * 1000)).await?;
    Ok(identity.caller().map_or_else(|| "operator".to_owned(), |caller| caller.principal.to_string()))
}

/// Lets so much time pass at once.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn every_kind_of_key_verifies_its_own_tokens() {
    let signers = [Signer::rsa("r"), Signer::p256("e"), Signer::ed25519("o")];
    let server = KeyServer::of(&signers);
    let origin = server.start().await;
    let tokens = tokens(&origin);
    for signer in &signers {
        assert_eq!(ask(&tokens, &signer.sign(&claims())).await.as_deref(), Ok("user:alice"), "{}", signer.kid);
    }
    let agent = json!({ "iss": ISSUER, "aud": ["x", AUDIENCE], "sub": "u1", "agent_id": "a1", "agent_name": "ada.mini",
        "scope": "agent", "exp": NOW + 60 });
    assert_eq!(ask(&tokens, &signers[1].sign(&agent)).await.as_deref(), Ok("agent:a1"));
    assert_eq!(server.served(), 1);
    // The gateway's own tokens are what they were, and need nobody.
    let own = tokens.issue(&Identity::Operator, Duration::from_secs(60), &Clock::fixed(NOW * 1000)).unwrap();
    assert_eq!(tokens.verify(&own, &Clock::fixed(NOW * 1000)), Ok(Identity::Operator));
}

#[tokio::test]
async fn what_a_token_claims_has_to_fit() {
    let signer = Signer::p256("e");
    let origin = KeyServer::of(std::slice::from_ref(&signer)).start().await;
    let tokens = tokens(&origin);
    for (claims, error) in [
        (with("aud", json!("https://other.example")), TokenError::WrongAudience),
        (with("aud", json!([])), TokenError::WrongAudience),
        (with("aud", Value::Null), TokenError::WrongAudience),
        (with("exp", json!(NOW - 61)), TokenError::Expired),
        (with("nbf", json!(NOW + 61)), TokenError::NotYetValid),
        (with("iss", json!("https://other.example")), TokenError::UnknownIssuer),
        (with("iss", json!(format!("{ISSUER}/"))), TokenError::UnknownIssuer),
        (with("iss", json!([ISSUER])), TokenError::NoIssuer),
    ] {
        assert_eq!(ask(&tokens, &signer.sign(&claims)).await, Err(error), "{claims}");
    }
    // Of one that is signed as it has to be, its sender learns which claim is missing or wrong, and not what it holds.
    for (claim, value, told) in [
        ("iss", None, "iss is missing"),
        ("aud", None, "its aud does not name this gateway, or is missing"),
        ("exp", None, "exp is missing"),
        ("exp", Some(json!("hunter2")), "exp is missing, or no number"),
        ("exp", Some(json!(NOW - 61)), "expired (exp)"),
        ("nbf", Some(json!(NOW + 61)), "not valid yet (nbf"),
        ("scope", None, "scope is missing"),
        ("scope", Some(json!("hunter2")), "scope has to hold one of agent, reader and operator"),
        ("sub", None, "sub has to be user:<id> or agent:<id>"),
        ("sub", Some(json!("hunter2")), "sub has to be user:<id> or agent:<id>"),
        ("sub", Some(json!("*")), "sub has to be user:<id> or agent:<id>"),
        ("chats", Some(json!("hunter2")), "chats"),
    ] {
        let mut claims = claims();
        match value {
            Some(value) => claims[claim] = value,
            None => drop(claims.as_object_mut().unwrap().remove(claim)),
        }
        let error = ask(&tokens, &signer.sign(&claims)).await.unwrap_err().to_string();
        assert!(error.contains(told) && !error.contains("hunter2"), "{claims}: {error}");
    }
}

#[tokio::test]
async fn the_key_decides_the_algorithm() {
    let (rsa, p256) = (Signer::rsa("r"), Signer::p256("e"));
    let origin = KeyServer::of(&[rsa.clone(), p256.clone()]).start().await;
    let tokens = tokens(&origin);
    let encode = |header: Value, signature: &str| {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.{signature}", part(header), part(claims()))
    };
    let none = encode(json!({ "alg": "none", "kid": "r" }), "");
    assert_eq!(ask(&tokens, &none).await, Err(TokenError::Malformed));
    // The public key as the secret of an HMAC, in every form that somebody could take for it.
    let jwk = rsa.jwk();
    let modulus = URL_SAFE_NO_PAD.decode(jwk["n"].as_str().unwrap()).unwrap();
    for secret in [jwk.to_string().into_bytes(), modulus, jwk["n"].as_str().unwrap().as_bytes().to_vec()] {
        let key = EncodingKey::from_secret(&secret).unwrap();
        for algorithm in [Algorithm::HS256, Algorithm::HS512] {
            let header = Header { kid: Some("r".to_owned()), ..Header::new(algorithm) };
            let forged = jsonwebtoken::encode(&header, &claims(), &key).unwrap();
            assert_eq!(ask(&tokens, &forged).await, Err(TokenError::BadAlgorithm));
        }
    }
    // The gateway's own secret is not the platform's.
    let own =
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims(), &EncodingKey::from_secret(&[7; 32]).unwrap());
    assert_eq!(ask(&tokens, &own.unwrap()).await, Err(TokenError::BadAlgorithm));
    // RSA with another padding, and one key's signature under the other's name.
    let other = Signer { algorithm: Algorithm::PS256, ..rsa.clone() };
    assert_eq!(ask(&tokens, &other.sign(&claims())).await, Err(TokenError::BadAlgorithm));
    let crossed = Signer { kid: "r", ..p256.clone() };
    assert_eq!(ask(&tokens, &crossed.sign(&claims())).await, Err(TokenError::BadAlgorithm));
    // A key that the token brings along counts for nothing.
    let stranger = Signer::ed25519("r");
    let header = Header {
        kid: Some("e".to_owned()),
        jwk: Some(serde_json::from_value(stranger.jwk()).unwrap()),
        ..Header::new(Algorithm::EdDSA)
    };
    let forged = jsonwebtoken::encode(&header, &claims(), &stranger.key).unwrap();
    assert_eq!(ask(&tokens, &forged).await, Err(TokenError::BadAlgorithm));
    // A claim that was changed after it was signed.
    let token = p256.sign(&claims());
    let [header, _, signature] = token.split('.').collect::<Vec<_>>()[..] else { unreachable!() };
    let payload = URL_SAFE_NO_PAD.encode(with("sub", json!("user:mallory")).to_string());
    assert_eq!(ask(&tokens, &format!("{header}.{payload}.{signature}")).await, Err(TokenError::BadSignature));
}

#[tokio::test]
async fn a_new_key_is_known_without_a_restart_and_an_old_one_forgotten() {
    let (old, new) = (Signer::rsa("2025"), Signer::p256("2026"));
    let server = KeyServer::of(std::slice::from_ref(&old));
    let origin = server.start().await;
    let tokens = tokens(&origin);
    assert!(ask(&tokens, &old.sign(&claims())).await.is_ok());
    server.publish(std::slice::from_ref(&new));
    // Strangers can name keys as fast as they like: the set is asked for again after a while, and once.
    for _ in 0..20 {
        assert_eq!(ask(&tokens, &new.sign(&claims())).await, Err(TokenError::UnknownKey));
    }
    assert_eq!(server.served(), 1);
    pass(Duration::from_secs(31)).await;
    let all = (0..20).map(|_| async { ask(&tokens, &new.sign(&claims())).await.is_ok() });
    assert!(futures_util::future::join_all(all).await.into_iter().all(|known| known));
    assert_eq!(server.served(), 2);
    assert_eq!(ask(&tokens, &old.sign(&claims())).await, Err(TokenError::UnknownKey));
    assert_eq!(server.served(), 2);
}

#[tokio::test]
async fn the_last_good_set_serves_while_no_newer_one_is_to_be_had() {
    let signer = Signer::p256("e");
    let server = KeyServer::of(std::slice::from_ref(&signer));
    let origin = server.start().await;
    let tokens = tokens(&origin);
    let token = signer.sign(&claims());
    assert!(ask(&tokens, &token).await.is_ok());
    *server.broken.lock().unwrap() = true;
    pass(Duration::from_secs(3600)).await;
    assert!(ask(&tokens, &token).await.is_ok());
    support::eventually("a fetch beside the request", async || (server.served() == 2).then_some(())).await;
    pass(Duration::from_secs(86_400)).await;
    assert_eq!(ask(&tokens, &token).await, Err(TokenError::KeysUnavailable));
    let served = server.served();
    assert_eq!(ask(&tokens, &token).await, Err(TokenError::KeysUnavailable));
    assert_eq!(server.served(), served, "a failure is remembered for a while");
    *server.broken.lock().unwrap() = false;
    pass(Duration::from_secs(6)).await;
    assert!(ask(&tokens, &token).await.is_ok());
}

#[tokio::test]
async fn key_sets_that_mean_ill_are_refused() {
    let key = Signer::p256("e").jwk();
    let good = json!({ "keys": [key] }).to_string();
    let moved = Origin::http(Router::new().fallback(async move || good.clone())).await;
    let there = moved.url("/keys");
    let redirecting =
        Origin::http(Router::new().fallback(async move || (StatusCode::FOUND, [("location", there.clone())]))).await;
    let huge = Origin::http(Router::new().fallback(async || " ".repeat(1 << 20))).await;
    let slow = Origin::http(Router::new().fallback(async || std::future::pending::<()>().await)).await;
    let nothing = Origin::http(Router::new().fallback(async || "{\"keys\":[]}")).await;
    let fetch = async |origin: &Origin| platform(&origin.url("/keys"), &["127.0.0.1"]).fetch().await.unwrap_err();
    assert_eq!(fetch(&redirecting).await, KeySetError::Status(302));
    assert_eq!(moved.accepted(), 0);
    assert_eq!(fetch(&huge).await, KeySetError::Unreachable(FetchError::TooLarge { limit: 65_536 }));
    assert!(matches!(fetch(&nothing).await, KeySetError::Invalid(_)));
    let private = platform(&moved.url("/keys"), &[]).fetch().await.unwrap_err();
    assert!(matches!(private, KeySetError::Unreachable(FetchError::Forbidden { .. })), "{private}");
    let begun = tokio::time::Instant::now();
    assert_eq!(fetch(&slow).await, KeySetError::Unreachable(FetchError::TimedOut));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn readers_and_agents_come_with_the_platforms_tokens() {
    let signer = Signer::ed25519("o");
    let server = KeyServer::of(std::slice::from_ref(&signer));
    let origin = server.start().await;
    let gateway = Gateway::builder()
        .clock(Clock::fixed(NOW * 1000))
        .with(|layer| {
            layer.allow_hosts = Some(vec![origin.address.to_string().parse().unwrap()]);
            layer.token_jwks_url = Some(origin.url("/keys").parse().unwrap());
            layer.token_issuer = Some(ISSUER.to_owned());
            layer.token_audience = Some(AUDIENCE.to_owned());
        })
        .start()
        .await;
    gateway.put_chat("c1", &["user:alice"]).await;
    let sets = "/v1/chats/c1/sets";
    assert_eq!(gateway.get(sets, &signer.sign(&claims())).await.status, StatusCode::OK);
    assert_eq!(gateway.get(sets, &signer.sign(&with("sub", json!("user:bob")))).await.status, StatusCode::NOT_FOUND);
    let refused = gateway.get(sets, &signer.sign(&with("aud", json!("x")))).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert!(String::from_utf8_lossy(&refused.body).contains("another audience"));
    let agent = json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": "u1", "agent_id": "ada", "agent_name": "ada.mini",
        "scope": "agent", "exp": NOW + 60 });
    let _agent = Agent::connect(&gateway.url, &signer.sign(&agent), "ada.mini").await;
    assert_eq!(server.served(), 1);
}

#[tokio::test]
async fn a_gateway_without_keys_says_that_it_cannot_tell() {
    let origin = KeyServer::default().start().await;
    let gateway = Gateway::builder()
        .with(|layer| {
            layer.token_jwks_url = Some(origin.url("/keys").parse().unwrap());
            layer.token_issuer = Some(ISSUER.to_owned());
            layer.token_audience = Some(AUDIENCE.to_owned());
        })
        .start()
        .await;
    let answer = gateway.get("/v1/chats/c1/sets", &Signer::p256("e").sign(&claims())).await;
    assert_eq!((answer.status, answer.header("retry-after").is_empty()), (StatusCode::SERVICE_UNAVAILABLE, false));
    assert_eq!(origin.accepted(), 0, "loopback is private unless it is named");
}
