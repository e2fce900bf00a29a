//! The `Content-Disposition` of a download (RFC 6266, RFC 8187): always an attachment, since what agents announce may
//! be a page or a script.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Longest file name that is sent, in UTF-8 bytes.
const NAME_BYTES: usize = 255;

/// Everything but RFC 8187's `attr-char`.
const NOT_ATTR_CHAR: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// `attachment` under the last segment of `path`, as `filename` for old clients and `filename*` for all others.
///
/// Leading dots, control characters and the marks that reverse reading order are left out of the name, so that it
/// neither hides the file nor disguises its ending. A path with no name left is sent as `download`.
pub fn attachment(path: &str) -> String {
    let name = safe_name(path);
    let ascii: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    format!("attachment; filename=\"{ascii}\"; filename*=UTF-8''{}", utf8_percent_encode(&name, NOT_ATTR_CHAR))
}

/// The characters of a quoted string that every client reads alike.
fn is_plain(c: char) -> bool {
    matches!(c, ' '..='~') && !matches!(c, '"' | '\\' | '%')
}

fn safe_name(path: &str) -> String {
    let segment = path.rsplit(['/', '\\']).next().unwrap_or_default();
    let shown: String = segment.chars().filter(|&c| !c.is_control() && !is_direction_mark(c)).collect();
    let name = shown.trim_start_matches(|c: char| c == '.' || c.is_whitespace()).trim_end();
    let name = &name[..name.floor_char_boundary(NAME_BYTES)];
    if name.is_empty() { "download".to_owned() } else { name.to_owned() }
}

/// Unicode's `Bidi_Control` characters.
fn is_direction_mark(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;

    use super::*;

    fn extended(value: &str) -> String {
        let (_, encoded) = value.split_once("filename*=UTF-8''").unwrap();
        percent_decode_str(encoded).decode_utf8().unwrap().into_owned()
    }

    #[test]
    fn plain_and_not() {
        assert_eq!(attachment("reports/drc.txt"), "attachment; filename=\"drc.txt\"; filename*=UTF-8''drc.txt");
        let name = "résumé \"x\";ß.txt";
        let value = attachment(name);
        assert_eq!(
            value,
            "attachment; filename=\"r_sum_ _x_;_.txt\"; filename*=UTF-8''r%C3%A9sum%C3%A9%20%22x%22%3B%C3%9F.txt"
        );
        assert_eq!(extended(&value), name);
        assert!(attachment("a'(b)*%41.txt").ends_with("filename*=UTF-8''a%27%28b%29%2A%2541.txt"));
    }

    #[test]
    fn names_that_hide_or_disguise() {
        assert_eq!(extended(&attachment("a/..")), "download");
        assert_eq!(extended(&attachment("")), "download");
        assert_eq!(extended(&attachment(".bashrc")), "bashrc");
        assert_eq!(extended(&attachment("invoice\u{202e}fdp.exe")), "invoicefdp.exe");
        assert_eq!(extended(&attachment("a\r\nSet-Cookie: x")), "aSet-Cookie: x");
        assert_eq!(extended(&attachment("..\\..\\evil.txt")), "evil.txt");
        assert_eq!(extended(&attachment(&"ß".repeat(200))), "ß".repeat(127));
    }

    proptest! {
        #[test]
        fn any_name_makes_a_header(name in any::<String>()) {
            let value = attachment(&name);
            prop_assert!(value.bytes().all(|b| (b' '..=b'~').contains(&b)));
            prop_assert!(value.len() < 1200);
            prop_assert_eq!(value.matches('"').count(), 2);
            let sent = extended(&value);
            prop_assert!(!sent.is_empty() && !sent.starts_with('.') && !sent.contains(['/', '\\']));
        }
    }
}
