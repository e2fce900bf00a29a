//! SHA-256 identities: of files, chunks and manifests.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A SHA-256 digest, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256(pub [u8; 32]);

impl Sha256 {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// The digest in lower-case hex.
    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    /// Hands the hex to `write` without allocating: a manifest holds hundreds of thousands of digests.
    fn with_hex<T>(self, write: impl FnOnce(&str) -> T) -> T {
        let mut hex = [0; 64];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 0xf)];
        }
        write(str::from_utf8(&hex).unwrap_or_default()) // hex digits are ASCII
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_hex(|hex| f.write_str(hex))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What each byte is as a lower-case hex digit, `u8::MAX` where it is none.
const DIGIT_VALUES: [u8; 256] = {
    let mut values = [u8::MAX; 256];
    let mut value = 0;
    while value < 16 {
        values[DIGITS[value as usize] as usize] = value;
        value += 1;
    }
    values
};

/// The text is not 64 lower-case hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 is 64 lower-case hex digits")]
pub struct InvalidSha256;

impl FromStr for Sha256 {
    type Err = InvalidSha256;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits: &[u8; 64] = text.as_bytes().try_into().map_err(|_| InvalidSha256)?;
        let (pairs, _) = digits.as_chunks::<2>();
        let (mut digest, mut seen) = ([0; 32], 0);
        for (byte, pair) in digest.iter_mut().zip(pairs) {
            let [high, low] = pair.map(|digit| DIGIT_VALUES[usize::from(digit)]);
            seen |= high | low;
            *byte = high << 4 | low;
        }
        // Looked at once for all digits: a manifest holds hundreds of thousands of digests.
        if seen > 0xf { Err(InvalidSha256) } else { Ok(Self(digest)) }
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.with_hex(|hex| serializer.serialize_str(hex))
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A running SHA-256.
#[derive(Clone, Default)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    /// Takes the next bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of everything taken in, leaving a fresh hasher behind.
    pub fn finish(&mut self) -> Sha256 {
        Sha256(self.0.finalize_reset().into())
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    /// FIPS 180-4's example.
    #[test]
    fn abc() {
        assert_eq!(Sha256::of(b"abc").to_hex(), ABC);
        assert_eq!(Sha256::of(b"abc").to_string(), ABC);
        assert_eq!(ABC.parse(), Ok(Sha256::of(b"abc")));
    }

    #[test]
    fn only_64_lower_case_hex_digits() {
        let upper = ABC.to_uppercase();
        for text in ["", &ABC[1..], &format!("{ABC}0"), &upper, &ABC.replace('b', "g"), &ABC.replace("ba", "é")] {
            assert_eq!(text.parse::<Sha256>(), Err(InvalidSha256), "{text}");
            assert!(serde_json::from_value::<Sha256>(serde_json::json!(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn a_finished_hasher_starts_afresh() {
        let mut hasher = Hasher::default();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert_eq!(hasher.finish(), Sha256::of(b"abc"));
        assert_eq!(hasher.finish(), Sha256::of(b""));
    }

    proptest! {
        #[test]
        fn round_trips(digest: [u8; 32]) {
            let sha256 = Sha256(digest);
            prop_assert_eq!(sha256.to_string(), sha256.to_hex());
            prop_assert_eq!(sha256.to_hex().parse(), Ok(sha256));
            let json = serde_json::to_string(&sha256).unwrap();
            prop_assert_eq!(serde_json::from_str::<Sha256>(&json).unwrap(), sha256);
        }

        #[test]
        fn what_parses_is_written_alike(text in "[0-9a-fA-Fg]{62,66}") {
            if let Ok(sha256) = text.parse::<Sha256>() {
                prop_assert_eq!(sha256.to_hex(), text);
            }
        }
    }
}
