//! Links: one file for whoever has the address, for as long as its maker may read it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use http::Method;
use serde_json::{Value, json};
use sluice::clock::Clock;
use support::db::{self, TestDatabase};
use support::gateway::GatewayBuilder;
use support::{Agent, Answer, Gateway, SampleSet, bytes, eventually, span};

on_both_databases!(
    links_made_at_once_are_no_more_than_links_made_in_turn,
    a_link_opens_its_file_and_nothing_else,
    a_link_opens_a_nested_manifest,
    a_link_ends_with_its_time_its_maker_or_its_chat,
    a_principal_has_so_many_links,
    operators_see_every_link_and_end_any,
);

const NOW: i64 = 1_800_000_000_000;

struct House {
    gateway: Gateway,
    set: SampleSet,
    agent: Agent,
}

impl House {
    async fn new(builder: GatewayBuilder) -> Self {
        let gateway = builder.with(|layer| layer.links = layer.links.or(Some(true))).start().await;
        gateway.put_chat("c1", &["user:alice", "user:bob"]).await;
        gateway.put_chat("c2", &["user:mallory"]).await;
        gateway.bind_session("turn-1", "c1", "agent:ada").await;
        let agent = gateway.agent("ada").await;
        let set = SampleSet::of([("dir/ä.bin", bytes(1, 100_000)), ("b.txt", b"text".to_vec())]);
        agent.announce_in("turn-1", &set).await;
        gateway.wait_for_set("c1", &set.identity()).await;
        Self { gateway, set, agent }
    }

    async fn try_link(&self, principal: &str, chat: &str, body: Value) -> Answer {
        let token = self.gateway.reader(principal);
        self.gateway.ask(Method::POST, &format!("/v1/chats/{chat}/links"), &token, Some(body)).await
    }

    /// A new link's id, and the path of its address.
    async fn link(&self, principal: &str, path: &str) -> (String, String) {
        let answer = self.try_link(principal, "c1", json!({"set": self.set.identity(), "path": path})).await;
        assert_eq!(answer.status, 201, "{:?}", String::from_utf8_lossy(&answer.body));
        let link = answer.json();
        let url = link["url"].as_str().unwrap().strip_prefix(&self.gateway.url).unwrap().to_owned();
        (link["id"].as_str().unwrap().to_owned(), url)
    }

    async fn follow(&self, path: &str) -> Answer {
        self.gateway.get(path, "").await
    }

    async fn list(&self, principal: &str) -> Vec<Value> {
        let answer = self.gateway.get("/v1/chats/c1/links", &self.gateway.reader(principal)).await;
        assert_eq!(answer.status, 200);
        answer.json()["links"].as_array().unwrap().clone()
    }
}

async fn links_made_at_once_are_no_more_than_links_made_in_turn(database: &TestDatabase) {
    let gateway = Gateway::builder().on(database).start().await;
    gateway.put_chat("c1", &["user:alice"]).await;
    let store = gateway.state().store.clone();
    let made = (0..20).map(|n| {
        let link = sluice::store::LinkRecord {
            id: format!("{n}"),
            principal: "user:alice".parse().unwrap(),
            chat: "c1".parse().unwrap(),
            manifest: sluice::protocol::Sha256::of(b""),
            path: "a".to_owned(),
            created_at: 0,
            expires_at: i64::MAX,
        };
        let store = store.clone();
        async move { store.add_link(&format!("hash {n}"), &link, 3).await.unwrap() }
    });
    let made = futures_util::future::join_all(made).await;
    assert_eq!(made.iter().filter(|added| **added == sluice::store::LinkAdded::Added).count(), 3);
}

