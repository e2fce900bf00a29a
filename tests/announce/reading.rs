//! Announcements whose manifests are not all inlined.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use sluice::agents::Text;
use sluice::protocol::{Manifest, Sha256};
use sluice::sets::{Accepted, Announcer, Decision, Reading, Refusal, SetLimits};
use sluice::store::{Amount, Quota};

use super::db::TestDatabase;
use super::sets::{id, nested, read, value};
use super::{FLOW, House, OTHER, code, db, frame, house, on_socket, patient};
use crate::on_both_databases;

on_both_databases!(
    a_manifest_is_read_before_its_set_is_kept,
    what_cannot_be_read_is_refused_by_name,
    only_what_this_agent_announced_needs_no_read,
    nested_manifests_are_read_and_listed_by_full_path,
    a_nested_manifest_becomes_a_set_of_its_own,
    two_wait_and_a_third_is_refused,
    an_announcement_stands_where_it_came_in,
    a_gateway_that_stops_refuses_what_it_reads,
    agents_that_fall_silent_hold_up_nobody_else,
    too_slow_is_unreadable,
    quotas_of_chats_and_agents_are_named,
);

pub fn files(files: &[(&str, &str)]) -> Manifest {
    read(&value(files, None))
}

/// A manifest with these files, and these manifests at these paths.
pub fn around(list: &[(&str, &str)], inner: &[(&str, &Manifest)]) -> Value {
    let mut outer = value(list, None);
    outer["entries"].as_array_mut().unwrap().extend(inner.iter().map(|(path, inner)| nested(path, inner)));
    outer
}

impl House {
    /// Only hash and size.
    async fn mention(&self, agent: &str, manifest: &Value, change: Value) -> Result<Accepted, Refusal> {
        self.announce(&on_socket(&[agent]), mention(agent, manifest, change)).await
    }

    async fn begin(&self, by: &Announcer, text: String) -> Box<Reading> {
        match self.sets.announce(by, &Text::from(text)).await.unwrap() {
            Decision::Read(reading) => reading,
            other => panic!("{other:?}"),
        }
    }

    pub async fn paths(&self, set: &Sha256) -> Vec<String> {
        let list = self.sets.entries(&id("c1"), set, None, 1000).await.unwrap().unwrap();
        list.entries.into_iter().map(|entry| entry.path).collect()
    }
}

pub fn mention(agent: &str, manifest: &Value, change: Value) -> String {
    let mut frame: Value = serde_json::from_str(&frame(manifest, change)).unwrap();
    let frame = frame.as_object_mut().unwrap();
    frame.remove("manifest");
    if agent != FLOW {
        frame.remove("locations");
        frame.insert("session_id".to_owned(), json!(format!("turn of {agent}")));
    }
    serde_json::to_string(frame).unwrap()
}

async fn furnished(database: &TestDatabase, limits: SetLimits) -> House {
    let house = house(database, limits).await;
    house.store.claim_name(&id("flow"), &id(FLOW), 1).await.unwrap();
    house.store.put_chat(&id("c2"), None, &[id("user:bob")]).await.unwrap();
    house.store.bind_session(&id(OTHER), &id(&format!("turn of {OTHER}")), &id("c2")).await.unwrap();
    house
}

