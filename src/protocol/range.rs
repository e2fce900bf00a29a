//! Byte ranges of a representation (RFC 9110 section 14).

use http::HeaderMap;
use http::header::RANGE;

/// Longest `Range` header that is read. One range never needs more, and only one is ever served.
const RANGE_HEADER_BYTES: usize = 256;

/// The bytes from `start` up to, not including, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl ByteRange {
    /// Every byte of a representation.
    pub fn whole(complete_length: u64) -> Self {
        Self { start: 0, end: complete_length }
    }

    /// How many bytes.
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether it holds no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The `Content-Range` of a 206 (RFC 9110 section 14.4). The range must not be empty: an empty one has no form.
    pub fn content_range(self, complete_length: u64) -> String {
        format!("bytes {}-{}/{complete_length}", self.start, self.end.saturating_sub(1))
    }
}

/// The `Content-Range` of a 416 (RFC 9110 section 15.5.17).
pub fn unsatisfied_content_range(complete_length: u64) -> String {
    format!("bytes */{complete_length}")
}

/// What a `Range` header selects of a representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// No range, or none that is served: 200 with everything.
    Whole,
    /// One range with at least one byte: 206, also when it covers everything.
    Part(ByteRange),
    /// A range that holds no byte of the representation: 416.
    Unsatisfiable,
}

impl Selection {
    /// What a GET with these headers asks for of a representation of `complete_length` bytes. `Range` in two lines is a
    /// list of several ranges (RFC 9110 section 5.3).
    pub fn asked(headers: &HeaderMap, complete_length: u64) -> Self {
        let mut all = headers.get_all(RANGE).iter();
        match (all.next(), all.next()) {
            (Some(range), None) => Self::of(Some(range.as_bytes()), complete_length),
            _ => Self::Whole,
        }
    }

    /// Reads the `Range` header of a GET for a representation of `complete_length` bytes.
    ///
    /// A unit other than bytes, a header that is malformed, reversed (`5-2`) or too long, and several ranges select
    /// everything, as specification section 2 has it. Positions beyond 64 bits count as the largest. Of an empty
    /// representation `bytes=0-` is unsatisfiable, and a suffix (`bytes=-5`) is all of it.
    pub fn of(range_header: Option<&[u8]>, complete_length: u64) -> Self {
        let Some(header) = range_header.filter(|header| header.len() <= RANGE_HEADER_BYTES) else {
            return Self::Whole;
        };
        let Some((first, last)) = single_range(header) else {
            return Self::Whole;
        };
        match (first, last) {
            (Some(first), Some(last)) if first > last => Self::Whole,
            (Some(first), _) if first >= complete_length => Self::Unsatisfiable,
            (Some(first), last) => {
                let end = last.map_or(complete_length, |last| last.saturating_add(1).min(complete_length));
                Self::Part(ByteRange { start: first, end })
            }
            (None, Some(0)) => Self::Unsatisfiable,
            (None, Some(_)) if complete_length == 0 => Self::Whole,
            (None, Some(suffix)) => {
                Self::Part(ByteRange { start: complete_length.saturating_sub(suffix), end: complete_length })
            }
            (None, None) => Self::Whole,
        }
    }
}

/// The two sides of the `-` of the header's only range, each a position or absent.
fn single_range(header: &[u8]) -> Option<(Option<u64>, Option<u64>)> {
    let equals = header.iter().position(|&byte| byte == b'=')?;
    if !header[..equals].eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    // A list may have empty elements (RFC 9110 section 5.6.1.2).
    let mut specs = header[equals + 1..].split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|s| !s.is_empty());
    let (spec, None) = (specs.next()?, specs.next()) else {
        return None;
    };
    let dash = spec.iter().position(|&byte| byte == b'-')?;
    Some((position(&spec[..dash])?, position(&spec[dash + 1..])?))
}

