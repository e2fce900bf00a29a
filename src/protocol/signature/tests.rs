use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ed25519_dalek::{Signer as _, SigningKey};
use http::HeaderMap;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::*;

const NOW: i64 = 1_790_000_000;
const AGENT: &str = "https://caller.example/agents/scout";

fn rules(scheme: &'static str, authority: &str) -> Rules {
    Rules { authorities: BTreeSet::from([authority.to_owned()]), scheme, plain_http: false }
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    scheme: String,
    authority: String,
    method: String,
    target: String,
    headers: std::collections::BTreeMap<String, String>,
    body: String,
    now: i64,
    keys: Vec<String>,
    base: Option<Vec<String>>,
    principal: Option<String>,
    expect: Option<String>,
    #[serde(rename = "again")]
    _again: Option<String>,
}

#[test]
fn the_sdks_vectors() {
    let vectors: Vec<Vector> = serde_json::from_str(include_str!("vectors/vectors.json")).unwrap();
    assert_eq!(vectors.len(), 39);
    for vector in vectors {
        let name = &vector.name;
        let headers: HeaderMap = vector
            .headers
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
            .collect();
        let request = Request {
            method: &vector.method,
            authority: Some(&vector.authority),
            target: &vector.target,
            headers: &headers,
            body: (!vector.body.is_empty()).then_some(vector.body.len() as u64),
        };
        let scheme = if vector.scheme == "http" { "http" } else { "https" };
        // What a vector without a verdict is signed for is accepted; the others are judged at one host.
        let authority = if vector.base.is_some() { &vector.authority } else { "agent.example" };
        let signed = Signed::read(request, &rules(scheme, authority), vector.now);
        let outcome = signed.and_then(|signed| {
            if let Some(lines) = &vector.base {
                let base = base::build(&signed.request, signed.scheme, &signed.labels[0].input).unwrap();
                assert_eq!(base, lines.join("\n"), "{name}");
            }
            let keys: Vec<&str> = vector.keys.iter().map(String::as_str).collect();
            let proof = signed.verify(&KeySet::trusting(&keys))?;
            proof.check_body(vector.body.as_bytes())?;
            Ok(proof.principal.to_string())
        });
        let expected = match (&vector.principal, &vector.expect) {
            (Some(principal), None) => Ok(format!("agent:{principal}")),
            (None, Some(code)) => Err(code.as_str()),
            _ => panic!("{name} has no verdict"),
        };
        assert_eq!(outcome.map_err(SignatureError::code), expected, "{name}");
    }
}

/// A request as a signer makes it, for changing a part of it.
#[derive(Clone)]
struct Draft {
    /// A seed for each label.
    keys: Vec<u8>,
    components: Vec<String>,
    created: i64,
    expires: i64,
    params: String,
    agent: String,
    authority: String,
    target: String,
    body: Option<&'static str>,
    extra: Vec<(&'static str, String)>,
}

impl Draft {
    fn new() -> Self {
        Self {
            keys: vec![1],
            components: ["@method", "@authority", "@path", "@query"].map(|name| format!("\"{name}\"")).to_vec(),
            created: NOW,
            expires: NOW + 60,
            params: String::from(";alg=\"ed25519\";nonce=\"n\";tag=\"web-bot-auth\""),
            agent: format!("\"{AGENT}/.well-known/jwks.json\";type=jwks_uri"),
            authority: "gateway.example".to_owned(),
            target: "/ws?conn=data".to_owned(),
            body: None,
            extra: Vec::new(),
        }
    }

    fn signing_key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    fn x(seed: u8) -> String {
        URL_SAFE_NO_PAD.encode(Self::signing_key(seed).verifying_key().to_bytes())
    }

