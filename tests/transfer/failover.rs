//! Other agents that announced the same bytes, as far as the reader may read their announcements.

use crate::stage::{FRAME, Stage, asked, assert_bytes, blob_url, body, cut, refusal, single, url};
use crate::support::{Behaviour, Fault, bytes, span};

#[tokio::test]
async fn another_agent_goes_on_where_the_first_one_stopped() {
    let place = FRAME as u64 + 7;
    for fault in [
        Fault::Die,
        Fault::Error("read_failed"),
        Fault::Error("unknown_blob"),
        Fault::Error("duplicate_request"),
        Fault::Short,
        Fault::WrongOffset,
    ] {
        for chunked in [false, true] {
            let stage = Stage::new().await;
            let set = single(bytes(1, 4 * FRAME));
            let set = if chunked { set.chunked(2 * FRAME) } else { set };
            // Who announced it first is asked first.
            let bob = stage.agent_with("bob", &set).await;
            let ada = stage.agent_with("ada", &set).await;
            bob.behave(Behaviour::obedient().at(place, fault).always());
            let what = format!("{fault:?}, chunked: {chunked}");
            let answer = stage.get(&url(&set)).await;
            assert_eq!((answer.status.as_u16(), answer.header("sluice-verified")), (200, "full"), "{what}");
            assert_bytes(&body(answer).await, &set.files[0].bytes, &what);
            assert_eq!(asked(&ada), [(place, 4 * FRAME as u64 - place)], "{what}");
            assert!(asked(&bob).len() <= 2, "{what}");
        }
    }
}

#[tokio::test]
async fn a_wrong_chunk_is_asked_of_another_agent_while_none_of_it_was_sent() {
    let stage = Stage::new().await;
    let set = single(bytes(2, 4 * FRAME)).chunked(FRAME);
    let eve = stage.agent_with("eve", &set).await;
    let ada = stage.agent_with("ada", &set).await;
    eve.behave(Behaviour::obedient().at(2 * FRAME as u64, Fault::Corrupt).always());
    assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "two agents' bytes");
    assert_eq!(asked(&ada), [(2 * FRAME as u64, 2 * FRAME as u64)]);
    // Once a part of a wrong chunk was sent, nothing can mend it.
    let stage = Stage::new().await;
    let eve = stage.agent_with("eve", &set).await;
    let _ada = stage.agent_with("ada", &set).await;
    eve.behave(Behaviour::obedient().at(2 * FRAME as u64 + 9, Fault::Corrupt).always());
    let received = cut(stage.get(&url(&set)).await).await;
    assert!(received.len() < 3 * FRAME);
}

#[tokio::test]
async fn an_agent_in_a_chat_that_is_not_the_readers_is_never_asked() {
    let stage = Stage::with(|layer| layer.agent_wait = Some(span("100ms"))).await;
    let set = single(bytes(3, 2 * FRAME));
    let mut ada = stage.agent_with("ada", &set).await;
    let bob = stage.agent("bob").await;
    stage.share(&bob, "c2", &set).await;
    ada.behave(Behaviour::obedient().at(0, Fault::Error("read_failed")));
    assert_eq!(refusal(stage.get(&url(&set)).await).await, (502, "agent_failed".to_owned()));
    ada.cut().await;
    stage.gateway.wait_for_metric("sluice_agents_online", 1.0).await;
    for path in [url(&set), blob_url(&set)] {
        assert_eq!(refusal(stage.get(&path).await).await, (503, "agent_offline".to_owned()));
    }
    assert!(bob.reads().is_empty());
    let mallory = stage.gateway.reader("user:mallory");
    assert_bytes(&stage.gateway.get(&blob_url(&set), &mallory).await.body, &set.files[0].bytes, "bob's own chat");
}

#[tokio::test]
async fn announcing_a_foreign_hash_gains_nothing() {
    let stage = Stage::new().await;
    let set = single(bytes(4, 2 * FRAME + 9)).chunked(FRAME);
    let ada = stage.agent_with("ada", &set).await;
    body(stage.get(&url(&set)).await).await;
    let before = ada.reads().len();
    // Eve knows ada's manifest, and so does mallory, but neither has the bytes.
    let eve = stage.agent("eve").await;
    stage.share(&eve, "c2", &set).await;
    eve.forget(&set.files[0].sha256);
    let mallory = stage.gateway.reader("user:mallory");
    for path in [blob_url(&set), format!("/agents/eve{}", blob_url(&set))] {
        let answer = stage.gateway.download(&path, &mallory).await;
        assert_eq!(refusal(answer).await, (410, "blob_gone".to_owned()), "{path}");
    }
    let answer = stage.gateway.get(&format!("/agents/ada{}", blob_url(&set)), &mallory).await;
    assert_eq!(answer.status, 404);
    // A relay location that names ada is not hers to give either.
    let mut theft = single(set.files[0].bytes.to_vec());
    theft.manifest["entries"][0]["locations"] = serde_json::json!([{"kind": "relay", "agent": "ada"}]);
    stage.share(&eve, "c2", &theft).await;
    eve.forget(&set.files[0].sha256);
    let answer = stage.gateway.get(&format!("/v1/chats/c2/sets/{}/files/a.bin", theft.identity()), &mallory).await;
    assert_ne!(answer.status, 200);
    assert_eq!(ada.reads().len(), before, "ada was asked for mallory");
}

