//! What is served by hash where agents contradict each other about it.

use serde_json::json;

use crate::on_both_databases;
use crate::stage::{CHUNK, MANIFEST_TYPE, Stage, by_hash};
use crate::support::db::{self, TestDatabase};
use crate::support::{Agent, Gateway, SampleSet, bytes, set_file, sha256};

on_both_databases!(nobody_displaces_the_bytes_of_who_announced_them_first, a_manifests_hash_is_no_other_agents_file,);

const LENGTH: usize = 2 * CHUNK + 77;

/// A second agent, whose sets alice reads too.
async fn intruder(gateway: &Gateway) -> Agent {
    gateway.bind_session("turn-2", "c1", "agent:eve").await;
    gateway.agent("eve").await
}

/// Announces a state of a task.
async fn tell(stage: &Stage, agent: &Agent, session: &str, set: &SampleSet, progress: (u64, u64)) {
    let frame = |frame: &mut serde_json::Value| {
        frame["session_id"] = json!(session);
        frame["task_id"] = json!("task-1");
        frame["progress"] = json!({"done": progress.0, "total": progress.1});
    };
    agent.announce_with(set, frame).await;
    stage.gateway.wait_for_set("c1", &set.identity()).await;
}

async fn nobody_displaces_the_bytes_of_who_announced_them_first(database: &TestDatabase) {
    let own = bytes(1, LENGTH);
    let hash = sha256(&own);
    let states = [
        SampleSet::of([("big", own.clone())]).chunked(CHUNK),
        SampleSet::of([("more", bytes(2, 10)), ("big", own.clone())]).chunked(CHUNK),
        SampleSet::of([("big", own.clone()), ("most", bytes(3, 10))]).chunked(CHUNK),
    ];
    let gateway = Gateway::builder().on(database).start().await;
    let stage = Stage::with_set(SampleSet::of([("b", bytes(9, 9))]), gateway).await;
    let eve = intruder(&stage.gateway).await;
    tell(&stage, &stage.agent, "turn-1", &states[0], (1, 3)).await;
    // Eve has other bytes, one more of them, and a list that vouches for them.
    let evil = vec![b'E'; LENGTH + 1];
    let mut claim = SampleSet::of([("big", evil.clone())]).chunked(CHUNK);
    claim.manifest["entries"][0]["sha256"] = json!(hash);
    eve.serve_as(&hash, &evil);
    eve.announce_in("turn-2", &claim).await;
    stage.gateway.wait_for_set("c1", &claim.identity()).await;
    for (state, progress) in states.iter().zip([None, Some((2, 3)), Some((3, 3))]) {
        if let Some(progress) = progress {
            tell(&stage, &stage.agent, "turn-1", state, progress).await;
        }
        for resource in by_hash(&hash, &own, "") {
            let whole = stage.get(&resource.path, &[]).await;
            assert_eq!((whole.status.as_u16(), whole.header("sluice-verified")), (200, Some("full")));
            assert!(whole.body == own, "other bytes by {}", resource.path);
            for range in [(0, CHUNK), (5, 2 * CHUNK), (2 * CHUNK, LENGTH)] {
                let header = ("range", format!("bytes={}-{}", range.0, range.1 - 1));
                let part = stage.get(&resource.path, &[header]).await;
                assert_eq!(part.status, 206, "{}", resource.path);
                assert!(part.body == own[range.0..range.1], "other bytes in {range:?} by {}", resource.path);
                assert_eq!(
                    part.header("sluice-verified"),
                    Some("none"),
                    "a list that is contradicted vouches for nothing"
                );
            }
        }
        // By its path a file is its own entry's.
        let path = set_file("c1", state, "big");
        let part = stage.get(&path, &[("range", format!("bytes=0-{}", CHUNK - 1))]).await;
        assert_eq!((part.status.as_u16(), part.header("sluice-verified")), (206, Some("full")));
        assert!(part.body == own[..CHUNK]);
    }
}

async fn a_manifests_hash_is_no_other_agents_file(database: &TestDatabase) {
    let gateway = Gateway::builder().on(database).start().await;
    let stage = Stage::with_set(SampleSet::of([("a", bytes(1, 100))]), gateway).await;
    let (manifest, identity) = (stage.set.canonical(), stage.set.identity());
    let eve = intruder(&stage.gateway).await;
    let mut claim = SampleSet::of([("x", b"EVIL!".to_vec())]);
    claim.manifest["entries"][0]["sha256"] = json!(identity);
    eve.serve_as(&identity, b"EVIL!");
    eve.announce_in("turn-2", &claim).await;
    stage.gateway.wait_for_set("c1", &claim.identity()).await;
    let by_name = format!("/agents/eve/artifacts/blobs/sha256:{identity}");
    for path in by_hash(&identity, &manifest, "").map(|resource| resource.path).chain([by_name]) {
        let whole = stage.get(&path, &[]).await;
        assert_eq!((whole.status.as_u16(), whole.header("content-type")), (200, Some(MANIFEST_TYPE)), "{path}");
        assert!(whole.body == manifest, "{path}");
        let part = stage.get(&path, &[("range", "bytes=0-3".to_owned())]).await;
        assert_eq!((part.status.as_u16(), part.header("sluice-verified")), (206, Some("full")), "{path}");
        assert!(part.body == manifest[..4], "{path}");
    }
    assert_eq!(eve.reads().len(), 0);
}
