//! Ranges and preconditions: the table that the gateway's own downloads are held against.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::stage::{Stage, large};
use crate::support::requests::{Expected, cases};
use crate::support::{Answer, sha256};

const MANIFEST_TYPE: &str = "application/vnd.webagents.artifact-set+json";

fn check(bytes: &[u8], media_type: &str, expected: &Expected, answer: &Answer, what: &str) {
    let (length, hash) = (bytes.len(), sha256(bytes));
    assert_eq!(answer.header("accept-ranges"), "bytes", "{what}");
    for absent in ["content-encoding", "transfer-encoding", "last-modified"] {
        assert_eq!(answer.header(absent), "", "{absent}: {what}");
    }
    let content_range = match expected {
        Expected::Part(start, end) => format!("bytes {start}-{}/{length}", end - 1),
        Expected::Unsatisfiable => format!("bytes */{length}"),
        _ => String::new(),
    };
    assert_eq!(answer.header("content-range"), content_range, "{what}");
    let etag = if matches!(answer.status.as_u16(), 200 | 206 | 304) { format!("\"sha256-{hash}\"") } else { "".into() };
    assert_eq!(answer.header("etag"), etag, "{what}");
    let (status, body) = match expected {
        Expected::Whole => (200, bytes),
        Expected::Part(start, end) => (206, &bytes[*start..*end]),
        Expected::Unsatisfiable => {
            return assert_eq!((answer.status.as_u16(), answer.code().as_str()), (416, "range_invalid"), "{what}");
        }
        Expected::Failed => {
            return assert_eq!(
                (answer.status.as_u16(), answer.code().as_str()),
                (412, "precondition_failed"),
                "{what}"
            );
        }
        Expected::NotModified => {
            assert_eq!((answer.status.as_u16(), answer.body.len()), (304, 0), "{what}");
            return assert_eq!((answer.header("content-type"), answer.header("content-length")), ("", ""), "{what}");
        }
    };
    assert_eq!(answer.status.as_u16(), status, "{what}");
    assert!(answer.body == body, "other bytes, {} instead of {}: {what}", answer.body.len(), body.len());
    assert_eq!(answer.header("content-length"), body.len().to_string(), "{what}");
    assert_eq!(answer.header("content-type"), media_type, "{what}");
    let digest = STANDARD.encode(hex::decode(&hash).unwrap());
    assert_eq!(answer.header("repr-digest"), format!("sha-256=:{digest}:"), "{what}");
    assert_eq!(answer.header("x-content-type-options"), "nosniff", "{what}");
    assert_eq!(answer.header("cache-control"), "private, no-transform", "{what}");
}

#[tokio::test]
async fn every_request_for_a_file_and_for_a_manifest() {
    let stage = Stage::new().await;
    let manifest = stage.ask("GET", &stage.identity, &[]).await.whole().await.body;
    assert_eq!(sha256(&manifest), stage.identity);
    for (bytes, media_type) in [(large(), "application/octet-stream"), (manifest, MANIFEST_TYPE)] {
        let hash = sha256(&bytes);
        let whole = stage.ask("HEAD", &hash, &[]).await.whole().await;
        for (headers, expected) in cases(bytes.len(), &format!("\"sha256-{hash}\"")) {
            let shown: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value:.40}")).collect();
            let what = format!("{media_type} {}", shown.join(" + "));
            let answer = stage.ask("GET", &hash, &headers).await.whole().await;
            check(&bytes, media_type, &expected, &answer, &what);

            let head = stage.ask("HEAD", &hash, &headers).await.whole().await;
            assert_eq!(head.body.len(), 0, "HEAD {what}");
            let same = match expected {
                Expected::NotModified | Expected::Failed => &answer,
                // Range means something for GET only, so HEAD is as it is without.
                _ => &whole,
            };
            let visible = |answer: &Answer| {
                let mut headers = answer.headers.clone();
                headers.remove("date").unwrap();
                (answer.status, headers)
            };
            assert_eq!(visible(&head), visible(same), "HEAD {what}");
        }
    }
    stage.agent.stop().await;
}

#[tokio::test]
async fn an_empty_file_has_no_bytes() {
    let stage = Stage::new().await;
    for (range, expected) in [
        (None, Expected::Whole),
        (Some("bytes=-5"), Expected::Whole),
        (Some("bytes=0-"), Expected::Unsatisfiable),
        (Some("bytes=-0"), Expected::Unsatisfiable),
    ] {
        let headers: Vec<_> = range.iter().map(|range| ("range", (*range).to_owned())).collect();
        let answer = stage.ask("GET", &sha256(b""), &headers).await.whole().await;
        check(b"", "application/octet-stream", &expected, &answer, &format!("{range:?}"));
    }
}
