//! The `Repr-Digest` field (RFC 9530): the digest of the whole representation, on every answer alike.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Sha256;

/// Longest field that is read, in bytes: room for a digest of every registered algorithm.
const FIELD_BYTES: usize = 1024;

/// A `Repr-Digest` that is no dictionary of digests, or whose SHA-256 is not 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a dictionary of digests (RFC 9530)")]
pub struct InvalidReprDigest;

/// The field's value: `sha-256=:<base64>:`.
pub fn repr_digest(sha256: Sha256) -> String {
    format!("sha-256=:{}:", STANDARD.encode(sha256.0))
}

/// The SHA-256 that a field's value names; `None` when it names other algorithms only.
///
/// # Errors
/// The value is longer than 1024 bytes, or not of the form that RFC 9530 section 3 gives it. Parameters, which no
/// registered algorithm has, are refused.
pub fn parse_repr_digest(value: &[u8]) -> Result<Option<Sha256>, InvalidReprDigest> {
    if value.len() > FIELD_BYTES {
        return Err(InvalidReprDigest);
    }
    let mut found = None;
    // No digest holds a comma, so members part at every one.
    for member in value.split(|&byte| byte == b',') {
        let member = member.trim_ascii();
        let equals = member.iter().position(|&byte| byte == b'=').ok_or(InvalidReprDigest)?;
        let (key, digest) = (&member[..equals], &member[equals + 1..]);
        let is_key = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(byte);
        if key.is_empty() || !key.iter().all(is_key) {
            return Err(InvalidReprDigest);
        }
        let digest = digest.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b":")).ok_or(InvalidReprDigest)?;
        let digest = STANDARD.decode(digest).map_err(|_| InvalidReprDigest)?;
        // Of a repeated key the last counts (RFC 9651 section 4.2.2).
        if key == b"sha-256" {
            found = Some(Sha256(digest.try_into().map_err(|_| InvalidReprDigest)?));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EMPTY: &str = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:";

    #[test]
    fn the_empty_representation() {
        assert_eq!(repr_digest(Sha256::of(b"")), EMPTY);
        assert_eq!(parse_repr_digest(EMPTY.as_bytes()), Ok(Some(Sha256::of(b""))));
    }

    #[test]
    fn among_other_algorithms() {
        let both = format!("sha-512=:AAAA:, {EMPTY}");
        assert_eq!(parse_repr_digest(both.as_bytes()), Ok(Some(Sha256::of(b""))));
        assert_eq!(parse_repr_digest(b"sha-512=:AAAA:"), Ok(None));
    }

    #[test]
    fn refused() {
        for value in [
            "",
            "sha-256",
            "sha-256=",
            "sha-256=::",
            "sha-256=:AAAA:",
            "sha-256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
            "SHA-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:",
            "sha-256=:47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU=:",
            "sha-256=:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855:",
            "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:,",
        ] {
            assert_eq!(parse_repr_digest(value.as_bytes()), Err(InvalidReprDigest), "{value}");
        }
        assert_eq!(parse_repr_digest(format!("{EMPTY}{}", " ".repeat(1000)).as_bytes()), Err(InvalidReprDigest));
    }

    proptest! {
        #[test]
        fn round_trip(digest: [u8; 32]) {
            prop_assert_eq!(parse_repr_digest(repr_digest(Sha256(digest)).as_bytes()), Ok(Some(Sha256(digest))));
        }

        #[test]
        fn any_bytes_are_read(value in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_repr_digest(&value);
        }
    }
}
