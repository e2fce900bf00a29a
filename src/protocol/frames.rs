//! The JSON text frames of an agent's connections (UAMP, and the relay frames of the artifacts specification).
//!
//! Frames an agent does not need are absent here: a reader of frames ignores types it does not know.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{AgentName, RequestId, SessionId, Sha256};

#[cfg(test)]
mod tests;

/// The version that every enveloped frame names.
pub const UAMP_VERSION: &str = "1.0";

/// A text frame that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InvalidFrame {
    /// Not a JSON object, or a member of the wrong type.
    #[error("not a frame: {0}")]
    Json(#[from] serde_json::Error),
    /// An `artifact.manifest` whose own members are wrong. Unlike other frames it has to be answered.
    #[error("not an announcement: {0}")]
    Announcement(serde_json::Error),
    /// An object without a string `type`.
    #[error("the frame has no type")]
    NoType,
}

/// What UAMP frames carry beside their own members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Opaque, chosen by the sender, echoed in answers that refer to the frame.
    pub event_id: String,
    /// Unix milliseconds at the sender. Never trusted.
    pub timestamp: u64,
    /// Always [`UAMP_VERSION`].
    pub uamp_version: String,
}

impl Envelope {
    /// An envelope stamped with the sender's clock, in Unix milliseconds.
    pub fn new(event_id: impl Into<String>, timestamp: u64) -> Self {
        Self { event_id: event_id.into(), timestamp, uamp_version: UAMP_VERSION.to_owned() }
    }
}

/// Why something was refused: `error: { code, message }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Which rule, for programs.
    pub code: String,
    /// The same for people.
    #[serde(default)]
    pub message: String,
}

impl ErrorBody {
    /// An error of this code and message.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

/// A text frame from an agent, borrowed from the received text where it may be large.
#[derive(Debug)]
pub enum AgentFrame<'a> {
    /// Opens a session for one agent.
    SessionCreate(SessionCreate),
    /// Refreshes a session's token.
    SessionUpdate(SessionUpdate),
    /// Ends a session.
    SessionEnd(SessionEnd),
    /// An application-level ping.
    Ping(Ping),
    /// The first frame of a data connection.
    DataHello(DataHello),
    /// Every byte of a read has been sent.
    BlobEnd(BlobEnd),
    /// A read cannot be served.
    BlobError(BlobError),
    /// A set is available.
    Announcement(Announcement<'a>),
    /// A type this gateway does not know, to be ignored.
    Unknown(String),
}

/// The type of an announcement.
const ANNOUNCEMENT: &str = "artifact.manifest";
/// Longest text that any other frame is likely to have, in bytes.
const LONG: usize = 16 * 1024;

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
}

impl<'a> AgentFrame<'a> {
    /// Reads one text frame.
    pub fn parse(text: &'a str) -> Result<Self, InvalidFrame> {
        // As good as always it is an announcement, and looking for its type first would read all of it once more.
        if text.len() > LONG
            && let Ok(announcement) = serde_json::from_str::<Announcement<'a>>(text)
            && announcement.kind.as_deref() == Some(ANNOUNCEMENT)
        {
            return Ok(Self::Announcement(announcement));
        }
        let head: Head<'a> = serde_json::from_str(text)?;
        let kind = head.kind.ok_or(InvalidFrame::NoType)?;
        Ok(match &*kind {
            "session.create" => Self::SessionCreate(SessionCreate::parse(text)?),
            "session.update" => Self::SessionUpdate(serde_json::from_str(text)?),
            "session.end" => Self::SessionEnd(serde_json::from_str(text)?),
            "ping" => Self::Ping(serde_json::from_str(text)?),
            "data.hello" => Self::DataHello(serde_json::from_str(text)?),
            "blob.end" => Self::BlobEnd(serde_json::from_str(text)?),
            "blob.error" => Self::BlobError(serde_json::from_str(text)?),
            ANNOUNCEMENT => Self::Announcement(serde_json::from_str(text).map_err(InvalidFrame::Announcement)?),
            _ => Self::Unknown(kind.into_owned()),
        })
    }
}