async fn a_link_opens_its_file_and_nothing_else(database: &TestDatabase) {
    let house = House::new(Gateway::builder().on(database)).await;
    let (id, path) = house.link("user:alice", "dir/ä.bin").await;
    let file = house.set.file("dir/ä.bin");
    let answer = house.follow(&path).await;
    assert_eq!((answer.status.as_u16(), &answer.body), (200, &file.bytes.to_vec()));
    assert_eq!(answer.header("referrer-policy"), "no-referrer");
    assert_eq!(answer.header("x-robots-tag"), "noindex");
    assert_eq!(answer.header("cache-control"), "private, no-transform");
    assert!(answer.header("content-disposition").starts_with("attachment"));
    let part = house.gateway.download_range(&path, "", "bytes=10-19").await.whole().await;
    assert_eq!((part.status.as_u16(), &part.body[..]), (206, &file.bytes[10..20]));
    assert_eq!(house.gateway.ask(Method::HEAD, &path, "", None).await.header("content-length"), "100000");

    // The audit names its maker, and the link.
    let read = eventually("the audit", async || {
        let audit = house.gateway.get("/v1/audit?principal=user:alice", &house.gateway.operator()).await.json();
        audit["reads"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!((&read["link"], &read["chat"], &read["path"]), (&json!(id), &json!("c1"), &json!("dir/ä.bin")));

    // Unknown, malformed, cut short: one answer.
    let unknown = house.follow(&format!("/l/{}", "A".repeat(43))).await;
    assert_eq!((unknown.status.as_u16(), unknown.code().as_str()), (404, "not_found"));
    for other in ["/l/x", &path[..path.len() - 1], &format!("{path}A"), &format!("/l/{id}")] {
        assert_eq!(house.follow(other).await.body, unknown.body, "{other}");
    }
    // What is no link's id names none.
    let alice = house.gateway.reader("user:alice");
    for other in ["%00", "x", "%00000000000000000000000000000000", &"0".repeat(32), &"0".repeat(5000), &"A".repeat(32)]
    {
        let answer = house.gateway.ask(Method::DELETE, &format!("/v1/chats/c1/links/{other}"), &alice, None).await;
        assert_eq!((answer.status.as_u16(), &answer.body), (404, &unknown.body), "{other}");
    }
    for other in ["/l/%00", &format!("{path}%00"), "/v1/chats/%00/links"] {
        assert_eq!(house.gateway.get(other, &alice).await.status, 404, "{other}");
    }
    // The secret is no token, and a link needs none beside it.
    let secret = path.strip_prefix("/l/").unwrap();
    assert_eq!(house.gateway.get("/v1/chats/c1/sets", secret).await.status, 401);
    assert_eq!(house.gateway.get(&path, "nonsense").await.status, 200);

    for (principal, chat, body, status) in [
        ("user:alice", "c1", json!({"set": house.set.identity(), "path": "none"}), 404),
        ("user:alice", "c1", json!({"set": house.set.identity(), "path": "\0"}), 404),
        ("user:alice", "c1", json!({"set": house.set.identity(), "path": "b.txt\0"}), 404),
        ("user:alice", "c1", json!({"set": "0".repeat(64), "path": "b.txt"}), 404),
        ("user:alice", "c2", json!({"set": house.set.identity(), "path": "b.txt"}), 404),
        ("user:mallory", "c1", json!({"set": house.set.identity(), "path": "b.txt"}), 404),
        ("user:alice", "c1", json!({"set": house.set.identity(), "path": "b.txt", "ttl": "25h"}), 400),
        ("user:alice", "c1", json!({"set": house.set.identity(), "path": "b.txt", "ttl": "0s"}), 400),
        ("user:alice", "c1", json!({"set": house.set.identity()}), 400),
    ] {
        assert_eq!(house.try_link(principal, chat, body.clone()).await.status, status, "{principal} {chat} {body}");
    }
}

async fn a_link_opens_a_nested_manifest(database: &TestDatabase) {
    let mut house = House::new(Gateway::builder().on(database)).await;
    let inner = SampleSet::of([("x.txt", b"inner".to_vec())]);
    let outer = SampleSet::around(&inner, "results/set.json", "top.txt");
    house.agent.serve(&inner);
    house.agent.announce_in("turn-1", &outer).await;
    house.gateway.wait_for_set("c1", &outer.identity()).await;
    house.set = outer;
    let (_, inside) = house.link("user:alice", "results/x.txt").await;
    assert_eq!(house.follow(&inside).await.body, b"inner");
    // The manifest itself is kept here since it was announced, and asks nobody.
    let (_, manifest) = house.link("user:alice", "results/set.json").await;
    let asked = house.agent.reads().len();
    let answer = house.follow(&manifest).await;
    assert_eq!((answer.status.as_u16(), answer.body), (200, inner.canonical()));
    assert_eq!(answer.headers["referrer-policy"], "no-referrer");
    assert_eq!(house.agent.reads().len(), asked);
}

async fn a_link_ends_with_its_time_its_maker_or_its_chat(database: &TestDatabase) {
    let clock = Clock::fixed(NOW);
    let house = House::new(Gateway::builder().on(database).clock(clock.clone())).await;
    let gateway = &house.gateway;
    let (first, first_path) = house.link("user:alice", "b.txt").await;
    let (_, second_path) = house.link("user:alice", "b.txt").await;
    let (_, bobs_path) = house.link("user:bob", "b.txt").await;
    for path in [&first_path, &second_path, &bobs_path] {
        assert_eq!(house.follow(path).await.status, 200);
    }
    // Everyone has their own.
    assert_eq!((house.list("user:alice").await.len(), house.list("user:bob").await.len()), (2, 1));
    assert!(house.list("user:alice").await.iter().all(|link| link["path"] == "b.txt" && link.get("url").is_none()));
    let revoke = async |principal: &str, chat: &str, id: &str| {
        let path = format!("/v1/chats/{chat}/links/{id}");
        gateway.ask(Method::DELETE, &path, &gateway.reader(principal), None).await.status.as_u16()
    };
    assert_eq!(revoke("user:bob", "c1", &first).await, 404);
    assert_eq!(revoke("user:mallory", "c1", &first).await, 404);
    assert_eq!(revoke("user:alice", "c2", &first).await, 404);
    assert_eq!(house.follow(&first_path).await.status, 200);
    assert_eq!(revoke("user:alice", "c1", &first).await, 204);
    assert_eq!(revoke("user:alice", "c1", &first).await, 404);
    assert_eq!(house.follow(&first_path).await.status, 404);
    assert_eq!(house.follow(&second_path).await.status, 200);

    // It is judged as its maker, each time.
    gateway.operate(Method::DELETE, "/v1/chats/c1/participants/user:alice", None).await;
    assert_eq!(house.follow(&second_path).await.status, 404);
    gateway.operate(Method::PUT, "/v1/chats/c1/participants/user:alice", None).await;
    assert_eq!(house.follow(&second_path).await.status, 200);

    clock.set(NOW + 3_600_000 - 1);
    assert_eq!(house.follow(&second_path).await.status, 200);
    clock.set(NOW + 3_600_000);
    assert_eq!(house.follow(&second_path).await.status, 404);
    assert!(house.list("user:alice").await.is_empty());

    let (_, last_path) = house.link("user:bob", "b.txt").await;
    assert_eq!(house.follow(&last_path).await.status, 200);
    gateway.operate(Method::DELETE, "/v1/chats/c1", None).await;
    assert_eq!(house.follow(&last_path).await.status, 404);
}

async fn a_principal_has_so_many_links(database: &TestDatabase) {
    let house = House::new(Gateway::builder().on(database)).await;
    let mut links = Vec::new();
    for _ in 0..256 {
        links.push(house.link("user:alice", "b.txt").await);
    }
    let answer = house.try_link("user:alice", "c1", json!({"set": house.set.identity(), "path": "b.txt"})).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (409, "conflict"));
    house.link("user:bob", "b.txt").await;
    let path = format!("/v1/chats/c1/links/{}", links[0].0);
    assert_eq!(house.gateway.ask(Method::DELETE, &path, &house.gateway.reader("user:alice"), None).await.status, 204);
    house.link("user:alice", "b.txt").await;
}

async fn operators_see_every_link_and_end_any(database: &TestDatabase) {
    let clock = Clock::fixed(NOW);
    let house = House::new(Gateway::builder().on(database).clock(clock.clone())).await;
    let gateway = &house.gateway;
    let (alices, alices_path) = house.link("user:alice", "b.txt").await;
    let (bobs, bobs_path) = house.link("user:bob", "dir/ä.bin").await;
    let seen = async |query: &str| {
        let list = gateway.operate(Method::GET, &format!("/v1/links{query}"), None).await;
        let text = String::from_utf8(list.body.clone()).unwrap();
        // What opens them is nowhere in it.
        for path in [&alices_path, &bobs_path] {
            assert!(!text.contains(path.strip_prefix("/l/").unwrap()) && !text.contains("hash"), "{text}");
        }
        list.json()
    };
    let ids =
        |list: &Value| list["links"].as_array().unwrap().iter().map(|link| link["id"].clone()).collect::<Vec<_>>();
    let all = seen("").await;
    let mut both = [&alices, &bobs].map(|id| json!(id));
    both.sort_by_key(ToString::to_string);
    assert_eq!((ids(&all), &all["next_cursor"]), (both.to_vec(), &Value::Null));
    let bob = seen("?principal=user:bob").await["links"][0].clone();
    assert_eq!(
        bob,
        json!({"id": bobs, "principal": "user:bob", "chat": "c1", "set": house.set.identity(), "path": "dir/ä.bin",
            "created_at": "2027-01-15T08:00:00.000Z", "expires_at": "2027-01-15T09:00:00.000Z"})
    );
    assert_eq!(ids(&seen("?chat=c1&principal=user:alice").await), [json!(alices)]);
    assert!(ids(&seen("?chat=c2").await).is_empty());
    // By page.
    let first = seen("?limit=1").await;
    let next = first["next_cursor"].as_str().unwrap();
    let second = seen(&format!("?limit=1&cursor={next}")).await;
    assert_eq!(([ids(&first), ids(&second)].concat(), &second["next_cursor"]), (both.to_vec(), &Value::Null));
    let wrong = gateway.get("/v1/links?cursor=x", &gateway.operator()).await;
    assert_eq!((wrong.status.as_u16(), wrong.code().as_str()), (400, "bad_request"));

    let end = async |id: &str, token: &str| {
        gateway.ask(Method::DELETE, &format!("/v1/links/{id}"), token, None).await.status.as_u16()
    };
    assert_eq!(house.follow(&alices_path).await.status, 200);
    assert_eq!(end(&alices, &gateway.reader("user:alice")).await, 403);
    assert_eq!(end(&alices, &gateway.operator()).await, 204);
    assert_eq!(end(&alices, &gateway.operator()).await, 404);
    assert_eq!(house.follow(&alices_path).await.status, 404);
    assert_eq!(house.follow(&bobs_path).await.status, 200);
    // What leads nowhere any more is not listed.
    clock.set(NOW + 3_600_000);
    assert!(ids(&seen("").await).is_empty());
}

#[tokio::test]
async fn without_the_setting_there_are_no_links() {
    let house = House::new(Gateway::builder().with(|layer| layer.links = Some(false))).await;
    let body = json!({"set": house.set.identity(), "path": "b.txt"});
    let answer = house.try_link("user:alice", "c1", body.clone()).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (403, "forbidden"));
    assert_eq!(house.try_link("user:mallory", "c1", body).await.status, 404, "a stranger is told nothing");
}

#[tokio::test]
async fn what_was_handed_out_ends_when_the_setting_does() {
    let mut house = House::new(Gateway::builder().with(|layer| layer.link_ttl = Some(span("30m")))).await;
    let (_, path) = house.link("user:alice", "b.txt").await;
    assert_eq!(house.follow(&path).await.status, 200);
    house.gateway.restart_with(|layer| layer.links = Some(false)).await;
    assert_eq!(house.follow(&path).await.status, 404);
}
