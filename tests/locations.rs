//! Bytes from places that an announcement names: asked in order, each held against what it should be.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

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
use http::header::{AUTHORIZATION, CONTENT_RANGE, LOCATION, RANGE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use support::{Agent, Gateway, Origin, SampleSet, bytes, eventually, set_file};

const CHUNK: usize = 256 * 1024;
const LENGTH: usize = 3 * CHUNK + 5;

/// What a place does with the blob it has.
#[derive(Clone, Copy, Default)]
struct Manners {
    /// Answers 200 with everything, whatever range is asked.
    ignores_ranges: bool,
    /// Names another blob's hash.
    wrong_digest: bool,
    /// A byte of what it sends is another.
    lies: bool,
    /// Hangs up after so many bytes.
    stops_after: Option<usize>,
    /// Answers so once before it serves.
    first: Option<StatusCode>,
}

/// A place that has one blob, and remembers who asked for it how.
#[derive(Clone)]
struct Place {
    blob: Arc<Vec<u8>>,
    manners: Manners,
    seen: Arc<Mutex<Vec<(String, HeaderMap)>>>,
}

impl Place {
    fn of(blob: &[u8], manners: Manners) -> Self {
        Self { blob: Arc::new(blob.to_vec()), manners, seen: Arc::default() }
    }

    async fn start(&self) -> Origin {
        let place = self.clone();
        Origin::http(Router::new().fallback(async move |request: Request| place.answer(&request))).await
    }

    fn seen(&self) -> Vec<HeaderMap> {
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
        let named = if self.manners.wrong_digest { support::sha256(b"other") } else { support::sha256(&self.blob) };
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
struct Stage {
    gateway: Gateway,
    agent: Agent,
    set: SampleSet,
}

fn blob() -> Vec<u8> {
    bytes(1, LENGTH)
}

fn sample() -> SampleSet {
    SampleSet::of([("a.bin", blob())]).chunked(CHUNK)
}

async fn gateway() -> Gateway {
    Gateway::builder().with(|layer| layer.allow_hosts = Some(vec!["127.0.0.1".parse().unwrap()])).start().await
}

async fn is_gone(gateway: &Gateway) {
    let ada = "agent:ada".parse().unwrap();
    let is_gone = async || (!gateway.state().agents.registry.is_online(&ada)).then_some(());
    eventually("ada gone", is_gone).await;
}

impl Stage {
    async fn new(mut set: SampleSet, locations: Value) -> Self {
        let gateway = gateway().await;
        set.manifest["locations"] = locations;
        Self::on(gateway, set).await
    }

    async fn on(gateway: Gateway, set: SampleSet) -> Self {
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

    fn path(&self) -> String {
        set_file("c1", &self.set, "a.bin")
    }

    fn alice(&self) -> String {
        self.gateway.reader("user:alice")
    }

    async fn get(&self) -> support::Answer {
        self.gateway.get(&self.path(), &self.alice()).await
    }

    async fn range(&self, range: &str) -> support::Answer {
        self.gateway.download_range(&self.path(), &self.alice(), range).await.whole().await
    }

    fn outcome(&self, kind: &str, outcome: &str) -> f64 {
        self.gateway.metric(&format!("sluice_locations_total{{kind=\"{kind}\",outcome=\"{outcome}\"}}"))
    }
}

fn at(kind: &str, origin: &Origin) -> Value {
    json!({ "kind": kind, "url": origin.url(&format!("/artifacts/blobs/sha256:{}", support::sha256(&blob()))) })
}

#[tokio::test]
async fn a_producers_endpoint_is_asked_in_the_gateways_name() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let stage = Stage::new(sample().task("task-7"), json!([at("https", &origin)])).await;
    let whole = stage.get().await;
    assert_eq!((whole.status, whole.header("sluice-verified")), (StatusCode::OK, "full"));
    assert_eq!(whole.body, blob());
    let part = stage.range("bytes=300000-300009").await;
    assert_eq!((part.status, &part.body[..]), (StatusCode::PARTIAL_CONTENT, &blob()[300_000..300_010]));
    let seen = place.seen();
    assert_eq!((seen[0].get("range"), &seen[1]["range"]), (None, &"bytes=300000-300009".parse().unwrap()));
    for headers in &seen {
        assert_eq!(headers["artifact-task"], "task-7");
        let input = headers["signature-input"].to_str().unwrap();
        assert!(input.contains("\"artifact-task\" \"signature-agent\";key=\"sig1\""), "{input}");
        let agent = format!("sig1=\"{}/.well-known/jwks.json\";type=jwks_uri", stage.gateway.url);
        assert_eq!(headers["signature-agent"], agent);
        assert!(headers.get(AUTHORIZATION).is_none() && headers.get("cookie").is_none());
    }
    assert_eq!(stage.outcome("https", "answered"), 2.0);
}

#[tokio::test]
async fn what_is_not_the_blob_is_passed_over_before_a_byte_of_it_is_used() {
    let manners = [
        Manners { wrong_digest: true, ..Manners::default() },
        Manners { ignores_ranges: true, ..Manners::default() },
        Manners { first: Some(StatusCode::FORBIDDEN), ..Manners::default() },
        Manners::default(),
    ];
    let places = manners.map(|manners| Place::of(&blob(), manners));
    let mut origins = Vec::new();
    for place in &places {
        origins.push(place.start().await);
    }
    let locations: Vec<_> = origins.iter().map(|origin| at("https", origin)).collect();
    let stage = Stage::new(sample(), json!(locations)).await;
    let part = stage.range("bytes=262144-524287").await;
    assert_eq!((part.status, part.header("sluice-verified")), (StatusCode::PARTIAL_CONTENT, "full"));
    assert_eq!(part.body, &blob()[CHUNK..2 * CHUNK]);
    assert_eq!((stage.outcome("https", "wrong"), stage.outcome("https", "denied")), (2.0, 1.0));
    // A whole file may come from a server that knows no ranges.
    assert_eq!(stage.get().await.body, blob());
    assert_eq!(places[1].seen().len(), 2);
}

#[tokio::test]
async fn a_transfer_that_loses_a_place_carries_on_from_the_next() {
    // Without a chunk list only the whole file's hash can tell, over what came from both.
    let stops = Manners { stops_after: Some(500_000), ..Manners::default() };
    let (first, second) = (Place::of(&blob(), stops), Place::of(&blob(), Manners::default()));
    let (one, other) = (first.start().await, second.start().await);
    let set = SampleSet::of([("a.bin", blob())]);
    let stage = Stage::new(set, json!([at("s3", &one), at("https", &other)])).await;
    let whole = stage.get().await;
    assert_eq!((whole.status, whole.header("sluice-verified")), (StatusCode::OK, "full"));
    assert_eq!(whole.body, blob());
    let resumed: Vec<_> =
        first.seen().iter().chain(&second.seen()).filter_map(|seen| seen.get(RANGE).cloned()).collect();
    assert_eq!(resumed[0], format!("bytes=500000-{}", LENGTH - 1));
}

#[tokio::test]
async fn a_place_that_is_busy_is_asked_again_when_it_said() {
    let busy = Manners { first: Some(StatusCode::SERVICE_UNAVAILABLE), ..Manners::default() };
    let place = Place::of(&blob(), busy);
    let origin = place.start().await;
    let stage = Stage::new(sample(), json!([at("https", &origin)])).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(stage.get().await.body, blob());
    assert!(begun.elapsed().as_millis() >= 950, "{:?}", begun.elapsed());
    assert_eq!(place.seen().len(), 2);
    // Where somebody else has it, nobody waits.
    let (place, idle) = (Place::of(&blob(), busy), Place::of(&blob(), Manners::default()));
    let (origin, other) = (place.start().await, idle.start().await);
    let stage = Stage::new(sample(), json!([at("https", &origin), at("https", &other)])).await;
    assert_eq!(stage.get().await.body, blob());
    assert_eq!((place.seen().len(), idle.seen().len()), (1, 1));
}

#[tokio::test]
async fn a_presigned_url_is_asked_for_as_it_is() {
    let (expired, good) = (
        Place::of(&blob(), Manners { first: Some(StatusCode::FORBIDDEN), ..Manners::default() }),
        Place::of(&blob(), Manners::default()),
    );
    let (one, other) = (expired.start().await, good.start().await);
    let presigned =
        |origin: &Origin| json!({ "kind": "s3", "url": origin.url("/bucket/it?X-Amz-Signature=s%2Fs&x=1") });
    let stage = Stage::new(sample().task("t"), json!([presigned(&one), presigned(&other)])).await;
    assert_eq!(stage.range("bytes=0-9").await.body, &blob()[..10]);
    let seen = good.seen.lock().unwrap();
    assert_eq!(seen[0].0, "/bucket/it?X-Amz-Signature=s%2Fs&x=1");
    for name in ["signature", "signature-input", "signature-agent", "artifact-task", "authorization"] {
        assert!(seen[0].1.get(name).is_none(), "{name}");
    }
}

#[tokio::test]
async fn an_unknown_kind_is_passed_over_by_name() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let other = json!({ "kind": "torrent", "url": "magnet:?xt=x" });
    let stage = Stage::new(sample(), json!([other, at("robutler", &origin)])).await;
    assert_eq!(stage.get().await.body, blob());
    assert_eq!(stage.outcome("other", "location_kind_unsupported"), 1.0);
    assert_eq!(stage.outcome("robutler", "answered"), 1.0);
}

#[tokio::test]
async fn the_agent_comes_in_where_places_fail_and_the_other_way_round() {
    let gone = Place::of(&blob(), Manners { first: Some(StatusCode::NOT_FOUND), ..Manners::default() });
    let origin = gone.start().await;
    let mut stage = Stage::new(sample(), json!([at("https", &origin), { "kind": "relay", "agent": "ada" }])).await;
    stage.agent.reconnect().await;
    assert_eq!(stage.get().await.body, blob());
    assert_eq!((stage.agent.reads().len(), gone.seen().len()), (1, 1));
    stage.agent.cut().await;
    is_gone(&stage.gateway).await;
    assert_eq!(stage.get().await.body, blob(), "the place has it by now");
    // A reader in the middle of a file does not wait for the agent that lost its connection either.
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let mut stage = Stage::new(sample(), json!([{ "kind": "relay", "agent": "ada" }, at("https", &origin)])).await;
    stage.agent.behave(support::Behaviour::obedient().at(CHUNK as u64, support::Fault::Stall));
    stage.agent.reconnect().await;
    let mut download = stage.gateway.download(&stage.path(), &stage.alice()).await;
    assert!(!download.read(1000).await.is_empty());
    stage.agent.cut().await;
    let (rest, end) = download.rest().await;
    end.unwrap();
    assert_eq!(rest.len() + 1000, LENGTH);
    assert_eq!(place.seen().len(), 1);
}

#[tokio::test]
async fn a_place_that_lies_is_found_out() {
    let liar = Place::of(&blob(), Manners { lies: true, ..Manners::default() });
    let origin = liar.start().await;
    let stage = Stage::new(sample(), json!([at("https", &origin)])).await;
    let mut whole = stage.gateway.download(&stage.path(), &stage.alice()).await;
    let (sent, end) = whole.rest().await;
    assert!(end.is_err() || whole.status == StatusCode::BAD_GATEWAY);
    assert!(sent.len() < CHUNK, "a chunk with a wrong byte is not released whole");
    assert_eq!(stage.gateway.metric("sluice_hash_mismatches_total"), 1.0);
}

#[tokio::test]
async fn private_places_are_closed_unless_they_are_named() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let mut set = sample();
    set.manifest["locations"] = json!([at("https", &origin), at("s3", &origin)]);
    let stage = Stage::on(Gateway::start().await, set).await;
    assert_eq!(stage.get().await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(origin.accepted(), 0);
    assert_eq!((stage.outcome("https", "unreachable"), stage.outcome("s3", "unreachable")), (1.0, 1.0));
}

#[tokio::test]
async fn this_gateways_own_url_grants_nothing() {
    let gateway = gateway().await;
    gateway.put_chat("secret", &["user:bob"]).await;
    gateway.bind_session("turn-0", "secret", "agent:bea").await;
    let bea = gateway.agent("bea").await;
    let secret = sample();
    bea.announce_in("turn-0", &secret).await;
    gateway.wait_for_set("secret", &secret.identity()).await;
    let path = set_file("secret", &secret, "a.bin");
    assert_eq!(gateway.get(&path, &gateway.reader("user:bob")).await.body, blob());
    // Ada knows the hash, and that bea's agent has it here.
    let hash = &secret.files[0].sha256;
    let mut set = sample();
    set.manifest["producer"]["name"] = json!("ada");
    set.manifest["locations"] = json!([
        { "kind": "robutler", "url": format!("{}/api/blob/cas/{hash}", gateway.url) },
        { "kind": "https", "url": format!("{}/agents/bea/artifacts/blobs/sha256:{hash}", gateway.url) },
        { "kind": "relay", "agent": "bea" },
    ]);
    let stage = Stage::on(gateway, set).await;
    assert_eq!(stage.get().await.status, StatusCode::BAD_GATEWAY);
    assert_eq!((stage.outcome("robutler", "own"), stage.outcome("https", "own")), (1.0, 1.0));
    assert_eq!(bea.reads().len(), 1, "only bob's");
}

#[tokio::test]
async fn two_gateways_do_not_ask_in_circles() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let stage = Stage::new(sample(), json!([at("https", &origin)])).await;
    let mut request = stage.gateway.request(http::Method::GET, &stage.path(), &stage.alice(), None);
    let asked = stage.get().await;
    assert_eq!(asked.status, StatusCode::OK);
    request.headers_mut().insert("via", place.seen()[0]["via"].clone());
    let answer = stage.gateway.client().send(request).await.whole().await;
    assert_eq!((answer.status, place.seen().len()), (StatusCode::NOT_FOUND, 1));
}

/// A registry as the distribution specification has it: a token for whoever asks, and blobs kept elsewhere.
struct Registry {
    registry: Origin,
    store: Origin,
    kept: Place,
    asked: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    token: Arc<Mutex<String>>,
}

impl Registry {
    async fn start() -> Self {
        let kept = Place::of(&blob(), Manners::default());
        let store = kept.start().await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let token = Arc::new(Mutex::new("t0k3n".to_owned()));
        let current = token.clone();
        let (seen, there) = (asked.clone(), store.url("/kept?signature=s"));
        let router = Router::new().fallback(async move |request: Request| {
            let (uri, headers) = (request.uri().clone(), request.headers().clone());
            seen.lock().unwrap().push((uri.to_string(), headers.clone()));
            let token = current.lock().unwrap().clone();
            if uri.path() == "/token" {
                return axum::Json(json!({ "token": token, "expires_in": 60 })).into_response();
            }
            if headers.get(AUTHORIZATION).is_none_or(|value| *value != format!("Bearer {token}")) {
                let host = headers["host"].to_str().unwrap();
                let challenge = format!(
                    "Bearer realm=\"http://{host}/token\",service=\"reg\",scope=\"repository:team/files:pull\""
                );
                return (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, challenge)]).into_response();
            }
            (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, there.clone())]).into_response()
        });
        Self { registry: Origin::http(router).await, store, kept, asked, token }
    }
}

