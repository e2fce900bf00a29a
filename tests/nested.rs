//! Manifests that are read over real sockets, nested sets, and versions, from the frame to the reader.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use http::Method;
use serde_json::{Value, json};
use support::db::{self, TestDatabase};
use support::{Agent, Behaviour, Fault, Gateway, SampleSet, What, bytes, set_file, span};

on_both_databases!(
    a_manifest_is_read_over_the_socket_that_announced_it,
    a_read_goes_on_when_the_agent_is_back,
    a_refusal_finds_the_agent_when_it_is_back,
    nested_sets_are_downloaded_by_path_and_by_hash,
    versions_are_downloaded,
);

async fn house(database: &TestDatabase) -> Gateway {
    let gateway = Gateway::builder().on(database).start().await;
    gateway.furnish().await;
    gateway
}

/// About 700 KB of manifest: three frames.
fn large() -> SampleSet {
    SampleSet::of((0..4000).map(|n| (format!("some/longer/folder/file number {n}"), n.to_string().into_bytes())))
}

/// Only hash and size.
async fn mention(agent: &Agent, set: &SampleSet) -> String {
    agent
        .announce_with(set, |frame| {
            frame.as_object_mut().unwrap().remove("manifest");
            frame["session_id"] = json!("turn-1");
        })
        .await
}

async fn refusal(agent: &Agent, event_id: &str) -> String {
    let wanted = |what: &What| matches!(what, What::ArtifactError { event_id: Some(id), .. } if *id == event_id);
    match agent.wait_for(|event| wanted(&event.what)).await.what {
        What::ArtifactError { code, .. } => code,
        _ => unreachable!(),
    }
}

async fn a_manifest_is_read_over_the_socket_that_announced_it(database: &TestDatabase) {
    let gateway = house(database).await;
    let agent = gateway.agent("ada").await;
    let set = large();
    // It stops half way, and the socket goes on: pings, other announcements, downloads.
    agent.behave_for(&set.identity(), Behaviour::obedient().at(300_000, Fault::Stall));
    mention(&agent, &set).await;
    agent.wait_for_reads(1).await;
    let other = SampleSet::of([("other.bin", bytes(1, 600_000))]);
    agent.announce_in("turn-1", &other).await;
    gateway.wait_for_set("c1", &other.identity()).await;
    let alice = gateway.reader("user:alice");
    assert_eq!(gateway.get(&set_file("c1", &other, "other.bin"), &alice).await.body, bytes(1, 600_000));
    agent.send(json!({"type": "ping", "event_id": "p1"})).await;
    agent.wait_for_frame("pong").await;
    assert_eq!(gateway.sets("c1").await.len(), 1, "nothing is kept before it is read");
    assert_eq!(gateway.metric("sluice_announcements_reading"), 1.0);
    // After the read timeout it is asked again, and serves.
    gateway.wait_for_set("c1", &set.identity()).await;
    let sets = gateway.sets("c1").await;
    assert_eq!(sets[1]["entries"], 4000, "it stands where it came in, before the other: {sets:?}");
    let manifest = gateway.get(&format!("/v1/chats/c1/sets/{}", set.identity()), &alice).await;
    assert_eq!(manifest.body, set.canonical());
    gateway.wait_for_metric("sluice_announcements_reading", 0.0).await;

    // What lies about itself is refused, and the connection is as good as before.
    let lie = SampleSet::of([("lie", b"lie".to_vec())]);
    agent.behave_for(&lie.identity(), Behaviour::obedient().at(5, Fault::Corrupt).always());
    let event_id = mention(&agent, &lie).await;
    assert_eq!(refusal(&agent, &event_id).await, "hash_mismatch");
    let gone = SampleSet::of([("gone", b"gone".to_vec())]);
    let event_id = agent.event_id();
    agent
        .send(json!({
            "type": "artifact.manifest", "event_id": event_id, "sha256": gone.identity(), "size": 300,
            "session_id": "turn-1",
        }))
        .await;
    assert_eq!(refusal(&agent, &event_id).await, "manifest_unreadable");
    let longer = SampleSet::of([("longer", b"longer".to_vec())]);
    let event_id = agent
        .announce_with(&longer, |frame| {
            frame.as_object_mut().unwrap().remove("manifest");
            frame["size"] = json!(longer.canonical().len() + 1);
        })
        .await;
    assert_eq!(refusal(&agent, &event_id).await, "size_mismatch");
    assert_eq!(gateway.sets("c1").await.len(), 2);
}

