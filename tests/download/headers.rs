//! The headers of an answer: how much is verified, what a file is called, and each kind of answer as it is written.

use http::Method;

use crate::stage::{Answer, CHUNK, LENGTH, NAME, Stage, decoded_name};
use crate::support::{Gateway, SampleSet, bytes, set_file, sha256};

#[tokio::test]
async fn verified_says_how_much_is_checked() {
    let stage = Stage::new().await;
    let chunked = &stage.file(&format!("a b/{NAME}"), "", "text/html")[1].path;
    let plain = &stage.file("plain.bin", "plain.bin", "application/octet-stream")[0].path;
    let manifest = &format!("/v1/chats/c1/sets/{}", stage.set.identity());
    let (one, two) = (CHUNK, 2 * CHUNK);
    for (path, range, expected) in [
        (chunked, None, "full"),
        (chunked, Some(format!("bytes=0-{}", one - 1)), "full"),
        (chunked, Some(format!("bytes={one}-")), "full"),
        (chunked, Some(format!("bytes={two}-")), "full"),
        // What covers half of a chunk has all of it read and checked.
        (chunked, Some("bytes=1-".to_owned()), "full"),
        (chunked, Some(format!("bytes=1-{}", two - 2)), "full"),
        (chunked, Some(format!("bytes={}-", one / 2)), "full"),
        (chunked, Some(format!("bytes={}-", one / 2 + 1)), "chunks"),
        (chunked, Some(format!("bytes=0-{one}")), "chunks"),
        (chunked, Some("bytes=1-2".to_owned()), "none"),
        (chunked, Some(format!("bytes={}-{}", one / 2 + 1, one + 9)), "none"),
        (plain, None, "full"),
        (plain, Some("bytes=0-".to_owned()), "full"),
        (plain, Some("bytes=1-".to_owned()), "none"),
        (manifest, Some("bytes=1-2".to_owned()), "full"),
    ] {
        let headers: Vec<_> = range.iter().map(|range| ("range", range.clone())).collect();
        assert_eq!(stage.get(path, &headers).await.header("sluice-verified"), Some(expected), "{path} {range:?}");
    }
}

#[tokio::test]
async fn the_headers_of_an_answer() {
    let stage = Stage::new().await;
    let path =
        &stage.file(&format!("a b/{NAME}"), "a%20b/r%C3%A9sum%C3%A9%20%22x%22%3B%C3%9F.txt", "text/html")[0].path;
    let etag = format!("\"sha256-{}\"", sha256(&bytes(1, LENGTH)));
    insta::assert_snapshot!("whole", stage.get(path, &[]).await.text());
    insta::assert_snapshot!("part", stage.get(path, &[("range", "bytes=10-19".into())]).await.text());
    insta::assert_snapshot!("unsatisfiable", stage.get(path, &[("range", "bytes=-0".into())]).await.text());
    insta::assert_snapshot!("not_modified", stage.get(path, &[("if-none-match", etag)]).await.text());
    insta::assert_snapshot!("precondition_failed", stage.get(path, &[("if-match", "\"a\"".into())]).await.text());
    insta::assert_snapshot!("not_found", stage.get(&format!("{path}x"), &[]).await.text());
    let anonymous = stage.gateway.request(Method::GET, path, "", None);
    insta::assert_snapshot!("unauthorized", Answer::of(stage.send(false, anonymous).await).await.text());
    insta::assert_snapshot!("method_not_allowed", stage.ask(false, &Method::POST, path, &[]).await.text());
}

#[tokio::test]
async fn hostile_names_reach_the_reader_as_names() {
    let names =
        ["q\"uote", "semi;colon=x", "per%22cent", "späß 漢字 🎉.txt", "tab'apostrophe(1)*", "-rf", "a&b=c+d", "CON"];
    let set = SampleSet::of(names.iter().enumerate().map(|(n, name)| (format!("d/{name}"), bytes(n as u64, 10))));
    let stage = Stage::with_set(set, Gateway::start().await).await;
    for (n, name) in names.iter().enumerate() {
        let escaped = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
        let answer = stage.get(&set_file("c1", &stage.set, &format!("d/{escaped}")), &[]).await;
        assert_eq!((answer.status.as_u16(), &answer.body), (200, &bytes(n as u64, 10)), "{name}");
        let disposition = answer.header("content-disposition").unwrap();
        assert!(disposition.is_ascii() && disposition.matches('"').count() == 2, "{disposition}");
        if disposition.contains("filename*") {
            assert_eq!(decoded_name(disposition), *name);
        } else {
            assert!(disposition.ends_with(&format!("filename=\"{name}\"")), "{disposition}");
        }
    }
}

#[tokio::test]
async fn a_header_with_thousands_of_ranges_costs_nothing() {
    let stage = Stage::new().await;
    let path = &stage.file("plain.bin", "plain.bin", "application/octet-stream")[0].path;
    let ranges = format!("bytes={}", (0..8000).map(|n| format!("{n}-,")).collect::<String>());
    let answer = stage.get(path, &[("range", ranges)]).await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 70_001));
    assert_eq!(stage.agent.reads().len(), 1);
}