#[tokio::test]
async fn a_registry_is_asked_with_a_token_that_stays_there() {
    let registry = Registry::start().await;
    let reference = format!("{}/team/files:latest", registry.registry.address);
    let stage = Stage::new(sample().task("t"), json!([{ "kind": "oci", "ref": reference }])).await;
    assert_eq!(stage.range("bytes=10-19").await.body, &blob()[10..20]);
    let asked = registry.asked.lock().unwrap();
    let uris: Vec<_> = asked.iter().map(|(uri, _)| uri.as_str()).collect();
    let blob_path = format!("/v2/team/files/blobs/sha256:{}", stage.set.files[0].sha256);
    assert_eq!(uris, [&blob_path, "/token?service=reg&scope=repository%3Ateam%2Ffiles%3Apull", &blob_path]);
    let seen = registry.kept.seen();
    assert_eq!((seen.len(), registry.store.accepted()), (1, 1));
    assert!(seen[0].get(AUTHORIZATION).is_none(), "credentials stay with the registry");
    assert_eq!(seen[0][RANGE], "bytes=10-19");
    assert!(asked.iter().all(|(_, headers)| headers.get("signature").is_none()));
}

#[tokio::test]
async fn a_registrys_token_is_used_again_for_the_same_agent_only() {
    let registry = Registry::start().await;
    let reference = format!("{}/team/files:latest", registry.registry.address);
    let stage = Stage::new(sample(), json!([{ "kind": "oci", "ref": reference }])).await;
    let tokens = || registry.asked.lock().unwrap().iter().filter(|(uri, _)| uri.starts_with("/token")).count();
    for range in ["bytes=10-19", "bytes=0-0", "bytes=100-300"] {
        assert_eq!(stage.range(range).await.status, StatusCode::PARTIAL_CONTENT);
    }
    assert_eq!((tokens(), registry.asked.lock().unwrap().len()), (1, 5), "one round for a token, and the blobs");
    // One that is not taken any more is asked for anew.
    *registry.token.lock().unwrap() = "another".to_owned();
    for range in ["bytes=10-19", "bytes=0-0"] {
        assert_eq!(stage.range(range).await.status, StatusCode::PARTIAL_CONTENT);
    }
    assert_eq!(tokens(), 2);
    // Another agent that names the same place has to ask for its own.
    let gateway = &stage.gateway;
    gateway.put_chat("of-bob", &["user:bob"]).await;
    gateway.bind_session("of-bob", "of-bob", "agent:bob").await;
    let bob = gateway.agent("bob").await;
    let mut set = sample();
    set.manifest["locations"] = json!([{ "kind": "oci", "ref": reference }]);
    bob.announce_in("of-bob", &set).await;
    gateway.wait_for_set("of-bob", &set.identity()).await;
    let path = set_file("of-bob", &set, "a.bin");
    let download = gateway.download_range(&path, &gateway.reader("user:bob"), "bytes=0-9").await;
    assert_eq!(download.status, StatusCode::PARTIAL_CONTENT);
    assert_eq!(tokens(), 3);
}

