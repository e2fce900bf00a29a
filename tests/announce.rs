//! Decisions about announcements, on both databases.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/db.rs"]
mod db;
#[path = "announce/hostile.rs"]
mod hostile;
#[path = "announce/reading.rs"]
mod reading;
#[path = "support/sets.rs"]
mod sets;

use std::sync::Arc;
use std::time::Duration;

use blobs::Blobs;
use db::TestDatabase;
use serde_json::{Value, json};
use sets::{id, open, read, value};
use sluice::agents::{OpenSession, Text};
use sluice::events::{self, Events};
use sluice::metrics::Metrics;
use sluice::protocol::{Principal, Sha256, manifest};
use sluice::sets::{Accepted, AnnounceCode, Announcer, Decision, IsOnline, Refusal, SetLimits, Sets};
use sluice::store::{Binding, Quota, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

on_both_databases!(
    a_set_is_announced_and_listed,
    a_session_decides_agent_and_chat,
    a_frame_is_checked_against_its_manifest,
    a_large_announcement_is_read_elsewhere,
    a_large_frame_of_another_type_is_no_announcement,
    quotas_are_refused_by_name,
    a_store_that_is_away_is_unavailable,
    a_full_budget_is_unavailable_in_time,
);

const FLOW: &str = "agent:https://agent.example/agents/flow";
const OTHER: &str = "agent:other";

struct House {
    store: Store,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
    sets: Sets,
    agents: Arc<Blobs>,
}

async fn house(database: &TestDatabase, limits: SetLimits) -> House {
    let store = open(database).await;
    store.put_chat(&id("c1"), None, &[id("user:alice")]).await.unwrap();
    store.bind_session(&id(FLOW), &id("turn"), &id("c1")).await.unwrap();
    let metrics = Arc::new(Metrics::new().unwrap());
    let draining = CancellationToken::new();
    let is_open = Arc::new(|session: &_| *session == id("somewhere else"));
    let agents = Arc::new(Blobs::default());
    let events = Events::new(events::Limits::default(), metrics.clone());
    let tell = (events, Arc::new(|_: &Principal| true) as IsOnline);
    let sets = Sets::new(store.clone(), metrics.clone(), limits, is_open, agents.fetch(), tell, draining.clone());
    House { store, metrics, draining, sets, agents }
}

fn patient() -> SetLimits {
    SetLimits { deadline: Duration::from_secs(60), ..SetLimits::default() }
}

fn on_socket(agents: &[&str]) -> Announcer {
    let session = |agent: &&str| OpenSession {
        id: id(&format!("control of {agent}")),
        agent: id(agent),
        name: id(agent.rsplit(['/', ':']).next().unwrap()),
        owner: None,
    };
    Announcer { sessions: agents.iter().map(session).collect(), received: Instant::now() }
}

fn frame(manifest: &Value, change: Value) -> String {
    let read = read(manifest);
    let mut frame = json!({
        "type": "artifact.manifest", "event_id": "e1", "timestamp": 0, "uamp_version": "1.0", "task_id": "t1",
        "sha256": read.identity, "size": read.canonical.len(), "manifest": manifest, "session_id": "turn",
        "locations": [{ "kind": "relay", "agent": "flow" }],
    });
    for (name, part) in change.as_object().unwrap() {
        frame[name] = part.clone();
    }
    frame.as_object_mut().unwrap().retain(|_, part| !part.is_null());
    frame.to_string()
}

impl House {
    async fn announce(&self, by: &Announcer, text: impl Into<String>) -> Result<Accepted, Refusal> {
        match self.sets.announce(by, &Text::from(text.into())).await? {
            Decision::Accepted(accepted) => Ok(accepted),
            Decision::Read(reading) => reading.run().await,
            Decision::OtherFrame => panic!("the frame is an announcement"),
        }
    }
}

fn code(outcome: Result<Accepted, Refusal>) -> String {
    outcome.expect_err("a refusal").error.code
}

async fn a_set_is_announced_and_listed(database: &TestDatabase) {
    let house = house(database, patient()).await;
    house.store.claim_name(&id("flow"), &id(FLOW), 1).await.unwrap();
    let manifest = value(&[("a", "aaa"), ("b", "b")], None);
    let identity = read(&manifest).identity;
    let text = frame(&manifest, json!({ "progress": { "done": 1, "total": 2 } }));
    let accepted = house.announce(&on_socket(&[FLOW]), &text).await.unwrap();
    assert_eq!((accepted.chat, accepted.sha256, accepted.new), (Some(id("c1")), identity, true));

    let list = house.sets.list(&id("c1"), None, 10).await.unwrap();
    assert_eq!(
        serde_json::to_value(&list).unwrap(),
        json!({
            "sets": [{
                "sha256": identity, "task_id": "t1", "agent": "flow", "size": 4,
                "created_at": list.sets[0].created_at, "expires_at": null, "expired": false,
                "progress": { "done": 1, "total": 2 }, "online": false, "entries": 2,
            }],
            "next_cursor": null,
        })
    );
    let entries = house.sets.entries(&id("c1"), &identity, None, 1).await.unwrap().unwrap();
    assert_eq!(entries.entries[0].path, "a");
    let after = entries.next_cursor.unwrap().parse().unwrap();
    let entries = house.sets.entries(&id("c1"), &identity, Some(after), 1).await.unwrap().unwrap();
    assert_eq!((entries.entries[0].path.as_str(), entries.next_cursor), ("b", None));
    assert!(house.sets.entries(&id("c2"), &identity, None, 1).await.unwrap().is_none());
    assert!(house.sets.manifest(&id("c2"), &identity).await.unwrap().is_none());
    assert_eq!(house.sets.manifest(&id("c1"), &identity).await.unwrap().unwrap(), read(&manifest).canonical);
    assert!(house.metrics.render().unwrap().contains(r#"sluice_announcements_total{outcome="accepted"} 1"#));
    assert!(house.metrics.render().unwrap().contains(r#"sluice_announcements_total{outcome="bad_request"} 0"#));
}

async fn a_session_decides_agent_and_chat(database: &TestDatabase) {
    let house = house(database, patient()).await;
    let (alone, both, other) = (on_socket(&[FLOW]), on_socket(&[FLOW, OTHER]), on_socket(&[OTHER]));
    let manifest = value(&[("a", "a")], None);
    let announce = async |by: &Announcer, session: Value| {
        house.announce(by, &frame(&manifest, json!({ "session_id": session }))).await
    };
    let placed = |outcome: Result<Accepted, Refusal>| {
        let accepted = outcome.expect("kept");
        (accepted.agent, accepted.chat)
    };
    let flow_in_chat = (id(FLOW), Some(id("c1")));
    // Bound for an agent on this connection.
    assert_eq!(placed(announce(&alone, json!("turn")).await), flow_in_chat);
    assert_eq!(placed(announce(&both, json!("turn")).await), flow_in_chat);
    // A control session of this connection names the agent only.
    assert_eq!(placed(announce(&both, json!(format!("control of {OTHER}"))).await), (id(OTHER), None));
    // None at all.
    assert_eq!(placed(announce(&alone, json!(null)).await), (id(FLOW), None));
    assert_eq!(code(announce(&both, json!(null)).await), "session_required");
    assert_eq!(code(announce(&on_socket(&[]), json!(null)).await), "session_unknown");
    // Bound for an agent that is not on this connection, or open on another connection.
    assert_eq!(code(announce(&other, json!("turn")).await), "session_unknown");
    assert_eq!(code(announce(&alone, json!("somewhere else")).await), "session_unknown");
    // Known to nobody.
    assert_eq!(code(announce(&both, json!("later")).await), "session_unknown");
    assert_eq!(placed(announce(&alone, json!("later")).await), (id(FLOW), None));
    house.store.put_chat(&id("c2"), None, &[]).await.unwrap();
    assert_eq!(house.store.bind_session(&id(FLOW), &id("later"), &id("c2")).await.unwrap(), Binding::Bound(1));
}

async fn a_frame_is_checked_against_its_manifest(database: &TestDatabase) {
    let house = house(database, patient()).await;
    let by = on_socket(&[FLOW]);
    let manifest = value(&[("a", "a")], None);
    let refused = async |change: Value| {
        let refusal = house.announce(&by, &frame(&manifest, change)).await.expect_err("a refusal");
        assert_eq!(refusal.event_id.as_deref(), Some("e1"));
        assert!(!refusal.error.message.is_empty());
        (refusal.error.code, refusal.sha256)
    };
    let other = Sha256::of(b"other").to_hex();
    assert_eq!(refused(json!({ "sha256": other })).await, ("hash_mismatch".to_owned(), other));
    for (change, code) in [
        (json!({ "size": 1 }), "size_mismatch"),
        (json!({ "manifest": null }), "manifest_unreadable"),
        (json!({ "manifest": { "kind": "another" } }), "wrong_kind"),
        (json!({ "manifest": [] }), "not_an_object"),
        (json!({ "locations": {} }), "locations_invalid"),
        (json!({ "progress": { "done": 2, "total": 1 } }), "bad_request"),
        (json!({ "progress": { "done": 1, "total": u64::MAX } }), "bad_request"),
        (json!({ "progress": 1 }), "bad_request"),
        (json!({ "task_id": "" }), "bad_request"),
        (json!({ "session_id": "\n" }), "bad_request"),
        (json!({ "size": null }), "bad_request"),
    ] {
        assert_eq!(refused(change.clone()).await.0, code, "{change}");
    }
    let refusal = house.announce(&by, r#"{"type":"artifact.manifest","sha256":"no","event_id":7}"#).await;
    let refusal = refusal.expect_err("a refusal");
    assert_eq!((refusal.event_id, refusal.sha256.as_str()), (None, "no"));
    assert_eq!(code(house.announce(&by, "{").await), "bad_request");
    assert_eq!(house.sets.list(&id("c1"), None, 10).await.unwrap().sets.len(), 0);
}

async fn a_large_announcement_is_read_elsewhere(database: &TestDatabase) {
    let house = house(database, patient()).await;
    let files: Vec<(String, String)> = (0..500).map(|n| (format!("{n}.txt"), n.to_string())).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (&**path, &**content)).collect();
    let manifest = value(&files, None);
    let text = frame(&manifest, json!({}));
    assert!(text.len() > 16 * 1024);
    assert!(house.announce(&on_socket(&[FLOW]), &text).await.unwrap().new);
    assert_eq!(house.sets.list(&id("c1"), None, 10).await.unwrap().sets[0].entries, 500);
}

async fn quotas_are_refused_by_name(database: &TestDatabase) {
    let quota = Quota { unbound: 0, ..Quota::default() };
    let house = house(database, SetLimits { quota, ..patient() }).await;
    let text = frame(&value(&[("a", "a")], None), json!({ "session_id": null }));
    assert_eq!(code(house.announce(&on_socket(&[FLOW]), &text).await), "quota_exceeded");
}

async fn a_large_frame_of_another_type_is_no_announcement(database: &TestDatabase) {
    let house = house(database, patient()).await;
    let text =
        json!({ "type": "response.delta", "delta": { "type": "text", "text": "x".repeat(100_000) } }).to_string();
    let decision = house.sets.announce(&on_socket(&[FLOW]), &Text::from(text)).await.unwrap();
    assert!(matches!(decision, Decision::OtherFrame));
}

async fn a_store_that_is_away_is_unavailable(database: &TestDatabase) {
    let house = house(database, patient()).await;
    let text = frame(&value(&[("a", "a")], None), json!({}));
    house.store.close().await;
    assert_eq!(code(house.announce(&on_socket(&[FLOW]), &text).await), "unavailable");
    house.draining.cancel();
    let refusal = house.announce(&on_socket(&[FLOW]), &text).await.expect_err("a refusal");
    assert_eq!((refusal.error.code.as_str(), refusal.event_id.as_deref()), ("unavailable", Some("e1")));
}

async fn a_full_budget_is_unavailable_in_time(database: &TestDatabase) {
    let limits = SetLimits { deadline: Duration::ZERO, ..SetLimits::default() };
    let house = house(database, limits).await;
    let text = frame(&value(&[("a", "a")], None), json!({}));
    let refusal = house.announce(&on_socket(&[FLOW]), &text).await.expect_err("a refusal");
    assert_eq!(refusal.error.code, "unavailable");
    assert_eq!(refusal.sha256, read(&value(&[("a", "a")], None)).identity.to_hex());
    assert_eq!(house.sets.list(&id("c1"), None, 10).await.unwrap().sets.len(), 0);
}

#[test]
fn codes_are_the_published_ones_and_no_rule_of_the_reader() {
    let codes: Vec<&str> = AnnounceCode::ALL.iter().map(|code| code.code()).collect();
    for published in [
        "hash_mismatch",
        "size_mismatch",
        "session_unknown",
        "session_required",
        "manifest_unreadable",
        "quota_exceeded",
        "rate_limited",
        "unavailable",
    ] {
        assert!(codes.contains(&published), "{published}");
    }
    let error = manifest::read("{}").expect_err("no manifest");
    assert!(!codes.contains(&error.code.code()));
}
