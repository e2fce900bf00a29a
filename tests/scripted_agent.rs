//! The scriptable agent does what it claims: what other tests conclude from it is worth no more than that.

mod support;

use serde_json::{Value, json};
use support::behaviour::data_frame;
use support::platform::{Peer, Platform, ReadEnd};
use support::{Agent, Behaviour, ConnectError, Fault, Kind, SampleSet, What, bytes, sha256};
use tokio_tungstenite::tungstenite::Message;

const LEN: usize = 1_000_000;
const AT: u64 = 400_000;

async fn connected(platform: &Platform) -> (Agent, Peer) {
    tokio::join!(Agent::connect(&platform.url, "t", "ada.mini"), platform.accept_session("s-1"))
}

async fn ask(peer: &mut Peer, id: &str, hash: &str, credit: u32) {
    let read =
        json!({"type": "blob.read", "request_id": id, "sha256": hash, "offset": 0, "length": LEN, "credit": credit});
    peer.send(read).await;
}

#[tokio::test]
async fn an_obedient_agent_serves_within_its_credit_and_logs_it() {
    let platform = Platform::start().await;
    let (agent, mut peer) = connected(&platform).await;
    let blob = bytes(1, LEN);
    let hash = agent.serve_bytes(&blob);
    let (received, end) = peer.read(&hash, 10, 900_000, 1).await;
    assert_eq!(end, ReadEnd::End { bytes: 900_000 });
    assert!(received == blob[10..900_010]);
    agent.wait_for(|event| matches!(event.what, What::Read { offset: 10, length: 900_000, credit: Some(1), .. })).await;
    agent.wait_for(|event| matches!(event.what, What::SentEnd { .. })).await;
    assert_eq!((agent.bytes_sent(), agent.most_concurrent_reads(), agent.reads().len()), (900_000, 1, 1));

    ask(&mut peer, "r", &hash, 1).await;
    assert!(matches!(peer.next().await, Some(Message::Binary(_))));
    peer.send(json!({"type": "blob.cancel", "request_id": "r"})).await;
    agent.wait_for(|event| event.what.is_cancel()).await;
    assert!(peer.frames_before_pong().await.is_empty());
    let (_, end) = peer.read(&sha256(b"no"), 0, 1, 1).await;
    assert_eq!(end, ReadEnd::Error { code: "unknown_blob".into() });
    assert_eq!(agent.wait_for_reads(3).await.len(), 3);
}

#[tokio::test]
async fn faults_that_end_a_read_come_after_exactly_the_bytes_before_and_only_once() {
    let platform = Platform::start().await;
    let blob = bytes(1, LEN);
    let cases = [
        (Fault::Die, AT, ReadEnd::Lost),
        (Fault::Error("read_failed"), AT, ReadEnd::Error { code: "read_failed".into() }),
        (Fault::Short, AT, ReadEnd::End { bytes: AT }),
        (Fault::ShortLie, AT, ReadEnd::End { bytes: LEN as u64 }),
        (Fault::WrongEndBytes, LEN as u64, ReadEnd::End { bytes: LEN as u64 + 1 }),
    ];
    for (fault, expected_len, expected_end) in cases {
        let (mut agent, mut peer) = connected(&platform).await;
        agent.behave(Behaviour::obedient().at(AT, fault));
        let hash = agent.serve_bytes(&blob);
        let (received, end) = peer.read(&hash, 0, LEN as u64, 4).await;
        assert_eq!((received.len() as u64, end), (expected_len, expected_end), "{fault:?}");
        assert!(received == blob[..received.len()], "{fault:?}");
        if fault == Fault::Die {
            drop(peer);
            ((), peer) = tokio::join!(agent.reconnect(), platform.accept_session("s-2"));
            assert_eq!(agent.session_id(), "s-2");
        }
        let (received, end) = peer.read(&hash, 0, LEN as u64, 4).await;
        assert_eq!(end, ReadEnd::End { bytes: LEN as u64 }, "{fault:?} a second time");
        assert!(received == blob);
    }
}

