//! An agent that does as the test tells it, over a raw WebSocket. It shares no code with the agent's side of the
//! crate, so that a mistake there cannot hide behind the same mistake here.
//!
//! ```ignore
//! let set = SampleSet::of([("a.bin", bytes(1, 10 << 20))]).chunked(1 << 20);
//! let mut agent = Agent::builder(&gateway_url, &token, "ada.mini").data().connect().await;
//! agent.behave(Behaviour::obedient().at(3_000_000, Fault::Die));
//! agent.announce(&set);
//! // … start a download …
//! agent.wait_for(|event| event.what == What::Cut).await;
//! agent.reconnect().await;
//! let read = agent.wait_for(|event| event.connection > 1 && event.what.is_read()).await;
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::behaviour::{Behaviour, most_concurrent};
use super::log::{Event, Kind, Log, What};
use super::sample::{SampleSet, sha256};
use super::socket::{Command, Shared, Socket};

/// Why an agent could not connect.
#[derive(Debug)]
pub enum ConnectError {
    /// No TCP connection, or a broken upgrade.
    Io(String),
    /// The upgrade was answered with this status.
    Status(u16),
    /// `session.error`, the whole frame.
    Session(Value),
    /// `data.error`, the whole frame.
    Data(Value),
    /// The platform closed the connection first.
    Closed(u16),
}

/// How an agent is to connect.
#[derive(Debug, Clone)]
pub struct AgentBuilder {
    host: String,
    path: String,
    headers: HeaderMap,
    query: Vec<String>,
    /// Name and token of each session.
    sessions: Vec<(String, Option<String>)>,
    data: bool,
    behaviour: Behaviour,
}

impl AgentBuilder {
    /// Opens a data connection too.
    pub fn data(mut self) -> Self {
        self.data = true;
        self
    }

    /// Sends the token as `?token=` as the Python SDK does, not as a header.
    pub fn token_in_query(mut self) -> Self {
        let token = self.headers.remove("authorization").expect("there is a token");
        let token = token.to_str().unwrap().trim_start_matches("Bearer ").to_owned();
        self.query.push(format!("token={token}"));
        self
    }

    /// Sets a header of both upgrades.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        self
    }

    /// Opens no session (with [`session`](Self::session): only the ones named there).
    pub fn without_session(mut self) -> Self {
        self.sessions.clear();
        self
    }

    /// Opens one more session on the same socket. Without a token for a connection that proves itself.
    pub fn session(mut self, name: &str, token: Option<&str>) -> Self {
        self.sessions.push((name.to_owned(), token.map(str::to_owned)));
        self
    }

    /// How reads are served from the start.
    pub fn behaviour(mut self, behaviour: Behaviour) -> Self {
        self.behaviour = behaviour;
        self
    }

    /// Connects, and fails the test when that does not work.
    pub async fn connect(self) -> Agent {
        self.try_connect().await.unwrap_or_else(|error| panic!("the agent cannot connect: {error:?}"))
    }

    /// Connects: returns when every session is open and the data connection, if any, is ready.
    pub async fn try_connect(self) -> Result<Agent, ConnectError> {
        let shared = Shared {
            log: Log::default(),
            blobs: Default::default(),
            behaviour: self.behaviour.clone().into(),
            behaviours: Default::default(),
        };
        let mut agent = Agent {
            builder: self,
            shared: Arc::new(shared),
            control: None,
            data: None,
            connections: 0,
            sessions: HashMap::new(),
            next_event: AtomicU64::new(1),
        };
        agent.open().await?;
        Ok(agent)
    }
}

/// A connected agent. Dropping it resets its connections.
pub struct Agent {
    builder: AgentBuilder,
    shared: Arc<Shared>,
    control: Option<Socket>,
    data: Option<Socket>,
    connections: usize,
    /// Session ids by agent name.
    sessions: HashMap<String, String>,
    next_event: AtomicU64,
}

/// Connections that stay open for as long as this lives.
pub struct Held {
    _sockets: [Option<Socket>; 2],
}

