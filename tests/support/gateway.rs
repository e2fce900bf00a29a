//! A gateway in the test's own process, on a port of its own: built by [`app::Gateway`] as `sluice serve` builds it.
//!
//! ```ignore
//! let gateway = Gateway::start().await;                       // SQLite in a temporary folder
//! let gateway = Gateway::builder().on(&database).with(|layer| layer.agent_wait = Some(span("200ms"))).start().await;
//! gateway.put_chat("c1", &["user:alice"]).await;
//! gateway.bind_session("turn-1", "c1", "agent:ada").await;
//! let mut agent = Agent::connect(&gateway.url, &gateway.agent_token("ada", "ada.mini"), "ada.mini").await;
//! agent.announce_in("turn-1", &set).await;
//! gateway.wait_for_set("c1", &set.identity()).await;
//! let answer = gateway.get(&set_file("c1", &set, "a.bin"), &gateway.reader("user:alice")).await;
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use sluice::app;
use sluice::clock::Clock;
use sluice::config::{DatabaseUrl, Layer, Settings, Span};
use sluice::http::AppState;
use sluice::identity::{Caller, Identity};
use sluice::protocol::Principal;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::db::TestDatabase;
use super::log::DEADLINE;
use super::platform::within;
use super::sample::SampleSet;

/// A duration as a setting takes it.
pub fn span(text: &str) -> Span {
    text.parse().unwrap()
}

/// The route of a set's file. `path` is escaped already where it has to be.
pub fn set_file(chat: &str, set: &SampleSet, path: &str) -> String {
    format!("/v1/chats/{chat}/sets/{}/files/{path}", set.identity())
}

/// Asks again until the answer is there, and fails the test when it does not come. For what nobody is told about: the
/// state behind a route, or a metric.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(DEADLINE, asking).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not come within {DEADLINE:?}"),
    }
}

/// How a gateway is to be started.
pub struct GatewayBuilder {
    layer: Layer,
    clock: Clock,
}

impl GatewayBuilder {
    /// On this database instead of a SQLite file of its own.
    pub fn on(mut self, database: &TestDatabase) -> Self {
        self.layer.database_url = Some(DatabaseUrl::from(database.url.as_str()));
        self
    }

    /// By this clock instead of the system's.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Changes any setting.
    pub fn with(mut self, change: impl FnOnce(&mut Layer)) -> Self {
        change(&mut self.layer);
        self
    }

    /// Starts it.
    pub async fn start(mut self) -> Gateway {
        let dir = tempfile::tempdir().unwrap();
        self.layer.data_dir.get_or_insert_with(|| dir.path().join("data"));
        // What is kept is not asked for again: tests of the relay want it asked.
        self.layer.cache_size.get_or_insert_with(|| "0".parse().unwrap());
        let Self { layer, clock } = self;
        let running = Running::start(&layer, &clock).await;
        Gateway { url: running.url(), layer, clock, running, _dir: dir }
    }
}

