//! Media types (RFC 9110 section 8.3.1): syntax only. What a manifest names is attacker controlled, whatever it says.

/// Longest media type, in bytes.
const MEDIA_TYPE_BYTES: usize = 255;

/// Whether `text` is `type/subtype` with optional parameters, at most 255 bytes.
pub fn is_valid(text: &str) -> bool {
    if text.len() > MEDIA_TYPE_BYTES {
        return false;
    }
    let text = text.as_bytes();
    let Some(rest) = token(text).and_then(|rest| rest.strip_prefix(b"/")).and_then(token) else {
        return false;
    };
    parameters(rest).is_some()
}

/// `*( OWS ";" OWS parameter )`, to the end.
fn parameters(mut rest: &[u8]) -> Option<()> {
    while !rest.is_empty() {
        rest = skip_spaces(rest).strip_prefix(b";")?;
        rest = token(skip_spaces(rest))?.strip_prefix(b"=")?;
        rest = match rest.strip_prefix(b"\"") {
            Some(quoted) => quoted_rest(quoted)?,
            None => token(rest)?,
        };
    }
    Some(())
}

/// What follows a token of at least one character (RFC 9110 section 5.6.2).
fn token(text: &[u8]) -> Option<&[u8]> {
    let is_tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let length = text.iter().take_while(|byte| is_tchar(byte)).count();
    (length > 0).then(|| &text[length..])
}

/// What follows a quoted string whose opening quote is behind us (RFC 9110 section 5.6.4), in visible ASCII.
fn quoted_rest(mut text: &[u8]) -> Option<&[u8]> {
    loop {
        text = match text {
            [b'"', rest @ ..] => return Some(rest),
            [b'\\', b'\t' | b' '..=b'~', rest @ ..] => rest,
            [b'\\', ..] => return None,
            [b'\t' | b' '..=b'~', rest @ ..] => rest,
            _ => return None,
        }
    }
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    let length = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &text[length..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn valid() {
        for text in [
            "text/plain",
            "application/octet-stream",
            "application/vnd.webagents.artifact-set+json",
            "text/plain;charset=utf-8",
            "text/plain ; charset=\"utf-8\" ; format=flowed",
            r#"text/x;a="b\"c;d""#,
        ] {
            assert!(is_valid(text), "{text}");
        }
    }

    #[test]
    fn invalid() {
        for text in [
            "",
            "text",
            "text/",
            "/plain",
            "text/plain/x",
            "text/plain;",
            "text/plain;charset",
            "text/plain;charset=",
            "text/plain; =x",
            "text/plain;a=\"b",
            "text/plain;a=\"\\",
            " text/plain",
            "text/plain ",
            "text/pl ain",
            "text/plain\r\nSet-Cookie: x",
            "text/plän",
            "text/plain;a=\"ä\"",
            "text/plain,text/html",
        ] {
            assert!(!is_valid(text), "{text}");
        }
        assert!(is_valid(&format!("text/{}", "x".repeat(250))));
        assert!(!is_valid(&format!("text/{}", "x".repeat(251))));
    }

    proptest! {
        #[test]
        fn what_passes_fits_in_a_header(text in "\\PC{0,20}|[a-z]{1,4}/[a-z;= \"\\\\\t\r\n]{1,20}") {
            if is_valid(&text) {
                prop_assert!(text.bytes().all(|b| b == b'\t' || (b' '..=b'~').contains(&b)));
                prop_assert!(http::HeaderValue::from_str(&text).is_ok());
            }
        }
    }
}
