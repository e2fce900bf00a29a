//! Hostile frames: each costs its sender at most its connection, is counted, and leaves the gateway serving another agent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use serde_json::json;
use support::behaviour::data_frame;
use support::{Agent, Behaviour, Event, Fault, Gateway, Kind, SampleSet, What, Wire, bytes, set_file, span};
use tokio_tungstenite::tungstenite::Message;

const ENDED: &str = "sluice_agent_connections_ended_total";
const VIOLATIONS: &str = "sluice_violations_total";
const LEN: usize = 1 << 20;

/// A gateway with an agent that behaves, and one that does not.
struct House {
    gateway: Gateway,
    good: Agent,
    set: SampleSet,
}

impl House {
    async fn open() -> Self {
        let gateway = Gateway::builder().with(|layer| layer.read_timeout = Some(span("1s"))).start().await;
        gateway.put_chat("c1", &["user:alice"]).await;
        gateway.bind_session("turn-good", "c1", "agent:good").await;
        gateway.bind_session("turn-bad", "c1", "agent:bad").await;
        let good = gateway.agent("good").await;
        let set = SampleSet::of([("a.bin", bytes(1, 300_000))]);
        good.announce_in("turn-good", &set).await;
        gateway.wait_for_set("c1", &set.identity()).await;
        Self { gateway, good, set }
    }

    async fn wire(&self) -> Wire {
        let token = self.gateway.agent_token("bad", "bad");
        let mut wire = Wire::with_token(&self.gateway, &token).await;
        wire.create("bad", &token).await;
        wire
    }

    async fn get(&self, set: &SampleSet) -> support::Download {
        self.gateway.download(&set_file("c1", set, "a.bin"), &self.gateway.reader("user:alice")).await
    }

    fn violations(&self, rule: &str) -> f64 {
        self.gateway.metric(&format!("{VIOLATIONS}{{rule=\"{rule}\"}}"))
    }

    async fn wait_for_violations(&self, rule: &str, count: usize) {
        self.gateway.wait_for_metric(&format!("{VIOLATIONS}{{rule=\"{rule}\"}}"), count as f64).await;
    }

    async fn wait_for_ended(&self, code: u16, count: usize) {
        self.gateway.wait_for_metric(&format!("{ENDED}{{reason=\"{code}\"}}"), count as f64).await;
    }

    /// The good agent is served as if nothing had happened.
    async fn serves(&self) {
        let answer = self.get(&self.set).await.whole().await;
        assert!(answer.status == 200 && answer.body == *self.set.file("a.bin").bytes);
        assert!(!self.good.is_over(Kind::Control));
    }
}

/// A WebSocket frame's header, masked with zeros: what follows goes over the wire as it is.
fn header(opcode: u8, len: u64) -> Vec<u8> {
    // The fewest bytes that the length takes (RFC 6455 section 5.2).
    let mut header = match len {
        ..126 => vec![0x80 | opcode, 0x80 | len as u8],
        126..65536 => [&[0x80 | opcode, 0x80 | 126], &(len as u16).to_be_bytes()[..]].concat(),
        _ => [&[0x80 | opcode, 0x80 | 127], &len.to_be_bytes()[..]].concat(),
    };
    header.extend([0; 4]);
    header
}

fn framed(opcode: u8, payload: &[u8]) -> Vec<u8> {
    [header(opcode, payload.len() as u64), payload.to_vec()].concat()
}