/// `Some(None)` for no digits; `None` for anything that is not a digit.
fn position(digits: &[u8]) -> Option<Option<u64>> {
    if digits.is_empty() {
        return Some(None);
    }
    let value = digits.iter().try_fold(0_u64, |value, byte| {
        byte.is_ascii_digit().then(|| value.saturating_mul(10).saturating_add(u64::from(byte - b'0')))
    });
    value.map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(header: &str, complete_length: u64) -> Selection {
        Selection::of(Some(header.as_bytes()), complete_length)
    }

    fn part(start: u64, end: u64) -> Selection {
        Selection::Part(ByteRange { start, end })
    }

    #[test]
    fn one_range() {
        assert_eq!(of("bytes=0-0", 10), part(0, 1));
        assert_eq!(of("bytes=2-4", 10), part(2, 5));
        assert_eq!(of("bytes=0-", 10), part(0, 10));
        assert_eq!(of("bytes=9-", 10), part(9, 10));
        assert_eq!(of("bytes=0-99999999", 10), part(0, 10));
        assert_eq!(of("bytes=-3", 10), part(7, 10));
        assert_eq!(of("bytes=-30", 10), part(0, 10));
        assert_eq!(of("BYTES=1-2", 10), part(1, 3));
        assert_eq!(of("bytes= 1-2 ", 10), part(1, 3));
        assert_eq!(of("bytes=,1-2,", 10), part(1, 3));
        assert_eq!(of("bytes=007-008", 10), part(7, 9));
    }

    #[test]
    fn no_byte_in_range() {
        for header in ["bytes=10-", "bytes=10-10", "bytes=11-20", "bytes=-0", "bytes=99999999999999999999999999-"] {
            assert_eq!(of(header, 10), Selection::Unsatisfiable, "{header}");
        }
    }

    #[test]
    fn the_whole_representation() {
        assert_eq!(Selection::of(None, 10), Selection::Whole);
        for header in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=,",
            "bytes=5-2",
            "bytes=a-b",
            "bytes=1-b",
            "bytes=+1-2",
            "bytes=1",
            "bytes=1-2-3",
            "bytes=--1",
            "bytes=1 -2",
            "bytes =1-2",
            " bytes=1-2",
            "items=0-1",
            "bytes=0-0,5-9",
            "bytes=0-0,junk",
            "bytes=20-30,0-1",
            "bytes=0x1-2",
        ] {
            assert_eq!(of(header, 10), Selection::Whole, "{header}");
        }
        assert_eq!(of(&format!("bytes={}", "0-,".repeat(5000)), 10), Selection::Whole);
        assert_eq!(Selection::of(Some(b"bytes=\xff-2"), 10), Selection::Whole);
    }

    #[test]
    fn an_empty_representation() {
        assert_eq!(of("bytes=0-", 0), Selection::Unsatisfiable);
        assert_eq!(of("bytes=0-0", 0), Selection::Unsatisfiable);
        assert_eq!(of("bytes=-5", 0), Selection::Whole);
        assert_eq!(of("bytes=-0", 0), Selection::Unsatisfiable);
    }

    #[test]
    fn huge_numbers_do_not_overflow() {
        let huge = "9".repeat(100);
        assert_eq!(of(&format!("bytes=5-{huge}"), 10), part(5, 10));
        assert_eq!(of(&format!("bytes=-{huge}"), 10), part(0, 10));
        assert_eq!(of(&format!("bytes=0-{}", u64::MAX), u64::MAX), part(0, u64::MAX));
        assert_eq!(of(&format!("bytes={}-", u64::MAX), u64::MAX), Selection::Unsatisfiable);
        // 2^64 + 10 does not wrap around to 10.
        assert_eq!(of("bytes=18446744073709551626-", 100), Selection::Unsatisfiable);
        assert_eq!(of("bytes=-1", u64::MAX), part(u64::MAX - 1, u64::MAX));
    }

    #[test]
    fn content_range_forms() {
        assert_eq!(ByteRange { start: 10, end: 20 }.content_range(100), "bytes 10-19/100");
        assert_eq!(ByteRange::whole(1).content_range(1), "bytes 0-0/1");
        assert_eq!(unsatisfied_content_range(0), "bytes */0");
    }

    proptest! {
        #[test]
        fn a_part_lies_within(header in "(bytes=)?[-0-9, a=]{0,30}", length: u64) {
            if let Selection::Part(range) = of(&header, length) {
                prop_assert!(range.start < range.end && range.end <= length);
            }
        }

        #[test]
        fn any_bytes_are_read(header in proptest::collection::vec(any::<u8>(), 0..300), length: u64) {
            Selection::of(Some(&header), length);
        }

        #[test]
        fn a_well_formed_range_is_exact(first: u64, more in 0..u64::MAX, length: u64) {
            let last = first.saturating_add(more);
            let expected = if first >= length {
                Selection::Unsatisfiable
            } else {
                part(first, last.saturating_add(1).min(length))
            };
            prop_assert_eq!(of(&format!("bytes={first}-{last}"), length), expected);
        }
    }
}
