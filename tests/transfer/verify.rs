//! Wrong bytes never complete, and broken rules cost the read.

use futures_util::stream::{self, StreamExt as _};

use crate::stage::{
    FRAME, Outcome, Stage, asked, assert_bytes, assert_prefix, blob_url, body, cut, refusal, single, url,
};
use crate::support::{Behaviour, Fault, What, bytes};

const CHUNK: usize = 2 * FRAME;
const SIZE: usize = 3 * CHUNK + 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_byte_is_never_followed_by_the_end_of_its_chunk() {
    let stage = Stage::new().await;
    let content = bytes(1, SIZE);
    let (chunked, plain) = (single(content.clone()).chunked(CHUNK), single(content.clone()));
    let agent = stage.agent_with("ada", &chunked).await;
    stage.share(&agent, "c1", &plain).await;
    for http2 in [false, true] {
        for (set, chunk) in [(&chunked, CHUNK), (&plain, SIZE)] {
            for wrong in [1, FRAME, CHUNK - 1, CHUNK + 1, CHUNK + FRAME, 3 * CHUNK - 1, 3 * CHUNK + 1, SIZE - 1] {
                agent.behave(Behaviour::obedient().at(wrong as u64, Fault::Corrupt).always());
                let outcome = stage.outcome(http2, &url(set), None).await;
                let received = outcome.bytes;
                let start = wrong / chunk * chunk;
                let what = format!("chunk of {chunk}, wrong at {wrong}, http2: {http2}");
                assert!(!outcome.whole && received.len() < (start + chunk).min(SIZE), "{what}");
                assert!(outcome.status.is_none_or(|status| status == 200 && outcome.verified == "full"), "{what}");
                // A cut may throw away what was not sent yet.
                let right = start.min(received.len());
                assert_bytes(&received[..right], &content[..right], &what);
            }
        }
    }
    stage.wait_for_quiet().await;
}

#[tokio::test]
async fn what_proves_wrong_before_the_head_is_a_status() {
    let stage = Stage::new().await;
    let set = single(bytes(2, 1000));
    let agent = stage.agent_with("ada", &set).await;
    for (http2, length) in [(false, 1000), (true, 1000)] {
        agent.serve_as(&set.files[0].sha256, &bytes(3, length));
        for range in [None, Some("bytes=0-")] {
            let answer = stage.over(http2, &url(&set), range).await;
            assert_eq!(answer.header("accept-ranges"), "bytes");
            assert_eq!(refusal(answer).await, (502, "hash_mismatch".to_owned()));
        }
    }
    // A chunk that comes in one frame is held back whole.
    let set = single(bytes(4, 3 * FRAME)).chunked(FRAME);
    stage.share(&agent, "c1", &set).await;
    agent.behave(Behaviour::obedient().at(0, Fault::Corrupt).always());
    assert_eq!(refusal(stage.get(&url(&set)).await).await, (502, "hash_mismatch".to_owned()));
    agent.behave(Behaviour::obedient().at(2 * FRAME as u64, Fault::Corrupt).always());
    let received = cut(stage.get(&url(&set)).await).await;
    assert_prefix(&received, &set.files[0].bytes, 2 * FRAME, "two chunks are right");
    // Without a head there is nothing to keep: what is right afterwards is served.
    agent.behave(Behaviour::obedient());
    assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "all is right");
}

#[tokio::test]
async fn an_empty_file_under_another_hash_is_refused() {
    let stage = Stage::new().await;
    let mut set = single(Vec::new());
    set.manifest["entries"][0]["sha256"] = crate::support::sha256(b"x").into();
    let agent = stage.agent_with("ada", &set).await;
    assert_eq!(refusal(stage.get(&url(&set)).await).await, (502, "hash_mismatch".to_owned()));
    assert!(agent.reads().is_empty());
}