#[tokio::test]
async fn redirects_of_a_registry_end_and_are_checked() {
    let round = Origin::http(Router::new().fallback(async |request: Request| {
        (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, request.uri().path().to_owned())])
    }))
    .await;
    let inner =
        Origin::http(Router::new().fallback(async || {
            (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, "http://169.254.169.254/latest/meta-data")])
        }))
        .await;
    let reference = |origin: &Origin| json!({ "kind": "oci", "ref": format!("{}/a", origin.address) });
    let stage = Stage::new(sample(), json!([reference(&round), reference(&inner)])).await;
    assert!(stage.get().await.status.is_server_error() || stage.get().await.status == StatusCode::GONE);
    assert_eq!(round.accepted() % 4, 0, "three hops, and no more");
    assert!(stage.outcome("oci", "unreachable") >= 1.0);
}

#[tokio::test]
async fn a_url_that_does_not_name_the_blob_is_not_asked_in_the_gateways_name() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let hash = support::sha256(&blob());
    for path in ["/private/report".to_owned(), format!("/artifacts/blobs/sha256:{hash}?and=more")] {
        let stage = Stage::new(sample(), json!([{ "kind": "https", "url": origin.url(&path) }])).await;
        assert_eq!(stage.get().await.status, StatusCode::OK, "{path}");
    }
    let seen = place.seen();
    assert!(seen.len() == 2 && seen.iter().all(|headers| headers.get("signature").is_none()), "{seen:?}");
}