    fn key_set(&self) -> KeySet {
        let keys: Vec<_> =
            self.keys.iter().map(|seed| json!({"kty": "OKP", "crv": "Ed25519", "x": Self::x(*seed)})).collect();
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes(), false).unwrap()
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.extra {
            headers.append(*name, value.parse().unwrap());
        }
        if let Some(body) = self.body {
            let digest = STANDARD.encode(Sha256::digest(body));
            headers.entry("content-digest").or_insert(format!("sha-256=:{digest}:").parse().unwrap());
        }
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let (mut inputs, mut signatures, mut agents) = (Vec::new(), Vec::new(), Vec::new());
        for (place, seed) in self.keys.iter().enumerate() {
            let label = format!("sig{}", place + 1);
            let mut components = self.components.clone();
            if self.body.is_some() && !self.components.iter().any(|name| name.contains("digest")) {
                components.push("\"content-digest\"".to_owned());
            }
            if !self.components.iter().any(|name| name.contains("signature-agent")) {
                components.push(format!("\"signature-agent\";key=\"{label}\""));
            }
            let (created, expires, params) = (self.created, self.expires, &self.params);
            let keyid = thumbprint(&Self::x(*seed));
            let listed = components.join(" ");
            let input = format!("({listed});created={created};expires={expires};keyid=\"{keyid}\"{params}");
            let mut base = String::new();
            for component in &components {
                let name = component.split('"').nth(1).unwrap();
                let value = match name {
                    "@method" => "GET".to_owned(),
                    "@authority" => self.authority.clone(),
                    "@path" => path.to_owned(),
                    "@query" => format!("?{query}"),
                    "signature-agent" => self.agent.clone(),
                    name => headers.get(name).map_or(String::new(), |value| value.to_str().unwrap().to_owned()),
                };
                base.push_str(&format!("{component}: {value}\n"));
            }
            base.push_str(&format!("\"@signature-params\": {input}"));
            let signature = STANDARD.encode(Self::signing_key(*seed).sign(base.as_bytes()).to_bytes());
            inputs.push(format!("{label}={input}"));
            signatures.push(format!("{label}=:{signature}:"));
            agents.push(format!("{label}={}", self.agent));
        }
        headers.insert(SIGNATURE_INPUT, inputs.join(", ").parse().unwrap());
        headers.insert(SIGNATURE, signatures.join(", ").parse().unwrap());
        headers.entry(SIGNATURE_AGENT).or_insert(agents.join(", ").parse().unwrap());
        headers
    }

    fn judge(&self) -> Result<Proof, &'static str> {
        self.judge_headers(&self.headers(), self.key_set())
    }

    fn judge_headers(&self, headers: &HeaderMap, keys: KeySet) -> Result<Proof, &'static str> {
        let request = Request {
            method: "GET",
            authority: Some(&self.authority),
            target: &self.target,
            headers,
            body: self.body.map(|body| body.len() as u64),
        };
        let judged =
            Signed::read(request, &rules("https", "gateway.example"), NOW).and_then(|signed| signed.verify(&keys));
        let checked =
            judged.and_then(|proof| proof.check_body(self.body.unwrap_or_default().as_bytes()).map(|()| proof));
        checked.map_err(SignatureError::code)
    }
}

fn changed(change: impl FnOnce(&mut Draft)) -> Result<Proof, &'static str> {
    let mut draft = Draft::new();
    change(&mut draft);
    draft.judge()
}

#[test]
fn what_is_proven() {
    let proof = Draft::new().judge().unwrap();
    assert_eq!(proof.principal.as_str(), format!("agent:{AGENT}"));
    assert_eq!(proof.thumbprints, [thumbprint(&Draft::x(1))]);
    assert_eq!(proof.nonces, [("n".to_owned(), NOW + 120)]);
}

#[test]
fn two_keys_sign_one_request() {
    let draft = Draft { keys: vec![1, 2], ..Draft::new() };
    assert_eq!(draft.judge().unwrap().thumbprints.len(), 2);
    let one = Draft::new().key_set();
    assert_eq!(draft.judge_headers(&draft.headers(), one).err(), Some("signature_key_unknown"), "both must verify");
    assert_eq!(changed(|draft| draft.keys = vec![1, 2, 3]).err(), Some("signature_malformed"));
    let mut headers = draft.headers();
    let agents = format!("sig1={0}, sig2={0}", draft.agent).replacen("scout", "other", 1);
    headers.insert(SIGNATURE_AGENT, agents.parse().unwrap());
    let outcome = draft.judge_headers(&headers, draft.key_set());
    assert_eq!(outcome.err(), Some("signature_agent_invalid"), "two agents");
}

#[test]
fn a_label_of_another_profile_is_left_alone() {
    let draft = Draft::new();
    let mut headers = draft.headers();
    let input = format!("other=(\"@status\");tag=\"x\", {}", headers[SIGNATURE_INPUT].to_str().unwrap());
    headers.insert(SIGNATURE_INPUT, input.parse().unwrap());
    assert_eq!(
        draft.judge_headers(&headers, draft.key_set()).err(),
        Some("signature_malformed"),
        "it has no signature"
    );
    let signature = format!("other=:AAAA:, {}", headers[SIGNATURE].to_str().unwrap());
    headers.insert(SIGNATURE, signature.parse().unwrap());
    assert!(draft.judge_headers(&headers, draft.key_set()).is_ok());
}

