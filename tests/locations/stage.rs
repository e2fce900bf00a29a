//! A gateway whose agent has named places for a file, and places that do as they are told.

use std::io;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_RANGE, RANGE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use crate::support::{Agent, Answer, Gateway, Origin, SampleSet, bytes, eventually, set_file, sha256};

pub const CHUNK: usize = 256 * 1024;
pub const LENGTH: usize = 3 * CHUNK + 5;

/// What a place does with the blob it has.
#[derive(Clone, Copy, Default)]
pub struct Manners {
    /// Answers 200 with everything, whatever range is asked.
    pub ignores_ranges: bool,
    /// Names another blob's hash.
    pub wrong_digest: bool,
    /// A byte of what it sends is another.
    pub lies: bool,
    /// Hangs up after so many bytes.
    pub stops_after: Option<usize>,
    /// Answers so once before it serves.
    pub first: Option<StatusCode>,
}

/// A place that has one blob, and remembers who asked for it how.
#[derive(Clone)]
pub struct Place {
    blob: Arc<Vec<u8>>,
    manners: Manners,
    pub seen: Arc<Mutex<Vec<(String, HeaderMap)>>>,
}

impl Place {
    pub fn of(blob: &[u8], manners: Manners) -> Self {
        Self { blob: Arc::new(blob.to_vec()), manners, seen: Arc::default() }
    }

    pub async fn start(&self) -> Origin {
        let place = self.clone();
        Origin::http(Router::new().fallback(async move |request: Request| place.answer(&request))).await
    }

    pub fn seen(&self) -> Vec<HeaderMap> {
        self.seen.lock().unwrap().iter().map(|(_, headers)| headers.clone()).collect()
    }

    fn answer(&self, request: &Request) -> Response {
        let mut seen = self.seen.lock().unwrap();
        seen.push((request.uri().to_string(), request.headers().clone()));
        if let Some(status) = self.manners.first
            && seen.len() == 1
        {
            return (status, [(RETRY_AFTER, "1")]).into_response();
        }
        let asked = request.headers().get(RANGE).filter(|_| !self.manners.ignores_ranges);
        let (status, start, end) = match asked {
            Some(range) => {
                let (start, end) = range.to_str().unwrap().strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                (StatusCode::PARTIAL_CONTENT, start.parse().unwrap(), end.parse::<usize>().unwrap() + 1)
            }
            None => (StatusCode::OK, 0, self.blob.len()),
        };
        let mut part = self.blob[start..end].to_vec();
        if self.manners.lies {
            part[0] ^= 1;
        }
        let length = part.len();
        let named = if self.manners.wrong_digest { sha256(b"other") } else { sha256(&self.blob) };
        let digest = format!("sha-256=:{}:", STANDARD.encode(hex::decode(named).unwrap()));
        let body = match self.manners.stops_after {
            Some(stop) => {
                let sent = Bytes::from(part[..stop.min(length)].to_vec());
                Body::from_stream(stream::iter([Ok(sent), Err(io::Error::other("gone"))]))
            }
            None => Body::from(part),
        };
        let mut response =
            (status, [("content-length", length.to_string()), ("repr-digest", digest)], body).into_response();
        if asked.is_some() {
            let range = format!("bytes {start}-{}/{}", end - 1, self.blob.len());
            response.headers_mut().insert(CONTENT_RANGE, range.parse().unwrap());
        }
        response
    }
}

/// A gateway whose agent has announced one file at these places, and is gone.
pub struct Stage {
    pub gateway: Gateway,
    pub agent: Agent,
    pub set: SampleSet,
}

pub fn blob() -> Vec<u8> {
    bytes(1, LENGTH)
}

pub fn sample() -> SampleSet {
    SampleSet::of([("a.bin", blob())]).chunked(CHUNK)
}

pub async fn gateway() -> Gateway {
    Gateway::builder().with(|layer| layer.allow_hosts = Some(vec!["127.0.0.1".parse().unwrap()])).start().await
}

pub async fn is_gone(gateway: &Gateway) {
    let ada = "agent:ada".parse().unwrap();
    let is_gone = async || (!gateway.state().agents.registry.is_online(&ada)).then_some(());
    eventually("ada gone", is_gone).await;
}

impl Stage {
    pub async fn new(mut set: SampleSet, locations: Value) -> Self {
        let gateway = gateway().await;
        set.manifest["locations"] = locations;
        Self::on(gateway, set).await
    }

    pub async fn on(gateway: Gateway, set: SampleSet) -> Self {
        gateway.put_chat("c1", &["user:alice"]).await;
        gateway.bind_session("turn-1", "c1", "agent:ada").await;
        let mut agent = gateway.agent("ada").await;
        agent
            .announce_with(&set, |frame| {
                frame["session_id"] = json!("turn-1");
                frame["locations"] = json!([]);
            })
            .await;
        gateway.wait_for_set("c1", &set.identity()).await;
        agent.cut().await;
        is_gone(&gateway).await;
        Self { gateway, agent, set }
    }

    pub fn path(&self) -> String {
        set_file("c1", &self.set, "a.bin")
    }

    pub fn alice(&self) -> String {
        self.gateway.reader("user:alice")
    }

    pub async fn get(&self) -> Answer {
        self.gateway.get(&self.path(), &self.alice()).await
    }

    pub async fn range(&self, range: &str) -> Answer {
        self.gateway.download_range(&self.path(), &self.alice(), range).await.whole().await
    }

    pub fn outcome(&self, kind: &str, outcome: &str) -> f64 {
        self.gateway.metric(&format!("sluice_locations_total{{kind=\"{kind}\",outcome=\"{outcome}\"}}"))
    }
}

pub fn at(kind: &str, origin: &Origin) -> Value {
    json!({ "kind": kind, "url": origin.url(&format!("/artifacts/blobs/sha256:{}", sha256(&blob()))) })
}
