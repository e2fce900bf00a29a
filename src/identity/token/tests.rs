use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use serde_json::json;

use super::*;

const NOW: i64 = 1_800_000_000;
const HOUR: Duration = Duration::from_secs(3600);

fn tokens() -> Tokens {
    Tokens::with_secret(&[7; 32]).unwrap()
}

fn clock() -> Clock {
    Clock::fixed(NOW * 1000)
}

fn encode(header: &serde_json::Value, claims: &serde_json::Value, signature: &str) -> String {
    let part = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{signature}", part(header), part(claims))
}

/// A token signed with the right secret, holding whatever it is given.
fn sign(claims: &serde_json::Value) -> String {
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &tokens().signing).unwrap()
}

fn verify(claims: &serde_json::Value) -> Result<Identity, TokenError> {
    tokens().verify(&sign(claims), &clock())
}

fn agent() -> Identity {
    Identity::Agent {
        principal: Principal::agent("a1").unwrap(),
        name: Some("flow".parse().unwrap()),
        owner: Some("user:alice".to_owned()),
    }
}

fn reader(chats: Option<&[&str]>) -> Identity {
    let chats = chats.map(|chats| chats.iter().map(|chat| chat.parse().unwrap()).collect());
    Identity::Reader(Caller { principal: "user:alice".parse().unwrap(), chats })
}

#[test]
fn what_was_issued_is_what_is_verified() {
    for identity in [agent(), reader(None), reader(Some(&["c1", "c2"])), reader(Some(&[])), Identity::Operator] {
        let token = tokens().issue(&identity, HOUR, &clock()).unwrap();
        assert_eq!(tokens().verify(&token, &clock()), Ok(identity));
    }
}

#[test]
fn an_agent_reads_as_itself_and_an_operator_not_at_all() {
    assert_eq!(agent().caller().unwrap().principal.as_str(), "agent:a1");
    assert_eq!(Identity::Operator.caller(), None);
}

#[test]
fn the_claims_are_the_documented_ones() {
    let token = tokens().issue(&agent(), HOUR, &clock()).unwrap();
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!(claims["sub"], "user:alice");
    assert_eq!(claims["agent_id"], "a1");
    assert_eq!(claims["agent_name"], "flow");
    assert_eq!(claims["scope"], "agent");
    assert_eq!(claims["exp"].as_f64().unwrap(), (NOW + 3600) as f64);
}

#[test]
fn only_hs256_is_a_signature() {
    let claims = json!({"scope": "operator", "exp": NOW + 60});
    let genuine = sign(&claims);
    let signature = genuine.rsplit('.').next().unwrap();
    for header in [json!({"alg": "none"}), json!({"alg": "None", "typ": "JWT"}), json!({"alg": "RS256"}), json!({})] {
        for signature in ["", signature] {
            let token = encode(&header, &claims, signature);
            assert!(tokens().verify(&token, &clock()).is_err(), "{header}");
        }
    }
    for algorithm in [Algorithm::HS384, Algorithm::HS512] {
        let token = jsonwebtoken::encode(&Header::new(algorithm), &claims, &tokens().signing).unwrap();
        assert_eq!(tokens().verify(&token, &clock()), Err(TokenError::BadSignature));
    }
    assert_eq!(tokens().verify(&genuine, &clock()), Ok(Identity::Operator));
}

#[test]
fn another_secret_is_another_gateway() {
    let token = Tokens::with_secret(&[8; 32]).unwrap().issue(&Identity::Operator, HOUR, &clock()).unwrap();
    assert_eq!(tokens().verify(&token, &clock()), Err(TokenError::BadSignature));
}

#[test]
fn claims_cannot_be_swapped_under_a_signature() {
    let token = sign(&json!({"scope": "reader", "sub": "user:alice", "exp": NOW + 60}));
    let mut parts: Vec<_> = token.split('.').map(str::to_owned).collect();
    parts[1] = URL_SAFE_NO_PAD.encode(json!({"scope": "operator", "exp": NOW + 60}).to_string());
    assert_eq!(tokens().verify(&parts.join("."), &clock()), Err(TokenError::BadSignature));
}

#[test]
fn times_are_judged_with_a_minute_of_leeway() {
    let with = |exp: i64, nbf: i64| verify(&json!({"scope": "operator", "exp": exp, "nbf": nbf}));
    assert_eq!(with(NOW - 59, NOW), Ok(Identity::Operator));
    assert_eq!(with(NOW - 60, NOW), Err(TokenError::Expired));
    assert_eq!(with(NOW + 300, NOW + 60), Ok(Identity::Operator));
    assert_eq!(with(NOW + 300, NOW + 61), Err(TokenError::NotYetValid));
    let issued_in_the_future = json!({"scope": "operator", "exp": NOW + 300, "iat": NOW + 120});
    assert_eq!(verify(&issued_in_the_future), Err(TokenError::NotYetValid));
    assert_eq!(verify(&json!({"scope": "operator", "exp": NOW as f64 + 0.5})), Ok(Identity::Operator));
}

#[test]
fn a_token_expires_by_the_clock_it_is_shown() {
    let clock = clock();
    let token = tokens().issue(&Identity::Operator, HOUR, &clock).unwrap();
    clock.set((NOW + 3659) * 1000);
    assert_eq!(tokens().verify(&token, &clock), Ok(Identity::Operator));
    clock.set((NOW + 3660) * 1000);
    assert_eq!(tokens().verify(&token, &clock), Err(TokenError::Expired));
}