#[tokio::test]
async fn wrong_frames_are_wrong_in_the_way_named() {
    let platform = Platform::start().await;
    let blob = bytes(1, LEN);
    let rest = &blob[AT as usize..][..256 * 1024];
    let right = data_frame("r", AT, rest);
    let mut corrupt = right.clone();
    corrupt[4 + 1 + 8] ^= 0xff;
    let mut oversize = rest.to_vec();
    oversize.push(0);
    let cases = [
        (Fault::Corrupt, corrupt),
        (Fault::WrongOffset, data_frame("r", AT + 1, rest)),
        (Fault::Gap, data_frame("r", AT + rest.len() as u64, &blob[AT as usize + rest.len()..][..256 * 1024])),
        (Fault::Duplicate, right.clone()),
        (Fault::WrongRequestId, data_frame("no-such-read", AT, rest)),
        (Fault::Oversize, data_frame("r", AT, &oversize)),
        (Fault::Empty, data_frame("r", AT, &[])),
        (Fault::WrongVersion, [&[2], &right[1..]].concat()),
        (Fault::WrongKind, [&[1, 7], &right[2..]].concat()),
        (Fault::Truncated, right[..8].to_vec()),
    ];
    for (fault, expected) in cases {
        let (agent, mut peer) = connected(&platform).await;
        agent.behave(Behaviour::obedient().at(AT, fault));
        let hash = agent.serve_bytes(&blob);
        ask(&mut peer, "r", &hash, 10).await;
        // 262,144 bytes, then the rest up to the fault, then the fault.
        peer.next().await;
        assert_eq!(peer.next().await.unwrap().into_data(), data_frame("r", 262_144, &blob[262_144..AT as usize]));
        let wrong = peer.next().await.unwrap().into_data();
        assert!(wrong == expected, "{fault:?}");
        if fault == Fault::Duplicate {
            assert!(peer.next().await.unwrap().into_data() == right);
        }
    }
}

#[tokio::test]
async fn stalling_leaves_the_connection_alive_and_half_open_does_not() {
    let platform = Platform::start().await;
    let (mut agent, mut peer) = connected(&platform).await;
    let (stuck, fine) = (agent.serve_bytes(&bytes(1, LEN)), agent.serve_bytes(&bytes(2, LEN)));
    agent.behave_for(&stuck, Behaviour::obedient().at(0, Fault::Stall));
    ask(&mut peer, "stuck", &stuck, 100).await;
    let (received, _) = peer.read(&fine, 0, LEN as u64, 4).await;
    assert_eq!(sha256(&received), fine);
    assert_eq!(agent.most_concurrent_reads(), 2);

    agent.behave(Behaviour::obedient().at(0, Fault::HalfOpen));
    ask(&mut peer, "half", &fine, 100).await;
    agent.wait_for(|event| matches!(&event.what, What::Misbehaved { request_id } if request_id == "half")).await;
    let mark = agent.log().mark();
    peer.send(json!({"type": "blob.cancel", "request_id": "half"})).await;
    agent.cut().await;
    assert!(peer.next().await.is_none());
    let after = agent.log().all().split_off(mark);
    assert_eq!(after.into_iter().map(|event| event.what).collect::<Vec<_>>(), [What::Cut]);
}

#[tokio::test]
async fn greed_tiny_frames_and_deafness() {
    let platform = Platform::start().await;
    let (agent, mut peer) = connected(&platform).await;
    let hash = agent.serve_bytes(&bytes(1, LEN));
    agent.behave(Behaviour::obedient().greedy().frames_of(1000));
    ask(&mut peer, "r", &hash, 0).await;
    let (received, end) = peer.take(0, false).await;
    assert_eq!((sha256(&received), end), (hash.clone(), ReadEnd::End { bytes: LEN as u64 }));

    agent.behave(Behaviour::obedient().ignoring_cancel());
    ask(&mut peer, "r", &hash, 1).await;
    peer.send(json!({"type": "blob.cancel", "request_id": "r"})).await;
    peer.send(json!({"type": "blob.credit", "request_id": "r", "frames": 100})).await;
    assert_eq!(sha256(&peer.take(0, false).await.0), hash);
}

