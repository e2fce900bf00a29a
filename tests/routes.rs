//! Every route and method of the public listener, asked by everyone whom it does not concern. A route that is not in the
//! table fails the test: whoever adds one says here whom it is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use support::db::{self, TestDatabase};
use support::{Agent, Gateway, SampleSet, bytes};

on_both_databases!(every_route_keeps_its_own_counsel);

/// Whom a route is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    /// Anyone at all; what it does to whom has tests of its own.
    Everyone,
    /// Operators, by token.
    Operators,
    /// Readers and agents, by token.
    Readers,
    /// The same, and signed-in browsers.
    Visitors,
}

/// What a request is sent with, where it is sent with anything.
type Body = Option<fn(&Things) -> Value>;

/// A route, whom it is for, and its methods with what they are sent. HEAD comes with GET.
type Row = (&'static str, For, &'static [(&'static str, Body)]);

const TABLE: &[Row] = &[
    ("/ws", For::Everyone, &[("GET", None)]),
    ("/.well-known/jwks.json", For::Everyone, &[("GET", None)]),
    ("/signin", For::Everyone, &[("GET", None), ("POST", None)]),
    ("/signout", For::Everyone, &[("POST", None)]),
    ("/l/{secret}", For::Everyone, &[("GET", None)]),
    ("/v1/chats", For::Operators, &[("GET", None)]),
    ("/v1/chats/{chat}", For::Operators, &[("GET", None), ("PUT", Some(chat_body)), ("DELETE", None)]),
    ("/v1/chats/{chat}/participants/{*principal}", For::Operators, &[("PUT", None), ("DELETE", None)]),
    ("/v1/sessions", For::Operators, &[("POST", Some(session_body))]),
    ("/v1/agents", For::Operators, &[("GET", None)]),
    ("/v1/agents/{agent}", For::Operators, &[("GET", None), ("PUT", Some(agent_body))]),
    ("/v1/agents/{agent}/keys", For::Operators, &[("GET", None), ("DELETE", None)]),
    ("/v1/transfers", For::Operators, &[("GET", None)]),
    ("/v1/transfers/{id}", For::Operators, &[("DELETE", None)]),
    ("/v1/audit", For::Operators, &[("GET", None)]),
    ("/v1/links", For::Operators, &[("GET", None)]),
    ("/v1/links/{id}", For::Operators, &[("DELETE", None)]),
    ("/v1/signin-codes", For::Operators, &[("POST", Some(code_body))]),
    ("/v1/chats/{chat}/sets", For::Visitors, &[("GET", None)]),
    ("/v1/chats/{chat}/sets/{set}", For::Visitors, &[("GET", None)]),
    ("/v1/chats/{chat}/sets/{set}/entries", For::Visitors, &[("GET", None)]),
    ("/v1/chats/{chat}/sets/{set}/files/{*path}", For::Visitors, &[("GET", None)]),
    ("/v1/chats/{chat}/events", For::Visitors, &[("GET", None)]),
    ("/v1/chats/{chat}/files", For::Visitors, &[("GET", None)]),
    ("/v1/chats/{chat}/files/{file}/versions", For::Visitors, &[("GET", None)]),
    ("/v1/chats/{chat}/files/{file}/versions/{version}", For::Visitors, &[("GET", None)]),
    ("/v1/chats/{chat}/links", For::Visitors, &[("GET", None), ("POST", Some(link_body))]),
    ("/v1/chats/{chat}/links/{id}", For::Visitors, &[("DELETE", None)]),
    ("/artifacts/blobs/{name}", For::Readers, &[("GET", None)]),
    ("/agents/{agent}/artifacts/blobs/{name}", For::Readers, &[("GET", None)]),
    ("/api/blob/cas/{hex}", For::Readers, &[("GET", None)]),
];

fn chat_body(things: &Things) -> Value {
    json!({"participants": [format!("user:{}", things.reader), format!("agent:{}", things.agent)]})
}

fn session_body(things: &Things) -> Value {
    json!({"session_id": format!("turn-{}", things.agent), "chat": things.chat, "agent": things.agent})
}

fn agent_body(things: &Things) -> Value {
    json!({"principal": format!("agent:{}", things.agent)})
}

fn code_body(things: &Things) -> Value {
    json!({"principal": format!("user:{}", things.reader)})
}

fn link_body(things: &Things) -> Value {
    json!({"set": things.set, "path": things.path})
}

/// What a pattern's parameters stand for: one principal's world, or one that there is not.
#[derive(Debug, Clone)]
struct Things {
    reader: String,
    agent: String,
    chat: String,
    set: String,
    path: String,
    /// A file's hash, or a manifest's.
    hex: String,
    /// A file across its versions.
    file: String,
    link: String,
}

impl Things {
    /// The path of a route for these.
    fn fill(&self, pattern: &str) -> String {
        let id = if pattern.contains("links") { self.link.as_str() } else { "7" };
        let mut path = pattern.to_owned();
        for (name, value) in [
            ("{chat}", self.chat.as_str()),
            ("{set}", &self.set),
            ("{*path}", &self.path),
            ("{*principal}", &format!("user:{}", self.reader)),
            ("{name}", &format!("sha256:{}", self.hex)),
            ("{hex}", &self.hex),
            ("{file}", &self.file),
            ("{version}", "1"),
            ("{agent}", &self.agent),
            ("{id}", id),
            ("{secret}", &"A".repeat(43)),
        ] {
            path = path.replace(name, value);
        }
        assert!(!path.contains('{'), "say what {path} stands for");
        path
    }
}

/// How somebody shows who they are.
#[derive(Debug, Clone)]
enum Credential {
    Nothing,
    Token(String),
    Cookie(String),
}

/// Everything by which two answers can be told apart.
type Visible = (StatusCode, BTreeMap<String, Vec<u8>>, Vec<u8>);

struct House {
    gateway: Gateway,
    alice: Things,
    bob: Things,
    nothing: Things,
    _agents: Vec<Agent>,
}

impl House {
    async fn new(database: &TestDatabase) -> Self {
        let builder = Gateway::builder().on(database).with(|layer| {
            layer.links = Some(true);
            (layer.failed_auth_rate, layer.address_rate, layer.reader_rate) = (Some(0), Some(0), Some(0));
        });
        let gateway = builder.start().await;
        let mut agents = Vec::new();
        let mut worlds = Vec::new();
        for (seed, reader, name, chat) in [(1, "alice", "ada", "ca"), (2, "bob", "bea", "cb")] {
            gateway.put_chat(chat, &[&format!("user:{reader}"), &format!("agent:{name}")]).await;
            gateway.bind_session(&format!("turn-{name}"), chat, &format!("agent:{name}")).await;
            let agent = gateway.agent(name).await;
            let set = SampleSet::of([("dir/a.bin", bytes(seed, 3000))]);
            agent.announce_in(&format!("turn-{name}"), &set).await;
            gateway.wait_for_set(chat, &set.identity()).await;
            agents.push(agent);
            let mut things = Things {
                reader: reader.to_owned(),
                agent: name.to_owned(),
                chat: chat.to_owned(),
                set: set.identity(),
                path: "dir/a.bin".to_owned(),
                hex: set.file("dir/a.bin").sha256.clone(),
                file: String::new(),
                link: String::new(),
            };
            let token = gateway.reader(&format!("user:{reader}"));
            let files = gateway.get(&format!("/v1/chats/{chat}/files"), &token).await.json();
            files["files"][0]["id"].as_str().unwrap().clone_into(&mut things.file);
            let path = format!("/v1/chats/{chat}/links");
            let link = gateway.ask(Method::POST, &path, &token, Some(link_body(&things))).await;
            assert_eq!(link.status, 201);
            link.json()["id"].as_str().unwrap().clone_into(&mut things.link);
            worlds.push(things);
        }
        let bob = worlds.pop().unwrap();
        let alice = worlds.pop().unwrap();
        let nothing = Things {
            reader: "nobody".to_owned(),
            agent: "none".to_owned(),
            chat: "nowhere".to_owned(),
            set: "0".repeat(64),
            path: "dir/none.bin".to_owned(),
            hex: "1".repeat(64),
            file: format!("af_{}", "3".repeat(16)),
            link: "2".repeat(32),
        };
        Self { gateway, alice, bob, nothing, _agents: agents }
    }

    /// What is there and not bob's, and what is not there: to him all of them look the same.
    fn foreign(&self) -> Vec<Things> {
        let (alice, bob, nothing) = (&self.alice, &self.bob, &self.nothing);
        vec![
            nothing.clone(),
            alice.clone(),
            // A manifest by its hash.
            Things { hex: alice.set.clone(), ..alice.clone() },
            // Under his own chat, or his own agent's name.
            Things { agent: bob.agent.clone(), ..alice.clone() },
            Things { agent: alice.agent.clone(), ..nothing.clone() },
        ]
    }

    async fn cookie(&self, principal: &str) -> Credential {
        let mut request = self.gateway.request(Method::POST, "/signin", "", None);
        let headers = request.headers_mut();
        headers.insert("content-type", "application/x-www-form-urlencoded".parse().unwrap());
        headers.insert("origin", self.gateway.url.parse().unwrap());
        let (head, _) = request.into_parts();
        let form = format!("token={}", self.gateway.reader(principal));
        let request = http::Request::from_parts(head, http_body_util::Full::from(form));
        let answer = self.gateway.client().send(request).await;
        assert_eq!(answer.status, 303);
        Credential::Cookie(answer.header("set-cookie").split(';').next().unwrap().to_owned())
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        credential: &Credential,
        body: Option<Value>,
    ) -> http::Request<http_body_util::Full<bytes::Bytes>> {
        let token = if let Credential::Token(token) = credential { token.as_str() } else { "" };
        let mut request = self.gateway.request(method.parse().unwrap(), path, token, body);
        if let Credential::Cookie(cookie) = credential {
            request.headers_mut().insert("cookie", cookie.parse().unwrap());
            request.headers_mut().insert("origin", self.gateway.url.parse().unwrap());
        }
        request
    }

    async fn see(
        &self,
        (method, path): (&str, &str),
        credential: &Credential,
        body: Option<Value>,
        extra: (&'static str, &'static str),
    ) -> Visible {
        let mut request = self.request(method, path, credential, body);
        if !extra.0.is_empty() {
            request.headers_mut().insert(extra.0, extra.1.parse().unwrap());
        }
        let answer = self.gateway.client().send(request).await.whole().await;
        (answer.status, visible(&answer.headers), answer.body)
    }

    /// Asks for each of these things, and expects one and the same answer.
    async fn same_for_all(
        &self,
        (pattern, method, body): (&str, &str, Body),
        credential: &Credential,
        all: &[Things],
        status: u16,
    ) {
        let conditions = [
            ("", ""),
            ("range", "bytes=99999999-"),
            ("if-none-match", "*"),
            ("if-match", "\"x\""),
            ("artifact-task", "t"),
            ("last-event-id", "0000000000000000-0"),
        ];
        let conditions = if ["GET", "HEAD"].contains(&method) { &conditions[..] } else { &conditions[..1] };
        for extra in conditions {
            let mut first: Option<Visible> = None;
            for things in all {
                let path = things.fill(pattern);
                let seen = self.see((method, &path), credential, body.map(|body| body(things)), *extra).await;
                assert_eq!(seen.0, status, "{method} {path} {extra:?} as {credential:?}");
                match &first {
                    None => first = Some(seen),
                    Some(first) => assert_eq!(&seen, first, "{method} {path} {extra:?} as {credential:?}"),
                }
            }
        }
    }
}

fn visible(headers: &HeaderMap) -> BTreeMap<String, Vec<u8>> {
    let all = headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()));
    all.filter(|(name, _)| !["x-request-id", "date"].contains(&name.as_str())).collect()
}

fn methods(row: &Row) -> BTreeSet<String> {
    let mut all: BTreeSet<_> = row.2.iter().map(|(method, _)| (*method).to_owned()).collect();
    if all.contains("GET") {
        all.insert("HEAD".to_owned());
    }
    all
}

#[test]
fn every_route_is_in_the_table() {
    let routes = sluice::http::routes();
    let there: BTreeSet<_> = routes.patterns().iter().copied().collect();
    let here: BTreeSet<_> = TABLE.iter().map(|(pattern, ..)| *pattern).collect();
    assert_eq!(there, here, "say in the table of this file whom the route is for");
    assert_eq!(routes.patterns().len(), there.len());
}

async fn every_route_keeps_its_own_counsel(database: &TestDatabase) {
    let house = House::new(database).await;
    let gateway = &house.gateway;
    let token = |principal: &str| Credential::Token(gateway.reader(principal));
    let agent = |id: &str| Credential::Token(gateway.agent_token(id, id));
    let operator = Credential::Token(gateway.operator());
    let bad = Credential::Token("nonsense".to_owned());
    let (bobs, alices) = (house.cookie("user:bob").await, house.cookie("user:alice").await);
    let all = [house.foreign(), vec![house.bob.clone()]].concat();

    for row in TABLE {
        let (pattern, audience, _) = *row;
        // Which methods there are is the route's business alone.
        house.same_for_all((pattern, "BREW", None), &Credential::Nothing, &all, 405).await;
        house.same_for_all((pattern, "BREW", None), &token("user:bob"), &all, 405).await;
        let refused = house.see(("BREW", &house.bob.fill(pattern)), &Credential::Nothing, None, ("", "")).await;
        let allowed = String::from_utf8(refused.1["allow"].clone()).unwrap();
        let allowed: BTreeSet<_> = allowed.split(',').map(|method| method.trim().to_owned()).collect();
        assert_eq!(allowed, methods(row), "{pattern}");

        for (method, body) in row.2 {
            let wanted: &[&str] = if *method == "GET" { &["GET", "HEAD"] } else { &[*method] };
            for method in wanted {
                let route = (pattern, *method, *body);
                if audience == For::Everyone {
                    continue;
                }
                house.same_for_all(route, &Credential::Nothing, &all, 401).await;
                house.same_for_all(route, &bad, &all, 401).await;
                if audience == For::Operators {
                    for credential in [token("user:bob"), token("user:alice"), agent("bea"), agent("ada")] {
                        house.same_for_all(route, &credential, &all, 403).await;
                    }
                    house.same_for_all(route, &bobs, &all, 401).await;
                    continue;
                }
                house.same_for_all(route, &operator, &all, 404).await;
                for credential in [token("user:bob"), token("agent:bea"), agent("bea"), token("user:carol")] {
                    house.same_for_all(route, &credential, &house.foreign(), 404).await;
                }
                let (cookies, status) =
                    if audience == For::Visitors { (house.foreign(), 404) } else { (all.clone(), 401) };
                house.same_for_all(route, &bobs, &cookies, status).await;
            }
        }
    }

    // Those whom it does concern are let in: without that, everything above could be a gateway that answers nobody.
    // Operators come last, who delete chats.
    let (operators, readers): (Vec<&Row>, Vec<_>) =
        TABLE.iter().partition(|(_, audience, _)| *audience == For::Operators);
    for (pattern, audience, all) in readers.into_iter().chain(operators) {
        for (method, body) in *all {
            let credentials = match audience {
                For::Everyone => continue,
                For::Operators => vec![operator.clone()],
                For::Readers => vec![token("user:alice"), agent("ada")],
                // What deletes, does it once.
                For::Visitors if *method == "DELETE" => vec![token("user:alice")],
                For::Visitors => vec![token("user:alice"), agent("ada"), alices.clone()],
            };
            for credential in credentials {
                let path = house.alice.fill(pattern);
                let request = house.request(method, &path, &credential, body.map(|body| body(&house.alice)));
                let status = gateway.client().send(request).await.status;
                let gone = *audience == For::Operators && status == 404;
                assert!(status.is_success() || gone, "{method} {path} as {credential:?}: {status}");
            }
        }
    }
}