/// `session.create`: opens a control session for one agent. The Python SDK nests `agent` and `token` in `session`;
/// the protocol's page shows them at the top. Both are read, the nested one first.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionCreate {
    /// The sender's id for this frame, echoed in the answer.
    pub event_id: Option<String>,
    /// The name to open the session under, echoed exactly.
    pub agent: Option<String>,
    /// The agent's token, when the connection itself proves nothing.
    pub token: Option<String>,
}

impl std::fmt::Debug for SessionCreate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionCreate").field("agent", &self.agent).finish_non_exhaustive()
    }
}

impl SessionCreate {
    fn parse(text: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize, Default)]
        struct Nested {
            agent: Option<String>,
            token: Option<String>,
        }
        #[derive(Deserialize)]
        struct Wire {
            event_id: Option<String>,
            session: Option<Nested>,
            agent: Option<String>,
            token: Option<String>,
        }
        let wire: Wire = serde_json::from_str(text)?;
        let nested = wire.session.unwrap_or_default();
        Ok(Self { event_id: wire.event_id, agent: nested.agent.or(wire.agent), token: nested.token.or(wire.token) })
    }
}

/// `session.update`.
#[derive(Clone, Deserialize)]
pub struct SessionUpdate {
    /// The sender's id for this frame.
    pub event_id: Option<String>,
    /// Which session; may be left out when the connection has only one.
    pub session_id: Option<String>,
    /// A fresh token for the same agent.
    pub token: Option<String>,
}

impl std::fmt::Debug for SessionUpdate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionUpdate").field("session_id", &self.session_id).finish_non_exhaustive()
    }
}

/// `session.end`.
#[derive(Debug, Clone, Deserialize)]
pub struct SessionEnd {
    /// Which session; may be left out when the connection has only one.
    pub session_id: Option<String>,
}

/// `ping`.
#[derive(Debug, Clone, Deserialize)]
pub struct Ping {
    /// Echoed in the pong.
    pub event_id: Option<String>,
}

/// `data.hello`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DataHello {
    /// The sender's id for this frame.
    pub event_id: Option<String>,
    /// The name that `session.create` used on the control connection.
    pub agent: String,
}

/// `blob.end`: every byte of the read has been sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobEnd {
    /// The read.
    pub request_id: RequestId,
    /// As in the `blob.read`.
    pub offset: u64,
    /// As in the `blob.read`.
    pub length: u64,
    /// How many bytes were sent.
    pub bytes: u64,
}

/// `blob.error`: the read cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobError {
    /// The read.
    pub request_id: RequestId,
    /// One of [`BlobErrorCode`]'s codes.
    pub error: ErrorBody,
}

/// Why an agent cannot serve a read (specification section 4): a closed list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlobErrorCode {
    /// The frame itself is wrong.
    BadRequest,
    /// The agent does not have the blob.
    UnknownBlob,
    /// The range does not lie within the blob.
    RangeInvalid,
    /// The agent serves as many reads as it will.
    TooManyReads,
    /// The request id is in use.
    DuplicateRequest,
    /// The bytes could not be read.
    ReadFailed,
}

impl BlobErrorCode {
    /// Every code of the specification.
    pub const ALL: [Self; 6] = [
        Self::BadRequest,
        Self::UnknownBlob,
        Self::RangeInvalid,
        Self::TooManyReads,
        Self::DuplicateRequest,
        Self::ReadFailed,
    ];

    /// The code on the wire.
    pub fn code(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::UnknownBlob => "unknown_blob",
            Self::RangeInvalid => "range_invalid",
            Self::TooManyReads => "too_many_reads",
            Self::DuplicateRequest => "duplicate_request",
            Self::ReadFailed => "read_failed",
        }
    }

    /// The code named on the wire; an unknown one counts as `read_failed`, which claims least.
    pub fn parse(code: &str) -> Self {
        Self::ALL.into_iter().find(|known| known.code() == code).unwrap_or(Self::ReadFailed)
    }
}

/// How far a set is that is still being produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Units done.
    pub done: u64,
    /// Units in all.
    pub total: u64,
}