impl Agent {
    /// An agent of this name and token at a gateway (`http://host:port` or `ws://host:port`, with or without a path).
    pub fn builder(gateway: &str, token: &str, name: &str) -> AgentBuilder {
        let origin = gateway.split_once("://").map_or(gateway, |(_, rest)| rest);
        let (host, path) = origin.split_once('/').map_or((origin, ""), |(host, path)| (host, path));
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
        AgentBuilder {
            host: host.to_owned(),
            path: if path.is_empty() { "/ws".to_owned() } else { format!("/{path}") },
            headers,
            query: Vec::new(),
            sessions: vec![(name.to_owned(), Some(token.to_owned()))],
            data: false,
            behaviour: Behaviour::obedient(),
        }
    }

    /// Connects an obedient agent with a control connection only.
    pub async fn connect(gateway: &str, token: &str, name: &str) -> Self {
        Self::builder(gateway, token, name).connect().await
    }

    /// Serves the set's files and its manifest. Does not announce it.
    pub fn serve(&self, set: &SampleSet) {
        let mut blobs = self.shared.blobs.lock().unwrap();
        blobs.extend(set.files.iter().map(|file| (file.sha256.clone(), file.bytes.clone())));
        blobs.insert(set.identity(), Arc::new(set.canonical()));
    }

    /// Serves these bytes under their hash, which is returned.
    pub fn serve_bytes(&self, bytes: &[u8]) -> String {
        let name = sha256(bytes);
        self.serve_as(&name, bytes);
        name
    }

    /// Serves these bytes under any hash.
    pub fn serve_as(&self, sha256: &str, bytes: &[u8]) {
        self.shared.blobs.lock().unwrap().insert(sha256.to_owned(), Arc::new(bytes.to_vec()));
    }

    /// No longer has this blob.
    pub fn forget(&self, sha256: &str) {
        self.shared.blobs.lock().unwrap().remove(sha256);
    }

    /// Serves the set and announces it, inlined, on the control session. Returns the announcement's event id.
    pub async fn announce(&self, set: &SampleSet) -> String {
        self.announce_with(set, |_| ()).await
    }

    /// Like [`announce`](Self::announce), for the turn whose session id this is.
    pub async fn announce_in(&self, session_id: &str, set: &SampleSet) -> String {
        self.announce_with(set, |frame| frame["session_id"] = json!(session_id)).await
    }

    /// Like [`announce`](Self::announce), after `change` has changed the frame.
    pub async fn announce_with(&self, set: &SampleSet, change: impl FnOnce(&mut Value)) -> String {
        self.serve(set);
        let event_id = self.event_id();
        let mut frame = json!({
            "type": "artifact.manifest", "event_id": event_id, "timestamp": 0, "uamp_version": "1.0",
            "task_id": "task-sample", "sha256": set.identity(), "size": set.canonical().len(),
            "locations": [{"kind": "relay", "agent": self.name()}],
            "manifest": set.manifest, "session_id": self.session_id(),
        });
        change(&mut frame);
        self.send(frame).await;
        event_id
    }

    /// How reads that arrive from now on are served.
    pub fn behave(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().unwrap() = behaviour;
    }

    /// How reads of one blob that arrive from now on are served, whatever the general behaviour.
    pub fn behave_for(&self, sha256: &str, behaviour: Behaviour) {
        self.shared.behaviours.lock().unwrap().insert(sha256.to_owned(), behaviour);
    }

    /// The name of the first session.
    pub fn name(&self) -> &str {
        self.builder.sessions.first().map_or("", |(name, _)| name)
    }

    /// The id of the first session.
    pub fn session_id(&self) -> &str {
        self.session_of(self.name())
    }

    /// The id of the session of this name.
    pub fn session_of(&self, name: &str) -> &str {
        self.sessions.get(name).map_or("", String::as_str)
    }

