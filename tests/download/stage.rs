//! A gateway with one set, everything that it serves of it, and answers that are read to their end.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;

use crate::support::{Agent, Download, Gateway, SampleSet, bytes, set_file};

pub const CHUNK: usize = 256 * 1024;
/// Three chunks, the last of them three bytes.
pub const LENGTH: usize = 2 * CHUNK + 3;
pub const NAME: &str = "résumé \"x\";ß.txt";
pub const MANIFEST_TYPE: &str = "application/vnd.webagents.artifact-set+json";

/// A gateway, an agent with a set in chat `c1`, alice who takes part there, and mallory who takes part elsewhere.
pub struct Stage {
    pub gateway: Gateway,
    pub agent: Agent,
    pub set: SampleSet,
}

/// One representation under one URL.
pub struct Resource {
    pub path: String,
    pub bytes: Vec<u8>,
    pub media_type: &'static str,
    /// What the name in Content-Disposition decodes to.
    pub name: String,
}

impl Stage {
    pub async fn new() -> Self {
        Self::with_set(sample(), Gateway::builder().start().await).await
    }

    pub async fn with_set(set: SampleSet, gateway: Gateway) -> Self {
        gateway.put_chat("c1", &["user:alice"]).await;
        gateway.put_chat("c2", &["user:mallory"]).await;
        gateway.bind_session("turn-1", "c1", "agent:ada").await;
        let agent = gateway.agent("ada").await;
        agent.announce_in("turn-1", &set).await;
        gateway.wait_for_set("c1", &set.identity()).await;
        Self { gateway, agent, set }
    }

    pub fn alice(&self) -> String {
        self.gateway.reader("user:alice")
    }

    /// The file of this path under each of its URLs.
    pub fn file(&self, path: &str, escaped: &str, media_type: &'static str) -> Vec<Resource> {
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

    pub fn resources(&self) -> Vec<Resource> {
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

    pub async fn send(&self, http2: bool, request: Request<Full<Bytes>>) -> Download {
        let client = if http2 { self.gateway.client().http2() } else { self.gateway.client() };
        client.send(request).await
    }

    pub async fn ask(&self, http2: bool, method: &Method, path: &str, headers: &[(&str, String)]) -> Answer {
        let mut request = self.gateway.request(method.clone(), path, &self.alice(), None);
        add(&mut request, headers);
        Answer::of(self.send(http2, request).await).await
    }

    pub async fn get(&self, path: &str, headers: &[(&str, String)]) -> Answer {
        self.ask(false, &Method::GET, path, headers).await
    }
}

pub fn sample() -> SampleSet {
    let files =
        [(format!("a b/{NAME}"), bytes(1, LENGTH)), ("plain.bin".into(), bytes(2, 70_001)), ("empty".into(), vec![])];
    let mut set = SampleSet::of(files).chunked(CHUNK);
    set.manifest["entries"][0]["mediaType"] = "text/html".into();
    set
}

pub fn by_hash(hash: &str, bytes: &[u8], media_type: &'static str) -> impl Iterator<Item = Resource> {
    let paths = [
        format!("/artifacts/blobs/sha256:{hash}"),
        format!("/agents/ada/artifacts/blobs/sha256:{hash}"),
        format!("/api/blob/cas/{hash}"),
    ];
    paths.map(|path| Resource { path, bytes: bytes.to_vec(), media_type, name: hash.to_owned() }).into_iter()
}

pub fn add(request: &mut Request<Full<Bytes>>, headers: &[(&str, String)]) {
    for (name, value) in headers {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        request.headers_mut().append(name.parse::<HeaderName>().unwrap(), value);
    }
}

/// A whole answer, its body whether or not it should have one.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub async fn of(mut answer: Download) -> Self {
        let (body, end) = answer.rest().await;
        end.expect("the answer is cut");
        Self { status: answer.status, headers: answer.headers.clone(), body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn code(&self) -> String {
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        json["error"]["code"].as_str().unwrap().to_owned()
    }

    /// Everything that two answers to different requests may be told apart by.
    pub fn visible(mut self) -> Self {
        self.headers.remove("date").unwrap();
        self.headers.remove("x-request-id").unwrap();
        self
    }

    pub fn text(self) -> String {
        let visible = self.visible();
        let mut lines: Vec<_> =
            visible.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        format!("{}\n{}", visible.status, lines.join("\n"))
    }
}

/// The name that a reader which knows RFC 8187 saves the file under.
pub fn decoded_name(disposition: &str) -> String {
    assert!(disposition.starts_with("attachment; filename=\""), "{disposition}");
    let (_, extended) = disposition.split_once("; filename*=UTF-8''").unwrap_or_else(|| panic!("{disposition}"));
    assert!(extended.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&+-.^_`|~".contains(&b)), "{disposition}");
    percent_encoding::percent_decode_str(extended).decode_utf8().unwrap().into_owned()
}
