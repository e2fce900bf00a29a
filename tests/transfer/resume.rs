//! A cut is a pause: one answer goes on where it was.

use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};
use http::Method;
use sluice::transfer::State;

use crate::stage::{FRAME, Stage, asked, assert_bytes, assert_prefix, body, cut, refusal, single, url};
use crate::support::{Agent, Behaviour, Fault, Kind, What, bytes, span};

const CHUNK: usize = 2 * FRAME;
const SIZE: usize = 2 * CHUNK + 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_dies_anywhere_is_asked_for_the_rest() {
    let stage = &Stage::new().await;
    let content = &bytes(1, SIZE);
    let places = [0, 1, 1000, FRAME - 1, FRAME, FRAME + 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, SIZE - 1];
    let cases = places.into_iter().flat_map(|place| [(place, false), (place, true)]).enumerate();
    // More at once are many: reads begin small then.
    stream::iter(cases.map(|(n, (place, chunked))| async move {
        let what = format!("dies at {place}, chunked: {chunked}");
        let set = single(content.clone());
        let set = if chunked { set.chunked(CHUNK) } else { set };
        let mut agent = stage.agent(&format!("agent-{n}")).await;
        stage.share(&agent, "c1", &set).await;
        agent.behave(Behaviour::obedient().at(place as u64, Fault::Die));
        let path = format!("/agents/agent-{n}/artifacts/blobs/sha256:{}", set.files[0].sha256);
        let downloading = async {
            let answer = stage.over(n % 4 < 2, &path, None).await;
            assert_eq!((answer.status.as_u16(), answer.header("sluice-verified")), (200, "full"), "{what}");
            body(answer).await
        };
        let reconnecting = async {
            agent.wait_for(|event| event.what == What::Cut).await;
            agent.reconnect().await;
        };
        let (received, ()) = futures_util::future::join(downloading, reconnecting).await;
        assert_bytes(&received, content, &what);
        // Everything that was sent before the cut has come, so not one byte is asked for twice.
        assert_eq!(asked(&agent), [(0, SIZE as u64), (place as u64, (SIZE - place) as u64)], "{what}");
        let ids: Vec<_> = agent.reads().into_iter().map(|read| read.what).collect();
        let [What::Read { request_id: first, .. }, What::Read { request_id: second, .. }] = &ids[..] else { panic!() };
        assert_ne!(first, second, "{what}");
    }))
    .buffer_unordered(4)
    .collect::<()>()
    .await;
    stage.wait_for_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_resets_in_one_download() {
    const STEP: usize = 150_000;
    // Memory for one transfer, and for a window that cannot grow.
    let stage = Stage::with(|layer| {
        layer.max_transfers = Some(1);
        layer.memory_budget = Some("4MiB".parse().unwrap());
    })
    .await;
    let set = single(bytes(2, 21 * STEP)).chunked(FRAME);
    let mut agent = stage.agent_with("ada", &set).await;
    let fault = |n: usize| Behaviour::obedient().at((n * STEP) as u64, Fault::Reset);
    agent.behave(fault(1));
    let downloading = async { body(stage.get(&url(&set)).await).await };
    let cutting = async {
        let mut mark = 0;
        for n in 1..=20 {
            agent.log().wait_from(mark, |event| event.what == What::Cut).await;
            mark = agent.log().mark();
            agent.behave(if n == 20 { Behaviour::obedient() } else { fault(n + 1) });
            agent.reconnect().await;
        }
    };
    let (received, ()) = futures_util::future::join(downloading, cutting).await;
    assert_bytes(&received, &set.files[0].bytes, "after twenty resets");
    let reads = asked(&agent);
    assert_eq!(reads.len(), 21);
    for (n, (offset, length)) in reads.into_iter().enumerate() {
        assert_eq!(offset + length, 21 * STEP as u64);
        let sent = (n * STEP) as u64;
        // A reset loses what was on its way: at most the credit window.
        assert!(offset <= sent && sent - offset <= 4 * FRAME as u64, "asked from {offset} after {sent}");
    }
}

#[tokio::test]
async fn a_read_that_stalls_is_asked_again() {
    let stage = Stage::with(|layer| layer.read_timeout = Some(span("200ms"))).await;
    let set = single(bytes(3, 3 * FRAME)).chunked(FRAME);
    let agent = stage.agent_with("ada", &set).await;
    for place in [0, FRAME + 7] {
        let before = agent.reads().len();
        agent.behave(Behaviour::obedient().at(place as u64, Fault::Stall));
        assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "after a stall");
        assert_eq!(asked(&agent)[before..], [(0, 3 * FRAME as u64), (place as u64, (3 * FRAME - place) as u64)]);
        let What::Read { request_id: stalled, .. } = agent.reads()[before].what.clone() else { panic!() };
        agent.wait_for(|event| event.what == What::Cancel { request_id: stalled.clone() }).await;
    }
    assert!(stage.gateway.metric("sluice_resumes_total{reason=\"stalled\"}") >= 2.0);
}