struct Running {
    address: SocketAddr,
    ops_address: SocketAddr,
    state: AppState,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Running {
    async fn start(layer: &Layer, clock: &Clock) -> Self {
        let settings = Settings::resolve(layer.clone()).unwrap();
        let built = app::Gateway::start(settings, clock.clone()).await.unwrap();
        let (address, ops_address, state) = (built.address(), built.ops_address(), built.state().clone());
        let stop = CancellationToken::new();
        #[expect(clippy::disallowed_methods, reason = "tests have no task tracker to wait for")]
        let serving = tokio::spawn(built.run(stop.clone()));
        Self { address, ops_address, state, stop, serving }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A running gateway. Dropping it ends it without ado.
pub struct Gateway {
    /// `http://127.0.0.1:port`, the same after a restart.
    pub url: String,
    layer: Layer,
    clock: Clock,
    running: Running,
    _dir: tempfile::TempDir,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.running.stop.cancel();
        self.running.serving.abort();
    }
}

impl Gateway {
    /// The usual one: SQLite, and times that are short where a test would wait for them in vain.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// One that is to be changed before it starts.
    pub fn builder() -> GatewayBuilder {
        let layer = Layer {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            ops_listen: Some("127.0.0.1:0".parse().unwrap()),
            resume_window: Some(span("10s")),
            agent_wait: Some(span("3s")),
            read_timeout: Some(span("5s")),
            shutdown_grace: Some(span("5s")),
            stall_timeout: Some(span("30s")),
            ping_interval: Some(span("10s")),
            ping_timeout: Some(span("10s")),
            handshake_timeout: Some(span("10s")),
            ..Layer::default()
        };
        GatewayBuilder { layer, clock: Clock::system() }
    }

    /// What the routes share, for looking where no route does.
    pub fn state(&self) -> &AppState {
        &self.running.state
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.running.address
    }

    /// Where it listens for operators: `/metrics` and the like.
    pub fn ops_address(&self) -> SocketAddr {
        self.running.ops_address
    }

    /// Begins to drain, and does not wait.
    pub fn begin_stop(&self) {
        self.running.stop.cancel();
    }

    /// Drains, and returns when that is done.
    pub async fn stop(&mut self) {
        self.running.stop.cancel();
        within(&mut self.running.serving).await.unwrap();
    }

    /// Drains, and starts anew on the same data, port and settings.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.layer.listen = Some(self.running.address.into());
        self.running = Running::start(&self.layer, &self.clock).await;
    }

    /// The same with other settings.
    pub async fn restart_with(&mut self, change: impl FnOnce(&mut Layer)) {
        change(&mut self.layer);
        self.restart().await;
    }

    /// A token of this identity, good for an hour.
    pub fn token(&self, identity: &Identity) -> String {
        self.state().tokens.issue(identity, Duration::from_secs(3600), &self.clock).unwrap()
    }

    /// An operator's token.
    pub fn operator(&self) -> String {
        self.token(&Identity::Operator)
    }

    /// A reader's token, for `user:…` or `agent:…`.
    pub fn reader(&self, principal: &str) -> String {
        self.token(&Identity::Reader(Caller { principal: principal.parse().unwrap(), chats: None }))
    }

    /// The token of the agent `agent:<id>`, for this name only.
    pub fn agent_token(&self, id: &str, name: &str) -> String {
        let principal = Principal::agent(id).unwrap();
        self.token(&Identity::Agent { principal, name: Some(name.parse().unwrap()), owner: Some("olga".to_owned()) })
    }

    /// The token of the agent `agent:<id>`, for any name.
    pub fn unnamed_agent_token(&self, id: &str) -> String {
        self.token(&Identity::Agent { principal: Principal::agent(id).unwrap(), name: None, owner: None })
    }

    /// A well-signed token with any claims.
    pub fn raw_token(&self, claims: &Value) -> String {
        let dir = self.layer.data_dir.as_ref().unwrap();
        let file = std::fs::read(dir.join("token.secret")).unwrap();
        let key = jsonwebtoken::EncodingKey::from_secret(file.trim_ascii()).unwrap();
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), claims, &key).unwrap()
    }

    /// A chat of alice's and one of bob's, and a turn of ada's in alice's.
    pub async fn furnish(&self) {
        self.put_chat("c1", &["user:alice"]).await;
        self.put_chat("c2", &["user:bob"]).await;
        self.bind_session("turn-1", "c1", "agent:ada").await;
    }

    /// Creates or replaces a chat.
    pub async fn put_chat(&self, chat: &str, participants: &[&str]) {
        let body = json!({"participants": participants});
        self.operate(Method::PUT, &format!("/v1/chats/{chat}"), Some(body)).await;
    }

    /// Binds the session of a turn to a chat, for `agent:…` or an agent's name.
    pub async fn bind_session(&self, session: &str, chat: &str, agent: &str) {
        let body = json!({"session_id": session, "chat": chat, "agent": agent});
        self.operate(Method::POST, "/v1/sessions", Some(body)).await;
    }

    /// Asks as an operator, and fails the test unless that works.
    pub async fn operate(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let answer = self.ask(method.clone(), path, &self.operator(), body).await;
        assert!(answer.status.is_success(), "{method} {path}: {} {:?}", answer.status, answer.body);
        answer
    }

    /// A connected agent that is in nobody's way: `agent:<id>`, under that name, with a control connection only.
    pub async fn agent(&self, id: &str) -> super::Agent {
        super::Agent::connect(&self.url, &self.agent_token(id, id), id).await
    }

    /// The sets of a chat, newest first, as its participants see them.
    pub async fn sets(&self, chat: &str) -> Vec<Value> {
        let chat: sluice::protocol::ChatId = chat.parse().unwrap();
        let list = self.state().sets.list(&chat, None, 100).await.unwrap();
        let list = serde_json::to_value(&list).unwrap();
        list["sets"].as_array().unwrap().clone()
    }

    /// Waits until a chat has this set.
    pub async fn wait_for_set(&self, chat: &str, identity: &str) {
        eventually("the set", async || {
            let sets = self.sets(chat).await;
            sets.iter().any(|set| set["sha256"] == identity).then_some(())
        })
        .await;
    }

    /// A metric's value now; `name` with its labels, as it stands in `/metrics`.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.state().metrics.render().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("there is no metric {name}")).parse().unwrap()
    }

    /// Waits until a metric has this value.
    pub async fn wait_for_metric(&self, name: &str, value: f64) {
        eventually(name, async || (self.metric(name) == value).then_some(())).await;
    }

    /// A client that is to be changed before it asks.
    pub fn client(&self) -> Client {
        Client::of(self.address())
    }

    /// GET, whole. Without a token when that is empty.
    pub async fn get(&self, path: &str, token: &str) -> Answer {
        self.ask(Method::GET, path, token, None).await
    }

    /// GET, as far as the head.
    pub async fn download(&self, path: &str, token: &str) -> Download {
        self.client().send(self.request(Method::GET, path, token, None)).await
    }

    /// GET of a range, as far as the head: `range` as in `bytes=0-99`.
    pub async fn download_range(&self, path: &str, token: &str, range: &str) -> Download {
        let mut request = self.request(Method::GET, path, token, None);
        request.headers_mut().insert("range", range.parse().unwrap());
        self.client().send(request).await
    }

    /// Any request with a JSON body or none, and its whole answer.
    pub async fn ask(&self, method: Method, path: &str, token: &str, body: Option<Value>) -> Answer {
        self.client().send(self.request(method, path, token, body)).await.whole().await
    }

    /// A request, for changing it before a [`Client`] sends it.
    pub fn request(&self, method: Method, path: &str, token: &str, body: Option<Value>) -> Request<Full<Bytes>> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        request.body(Full::from(body.map(|body| body.to_string()).unwrap_or_default())).unwrap()
    }
}