#[tokio::test]
async fn binary_frames_that_are_no_data_frames_are_counted() {
    let house = House::open().await;
    let right = data_frame("r", 0, b"payload");
    let mut long_id = right.clone();
    long_id[2..4].copy_from_slice(&[0xff, 0xff]);
    let cases: [Vec<u8>; 11] = [
        vec![],
        vec![1],
        right[..3].to_vec(),
        right[..11].to_vec(),
        // The id's length past the end, none, too long, not UTF-8.
        long_id,
        [&[1, 1, 0, 0][..], &[0; 8], b"x"].concat(),
        data_frame(&"i".repeat(65), 0, b"x"),
        [&[1, 1, 0, 1, 0xff][..], &[0; 8], b"x"].concat(),
        // Another version, another kind, too much payload.
        [&[2], &right[1..]].concat(),
        [&[1, 2], &right[2..]].concat(),
        data_frame("r", 0, &vec![0; 256 * 1024 + 1]),
    ];
    let mut wire = house.wire().await;
    for (place, frame) in cases[..7].iter().enumerate() {
        wire.send_message(Message::binary(frame.clone())).await;
        house.wait_for_violations("malformed_data", place + 1).await;
    }
    assert!(wire.settled().await.is_empty(), "seven times may be a mistake");
    wire.send_message(Message::binary(cases[7].clone())).await;
    assert_eq!(wire.closed().await, (1008, vec![]));
    let mut wire = house.wire().await;
    for frame in &cases[8..] {
        wire.send_message(Message::binary(frame.clone())).await;
    }
    // Well-formed, of reads that nobody asked for, up to the last byte of what an offset holds.
    for frame in [data_frame("no-such-read", 0, b"x"), data_frame(&"i".repeat(64), u64::MAX, &vec![0; 256 * 1024])] {
        wire.send_message(Message::binary(frame)).await;
    }
    house.wait_for_violations("malformed_data", cases.len()).await;
    house.wait_for_violations("unknown_read", 2).await;
    house.wait_for_ended(1008, 1).await;
    house.serves().await;
}

#[tokio::test]
async fn text_that_is_no_frame_is_counted() {
    let house = House::open().await;
    let read = json!({"request_id": "no-such-read", "offset": 0, "length": 1, "bytes": 1});
    let mut end = read.clone();
    end["type"] = json!("blob.end");
    let texts = [
        String::new(),
        "null".to_owned(),
        "[]".to_owned(),
        "{".to_owned(),
        r#"{"type": 7}"#.to_owned(),
        r#"{"event": "message.created"}"#.to_owned(),
        "[".repeat(60_000),
    ];
    let mut wire = house.wire().await;
    for (place, text) in texts.iter().enumerate() {
        wire.send_message(Message::text(text.clone())).await;
        house.wait_for_violations("malformed_text", place + 1).await;
    }
    assert!(wire.settled().await.is_empty());
    let mut wire = house.wire().await;
    for text in [
        // A `blob.data` frame as text, ends and errors that cannot be.
        String::from_utf8_lossy(&data_frame("r", 0, b"abc")).into_owned(),
        r#"{"type": "blob.end", "request_id": "r", "offset": -1, "length": 1, "bytes": 1}"#.to_owned(),
        r#"{"type": "blob.end", "request_id": "", "offset": 0, "length": 1, "bytes": 1}"#.to_owned(),
        r#"{"type": "blob.end", "request_id": "r", "offset": 0, "length": 1e99, "bytes": 1}"#.to_owned(),
        r#"{"type": "blob.error", "request_id": "r"}"#.to_owned(),
        end.to_string(),
        r#"{"type": "blob.error", "request_id": "r", "error": {"code": "unknown_blob"}}"#.to_owned(),
    ] {
        wire.send_message(Message::text(text)).await;
    }
    house.wait_for_violations("malformed_text", texts.len() + 5).await;
    house.wait_for_violations("unknown_read", 2).await;
    assert!(wire.settled().await.is_empty());
    house.serves().await;
}

