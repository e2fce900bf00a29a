//! Credit follows the reader: a slow one slows the agent, and nothing else.

use sluice::transfer::State;

use crate::stage::{FRAME, Stage, assert_bytes, body, single, url};
use crate::support::{Agent, Behaviour, What, bytes};

/// What lies between an agent and a reader who stopped, besides the window: buffers of HTTP and of the kernel.
const BUFFERS: u64 = 1024 * 1024;

/// Frames granted, and frames sent, by an agent's log.
fn credit(agent: &Agent) -> (u64, u64) {
    let (mut granted, mut sent) = (0, 0);
    for event in agent.log().all() {
        match event.what {
            What::Read { credit, .. } => granted += credit.unwrap_or(4),
            What::Credit { frames, .. } => granted += frames,
            What::SentData { .. } => sent += 1,
            _ => {}
        }
    }
    (granted, sent)
}

#[tokio::test]
async fn a_reader_that_stops_stops_the_agent_and_credit_follows_it() {
    let stage = Stage::new().await;
    let set = single(bytes(1, 48 * FRAME)).chunked(2 * FRAME);
    let agent = stage.agent_with("ada", &set).await;
    let mut reader = stage.slow(&url(&set)).await;
    let mut received = Vec::new();
    for _ in 0..8 {
        stage.wait_for_state(State::WaitingForReader, 1).await;
        // With no room left there is no credit either, so what the agent holds is what it was granted before.
        let (granted, sent) = credit(&agent);
        assert!(granted - sent <= 8, "{granted} granted, {sent} sent");
        let ahead = granted * FRAME as u64 - received.len() as u64;
        assert!(ahead <= 8 * FRAME as u64 + BUFFERS, "{ahead} bytes ahead of the reader");
        // As the window shrinks to its pace, the reader may have to take all that is there first.
        let taken = received.len();
        while credit(&agent).0 == granted {
            received.extend(reader.read(FRAME / 4).await);
        }
        assert!((received.len() - taken) as u64 <= 8 * FRAME as u64 + BUFFERS);
    }
    received.extend(body(reader).await);
    assert_bytes(&received, &set.files[0].bytes, "in the end");
    let (granted, sent) = credit(&agent);
    assert!(granted <= sent + 8, "{granted} granted for {sent}");
}

#[tokio::test]
async fn a_fast_reader_is_not_held_up_by_credit() {
    let stage = Stage::new().await;
    let set = single(bytes(2, 64 * FRAME)).chunked(32 * FRAME);
    let agent = stage.agent_with("ada", &set).await;
    assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "a fast reader");
    assert_eq!(agent.reads().len(), 1);
    assert_eq!(credit(&agent).1, 64);
}

#[tokio::test]
async fn a_range_ends_within_a_chunk_however_little_memory_there_is() {
    // Room for one transfer, and for one frame of it.
    let stage = Stage::with(|layer| layer.memory_budget = Some("512KiB".parse().unwrap())).await;
    let set = single(bytes(5, 9 * FRAME)).chunked(8 * FRAME);
    let agent = stage.agent_with("ada", &set).await;
    for frame in [FRAME, 20_000] {
        agent.behave(Behaviour::obedient().frames_of(frame));
        for end in [4 * FRAME, 4 * FRAME + 1, 5 * FRAME - 1, 6 * FRAME + 999, 7 * FRAME + 1, 8 * FRAME - 1] {
            let answer = stage.range(&url(&set), &format!("bytes=0-{}", end - 1)).await;
            assert_bytes(&body(answer).await, &set.files[0].bytes[..end], &format!("{end} in frames of {frame}"));
        }
    }
}

#[tokio::test]
async fn a_greedy_agent_loses_the_read() {
    let stage = Stage::new().await;
    let set = single(bytes(3, 64 * FRAME)).chunked(FRAME);
    let mut agent = stage.agent_with("ada", &set).await;
    agent.behave(Behaviour::obedient().greedy());
    let mut reader = stage.slow(&url(&set)).await;
    agent.wait_for(|event| event.what.is_cancel()).await;
    let (received, end) = reader.rest().await;
    if reader.status == 200 {
        assert!(end.is_err(), "it ended well");
        assert_bytes(&received, &set.files[0].bytes[..received.len()], "what had been granted");
    } else {
        assert_eq!(reader.status, 502);
    }
    assert!(stage.gateway.metric("sluice_violations_total{rule=\"no_credit\"}") >= 1.0);
    stage.wait_for_quiet().await;
    // Too many frames like that cost the connection, too.
    agent.behave(Behaviour::obedient());
    agent.reconnect().await;
    let answer = stage.range(&url(&set), "bytes=0-99").await;
    assert_bytes(&body(answer).await, &set.files[0].bytes[..100], "afterwards");
}

#[tokio::test]
async fn tiny_frames_gain_no_room() {
    let stage = Stage::new().await;
    let set = single(bytes(4, 7_000)).chunked(FRAME);
    let agent = stage.agent_with("ada", &set).await;
    agent.behave(Behaviour::obedient().frames_of(7));
    assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "seven bytes at a time");
}
