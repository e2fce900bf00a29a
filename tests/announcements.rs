//! Announcements over a real socket, from the frame to the reader who sees the set.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use support::db::{self, TestDatabase};
use support::proxy::Proxy;
use support::{Agent, Behaviour, Fault, Gateway, Kind, SampleSet, What, Wire, bytes, set_file, span};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

on_both_databases!(
    silence_means_that_the_set_is_kept,
    every_refusal_echoes_its_announcement,
    a_session_says_whose_set_it_is_and_where_it_may_be_read,
    a_burst_is_kept_and_a_flood_is_not,
    what_was_accepted_survives_a_kill,
);

const ANNOUNCED: &str = "sluice_announcements_total";

/// A hash that no sample has.
const PROBE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The SDK takes silence for acceptance after so long.
const CONFIRM_WINDOW: Duration = Duration::from_secs(2);

fn set(content: &str) -> SampleSet {
    SampleSet::of([("a.txt", content.as_bytes().to_vec()), ("dir/b.txt", b"the same".to_vec())])
}

async fn house(database: &TestDatabase) -> Gateway {
    let gateway = Gateway::builder().on(database).start().await;
    gateway.furnish().await;
    gateway
}

fn frame(set: &SampleSet, event_id: &str, session: Option<&str>) -> Value {
    json!({
        "type": "artifact.manifest", "event_id": event_id, "timestamp": 0, "uamp_version": "1.0", "task_id": "t1",
        "sha256": set.identity(), "size": set.canonical().len(), "manifest": set.manifest, "session_id": session,
        "locations": [{"kind": "relay", "agent": "ada"}],
    })
}

/// Announcements of one connection are decided in their order, so when this one is refused, the others are through.
async fn refusals(agent: &Agent) -> Vec<(String, String)> {
    let last = agent.event_id();
    agent.send(json!({"type": "artifact.manifest", "event_id": last, "sha256": PROBE, "size": 1})).await;
    agent.wait_for(|event| matches!(&event.what, What::ArtifactError { event_id: Some(id), .. } if *id == last)).await;
    let refused = agent.log().all().into_iter().filter_map(|event| match event.what {
        What::ArtifactError { event_id, code, sha256 } if sha256 != PROBE => Some((event_id.unwrap_or_default(), code)),
        _ => None,
    });
    refused.collect()
}

async fn silence_means_that_the_set_is_kept(database: &TestDatabase) {
    let gateway = house(database).await;
    let agent = gateway.agent("ada").await;
    let set = set("one").task("t1");
    agent.announce_in("turn-1", &set).await;
    assert!(refusals(&agent).await.is_empty());
    let alice = gateway.reader("user:alice");
    let list = gateway.get("/v1/chats/c1/sets", &alice).await.json();
    let shown = &list["sets"][0];
    assert_eq!(
        (&shown["sha256"], &shown["agent"], &shown["online"], &shown["entries"], &shown["size"]),
        (&json!(set.identity()), &json!("ada"), &json!(true), &json!(2), &json!(11))
    );
    let manifest = gateway.get(&format!("/v1/chats/c1/sets/{}", set.identity()), &alice).await;
    assert_eq!(manifest.body, set.canonical());
    let file = gateway.get(&set_file("c1", &set, "dir/b.txt"), &alice).await;
    assert_eq!((file.status.as_u16(), file.body), (200, b"the same".to_vec()));
    assert_eq!(gateway.get(&set_file("c1", &set, "a.txt"), &gateway.reader("user:bob")).await.status, 404);

    // The same again changes nothing; progress does.
    agent.announce_in("turn-1", &set).await;
    agent
        .announce_with(&set, |frame| {
            frame["session_id"] = json!("turn-1");
            frame["progress"] = json!({"done": 1, "total": 3});
        })
        .await;
    assert!(refusals(&agent).await.is_empty());
    let list = gateway.get("/v1/chats/c1/sets", &alice).await.json();
    assert_eq!(list["sets"].as_array().unwrap().len(), 1);
    assert_eq!(list["sets"][0]["progress"], json!({"done": 1, "total": 3}));
    assert_eq!(gateway.metric(&format!("{ANNOUNCED}{{outcome=\"accepted\"}}")), 3.0);
}