async fn a_read_goes_on_when_the_agent_is_back(database: &TestDatabase) {
    let gateway = house(database).await;
    let mut agent = gateway.agent("ada").await;
    let set = large();
    agent.behave_for(&set.identity(), Behaviour::obedient().at(300_000, Fault::Die));
    mention(&agent, &set).await;
    agent.wait_for(|event| event.what == What::Cut).await;
    agent.reconnect().await;
    // Nothing is announced again: the gateway keeps what it was told.
    gateway.wait_for_set("c1", &set.identity()).await;
    assert_eq!(gateway.sets("c1").await.len(), 1);
}

async fn a_refusal_finds_the_agent_when_it_is_back(database: &TestDatabase) {
    let gateway = Gateway::builder()
        .on(database)
        .with(|layer| (layer.agent_wait, layer.resume_window) = (Some(span("200ms")), Some(span("200ms"))))
        .start()
        .await;
    gateway.furnish().await;
    let mut agent = gateway.agent("ada").await;
    let set = large();
    agent.behave_for(&set.identity(), Behaviour::obedient().at(300_000, Fault::Die));
    let event_id = mention(&agent, &set).await;
    agent.wait_for(|event| event.what == What::Cut).await;
    gateway.wait_for_metric("sluice_announcements_reading", 0.0).await;
    assert_eq!(gateway.metric("sluice_announcements_total{outcome=\"manifest_unreadable\"}"), 1.0);
    agent.reconnect().await;
    assert_eq!(refusal(&agent, &event_id).await, "manifest_unreadable");
    assert_eq!(gateway.sets("c1").await, Vec::<Value>::new());
    // Announced again, it is read again.
    mention(&agent, &set).await;
    gateway.wait_for_set("c1", &set.identity()).await;
}

async fn nested_sets_are_downloaded_by_path_and_by_hash(database: &TestDatabase) {
    let gateway = house(database).await;
    let agent = gateway.agent("ada").await;
    let inner = SampleSet::of([("data/big.bin", bytes(7, 1_000_000)), ("é.txt", b"text".to_vec())]).chunked(256 * 1024);
    let outer = SampleSet::around(&inner, "results/set.json", "top.txt");
    agent.serve(&inner);
    agent.announce_in("turn-1", &outer).await;
    gateway.wait_for_set("c1", &outer.identity()).await;
    let (alice, bob) = (gateway.reader("user:alice"), gateway.reader("user:bob"));

    let listed = gateway.get(&format!("/v1/chats/c1/sets/{}/entries", outer.identity()), &alice).await.json();
    let entries = listed["entries"].as_array().unwrap();
    let shown: Vec<_> = entries.iter().map(|entry| (entry["path"].as_str().unwrap(), &entry["kind"])).collect();
    let (file, manifest) = (json!("file"), json!("manifest"));
    let expected = [
        ("top.txt", &file),
        ("results/set.json", &manifest),
        ("results/data/big.bin", &file),
        ("results/é.txt", &file),
    ];
    assert_eq!(shown, expected);
    assert!(entries.iter().all(|entry| entry["version"] == 1));
    let contents = [b"top.txt".to_vec(), inner.canonical(), bytes(7, 1_000_000), b"text".to_vec()];
    for (entry, content) in entries.iter().zip(contents) {
        let path = entry["url"].as_str().unwrap().strip_prefix(&gateway.url).unwrap();
        let answer = gateway.get(path, &alice).await;
        assert_eq!((answer.status.as_u16(), answer.body == content), (200, true), "{path}");
        assert_eq!(answer.headers["sluice-verified"], "full");
        assert_eq!(gateway.get(path, &bob).await.status, 404);
        let hash = entry["sha256"].as_str().unwrap();
        for route in [format!("/artifacts/blobs/sha256:{hash}"), format!("/agents/ada/artifacts/blobs/sha256:{hash}")] {
            assert_eq!(gateway.get(&route, &alice).await.body, content, "{route}");
            assert_eq!(gateway.get(&route, &bob).await.status, 404);
        }
    }
    // The entry's own chunk list holds for a part of it.
    let mut part =
        gateway.download_range(&set_file("c1", &outer, "results/data/big.bin"), &alice, "bytes=262144-524287").await;
    assert_eq!(part.headers["sluice-verified"], "full");
    assert_eq!(part.read(262_144).await, bytes(7, 1_000_000)[262_144..524_288]);
    // The nested manifest asks no agent.
    drop(agent);
    let manifest = gateway.get(&set_file("c1", &outer, "results/set.json"), &alice).await;
    assert_eq!(manifest.body, inner.canonical());
    assert_eq!(gateway.get(&format!("/v1/chats/c1/sets/{}", inner.identity()), &alice).await.status, 404);
}