async fn a_manifest_is_read_before_its_set_is_kept(database: &TestDatabase) {
    let house = furnished(database, patient()).await;
    let manifest = value(&[("a", "a"), ("b/c", "c")], None);
    let identity = read(&manifest).identity;
    house.agents.give(FLOW, &read(&manifest));
    let accepted = house.mention(FLOW, &manifest, json!({})).await.unwrap();
    assert_eq!((accepted.chat, accepted.sha256, accepted.new), (Some(id("c1")), identity, true));
    assert_eq!(house.paths(&identity).await, ["a", "b/c"]);
    assert_eq!(house.agents.asked(FLOW), [identity]);
    // Known now: progress and all need no read.
    let again = house.mention(FLOW, &manifest, json!({ "progress": { "done": 2, "total": 3 } })).await.unwrap();
    assert!(!again.new);
    assert_eq!(house.agents.asked(FLOW).len(), 1);
    assert!(house.metrics.render().unwrap().contains("sluice_announcements_reading 0"));
    assert!(house.metrics.render().unwrap().contains(r#"sluice_announcements_total{outcome="accepted"} 2"#));
}

async fn what_cannot_be_read_is_refused_by_name(database: &TestDatabase) {
    let house = furnished(database, patient()).await;
    let manifest = value(&[("a", "a")], None);
    let known = read(&manifest);
    let size = known.canonical.len();
    let refused = async |change: Value| {
        let refusal = house.mention(FLOW, &manifest, change).await.expect_err("a refusal");
        assert_eq!((refusal.event_id.as_deref(), refusal.sha256.len()), (Some("e1"), 64));
        refusal.error.code
    };
    assert_eq!(refused(json!({})).await, "manifest_unreadable");
    house.agents.give(FLOW, &known);
    assert_eq!(refused(json!({ "size": size + 1 })).await, "size_mismatch");
    assert_eq!(refused(json!({ "size": size - 1 })).await, "hash_mismatch");
    assert_eq!(refused(json!({ "size": 0 })).await, "hash_mismatch");
    assert_eq!(refused(json!({ "size": (16 << 20) + 1 })).await, "manifest_too_large");
    assert_eq!(refused(json!({ "size": u64::MAX })).await, "manifest_too_large");
    assert_eq!(house.agents.asked(FLOW).len(), 4, "what is too large is not asked for");
    // A relay of another agent is no way to this one's bytes.
    let other = json!({ "locations": [{ "kind": "relay", "agent": "other" }] });
    assert_eq!(refused(other).await, "manifest_unreadable");
}

async fn only_what_this_agent_announced_needs_no_read(database: &TestDatabase) {
    let house = furnished(database, patient()).await;
    let inner = files(&[("secret", "s")]);
    let outer = around(&[("a", "a")], &[("d/m", &inner)]);
    for manifest in [&inner, &read(&outer)] {
        house.agents.give(FLOW, manifest);
    }
    house.mention(FLOW, &outer, json!({})).await.unwrap();

    // A hash alone grants nothing: neither the set nor what is nested in it is another's for knowing its name.
    assert_eq!(code(house.mention(OTHER, &outer, json!({})).await), "manifest_unreadable");
    let theirs = around(&[], &[("mine/m", &inner)]);
    assert_eq!(code(house.announce(&on_socket(&[OTHER]), mentioned_inline(&theirs)).await), "manifest_unreadable");
    let inner_value: Value = serde_json::from_slice(&inner.canonical).unwrap();
    assert_eq!(code(house.mention(OTHER, &inner_value, json!({})).await), "manifest_unreadable");
    assert_eq!(house.sets.list(&id("c2"), None, 10).await.unwrap().sets.len(), 0);
    assert_eq!(house.agents.asked(OTHER).len(), 3);
    // Once it has it, it may.
    house.agents.give(OTHER, &inner);
    house.announce(&on_socket(&[OTHER]), mentioned_inline(&theirs)).await.unwrap();
    assert_eq!(house.sets.list(&id("c2"), None, 10).await.unwrap().sets.len(), 1);

    // What this agent has announced as part of a set needs no read in another.
    let next = around(&[("b", "b")], &[("d/m", &inner)]);
    let before = house.agents.asked(FLOW).len();
    house.announce(&on_socket(&[FLOW]), frame(&next, json!({}))).await.unwrap();
    assert_eq!(house.agents.asked(FLOW).len(), before);
    assert_eq!(house.paths(&read(&next).identity).await, ["b", "d/m", "d/secret"]);
}

/// Inlined, as the other agent.
fn mentioned_inline(manifest: &Value) -> String {
    frame(manifest, json!({ "locations": null, "session_id": format!("turn of {OTHER}") }))
}

async fn nested_manifests_are_read_and_listed_by_full_path(database: &TestDatabase) {
    let house = furnished(database, patient()).await;
    let inner = files(&[("x", "x"), ("y/z", "z")]);
    let middle = read(&around(&[("m", "m")], &[("deep/inner.json", &inner)]));
    let outer = around(&[("a", "a")], &[("sub/middle.json", &middle), ("inner.json", &inner)]);
    let root = read(&outer);
    for manifest in [&inner, &middle, &root] {
        house.agents.give(FLOW, manifest);
    }
    let expected = [
        "a",
        "sub/middle.json",
        "sub/m",
        "sub/deep/inner.json",
        "sub/deep/x",
        "sub/deep/y/z",
        "inner.json",
        "x",
        "y/z",
    ];
    // Inlined or not.
    let by = on_socket(&[FLOW]);
    assert!(house.announce(&by, frame(&outer, json!({ "task_id": "inlined" }))).await.unwrap().new);
    assert_eq!(house.paths(&root.identity).await, expected);
    assert_eq!(house.agents.asked(FLOW), [middle.identity, inner.identity], "each once");
    let list = house.sets.list(&id("c1"), None, 10).await.unwrap();
    assert_eq!(list.sets[0].entries, 9);
    let entries = house.sets.entries(&id("c1"), &root.identity, None, 100).await.unwrap().unwrap();
    let kinds: Vec<_> = entries.entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds[..4], ["file", "manifest", "file", "manifest"]);
    assert!(entries.entries.iter().all(|entry| entry.version == Some(1)));
    assert_eq!(list.sets[0].size, entries.entries.iter().map(|entry| entry.size).sum::<u64>());
}

async fn a_nested_manifest_becomes_a_set_of_its_own(database: &TestDatabase) {
    let house = furnished(database, patient()).await;
    let inner_value = value(&[("x", "x")], None);
    let inner = read(&inner_value);
    let outer = around(&[], &[("d/m", &inner)]);
    house.agents.give(FLOW, &inner);
    house.agents.give(FLOW, &read(&outer));
    house.mention(FLOW, &outer, json!({})).await.unwrap();
    assert!(house.sets.entries(&id("c1"), &inner.identity, None, 10).await.unwrap().is_none());
    assert!(house.sets.manifest(&id("c1"), &inner.identity).await.unwrap().is_none(), "it is no set of the chat");
    let asked = house.agents.asked(FLOW).len();
    assert!(house.mention(FLOW, &inner_value, json!({})).await.unwrap().new);
    assert_eq!(house.agents.asked(FLOW).len(), asked, "its bytes came with the other set");
    assert_eq!(house.paths(&inner.identity).await, ["x"]);
    assert_eq!(house.paths(&read(&outer).identity).await, ["d/m", "d/x"]);
    // The chat goes, and everything with it, whichever is looked at first.
    house.store.delete_chat(&id("c1")).await.unwrap();
    let mut swept = 0;
    for _ in 0..3 {
        swept += house.store.sweep_manifests(10).await.unwrap();
    }
    assert_eq!(swept, 2);
    assert_eq!(house.store.manifest_bytes(&inner.identity).await.unwrap(), None);
}

async fn two_wait_and_a_third_is_refused(database: &TestDatabase) {
    let house = furnished(database, patient()).await;
    let gate = house.agents.close();
    let manifests: Vec<_> = ["1", "2", "3"].map(|content| value(&[("a", content)], None)).into();
    for manifest in &manifests {
        house.agents.give(FLOW, &read(manifest));
    }
    let by = on_socket(&[FLOW]);
    let first = house.begin(&by, mention(FLOW, &manifests[0], json!({}))).await;
    let second = house.begin(&by, mention(FLOW, &manifests[1], json!({}))).await;
    assert_eq!(code(house.mention(FLOW, &manifests[2], json!({})).await), "rate_limited");
    // Others are not held up: another agent's, and this one's own that are inlined.
    let inlined = value(&[("a", "inlined")], None);
    house.announce(&by, frame(&inlined, json!({}))).await.unwrap();
    let theirs = value(&[("a", "theirs")], None);
    house.agents.give(OTHER, &read(&theirs));
    let theirs = house.begin(&on_socket(&[OTHER]), mention(OTHER, &theirs, json!({}))).await;
    gate.add_permits(3);
    let (theirs, second, first) = tokio::join!(theirs.run(), second.run(), first.run());
    assert!(theirs.unwrap().new && second.unwrap().new && first.unwrap().new);
    assert_eq!(house.agents.asked(FLOW), [read(&manifests[0]).identity, read(&manifests[1]).identity], "in order");
}

async fn an_announcement_stands_where_it_came_in(database: &TestDatabase) {
    let house = furnished(database, patient()).await;
    let by = on_socket(&[FLOW]);
    let (early, late) = (value(&[("a", "early")], None), value(&[("a", "late")], None));
    house.agents.give(FLOW, &read(&early));
    for (task, done, kept) in [("finished", 2, 2), ("unfinished", 1, 1)] {
        let change = json!({ "task_id": task, "progress": { "done": done, "total": 2 } });
        let reading = house.begin(&by, mention(FLOW, &early, change)).await;
        house.announce(&by, frame(&late, json!({ "task_id": task }))).await.unwrap();
        assert!(!reading.run().await.map(|accepted| accepted.chat.is_none() && kept == 2).unwrap());
        drop(reading);
        let sets = house.sets.list(&id("c1"), None, 10).await.unwrap().sets;
        let of_task: Vec<_> = sets.iter().filter(|set| set.task_id == Some(id(task))).map(|set| set.sha256).collect();
        let expected = [read(&late).identity, read(&early).identity];
        assert_eq!(of_task, expected[..kept], "{task}: newest first; an earlier unfinished state has made way");
        house.store.delete_chat(&id("c1")).await.unwrap();
        house.store.put_chat(&id("c1"), None, &[id("user:alice")]).await.unwrap();
        house.store.bind_session(&id(FLOW), &id("turn"), &id("c1")).await.unwrap();
    }
}

async fn a_gateway_that_stops_refuses_what_it_reads(database: &TestDatabase) {
    let house = furnished(database, patient()).await;
    let _gate = house.agents.close();
    let manifest = value(&[("a", "a")], None);
    let reading = house.begin(&on_socket(&[FLOW]), mention(FLOW, &manifest, json!({}))).await;
    let (outcome, ()) = tokio::join!(reading.run(), async { house.draining.cancel() });
    let refusal = outcome.expect_err("a refusal");
    assert_eq!((refusal.error.code.as_str(), refusal.event_id.as_deref()), ("unavailable", Some("e1")));
    assert_eq!(house.sets.list(&id("c1"), None, 10).await.unwrap().sets.len(), 0);
}

async fn agents_that_fall_silent_hold_up_nobody_else(database: &TestDatabase) {
    let limits = SetLimits { patience: Duration::from_millis(100), ..patient() };
    for owner in [None, Some("mallory")] {
        let house = furnished(database, limits).await;
        let manifest = value(&[("a", owner.unwrap_or_default())], None);
        house.agents.give(FLOW, &read(&manifest));
        let mut readings = Vec::new();
        for n in 0..2 * limits.readings {
            let agent = format!("agent:silent{n}");
            house.agents.silence(&agent);
            let mut by = on_socket(&[&agent]);
            by.sessions[0].owner = owner.map(Into::into);
            for content in ["1", "2"] {
                let text = mention(&agent, &value(&[("a", content)], None), json!({ "session_id": null }));
                readings.push(house.begin(&by, text).await);
            }
        }
        let silent = join_all(readings.iter().map(|reading| reading.run()));
        let honest = async {
            // Every place is taken.
            while house.agents.asked_in_all() < limits.readings {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            house.mention(FLOW, &manifest, json!({})).await.unwrap()
        };
        tokio::select! {
            biased;
            _ = silent => panic!("the silent ones came first"),
            accepted = honest => assert!(accepted.new),
            () = tokio::time::sleep(Duration::from_secs(20)) => panic!("it waits with the silent ones"),
        }
    }
}

async fn too_slow_is_unreadable(database: &TestDatabase) {
    let house = furnished(database, SetLimits { reading: Duration::from_millis(50), ..patient() }).await;
    let gate = house.agents.close();
    let manifest = value(&[("a", "a")], None);
    house.agents.give(FLOW, &read(&manifest));
    assert_eq!(code(house.mention(FLOW, &manifest, json!({})).await), "manifest_unreadable");
    gate.add_permits(1);
    assert_eq!(house.sets.list(&id("c1"), None, 10).await.unwrap().sets.len(), 0, "nothing comes of it later");
}

async fn quotas_of_chats_and_agents_are_named(database: &TestDatabase) {
    let standard = Quota { chat_agent_percent: 100, ..Quota::default() };
    let amount = standard.agent;
    let cases = [
        (Quota { chat: Amount { sets: 1, ..amount }, ..standard }, "the chat may not hold more sets"),
        (Quota { chat: Amount { entries: 3, ..amount }, ..standard }, "the chat may not hold more entries"),
        (Quota { chat: Amount { bytes: 1024, ..amount }, ..standard }, "the chat may not hold more bytes"),
        (
            Quota { chat: Amount { sets: 3, ..amount }, chat_agent_percent: 50, ..standard },
            "one agent may not have more sets in the chat",
        ),
        (Quota { agent: Amount { sets: 1, ..amount }, ..standard }, "the agent may not announce more sets"),
        (Quota { agent: Amount { entries: 3, ..amount }, ..standard }, "the agent may not announce more entries"),
        (Quota { agent: Amount { bytes: 1024, ..amount }, ..standard }, "the agent may not announce more bytes"),
    ];
    let by = on_socket(&[FLOW]);
    let furnish = furnished(database, patient()).await;
    furnish.announce(&by, frame(&value(&[("a", "a"), ("b", "b")], None), json!({}))).await.unwrap();
    for (quota, message) in cases {
        let mut house = house(database, SetLimits { quota, ..patient() }).await;
        house.store = furnish.store.clone();
        let second = frame(&value(&[("c", "c"), ("d", "d")], None), json!({}));
        let refusal = house.announce(&by, second).await.expect_err(message);
        assert_eq!((refusal.error.code.as_str(), refusal.error.message.as_str()), ("quota_exceeded", message));
    }
    let quota = Quota { unbound_entries: 1, ..standard };
    let house = house(database, SetLimits { quota, ..patient() }).await;
    let unbound = frame(&value(&[("c", "c"), ("d", "d")], None), json!({ "session_id": "later" }));
    assert_eq!(code(house.announce(&by, unbound).await), "quota_exceeded");
}