async fn every_refusal_echoes_its_announcement(database: &TestDatabase) {
    let gateway = house(database).await;
    let mut wire = Wire::open(&gateway, "", &[]).await;
    wire.create("ada", &gateway.agent_token("ada", "ada")).await;
    let good = set("good");
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut frame = frame(&good, "", Some("turn-1"));
        change(&mut frame);
        frame
    };
    // The manifest is changed together with its hash and size, so that it is the reader that refuses it.
    let manifest = |change: &dyn Fn(&mut Value)| {
        let mut set = good.clone();
        change(&mut set.manifest);
        frame(&set, "", Some("turn-1"))
    };
    let cases = [
        ("bad_request", changed(&|frame| frame["sha256"] = json!("nonsense"))),
        ("bad_request", changed(&|frame| frame["size"] = json!(-1))),
        ("bad_request", changed(&|frame| frame["session_id"] = json!("s".repeat(10_000)))),
        ("bad_request", changed(&|frame| frame["task_id"] = json!("\u{0}"))),
        ("bad_request", changed(&|frame| frame["progress"] = json!({"done": 2, "total": 1}))),
        ("hash_mismatch", changed(&|frame| frame["sha256"] = json!("0".repeat(64)))),
        ("size_mismatch", changed(&|frame| frame["size"] = json!(5))),
        (
            "manifest_unreadable",
            changed(&|frame| {
                frame["manifest"] = Value::Null;
                frame["locations"] = json!([{"kind": "relay", "agent": "bob"}]);
            }),
        ),
        ("session_unknown", changed(&|frame| frame["session_id"] = json!("turn-of-bob"))),
        ("location_kind_invalid", changed(&|frame| frame["locations"] = json!([{"kind": "carrier pigeon"}]))),
        ("wrong_kind", manifest(&|manifest| manifest["kind"] = json!("webagents.artifact-set/v2"))),
        ("unknown_field", manifest(&|manifest| manifest["x"] = json!(1))),
        ("path_parent_segment", manifest(&|manifest| manifest["entries"][0]["path"] = json!("../a"))),
        ("path_duplicate", manifest(&|manifest| manifest["entries"][1]["path"] = json!("a.txt"))),
        ("size_invalid", manifest(&|manifest| manifest["entries"][0]["size"] = json!(-1))),
        ("not_an_object", changed(&|frame| frame["manifest"] = json!("a string"))),
    ];
    gateway.bind_session("turn-of-bob", "c2", "agent:bob").await;
    for (place, (code, mut frame)) in cases.into_iter().enumerate() {
        let event_id = format!("evt_{place}");
        frame["event_id"] = json!(event_id);
        wire.send(frame.clone()).await;
        let error = wire.frame("artifact.error").await;
        let told = (&error["error"]["code"], &error["event_id"]);
        assert_eq!(told, (&json!(code), &json!(event_id)), "{error}");
        assert_eq!(error["sha256"], frame["sha256"], "it names the set");
        assert!(!error["error"]["message"].as_str().unwrap().is_empty());
    }
    // None of it was kept, and the connection is as good as before.
    assert_eq!(gateway.sets("c1").await, Vec::<Value>::new());
    wire.send(frame(&good, "evt_good", Some("turn-1"))).await;
    gateway.wait_for_set("c1", &good.identity()).await;
    assert_eq!(gateway.metric("sluice_violations_total{rule=\"malformed_text\"}"), 0.0);
}