/// What a gateway is asked with, for a set of ada's at this URL; ada is known by its token.
async fn asked_at(gateway: &Gateway, place: &Place, ada: &mut Agent, url: &str) -> HeaderMap {
    let before = place.seen().len();
    let mut set = sample();
    set.manifest["locations"] = json!([{"kind": "https", "url": url}]);
    set.manifest["producer"]["task"] = json!(format!("t{before}"));
    ada.announce_with(&set, |frame| {
        frame["session_id"] = json!("turn-1");
        frame["locations"] = json!([]);
    })
    .await;
    gateway.wait_for_set("c1", &set.identity()).await;
    gateway.get(&set_file("c1", &set, "a.bin"), &gateway.reader("user:alice")).await;
    eventually("a request", async || place.seen().get(before).cloned()).await
}

fn is_signed(headers: &HeaderMap) -> bool {
    headers.contains_key("signature") || headers.contains_key("signature-agent")
}

#[tokio::test]
async fn a_place_of_another_agents_is_not_asked_in_the_gateways_name_however_it_is_spelt() {
    let place = Place::of(&blob(), Manners::default());
    let (origin, alone) = (place.start().await, place.start().await);
    let gateway = gateway().await;
    gateway.put_chat("c1", &["user:alice"]).await;
    gateway.bind_session("turn-1", "c1", "agent:ada").await;
    let mut ada = gateway.agent("ada").await;
    let name = format!("artifacts/blobs/sha256:{}", support::sha256(&blob()));
    // Nobody else is known there.
    for path in [format!("/{name}"), format!("/any/where/{name}")] {
        assert!(is_signed(&asked_at(&gateway, &place, &mut ada, &alone.url(&path)).await), "{path}");
    }
    for odd in ["/%78/", "//", "/a/..%2f", "/a/%2e%2e/", "/a;b/"] {
        let url = alone.url(&format!("{odd}{name}"));
        assert!(!is_signed(&asked_at(&gateway, &place, &mut ada, &url).await), "{odd}");
    }
    // An agent that is known by its URL.
    let owner = origin.url("/agents/x");
    let _owner = Agent::connect(&gateway.url, &gateway.agent_token(&owner, "owner"), "owner").await;
    for path in [
        "/agents/x",
        "/agents/%78",
        "/agents//x",
        "//agents/x",
        "/agents/y/..%2fx",
        "/agents/y/..%5cx",
        "/agents/x/.",
        "/agents/y/%2e%2e/x",
        "/agents/y/../x",
        "/AGENTS/x",
        "/agents/x;y",
        "/agents/y",
        "/a/b/c/d/e/f/g/h/i/j/x",
        "",
    ] {
        let url = origin.url(&format!("{path}/{name}"));
        assert!(!is_signed(&asked_at(&gateway, &place, &mut ada, &url).await), "{path}");
    }
    // Another agent that is known by its token, and has announced something there before.
    let bob = gateway.agent("bob").await;
    gateway.bind_session("turn-2", "c1", "agent:bob").await;
    let mut set = SampleSet::of([("b.bin", b"b".to_vec())]);
    set.manifest["locations"] = json!([{"kind": "https", "url": alone.url("/")}]);
    bob.announce_in("turn-2", &set).await;
    gateway.wait_for_set("c1", &set.identity()).await;
    assert!(!is_signed(&asked_at(&gateway, &place, &mut ada, &alone.url(&format!("/more/{name}"))).await));
}

