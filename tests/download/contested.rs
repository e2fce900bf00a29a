//! What is served by hash where agents contradict each other about it.

use http::Method;
use serde_json::json;

use crate::on_both_databases;
use crate::stage::{CHUNK, MANIFEST_TYPE, Stage, by_hash};
use crate::support::db::{self, TestDatabase};
use crate::support::{Agent, Gateway, SampleSet, bytes, set_file, sha256};

on_both_databases!(
    nobody_displaces_the_bytes_of_who_announced_them_first,
    a_manifests_hash_is_no_other_agents_file,
    a_wrong_size_gives_way_before_anything_is_sent,
    a_wrong_size_that_was_caught_is_not_believed_again,
    a_size_too_small_for_a_range_gives_way,
    a_wrong_size_of_who_is_away_gives_way,
    a_size_that_was_proved_before_is_believed_at_once,
    many_wrong_sizes_of_one_agent_keep_no_other_out,
);

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
    let mut vouched = "none";
    for (state, progress) in states.iter().zip([None, Some((2, 3)), Some((3, 3))]) {
        if let Some(progress) = progress {
            tell(&stage, &stage.agent, "turn-1", state, progress).await;
        }
        for resource in by_hash(&hash, &own, "") {
            for range in [(0, CHUNK), (5, 2 * CHUNK), (2 * CHUNK, LENGTH)] {
                let header = ("range", format!("bytes={}-{}", range.0, range.1 - 1));
                let part = stage.get(&resource.path, &[header]).await;
                assert_eq!(part.status, 206, "{}", resource.path);
                assert!(part.body == own[range.0..range.1], "other bytes in {range:?} by {}", resource.path);
                // A list that is contradicted vouches for nothing, until the whole has shown who is right.
                assert_eq!(part.header("sluice-verified"), Some(vouched), "{}", resource.path);
            }
            let whole = stage.get(&resource.path, &[]).await;
            assert_eq!((whole.status.as_u16(), whole.header("sluice-verified")), (200, Some("full")));
            assert!(whole.body == own, "other bytes by {}", resource.path);
            vouched = "full";
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

/// Eve says that a hash stands for these bytes, and serves them.
async fn claim(stage: &Stage, eve: &Agent, hash: &str, bytes: &[u8]) -> SampleSet {
    let mut claim = SampleSet::of([("big", bytes.to_vec())]);
    claim.manifest["entries"][0]["sha256"] = json!(hash);
    eve.serve_as(hash, bytes);
    eve.announce_in("turn-2", &claim).await;
    stage.gateway.wait_for_set("c1", &claim.identity()).await;
    claim
}

/// Ada with another set, and eve.
async fn both(gateway: Gateway) -> (Stage, Agent) {
    let stage = Stage::with_set(SampleSet::of([("b", bytes(9, 9))]), gateway).await;
    let eve = intruder(&stage.gateway).await;
    (stage, eve)
}

/// Eve is first with her claim, and ada has the file.
async fn contest(stage: &Stage, eve: &Agent, own: &SampleSet, claimed: &[u8]) {
    claim(stage, eve, &own.files[0].sha256, claimed).await;
    tell(stage, &stage.agent, "turn-1", own, (1, 1)).await;
}

/// The hash stands for these bytes on every route that names it: whole, in part, and to HEAD, and nobody asks eve.
async fn assert_told_apart(stage: &Stage, eve: &Agent, own: &[u8], of_range: &str) {
    let hash = sha256(own);
    let asked = eve.reads().len();
    for resource in by_hash(&hash, own, "") {
        let whole = stage.get(&resource.path, &[]).await;
        assert_eq!((whole.status.as_u16(), whole.header("sluice-verified")), (200, Some("full")));
        assert!(whole.body == own, "other bytes by {}", resource.path);
        let head = stage.ask(false, &Method::HEAD, &resource.path, &[]).await;
        assert_eq!((head.status.as_u16(), head.header("sluice-verified")), (200, Some("full")));
        assert_eq!(head.header("content-length"), Some(&*own.len().to_string()));
        let part = stage.get(&resource.path, &[("range", format!("bytes=-{}", own.len() - 1))]).await;
        assert_eq!((part.status.as_u16(), part.header("sluice-verified")), (206, Some(of_range)), "{}", resource.path);
        assert!(part.body == own[1..], "other bytes by {}", resource.path);
    }
    assert_eq!(eve.reads().len(), asked, "eve is asked again");
}

async fn a_wrong_size_gives_way_before_anything_is_sent(database: &TestDatabase) {
    let (stage, eve) = both(Gateway::builder().on(database).start().await).await;
    for (seed, claimed) in [vec![b'E'; 70_001], vec![b'E'; 10], bytes(2, 69_999), Vec::new()].iter().enumerate() {
        let own = bytes(seed as u64, 70_000);
        let set = SampleSet::of([("big", own.clone())]).chunked(CHUNK);
        contest(&stage, &eve, &set, claimed).await;
        let path = format!("/artifacts/blobs/sha256:{}", sha256(&own));
        let whole = stage.get(&path, &[]).await;
        assert_eq!((whole.status.as_u16(), whole.header("sluice-verified")), (200, Some("full")), "{}", claimed.len());
        assert_eq!(whole.header("content-length"), Some("70000"));
        assert!(whole.body == own, "other bytes");
        // Ada has shown that she has it, and that the other size is wrong: her list vouches for ranges again.
        assert_told_apart(&stage, &eve, &own, "full").await;
    }
}

async fn a_wrong_size_that_was_caught_is_not_believed_again(database: &TestDatabase) {
    let own = bytes(1, LENGTH);
    let (stage, eve) = both(Gateway::builder().on(database).start().await).await;
    let set = SampleSet::of([("big", own.clone())]).chunked(CHUNK);
    contest(&stage, &eve, &set, &vec![b'E'; LENGTH + 1]).await;
    let path = format!("/artifacts/blobs/sha256:{}", sha256(&own));
    // Her bytes were on their way before their hash was known.
    let mut cut = stage.gateway.download(&path, &stage.alice()).await;
    let (got, end) = cut.rest().await;
    assert!(end.is_err() && got.len() <= LENGTH, "{} bytes", got.len());
    // Whoever goes on with what came of them is given the whole, of which no byte is hers.
    let rest = stage.get(&path, &[("range", format!("bytes={}-", CHUNK))]).await;
    assert_eq!((rest.status.as_u16(), rest.header("sluice-verified")), (200, Some("full")));
    assert!(rest.body == own, "other bytes");
    let asked = eve.reads().len();
    // Another reader is no better informed, and served at once.
    stage.gateway.put_chat("c1", &["user:alice", "user:bob"]).await;
    let whole = stage.gateway.get(&path, &stage.gateway.reader("user:bob")).await;
    assert_eq!((whole.status.as_u16(), eve.reads().len()), (200, asked));
    for range in [(0, CHUNK), (5, 2 * CHUNK), (2 * CHUNK, LENGTH)] {
        let header = ("range", format!("bytes={}-{}", range.0, range.1 - 1));
        let answer =
            stage.gateway.download_range(&path, &stage.gateway.reader("user:bob"), &header.1).await.whole().await;
        assert_eq!((answer.status.as_u16(), &answer.body[..] == &own[range.0..range.1]), (206, true));
        assert_eq!(answer.header("sluice-verified"), "full");
    }
    assert_eq!(eve.reads().len(), asked);
}

async fn a_size_too_small_for_a_range_gives_way(database: &TestDatabase) {
    let own = bytes(1, 70_000);
    let (stage, eve) = both(Gateway::builder().on(database).start().await).await;
    contest(&stage, &eve, &SampleSet::of([("big", own.clone())]), b"E").await;
    let path = format!("/artifacts/blobs/sha256:{}", sha256(&own));
    let part = stage.get(&path, &[("range", "bytes=500-599".to_owned())]).await;
    assert_eq!((part.status.as_u16(), part.header("content-range")), (206, Some("bytes 500-599/70000")));
    assert!(part.body == own[500..600]);
    // What lies beyond every size is told by the first.
    let beyond = stage.get(&path, &[("range", "bytes=70000-".to_owned())]).await;
    assert_eq!((beyond.status.as_u16(), beyond.header("content-range")), (416, Some("bytes */1")));
}

async fn a_wrong_size_of_who_is_away_gives_way(database: &TestDatabase) {
    let own = bytes(1, 70_000);
    let gateway = Gateway::builder().on(database).with(|layer| layer.agent_wait = Some("200ms".parse().unwrap()));
    let (stage, mut eve) = both(gateway.start().await).await;
    contest(&stage, &eve, &SampleSet::of([("big", own.clone())]), &[b'E'; 10]).await;
    eve.cut().await;
    let path = format!("/artifacts/blobs/sha256:{}", sha256(&own));
    let whole = stage.get(&path, &[]).await;
    assert_eq!((whole.status.as_u16(), whole.header("sluice-verified")), (200, Some("full")));
    assert!(whole.body == own, "other bytes");
    assert_told_apart(&stage, &eve, &own, "none").await;
}

async fn a_size_that_was_proved_before_is_believed_at_once(database: &TestDatabase) {
    for (seed, cache) in [(1, "0"), (2, "64MiB")] {
        let own = bytes(seed, LENGTH);
        let gateway = Gateway::builder().on(database).with(|layer| layer.cache_size = Some(cache.parse().unwrap()));
        let set = SampleSet::of([("big", own.clone())]);
        let (mut stage, eve) = both(gateway.start().await).await;
        contest(&stage, &eve, &set, &vec![b'E'; LENGTH + 1]).await;
        let by_path = stage.get(&set_file("c1", &set, "big"), &[]).await;
        assert_eq!((by_path.status.as_u16(), by_path.header("sluice-verified")), (200, Some("full")));
        assert_told_apart(&stage, &eve, &own, "none").await;
        assert_eq!(eve.reads().len(), 0);
        stage.gateway.stop().await;
    }
}

async fn many_wrong_sizes_of_one_agent_keep_no_other_out(database: &TestDatabase) {
    let own = bytes(1, 70_000);
    let (stage, eve) = both(Gateway::builder().on(database).start().await).await;
    contest(&stage, &eve, &SampleSet::of([("big", own.clone())]), &[b'E'; 10]).await;
    // More than are looked at for one answer.
    for size in 11..80 {
        claim(&stage, &eve, &sha256(&own), &vec![b'E'; size]).await;
    }
    let path = format!("/artifacts/blobs/sha256:{}", sha256(&own));
    let whole = stage.get(&path, &[]).await;
    assert_eq!((whole.status.as_u16(), whole.header("sluice-verified")), (200, Some("full")));
    assert!(whole.body == own, "other bytes");
    assert!(eve.reads().len() <= 1);
}
