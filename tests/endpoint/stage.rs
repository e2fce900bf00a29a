//! A gateway whose key the test knows, and an agent of its that serves a folder.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Request};
use http_body_util::Full;
use sluice::config::Layer;
use sluice::producer::{AgentEvent, AgentOptions, Backoff, EndpointOptions};

use crate::support::running::{Running, folder};
use crate::support::signer::{Signing, pem};
use crate::support::{Answer, Client, Download, Gateway, bytes, sha256};

/// The seed of the gateway's key.
pub const KEY: u8 = 1;
pub const LENGTH: usize = 600_001;
pub const SESSION: &str = "turn-1";
pub const CHAT: &str = "c1";

/// What the folder's one large file holds.
pub fn large() -> Vec<u8> {
    bytes(1, LENGTH)
}

/// Makes the gateway sign with this seed's key.
pub fn signs_with(layer: &mut Layer, dir: &Path, seed: u8) {
    let path = dir.join(format!("{seed}.key"));
    std::fs::write(&path, pem(seed)).unwrap();
    layer.signing_key_file = Some(path);
}

/// A gateway that fetches from loopback, with alice's chat and the agent's session in it.
pub async fn gateway(dir: &Path) -> Gateway {
    let gateway = Gateway::builder().with(|layer| {
        layer.allow_hosts = Some(vec!["127.0.0.1".parse().unwrap()]);
        signs_with(layer, dir, KEY);
    });
    let gateway = gateway.start().await;
    gateway.put_chat(CHAT, &["user:alice"]).await;
    gateway.bind_session(SESSION, CHAT, "agent:ada").await;
    gateway
}

/// An agent of that gateway's, which dials it at `url`.
pub fn options(gateway: &Gateway, url: &str, dir: &Path) -> AgentOptions {
    AgentOptions {
        session: Some(SESSION.parse().unwrap()),
        backoff: Backoff { first: Duration::from_millis(5), cap: Duration::from_millis(20), ..Backoff::default() },
        confirm_window: Duration::from_millis(50),
        serve: Some(EndpointOptions::new("127.0.0.1:0".parse().unwrap())),
        ..AgentOptions::new(dir, url, gateway.agent_token("ada", "ada"))
    }
}

/// The endpoint's URL, once it is open.
pub async fn serving(agent: &mut Running) -> String {
    match agent.event(|event| matches!(event, AgentEvent::Serving { .. })).await {
        AgentEvent::Serving { url } => url,
        _ => unreachable!(),
    }
}

/// The identity of the set that the agent announced, once it is accepted.
pub async fn accepted(agent: &mut Running) -> String {
    match agent.event(|event| matches!(event, AgentEvent::Accepted { .. })).await {
        AgentEvent::Accepted { sha256 } => sha256.to_hex(),
        _ => unreachable!(),
    }
}

/// All of it.
pub struct Stage {
    pub gateway: Gateway,
    pub agent: Running,
    pub address: SocketAddr,
    /// The announced set.
    pub identity: String,
    _dir: tempfile::TempDir,
    pub keys: tempfile::TempDir,
}

impl Stage {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// With other options of the agent, or of its endpoint.
    pub async fn with(change: impl FnOnce(&mut AgentOptions)) -> Self {
        let dir = folder(&[("large.bin", &large()), ("empty", b"")]);
        let keys = tempfile::tempdir().unwrap();
        let gateway = gateway(keys.path()).await;
        let mut options = options(&gateway, &gateway.url, dir.path());
        change(&mut options);
        let mut agent = Running::start(options);
        let url = serving(&mut agent).await;
        let identity = accepted(&mut agent).await;
        let address = url.strip_prefix("http://").unwrap().parse().unwrap();
        Self { gateway, agent, address, identity, _dir: dir, keys }
    }

    /// A request that the gateway would sign, for changing before it is signed.
    pub fn signing(&self, method: &str, hash: &str) -> Signing {
        Signing::new(&[KEY], &self.gateway.url, method, &self.address.to_string(), &blob(hash))
    }

    /// Asks as the gateway.
    pub async fn ask(&self, method: &str, hash: &str, headers: &[(&str, String)]) -> Download {
        self.send(request(self.address, &self.signing(method, hash), headers)).await
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Download {
        Client::of(self.address).send(request).await
    }

    /// What the answer to a whole request is.
    pub async fn whole(&self, request: Request<Full<Bytes>>) -> Answer {
        self.send(request).await.whole().await
    }
}

/// The path of a blob.
pub fn blob(hash: &str) -> String {
    format!("/artifacts/blobs/sha256:{hash}")
}

/// The large file's path.
pub fn large_blob() -> String {
    blob(&sha256(&large()))
}

/// An unsigned request.
pub fn unsigned(address: SocketAddr, method: &str, path: &str) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(format!("http://{address}{path}")).body(Full::default()).unwrap()
}

/// The request that is signed, with more headers that are not.
pub fn request(address: SocketAddr, signing: &Signing, headers: &[(&str, String)]) -> Request<Full<Bytes>> {
    let mut request = unsigned(address, &signing.method, &signing.target);
    for (name, value) in signing.headers() {
        request.headers_mut().append(name, value.parse().unwrap());
    }
    for (name, value) in headers {
        request.headers_mut().append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    }
    request
}