async fn a_session_says_whose_set_it_is_and_where_it_may_be_read(database: &TestDatabase) {
    let gateway = house(database).await;
    let (ada, bob) = (gateway.agent_token("ada", "ada"), gateway.agent_token("bob", "bob"));
    gateway.bind_session("turn-bob", "c2", "agent:bob").await;
    let alone = Agent::connect(&gateway.url, &gateway.agent_token("eve", "eve"), "eve").await;
    let shared = Agent::builder(&gateway.url, &ada, "ada").session("bob", Some(&bob)).connect().await;

    // Several agents on one socket: the session tells them apart.
    let (of_ada, of_bob) = (set("ada's"), set("bob's"));
    shared.announce_in("turn-1", &of_ada).await;
    shared.announce_in("turn-bob", &of_bob).await;
    let none = shared.announce_with(&set("nobody's"), |frame| frame["session_id"] = Value::Null).await;
    let unknown = shared.announce_in("nobody-knows", &set("unknown")).await;
    let own = shared.session_of("bob").to_owned();
    shared.announce_in(&own, &set("on the control session")).await;
    let expected = [(none, "session_required".to_owned()), (unknown, "session_unknown".to_owned())];
    assert_eq!(refusals(&shared).await, expected);
    let identities = async |chat: &str| {
        let sets = gateway.sets(chat).await;
        sets.iter().map(|set| set["sha256"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((identities("c1").await, identities("c2").await), (vec![of_ada.identity()], vec![of_bob.identity()]));

    // One agent: without a session it is its own, in no chat. Another's turn or control session is unknown to it, and
    // a session that nobody has bound yet is kept for whoever binds it.
    alone.announce_with(&set("eve's, in no chat"), |frame| frame["session_id"] = Value::Null).await;
    let control = alone.session_id().to_owned();
    alone.announce_in(&control, &set("eve's, on her control session")).await;
    let stolen = alone.announce_in("turn-1", &set("for ada's chat")).await;
    let foreign = alone.announce_in(&own, &set("on bob's control session")).await;
    let early = set("before its turn was bound");
    alone.announce_in("turn-later", &early).await;
    let unknown = "session_unknown".to_owned();
    assert_eq!(refusals(&alone).await, [(stolen, unknown.clone()), (foreign, unknown)]);
    assert_eq!((identities("c1").await.len(), identities("c2").await.len()), (1, 1));
    let bob_reads = gateway.reader("user:bob");
    assert_eq!(gateway.get(&set_file("c2", &early, "a.txt"), &bob_reads).await.status, 404);
    gateway.bind_session("turn-later", "c2", "eve").await;
    assert_eq!(gateway.get(&set_file("c2", &early, "a.txt"), &bob_reads).await.status, 200);
    // Somebody else's binding of a session that eve used is not hers.
    alone.announce_in("turn-other", &set("for a turn that was never hers")).await;
    assert_eq!(refusals(&alone).await.len(), 2);
    gateway.bind_session("turn-other", "c1", "agent:ada").await;
    assert_eq!(identities("c1").await.len(), 1);
}

async fn a_burst_is_kept_and_a_flood_is_not(database: &TestDatabase) {
    let gateway = house(database).await;
    let agent = gateway.agent("ada").await;
    // Forty at once, as after a run with many results.
    let sets: Vec<_> = (0..40).map(|n| set(&format!("result {n}"))).collect();
    for set in &sets {
        agent.announce_in("turn-1", set).await;
    }
    // A slow database may be too slow for the last of them, and then says so; none of them breaks a rule.
    let refused = refusals(&agent).await;
    assert!(refused.iter().all(|(_, code)| code == "unavailable") && refused.len() < 40, "{refused:?}");
    assert_eq!(gateway.sets("c1").await.len(), 40 - refused.len());
    assert_eq!(gateway.metric("sluice_violations_total{rule=\"flood\"}"), 0.0);

    let mut flood = Wire::open(&gateway, "", &[]).await;
    flood.create("flood", &gateway.agent_token("flood", "flood")).await;
    let frames: Vec<_> = (0..200).map(|n| frame(&set(&format!("flood {n}")), &format!("f{n}"), None)).collect();
    for frame in frames {
        if !flood.try_send(Message::text(frame.to_string())).await {
            break;
        }
    }
    let (code, answers) = flood.closed().await;
    assert_eq!(code, 1008);
    let limited = answers.iter().filter(|answer| answer["error"]["code"] == "rate_limited").count();
    assert!(limited >= 7 && answers.iter().all(|answer| answer["event_id"].is_string()), "{answers:?}");
    assert!(gateway.metric("sluice_violations_total{rule=\"flood\"}") >= 8.0);
    assert_eq!(refusals(&agent).await, refused, "the other agent goes on");
}

#[tokio::test]
async fn a_manifest_that_is_too_large_is_told_so() {
    let gateway = Gateway::start().await;
    let token = gateway.agent_token("ada", "ada");
    let mut wire = Wire::with_token(&gateway, &token).await;
    wire.create("ada", &token).await;
    // Larger than a manifest may be, in a frame that is not larger than one may be.
    let mut frame = frame(&set("large"), "e", None);
    frame["manifest"]["producer"]["name"] = json!("n".repeat(16 << 20));
    wire.send(frame).await;
    let code = wire.frame("artifact.error").await["error"]["code"].clone();
    assert!(code == "manifest_too_large" || code == "unavailable", "{code}");
    assert!(wire.settled().await.is_empty());
}

#[tokio::test]
async fn a_session_is_not_bound_where_its_sets_would_be_too_many() {
    let gateway = Gateway::builder().with(|layer| layer.chat_sets = Some(1)).start().await;
    gateway.furnish().await;
    let agent = gateway.agent("ada").await;
    for content in ["1", "2"] {
        agent.send(frame(&set(content), content, Some("later"))).await;
    }
    assert!(refusals(&agent).await.is_empty());
    let bind = async |chat: &str| {
        let body = json!({"session_id": "later", "chat": chat, "agent": "agent:ada"});
        gateway.ask(http::Method::POST, "/v1/sessions", &gateway.operator(), Some(body)).await
    };
    let answer = bind("c1").await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (409, "conflict"));
    assert!(gateway.sets("c1").await.is_empty());
    assert_eq!(bind("nowhere").await.status, 404);
}

#[tokio::test]
async fn a_gateway_that_drains_keeps_nothing_more() {
    let mut gateway = Gateway::start().await;
    gateway.furnish().await;
    let agent = gateway.agent("ada").await;
    let blob = SampleSet::of([("a.bin", bytes(1, 1 << 20))]).chunked(256 * 1024);
    agent.announce_in("turn-1", &blob).await;
    gateway.wait_for_set("c1", &blob.identity()).await;
    // A download that is running holds the gateway up.
    agent.behave(Behaviour::obedient().at(600_000, Fault::Stall));
    let mut running = gateway.download(&set_file("c1", &blob, "a.bin"), &gateway.reader("user:alice")).await;
    running.read(100_000).await;
    gateway.begin_stop();
    support::eventually("the end of accepting", async || {
        tokio::net::TcpStream::connect(gateway.address()).await.is_err().then_some(())
    })
    .await;
    let event_id = agent.announce_in("turn-1", &set("too late")).await;
    let refused = agent.wait_for(|event| matches!(event.what, What::ArtifactError { .. })).await;
    let What::ArtifactError { event_id: echoed, code, .. } = refused.what else { unreachable!() };
    assert_eq!((echoed, code.as_str()), (Some(event_id), "unavailable"));
    assert!(!agent.is_over(Kind::Control), "it still serves what is running");
    drop(running);
    gateway.stop().await;
    agent.wait_for(|event| matches!(event.what, What::Closed { code: 1012, .. })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_does_not_answer_is_unavailable_within_the_confirm_window() {
    let Some(database) = TestDatabase::postgres().await else { return };
    let (scheme, rest) = database.url.split_once("://").unwrap();
    let (authority, path) = rest.split_once('/').unwrap();
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let proxy = Proxy::to(host.to_owned()).await;
    let user = user.map(|user| format!("{user}@")).unwrap_or_default();
    let url = format!("{scheme}://{user}{}/{path}", proxy.address);
    let builder = Gateway::builder().with(|layer| {
        layer.database_url = Some(url.as_str().into());
        layer.agent_wait = Some(span("1s"));
    });
    let gateway = builder.start().await;
    gateway.furnish().await;
    let agent = gateway.agent("ada").await;
    let before = set("before");
    agent.announce_in("turn-1", &before).await;
    gateway.wait_for_set("c1", &before.identity()).await;

    proxy.freeze();
    // Several at once: each is decided within the window, not one after the other.
    let begun = Instant::now();
    let mut lost = Vec::new();
    for n in 0..5 {
        lost.push(agent.announce_in("turn-1", &set(&format!("lost {n}"))).await);
    }
    for event_id in lost {
        let refused = agent
            .wait_for(|event| matches!(&event.what, What::ArtifactError { event_id: Some(id), .. } if *id == event_id));
        let What::ArtifactError { code, .. } = refused.await.what else { unreachable!() };
        assert_eq!(code, "unavailable");
    }
    let took = begun.elapsed();
    assert!(took < CONFIRM_WINDOW, "the last one is refused after {took:?}");
    // A session that cannot be judged is no refused credential.
    let mut wire = Wire::open(&gateway, "", &[]).await;
    wire.send(
        json!({"type": "session.create", "session": {"agent": "new", "token": gateway.agent_token("new", "new")}}),
    )
    .await;
    assert_eq!(wire.frame("session.error").await["error"]["code"], "unavailable");
    assert_eq!(wire.closed().await.0, 1013);

    proxy.thaw();
    let after = set("after");
    support::eventually("the database", async || {
        let event_id = agent.announce_in("turn-1", &after).await;
        let refused = refusals(&agent).await;
        refused.iter().all(|(refused, _)| *refused != event_id).then_some(())
    })
    .await;
    let sets = gateway.sets("c1").await;
    let kept: Vec<_> = sets.iter().map(|set| set["sha256"].as_str().unwrap()).collect();
    assert_eq!(kept, [after.identity(), before.identity()], "what was refused was not kept");
}

/// `sluice serve` as a process of its own.
struct Process {
    child: Child,
    url: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    fn serve(dir: &Path, database: &TestDatabase) -> Self {
        let mut child = Self::command(dir)
            .args(["serve", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--log-format", "json"])
            .env("SLUICE_DATABASE_URL", &database.url)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let serving = lines
            .by_ref()
            .map(|line| line.unwrap())
            .map(|line| serde_json::from_str::<Value>(&line).expect(&line))
            .find(|line| line["message"] == "serving")
            .expect("it does not serve");
        let url = serving["public_url"].as_str().unwrap().to_owned();
        // Somebody has to read what it logs.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    fn command(dir: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.env_clear().current_dir(dir);
        command
    }

    fn token(dir: &Path, args: &[&str]) -> String {
        let output = Self::command(dir).arg("token").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// SIGKILL.
    fn kill(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }

    async fn ask(&self, method: &str, path: &str, token: &str, body: Option<Value>) -> support::Answer {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .body(http_body_util::Full::from(body.map(|body| body.to_string()).unwrap_or_default()))
            .unwrap();
        let address = self.url.strip_prefix("http://").unwrap().parse().unwrap();
        support::Client::of(address).send(request).await.whole().await
    }
}

async fn what_was_accepted_survives_a_kill(database: &TestDatabase) {
    let dir = tempfile::tempdir().unwrap();
    let mut process = Process::serve(dir.path(), database);
    let operator = Process::token(dir.path(), &["operator"]);
    let alice = Process::token(dir.path(), &["reader", "--principal", "user:alice"]);
    let ada = Process::token(dir.path(), &["agent", "--name", "ada"]);
    let chat = json!({"participants": ["user:alice"]});
    assert_eq!(process.ask("PUT", "/v1/chats/c1", &operator, Some(chat)).await.status, 201);
    let turn = json!({"session_id": "turn-1", "chat": "c1", "agent": "agent:ada"});
    assert_eq!(process.ask("POST", "/v1/sessions", &operator, Some(turn)).await.status, 201);
    let agent = Agent::connect(&process.url, &ada, "ada").await;
    let sets: Vec<_> = (0..10).map(|n| set(&format!("durable {n}"))).collect();
    for set in &sets {
        agent.announce_in("turn-1", set).await;
    }
    // They are decided in order: with this refusal the confirm windows of the others are over.
    assert!(refusals(&agent).await.is_empty());
    process.kill();
    agent.wait_for(|event| event.what == What::Lost).await;

    let again = Process::serve(dir.path(), database);
    let list = again.ask("GET", "/v1/chats/c1/sets", &alice, None).await.json();
    let mut kept: Vec<_> = list["sets"].as_array().unwrap().iter().map(|set| set["sha256"].as_str().unwrap()).collect();
    let mut announced: Vec<_> = sets.iter().map(SampleSet::identity).collect();
    kept.sort_unstable();
    announced.sort_unstable();
    assert_eq!(kept, announced);
    let agent = Agent::connect(&again.url, &ada, "ada").await;
    agent.serve(&sets[3]);
    let file = again.ask("GET", &set_file("c1", &sets[3], "a.txt"), &alice, None).await;
    assert_eq!((file.status.as_u16(), file.body), (200, b"durable 3".to_vec()));
}
