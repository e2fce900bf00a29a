//! References to an OCI registry (the OCI distribution specification), as far as fetching a blob by its hash needs them.

/// Longest repository name, in bytes.
const NAME_BYTES: usize = 255;

/// Where a registry keeps a blob. The tag or digest of a reference names an artifact, and a blob is named by its own
/// hash, so nothing more is needed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OciReference {
    /// Host, perhaps with a port.
    pub registry: String,
    /// The repository's name.
    pub repository: String,
}

impl OciReference {
    /// Reads `registry/repository[:tag][@digest]`. The registry is always named: there is no default one.
    pub fn parse(reference: &str) -> Option<Self> {
        let (registry, rest) = reference.split_once('/')?;
        let named = registry == "localhost" || registry.contains(['.', ':']);
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
        if !named || !registry.bytes().all(valid) {
            return None;
        }
        let rest = rest.split_once('@').map_or(rest, |(name, _)| name);
        let repository = rest.split_once(':').map_or(rest, |(name, _)| name);
        let valid = repository.len() <= NAME_BYTES && repository.split('/').all(is_component);
        valid.then(|| Self { registry: registry.to_owned(), repository: repository.to_owned() })
    }
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_component(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = |text: &str| text.bytes().next().is_some_and(word) && text.bytes().next_back().is_some_and(word);
    let mut separators =
        text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).filter(|run| !run.is_empty());
    ends(text) && separators.all(|run| matches!(run, "." | "_" | "__") || run.bytes().all(|byte| byte == b'-'))
}

/// What a registry asks for before it serves (RFC 6750 section 3, and the distribution specification's token page).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Challenge {
    /// Where a token is to be had.
    pub realm: String,
    /// For which service.
    pub service: Option<String>,
}

impl Challenge {
    /// Reads a `WWW-Authenticate` value that begins with a `Bearer` challenge.
    pub fn parse(value: &str) -> Option<Self> {
        let (scheme, mut rest) = value.trim().split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut challenge = Self::default();
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            if rest.is_empty() {
                break;
            }
            let (name, after) = rest.split_once('=')?;
            let (value, after) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_at(after.find([',', ' ']).unwrap_or(after.len())),
            };
            match name.trim().to_ascii_lowercase().as_str() {
                "realm" => challenge.realm = value.to_owned(),
                "service" => challenge.service = Some(value.to_owned()),
                _ => {}
            }
            rest = after;
        }
        (!challenge.realm.is_empty()).then_some(challenge)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_reference_names_its_registry_and_repository() {
        let parse =
            |text: &str| OciReference::parse(text).map(|found| format!("{} {}", found.registry, found.repository));
        for text in ["a.example/b/c", "a.example/b/c:v1", "a.example/b/c@sha256:00", "a.example/b/c:v1@sha256:00"] {
            assert_eq!(parse(text).as_deref(), Some("a.example b/c"), "{text}");
        }
        assert_eq!(parse("127.0.0.1:5000/x").as_deref(), Some("127.0.0.1:5000 x"));
        assert_eq!(parse("localhost/a_b/c__d/e-f/g--h/i.j").as_deref(), Some("localhost a_b/c__d/e-f/g--h/i.j"));
        for text in [
            "",
            "b/c",
            "a.example",
            "a.example/",
            "a.example/B",
            "a.example/a//b",
            "a.example/../b",
            "a.example/a___b",
            "u@a.example/b",
            "a.example/-b",
            "a.example/b?x",
            "https://a.example/b",
            "a.example/b%2fc",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_challenge_says_where_a_token_is_to_be_had() {
        let value = r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull,push""#;
        let challenge = Challenge::parse(value).unwrap();
        assert_eq!(challenge.realm, "https://auth.example/token");
        assert_eq!(challenge.service.as_deref(), Some("r.example"));
        assert_eq!(Challenge::parse("bearer realm=x, error=\"y\"").map(|found| found.realm).as_deref(), Some("x"));
        for value in ["", "Bearer", "Basic realm=\"x\"", "Bearer service=\"x\"", "Bearer realm=\"x", "Bearer realm"] {
            assert_eq!(Challenge::parse(value), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}|[a-z0-9.:/@_-]{0,40}") {
            if let Some(found) = OciReference::parse(&text) {
                prop_assert!(!found.repository.contains("..") && !found.repository.contains('%'));
            }
            let _ = Challenge::parse(&format!("Bearer {text}"));
        }
    }
}
