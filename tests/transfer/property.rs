//! Whatever happens on the way: a body that completes is the range of the file.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::stage::{FRAME, Outcome, Stage, single};
use crate::support::{Behaviour, Fault, What, bytes};

#[derive(Debug, Clone)]
struct Case {
    size: usize,
    chunk: Option<usize>,
    frame: usize,
    /// In thousandths of the size: where the range begins and ends, and where something happens.
    range: Option<(usize, usize)>,
    events: Vec<(usize, bool)>,
    wrong: Option<usize>,
    http2: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let size = prop_oneof![1_usize..5000, 1_usize..4 * FRAME];
    let chunk = prop_oneof![Just(None), Just(Some(FRAME)), Just(Some(2 * FRAME))];
    let range = proptest::option::of((0_usize..1000, 0_usize..1000));
    let events = proptest::collection::vec((0_usize..1000, any::<bool>()), 0..4);
    let wrong = proptest::option::weighted(0.3, 0_usize..1000);
    (size, chunk, 1000_usize..=FRAME, range, events, wrong, any::<bool>()).prop_map(
        |(size, chunk, frame, range, mut events, wrong, http2)| {
            events.sort_unstable();
            Case { size, chunk, frame, range, events, wrong, http2 }
        },
    )
}

async fn hold(stage: &Stage, n: usize, case: Case) -> Result<(), TestCaseError> {
    let content = bytes(n as u64, case.size);
    let at = |thousandths: usize| thousandths * case.size / 1000;
    let set = single(content.clone());
    let set = match case.chunk {
        Some(chunk) => set.chunked(chunk),
        None => set,
    };
    let id = format!("agent-{n}");
    let mut agent = stage.agent(&id).await;
    stage.share(&agent, "c1", &set).await;
    if let Some(wrong) = case.wrong {
        let mut lie = content.clone();
        lie[at(wrong)] ^= 0x10;
        agent.serve_as(&set.files[0].sha256, &lie);
    }
    let behaviour = |place: Option<&(usize, bool)>| {
        let behaviour = Behaviour::obedient().frames_of(case.frame);
        match place {
            Some((place, true)) => behaviour.at(at(*place) as u64, Fault::Die),
            Some((place, false)) => behaviour.at(at(*place) as u64, Fault::Reset),
            None => behaviour,
        }
    };
    let mut events = case.events.iter();
    agent.behave(behaviour(events.next()));
    let (start, end) = case.range.map_or((0, case.size), |(one, other)| {
        let (one, other) = (at(one), at(other));
        (one.min(other), one.max(other) + 1)
    });
    let header = case.range.map(|_| format!("bytes={start}-{}", end - 1));
    let path = format!("/agents/{id}/artifacts/blobs/sha256:{}", set.files[0].sha256);
    let downloading = stage.outcome(case.http2, &path, header.as_deref());
    let cutting = async {
        let mut mark = 0;
        loop {
            agent.log().next_from(mark, |event| event.what == What::Cut).await;
            mark = agent.log().mark();
            agent.behave(behaviour(events.next()));
            agent.reconnect().await;
        }
    };
    let Outcome { status, verified, bytes: received, whole } = tokio::select! {
        biased;
        outcome = downloading => outcome,
        () = cutting => unreachable!("it never ends"),
    };
    let lies_in = |start: usize, end: usize| case.wrong.is_some_and(|wrong| (start..end).contains(&at(wrong)));
    let lied = lies_in(start, end);
    // A chunk of which the range covers at least half is read and checked whole.
    let chunk = case.chunk.unwrap_or(1);
    let may_be_found_out = lies_in(start / chunk * chunk, end.next_multiple_of(chunk));
    match (status, whole) {
        (Some(200 | 206), true) => {
            prop_assert_eq!(received.len(), end - start);
            if verified == "full" || !lied {
                prop_assert!(received == content[start..end], "other bytes, verified: {}", verified);
            }
        }
        (Some(200 | 206) | None, false) => {
            prop_assert!(may_be_found_out && received.len() < end - start, "cut without a lie");
        }
        (Some(502), true) => prop_assert!(may_be_found_out, "502 without a lie"),
        other => prop_assert!(false, "{:?}", other),
    }
    Ok(())
}

#[test]
fn what_completes_is_the_range() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stage = runtime.block_on(Stage::new());
    let config = Config { cases: 48, failure_persistence: None, max_shrink_iters: 64, ..Config::default() };
    let next = std::sync::atomic::AtomicUsize::new(0);
    let mut runner = TestRunner::new(config);
    runner
        .run(&cases(), |case| {
            let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            runtime.block_on(hold(&stage, n, case))
        })
        .unwrap();
    runtime.block_on(stage.wait_for_quiet());
    // The gateway's own task ends with the stage, within the runtime.
    let _entered = runtime.enter();
    drop(stage);
}
