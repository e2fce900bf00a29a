use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use ed25519_dalek::{Signature, Verifier as _};

use super::*;

/// The Ed25519 test key of RFC 9421 appendix B.1.4.
const TEST_KEY: &str = "n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU";
const AGENT: &str = "https://agent.example/agents/mini";
const CREATED: i64 = 1_758_067_200;

fn test_key() -> GatewayKey {
    let seed: [u8; 32] = URL_SAFE_NO_PAD.decode(TEST_KEY).unwrap().try_into().unwrap();
    GatewayKey::new(SigningKey::from_bytes(&seed), AGENT)
}

fn signed(url: &str, headers: &[(&'static str, &str)]) -> HeaderMap {
    let nonce = STANDARD.encode((0..64).collect::<Vec<u8>>());
    let covered: Vec<_> = headers.iter().map(|(name, _)| HeaderName::from_static(name)).collect();
    let mut map: HeaderMap =
        headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
    test_key().sign_at(&Method::GET, &Url::parse(url).unwrap(), &mut map, &covered, CREATED, &nonce);
    map
}

#[test]
fn signatures_are_those_of_other_signers() {
    let hint = |value| [("robutler-payment-methods", value)];
    type Case<'a> = (&'a str, &'a [(&'static str, &'a str)], &'a str);
    let cases: [Case<'_>; 7] = [
        (
            "https://robutler.ai/api/./agents/x/../mini/feed",
            &[],
            "9fV2YNOYNw10HOGpZj5HWsrZmo7dSIWCH0l+r3ROKiCfFG9B3IsY+UQYIPV3FlVVFVavtDyuGLanUfycyY4WCQ==",
        ),
        (
            "https://robutler.ai/api/agents/%2e%2E/agents/mini/%2e/feed/..",
            &[],
            "KiRttXX6KflklP38XPBDwgVkgjZ7RczeHHTT1FnC2IzBOoSRC65NTm3KsoZxk6bgWFcAD1HxX6aGVbe7+QsfAg==",
        ),
        (
            "https://Robutler.AI:443/api/search?q=a b'c\"d<e>&k=%7e",
            &[],
            "UbWbSkQoClpksI4G4jB6uEyEPjQ0uOy5sk9kTEDbqymLRTlpbaf3f+IiNIltPamV9PQvCQ07TLirRN6dgHrrBw==",
        ),
        (
            "https://robutler.ai/api/feed?",
            &[],
            "B80k6zGb1asvjWpTV9SLOo8W7UwIIkgquZoT5IkpGvh10cDn0hem3QdDrEKXh+BWB50CQGhHYPIv0o21fIE0Aw==",
        ),
        (
            r"https://robutler.ai\api\feed\..\me",
            &[],
            "kkQhKtVvTKFhGwWneOyqZGzv/1imCwRDDvATcTBj2l3JUiBOssggVBVqlZI2i0y3xVi99PuWfO/Xnp461TAKAw==",
        ),
        (
            "https://robutler.ai/agents/acme/uamp",
            &hint("stripe"),
            "BIHDBw+OUjiJ2Pvf/EjR+njMpiBnEkesWqJqcDjqk6OshiQTNAuTHG0hAEyFRY9Q6GELXTUN/jLYYMnZjgPyCw==",
        ),
        (
            "http://localhost:3000/agents/acme/uamp?token=abc",
            &hint("tempo"),
            "V5cwYW77nmdpfdxtEL6w7DXEenLGQkeEe4hpzhI665TSpsBuSdi8gJM/JT3SpvINDfwpnxW+K5fkT+WBk2kDDw==",
        ),
    ];
    for (url, headers, signature) in cases {
        let signed = signed(url, headers);
        assert_eq!(signed["signature"], format!("sig1=:{signature}:"), "{url}");
    }
}

#[test]
fn headers_are_spelled_as_the_profile_has_them() {
    let headers = signed("https://robutler.ai/api/feed", &[("artifact-task", "t1")]);
    assert_eq!(headers["signature-agent"], format!("sig1=\"{AGENT}/.well-known/jwks.json\";type=jwks_uri"));
    let expected = concat!(
        r#"sig1=("@method" "@authority" "@path" "@query" "artifact-task" "signature-agent";key="sig1");"#,
        r#"created=1758067200;expires=1758067260;keyid="poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U";alg="ed25519";"#,
        r#"nonce="AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==";"#,
        r#"tag="web-bot-auth""#
    );
    assert_eq!(headers["signature-input"], expected);
}

#[test]
fn no_two_requests_share_a_nonce() {
    let clock = Clock::fixed(CREATED * 1000 + 999);
    let url = Url::parse("https://agent.example/").unwrap();
    let sign = || {
        let mut headers = HeaderMap::new();
        test_key().sign(&Method::GET, &url, &mut headers, &[], &clock);
        headers["signature-input"].to_str().unwrap().to_owned()
    };
    let (first, second) = (sign(), sign());
    assert!(first.contains(";created=1758067200;expires=1758067260;"), "{first}");
    assert_ne!(first, second);
}

#[test]
fn the_first_start_makes_a_key_that_the_next_one_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("signing.key");
    let made = GatewayKey::open(&path, AGENT).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(GatewayKey::open(&path, AGENT).unwrap().jwks(), made.jwks());
    let other = GatewayKey::open(&dir.path().join("other.key"), AGENT).unwrap();
    assert_ne!(other.jwks(), made.jwks());
    assert!(!format!("{made:?}").contains(&hex::encode(made.key.to_bytes())));
}

