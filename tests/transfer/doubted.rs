//! Agents whose bytes were wrong, or that left behind what proved wrong, or that were silent: others are asked first.

use std::time::Duration;

use crate::stage::{FRAME, Stage, assert_bytes, blob_url, body, cut, single, url};
use crate::support::{Agent, Behaviour, Fault, SampleSet, bytes, span};

/// A chunk of two frames, or no chunk list at all.
fn sets() -> [SampleSet; 2] {
    [single(bytes(1, 6 * FRAME)).chunked(2 * FRAME), single(bytes(1, 6 * FRAME))]
}

/// Ada and eve, after a download of ada's right bytes that broke off and that eve went on with wrong ones.
async fn gone_on_from_wrongly(stage: &Stage, set: &SampleSet) -> (Agent, Agent) {
    let mut ada = stage.agent_with("ada", set).await;
    let eve = stage.agent_with("eve", set).await;
    eve.serve_as(&set.files[0].sha256, &bytes(2, 6 * FRAME));
    ada.behave(Behaviour::obedient().at(FRAME as u64 + 9, Fault::Die));
    cut(stage.get(&url(set)).await).await;
    ada.reconnect().await;
    (ada, eve)
}

#[tokio::test]
async fn who_leaves_what_proves_wrong_spoils_it_once() {
    for (fault, set) in
        [Fault::Error("read_failed"), Fault::Short, Fault::Die].into_iter().zip(sets().into_iter().cycle())
    {
        for by_hash in [false, true] {
            let stage = Stage::new().await;
            let what = format!("{fault:?}, by hash: {by_hash}");
            // Who announced it first is asked first.
            let eve = stage.agent_with("eve", &set).await;
            let _ada = stage.agent_with("ada", &set).await;
            eve.serve_as(&set.files[0].sha256, &bytes(2, 6 * FRAME));
            eve.behave(Behaviour::obedient().at(1000, fault).always());
            let path = if by_hash { blob_url(&set) } else { url(&set) };
            // Ada cannot mend what eve began, and nobody can tell whose bytes were wrong.
            cut(stage.get(&path).await).await;
            let reads = eve.reads().len();
            for _ in 0..3 {
                assert_bytes(&body(stage.get(&path).await).await, &set.files[0].bytes, &what);
            }
            assert_eq!(eve.reads().len(), reads, "{what}");
        }
    }
}

#[tokio::test]
async fn who_goes_on_wrongly_from_right_bytes_is_asked_no_more_than_that() {
    for set in sets() {
        let stage = Stage::new().await;
        let (_ada, eve) = gone_on_from_wrongly(&stage, &set).await;
        // Now she is the one that is doubted less, until she has lied all by herself.
        cut(stage.get(&url(&set)).await).await;
        let reads = eve.reads().len();
        for _ in 0..3 {
            assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "ada's bytes");
        }
        assert_eq!(eve.reads().len(), reads);
    }
}

#[tokio::test]
async fn who_is_silent_is_waited_for_once() {
    let read_timeout = "400ms";
    let stage = Stage::with(|layer| layer.read_timeout = Some(span(read_timeout))).await;
    let [set, _] = sets();
    let eve = stage.agent_with("eve", &set).await;
    let _ada = stage.agent_with("ada", &set).await;
    eve.behave(Behaviour::obedient().at(0, Fault::Stall).always());
    for _ in 0..3 {
        let answer = tokio::time::timeout(Duration::from_secs(30), stage.get(&url(&set))).await.unwrap();
        assert_bytes(&body(answer).await, &set.files[0].bytes, "ada's bytes");
    }
    assert_eq!(eve.reads().len(), 1);
}

#[tokio::test]
async fn doubt_puts_nobody_elses_bytes_where_nothing_checks_them() {
    let stage = Stage::new().await;
    let [_, set] = sets();
    let _agents = gone_on_from_wrongly(&stage, &set).await;
    // Of a file without a chunk list nothing checks a part: it is ada's to give, although she is doubted more by now.
    let answer = stage.range(&url(&set), "bytes=0-89").await;
    assert_eq!(answer.header("sluice-verified"), "none");
    assert_bytes(&body(answer).await, &set.files[0].bytes[..90], "ada's bytes");
}

#[tokio::test]
async fn who_is_doubted_less_and_is_gone_keeps_nobody_from_the_rest() {
    for read in ["silent", "gone"] {
        let window = |layer: &mut sluice::config::Layer| {
            layer.read_timeout = Some(span("300ms"));
            layer.resume_window = Some(span("2s"));
        };
        let stage = Stage::with(window).await;
        let [set, _] = sets();
        let mut eve = stage.agent_with("eve", &set).await;
        let ada = stage.agent_with("ada", &set).await;
        if read == "silent" {
            // Nothing is known against eve, who is not there; ada is silent once, in the middle of the answer.
            eve.cut().await;
            stage.gateway.wait_for_metric("sluice_agents_online", 1.0).await;
            ada.behave(Behaviour::obedient().at(FRAME as u64 + 9, Fault::Stall));
        } else {
            // Ada was silent before, so that eve comes first, who then dies and does not come back.
            eve.behave(Behaviour::obedient().at(0, Fault::Error("unknown_blob")));
            ada.behave(Behaviour::obedient().at(0, Fault::Stall));
            let _ = stage.get(&url(&set)).await;
            eve.behave(Behaviour::obedient().at(FRAME as u64 + 9, Fault::Die));
        }
        let answer = tokio::time::timeout(Duration::from_secs(20), stage.get(&url(&set))).await.unwrap();
        assert_bytes(&body(answer).await, &set.files[0].bytes, read);
    }
}
