//! What a connection carries, whichever WebSocket implementation is under it.

use bytes::Bytes;

use crate::protocol::frames::ErrorBody;

/// One WebSocket message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A JSON frame.
    Text(Text),
    /// A `blob.data` frame.
    Binary(Bytes),
    /// Answered by the WebSocket layer itself.
    Ping(Bytes),
    /// The answer to one of our pings.
    Pong(Bytes),
    /// The end of the connection.
    Close(Option<Close>),
    /// Something that is no message, and how the connection ends for it.
    Unreadable(Close),
}

/// Text as it came, sharing the received buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(Bytes);

impl Text {
    /// Wraps bytes that are UTF-8. `None` where they are not.
    pub fn new(bytes: Bytes) -> Option<Self> {
        std::str::from_utf8(&bytes).is_ok().then_some(Self(bytes))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Checked by `new`; the fallback is never taken.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(Bytes::from(text))
    }
}

/// Why a connection is closed, as the agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    /// The close code (RFC 6455 section 7.4, and the platform's own 4000s).
    pub code: u16,
    /// The same for people, at most 123 bytes.
    pub reason: &'static str,
}

impl Close {
    /// The gateway restarts; agents reconnect after a pause.
    pub const RESTART: Self = Self { code: 1012, reason: "the gateway is restarting" };
    /// A rule of the protocol was broken too often.
    pub const BROKEN_RULES: Self = Self { code: 1008, reason: "too many broken rules" };
    /// The connection never said what it is.
    pub const HANDSHAKE_TIMEOUT: Self = Self { code: 1008, reason: "no session was opened in time" };
    /// The credential was refused.
    pub const REFUSED: Self = Self { code: 4001, reason: "the credential was refused" };
    /// The credential could not be judged; the same one may be good later.
    pub const TRY_AGAIN: Self = Self { code: 1013, reason: "the gateway's database does not answer; try again later" };
    /// Not WebSocket's framing (RFC 6455 section 5).
    pub const MALFORMED: Self = Self { code: 1002, reason: "not a valid WebSocket frame" };
    /// Text that is not UTF-8.
    pub const NOT_TEXT: Self = Self { code: 1007, reason: "a text message must be UTF-8" };
    /// A message longer than this kind of connection takes.
    pub const TOO_LONG: Self = Self { code: 1009, reason: "the message is longer than this connection takes" };
    /// A newer connection of the same agent took over.
    pub const SUPERSEDED: Self = Self { code: 4009, reason: "a newer connection of this agent took over" };
    /// The agent no longer holds its name.
    pub const EVICTED: Self = Self { code: 4001, reason: "the name was given to another agent" };
    /// The peer did not answer pings, or took nothing.
    pub const DEAD: Self = Self { code: 1011, reason: "no answer to pings" };
    /// The peer closed.
    pub const NORMAL: Self = Self { code: 1000, reason: "" };

    /// How a connection ends that was left without a session by this refusal.
    pub fn of_refusal(error: &ErrorBody) -> Self {
        if error.code == "unavailable" { Self::TRY_AGAIN } else { Self::REFUSED }
    }
}