#[test]
fn an_agents_token_names_its_agent() {
    for claims in [
        json!({"scope": "agent", "sub": "user:alice", "agent_name": "flow", "exp": NOW + 60}),
        json!({"scope": "agent", "sub": "user:alice", "agent_id": "", "exp": NOW + 60}),
    ] {
        assert_eq!(verify(&claims), Err(TokenError::Unbound));
    }
}

#[test]
fn claims_that_prove_nothing_are_named() {
    for (claims, named) in [
        (json!({}), "exp is missing"),
        (json!({"scope": "operator"}), "exp is missing"),
        (json!({"scope": "operator", "exp": "tomorrow"}), "exp is missing, or no number"),
        (json!({"scope": "operator", "exp": null}), "exp is missing"),
        (json!({"exp": NOW + 60}), "scope is missing"),
        (json!({"scope": ["reader"], "exp": NOW + 60}), "scope is missing, or no text"),
        (json!({"scope": "operator", "nbf": "now", "exp": NOW + 60}), "nbf"),
        (json!({"scope": "operator", "iat": "now", "exp": NOW + 60}), "iat"),
        (json!({"scope": "", "exp": NOW + 60}), "scope has to"),
        (json!({"scope": "admin", "exp": NOW + 60}), "scope has to"),
        (json!({"scope": "reader operator", "sub": "user:a", "exp": NOW + 60}), "scope has to"),
        (json!({"scope": "reader", "exp": NOW + 60}), "sub has to"),
        (json!({"scope": "reader", "sub": 7, "exp": NOW + 60}), "sub is no text"),
        (json!({"scope": "reader", "sub": "alice", "exp": NOW + 60}), "sub has to"),
        (json!({"scope": "reader", "sub": "*", "exp": NOW + 60}), "sub has to"),
        (json!({"scope": "reader", "sub": "user:a", "chats": "c1", "exp": NOW + 60}), "chats"),
        (json!({"scope": "reader", "sub": "user:a", "chats": ["a/b"], "exp": NOW + 60}), "chats"),
        (json!({"scope": "agent", "agent_id": 7, "exp": NOW + 60}), "agent_id is no text"),
        (json!({"scope": "agent", "agent_id": "a\nb", "exp": NOW + 60}), "agent_id"),
        (json!({"scope": "agent", "agent_id": "a", "agent_name": 7, "exp": NOW + 60}), "agent_name is no text"),
        (json!({"scope": "agent", "agent_id": "a", "agent_name": "a/b", "exp": NOW + 60}), "agent_name"),
    ] {
        let error = verify(&claims).unwrap_err();
        assert!(matches!(error, TokenError::BadClaim(text) if text.starts_with(named)), "{claims}: {error}");
        assert_eq!(error.code(), "unauthorized");
    }
    let aimed = json!({"scope": "operator", "aud": "someone-else", "exp": NOW + 60});
    assert_eq!(verify(&aimed), Err(TokenError::WrongAudience));
    assert_eq!(verify(&json!([])), Err(TokenError::Malformed));
    // Nobody is told of a token that they made themselves.
    let strange = Tokens::with_secret(&[8; 32]).unwrap();
    let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &json!({}), &strange.signing).unwrap();
    assert_eq!(tokens().verify(&token, &clock()), Err(TokenError::BadSignature));
}

#[test]
fn a_huge_token_is_not_even_parsed() {
    let padded = sign(&json!({"scope": "operator", "exp": NOW + 60, "padding": "x".repeat(TOKEN_BYTES)}));
    assert_eq!(tokens().verify(&padded, &clock()), Err(TokenError::Malformed));
}

#[test]
fn the_codes_are_the_documented_ones() {
    assert_eq!(TokenError::BadSignature.code(), "unauthorized");
    assert_eq!(TokenError::Expired.code(), "token_expired");
    assert_eq!(TokenError::Unbound.code(), "token_unbound");
}

#[test]
fn no_secret_is_shown_by_debug() {
    assert_eq!(format!("{:?}", tokens()), "Tokens");
}

proptest! {
    #[test]
    fn any_text_is_refused(text in "\\PC{0,200}") {
        prop_assert!(tokens().verify(&text, &clock()).is_err());
    }

    #[test]
    fn any_three_parts_are_refused(header in "[A-Za-z0-9_-]{0,40}", claims in "[A-Za-z0-9_-]{0,80}", signature in "[A-Za-z0-9_-]{0,50}") {
        let token = format!("{header}.{claims}.{signature}");
        prop_assert!(tokens().verify(&token, &clock()).is_err());
    }

    #[test]
    fn a_genuine_token_with_one_byte_changed_is_refused(at in 0usize..150, to in any::<char>()) {
        let token = tokens().issue(&reader(Some(&["c1"])), HOUR, &clock()).unwrap();
        let mut changed: Vec<char> = token.chars().collect();
        let at = at % changed.len();
        prop_assume!(changed[at] != to);
        changed[at] = to;
        let changed: String = changed.into_iter().collect();
        prop_assert!(tokens().verify(&changed, &clock()).is_err());
    }
}
