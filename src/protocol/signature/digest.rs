//! `Content-Digest` (RFC 9530 section 2) of a signed body.

use sfv::ListEntry;
use sha2::{Digest as _, Sha256, Sha512};

use super::SignatureError;
use super::field;

/// Whether every digest that is known is the body's, and one is known.
pub(super) fn check(value: &str, body: &[u8]) -> Result<(), SignatureError> {
    let members = field::dictionary(value).map_err(|_| SignatureError::DigestMismatch)?;
    let mut known = false;
    for (algorithm, member) in &members {
        let digest = match member {
            ListEntry::Item(item) => item.bare_item.as_byte_sequence(),
            ListEntry::InnerList(_) => None,
        };
        let digest = digest.ok_or(SignatureError::DigestMismatch)?;
        let matches = match algorithm.as_str() {
            "sha-256" => digest == Sha256::digest(body).as_slice(),
            "sha-512" => digest == Sha512::digest(body).as_slice(),
            _ => continue,
        };
        if !matches {
            return Err(SignatureError::DigestMismatch);
        }
        known = true;
    }
    if known { Ok(()) } else { Err(SignatureError::DigestMismatch) }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn every_known_digest_counts() {
        let sha256 = |body: &[u8]| format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(body)));
        let sha512 = |body: &[u8]| format!("sha-512=:{}:", STANDARD.encode(Sha512::digest(body)));
        for value in [
            sha256(b"x"),
            sha512(b"x"),
            format!("{}, {}", sha256(b"x"), sha512(b"x")),
            format!("md5=:AAAA:, {}", sha256(b"x")),
        ] {
            assert_eq!(check(&value, b"x"), Ok(()), "{value}");
        }
        for value in [
            sha256(b"y"),
            format!("{}, {}", sha256(b"x"), sha512(b"y")),
            "md5=:AAAA:".to_owned(),
            "sha-256=1".to_owned(),
            String::new(),
        ] {
            assert_eq!(check(&value, b"x"), Err(SignatureError::DigestMismatch), "{value}");
        }
    }
}