#[test]
fn times() {
    let window = |created: i64, expires: i64| {
        changed(|draft| (draft.created, draft.expires) = (NOW + created, NOW + expires)).map(drop)
    };
    for (created, expires) in [(60, 61), (-120, -60), (-3600, 0), (0, 3600)] {
        assert_eq!(window(created, expires), Ok(()), "{created} {expires}");
    }
    for (created, expires) in [(61, 70), (-120, -61)] {
        assert_eq!(window(created, expires), Err("signature_expired"), "{created} {expires}");
    }
    for (created, expires) in [(0, 0), (0, -1), (0, 3601)] {
        assert_eq!(window(created, expires), Err("signature_params_invalid"), "{created} {expires}");
    }
}

#[test]
fn parameters() {
    let with = |params: &str| changed(|draft| draft.params = params.to_owned()).map(drop);
    let (long, longest) = ("x".repeat(257), "x".repeat(256));
    assert_eq!(with(&format!(";nonce=\"{longest}\";tag=\"web-bot-auth\"")), Ok(()));
    assert_eq!(with(";nonce=\"n\";tag=\"web-bot-auth\";more=1"), Ok(()));
    for params in [
        ";tag=\"web-bot-auth\"",
        ";nonce=\"\";tag=\"web-bot-auth\"",
        ";nonce=n;tag=\"web-bot-auth\"",
        &format!(";nonce=\"{long}\";tag=\"web-bot-auth\""),
        ";nonce=\"n\";alg=\"rsa-pss-sha512\";tag=\"web-bot-auth\"",
        ";nonce=\"n\";alg=ed25519;tag=\"web-bot-auth\"",
    ] {
        assert_eq!(with(params), Err("signature_params_invalid"), "{params}");
    }
    assert_eq!(with(";nonce=\"n\";created=1;tag=\"web-bot-auth\""), Err("signature_malformed"), "twice");
    assert_eq!(with(";nonce=\"n\";tag=\"web-bot-auth\";tag=\"web-bot-auth\""), Err("signature_malformed"));
}

#[test]
fn what_must_be_covered() {
    for name in ["@method", "@authority", "@path", "@query"] {
        let outcome = changed(|draft| draft.components.retain(|component| !component.contains(name)));
        assert_eq!(outcome.err(), Some("signature_coverage_insufficient"), "{name}");
    }
    let agent = |component: &str| changed(|draft| draft.components.push(component.to_owned())).err();
    assert_eq!(agent("\"signature-agent\""), Some("signature_coverage_insufficient"));
    assert_eq!(
        agent("\"signature-agent\";key=\"sig1\" \"signature-agent\";key=\"sig1\""),
        Some("signature_coverage_insufficient")
    );
    assert_eq!(agent("\"signature-agent\";key=\"sig2\""), Some("signature_agent_invalid"));
    assert!(changed(|draft| draft.body = Some("{}")).is_ok());
    let uncovered = changed(|draft| {
        draft.body = Some("{}");
        draft.components.push("\"content-digest\";sf".to_owned());
    });
    assert_eq!(uncovered.err(), Some("signature_coverage_insufficient"));
}

#[test]
fn components_that_are_no_fields_of_the_request() {
    for component in [
        "\"@status\"",
        "\"@request-target\"",
        "\"@query-param\";name=\"conn\"",
        "\"@path\";req",
        "\"@path\"",
        "\"x\"",
        "\"X-Extra\"",
        "\"x-extra\";bs",
        "\"x-extra\";sf",
        "\"x-extra\";tr",
        "\"x-extra\";key=\"none\"",
        "\"x-extra\";key=1",
        "\"not a name\"",
        "\"\"",
    ] {
        let outcome = changed(|draft| {
            draft.extra.push(("x-extra", "1".to_owned()));
            draft.components.push(component.to_owned());
        });
        assert_eq!(outcome.err(), Some("signature_malformed"), "{component}");
    }
    let covered = changed(|draft| {
        draft.extra.push(("x-extra", "any thing".to_owned()));
        draft.components.push("\"x-extra\"".to_owned());
    });
    assert!(covered.is_ok());
}

