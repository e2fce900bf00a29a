//! Downloads as readers see them: one table of requests over every route that bytes leave by, on both versions of HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use support::{Agent, Download, Gateway, SampleSet, bytes, eventually, set_file, sha256};

const CHUNK: usize = 256 * 1024;
/// Three chunks, the last of them three bytes.
const LENGTH: usize = 2 * CHUNK + 3;
const NAME: &str = "résumé \"x\";ß.txt";
const MANIFEST_TYPE: &str = "application/vnd.webagents.artifact-set+json";
const FARAWAY: &str = "Sat, 17 Oct 2026 10:00:00 GMT";

/// A gateway, an agent with a set in chat `c1`, alice who takes part there, and mallory who takes part elsewhere.
struct Stage {
    gateway: Gateway,
    agent: Agent,
    set: SampleSet,
}

/// One representation under one URL.
struct Resource {
    path: String,
    bytes: Vec<u8>,
    media_type: &'static str,
    /// What the name in Content-Disposition decodes to.
    name: String,
}

impl Stage {
    async fn new() -> Self {
        Self::with_set(sample(), Gateway::builder().start().await).await
    }

    async fn with_set(set: SampleSet, gateway: Gateway) -> Self {
        gateway.put_chat("c1", &["user:alice"]).await;
        gateway.put_chat("c2", &["user:mallory"]).await;
        gateway.bind_session("turn-1", "c1", "agent:ada").await;
        let agent = gateway.agent("ada").await;
        agent.announce_in("turn-1", &set).await;
        gateway.wait_for_set("c1", &set.identity()).await;
        Self { gateway, agent, set }
    }

    fn alice(&self) -> String {
        self.gateway.reader("user:alice")
    }

    /// The file of this path under each of its URLs.
    fn file(&self, path: &str, escaped: &str, media_type: &'static str) -> Vec<Resource> {
        let file = self.set.file(path);
        let bytes = file.bytes.to_vec();
        let by_path = Resource {
            path: set_file("c1", &self.set, escaped),
            bytes: bytes.clone(),
            media_type,
            name: path.rsplit('/').next().unwrap().to_owned(),
        };
        let by_hash = by_hash(&file.sha256, &bytes, "application/octet-stream");
        std::iter::once(by_path).chain(by_hash).collect()
    }

    fn resources(&self) -> Vec<Resource> {
        let manifest = self.set.canonical();
        let identity = self.set.identity();
        let by_set = Resource {
            path: format!("/v1/chats/c1/sets/{identity}"),
            bytes: manifest.clone(),
            media_type: MANIFEST_TYPE,
            name: format!("{identity}.json"),
        };
        let mut all = self.file(&format!("a b/{NAME}"), "a%20b/r%C3%A9sum%C3%A9%20%22x%22%3B%C3%9F.txt", "text/html");
        all.extend(self.file("plain.bin", "plain.bin", "application/octet-stream"));
        all.push(by_set);
        all.extend(by_hash(&identity, &manifest, MANIFEST_TYPE));
        all
    }

    async fn send(&self, http2: bool, request: Request<Full<Bytes>>) -> Download {
        let client = if http2 { self.gateway.client().http2() } else { self.gateway.client() };
        client.send(request).await
    }

    async fn ask(&self, http2: bool, method: &Method, path: &str, headers: &[(&str, String)]) -> Answer {
        let mut request = self.gateway.request(method.clone(), path, &self.alice(), None);
        add(&mut request, headers);
        Answer::of(self.send(http2, request).await).await
    }

    async fn get(&self, path: &str, headers: &[(&str, String)]) -> Answer {
        self.ask(false, &Method::GET, path, headers).await
    }
}

fn sample() -> SampleSet {
    let files =
        [(format!("a b/{NAME}"), bytes(1, LENGTH)), ("plain.bin".into(), bytes(2, 70_001)), ("empty".into(), vec![])];
    let mut set = SampleSet::of(files).chunked(CHUNK);
    set.manifest["entries"][0]["mediaType"] = "text/html".into();
    set
}

fn by_hash(hash: &str, bytes: &[u8], media_type: &'static str) -> impl Iterator<Item = Resource> {
    let paths = [
        format!("/artifacts/blobs/sha256:{hash}"),
        format!("/agents/ada/artifacts/blobs/sha256:{hash}"),
        format!("/api/blob/cas/{hash}"),
    ];
    paths.map(|path| Resource { path, bytes: bytes.to_vec(), media_type, name: hash.to_owned() }).into_iter()
}

fn add(request: &mut Request<Full<Bytes>>, headers: &[(&str, String)]) {
    for (name, value) in headers {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        request.headers_mut().append(name.parse::<HeaderName>().unwrap(), value);
    }
}