#[tokio::test]
async fn deep_nesting_costs_an_answer() {
    let house = House::open().await;
    let mut wire = house.wire().await;
    let sha256 = "0".repeat(64);
    let depth = 1 << 19;
    let manifest = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let announcement = |event: &str, manifest: &str| {
        format!(
            r#"{{"type":"artifact.manifest","event_id":"{event}","sha256":"{sha256}","size":1,"manifest":{manifest}}}"#
        )
    };
    for (event, manifest, codes) in [
        ("deep", manifest.as_str(), ["not_an_object", "manifest_too_large"]),
        ("objects", &format!("{}1{}", r#"{"a":"#.repeat(1 << 16), "}".repeat(1 << 16)), ["wrong_kind", "not_json"]),
        ("open", &manifest[..depth], ["bad_request", "bad_request"]),
    ] {
        wire.send_message(Message::text(announcement(event, manifest))).await;
        let error = wire.frame("artifact.error").await;
        let code = error["error"]["code"].as_str().unwrap();
        assert!(codes.contains(&code), "{event}: {code}");
        assert!(error.to_string().len() < 10_000);
    }
    wire.send_message(Message::text("[".repeat(16 << 20))).await;
    wire.frame("artifact.error").await;
    // A frame of another type, as deep: ignored.
    wire.send_message(Message::text(format!(r#"{{"type":"x","x":{manifest}}}"#))).await;
    assert!(wire.settled().await.is_empty());
    house.serves().await;
}

#[tokio::test]
async fn what_is_no_message_is_told_why_it_is_closed() {
    let house = House::open().await;
    let control_limit = (16 << 20) + 64 * 1024;
    for (bytes, code) in [
        (header(1, control_limit + 1), 1009),
        (header(2, u64::MAX >> 1), 1009),
        (framed(1, b"{\"type\":\"\xff\xfe\"}"), 1007),
        // A character that the last fragment, which is empty, leaves unfinished.
        ([vec![0x01, 0x82, 0, 0, 0, 0, 0xe2, 0x82], framed(0, b"")].concat(), 1007),
        // Reserved bits and opcodes, a ping that is too long, a continuation of nothing, an unmasked frame, a length in
        // more bytes than it takes.
        (vec![0xf1, 0x80, 0, 0, 0, 0], 1002),
        (framed(3, b""), 1002),
        (framed(9, &[0; 200]), 1002),
        (framed(0, b"x"), 1002),
        (vec![0x81, 0x02, b'{', b'}'], 1002),
        (vec![0x81, 0x80 | 126, 0, 2, 0, 0, 0, 0, b'{', b'}'], 1002),
    ] {
        let mut wire = house.wire().await;
        let before = house.gateway.metric(&format!("{ENDED}{{reason=\"{code}\"}}"));
        wire.send_raw(&bytes).await;
        assert_eq!(wire.closed().await, (code, vec![]), "{bytes:x?}");
        house.wait_for_ended(code, before as usize + 1).await;
    }
    // A data connection takes no more than its largest frame.
    let token = house.gateway.agent_token("bad", "bad");
    let mut data = Wire::open(&house.gateway, &format!("conn=data&token={token}"), &[]).await;
    data.send(json!({"type": "data.hello", "agent": "bad"})).await;
    data.frame("data.ready").await;
    data.send_message(Message::binary(data_frame(&"i".repeat(64), 0, &vec![0; 256 * 1024]))).await;
    house.wait_for_violations("unknown_read", 1).await;
    data.send_raw(&header(2, 12 + 64 + 256 * 1024 + 1)).await;
    assert_eq!(data.closed().await, (1009, vec![]));
    // A frame that never ends, and one whose sender goes away in the middle.
    let mut half = house.wire().await;
    half.send_raw(&header(1, 1 << 20)).await;
    half.send_raw(&[b'x'; 1000]).await;
    house.serves().await;
    drop(half);
    house.gateway.wait_for_metric(&format!("{ENDED}{{reason=\"lost\"}}"), 1.0).await;
    house.serves().await;
}

/// Each answer waits in memory until it is written.
#[tokio::test]
async fn pings_of_an_agent_that_reads_no_answers_end_its_connection() {
    let house = House::open().await;
    let mut wire = house.wire().await;
    let pings = framed(9, &[0; 125]).repeat(1000);
    let flood = async { while wire.try_send_raw(&pings).await.is_ok() {} };
    tokio::select! {
        () = flood => {}
        () = house.wait_for_ended(1008, 1) => {}
    }
    house.wait_for_ended(1008, 1).await;
    house.serves().await;
}

/// Everything that an agent can get wrong in answering a read: counted, and never a clean short body.
#[tokio::test]
async fn a_read_that_is_answered_wrongly_never_ends_in_wrong_bytes() {
    let house = House::open().await;
    let cases = [
        (Fault::WrongOffset, "out_of_sequence"),
        (Fault::Gap, "out_of_sequence"),
        (Fault::Duplicate, "out_of_sequence"),
        (Fault::WrongRequestId, "unknown_read"),
        (Fault::Oversize, "malformed_data"),
        (Fault::Empty, "empty_frame"),
        (Fault::WrongVersion, "malformed_data"),
        (Fault::WrongKind, "malformed_data"),
        (Fault::Truncated, "malformed_data"),
        (Fault::Short, "ended_early"),
        (Fault::ShortLie, "end_mismatch"),
        (Fault::TooLong, "beyond_length"),
        (Fault::WrongEndBytes, "end_mismatch"),
    ];
    for (place, (fault, rule)) in cases.into_iter().enumerate() {
        // A connection of its own for each, so that the strikes of one do not count against the next.
        let token = house.gateway.agent_token("bad", "bad");
        let behaviour = Behaviour::obedient().at(600_000, fault);
        let bad = Agent::builder(&house.gateway.url, &token, "bad").behaviour(behaviour).connect().await;
        let set = SampleSet::of([("a.bin", bytes(100 + place as u64, LEN))]).chunked(256 * 1024);
        bad.announce_in("turn-bad", &set).await;
        house.gateway.wait_for_set("c1", &set.identity()).await;
        // A frame too many may also be one that no credit was left for.
        let violations = || house.violations(rule) + house.violations("no_credit");
        let before = violations();
        let mut download = house.get(&set).await;
        let (body, end) = download.rest().await;
        assert!(set.file("a.bin").bytes.starts_with(&body), "{fault:?}");
        assert!(end.is_err() || body.len() == LEN, "{fault:?}: a clean short body");
        bad.wait_for(|event| matches!(event.what, What::Misbehaved { .. })).await;
        support::eventually(rule, async || (violations() > before).then_some(())).await;
    }
    house.serves().await;
}

#[tokio::test]
async fn an_agent_that_sends_without_credit_loses_its_connection_and_nothing_else() {
    let house = House::open().await;
    let token = house.gateway.agent_token("bad", "bad");
    let greedy = Behaviour::obedient().greedy().ignoring_cancel();
    let bad = Agent::builder(&house.gateway.url, &token, "bad").behaviour(greedy).connect().await;
    let set = SampleSet::of([("a.bin", bytes(7, 32 << 20))]);
    bad.announce_in("turn-bad", &set).await;
    house.gateway.wait_for_set("c1", &set.identity()).await;
    let mut download = house.get(&set).await;
    bad.wait_for(|event| matches!(event.what, What::Closed { code: 1008, .. })).await;
    assert!(house.violations("no_credit") >= 8.0);
    house.serves().await;
    drop(bad);
    download.read(1).await;
}

#[tokio::test]
async fn what_was_on_its_way_when_a_read_was_cancelled_is_no_misbehaviour_and_more_is() {
    let house = House::open().await;
    let mut wire = house.wire().await;
    let set = SampleSet::of([("a.bin", bytes(7, LEN))]);
    let announcement = json!({
        "type": "artifact.manifest", "event_id": "a", "sha256": set.identity(), "size": set.canonical().len(),
        "manifest": set.manifest, "session_id": "turn-bad",
    });
    wire.send(announcement).await;
    house.gateway.wait_for_set("c1", &set.identity()).await;
    let asking = house.gateway.client().try_send(house.gateway.request(
        http::Method::GET,
        &set_file("c1", &set, "a.bin"),
        &house.gateway.reader("user:alice"),
        None,
    ));
    // The reader leaves before the first byte.
    let read = tokio::select! {
        read = wire.frame("blob.read") => read,
        _ = asking => panic!("an answer without a byte"),
    };
    let id = read["request_id"].as_str().unwrap();
    assert_eq!(wire.frame("blob.cancel").await["request_id"], id);
    let credit = read["credit"].as_u64().unwrap();
    assert!(credit >= 1);
    for place in 0..credit {
        wire.send_message(Message::binary(data_frame(id, place * 1000, &[0; 1000]))).await;
    }
    assert!(wire.settled().await.is_empty());
    assert_eq!((house.violations("no_credit"), house.violations("unknown_read")), (0.0, 0.0));
    for _ in 0..8 {
        wire.send_message(Message::binary(data_frame(id, credit * 1000, &[0; 1000]))).await;
    }
    assert_eq!(wire.closed().await, (1008, vec![]));
    assert_eq!(house.violations("no_credit"), 8.0);
    house.serves().await;
}

#[tokio::test]
async fn what_breaks_a_rule_now_and_then_is_not_closed_for_another_agents_mistakes() {
    let house = House::open().await;
    let wires = futures_util::future::join_all((0..4).map(async |n| {
        let mut wire = Wire::open(&house.gateway, "", &[]).await;
        let name = format!("bad-{n}");
        wire.create(&name, &house.gateway.agent_token(&name, &name)).await;
        for _ in 0..7 {
            wire.send_message(Message::text("{")).await;
        }
        assert!(wire.settled().await.is_empty());
        wire
    }))
    .await;
    assert_eq!(house.violations("malformed_text"), 28.0);
    assert_eq!(house.gateway.metric("sluice_agent_connections{kind=\"control\"}"), 5.0);
    drop(wires);
    let quiet = |event: &Event| matches!(event.what, What::Closed { .. } | What::Lost);
    assert!(!house.good.log().all().iter().any(quiet));
}