/// A plain HTTP client with a connection for each request.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    address: SocketAddr,
    http2: bool,
    receive_buffer: Option<u32>,
}

impl Client {
    /// A client of whatever listens there.
    pub fn of(address: SocketAddr) -> Self {
        Self { address, http2: false, receive_buffer: None }
    }

    /// Speaks HTTP/2 with prior knowledge instead of HTTP/1.1.
    pub fn http2(mut self) -> Self {
        self.http2 = true;
        self
    }

    /// Lets the system hold about this many bytes that were not read yet, so that a reader which stops is felt soon.
    pub fn receive_buffer(mut self, bytes: u32) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// Sends a request and waits for the head of its answer.
    pub async fn send(self, request: Request<Full<Bytes>>) -> Download {
        within(self.try_send(request)).await.unwrap()
    }

    /// The same, for a request that may fail.
    pub async fn try_send(self, mut request: Request<Full<Bytes>>) -> Result<Download, hyper::Error> {
        let stream = TokioIo::new(self.connect().await);
        let (response, connection) = if self.http2 {
            let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await?;
            let connection = spawn(async move { _ = connection.await });
            (sender.send_request(request).await?, connection)
        } else {
            // A request line has no authority, except towards a proxy (RFC 9112 section 3.2).
            let host = request.uri().authority().unwrap().as_str().parse().unwrap();
            request.headers_mut().entry("host").or_insert(host);
            *request.uri_mut() = request.uri().path_and_query().unwrap().as_str().parse().unwrap();
            let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
            let connection = spawn(async move { _ = connection.await });
            (sender.send_request(request).await?, connection)
        };
        let (head, body) = response.into_parts();
        Ok(Download { status: head.status, headers: head.headers, body, left: Bytes::new(), connection })
    }

    async fn connect(self) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(bytes) = self.receive_buffer {
            socket.set_recv_buffer_size(bytes).unwrap();
        }
        let stream = socket.connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }
}

#[expect(clippy::disallowed_methods, reason = "tests have no task tracker to wait for")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(task)
}

/// An answer whose body is read as slowly as the test likes. Dropping it closes the connection.
pub struct Download {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    left: Bytes,
    connection: JoinHandle<()>,
}

impl Drop for Download {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Download {
    /// A header's text; empty when it is absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The next bytes; `None` at the end; an error when the answer was cut.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        if !self.left.is_empty() {
            return Some(Ok(std::mem::take(&mut self.left)));
        }
        loop {
            match within(self.body.frame()).await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Exactly so many bytes, and reads no further.
    pub async fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let mut chunk = self.chunk().await.expect("the answer ends early").expect("the answer is cut");
            self.left = chunk.split_off(chunk.len().min(len - bytes.len()));
            bytes.extend_from_slice(&chunk);
        }
        bytes
    }

    /// The rest, and whether it ended as it should.
    pub async fn rest(&mut self) -> (Vec<u8>, Result<(), hyper::Error>) {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await {
            match chunk {
                Ok(chunk) => bytes.extend_from_slice(&chunk),
                Err(error) => return (bytes, Err(error)),
            }
        }
        (bytes, Ok(()))
    }

    /// The whole answer, which must not be cut.
    pub async fn whole(mut self) -> Answer {
        let (body, end) = self.rest().await;
        end.expect("the answer is cut");
        Answer { status: self.status, headers: std::mem::take(&mut self.headers), body }
    }
}

/// An answer that came whole.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    /// A header's text; empty when it is absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The code of an error.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}
