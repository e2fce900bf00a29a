//! Conditional requests (RFC 9110 section 13) for GET and HEAD of a representation that exists.
//!
//! Every validator here is a strong entity tag. No modification time is kept, so `If-Modified-Since` and
//! `If-Unmodified-Since` are ignored, as sections 13.1.3 and 13.1.4 require, and a date in `If-Range` never matches.

use std::fmt;

use http::HeaderMap;
use http::header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE};

use super::Sha256;

/// Most bytes of one list of entity tags that are read, over all its lines.
const LIST_BYTES: usize = 8 * 1024;

/// A strong entity tag (RFC 9110 section 8.8.3), with its quotes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntityTag(String);

impl EntityTag {
    /// The tag of content known by its hash: `"sha256-<hex>"`.
    pub fn of(sha256: Sha256) -> Self {
        Self(format!("\"sha256-{sha256}\""))
    }

    /// The tag of a zip, by the hash of everything that decides its bytes: `"zip-<hex>"`.
    pub fn of_archive(layout: Sha256) -> Self {
        Self(format!("\"zip-{layout}\""))
    }

    /// The header's value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EntityTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a request's preconditions make of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// Answer it. `range` says whether a `Range` header counts: not when an `If-Range` names something else.
    Proceed {
        /// Whether a `Range` header is to be honoured.
        range: bool,
    },
    /// 304: the caller has the representation already.
    NotModified,
    /// 412: the representation is not the one the caller wants.
    PreconditionFailed,
}

impl Precondition {
    /// Evaluates the request's preconditions in the order of RFC 9110 section 13.2.2, against the representation's
    /// `current` tag. Not for other methods than GET and HEAD.
    ///
    /// A list that is malformed or longer than 8 KiB matches nothing: `If-Match` then fails, `If-None-Match` lets the
    /// request through.
    pub fn of(headers: &HeaderMap, current: &EntityTag) -> Self {
        if headers.contains_key(IF_MATCH) && !list_matches(headers, IF_MATCH, |tag| tag.is_strongly(current)) {
            return Self::PreconditionFailed;
        }
        if list_matches(headers, IF_NONE_MATCH, |tag| tag.is_weakly(current)) {
            return Self::NotModified;
        }
        let mut if_range = headers.get_all(IF_RANGE).iter();
        let range = match (if_range.next(), if_range.next()) {
            (None, _) => true,
            (Some(value), None) => value.as_bytes().trim_ascii() == current.0.as_bytes(),
            (Some(_), Some(_)) => false,
        };
        Self::Proceed { range }
    }
}

/// An entity tag as a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named<'a> {
    weak: bool,
    /// With its quotes.
    quoted: &'a [u8],
}

impl Named<'_> {
    /// Strong comparison (RFC 9110 section 8.8.3.2).
    fn is_strongly(self, current: &EntityTag) -> bool {
        !self.weak && self.is_weakly(current)
    }

    /// Weak comparison.
    fn is_weakly(self, current: &EntityTag) -> bool {
        self.quoted == current.0.as_bytes()
    }
}

/// Whether the list that `name`'s lines make up is `*`, or names a tag that `matches`.
fn list_matches(headers: &HeaderMap, name: http::HeaderName, matches: impl Fn(Named<'_>) -> bool) -> bool {
    let lines = || headers.get_all(&name).iter().map(|line| line.as_bytes().trim_ascii());
    if lines().map(<[u8]>::len).sum::<usize>() > LIST_BYTES {
        return false;
    }
    if lines().eq([b"*".as_slice()]) {
        return true;
    }
    let mut found = false;
    for line in lines() {
        let mut rest = line;
        loop {
            rest = after_separators(rest);
            if rest.is_empty() {
                break;
            }
            let Some((tag, after)) = entity_tag(rest) else {
                return false;
            };
            found |= matches(tag);
            rest = after.trim_ascii_start();
            if !rest.is_empty() && !rest.starts_with(b",") {
                return false;
            }
        }
    }
    found
}

/// Skips spaces and commas: a list may have empty elements (RFC 9110 section 5.6.1.2).
fn after_separators(text: &[u8]) -> &[u8] {
    let length = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b',')).count();
    &text[length..]
}