#[tokio::test]
async fn a_task_that_servers_may_read_in_two_ways_is_not_sent() {
    let place = Place::of(&blob(), Manners::default());
    let origin = place.start().await;
    let mut set = sample();
    set.manifest["producer"]["task"] = json!("Aufgabe für Ärzte");
    let stage = Stage::new(set, json!([at("https", &origin)])).await;
    assert_eq!(stage.gateway.get(&stage.path(), &stage.alice()).await.body, blob());
    assert!(place.seen()[0].get("artifact-task").is_none());
}

#[tokio::test]
async fn a_reader_that_leaves_ends_the_fetch() {
    let (told, closed) = tokio::sync::oneshot::channel::<()>();
    let told = Arc::new(Mutex::new(Some(told)));
    let length = 64 << 20;
    let router = Router::new().fallback(async move || {
        let told = told.lock().unwrap().take();
        let endless = stream::repeat_with(move || {
            let _ = &told;
            Ok::<_, io::Error>(Bytes::from(vec![0; 64 * 1024]))
        });
        ([("content-length", length.to_string())], Body::from_stream(endless))
    });
    let origin = Origin::http(router).await;
    let mut set = SampleSet::of([("a.bin", b"x".to_vec())]);
    set.manifest["entries"][0]["size"] = json!(length);
    let stage = Stage::new(set, json!([at("https", &origin)])).await;
    let mut download = stage.gateway.download(&stage.path(), &stage.alice()).await;
    assert!(!download.read(1000).await.is_empty());
    drop(download);
    let ended = tokio::time::timeout(support::log::DEADLINE, closed).await;
    ended.unwrap_or_else(|_| panic!("the place was not told")).unwrap_err();
}