/// Whether the answer is whole, for each way to break the rules.
const FAULTS: [(Fault, bool); 15] = [
    (Fault::Short, false),
    (Fault::ShortLie, false),
    (Fault::Duplicate, false),
    (Fault::WrongOffset, false),
    (Fault::Gap, false),
    (Fault::WrongRequestId, false),
    (Fault::Oversize, false),
    (Fault::Empty, false),
    (Fault::WrongVersion, false),
    (Fault::WrongKind, false),
    (Fault::Truncated, false),
    // Every byte has come by then, and is right.
    (Fault::TooLong, true),
    (Fault::WrongEndBytes, true),
    (Fault::NoEnd, true),
    (Fault::EndTwice, true),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_rules_cut_the_answer_or_change_nothing() {
    let stage = &Stage::new().await;
    let content = &bytes(5, 3 * FRAME + 100);
    let cases = FAULTS.iter().flat_map(|case| [(case, false), (case, true)]).enumerate();
    // More at once are many: reads begin small then.
    stream::iter(cases.map(|(n, ((fault, whole), chunked))| async move {
        let set = single(content.clone());
        let set = if chunked { set.chunked(FRAME) } else { set };
        let agent = stage.agent_with(&format!("agent-{n}"), &set).await;
        let path = format!("/agents/agent-{n}{}", blob_url(&set));
        for (at, http2) in [(FRAME + 10, n % 2 == 0), (0, n % 2 == 1)] {
            // The first of two is as it should be.
            let before_the_head = at == 0 && *fault != Fault::Duplicate;
            let what = format!("{fault:?} at {at}, chunked: {chunked}, http2: {http2}");
            agent.behave(Behaviour::obedient().at(at as u64, *fault).always());
            let Outcome { status, bytes, whole: complete, .. } = stage.outcome(http2, &path, None).await;
            if *whole {
                assert!(complete, "{what}");
                assert_bytes(&bytes, content, &what);
            } else if before_the_head {
                assert_eq!((status, complete), (Some(502), true), "{what}");
                assert!(String::from_utf8_lossy(&bytes).contains("agent_failed"), "{what}");
            } else {
                assert!(status.is_none_or(|status| status == 200) && !complete, "{what}");
                assert_prefix(&bytes, content, content.len() - 1, &what);
            }
        }
    }))
    .buffer_unordered(4)
    .collect::<()>()
    .await;
    stage.wait_for_quiet().await;
}

#[tokio::test]
async fn a_reader_with_a_bad_half_is_sent_the_whole() {
    let stage = Stage::new().await;
    let content = bytes(7, 3 * CHUNK);
    let set = single(content.clone()).chunked(CHUNK);
    let agent = stage.agent_with("ada", &set).await;
    agent.behave(Behaviour::obedient().at((CHUNK + 10) as u64, Fault::Corrupt));
    let received = cut(stage.get(&url(&set)).await).await;
    assert!(received.len() > CHUNK && received[..] != content[..received.len()], "she holds a bad byte");

    // As a download manager goes on: from where it was cut.
    for path in [url(&set), blob_url(&set)] {
        for start in [received.len(), CHUNK + 1, 2 * CHUNK - 1] {
            let answer = stage.range(&path, &format!("bytes={start}-")).await;
            assert_eq!((answer.status.as_u16(), answer.header("content-range")), (200, ""), "{start}");
            assert_bytes(&body(answer).await, &content, "the whole file");
        }
        for start in [0, 1, CHUNK, 2 * CHUNK, 2 * CHUNK + 1] {
            let answer = stage.range(&path, &format!("bytes={start}-")).await;
            assert_eq!(answer.status, 206, "{start}");
            assert_bytes(&body(answer).await, &content[start..], "the range");
        }
    }
    let bob = stage.gateway.reader("user:bob");
    let answer = stage.gateway.download_range(&url(&set), &bob, &format!("bytes={}-", CHUNK + 1)).await;
    assert_eq!(answer.status, 206, "bob was sent nothing wrong");
}

#[tokio::test]
async fn ranges_ask_for_no_byte_more() {
    let stage = Stage::new().await;
    let set = single(bytes(8, SIZE)).chunked(CHUNK);
    let agent = stage.agent_with("ada", &set).await;
    for (start, end) in [(0, 1), (5, 10), (CHUNK - 1, CHUNK + 1), (SIZE - 1, SIZE), (CHUNK, 2 * CHUNK)] {
        let answer = stage.range(&url(&set), &format!("bytes={start}-{}", end - 1)).await;
        assert_bytes(&body(answer).await, &set.files[0].bytes[start..end], "the range");
        assert_eq!(asked(&agent).last(), Some(&(start as u64, (end - start) as u64)));
    }
    let frames = agent.log().all().into_iter().filter(|event| matches!(event.what, What::SentData { .. })).count();
    assert!(frames <= 8, "{frames} frames for seven");
}