/// The entity tag that `text` starts with, and what follows it.
fn entity_tag(text: &[u8]) -> Option<(Named<'_>, &[u8])> {
    let (weak, text) = match text.strip_prefix(b"W/") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let inner = text.strip_prefix(b"\"")?;
    let length = inner.iter().take_while(|&&byte| byte == 0x21 || (byte >= 0x23 && byte != 0x7f)).count();
    if inner.get(length) != Some(&b'"') {
        return None;
    }
    let (quoted, rest) = text.split_at(length + 2);
    Some((Named { weak, quoted }, rest))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    const PROCEED: Precondition = Precondition::Proceed { range: true };
    const WITHOUT_RANGE: Precondition = Precondition::Proceed { range: false };

    fn tag() -> EntityTag {
        EntityTag::of(Sha256::of(b"x"))
    }

    fn evaluate(headers: &[(HeaderName, &str)]) -> Precondition {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_str(&value.replace("CUR", tag().as_str())).unwrap());
        }
        Precondition::of(&map, &tag())
    }

    #[test]
    fn tags_are_strong_and_quoted() {
        let hex = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
        assert_eq!(tag().to_string(), format!("\"sha256-{hex}\""));
        assert_eq!(EntityTag::of_archive(Sha256::of(b"x")).as_str(), format!("\"zip-{hex}\""));
    }

    #[test]
    fn if_match_compares_strongly() {
        assert_eq!(evaluate(&[]), PROCEED);
        for value in ["*", "CUR", "\"a\", CUR", "CUR, \"a\"", "\"a,b\",CUR", ", CUR ,", "W/\"a\", CUR"] {
            assert_eq!(evaluate(&[(IF_MATCH, value)]), PROCEED, "{value}");
        }
        for value in ["\"a\"", "W/CUR", "", "CUR junk", "junk, CUR", "CUR, *", "\"a", "w/CUR", "a b", "CUR CUR"] {
            assert_eq!(evaluate(&[(IF_MATCH, value)]), Precondition::PreconditionFailed, "{value}");
        }
        assert_eq!(evaluate(&[(IF_MATCH, "\"a\""), (IF_MATCH, "CUR")]), PROCEED);
    }

    #[test]
    fn if_none_match_compares_weakly() {
        for value in ["*", "CUR", "W/CUR", "\"a\", W/CUR"] {
            assert_eq!(evaluate(&[(IF_NONE_MATCH, value)]), Precondition::NotModified, "{value}");
        }
        for value in ["\"a\"", "", "junk", "CUR junk", "sha256-x"] {
            assert_eq!(evaluate(&[(IF_NONE_MATCH, value)]), PROCEED, "{value}");
        }
    }

    #[test]
    fn if_range_compares_strongly_and_dates_never_match() {
        assert_eq!(evaluate(&[(IF_RANGE, "CUR")]), PROCEED);
        for value in ["\"a\"", "W/CUR", "Sat, 17 Oct 2026 10:00:00 GMT", "", "*", "CUR, CUR"] {
            assert_eq!(evaluate(&[(IF_RANGE, value)]), WITHOUT_RANGE, "{value}");
        }
        assert_eq!(evaluate(&[(IF_RANGE, "CUR"), (IF_RANGE, "CUR")]), WITHOUT_RANGE);
    }

    #[test]
    fn the_order_of_the_rfc() {
        let all = [(IF_RANGE, "\"a\""), (IF_NONE_MATCH, "CUR"), (IF_MATCH, "\"a\"")];
        assert_eq!(evaluate(&all), Precondition::PreconditionFailed);
        assert_eq!(evaluate(&all[..2]), Precondition::NotModified);
        assert_eq!(evaluate(&[(IF_MATCH, "CUR"), (IF_NONE_MATCH, "CUR")]), Precondition::NotModified);
        assert_eq!(evaluate(&[(http::header::IF_MODIFIED_SINCE, "Sat, 17 Oct 2026 10:00:00 GMT")]), PROCEED);
        assert_eq!(evaluate(&[(http::header::IF_UNMODIFIED_SINCE, "Sat, 17 Oct 1970 10:00:00 GMT")]), PROCEED);
    }

    #[test]
    fn a_long_list_matches_nothing() {
        let long = format!("{}CUR", "\"a\",".repeat(3000));
        assert_eq!(evaluate(&[(IF_NONE_MATCH, &long)]), PROCEED);
        assert_eq!(evaluate(&[(IF_MATCH, &long)]), Precondition::PreconditionFailed);
    }

    proptest! {
        #[test]
        fn any_bytes_are_evaluated(value in proptest::collection::vec(0x20_u8..=0xff, 0..100)) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let mut map = HeaderMap::new();
                for name in [IF_MATCH, IF_NONE_MATCH, IF_RANGE] {
                    map.insert(name, value.clone());
                }
                // None of these bytes spells the tag, so it can match by `*` only.
                let expected = if value.as_bytes().trim_ascii() == b"*" {
                    Precondition::NotModified
                } else {
                    Precondition::PreconditionFailed
                };
                prop_assert_eq!(Precondition::of(&map, &tag()), expected);
            }
        }
    }
}