#[tokio::test]
async fn an_agent_that_stalls_for_ever_is_given_up() {
    let stage = Stage::with(|layer| layer.read_timeout = Some(span("50ms"))).await;
    let set = single(bytes(4, 3 * FRAME)).chunked(FRAME);
    let agent = stage.agent_with("ada", &set).await;
    agent.behave(Behaviour::obedient().at(0, Fault::Stall).always());
    assert_eq!(refusal(stage.get(&url(&set)).await).await, (502, "agent_failed".to_owned()));
    agent.behave(Behaviour::obedient().at(FRAME as u64, Fault::Stall).always());
    assert_prefix(&cut(stage.get(&url(&set)).await).await, &set.files[0].bytes, FRAME, "one chunk");
    stage.wait_for_quiet().await;
}

#[tokio::test]
async fn a_reader_that_stops_is_no_stall() {
    let stage = Stage::with(|layer| layer.read_timeout = Some(span("100ms"))).await;
    let set = single(bytes(5, 12 * FRAME));
    let agent = stage.agent_with("ada", &set).await;
    let mut reader = stage.slow(&url(&set)).await;
    let mut received = reader.read(1000).await;
    stage.wait_for_state(State::WaitingForReader, 1).await;
    // Longer than the read's timeout, by which nothing must have happened.
    let stopped = Instant::now();
    let other = single(bytes(6, 10));
    stage.share(&agent, "c1", &other).await;
    while stopped.elapsed() < Duration::from_millis(300) {
        body(stage.get(&url(&other)).await).await;
    }
    received.extend(body(reader).await);
    assert_bytes(&received, &set.files[0].bytes, "after a stop");
    assert_eq!(stage.gateway.metric("sluice_resumes_total{reason=\"stalled\"}"), 0.0);
}

#[tokio::test]
async fn an_agent_that_does_not_come_back_cuts_the_answer() {
    let stage = Stage::with(|layer| layer.resume_window = Some(span("200ms"))).await;
    let set = single(bytes(7, 3 * FRAME)).chunked(FRAME);
    let agent = stage.agent_with("ada", &set).await;
    for (http2, id) in [(false, "eve"), (true, "mia")] {
        let dying = stage.agent_with(id, &set).await;
        dying.behave(Behaviour::obedient().at(FRAME as u64 + 1, Fault::Die));
        let path = format!("/agents/{id}/artifacts/blobs/sha256:{}", set.files[0].sha256);
        let answer = stage.over(http2, &path, None).await;
        let begun = Instant::now();
        assert_prefix(&cut(answer).await, &set.files[0].bytes, FRAME + 1, "what came before");
        assert!(begun.elapsed() >= Duration::from_millis(150), "it was waited for");
        assert!(agent.reads().is_empty(), "another agent was not named");
    }
    stage.wait_for_quiet().await;
}