#[tokio::test]
async fn what_comes_after_the_end() {
    let platform = Platform::start().await;
    let (agent, mut peer) = connected(&platform).await;
    let hash = agent.serve_bytes(&bytes(1, LEN));
    agent.behave(Behaviour::obedient().at(0, Fault::EndTwice));
    ask(&mut peer, "r", &hash, 10).await;
    assert_eq!(peer.take(0, false).await.1, ReadEnd::End { bytes: LEN as u64 });
    peer.frame("blob.end").await;

    agent.behave(Behaviour::obedient().at(0, Fault::TooLong));
    ask(&mut peer, "r", &hash, 10).await;
    assert_eq!(peer.take(0, false).await.0.len(), LEN + 1);

    agent.behave(Behaviour::obedient().at(0, Fault::NoEnd));
    ask(&mut peer, "r", &hash, 10).await;
    let mut received = 0;
    while received < LEN {
        let Some(Message::Binary(frame)) = peer.next().await else { panic!("no data") };
        received += frame.len() - 13;
    }
    assert!(peer.frames_before_pong().await.is_empty());
    assert_eq!(peer.passed, [Value::Null; 0]);
}

#[tokio::test]
async fn connections_sessions_and_announcements() {
    let platform = Platform::start().await;
    let builder =
        Agent::builder(&platform.url, "t", "ada.mini").token_in_query().session("ada.other", Some("u")).data();
    let serving = async {
        let mut control = platform.accept_session("s-1").await;
        let create = control.frame("session.create").await;
        assert_eq!(create["session"], json!({"agent": "ada.other", "token": "u"}));
        let created = json!({"type": "session.created", "session_id": "s-2", "session": {"agent": "ada.other"}});
        control.send(created).await;
        let mut data = platform.accept().await;
        data.frame("data.hello").await;
        data.send(json!({"type": "data.ready"})).await;
        (control, data)
    };
    let (mut agent, (mut control, data)) = tokio::join!(builder.connect(), serving);
    assert_eq!((control.path.as_str(), data.path.as_str()), ("/ws?token=t", "/ws?token=t&conn=data"));
    assert!(!control.headers.contains_key("authorization"));
    assert_eq!((agent.session_id(), agent.session_of("ada.other")), ("s-1", "s-2"));

    let set = SampleSet::of([("a.bin", bytes(1, LEN))]).chunked(256 * 1024).task("task-1");
    let event_id = agent.announce_in("turn-1", &set).await;
    let frame = control.frame("artifact.manifest").await;
    assert_eq!((&frame["event_id"], &frame["session_id"]), (&json!(event_id), &json!("turn-1")));
    let manifest = sluice::protocol::manifest::read(&frame["manifest"].to_string()).unwrap();
    assert_eq!(manifest.identity.to_hex(), set.identity());
    control
        .send(json!({"type": "artifact.error", "event_id": event_id, "sha256": set.identity(), "error": {"code": "x"}}))
        .await;
    agent.wait_for(|event| matches!(&event.what, What::ArtifactError { code, .. } if code == "x")).await;

    agent.cut_one(Kind::Data).await;
    assert!(agent.is_over(Kind::Data) && !agent.is_over(Kind::Control));
    control.close(1012).await;
    agent.wait_for(|event| matches!(event.what, What::Closed { code: 1012, .. })).await;

    let builder = Agent::builder(&platform.url, "t", "ada.mini");
    let (refused, ()) = tokio::join!(builder.clone().try_connect(), platform.refuse(401));
    assert!(matches!(refused, Err(ConnectError::Status(401))));
    let refusing = async {
        let mut peer = platform.accept().await;
        peer.frame("session.create").await;
        peer.send(json!({"type": "session.error", "error": {"code": "forbidden"}})).await;
        peer
    };
    let (refused, _peer) = tokio::join!(builder.try_connect(), refusing);
    assert!(matches!(refused, Err(ConnectError::Session(frame)) if frame["error"]["code"] == "forbidden"));
}
