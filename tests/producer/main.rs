//! The agent's side against a small platform over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what goes wrong fails the test")]

mod connecting;
#[path = "../process/mod.rs"]
mod process;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::time::Duration;

use process::{Process, sluice};
use serde_json::{Value, json};
use sluice::producer::{AgentError, AgentEvent, AgentOptions, Backoff};
use support::platform::{Peer, Platform, ReadEnd, within};
use support::running::{Running, folder};
use support::{Origin, bytes, sha256};
use tokio_tungstenite::tungstenite::Message;

fn options(dir: &Path, platform: &Platform) -> AgentOptions {
    AgentOptions {
        name: Some("ada.mini".parse().unwrap()),
        backoff: Backoff { first: Duration::from_millis(5), cap: Duration::from_millis(20), ..Backoff::default() },
        confirm_window: Duration::from_millis(50),
        settle: Duration::from_millis(50),
        ..AgentOptions::new(dir, &platform.url, "the-token")
    }
}

async fn refusal_of(peer: &mut Peer, frame: Value) -> Value {
    peer.send(frame).await;
    peer.frame("blob.error").await
}

#[tokio::test]
async fn a_folder_is_announced_and_served_with_credit() {
    let large = bytes(1, 9 << 20);
    let dir = folder(&[("large.bin", &large), ("reports/a.txt", b"text"), ("empty", b"")]);
    let platform = Platform::start().await;
    let mut agent = Running::start(AgentOptions {
        task: Some("task-1".parse().unwrap()),
        session: Some("turn-7".parse().unwrap()),
        ..options(dir.path(), &platform)
    });

    let mut peer = platform.accept().await;
    assert_eq!(peer.path, "/ws");
    assert_eq!(peer.headers["authorization"], "Bearer the-token");
    assert!(!peer.headers.contains_key("uamp-connection"));
    let create = peer.frame("session.create").await;
    assert_eq!(create["session"], json!({"agent": "ada.mini", "token": "the-token"}));
    // No more than any platform is known to send.
    peer.send(json!({"type": "session.created", "session_id": "s-1"})).await;

    let announcement = peer.frame("artifact.manifest").await;
    assert_eq!(announcement["task_id"], "task-1");
    assert_eq!(announcement["session_id"], "turn-7");
    assert_eq!(announcement["locations"], json!([{"kind": "relay", "agent": "ada.mini"}]));
    let manifest = &announcement["manifest"];
    let canonical = serde_json_canonicalizer::to_vec(manifest).unwrap();
    assert_eq!(announcement["sha256"], sha256(&canonical));
    assert_eq!(announcement["size"], canonical.len());
    assert_eq!(manifest["producer"]["task"], "task-1");
    let paths: Vec<_> =
        manifest["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["empty", "large.bin", "reports/a.txt"]);
    let entry = &manifest["entries"][1];
    assert_eq!(entry["sha256"], sha256(&large));
    let chunks: Vec<_> = large.chunks(8 << 20).map(sha256).collect();
    assert_eq!(entry["chunks"], json!({"chunkSize": 8 << 20, "hashes": chunks}));

    let (received, end) = peer.read(&sha256(&large), 0, 9 << 20, 3).await;
    assert_eq!(end, ReadEnd::End { bytes: 9 << 20 });
    assert!(received == large, "other bytes than the file's");
    let (received, _) = peer.read(&sha256(&large), 1234, 5_000_000, 2).await;
    assert!(received == large[1234..5_001_234], "other bytes than the range's");
    let (received, _) = peer.read(&sha256(&canonical), 0, canonical.len() as u64, 1).await;
    assert_eq!(received, canonical);

    agent.event(|event| matches!(event, AgentEvent::Accepted { .. })).await;
    agent.stop().await;
    assert!(matches!(peer.next().await, Some(Message::Close(_))), "the agent leaves without a farewell");
}

#[tokio::test]
async fn nobody_is_told_of_an_agent_that_cannot_serve_yet() {
    let dir = folder(&[("large.bin", &bytes(4, 9 << 20))]);
    let platform = Platform::start().await;
    let mut agent = Running::start(options(dir.path(), &platform));
    let _peer = platform.accept().await;
    let events: Vec<_> = std::iter::from_fn(|| agent.events.try_recv().ok()).collect();
    assert!(events.iter().any(|event| matches!(event, AgentEvent::Published { files: 1, .. })), "{events:?}");
    agent.stop().await;
}

#[tokio::test]
async fn nothing_is_sent_without_credit_and_control_frames_pass_data() {
    const FRAMES: usize = 256;
    let large = bytes(2, FRAMES * 256 * 1024);
    let dir = folder(&[("large.bin", &large)]);
    let platform = Platform::start().await;
    let agent = Running::start(options(dir.path(), &platform));
    let mut peer = platform.accept_session("s-1").await;
    peer.frame("artifact.manifest").await;

    peer.send(
        json!({"type": "blob.read", "request_id": "r", "sha256": sha256(&large), "offset": 0, "length": large.len()}),
    )
    .await;
    let mut frames = 0;
    while frames < 4 {
        frames += usize::from(matches!(peer.next().await, Some(Message::Binary(_))));
    }
    assert!(peer.frames_before_pong().await.is_empty(), "a fifth frame without credit");
    peer.send(json!({"type": "blob.credit", "request_id": "r", "frames": 2})).await;
    peer.next().await;
    peer.next().await;
    assert!(peer.frames_before_pong().await.is_empty());

    // A refusal is not queued behind the data of a read with all the credit there is, more than any socket holds.
    peer.send(json!({"type": "blob.credit", "request_id": "r", "frames": 1024})).await;
    let unknown = json!({"type": "blob.read", "request_id": "x", "sha256": sha256(b""), "offset": 0, "length": 1});
    peer.send(unknown).await;
    let mut sent = 6;
    while !matches!(peer.next().await, Some(Message::Text(_))) {
        sent += 1;
    }
    assert!(sent < FRAMES, "the refusal came last");
    peer.send(json!({"type": "blob.cancel", "request_id": "r"})).await;
    sent += peer.frames_before_pong().await.len();
    assert!(sent < FRAMES, "the cancelled read went on to its end");
    assert!(peer.frames_before_pong().await.is_empty(), "data of a cancelled read");
    agent.stop().await;
}

#[tokio::test]
async fn each_refusal_has_its_code_on_the_wire() {
    let dir = folder(&[("a", b"four")]);
    let platform = Platform::start().await;
    let agent = Running::start(options(dir.path(), &platform));
    let mut peer = platform.accept_session("s-1").await;
    let hash = sha256(b"four");
    let cases = [
        (json!({"request_id": "1", "sha256": sha256(b"no"), "offset": 0, "length": 1}), "unknown_blob"),
        (json!({"request_id": "2", "sha256": hash, "offset": 4, "length": 1}), "range_invalid"),
        (json!({"request_id": "3", "sha256": hash, "offset": 0, "length": (64 << 20) + 1}), "bad_request"),
        (json!({"request_id": "4", "sha256": "zz", "offset": 0, "length": 1}), "bad_request"),
        (json!({"request_id": "5", "sha256": hash, "offset": -1, "length": 1}), "bad_request"),
        (json!({"request_id": "x".repeat(65), "sha256": hash, "offset": 0, "length": 1}), "bad_request"),
        (json!({"request_id": "", "sha256": hash, "offset": 0, "length": 1}), "bad_request"),
    ];
    peer.frame("artifact.manifest").await;
    for (mut read, code) in cases {
        read["type"] = json!("blob.read");
        let refused = refusal_of(&mut peer, read.clone()).await;
        assert_eq!((&refused["request_id"], &refused["error"]["code"]), (&read["request_id"], &json!(code)));
    }
    for n in 0..17 {
        let read = json!({"type": "blob.read", "request_id": format!("n{n}"), "sha256": hash, "offset": 0, "length": 1, "credit": 0});
        peer.send(read).await;
    }
    let refused = peer.frame("blob.error").await;
    assert_eq!((&refused["request_id"], &refused["error"]["code"]), (&json!("n16"), &json!("too_many_reads")));
    let twice = json!({"type": "blob.read", "request_id": "n0", "sha256": hash, "offset": 0, "length": 1});
    assert_eq!(refusal_of(&mut peer, twice).await["error"]["code"], "duplicate_request");
    std::fs::write(dir.path().join("a"), "other").unwrap();
    peer.send(json!({"type": "blob.cancel", "request_id": "n0"})).await;
    let changed = json!({"type": "blob.read", "request_id": "c", "sha256": hash, "offset": 0, "length": 1});
    assert_eq!(refusal_of(&mut peer, changed).await["error"]["code"], "unknown_blob");
    agent.stop().await;
}

#[tokio::test]
async fn after_a_cut_reads_go_on_and_nothing_is_announced_again() {
    let large = bytes(3, 4 << 20);
    let dir = folder(&[("large.bin", &large)]);
    let platform = Platform::start().await;
    let mut agent = Running::start(options(dir.path(), &platform));
    let mut peer = platform.accept_session("s-1").await;
    peer.frame("artifact.manifest").await;
    agent.event(|event| matches!(event, AgentEvent::Accepted { .. })).await;
    let read =
        json!({"type": "blob.read", "request_id": "r", "sha256": sha256(&large), "offset": 0, "length": 4 << 20});
    peer.send(read).await;
    assert!(matches!(peer.next().await, Some(Message::Binary(_))));
    drop(peer);

    for session in ["s-2", "s-3"] {
        let mut peer = platform.accept_session(session).await;
        // The same request id is free again: the agent keeps no state across connections.
        let (received, end) = peer.read(&sha256(&large), 1 << 20, 3 << 20, 4).await;
        assert_eq!(end, ReadEnd::End { bytes: 3 << 20 });
        assert!(received == large[1 << 20..]);
        assert_eq!(peer.passed, [Value::Null; 0], "something was sent unasked");
        peer.close(1012).await;
    }
    agent.event(|event| matches!(event, AgentEvent::Disconnected { reason, .. } if reason.contains("1012"))).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_data_connection_carries_reads_and_comes_back() {
    let large = bytes(4, 2 << 20);
    let dir = folder(&[("large.bin", &large)]);
    let platform = Platform::start().await;
    let mut agent = Running::start(AgentOptions { data: true, ..options(dir.path(), &platform) });
    let mut control = platform.accept_session("s-1").await;
    for _ in 0..2 {
        let mut data = platform.accept().await;
        assert_eq!(data.path, "/ws?conn=data");
        assert_eq!(data.headers["uamp-connection"], "data");
        assert_eq!(data.headers["authorization"], "Bearer the-token");
        assert_eq!(data.frame("data.hello").await["agent"], "ada.mini");
        data.send(json!({"type": "data.ready"})).await;
        agent.event(|event| *event == AgentEvent::DataConnected).await;
        let (received, _) = data.read(&sha256(&large), 0, 2 << 20, 4).await;
        assert!(received == large);
    }
    let (received, _) = control.read(&sha256(&large), 0, 2 << 20, 4).await;
    assert!(received == large);
    // Refused once, it tries again.
    let mut data = platform.accept().await;
    data.frame("data.hello").await;
    data.send(json!({"type": "data.error", "error": {"code": "agent_offline", "message": "not yet"}})).await;
    platform.accept().await.frame("data.hello").await;
    agent.stop().await;
}

#[tokio::test]
async fn a_watched_change_is_announced_and_the_old_set_stays() {
    let dir = folder(&[("a.txt", b"one")]);
    let platform = Platform::start().await;
    let mut agent = Running::start(AgentOptions { watch: true, ..options(dir.path(), &platform) });
    let mut peer = platform.accept_session("s-1").await;
    let first = peer.frame("artifact.manifest").await;
    agent.event(|event| matches!(event, AgentEvent::Accepted { .. })).await;

    std::fs::create_dir(dir.path().join("new")).unwrap();
    std::fs::write(dir.path().join("new/b.txt"), "two").unwrap();
    let second = peer.frame("artifact.manifest").await;
    assert_ne!(first["sha256"], second["sha256"]);
    assert_eq!(second["manifest"]["entries"][1]["path"], "new/b.txt");
    let (received, _) = peer.read(&sha256(b"two"), 0, 3, 1).await;
    assert_eq!(received, b"two");
    let size = first["size"].as_u64().unwrap();
    let (received, _) = peer.read(first["sha256"].as_str().unwrap(), 0, size, 1).await;
    assert_eq!(sha256(&received), first["sha256"]);

    // A change while disconnected is announced on the next session.
    drop(peer);
    std::fs::write(dir.path().join("c.txt"), "three").unwrap();
    agent.event(|event| matches!(event, AgentEvent::Published { files: 3, .. })).await;
    let mut peer = platform.accept_session("s-2").await;
    assert_eq!(peer.frame("artifact.manifest").await["manifest"]["entries"][1]["path"], "c.txt");
    agent.stop().await;
}

#[tokio::test]
async fn a_watched_empty_folder_is_waited_for() {
    let dir = folder(&[]);
    let platform = Platform::start().await;
    let agent = Running::start(options(dir.path(), &platform));
    let error = agent.error().await;
    assert!(matches!(error, AgentError::Publish(_)) && error.to_string().contains("use --watch"), "{error}");

    let platform = Platform::start().await;
    let mut agent = Running::start(AgentOptions { watch: true, ..options(dir.path(), &platform) });
    let told = agent.event(|event| matches!(event, AgentEvent::PublishFailed { .. })).await.to_string();
    let waits = "holds no files to serve; the folder is looked at again when it changes";
    assert!(told.starts_with("not published: ") && told.ends_with(waits), "{told}");
    std::fs::write(dir.path().join("a.txt"), "one").unwrap();
    let mut peer = platform.accept_session("s-1").await;
    peer.frame("artifact.manifest").await;
    agent.stop().await;
}

#[tokio::test]
async fn a_file_that_changed_is_told_once() {
    let dir = folder(&[("a", b"one"), ("b", b"two")]);
    let platform = Platform::start().await;
    let mut agent = Running::start(options(dir.path(), &platform));
    let mut peer = platform.accept_session("s-1").await;
    peer.frame("artifact.manifest").await;
    std::fs::write(dir.path().join("a"), "another").unwrap();
    std::fs::remove_file(dir.path().join("b")).unwrap();
    for (file, bytes) in [("a", b"one"), ("b", b"two")] {
        for request in ["1", "2"] {
            let read =
                json!({"type": "blob.read", "request_id": request, "sha256": sha256(bytes), "offset": 0, "length": 1});
            assert_eq!(refusal_of(&mut peer, read).await["error"]["code"], "unknown_blob");
        }
        let told = agent.event(|event| matches!(event, AgentEvent::Unserved { .. })).await;
        assert!(told.to_string().contains("use --watch"), "{told}");
        assert!(matches!(told, AgentEvent::Unserved { path, .. } if path.ends_with(file)));
    }
    agent.shutdown.cancel();
    while let Some(event) = within(agent.events.recv()).await {
        assert!(!matches!(event, AgentEvent::Unserved { .. }), "told again: {event}");
    }
}

#[tokio::test]
async fn whoever_watches_is_not_told_to() {
    let dir = folder(&[("a", b"one")]);
    let platform = Platform::start().await;
    // Never published again within this test.
    let settle = Duration::from_secs(60);
    let mut agent = Running::start(AgentOptions { watch: true, settle, ..options(dir.path(), &platform) });
    let mut peer = platform.accept_session("s-1").await;
    peer.frame("artifact.manifest").await;
    std::fs::write(dir.path().join("a"), "another").unwrap();
    let read = json!({"type": "blob.read", "request_id": "1", "sha256": sha256(b"one"), "offset": 0, "length": 1});
    assert_eq!(refusal_of(&mut peer, read).await["error"]["code"], "unknown_blob");
    let told = agent.event(|event| matches!(event, AgentEvent::Unserved { .. })).await.to_string();
    assert!(told.contains("published again") && !told.contains("--watch"), "{told}");
    agent.stop().await;
}

#[tokio::test]
async fn who_can_read_a_set_is_told_once() {
    let dir = folder(&[("a", b"a")]);
    for session in [None, Some("turn-7")] {
        let platform = Platform::start().await;
        let session = session.map(|session| session.parse().unwrap());
        let mut agent =
            Running::start(AgentOptions { session: session.clone(), watch: true, ..options(dir.path(), &platform) });
        let mut peer = platform.accept_session("s-1").await;
        peer.frame("artifact.manifest").await;
        let told = agent.event(|event| matches!(event, AgentEvent::Audience { .. })).await;
        match &session {
            Some(session) => {
                let told = told.to_string();
                assert!(
                    told.contains(&format!("session {session} of agent ada.mini is bound to see it; if ")),
                    "{told}"
                );
            }
            None => assert!(told.to_string().contains("nobody can read it: without --session")),
        }
        std::fs::write(dir.path().join("b"), session.map_or("b", |_| "c")).unwrap();
        peer.frame("artifact.manifest").await;
        agent.event(|event| matches!(event, AgentEvent::Accepted { .. })).await;
        agent.shutdown.cancel();
        while let Some(event) = within(agent.events.recv()).await {
            assert!(!matches!(event, AgentEvent::Audience { .. }), "told again: {event}");
        }
    }
}

#[tokio::test]
async fn a_refusal_that_passes_is_waited_out() {
    let dir = folder(&[("a", b"a")]);
    let platform = Platform::start().await;
    let mut agent = Running::start(AgentOptions {
        confirm_window: Duration::from_secs(60),
        announce_again: Duration::from_millis(10),
        ..options(dir.path(), &platform)
    });
    let mut peer = platform.accept_session("s-1").await;
    for code in ["rate_limited", "unavailable"] {
        let announcement = peer.frame("artifact.manifest").await;
        peer.send(json!({"type": "artifact.error", "event_id": announcement["event_id"],
            "sha256": announcement["sha256"], "error": {"code": code, "message": "later"}}))
            .await;
        agent.event(|event| matches!(event, AgentEvent::Refused { code: refused, .. } if refused == code)).await;
    }
    peer.frame("artifact.manifest").await;
    agent.stop().await;
}

#[tokio::test]
async fn every_refused_announcement_is_told() {
    let dir = folder(&[("a", b"a")]);
    let platform = Platform::start().await;
    let mut agent = Running::start(options(dir.path(), &platform));
    let mut peer = platform.accept_session("s-1").await;
    let announcement = peer.frame("artifact.manifest").await;
    let refusal = |code: &str| {
        json!({"type": "artifact.error", "event_id": announcement["event_id"], "sha256": announcement["sha256"],
            "error": {"code": code, "message": "m"}})
    };
    let refused = |wanted: &'static str| move |event: &AgentEvent| matches!(event, AgentEvent::Refused { code, .. } if code == wanted);
    peer.send(refusal("quota_exceeded")).await;
    agent.event(refused("quota_exceeded")).await;
    // Also long after the confirm window.
    peer.send(refusal("hash_mismatch")).await;
    agent.event(refused("hash_mismatch")).await;
    // One that no set in this session would escape ends the agent.
    peer.send(refusal("session_unknown")).await;
    agent.event(refused("session_unknown")).await;
    let error = agent.error().await;
    assert!(matches!(&error, AgentError::SetRefused { code, .. } if code == "session_unknown"), "{error}");
    assert!(error.to_string().contains("--session"), "{error}");
}

#[tokio::test]
async fn a_turn_is_declined() {
    let dir = folder(&[("a", b"a")]);
    let platform = Platform::start().await;
    let agent = Running::start(options(dir.path(), &platform));
    let mut peer = platform.accept_session("s-1").await;
    peer.send(json!({"type": "input.text", "session_id": "turn-1", "text": "hello"})).await;
    let declined = peer.frame("response.error").await;
    assert_eq!((&declined["session_id"], &declined["error"]["code"]), (&json!("turn-1"), &json!("rejected")));
    agent.stop().await;
}

#[tokio::test]
async fn options_that_cannot_work_end_at_once() {
    let dir = folder(&[("a", b"a")]);
    let platform = Platform::start().await;
    let without_name = AgentOptions { name: None, ..options(dir.path(), &platform) };
    assert!(matches!(Running::start(without_name).error().await, AgentError::NoName));
    let bad_token = AgentOptions { token: "a\nb".into(), ..options(dir.path(), &platform) };
    assert!(matches!(Running::start(bad_token).error().await, AgentError::Token));
    let bad_url = AgentOptions { gateway: "nonsense".into(), ..options(dir.path(), &platform) };
    assert!(matches!(Running::start(bad_url).error().await, AgentError::Gateway(_)));
    let no_folder = AgentOptions { dir: dir.path().join("none"), ..options(dir.path(), &platform) };
    assert!(matches!(Running::start(no_folder).error().await, AgentError::Publish(_)));
}

#[test]
fn options_do_not_show_the_token() {
    let shown = format!("{:?}", AgentOptions::new("dir", "http://gw", "the-token"));
    assert!(!shown.contains("the-token"), "{shown}");
}
