//! The agents that bytes may come from.

use serde_json::json;
use sluice::access::{BlobAnswer, BlobRequest, Way};
use sluice::protocol::{Location, LocationKind, Manifest, Sha256};
use sluice::store::NewAnnouncement;

use crate::db::{self, TestDatabase};
use crate::on_both_databases;
use crate::sets::{announcement, id, set};
use crate::stage::{FLOW, OTHER, agents, announce, blob, caller, entry, file, house, plain};

on_both_databases!(
    sources_are_the_readable_announcements,
    a_location_reaches_the_announcing_agent_only,
    a_reassigned_name_takes_its_relay_along,
    one_agent_with_many_sets_is_one_source,
    an_agent_is_asked_for_by_name,
);

async fn sources_are_the_readable_announcements(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let alice = caller("user:alice");
    let own = set(&[("a", "shared")]);
    let identity = own.identity;
    announce(&store, announcement(FLOW, Some("c1-flow"), own)).await;
    announce(&store, announcement(OTHER, Some("c2-other"), set(&[("elsewhere", "shared")]))).await;
    assert_eq!(agents(&file(&access, &alice, "c1", &identity, "a").await.unwrap().readable), [FLOW]);
    store.add_participant(&id("c2"), &alice.principal).await.unwrap();
    // The set's own announcement comes first for a file; for a blob the oldest does.
    assert_eq!(agents(&file(&access, &alice, "c1", &identity, "a").await.unwrap().readable), [FLOW, OTHER]);
    assert_eq!(agents(&blob(&access, &alice, &Sha256::of(b"shared")).await.unwrap()), [FLOW, OTHER]);
}

async fn a_location_reaches_the_announcing_agent_only(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let (alice, hash) = (caller("user:alice"), Sha256::of(b"bytes"));
    let relay = |agent: &str| json!([{ "kind": "relay", "agent": agent }]);
    let https = json!([{ "kind": "https", "url": "https://agent.example/blob" }]);
    let reachable = async |manifest: Manifest, own: Option<&str>| {
        let identity = manifest.identity;
        let location = |agent: &str| vec![Location { kind: LocationKind::Relay, target: agent.to_owned() }];
        let new = announcement(FLOW, Some("c1-flow"), manifest);
        announce(&store, NewAnnouncement { locations: own.map(location), ..new }).await;
        let found = file(&access, &alice, "c1", &identity, "a").await;
        found.is_some_and(|found| found.readable.sources.iter().any(|source| source.way == Way::Relay))
    };
    assert!(!reachable(entry(json!({ "locations": relay("other") })), None).await);
    assert!(!reachable(entry(json!({ "locations": relay("nobody") })), Some("other")).await);
    assert!(blob(&access, &alice, &hash).await.is_none());
    assert!(!reachable(entry(json!({ "locations": https })), None).await);
    assert!(reachable(entry(json!({ "locations": https, "path": "a" })), Some("flow")).await);
    assert!(reachable(entry(json!({ "locations": relay("flow") })), None).await);
    assert!(blob(&access, &alice, &hash).await.is_some());
}

async fn a_reassigned_name_takes_its_relay_along(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let alice = caller("user:alice");
    let manifest = entry(json!({ "locations": [{ "kind": "relay", "agent": "flow" }] }));
    let identity = manifest.identity;
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest)).await;
    assert!(file(&access, &alice, "c1", &identity, "a").await.is_some());
    store.reassign_name(&id("flow"), &id(OTHER)).await.unwrap();
    assert!(file(&access, &alice, "c1", &identity, "a").await.is_none());
}

async fn one_agent_with_many_sets_is_one_source(database: &TestDatabase) {
    let (store, access) = house(database).await;
    let alice = caller("user:alice");
    // One set that lists the bytes many times over, and many sets that do.
    let files: Vec<(String, &str)> = (0..100).map(|n| (n.to_string(), "same")).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), *content)).collect();
    announce(&store, announcement(FLOW, Some("c1-flow"), set(&files))).await;
    for n in 0..5 {
        announce(&store, announcement(FLOW, Some("c1-flow"), set(&[("a", "same"), ("n", &n.to_string())]))).await;
    }
    assert_eq!(agents(&blob(&access, &alice, &Sha256::of(b"same")).await.unwrap()), [FLOW]);
    let last = file(&access, &alice, "c1", &set(&files).identity, "99").await.unwrap();
    assert_eq!(agents(&last.readable), [FLOW]);
}

async fn an_agent_is_asked_for_by_name(database: &TestDatabase) {
    let (store, access) = house(database).await;
    store.bind_session(&id(OTHER), &id("c1-other"), &id("c1")).await.unwrap();
    let manifest = set(&[("a", "a")]);
    announce(&store, announcement(FLOW, Some("c1-flow"), manifest.clone())).await;
    announce(&store, announcement(OTHER, Some("c1-other"), set(&[("b", "a")]))).await;
    let ask = async |name: &str, sha256: &Sha256| {
        let name = id(name);
        let request = BlobRequest { agent: Some(&name), ..plain(sha256) };
        access.blob(&caller("user:alice"), request).await.unwrap()
    };
    for (name, agent) in [("flow", FLOW), ("other", OTHER)] {
        match ask(name, &Sha256::of(b"a")).await {
            BlobAnswer::Blob(claims) => assert_eq!(agents(claims.first()), [agent]),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(ask("nobody", &Sha256::of(b"a")).await, BlobAnswer::NotFound));
    assert!(matches!(ask("flow", &manifest.identity).await, BlobAnswer::Manifest(_)));
    assert!(matches!(ask("other", &manifest.identity).await, BlobAnswer::NotFound));
}
