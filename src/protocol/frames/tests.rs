use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::protocol::limits::FRAME_TO_AGENT;

fn hash() -> Sha256 {
    Sha256::of(b"x")
}

/// One valid frame of every type that an agent sends.
fn from_agents() -> Vec<Value> {
    vec![
        json!({ "type": "session.create", "event_id": "e", "agent": "flow", "token": "t" }),
        json!({ "type": "session.update", "event_id": "e", "session_id": "s", "token": "t" }),
        json!({ "type": "session.end", "session_id": "s" }),
        json!({ "type": "ping", "event_id": "e" }),
        json!({ "type": "data.hello", "event_id": "e", "timestamp": 0, "uamp_version": "1.0", "agent": "flow" }),
        json!({ "type": "blob.end", "request_id": "r", "offset": 1, "length": 2, "bytes": 2 }),
        json!({ "type": "blob.error", "request_id": "r", "error": { "code": "unknown_blob", "message": "gone" } }),
        json!({
            "type": "artifact.manifest", "event_id": "e", "task_id": "t", "sha256": hash(), "size": 3, "locations": [],
            "manifest": { "kind": "x" }, "progress": { "done": 1, "total": 2 }, "session_id": "s"
        }),
    ]
}

/// One of every frame that is sent to an agent.
fn to_agents() -> Vec<PlatformFrame> {
    let envelope = || Envelope::new("e", 1);
    let error = || ErrorBody::new("forbidden", "no");
    let request_id = || "r".parse::<RequestId>().unwrap();
    let agent = || "flow".parse::<AgentName>().unwrap();
    let session_id = || "s".parse::<SessionId>().unwrap();
    let session = SessionInfo {
        id: Some(session_id()),
        agent: agent(),
        agent_id: Some("a1".to_owned()),
        agent_username: Some(agent()),
    };
    vec![
        PlatformFrame::SessionCreated { envelope: envelope(), session_id: session_id(), session, agent: agent() },
        PlatformFrame::SessionError { envelope: envelope(), agent: Some("flow".to_owned()), error: error() },
        PlatformFrame::SessionError { envelope: envelope(), agent: None, error: error() },
        PlatformFrame::SessionUpdated { envelope: envelope(), session_id: session_id() },
        PlatformFrame::Pong { event_id: "e".to_owned() },
        PlatformFrame::DataReady { envelope: envelope() },
        PlatformFrame::DataError { envelope: envelope(), error: error() },
        PlatformFrame::BlobRead(BlobRead {
            request_id: request_id(),
            sha256: hash(),
            offset: u64::MAX,
            length: 1,
            credit: Some(4),
        }),
        PlatformFrame::BlobRead(BlobRead {
            request_id: request_id(),
            sha256: hash(),
            offset: 0,
            length: 1,
            credit: None,
        }),
        PlatformFrame::BlobCredit { request_id: request_id(), frames: 1 },
        PlatformFrame::BlobCancel { request_id: request_id() },
        PlatformFrame::ArtifactError { event_id: Some("e".to_owned()), sha256: hash().to_hex(), error: error() },
        PlatformFrame::ArtifactError { event_id: None, sha256: "?".to_owned(), error: error() },
    ]
}

#[test]
fn every_frame_of_an_agent_is_known() {
    for frame in from_agents() {
        let text = frame.to_string();
        let parsed = AgentFrame::parse(&text).unwrap();
        assert!(!matches!(parsed, AgentFrame::Unknown(_)), "{text}");
    }
}

#[test]
fn session_create_nested_or_not() {
    let parse = |frame: Value| match AgentFrame::parse(&frame.to_string()).unwrap() {
        AgentFrame::SessionCreate(create) => (create.event_id, create.agent, create.token),
        other => panic!("{other:?}"),
    };
    let expected = (Some("e".to_owned()), Some("flow".to_owned()), Some("t".to_owned()));
    let flat = json!({ "type": "session.create", "event_id": "e", "agent": "flow", "token": "t" });
    assert_eq!(parse(flat), expected);
    let nested = json!({ "type": "session.create", "event_id": "e", "session": { "agent": "flow", "token": "t" } });
    assert_eq!(parse(nested), expected);
    let both = json!({ "type": "session.create", "event_id": "e", "agent": "x", "token": "t", "session": { "agent": "flow" } });
    assert_eq!(parse(both), expected);
    assert_eq!(parse(json!({ "type": "session.create", "session": null })), (None, None, None));
}