    /// A fresh event id.
    pub fn event_id(&self) -> String {
        format!("evt_{:012x}", self.next_event.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends a text frame on the control connection.
    pub async fn send(&self, frame: Value) {
        self.send_message(Kind::Control, Message::text(frame.to_string())).await;
    }

    /// Sends anything on either connection.
    pub async fn send_message(&self, kind: Kind, message: Message) {
        self.command(kind, Command::Send(message)).await;
    }

    async fn command(&self, kind: Kind, command: Command) {
        let socket = match kind {
            Kind::Control => &self.control,
            Kind::Data => &self.data,
        };
        // A connection that is over takes nothing, as a real one would.
        if let Some(socket) = socket {
            _ = socket.commands.send(command).await;
        }
    }

    /// The log, for anything the shortcuts below do not do.
    pub fn log(&self) -> &Log {
        &self.shared.log
    }

    /// The first event since the start that is wanted; waits for it, and fails the test when it does not come.
    pub async fn wait_for(&self, wanted: impl Fn(&Event) -> bool) -> Event {
        self.log().wait_from(0, wanted).await
    }

    /// Waits for a text frame of this type that is not about a read, and returns it.
    pub async fn wait_for_frame(&self, frame_type: &str) -> Value {
        match self.wait_for(|event| event.what.frame_type() == Some(frame_type)).await.what {
            What::Frame(frame) => frame,
            _ => unreachable!("only frames have a type"),
        }
    }

    /// Waits until this many reads have been asked for in all, and returns them.
    pub async fn wait_for_reads(&self, count: usize) -> Vec<Event> {
        let mut reads = Vec::new();
        let mut mark = 0;
        while reads.len() < count {
            let read = self.log().wait_from(mark, |event| event.what.is_read()).await;
            mark = self.log().all().iter().position(|e| e.at == read.at && e.what == read.what).unwrap_or(mark) + 1;
            reads.push(read);
        }
        reads
    }

    /// Every read asked for so far.
    pub fn reads(&self) -> Vec<Event> {
        self.log().all().into_iter().filter(|event| event.what.is_read()).collect()
    }

    /// How many reads were in progress at the same time, at most.
    pub fn most_concurrent_reads(&self) -> usize {
        most_concurrent(self.log().all().iter().map(|event| &event.what))
    }

    /// Bytes sent in `blob.data` frames so far.
    pub fn bytes_sent(&self) -> u64 {
        let len = |event: Event| match event.what {
            What::SentData { len, .. } => len as u64,
            _ => 0,
        };
        self.log().all().into_iter().map(len).sum()
    }

    /// Resets every connection, as a network that goes away does.
    pub async fn cut(&mut self) {
        self.cut_one(Kind::Data).await;
        self.cut_one(Kind::Control).await;
    }

    /// Resets one connection.
    pub async fn cut_one(&mut self, kind: Kind) {
        self.command(kind, Command::Cut).await;
        let socket = match kind {
            Kind::Control => self.control.take(),
            Kind::Data => self.data.take(),
        };
        if let Some(mut socket) = socket {
            socket.ended().await;
        }
    }

    /// Closes the control connection with this code and waits until the platform has answered.
    pub async fn close(&mut self, code: u16) {
        self.command(Kind::Control, Command::Close(code)).await;
        if let Some(mut socket) = self.control.take() {
            socket.ended().await;
        }
    }

    /// Cuts what is still open and connects as before, with new sessions. Blobs, behaviour and log stay.
    pub async fn reconnect(&mut self) {
        self.try_reconnect().await.unwrap_or_else(|error| panic!("the agent cannot reconnect: {error:?}"));
    }

    /// Like [`reconnect`](Self::reconnect), for a platform that may refuse.
    pub async fn try_reconnect(&mut self) -> Result<(), ConnectError> {
        self.cut().await;
        self.open().await
    }

    /// Connects a second time as the same agent without giving up the first connection: a takeover. What is returned
    /// is the first connection, to be held for as long as it is to stay open.
    pub async fn take_over(&mut self) -> Held {
        let held = Held { _sockets: [self.control.take(), self.data.take()] };
        self.open().await.unwrap_or_else(|error| panic!("the agent cannot take over: {error:?}"));
        held
    }

    /// Whether the connection is over.
    pub fn is_over(&self, kind: Kind) -> bool {
        match kind {
            Kind::Control => self.control.as_ref(),
            Kind::Data => self.data.as_ref(),
        }
        .is_none_or(Socket::is_over)
    }

    async fn open(&mut self) -> Result<(), ConnectError> {
        self.control = Some(self.dial(Kind::Control).await?);
        for (name, token) in self.builder.sessions.clone() {
            let mut session = json!({"agent": name});
            if let Some(token) = token {
                session["token"] = json!(token);
            }
            self.send(json!({
                "type": "session.create", "event_id": self.event_id(), "timestamp": 0, "uamp_version": "1.0",
                "session": session,
            }))
            .await;
            let frame = self.answer(Kind::Control, |frame| match frame["type"].as_str() {
                Some("session.created") => frame["session"]["agent"] == name.as_str(),
                kind => kind == Some("session.error"),
            });
            let frame = frame.await?;
            if frame["type"] == "session.error" {
                return Err(ConnectError::Session(frame));
            }
            self.sessions.insert(name, frame["session_id"].as_str().expect("a session has an id").to_owned());
        }
        if self.builder.data {
            self.open_data().await?;
        }
        Ok(())
    }

    /// Opens a data connection now, whether or not the agent was built with one.
    pub async fn open_data(&mut self) -> Result<(), ConnectError> {
        self.data = Some(self.dial(Kind::Data).await?);
        let hello = json!({
            "type": "data.hello", "event_id": self.event_id(), "timestamp": 0, "uamp_version": "1.0",
            "agent": self.name(),
        });
        self.send_message(Kind::Data, Message::text(hello.to_string())).await;
        let answers = ["data.ready", "data.error"];
        let frame = self.answer(Kind::Data, |frame| answers.iter().any(|answer| frame["type"] == *answer)).await?;
        if frame["type"] == "data.error" { Err(ConnectError::Data(frame)) } else { Ok(()) }
    }

    /// Waits for a frame on the newest connection, or for its end.
    async fn answer(&self, kind: Kind, wanted: impl Fn(&Value) -> bool) -> Result<Value, ConnectError> {
        let event = self.log().wait_from(0, |event| {
            (event.kind, event.connection) == (kind, self.connections)
                && match &event.what {
                    What::Frame(frame) => wanted(frame),
                    What::Closed { .. } | What::Lost => true,
                    _ => false,
                }
        });
        match event.await.what {
            What::Frame(frame) => Ok(frame),
            What::Closed { code, .. } => Err(ConnectError::Closed(code)),
            other => Err(ConnectError::Io(format!("{other:?}"))),
        }
    }

    async fn dial(&mut self, kind: Kind) -> Result<Socket, ConnectError> {
        let io = |error: std::io::Error| ConnectError::Io(error.to_string());
        let AgentBuilder { host, path, headers, query, .. } = &self.builder;
        let mut query = query.clone();
        if kind == Kind::Data {
            query.push("conn=data".to_owned());
        }
        let mark = if query.is_empty() { "" } else { "?" };
        let url = format!("ws://{host}{path}{mark}{}", query.join("&"));
        let mut request = url.into_client_request().map_err(|error| ConnectError::Io(error.to_string()))?;
        request.headers_mut().extend(headers.clone());
        if kind == Kind::Data {
            request.headers_mut().insert("uamp-connection", HeaderValue::from_static("data"));
        }
        // A second handle to the same socket, to end the connection in ways that a WebSocket does not offer.
        let stream = TcpStream::connect(host).await.map_err(io)?.into_std().map_err(io)?;
        let raw = stream.try_clone().map_err(io)?;
        let stream = TcpStream::from_std(stream).map_err(io)?;
        stream.set_nodelay(true).map_err(io)?;
        match client_async(request, stream).await {
            Ok((socket, _)) => {
                self.connections += 1;
                Ok(Socket::start(self.shared.clone(), kind, self.connections, socket, raw))
            }
            Err(Error::Http(response)) => Err(ConnectError::Status(response.status().as_u16())),
            Err(error) => Err(ConnectError::Io(error.to_string())),
        }
    }
}