#[test]
fn another_request_than_was_signed() {
    let draft = Draft::new();
    let headers = draft.headers();
    for (target, authority, code) in [
        ("/ws", "gateway.example", "signature_invalid"),
        ("/ws?conn=data&x", "gateway.example", "signature_invalid"),
        ("/other?conn=data", "gateway.example", "signature_invalid"),
        ("/ws?conn=data", "other.example", "signature_authority_mismatch"),
    ] {
        let other = Draft { target: target.to_owned(), authority: authority.to_owned(), ..Draft::new() };
        assert_eq!(other.judge_headers(&headers, draft.key_set()).err(), Some(code), "{target} {authority}");
    }
    for authority in ["gateway.example:443", "GATEWAY.example", "gateway.example:80"] {
        let other = Draft { authority: authority.to_owned(), ..Draft::new() };
        assert!(other.judge_headers(&headers, draft.key_set()).is_ok(), "{authority}");
    }
    let other = Draft { keys: vec![2], ..Draft::new() };
    assert_eq!(draft.judge_headers(&headers, other.key_set()).err(), Some("signature_key_unknown"));
}

#[test]
fn a_body() {
    let digest = changed(|draft| {
        draft.body = Some("{}");
        draft.extra.push(("content-digest", "sha-256=:AAAA:".to_owned()));
    });
    assert_eq!(digest.err(), Some("content_digest_mismatch"));
    let draft = Draft { body: Some("{}"), ..Draft::new() };
    let headers = draft.headers();
    let request = |body| Request {
        method: "GET",
        authority: Some(&draft.authority),
        target: &draft.target,
        headers: &headers,
        body,
    };
    let read = |body| Signed::read(request(Some(body)), &rules("https", "gateway.example"), NOW).map(drop);
    assert_eq!(read(BODY_BYTES), Ok(()));
    assert_eq!(read(BODY_BYTES + 1), Err(SignatureError::BodyTooLarge));
}

#[test]
fn fields_that_are_missing() {
    for (name, code) in [
        (SIGNATURE, "signature_malformed"),
        (SIGNATURE_INPUT, "signature_malformed"),
        (SIGNATURE_AGENT, "signature_agent_invalid"),
    ] {
        let draft = Draft::new();
        let mut headers = draft.headers();
        headers.remove(&name);
        assert_eq!(draft.judge_headers(&headers, draft.key_set()).err(), Some(code), "{name}");
        // A second line makes a label twice, or a second string.
        let mut headers = draft.headers();
        let again = headers[&name].clone();
        headers.append(&name, again);
        assert_eq!(draft.judge_headers(&headers, draft.key_set()).err(), Some("signature_malformed"), "{name} twice");
    }
}

#[test]
fn every_code_is_once_in_the_list() {
    let codes: BTreeSet<_> = SignatureError::CODES.into_iter().collect();
    assert_eq!(codes.len(), SignatureError::CODES.len());
    assert_eq!(SignatureError::Malformed("").code(), SignatureError::CODES[0]);
    assert_eq!(SignatureError::KeyNotContinued.code(), SignatureError::CODES[13]);
}

proptest! {
    #[test]
    fn nothing_verifies_once_a_byte_is_changed(place in 0usize..400, byte in b' '..b'~', which in 0usize..3) {
        let draft = Draft::new();
        let mut headers = draft.headers();
        let name = [SIGNATURE, SIGNATURE_INPUT, SIGNATURE_AGENT][which].clone();
        let mut value = headers[&name].as_bytes().to_vec();
        let place = place % value.len();
        prop_assume!(value[place] != byte);
        value[place] = byte;
        headers.insert(&name, http::HeaderValue::from_bytes(&value).unwrap());
        prop_assert!(draft.judge_headers(&headers, draft.key_set()).is_err());
    }

    #[test]
    fn any_request_is_read_or_refused(
        input in "[ -~]{0,80}", signature in "[ -~]{0,40}", agent in "[ -~]{0,40}", target in "[ -~]{0,20}",
    ) {
        let mut headers = HeaderMap::new();
        headers.insert(SIGNATURE_INPUT, input.parse().unwrap());
        headers.insert(SIGNATURE, signature.parse().unwrap());
        headers.insert(SIGNATURE_AGENT, agent.parse().unwrap());
        let request = Request { method: "GET", authority: Some("gateway.example"), target: &target, headers: &headers, body: None };
        prop_assert!(Signed::read(request, &rules("https", "gateway.example"), NOW).is_err());
    }

    #[test]
    fn both_sides_spell_a_target_alike(target in "/[a-z./%2eE?&='\" ~-]{0,40}") {
        let headers = HeaderMap::new();
        let request = |target| Request { method: "GET", authority: Some("gateway.example"), target, headers: &headers, body: None };
        let url = request(&target).url("https").unwrap();
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let again = format!("{}{query}", url.path());
        prop_assert_eq!(request(&again).url("https").unwrap(), url);
    }
}
