//! One table of requests, asked of every representation.

use http::Method;

use crate::stage::{Answer, Resource, Stage, decoded_name};
use crate::support::requests::{Expected, cases};
use crate::support::sha256;

fn check(resource: &Resource, expected: &Expected, answer: &Answer, what: &str) {
    let length = resource.bytes.len();
    let hash = sha256(&resource.bytes);
    assert_eq!(answer.header("accept-ranges"), Some("bytes"), "{what}");
    for absent in ["content-encoding", "transfer-encoding", "last-modified", "set-cookie"] {
        assert_eq!(answer.header(absent), None, "{absent}: {what}");
    }
    assert_eq!(answer.header("etag").is_some(), matches!(answer.status.as_u16(), 200 | 206 | 304), "{what}");
    if let Some(etag) = answer.header("etag") {
        assert_eq!(etag, format!("\"sha256-{hash}\""), "{what}");
    }
    let content_range = match expected {
        Expected::Part(start, end) => Some(format!("bytes {start}-{}/{length}", end - 1)),
        Expected::Unsatisfiable => Some(format!("bytes */{length}")),
        _ => None,
    };
    assert_eq!(answer.header("content-range"), content_range.as_deref(), "{what}");
    let (status, body) = match expected {
        Expected::Whole => (200, &resource.bytes[..]),
        Expected::Part(start, end) => (206, &resource.bytes[*start..*end]),
        Expected::Unsatisfiable | Expected::Failed => {
            let problem = match expected {
                Expected::Failed => (412, "precondition_failed"),
                _ => (416, "range_invalid"),
            };
            assert_eq!((answer.status.as_u16(), answer.code().as_str()), problem, "{what}");
            assert_eq!(answer.header("content-type"), Some("application/json"), "{what}");
            return;
        }
        Expected::NotModified => {
            assert_eq!((answer.status.as_u16(), answer.body.len()), (304, 0), "{what}");
            assert_eq!((answer.header("content-type"), answer.header("content-length")), (None, None), "{what}");
            return;
        }
    };
    assert_eq!(answer.status.as_u16(), status, "{what}");
    assert!(answer.body == body, "other bytes, {} instead of {}: {what}", answer.body.len(), body.len());
    assert_eq!(answer.header("content-length"), Some(body.len().to_string().as_str()), "{what}");
    assert_eq!(answer.header("content-type"), Some(resource.media_type), "{what}");
    let digest = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, hex::decode(&hash).unwrap());
    assert_eq!(answer.header("repr-digest"), Some(format!("sha-256=:{digest}:").as_str()), "{what}");
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{what}");
    assert_eq!(answer.header("cache-control"), Some("private, no-transform"), "{what}");
    assert_eq!(answer.header("x-accel-buffering"), Some("no"), "{what}");
    let csp = answer.header("content-security-policy").unwrap();
    assert!(csp.contains("sandbox") && csp.contains("default-src 'none'"), "{csp}: {what}");
    assert_eq!(decoded_name(answer.header("content-disposition").unwrap()), resource.name, "{what}");
    assert!(["full", "chunks", "none"].contains(&answer.header("sluice-verified").unwrap()), "{what}");
}

async fn table_over(http2: bool) {
    let stage = Stage::new().await;
    for resource in stage.resources() {
        let etag = format!("\"sha256-{}\"", sha256(&resource.bytes));
        let whole = stage.ask(http2, &Method::GET, &resource.path, &[]).await.visible();
        for (headers, expected) in cases(resource.bytes.len(), &etag) {
            let shown: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value:.40}")).collect();
            let what = format!("{} {}", resource.path, shown.join(" + "));
            let answer = stage.ask(http2, &Method::GET, &resource.path, &headers).await;
            check(&resource, &expected, &answer, &what);

            let reads = stage.agent.reads().len();
            let head = stage.ask(http2, &Method::HEAD, &resource.path, &headers).await.visible();
            assert_eq!(head.body.len(), 0, "HEAD {what}");
            assert_eq!(stage.agent.reads().len(), reads, "a HEAD asks the agent: {what}");
            let same = match expected {
                Expected::NotModified | Expected::Failed => answer.visible(),
                // Range means something for GET only, so HEAD is as it is without.
                _ => Answer { body: Vec::new(), status: whole.status, headers: whole.headers.clone() },
            };
            assert_eq!((head.status, head.headers), (same.status, same.headers), "HEAD {what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_on_every_route_over_http1() {
    table_over(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_on_every_route_over_http2() {
    table_over(true).await;
}

#[tokio::test]
async fn an_empty_file_has_no_bytes_and_no_read() {
    let stage = Stage::new().await;
    for http2 in [false, true] {
        for resource in stage.file("empty", "empty", "application/octet-stream") {
            for (range, expected) in [
                (None, Expected::Whole),
                (Some("bytes=-5"), Expected::Whole),
                (Some("bytes=0-"), Expected::Unsatisfiable),
                (Some("bytes=0-0"), Expected::Unsatisfiable),
                (Some("bytes=-0"), Expected::Unsatisfiable),
            ] {
                let headers: Vec<_> = range.iter().map(|range| ("range", (*range).to_owned())).collect();
                let answer = stage.ask(http2, &Method::GET, &resource.path, &headers).await;
                check(&resource, &expected, &answer, &format!("{range:?} {}", resource.path));
            }
            let head = stage.ask(http2, &Method::HEAD, &resource.path, &[]).await;
            assert_eq!(head.visible(), stage.ask(http2, &Method::GET, &resource.path, &[]).await.visible());
        }
    }
    assert_eq!(stage.agent.reads().len(), 0);
}