/// `artifact.manifest`: a set is available, or being produced.
#[derive(Debug, Deserialize)]
pub struct Announcement<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
    /// Echoed in an `artifact.error`.
    pub event_id: Option<String>,
    /// The task the set answers.
    pub task_id: Option<String>,
    /// The manifest's identity, always present.
    pub sha256: Sha256,
    /// The size of the manifest's canonical form in bytes, always present.
    pub size: u64,
    /// Hints where the bytes can be fetched, after the entry's and the set's own.
    #[serde(borrow)]
    pub locations: Option<&'a RawValue>,
    /// The manifest, when it is inlined.
    #[serde(borrow)]
    pub manifest: Option<&'a RawValue>,
    /// For a set that is still being produced.
    pub progress: Option<Progress>,
    /// The turn that produced the set, or the control session.
    pub session_id: Option<String>,
}

/// A text frame to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum PlatformFrame {
    /// A session is open.
    #[serde(rename = "session.created")]
    SessionCreated {
        /// Id, time and version.
        #[serde(flatten)]
        envelope: Envelope,
        /// The new session.
        session_id: SessionId,
        /// The same again, and the agent, as other readers look for them.
        session: SessionInfo,
        /// The agent's name, exactly as it was sent.
        agent: AgentName,
    },
    /// A session was refused.
    #[serde(rename = "session.error")]
    SessionError {
        /// Echoes the `session.create`'s event id where there was one.
        #[serde(flatten)]
        envelope: Envelope,
        /// Which agent it was for, where the frame named one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
        /// Why.
        error: ErrorBody,
    },
    /// A session's token was refreshed.
    #[serde(rename = "session.updated")]
    SessionUpdated {
        /// Id, time and version.
        #[serde(flatten)]
        envelope: Envelope,
        /// The session.
        session_id: SessionId,
    },
    /// The answer to a JSON ping.
    #[serde(rename = "pong")]
    Pong {
        /// Echoes the ping's event id.
        event_id: String,
    },
    /// A data connection is in use from now on.
    #[serde(rename = "data.ready")]
    DataReady {
        /// Id, time and version.
        #[serde(flatten)]
        envelope: Envelope,
    },
    /// A data connection was refused.
    #[serde(rename = "data.error")]
    DataError {
        /// Id, time and version.
        #[serde(flatten)]
        envelope: Envelope,
        /// Why.
        error: ErrorBody,
    },
    /// Asks for bytes of a blob.
    #[serde(rename = "blob.read")]
    BlobRead(BlobRead),
    /// More credit for a read in progress.
    #[serde(rename = "blob.credit")]
    BlobCredit {
        /// The read.
        request_id: RequestId,
        /// How many more frames the agent may send.
        frames: u32,
    },
    /// Stops a read where it is.
    #[serde(rename = "blob.cancel")]
    BlobCancel {
        /// The read.
        request_id: RequestId,
    },
    /// An announcement was refused.
    #[serde(rename = "artifact.error")]
    ArtifactError {
        /// The announcement's own event id, where it had one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event_id: Option<String>,
        /// The manifest it named.
        sha256: String,
        /// Why.
        error: ErrorBody,
    },
    /// A type this agent does not know, to be ignored.
    #[serde(other)]
    Unknown,
}

/// The `session` member of `session.created`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Equal to the frame's `session_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SessionId>,
    /// The agent's name, exactly as it was sent.
    pub agent: AgentName,
    /// The agent's id, without the `agent:` of its principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// The name the platform knows the agent by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_username: Option<AgentName>,
}

/// `blob.read`: send `length` bytes of the blob from `offset`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRead {
    /// New for every read.
    pub request_id: RequestId,
    /// The blob.
    pub sha256: Sha256,
    /// The first byte wanted.
    pub offset: u64,
    /// How many bytes, at most 64 MiB.
    pub length: u64,
    /// How many `blob.data` frames may be sent before more credit arrives; 4 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit: Option<u32>,
}

impl PlatformFrame {
    /// The frame as the text that goes out.
    pub fn to_text(&self) -> String {
        // Strings, integers and maps with string keys cannot fail to serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}