async fn versions_are_downloaded(database: &TestDatabase) {
    let gateway = house(database).await;
    let agent = gateway.agent("ada").await;
    for content in ["first", "second", "second"] {
        let set = SampleSet::of([("dir/report.txt", content.as_bytes().to_vec()), ("same", b"same".to_vec())]);
        agent.announce_in("turn-1", &set).await;
        gateway.wait_for_set("c1", &set.identity()).await;
    }
    let (alice, bob) = (gateway.reader("user:alice"), gateway.reader("user:bob"));
    let list = gateway.get("/v1/chats/c1/files?limit=1", &alice).await.json();
    let report = &list["files"][0];
    let shown = (&report["path"], &report["version"], &report["agent"], &report["size"], &report["kind"]);
    assert_eq!(shown, (&json!("dir/report.txt"), &json!(2), &json!("ada"), &json!(6), &json!("file")));
    let next = list["next_cursor"].as_str().unwrap();
    let rest = gateway.get(&format!("/v1/chats/c1/files?cursor={next}"), &alice).await.json();
    assert_eq!((&rest["files"][0]["path"], &rest["files"][0]["version"]), (&json!("same"), &json!(1)));
    assert_eq!(rest["next_cursor"], Value::Null);

    let id = report["id"].as_str().unwrap();
    let versions = format!("/v1/chats/c1/files/{id}/versions");
    let all = gateway.get(&versions, &alice).await.json();
    let all = all["files"].as_array().unwrap();
    assert_eq!(all.iter().map(|version| &version["version"]).collect::<Vec<_>>(), [2, 1]);
    for (version, content) in all.iter().zip(["second", "first"]) {
        let path = version["url"].as_str().unwrap().strip_prefix(&gateway.url).unwrap();
        let answer = gateway.get(path, &alice).await;
        assert_eq!(answer.body, content.as_bytes());
        assert!(answer.headers["content-disposition"].to_str().unwrap().contains("report.txt"));
        assert_eq!(answer.headers["etag"], format!("\"sha256-{}\"", version["sha256"].as_str().unwrap()));
        let head = gateway.ask(Method::HEAD, path, &alice, None).await;
        assert_eq!(
            (head.status.as_u16(), head.headers["content-length"].to_str().unwrap()),
            (200, content.len().to_string().as_str())
        );
    }
    // Foreign equals unknown.
    let unknown = "/v1/chats/c1/files/af_0000000000000001/versions";
    let gone = [
        gateway.get(&versions, &bob).await,
        gateway.get(unknown, &alice).await,
        gateway.get("/v1/chats/c1/files/af_x/versions", &alice).await,
        gateway.get("/v1/chats/c1/files", &bob).await,
        gateway.get("/v1/chats/unknown/files", &alice).await,
        gateway.get(&format!("{versions}/1"), &bob).await,
        gateway.get(&format!("{versions}/3"), &alice).await,
        gateway.get(&format!("{versions}/-1"), &alice).await,
        gateway.get(&format!("{versions}/one"), &alice).await,
        gateway.get(&format!("/v1/chats/c2/files/{id}/versions/1"), &bob).await,
    ];
    for answer in &gone {
        assert_eq!((answer.status.as_u16(), &answer.body), (404, &gone[0].body));
    }
}