#[test]
fn debug_output_shows_no_token() {
    for text in [
        r#"{"type":"session.create","agent":"flow","token":"secret"}"#,
        r#"{"type":"session.create","session":{"agent":"flow","token":"secret"}}"#,
        r#"{"type":"session.update","session_id":"s","token":"secret"}"#,
    ] {
        let shown = format!("{:?}", AgentFrame::parse(text).unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }
}

#[test]
fn a_long_frame_is_read_as_a_short_one() {
    for frame in from_agents() {
        let mut long = frame.clone();
        long["padding"] = json!("x".repeat(LONG));
        let read =
            |frame: &Value| format!("{:?}", AgentFrame::parse(&frame.to_string()).map_err(|error| error.to_string()));
        assert_eq!(read(&long), read(&frame), "{frame}");
        // What looks like an announcement is none for it.
        long["type"] = json!("other");
        assert!(matches!(AgentFrame::parse(&long.to_string()), Ok(AgentFrame::Unknown(kind)) if kind == "other"));
        long["type"] = Value::Null;
        assert!(matches!(AgentFrame::parse(&long.to_string()), Err(InvalidFrame::NoType)));
    }
    let broken = json!({ "type": "artifact.manifest", "padding": "x".repeat(LONG) }).to_string();
    assert!(matches!(AgentFrame::parse(&broken), Err(InvalidFrame::Announcement(_))));
}

#[test]
fn an_announcement_borrows_its_manifest_as_received() {
    let manifest = r#"{ "b" : 1.0, "a" : null, "b" : 2 }"#;
    let text = format!(r#"{{"type":"artifact.manifest","sha256":"{}","size":3,"manifest":{manifest}}}"#, hash());
    let AgentFrame::Announcement(announcement) = AgentFrame::parse(&text).unwrap() else { panic!("an announcement") };
    assert_eq!(announcement.manifest.map(RawValue::get), Some(manifest));
    assert!(announcement.locations.is_none() && announcement.progress.is_none());
}

#[test]
fn what_is_no_frame() {
    assert!(matches!(AgentFrame::parse("{}"), Err(InvalidFrame::NoType)));
    assert!(matches!(AgentFrame::parse(r#"{"type":null}"#), Err(InvalidFrame::NoType)));
    for text in [
        "",
        "[]",
        "1",
        r#"{"type":1}"#,
        r#"{"type":"ping""#,
        r#"{"type":"ping"} x"#,
        r#"{"type":"ping","type":"ping"}"#,
        r#"{"type":"ping","event_id":1}"#,
        r#"{"type":"blob.end","request_id":"r","offset":-1,"length":2,"bytes":2}"#,
        r#"{"type":"blob.end","request_id":"r","offset":1.5,"length":2,"bytes":2}"#,
        r#"{"type":"blob.end","request_id":"r","offset":18446744073709551616,"length":2,"bytes":2}"#,
        r#"{"type":"blob.end","request_id":"","offset":1,"length":2,"bytes":2}"#,
        r#"{"type":"blob.error","request_id":"r","error":"gone"}"#,
    ] {
        assert!(matches!(AgentFrame::parse(text), Err(InvalidFrame::Json(_))), "{text}");
    }
    // These are told apart, because they are answered.
    for text in [r#"{"type":"artifact.manifest","size":3}"#, r#"{"type":"artifact.manifest","sha256":"AB","size":3}"#] {
        assert!(matches!(AgentFrame::parse(text), Err(InvalidFrame::Announcement(_))), "{text}");
    }
    let long = format!(r#"{{"type":"blob.error","request_id":"{}","error":{{"code":"x"}}}}"#, "r".repeat(65));
    assert!(AgentFrame::parse(&long).is_err());
    let deep = format!(r#"{{"type":"ping","x":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let _ = AgentFrame::parse(&deep); // whatever it says, it returns
}

#[test]
fn unknown_types_are_left_alone() {
    let text = r#"{"type":"response.delta","anything":[1,{"a":2}]}"#;
    assert!(matches!(AgentFrame::parse(text), Ok(AgentFrame::Unknown(kind)) if kind == "response.delta"));
    let unknown: PlatformFrame = serde_json::from_str(r#"{"type":"input.text","text":"hi"}"#).unwrap();
    assert_eq!(unknown, PlatformFrame::Unknown);
}

#[test]
fn what_is_sent_to_an_agent_reads_back() {
    for frame in to_agents() {
        let text = frame.to_text();
        assert!(!text.is_empty() && text.len() <= FRAME_TO_AGENT);
        assert_eq!(serde_json::from_str::<PlatformFrame>(&text).unwrap(), frame, "{text}");
    }
}

#[test]
fn frames_to_an_agent_on_the_wire() {
    let text = |frame: &PlatformFrame| serde_json::from_str::<Value>(&frame.to_text()).unwrap();
    let frames = to_agents();
    assert_eq!(
        text(&frames[0]),
        json!({
            "type": "session.created", "event_id": "e", "timestamp": 1, "uamp_version": "1.0", "session_id": "s",
            "session": { "id": "s", "agent": "flow", "agent_id": "a1", "agent_username": "flow" }, "agent": "flow"
        })
    );
    assert_eq!(
        text(&frames[7]),
        json!({
            "type": "blob.read", "request_id": "r", "sha256": hash().to_hex(), "offset": u64::MAX, "length": 1,
            "credit": 4
        })
    );
    assert!(text(&frames[8]).get("credit").is_none());
    assert_eq!(text(&frames[9]), json!({ "type": "blob.credit", "request_id": "r", "frames": 1 }));
    assert_eq!(text(&frames[10]), json!({ "type": "blob.cancel", "request_id": "r" }));
    assert!(text(&frames[12]).get("event_id").is_none());
}

/// The list of specification section 4, word for word.
#[test]
fn the_codes_of_blob_error_are_the_specification_s() {
    let specified = "bad_request, unknown_blob, range_invalid, too_many_reads, duplicate_request, read_failed";
    assert_eq!(BlobErrorCode::ALL.map(BlobErrorCode::code).join(", "), specified);
    for code in BlobErrorCode::ALL {
        assert_eq!(BlobErrorCode::parse(code.code()), code);
    }
    assert_eq!(BlobErrorCode::parse("on_fire"), BlobErrorCode::ReadFailed);
}

proptest! {
    #[test]
    fn damaged_frames_are_read_or_refused(
        which in 0..8_usize,
        cut in 0.0..1.0_f64,
        changes in proptest::collection::vec((0.0..1.0_f64, "[ -~]"), 0..4),
    ) {
        let text = from_agents()[which].to_string();
        prop_assert!(AgentFrame::parse(&text[..(text.len() as f64 * cut) as usize]).is_err());
        let mut damaged = text.clone();
        for (at, with) in changes {
            let at = (text.len() as f64 * at) as usize;
            damaged.replace_range(at..at + 1, &with);
        }
        let id = match AgentFrame::parse(&damaged) {
            Ok(AgentFrame::BlobEnd(end)) => end.request_id,
            Ok(AgentFrame::BlobError(error)) => error.request_id,
            _ => return Ok(()),
        };
        prop_assert!((1..=64).contains(&id.as_str().len()));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,40}|\\{\"type\":\"[a-z.]{0,12}\"[\\PC]{0,20}\\}?") {
        let _ = AgentFrame::parse(&text);
        let _ = serde_json::from_str::<PlatformFrame>(&text);
    }

    #[test]
    fn blob_end_round_trip(id in "\\PC{1,16}", offset: u64, length: u64, bytes: u64) {
        let end = BlobEnd { request_id: id.parse().unwrap(), offset, length, bytes };
        let mut value = serde_json::to_value(&end).unwrap();
        value["type"] = json!("blob.end");
        let text = value.to_string();
        prop_assert!(matches!(AgentFrame::parse(&text), Ok(AgentFrame::BlobEnd(read)) if read == end));
    }
}
