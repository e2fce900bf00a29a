//! The text frames as the agent's side sees them: what it sends, and a lenient reader of what a platform sends.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::protocol::frames::{BlobEnd, BlobError, BlobRead, DataHello, Envelope, ErrorBody};
use crate::protocol::{AgentName, RequestId, SessionId, Sha256, TaskId};

/// Longest request id that is repeated in an answer although it is no valid one.
const ECHOED_ID_BYTES: usize = 256;

/// A frame to the platform.
#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum Sent<'a> {
    #[serde(rename = "session.create")]
    SessionCreate {
        #[serde(flatten)]
        envelope: Envelope,
        session: NewSession<'a>,
    },
    #[serde(rename = "data.hello")]
    DataHello {
        timestamp: u64,
        uamp_version: String,
        #[serde(flatten)]
        hello: DataHello,
    },
    #[serde(rename = "ping")]
    Ping {
        #[serde(flatten)]
        envelope: Envelope,
    },
    #[serde(rename = "blob.end")]
    BlobEnd(&'a BlobEnd),
    #[serde(rename = "blob.error")]
    BlobError(&'a BlobError),
    /// `blob.error` for a read whose request id is no valid one.
    #[serde(rename = "blob.error")]
    BadRequest { request_id: &'a str, error: ErrorBody },
    #[serde(rename = "artifact.manifest")]
    Announcement {
        #[serde(flatten)]
        envelope: Envelope,
        task_id: &'a TaskId,
        sha256: Sha256,
        size: usize,
        locations: [RelayLocation<'a>; 1],
        manifest: &'a RawValue,
        session_id: &'a SessionId,
    },
    #[serde(rename = "response.error")]
    ResponseError {
        #[serde(flatten)]
        envelope: Envelope,
        session_id: &'a str,
        error: ErrorBody,
    },
}

/// The `session` member of `session.create`.
#[derive(Serialize)]
pub(super) struct NewSession<'a> {
    pub(super) agent: &'a AgentName,
    pub(super) token: &'a str,
}

/// This agent's connection as a place to fetch from.
#[derive(Serialize)]
pub(super) struct RelayLocation<'a> {
    kind: &'static str,
    agent: &'a AgentName,
}

impl<'a> RelayLocation<'a> {
    pub(super) fn of(agent: &'a AgentName) -> Self {
        Self { kind: "relay", agent }
    }
}

impl Sent<'_> {
    /// The frame as the text that goes out.
    pub(super) fn to_text(&self) -> String {
        // Strings, integers and structs cannot fail to serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A frame from the platform, as far as this agent has a use for it. Members it does not need are not required, so
/// that a platform may leave them out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Read(BlobRead),
    /// A `blob.read` that breaks a rule of its fields, with the request id it named.
    BadRead {
        request_id: String,
        reason: String,
    },
    Credit {
        request_id: RequestId,
        frames: u32,
    },
    Cancel {
        request_id: RequestId,
    },
    SessionCreated {
        session_id: SessionId,
    },
    SessionError(ErrorBody),
    DataReady,
    DataError(ErrorBody),
    ArtifactError {
        sha256: String,
        error: ErrorBody,
    },
    /// A turn, which this agent does not answer.
    Turn {
        session_id: String,
    },
    /// Anything else: to be ignored.
    Ignored,
}

#[derive(Deserialize)]
struct Fields {
    #[serde(rename = "type")]
    kind: Option<String>,
    request_id: Option<serde_json::Value>,
    session_id: Option<serde_json::Value>,
    frames: Option<u64>,
    sha256: Option<serde_json::Value>,
    error: Option<ErrorBody>,
}

impl Received {
    /// Reads one text frame. What cannot be read is ignored, as an unknown type is; only a `blob.read` has an answer.
    pub(super) fn parse(text: &str) -> Self {
        Self::parse_known(text).unwrap_or(Self::Ignored)
    }

    fn parse_known(text: &str) -> Option<Self> {
        let fields: Fields = serde_json::from_str(text).ok()?;
        let string = |value: Option<serde_json::Value>| Some(value?.as_str()?.to_owned());
        let error = fields.error;
        let unexplained = || ErrorBody::new("unknown", "the gateway gave no reason");
        Some(match fields.kind?.as_str() {
            "blob.read" => match serde_json::from_str(text) {
                Ok(read) => Self::Read(read),
                Err(error) => {
                    let request_id = string(fields.request_id).filter(|id| id.len() <= ECHOED_ID_BYTES)?;
                    Self::BadRead { request_id, reason: error.to_string() }
                }
            },
            "blob.credit" => Self::Credit {
                request_id: string(fields.request_id)?.parse().ok()?,
                frames: u32::try_from(fields.frames?).unwrap_or(u32::MAX),
            },
            "blob.cancel" => Self::Cancel { request_id: string(fields.request_id)?.parse().ok()? },
            "session.created" => Self::SessionCreated { session_id: string(fields.session_id)?.parse().ok()? },
            "session.error" => Self::SessionError(error.unwrap_or_else(unexplained)),
            "data.ready" => Self::DataReady,
            "data.error" => Self::DataError(error.unwrap_or_else(unexplained)),
            "artifact.error" => Self::ArtifactError {
                sha256: string(fields.sha256).unwrap_or_default(),
                error: error.unwrap_or_else(unexplained),
            },
            "input.text" => Self::Turn { session_id: string(fields.session_id)? },
            _ => Self::Ignored,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::protocol::frames::AgentFrame;

    const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn parse(frame: serde_json::Value) -> Received {
        Received::parse(&frame.to_string())
    }

    #[test]
    fn a_read_without_credit_is_a_read() {
        let read = parse(json!({"type":"blob.read","request_id":"r","sha256":HASH,"offset":1,"length":2,"extra":[]}));
        assert!(matches!(read, Received::Read(BlobRead { offset: 1, length: 2, credit: None, .. })), "{read:?}");
    }

    #[test]
    fn a_bad_read_keeps_the_id_to_answer_under() {
        for (id, sha256, length) in
            [("r", "XYZ", json!(1)), ("r", HASH, json!(-1)), ("r", HASH, json!("1")), ("", HASH, json!(1))]
        {
            let read = parse(json!({"type":"blob.read","request_id":id,"sha256":sha256,"offset":0,"length":length}));
            assert!(matches!(&read, Received::BadRead { request_id, .. } if request_id == id), "{read:?}");
        }
        let long = "x".repeat(65);
        let read = parse(json!({"type":"blob.read","request_id":long,"sha256":HASH,"offset":0,"length":1}));
        assert!(matches!(read, Received::BadRead { request_id, .. } if request_id == long));
    }

    #[test]
    fn a_read_that_names_no_id_has_no_answer() {
        for id in [json!(null), json!(7), json!("x".repeat(10_000))] {
            let read = parse(json!({"type":"blob.read","request_id":id,"sha256":HASH,"offset":0,"length":1}));
            assert_eq!(read, Received::Ignored);
        }
    }

    #[test]
    fn the_fewest_members_are_enough() {
        assert_eq!(
            parse(json!({"type":"session.created","session_id":"s"})),
            Received::SessionCreated { session_id: "s".parse().unwrap() }
        );
        assert!(
            matches!(parse(json!({"type":"session.error","error":{"code":"forbidden"}})), Received::SessionError(e) if e.code == "forbidden")
        );
        assert!(matches!(parse(json!({"type":"session.error"})), Received::SessionError(e) if e.code == "unknown"));
        assert_eq!(parse(json!({"type":"data.ready"})), Received::DataReady);
        assert!(matches!(
            parse(json!({"type":"blob.credit","request_id":"r","frames":5_000_000_000u64})),
            Received::Credit { frames: u32::MAX, .. }
        ));
        assert_eq!(parse(json!({"type":"capabilities"})), Received::Ignored);
        assert_eq!(parse(json!({"event":"x"})), Received::Ignored);
        assert_eq!(parse(json!([])), Received::Ignored);
    }

    #[test]
    fn what_is_sent_is_what_the_gateway_reads() {
        let agent = "ada.mini".parse().unwrap();
        let envelope = Envelope::new("evt_1", 7);
        let text = Sent::SessionCreate { envelope, session: NewSession { agent: &agent, token: "t" } }.to_text();
        let AgentFrame::SessionCreate(create) = AgentFrame::parse(&text).unwrap() else { panic!("{text}") };
        assert_eq!((create.agent.as_deref(), create.token.as_deref()), (Some("ada.mini"), Some("t")));

        let end = BlobEnd { request_id: "r".parse().unwrap(), offset: 1, length: 2, bytes: 2 };
        let text = Sent::BlobEnd(&end).to_text();
        assert!(matches!(AgentFrame::parse(&text).unwrap(), AgentFrame::BlobEnd(read) if read == end), "{text}");

        let text = Sent::BadRequest { request_id: "", error: ErrorBody::new("bad_request", "m") }.to_text();
        assert_eq!(text, r#"{"type":"blob.error","request_id":"","error":{"code":"bad_request","message":"m"}}"#);

        let (task_id, session_id) = ("task-1".parse().unwrap(), "s".parse().unwrap());
        let manifest = RawValue::from_string(r#"{"kind":"x"}"#.into()).unwrap();
        let text = Sent::Announcement {
            envelope: Envelope::new("evt_2", 7),
            task_id: &task_id,
            sha256: Sha256::of(b""),
            size: 12,
            locations: [RelayLocation::of(&agent)],
            manifest: &manifest,
            session_id: &session_id,
        }
        .to_text();
        let AgentFrame::Announcement(announcement) = AgentFrame::parse(&text).unwrap() else { panic!("{text}") };
        assert_eq!(announcement.manifest.unwrap().get(), manifest.get());
        assert_eq!(announcement.locations.unwrap().get(), r#"[{"kind":"relay","agent":"ada.mini"}]"#);
        assert_eq!(announcement.session_id.as_deref(), Some("s"));
    }

    proptest! {
        #[test]
        fn no_text_upsets_the_reader(text in ".{0,200}") {
            Received::parse(&text);
        }

        #[test]
        fn no_members_upset_the_reader(kind in "(blob\\.(read|credit|cancel)|session\\.created|artifact\\.error)", id in any::<String>(), n in any::<i64>()) {
            parse(json!({"type":kind,"request_id":id,"session_id":id,"sha256":id,"offset":n,"length":n,"frames":n}));
        }
    }
}
