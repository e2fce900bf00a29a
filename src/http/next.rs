//! Where a browser goes on to once it has signed in: paths of this gateway, and nowhere else.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Where one signs in.
pub const SIGN_IN: &str = "/signin";
/// Longest path to go on to, in bytes.
const NEXT_BYTES: usize = 1024;

/// Where a browser signs in that is to come back to `path`, which is left out where it is none to go on to.
pub fn sign_in_first(path: &str) -> String {
    match is_local(path) {
        true => format!("{SIGN_IN}?next={}", utf8_percent_encode(path, NON_ALPHANUMERIC)),
        false => SIGN_IN.to_owned(),
    }
}

/// A path of this gateway. What a browser would take for another host, or would change before it looks, is none.
pub fn is_local(path: &str) -> bool {
    let route = path.split(['?', '#']).next().unwrap_or_default();
    route.starts_with('/')
        // Also where somebody on the way makes the path shorter.
        && !route.contains("//")
        && !route.split('/').any(|segment| segment == "." || segment == "..")
        && path.len() <= NEXT_BYTES
        && path.bytes().all(|b| b.is_ascii_graphic() && b != b'\\')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_browser_comes_back_to_paths_of_this_gateway_only() {
        assert_eq!(
            sign_in_first("/v1/chats/c/sets?limit=1&x=%20"),
            "/signin?next=%2Fv1%2Fchats%2Fc%2Fsets%3Flimit%3D1%26x%3D%2520"
        );
        for path in ["//evil.example", "/\\evil.example", &format!("/{}", "x".repeat(NEXT_BYTES)), "*"] {
            assert_eq!(sign_in_first(path), "/signin", "{path}");
        }
    }

    #[test]
    fn one_goes_on_to_paths_of_this_gateway_only() {
        for path in ["/", "/chats/review", "/chats/a%20b?x=1#y", "/v1/chats/c1/sets", "/x?to=http://y/../z"] {
            assert!(is_local(path), "{path}");
        }
        for path in [
            "",
            "chats",
            "//evil.example",
            "/\\evil.example",
            "/\t/evil.example",
            "/.//evil.example",
            "/v1/chats/../../..//evil.example",
            "/../evil.example",
            "\\\\evil",
            "https://evil.example",
            "javascript:alert(1)",
            "/a\r\nSet-Cookie: x=y",
            "/ü",
            "/a b",
        ] {
            assert!(!is_local(path), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn a_local_path_keeps_its_origin(path in "/[ -~]{0,30}") {
            if is_local(&path) {
                let base = url::Url::parse("https://files.example/signin").unwrap();
                prop_assert_eq!(base.join(&path).unwrap().origin(), base.origin());
            }
        }
    }
}