#[test]
fn a_key_of_openssl_is_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("signing.key");
    // `openssl genpkey -algorithm ed25519`, of the test key.
    let seed = URL_SAFE_NO_PAD.decode(TEST_KEY).unwrap();
    let der = [&hex::decode("302e020100300506032b657004220420").unwrap()[..], &seed].concat();
    let (begin, end) = ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----");
    fs::write(&path, format!("{begin}\n{}\n{end}\n", STANDARD.encode(der))).unwrap();
    assert_eq!(GatewayKey::open(&path, AGENT).unwrap().jwks(), test_key().jwks());
    for content in ["", "a secret of more than thirty-two characters", "-----BEGIN PRIVATE KEY-----\n"] {
        fs::write(&path, content).unwrap();
        let error = GatewayKey::open(&path, AGENT).unwrap_err();
        assert!(matches!(error, KeyError::NotAKey { .. }) && error.to_string().contains("signing.key"), "{error}");
    }
}

#[test]
fn the_key_set_verifies_what_was_signed() {
    let headers = signed("https://robutler.ai/api/feed", &[]);
    let jwks = test_key().jwks();
    let jwk = &jwks["keys"][0];
    assert_eq!(jwk["kid"], "poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U");
    assert!(jwk.get("d").is_none());
    let public: [u8; 32] = URL_SAFE_NO_PAD.decode(jwk["x"].as_str().unwrap()).unwrap().try_into().unwrap();
    let input = headers["signature-input"].to_str().unwrap().strip_prefix("sig1=").unwrap();
    let base = format!(
        "\"@method\": GET\n\"@authority\": robutler.ai\n\"@path\": /api/feed\n\"@query\": ?\n\
         \"signature-agent\";key=\"sig1\": \"{AGENT}/.well-known/jwks.json\";type=jwks_uri\n\"@signature-params\": {input}"
    );
    let signature = headers["signature"].to_str().unwrap().strip_prefix("sig1=:").unwrap().trim_end_matches(':');
    let signature: [u8; 64] = STANDARD.decode(signature).unwrap().try_into().unwrap();
    let verifying = ed25519_dalek::VerifyingKey::from_bytes(&public).unwrap();
    verifying.verify(base.as_bytes(), &Signature::from_bytes(&signature)).unwrap();
}