#[tokio::test]
async fn an_offline_agent_is_waited_for_and_then_said_to_be_offline() {
    let stage = Stage::with(|layer| layer.agent_wait = Some(span("150ms"))).await;
    let set = single(bytes(8, 1000));
    let mut agent = stage.agent_with("ada", &set).await;
    agent.cut().await;
    stage.gateway.wait_for_metric("sluice_agents_online", 0.0).await;
    for (http2, range) in [(false, None), (true, Some("bytes=1-2"))] {
        let begun = Instant::now();
        let answer = stage.over(http2, &url(&set), range).await;
        assert!(begun.elapsed() >= Duration::from_millis(150));
        assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1);
        assert_eq!(answer.header("accept-ranges"), "bytes");
        assert_eq!(refusal(answer).await, (503, "agent_offline".to_owned()));
    }
    // What needs no byte of the agent's is answered at once.
    let head = stage.gateway.ask(Method::HEAD, &url(&set), &stage.alice(), None).await;
    assert_eq!((head.status.as_u16(), head.header("content-length")), (200, "1000"));
    assert_eq!(stage.range(&url(&set), "bytes=1000-").await.status, 416);
    stage.wait_for_quiet().await;
}

#[tokio::test]
async fn an_agent_that_comes_in_time_serves() {
    let stage = Stage::new().await;
    let set = single(bytes(9, 1000));
    let mut agent = stage.agent_with("ada", &set).await;
    agent.cut().await;
    stage.gateway.wait_for_metric("sluice_agents_online", 0.0).await;
    let coming = async {
        stage.wait_for_state(State::WaitingForAgent, 1).await;
        agent.reconnect().await;
    };
    let (answer, ()) = futures_util::future::join(stage.get(&url(&set)), coming).await;
    assert_eq!(answer.status, 200);
    assert_bytes(&body(answer).await, &set.files[0].bytes, "served late");
}

#[tokio::test]
async fn too_many_reads_is_a_reason_to_wait() {
    let stage = Stage::new().await;
    let set = single(bytes(10, 3 * FRAME)).chunked(FRAME);
    let agent = stage.agent_with("ada", &set).await;
    for place in [0, FRAME] {
        let before = agent.reads().len();
        agent.behave(Behaviour::obedient().at(place as u64, Fault::Error("too_many_reads")).times(3));
        assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "after a wait");
        assert_eq!(agent.reads().len() - before, 4);
    }
}

#[tokio::test]
async fn a_takeover_moves_the_transfer() {
    let stage = Stage::new().await;
    let set = single(bytes(11, 16 * FRAME)).chunked(2 * FRAME);
    let mut agent = stage.agent_with("ada", &set).await;
    let mut reader = stage.slow(&url(&set)).await;
    let mut received = reader.read(1000).await;
    let held = agent.take_over().await;
    received.extend(body(reader).await);
    assert_bytes(&received, &set.files[0].bytes, "over two connections");
    assert!(agent.reads().iter().any(|read| read.connection == 2));
    agent.wait_for(|event| matches!(event.what, What::Closed { code: 4009, .. })).await;
    drop(held);
}

#[tokio::test]
async fn without_its_data_connection_the_control_connection_goes_on() {
    let stage = Stage::new().await;
    let set = single(bytes(12, 16 * FRAME));
    let token = stage.gateway.agent_token("ada", "ada");
    let mut agent = Agent::builder(&stage.gateway.url, &token, "ada").data().connect().await;
    stage.share(&agent, "c1", &set).await;
    let mut reader = stage.slow(&url(&set)).await;
    let mut received = reader.read(1000).await;
    assert!(agent.reads().iter().all(|read| read.kind == Kind::Data));
    agent.cut_one(Kind::Data).await;
    received.extend(body(reader).await);
    assert_bytes(&received, &set.files[0].bytes, "over both connections");
    assert_eq!(agent.reads().last().unwrap().kind, Kind::Control);
}
