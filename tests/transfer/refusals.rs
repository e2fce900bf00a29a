//! What an agent's refusals become.

use futures_util::future::join_all;

use crate::stage::{FRAME, Stage, assert_prefix, blob_url, single};
use crate::support::{Behaviour, Fault, bytes, span};

/// Each code of `blob.error`, the status and code that a reader is told, and how often the agent is asked.
const CODES: [(&str, u16, &str, std::ops::RangeInclusive<usize>); 7] = [
    ("bad_request", 502, "agent_failed", 1..=1),
    ("unknown_blob", 410, "blob_gone", 1..=1),
    ("range_invalid", 502, "agent_failed", 1..=1),
    ("too_many_reads", 503, "too_many_transfers", 2..=20),
    ("duplicate_request", 502, "agent_failed", 2..=2),
    ("read_failed", 502, "agent_failed", 1..=1),
    ("a_code_of_tomorrow", 502, "agent_failed", 1..=1),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_code_has_its_status() {
    let stage = Stage::with(|layer| layer.agent_wait = Some(span("300ms"))).await;
    let stage = &stage;
    join_all(CODES.iter().enumerate().map(|(n, (code, status, told, asked))| async move {
        let set = single(bytes(n as u64, 1000));
        let agent = stage.agent_with(&format!("agent-{n}"), &set).await;
        agent.behave(Behaviour::obedient().at(0, Fault::Error(code)).always());
        let answer = stage.over(n % 2 == 0, &blob_url(&set), None).await;
        assert_eq!(answer.header("accept-ranges"), "bytes", "{code}");
        let retry_after = answer.header("retry-after").parse::<u64>().ok();
        assert_eq!(retry_after.is_some(), *status == 503, "{code}");
        let answer = answer.whole().await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (*status, *told), "{code}");
        let limit = answer.json()["error"]["limit"].as_u64();
        assert_eq!(limit, (*told == "too_many_transfers").then_some(16), "{code}");
        assert!(asked.contains(&agent.reads().len()), "{code}: asked {} times", agent.reads().len());
    }))
    .await;
    stage.wait_for_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_head_each_code_cuts() {
    let stage = Stage::with(|layer| layer.resume_window = Some(span("300ms"))).await;
    let stage = &stage;
    join_all(CODES.iter().enumerate().map(|(n, (code, ..))| async move {
        let set = single(bytes(n as u64, 2 * FRAME)).chunked(FRAME);
        let agent = stage.agent_with(&format!("agent-{n}"), &set).await;
        agent.behave(Behaviour::obedient().at(FRAME as u64, Fault::Error(code)).always());
        let outcome = stage.outcome(n % 2 == 0, &blob_url(&set), None).await;
        assert!(!outcome.whole && outcome.status.is_none_or(|status| status == 200), "{code}");
        assert_prefix(&outcome.bytes, &set.files[0].bytes, FRAME, code);
    }))
    .await;
    stage.wait_for_quiet().await;
}
