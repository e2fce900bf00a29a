//! Everything that happened to an agent, in order, and waiting for it.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// How long [`Log::wait_for`] waits before it fails the test.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Which of an agent's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Control,
    Data,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub struct Event {
    pub at: Instant,
    pub kind: Kind,
    /// Counts the connections of this agent, from 1: tells the one before a reconnect from the one after.
    pub connection: usize,
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// The upgrade went through.
    Opened,
    /// `blob.read`.
    Read { request_id: String, sha256: String, offset: u64, length: u64, credit: Option<u64> },
    /// `blob.credit`.
    Credit { request_id: String, frames: u64 },
    /// `blob.cancel`.
    Cancel { request_id: String },
    /// `artifact.error`.
    ArtifactError { event_id: Option<String>, sha256: String, code: String },
    /// Any other text frame.
    Frame(Value),
    /// A WebSocket ping.
    Ping,
    /// The platform closed the connection; 1005 when it named no code.
    Closed { code: u16, reason: String },
    /// The connection ended without a close frame.
    Lost,
    /// The test cut it.
    Cut,
    /// A `blob.data` frame was sent.
    SentData { request_id: String, offset: u64, len: usize },
    /// `blob.end` was sent.
    SentEnd { request_id: String },
    /// `blob.error` was sent.
    SentError { request_id: String, code: String },
    /// A fault of the behaviour took place.
    Misbehaved { request_id: String },
}

impl What {
    /// The `type` of a frame that is not about a read.
    pub fn frame_type(&self) -> Option<&str> {
        match self {
            Self::Frame(frame) => frame["type"].as_str(),
            _ => None,
        }
    }

    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }

    pub fn is_cancel(&self) -> bool {
        matches!(self, Self::Cancel { .. })
    }

    pub(super) fn of_frame(frame: Value) -> Self {
        let text = |member: &str| frame[member].as_str().unwrap_or_default().to_owned();
        let request_id = text("request_id");
        match frame["type"].as_str() {
            Some("blob.read") => Self::Read {
                request_id,
                sha256: text("sha256"),
                offset: frame["offset"].as_u64().expect("a read without an offset"),
                length: frame["length"].as_u64().expect("a read without a length"),
                credit: frame["credit"].as_u64(),
            },
            Some("blob.credit") => {
                Self::Credit { request_id, frames: frame["frames"].as_u64().expect("credit without frames") }
            }
            Some("blob.cancel") => Self::Cancel { request_id },
            Some("artifact.error") => Self::ArtifactError {
                event_id: frame["event_id"].as_str().map(str::to_owned),
                sha256: text("sha256"),
                code: frame["error"]["code"].as_str().unwrap_or_default().to_owned(),
            },
            _ => Self::Frame(frame),
        }
    }
}

/// The events so far, and their number for those who wait.
#[derive(Debug)]
pub struct Log {
    events: Mutex<Vec<Event>>,
    len: watch::Sender<usize>,
}

impl Default for Log {
    fn default() -> Self {
        Self { events: Mutex::default(), len: watch::Sender::new(0) }
    }
}

impl Log {
    pub(super) fn add(&self, kind: Kind, connection: usize, what: What) {
        let mut events = self.events.lock().unwrap();
        events.push(Event { at: Instant::now(), kind, connection, what });
        self.len.send_replace(events.len());
    }

    /// Everything so far.
    pub fn all(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// How much there is so far, to look only at what comes later.
    pub fn mark(&self) -> usize {
        self.events.lock().unwrap().len()
    }

    /// The first event from `mark` on that is wanted; waits for it, and fails the test when it does not come.
    pub async fn wait_from(&self, mark: usize, wanted: impl Fn(&Event) -> bool) -> Event {
        match timeout(DEADLINE, self.next_from(mark, wanted)).await {
            Ok(event) => event,
            Err(_) => panic!("the event did not come within {DEADLINE:?}; there was only:\n{}", self.text(mark)),
        }
    }

    /// The same for one that need not come.
    pub async fn next_from(&self, mark: usize, wanted: impl Fn(&Event) -> bool) -> Event {
        let mut len = self.len.subscribe();
        let mut seen = mark;
        loop {
            len.borrow_and_update();
            {
                let events = self.events.lock().unwrap();
                if let Some(event) = events.iter().skip(seen).find(|event| wanted(event)) {
                    return event.clone();
                }
                seen = events.len().max(mark);
            }
            len.changed().await.expect("the log holds the sender");
        }
    }

    /// The last events as text, data frames summed up.
    fn text(&self, mark: usize) -> String {
        let events = self.events.lock().unwrap();
        let interesting = events.iter().skip(mark).filter(|event| !matches!(event.what, What::SentData { .. }));
        let lines: Vec<_> = interesting.map(|e| format!("  {:?} {} {:?}", e.kind, e.connection, e.what)).collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}