/// A whole answer, its body whether or not it should have one.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    async fn of(mut answer: Download) -> Self {
        let (body, end) = answer.rest().await;
        end.expect("the answer is cut");
        Self { status: answer.status, headers: answer.headers.clone(), body }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn code(&self) -> String {
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        json["error"]["code"].as_str().unwrap().to_owned()
    }

    /// Everything that two answers to different requests may be told apart by.
    fn visible(mut self) -> Self {
        self.headers.remove("date").unwrap();
        self.headers.remove("x-request-id").unwrap();
        self
    }

    fn text(self) -> String {
        let visible = self.visible();
        let mut lines: Vec<_> =
            visible.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        format!("{}\n{}", visible.status, lines.join("\n"))
    }
}

/// What a GET is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expected {
    Whole,
    Part(usize, usize),
    Unsatisfiable,
    NotModified,
    Failed,
}

/// The requests, for a representation of this length and tag.
fn cases(length: usize, etag: &str) -> Vec<(Vec<(&'static str, String)>, Expected)> {
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

/// The name that a reader which knows RFC 8187 saves the file under.
fn decoded_name(disposition: &str) -> String {
    assert!(disposition.starts_with("attachment; filename=\""), "{disposition}");
    let (_, extended) = disposition.split_once("; filename*=UTF-8''").unwrap_or_else(|| panic!("{disposition}"));
    assert!(extended.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&+-.^_`|~".contains(&b)), "{disposition}");
    percent_encoding::percent_decode_str(extended).decode_utf8().unwrap().into_owned()
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
        (chunked, Some("bytes=1-".to_owned()), "chunks"),
        (chunked, Some(format!("bytes=0-{one}")), "chunks"),
        (chunked, Some("bytes=1-2".to_owned()), "none"),
        (chunked, Some(format!("bytes=1-{}", two - 2)), "none"),
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
async fn unknown_and_foreign_are_one_404() {
    let stage = Stage::new().await;
    let (alice, mallory, operator) = (stage.alice(), stage.gateway.reader("user:mallory"), stage.gateway.operator());
    let (set, other) = (stage.set.identity(), sha256(b"other"));
    let blob = stage.set.file("plain.bin").sha256.clone();
    let mut requests = vec![
        (format!("/v1/chats/none/sets/{set}"), &alice),
        (format!("/v1/chats/c1/sets/{other}"), &alice),
        (format!("/v1/chats/c2/sets/{set}"), &alice),
        (format!("/v1/chats/c1/sets/{}", set.to_uppercase()), &alice),
        ("/v1/chats/c1/sets/nonsense".to_owned(), &alice),
        (format!("/v1/chats/c1/sets/{set}"), &mallory),
        (format!("/v1/chats/c2/sets/{set}"), &mallory),
        (format!("/v1/chats/c1/sets/{set}"), &operator),
        (format!("/v1/chats/c1/sets/{set}/files/plain.bin"), &mallory),
        (format!("/v1/chats/c2/sets/{set}/files/plain.bin"), &mallory),
        (format!("/v1/chats/c1/sets/{set}/files/plain.bin"), &operator),
        (format!("/v1/chats/c1/sets/{other}/files/plain.bin"), &alice),
        (format!("/v1/chats/none/sets/{set}/files/plain.bin"), &alice),
        (format!("/agents/nobody/artifacts/blobs/sha256:{blob}"), &alice),
        (format!("/agents/a%20b/artifacts/blobs/sha256:{blob}"), &alice),
        ("/artifacts/blobs/nonsense".to_owned(), &alice),
        (format!("/artifacts/blobs/{blob}"), &alice),
        (format!("/artifacts/blobs/sha512:{blob}"), &alice),
        ("/api/blob/cas/nonsense".to_owned(), &alice),
    ];
    for path in [
        "none",
        "PLAIN.BIN",
        "plain.bin/",
        "./plain.bin",
        "x/../plain.bin",
        "../../etc/passwd",
        "%2e%2e%2fa",
        "%00",
        "%FF",
    ] {
        requests.push((format!("/v1/chats/c1/sets/{set}/files/{path}"), &alice));
    }
    for prefix in ["/artifacts/blobs/sha256:", "/agents/ada/artifacts/blobs/sha256:", "/api/blob/cas/"] {
        requests.push((format!("{prefix}{other}"), &alice));
        requests.push((format!("{prefix}{other}"), &mallory));
        for known in [&blob, &set] {
            requests.push((format!("{prefix}{known}"), &mallory));
            requests.push((format!("{prefix}{known}"), &operator));
        }
    }
    for method in [Method::GET, Method::HEAD] {
        let mut first: Option<Answer> = None;
        for (path, token) in &requests {
            // What exists is decided before ranges and preconditions.
            for headers in [vec![], vec![("range", "bytes=99999999-".to_owned()), ("if-match", "\"a\"".to_owned())]] {
                let mut request = stage.gateway.request(method.clone(), path, token, None);
                add(&mut request, &headers);
                let answer = Answer::of(stage.send(false, request).await).await.visible();
                assert_eq!(answer.status, 404, "{path}");
                assert_eq!(&answer, first.get_or_insert(answer_like(&answer)), "{method} {path}");
            }
        }
    }
    assert_eq!(stage.agent.reads().len(), 0);
}

fn answer_like(answer: &Answer) -> Answer {
    Answer { status: answer.status, headers: answer.headers.clone(), body: answer.body.clone() }
}

#[tokio::test]
async fn a_method_is_refused_by_its_route_and_a_stranger_by_its_lack_of_credential() {
    let stage = Stage::new().await;
    let alice = stage.alice();
    let (set, blob, other) = (stage.set.identity(), stage.set.file("plain.bin").sha256.clone(), sha256(b"other"));
    let routes = [
        [format!("/v1/chats/c1/sets/{set}"), format!("/v1/chats/none/sets/{other}")],
        [format!("/v1/chats/c1/sets/{set}/files/plain.bin"), format!("/v1/chats/none/sets/{other}/files/x")],
        [format!("/artifacts/blobs/sha256:{blob}"), format!("/artifacts/blobs/sha256:{other}")],
        [format!("/agents/ada/artifacts/blobs/sha256:{blob}"), format!("/agents/x/artifacts/blobs/sha256:{other}")],
        [format!("/api/blob/cas/{blob}"), "/api/blob/cas/x".to_owned()],
    ];
    for paths in &routes {
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS] {
            let mut answers = Vec::new();
            for (path, token) in paths.iter().flat_map(|path| [(path, alice.as_str()), (path, ""), (path, "nonsense")])
            {
                let request = stage.gateway.request(method.clone(), path, token, None);
                answers.push(Answer::of(stage.send(false, request).await).await.visible());
            }
            assert_eq!((answers[0].status.as_u16(), answers[0].code().as_str()), (405, "method_not_allowed"));
            assert_eq!(answers[0].header("accept-ranges"), Some("bytes"), "{paths:?}");
            assert!(answers[0].header("allow").unwrap().contains("GET"));
            assert!(answers.iter().all(|answer| *answer == answers[0]), "{method} {paths:?}");
        }
        for (token, challenge) in [("", "Bearer"), ("nonsense", "Bearer error=\"invalid_token\"")] {
            let mut answers = Vec::new();
            for path in paths {
                let request = stage.gateway.request(Method::GET, path, token, None);
                answers.push(Answer::of(stage.send(false, request).await).await.visible());
            }
            assert_eq!((answers[0].status.as_u16(), answers[0].code().as_str()), (401, "unauthorized"));
            assert_eq!(answers[0].header("www-authenticate"), Some(challenge));
            assert_eq!(answers[0].header("accept-ranges"), Some("bytes"));
            assert_eq!(answers[0], answers[1], "{paths:?}");
        }
    }
}

#[tokio::test]
async fn a_task_that_is_named_must_be_the_sets() {
    for required in [false, true] {
        let gateway = Gateway::builder().with(|layer| layer.require_task = Some(required)).start().await;
        let set = SampleSet::of([("a.bin", bytes(1, 100))]).task("task-7");
        let stage = Stage::with_set(set, gateway).await;
        let free = SampleSet::of([("b.bin", bytes(2, 100))]);
        stage.agent.announce_in("turn-1", &free).await;
        stage.gateway.wait_for_set("c1", &free.identity()).await;
        let without = if required { (403, "task_required") } else { (200, "") };
        for (set, task, expected) in [
            (&stage.set, None, without),
            (&stage.set, Some("task-7"), (200, "")),
            (&stage.set, Some("task-8"), (403, "task_mismatch")),
            (&stage.set, Some(""), (403, "task_mismatch")),
            (&free, None, (200, "")),
            (&free, Some("task-8"), (403, "task_mismatch")),
        ] {
            let names = [(set.files[0].sha256.clone(), set.files[0].bytes.to_vec()), (set.identity(), set.canonical())];
            for (hash, bytes) in names {
                for resource in by_hash(&hash, &bytes, "") {
                    let headers: Vec<_> = task.iter().map(|task| ("artifact-task", (*task).to_owned())).collect();
                    let answer = stage.get(&resource.path, &headers).await;
                    let what = format!("{required} {task:?} {}", resource.path);
                    let code = if answer.status == 200 { String::new() } else { answer.code() };
                    assert_eq!((answer.status.as_u16(), code.as_str()), expected, "{what}");
                    assert_eq!(answer.header("accept-ranges"), Some("bytes"), "{what}");
                    // A stranger is told nothing of tasks.
                    let mallory = stage.gateway.reader("user:mallory");
                    let mut request = stage.gateway.request(Method::GET, &resource.path, &mallory, None);
                    add(&mut request, &headers);
                    assert_eq!(stage.send(false, request).await.status, 404, "{what}");
                }
            }
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

#[tokio::test]
async fn a_file_is_gone_with_its_chat() {
    let stage = Stage::new().await;
    let paths: Vec<_> = stage.resources().into_iter().map(|resource| resource.path).collect();
    assert_eq!(stage.get(&paths[0], &[]).await.status, 200);
    stage.gateway.operate(Method::DELETE, "/v1/chats/c1", None).await;
    for path in paths {
        assert_eq!(stage.get(&path, &[]).await.status, 404, "{path}");
    }
    eventually("the last transfer's end", async || stage.gateway.state().transfers.running().is_empty().then_some(()))
        .await;
}
