//! A transfer that ends early ends on the agent at once.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::Method;
use sluice::transfer::State;

use crate::stage::{FRAME, Stage, assert_bytes, body, cut, single, url};
use crate::support::{Agent, Behaviour, Event, Fault, What, bytes, eventually, sha256, span};

fn cancels(agent: &Agent) -> usize {
    agent.log().all().iter().filter(|event| event.what.is_cancel()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_before_the_first_byte_reaches_the_agent() {
    let stage = Stage::new().await;
    let set = single(bytes(1, FRAME));
    let agent = stage.agent_with("ada", &set).await;
    let path = url(&set);
    // Of a part that nothing vouches for, no two share a read.
    let part = Some("bytes=1-");
    for http2 in [false, true] {
        agent.behave(Behaviour::obedient().at(1, Fault::Stall).always());
        let before = (agent.reads().len(), cancels(&agent));
        // All slots, and as many again that wait for one.
        let readers = join_all((0..32).map(|_| stage.over(http2, &path, part)));
        let asked = async {
            agent.wait_for_reads(before.0 + 16).await;
            stage.wait_for_state(State::WaitingForSlot, 16).await;
        };
        tokio::select! {
            _ = readers => panic!("nothing was sent"),
            () = asked => {}
        }
        eventually("sixteen cancels", async || (cancels(&agent) >= before.1 + 16).then_some(())).await;
        stage.wait_for_quiet().await;
        let ended = || agent.log().all().iter().filter(|event| matches!(event.what, What::SentEnd { .. })).count();
        eventually("every cancel", async || (agent.reads().len() == cancels(&agent) + ended()).then_some(())).await;
        agent.behave(Behaviour::obedient());
        assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "the slots are free");
    }
}

#[tokio::test]
async fn leaving_in_the_middle_reaches_the_agent_at_once() {
    let stage = Stage::new().await;
    let set = single(bytes(2, 64 * FRAME));
    let agent = stage.agent_with("ada", &set).await;
    for http2 in [false, true] {
        let mark = agent.log().mark();
        let mut reader = stage.over(http2, &url(&set), None).await;
        reader.read(FRAME).await;
        let left = Instant::now();
        drop(reader);
        let cancel = agent.log().wait_from(mark, |event| event.what.is_cancel()).await;
        assert!(cancel.at.into_std() < left + Duration::from_secs(1), "{:?}", cancel.at.into_std() - left);
        let What::Cancel { request_id } = cancel.what else { panic!() };
        stage.wait_for_quiet().await;
        // Not one byte is sent for it from then on.
        let all = agent.log().all();
        let at = all.iter().position(|event| event.what == What::Cancel { request_id: request_id.clone() }).unwrap();
        let later = |event: &Event| matches!(&event.what, What::SentData { request_id: id, .. } if *id == request_id);
        assert!(!all[at..].iter().any(later));
    }
    assert!(stage.gateway.metric("sluice_transfers_ended_total{outcome=\"reader_left\"}") >= 2.0);
}

#[tokio::test]
async fn an_agent_that_ignores_a_cancel_harms_nobody() {
    let stage = Stage::new().await;
    let set = single(bytes(3, 64 * FRAME));
    let agent = stage.agent_with("ada", &set).await;
    agent.behave(Behaviour::obedient().ignoring_cancel());
    for _ in 0..20 {
        let mut reader = stage.slow(&url(&set)).await;
        reader.read(100).await;
        drop(reader);
    }
    stage.wait_for_quiet().await;
    agent.behave(Behaviour::obedient());
    let answer = stage.range(&url(&set), "bytes=100-999").await;
    assert_bytes(&body(answer).await, &set.files[0].bytes[100..1000], "afterwards");
    assert!(!agent.is_over(crate::support::Kind::Control), "the connection was closed");
}

#[tokio::test]
async fn an_operator_sees_a_transfer_and_ends_it() {
    let stage = Stage::new().await;
    let set = single(bytes(4, 32 * FRAME));
    let agent = stage.agent_with("ada", &set).await;
    for http2 in [false, true] {
        let (mark, path) = (agent.log().mark(), url(&set));
        let mut reader =
            if http2 { stage.over(true, &path, Some("bytes=100-")).await } else { stage.slow(&path).await };
        reader.read(1000).await;
        let list = stage.gateway.operate(Method::GET, "/v1/transfers", None).await.json();
        let [transfer] = &list["transfers"].as_array().unwrap()[..] else { panic!("{list}") };
        assert_eq!(transfer["reader"], "user:alice");
        assert_eq!(transfer["agent"], "agent:ada");
        assert_eq!(transfer["sha256"], sha256(&set.files[0].bytes));
        assert_eq!(transfer["start"], if http2 { 100 } else { 0 });
        assert_eq!(transfer["end"], 32 * FRAME);
        assert!(transfer["sent_bytes"].as_u64().unwrap() >= 1000);
        assert!(["reading", "waiting_for_reader"].contains(&transfer["state"].as_str().unwrap()), "{transfer}");
        let id = format!("/v1/transfers/{}", transfer["id"]);
        for token in [stage.alice(), stage.gateway.reader("user:mallory")] {
            assert_eq!(stage.gateway.ask(Method::DELETE, &id, &token, None).await.status, 403);
        }
        assert_eq!(stage.gateway.operate(Method::DELETE, &id, None).await.status, 204);
        agent.log().wait_from(mark, |event| event.what.is_cancel()).await;
        cut(reader).await;
        stage.wait_for_quiet().await;
        let again = stage.gateway.ask(Method::DELETE, &id, &stage.gateway.operator(), None).await;
        assert_eq!(again.status, 404);
    }
    let gone = stage.gateway.operate(Method::GET, "/v1/transfers", None).await.json();
    assert_eq!(gone["transfers"], serde_json::json!([]));
}

#[tokio::test]
async fn an_operator_ends_a_transfer_that_has_not_begun() {
    let stage = Stage::new().await;
    let set = single(bytes(5, FRAME));
    let agent = stage.agent_with("ada", &set).await;
    agent.behave(Behaviour::obedient().at(0, Fault::Stall).always());
    let path = url(&set);
    let ending = async {
        agent.wait_for_reads(1).await;
        let list = stage.gateway.operate(Method::GET, "/v1/transfers", None).await.json();
        let id = format!("/v1/transfers/{}", list["transfers"][0]["id"]);
        stage.gateway.operate(Method::DELETE, &id, None).await;
    };
    let (answer, ()) = futures_util::future::join(stage.get(&path), ending).await;
    assert_eq!(crate::stage::refusal(answer).await, (503, "unavailable".to_owned()));
    agent.wait_for(|event| event.what.is_cancel()).await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_for_too_long_is_let_go() {
    let stage = Stage::with(|layer| layer.stall_timeout = Some(span("300ms"))).await;
    let set = single(bytes(6, 32 * FRAME));
    let agent = stage.agent_with("ada", &set).await;
    let mut reader = stage.slow(&url(&set)).await;
    reader.read(100).await;
    agent.wait_for(|event| event.what.is_cancel()).await;
    stage.wait_for_quiet().await;
    cut(reader).await;
}
