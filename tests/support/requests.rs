//! Requests for a representation by range and precondition, and what each comes to whoever serves it.

/// A date that no representation was changed at.
pub const FARAWAY: &str = "Sat, 17 Oct 2026 10:00:00 GMT";

/// What a GET is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    Whole,
    Part(usize, usize),
    Unsatisfiable,
    NotModified,
    Failed,
}

/// The requests, for a representation of this length and tag.
pub fn cases(length: usize, etag: &str) -> Vec<(Vec<(&'static str, String)>, Expected)> {
    use Expected::*;
    let range = |value: &str, expected| (vec![("range", value.to_owned())], expected);
    let ranged = |name: &'static str, value: String, expected| {
        (vec![(name, value), ("range", "bytes=5-9".to_owned())], expected)
    };
    let one = |name: &'static str, value: String, expected| (vec![(name, value)], expected);
    let huge = "9".repeat(60);
    vec![
        (vec![], Whole),
        range("bytes=0-0", Part(0, 1)),
        range("bytes=10-19", Part(10, 20)),
        range("BYTES=10-19", Part(10, 20)),
        range("bytes=0-", Part(0, length)),
        range(&format!("bytes={}-", length - 1), Part(length - 1, length)),
        range("bytes=0-99999999", Part(0, length)),
        range(&format!("bytes=5-{huge}"), Part(5, length)),
        range("bytes=-5", Part(length - 5, length)),
        range("bytes=-99999999", Part(0, length)),
        range(&format!("bytes=-{huge}"), Part(0, length)),
        range("bytes=5-2", Whole),
        range("bytes=-", Whole),
        range("bytes=a-b", Whole),
        range("bytes=0-0,5-9", Whole),
        range("bytes=0-0, 99999999-", Whole),
        range("items=0-1", Whole),
        range("", Whole),
        range(&format!("bytes={}", "0-,".repeat(5000)), Whole),
        (vec![("range", "bytes=0-1".to_owned()), ("range", "bytes=4-5".to_owned())], Whole),
        range(&format!("bytes={length}-"), Unsatisfiable),
        range(&format!("bytes={length}-{}", length + 5), Unsatisfiable),
        range(&format!("bytes={huge}-"), Unsatisfiable),
        // 2^64 is not 0.
        range("bytes=18446744073709551616-", Unsatisfiable),
        range("bytes=-0", Unsatisfiable),
        ranged("if-range", etag.to_owned(), Part(5, 10)),
        ranged("if-range", "\"other\"".to_owned(), Whole),
        ranged("if-range", format!("W/{etag}"), Whole),
        ranged("if-range", FARAWAY.to_owned(), Whole),
        ranged("accept-encoding", "gzip, br, zstd".to_owned(), Part(5, 10)),
        one("accept-encoding", "gzip, br, zstd".to_owned(), Whole),
        one("accept", "application/json".to_owned(), Whole),
        ranged("if-match", etag.to_owned(), Part(5, 10)),
        ranged("if-match", "*".to_owned(), Part(5, 10)),
        one("if-match", format!("\"a\", {etag}"), Whole),
        ranged("if-match", "\"other\"".to_owned(), Failed),
        one("if-match", format!("W/{etag}"), Failed),
        one("if-none-match", "\"other\"".to_owned(), Whole),
        ranged("if-none-match", "\"other\"".to_owned(), Part(5, 10)),
        one("if-none-match", etag.to_owned(), NotModified),
        one("if-none-match", format!("\"a\", W/{etag}"), NotModified),
        ranged("if-none-match", "*".to_owned(), NotModified),
        (vec![("if-none-match", etag.to_owned()), ("if-match", "\"other\"".to_owned())], Failed),
        (vec![("if-none-match", etag.to_owned()), ("range", format!("bytes={length}-"))], NotModified),
        one("if-modified-since", FARAWAY.to_owned(), Whole),
        one("if-unmodified-since", "Sat, 17 Oct 1970 10:00:00 GMT".to_owned(), Whole),
    ]
}