#[tokio::test]
async fn announcing_a_foreign_hash_spoils_nothing() {
    let stage = Stage::new().await;
    let content = bytes(5, 4 * FRAME);
    let set = single(content.clone());
    let _ada = stage.agent_with("ada", &set).await;
    let eve = stage.agent("eve").await;
    stage.share(&eve, "c2", &set).await;
    // She lies to her own reader, so that the hash proves wrong.
    eve.behave(Behaviour::obedient().at(FRAME as u64, Fault::Corrupt).always());
    let mallory = stage.gateway.reader("user:mallory");
    cut(stage.gateway.download(&blob_url(&set), &mallory).await).await;
    let answer = stage.range(&blob_url(&set), "bytes=10-19").await;
    assert_eq!(answer.status, 206, "a lie in another chat");
    assert_bytes(&body(answer).await, &content[10..20], "ada's bytes");

    // In the same chat, with another size under the same hash, she offers other bytes.
    let mut other = single(bytes(6, 100));
    other.manifest["entries"][0]["sha256"] = set.files[0].sha256.clone().into();
    stage.share(&eve, "c1", &other).await;
    let answer = stage.get(&url(&set)).await;
    assert_bytes(&body(answer).await, &content, "ada's set is ada's");
}

#[tokio::test]
async fn a_chunk_list_is_never_applied_to_another_entry() {
    let stage = Stage::with(|layer| layer.agent_wait = Some(span("200ms"))).await;
    let content = bytes(7, 4 * FRAME);
    let (fine, coarse) = (single(content.clone()).chunked(FRAME), single(content.clone()).chunked(2 * FRAME));
    let mut ada = stage.agent_with("ada", &fine).await;
    let bob = stage.agent_with("bob", &coarse).await;
    // By the path in a set, only those with the set's own list are asked.
    ada.behave(Behaviour::obedient().at(0, Fault::Error("read_failed")));
    assert_eq!(refusal(stage.get(&url(&fine)).await).await, (502, "agent_failed".to_owned()));
    assert!(bob.reads().is_empty());
    // By the hash alone the lists contradict each other as far as anybody can tell, and the whole file decides.
    ada.behave(Behaviour::obedient().at(FRAME as u64 + 9, Fault::Error("read_failed")));
    let answer = stage.get(&blob_url(&fine)).await;
    assert_eq!(answer.header("sluice-verified"), "full");
    assert_bytes(&body(answer).await, &content, "ada's bytes, then bob's");
    let answer = stage.range(&blob_url(&fine), &format!("bytes=0-{}", FRAME - 1)).await;
    assert_eq!(answer.header("sluice-verified"), "none");
    ada.cut().await;
    let answer = stage.range(&blob_url(&fine), &format!("bytes=0-{}", FRAME - 1)).await;
    assert_eq!(refusal(answer).await.0, 503, "what nothing checks is taken from nobody but the first");
}

/// Whoever takes part in the chat may announce what others announced, with a list that vouches for other bytes.
#[tokio::test]
async fn a_false_chunk_list_passes_no_bytes_off_as_somebodys() {
    for chunked in [false, true] {
        let stage = Stage::with(|layer| layer.agent_wait = Some(span("100ms"))).await;
        let content = bytes(9, 4 * FRAME);
        let set = single(content.clone());
        let set = if chunked { set.chunked(FRAME) } else { set };
        let mut ada = stage.agent_with("ada", &set).await;
        let eve = stage.agent("eve").await;
        let mut lie = single(bytes(10, 4 * FRAME)).chunked(FRAME);
        lie.manifest["entries"][0]["sha256"] = set.manifest["entries"][0]["sha256"].clone();
        stage.share(&eve, "c1", &lie).await;
        eve.serve_as(&set.files[0].sha256, &lie.files[0].bytes);
        for path in [url(&set), blob_url(&set)] {
            assert_bytes(&body(stage.get(&path).await).await, &content, &path);
            let part = body(stage.range(&path, "bytes=0-99").await).await;
            assert_bytes(&part, &content[..100], &path);
        }
        ada.cut().await;
        for path in [url(&set), blob_url(&set)] {
            let outcome = stage.outcome(false, &path, None).await;
            assert!(outcome.status != Some(200) || !outcome.whole, "{path}: eve's bytes are not ada's file");
        }
        assert_eq!(refusal(stage.range(&blob_url(&set), "bytes=0-99").await).await.0, 503);
    }
}

#[tokio::test]
async fn a_file_that_every_agent_lost_is_gone() {
    let stage = Stage::new().await;
    let set = single(bytes(8, 10));
    let agents = [stage.agent_with("ada", &set).await, stage.agent_with("bob", &set).await];
    agents.iter().for_each(|agent| agent.forget(&set.files[0].sha256));
    assert_eq!(refusal(stage.get(&url(&set)).await).await, (410, "blob_gone".to_owned()));
}
