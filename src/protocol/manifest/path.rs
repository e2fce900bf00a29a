//! The rules of entry paths (specification section 1).

use super::error::ManifestCode;
use crate::protocol::limits::{PATH_BYTES, PATH_SEGMENT_BYTES, PATH_SEGMENTS};

/// Checks one path: relative, `/`-separated, normalised.
///
/// A first segment that is a Windows drive (`C:`) is absolute too: joined to a folder there, it leaves the folder.
///
/// # Errors
/// The code of the first rule that is broken, and the rule in words.
pub fn check(path: &str) -> Result<(), (ManifestCode, &'static str)> {
    if path.len() > PATH_BYTES {
        return Err((ManifestCode::PathTooLong, "longer than 1024 bytes"));
    }
    if path.starts_with('/') || is_drive(path) {
        return Err((ManifestCode::PathAbsolute, "must be relative"));
    }
    if path.contains('\\') || path.chars().any(char::is_control) {
        return Err((ManifestCode::PathInvalid, "must not hold a backslash or a control character"));
    }
    for segment in path.split('/') {
        match segment {
            ".." => return Err((ManifestCode::PathParentSegment, "must not hold a .. segment")),
            "" | "." => return Err((ManifestCode::PathInvalid, "must not hold an empty segment or a . segment")),
            _ if segment.len() > PATH_SEGMENT_BYTES => {
                return Err((ManifestCode::PathTooLong, "has a segment longer than 255 bytes"));
            }
            _ => {}
        }
    }
    if path.split('/').count() > PATH_SEGMENTS {
        return Err((ManifestCode::PathTooManySegments, "has more than 64 segments"));
    }
    Ok(())
}

fn is_drive(path: &str) -> bool {
    matches!(path.split('/').next().map(str::as_bytes), Some([letter, b':']) if letter.is_ascii_alphabetic())
}

/// Two paths of a set that cannot stand beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clash {
    /// [`ManifestCode::PathDuplicate`] or [`ManifestCode::PathConflict`].
    pub code: ManifestCode,
    /// The position of the path that came first.
    pub first: usize,
    /// The position of the other.
    pub second: usize,
}

/// Looks for paths that are there twice, or are both a file and a directory. The paths must have passed [`check`].
///
/// # Errors
/// One of the clashes, if there are any.
pub fn check_together<'a>(paths: impl Iterator<Item = &'a str>) -> Result<(), Clash> {
    // With separators below every other byte (control characters are refused), what lies in a directory follows
    // directly after the file of that name, so one comparison of neighbours finds both kinds of clash.
    let mut sorted: Vec<(String, usize)> = paths.map(|path| path.replace('/', "\0")).zip(0..).collect();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        let [(upper, upper_at), (lower, lower_at)] = pair else { continue };
        let code = match lower.strip_prefix(upper.as_str()) {
            Some("") => ManifestCode::PathDuplicate,
            Some(rest) if rest.starts_with('\0') => ManifestCode::PathConflict,
            _ => continue,
        };
        return Err(Clash { code, first: *upper_at.min(lower_at), second: *upper_at.max(lower_at) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn code(path: &str) -> Result<(), ManifestCode> {
        check(path).map_err(|(code, _)| code)
    }

    #[test]
    fn each_rule() {
        use ManifestCode::*;
        for path in ["a", "a/b.txt", "...", "..a/b", "a/.hidden", "ä/ß", "a b", "c:d", "ab:/c", "a:b/c"] {
            assert_eq!(code(path), Ok(()), "{path}");
        }
        for (path, expected) in [
            ("", PathInvalid),
            (".", PathInvalid),
            ("./a", PathInvalid),
            ("a//b", PathInvalid),
            ("a/", PathInvalid),
            ("a/./b", PathInvalid),
            ("a\\b", PathInvalid),
            ("\\\\host\\share", PathInvalid),
            ("a\0b", PathInvalid),
            ("a\u{7f}", PathInvalid),
            ("a\u{85}", PathInvalid),
            ("..", PathParentSegment),
            ("a/../b", PathParentSegment),
            ("../a", PathParentSegment),
            ("/", PathAbsolute),
            ("/etc/passwd", PathAbsolute),
            ("//host/share", PathAbsolute),
            ("C:/windows", PathAbsolute),
            ("c:", PathAbsolute),
        ] {
            assert_eq!(code(path), Err(expected), "{path:?}");
        }
    }

    #[test]
    fn each_limit_at_its_edge() {
        let segments = |n: usize| vec!["a"; n].join("/");
        assert_eq!(code(&segments(64)), Ok(()));
        assert_eq!(code(&segments(65)), Err(ManifestCode::PathTooManySegments));
        assert_eq!(code(&"a".repeat(255)), Ok(()));
        assert_eq!(code(&"a".repeat(256)), Err(ManifestCode::PathTooLong));
        assert_eq!(code(&"ä".repeat(128)), Err(ManifestCode::PathTooLong));
        let long = vec!["a".repeat(204); 5].join("/");
        assert_eq!((long.len(), code(&long)), (1024, Ok(())));
        assert_eq!(code(&format!("{long}a")), Err(ManifestCode::PathTooLong));
    }

    #[test]
    fn clashes() {
        let clash = |paths: &[&str]| check_together(paths.iter().copied()).map_err(|c| (c.code, c.first, c.second));
        assert_eq!(clash(&["a", "b/a", "b/c", "a!", "a.b", "A"]), Ok(()));
        assert_eq!(clash(&["a", "b", "a"]), Err((ManifestCode::PathDuplicate, 0, 2)));
        assert_eq!(clash(&["a/b/c", "x", "a!", "a"]), Err((ManifestCode::PathConflict, 0, 3)));
        assert_eq!(clash(&["a/b", "a/b/c/d"]), Err((ManifestCode::PathConflict, 0, 1)));
    }

    proptest! {
        /// Against the plain definition.
        #[test]
        fn together_as_defined(paths in proptest::collection::vec("[ab!](/[ab.-]){0,3}", 0..8)) {
            let unique: HashSet<&str> = paths.iter().map(String::as_str).collect();
            let duplicate = unique.len() < paths.len();
            let conflict = paths.iter().any(|path| path.match_indices('/').any(|(at, _)| unique.contains(&path[..at])));
            match check_together(paths.iter().map(String::as_str)) {
                Ok(()) => prop_assert!(!duplicate && !conflict),
                Err(clash) => {
                    prop_assert!(clash.first < clash.second);
                    let (a, b) = (&paths[clash.first], &paths[clash.second]);
                    if clash.code == ManifestCode::PathDuplicate {
                        prop_assert_eq!(a, b);
                    } else {
                        let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
                        let inside = format!("{short}/");
                        prop_assert!(long.starts_with(&inside));
                    }
                }
            }
        }

        #[test]
        fn what_passes_stays_inside(path in "[a./\\\\:C\0]{0,12}") {
            if check(&path).is_ok() {
                let normal = |c: std::path::Component<'_>| matches!(c, std::path::Component::Normal(_));
                prop_assert!(std::path::Path::new(&path).components().all(normal));
                prop_assert_eq!(std::path::Path::new(&path).components().count(), path.split('/').count());
            }
        }
    }
}
