//! The operator's and the readers' JSON faces, over a real store.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sluice::app;
use sluice::clock::Clock;
use sluice::config::{Layer, Settings};
use sluice::http::{AppState, router};
use sluice::identity::{Caller, Identity};
use sluice::protocol::{Entry, EntryKind, GrowingTree, Manifest, Principal, Sha256};
use sluice::store::{NewAnnouncement, NewSet, Quota};
use tower::ServiceExt as _;

const NOW: i64 = 1_800_000_000_000;

struct Gateway {
    router: Router,
    state: AppState,
    _dir: tempfile::TempDir,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap()
    }

    /// Everything that a caller can tell two answers apart by.
    fn visible(mut self) -> (StatusCode, HeaderMap, Bytes) {
        self.headers.remove("x-request-id").unwrap();
        (self.status, self.headers, self.bytes)
    }
}

impl Gateway {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let layer = Layer {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            ops_listen: Some("127.0.0.1:0".parse().unwrap()),
            public_url: Some("https://files.example".parse().unwrap()),
            data_dir: Some(dir.path().to_owned()),
            ..Layer::default()
        };
        let built = app::Gateway::start(Settings::resolve(layer).unwrap(), Clock::fixed(NOW)).await.unwrap();
        let state = built.state().clone();
        Self { router: router(state.clone()), state, _dir: dir }
    }

    fn token(&self, identity: &Identity) -> String {
        self.state.tokens.issue(identity, Duration::from_secs(60), &self.state.clock).unwrap()
    }

    fn operator(&self) -> String {
        self.token(&Identity::Operator)
    }

    fn reader(&self, principal: &str) -> String {
        self.token(&Identity::Reader(Caller { principal: principal.parse().unwrap(), chats: None }))
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let (head, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        Answer { status: head.status, headers: head.headers, bytes: body.collect().await.unwrap().to_bytes() }
    }

    async fn ask(&self, method: &str, path: &str, token: &str, body: Option<Value>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = match body {
            Some(body) => {
                request = request.header("content-type", "application/json");
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        self.send(request.body(body).unwrap()).await
    }

    async fn get(&self, path: &str, token: &str) -> Answer {
        self.ask("GET", path, token, None).await
    }

    async fn operate(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.ask(method, path, &self.operator(), body).await
    }

    /// A chat with alice and the agent in it, and a set of two files that the agent announced there.
    async fn with_set(&self, agent: &str) -> Manifest {
        let principal = Principal::agent(agent).unwrap();
        let chat = json!({"participants": ["user:alice", principal.as_str()]});
        self.operate("PUT", "/v1/chats/c1", Some(chat)).await;
        let session = json!({"session_id": format!("s-{agent}"), "chat": "c1", "agent": principal.as_str()});
        assert_eq!(self.operate("POST", "/v1/sessions", Some(session)).await.status, 201);
        let manifest = manifest(agent);
        let announcement = NewAnnouncement {
            agent: principal,
            session: Some(format!("s-{agent}").parse().unwrap()),
            task: Some("t1".parse().unwrap()),
            set: NewSet::Tree(Arc::new(GrowingTree::of(manifest.clone()).unwrap().complete().unwrap())),
            locations: None,
            progress: None,
            quota: Quota::default(),
            deadline: None,
            order: None,
        };
        self.state.store.commit_announcement(announcement).await.unwrap();
        manifest
    }
}

fn manifest(agent: &str) -> Manifest {
    let canonical = Bytes::from(format!("{{\"of\":\"{agent}\"}}"));
    let entry = |path: &str| Entry {
        path: path.to_owned(),
        size: 3,
        sha256: Sha256::of(path.as_bytes()),
        media_type: "text/plain".to_owned(),
        kind: EntryKind::File,
        chunks: None,
        locations: None,
    };
    Manifest {
        identity: Sha256::of(&canonical),
        canonical,
        created_at: NOW,
        expires_at: None,
        producer_agent: format!("https://{agent}.example"),
        producer_name: None,
        producer_task: None,
        entries: vec![entry("a.txt"), entry("dir/b c?ü.txt")],
        locations: Vec::new(),
    }
}

#[tokio::test]
async fn who_one_must_be_is_decided_by_the_route() {
    let gateway = Gateway::new().await;
    let (operator, reader) = (gateway.operator(), gateway.reader("user:alice"));
    for (method, path) in [("GET", "/v1/chats/c1"), ("DELETE", "/v1/chats/c1"), ("GET", "/v1/agents")] {
        let answer = gateway.ask(method, path, "", None).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (StatusCode::UNAUTHORIZED, Some("unauthorized"))
        );
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        let answer = gateway.ask(method, path, "nonsense", None).await;
        assert_eq!(answer.status, 401);
        let answer = gateway.ask(method, path, &reader, None).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (StatusCode::FORBIDDEN, Some("forbidden"))
        );
    }
    assert_eq!(gateway.get("/v1/chats/c1/sets", "").await.status, 401);
    assert_eq!(gateway.get("/v1/chats/c1/sets", &operator).await.status, 404);
    // Before the body is looked at.
    assert_eq!(gateway.ask("PUT", "/v1/chats/c1", &reader, Some(json!([]))).await.status, 403);
    assert_eq!(gateway.ask("PUT", "/v1/chats/c1", "", Some(json!([]))).await.status, 401);
}

#[tokio::test]
async fn unknown_routes_and_methods_need_no_credential() {
    let gateway = Gateway::new().await;
    let answer = gateway.get("/v1/nothing/here", "").await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (StatusCode::NOT_FOUND, Some("not_found")));
    let answer = gateway.ask("PATCH", "/v1/chats/c1", "", None).await;
    assert_eq!(answer.status, 405);
    assert_eq!(answer.json()["error"]["code"], "method_not_allowed");
    let mut allowed: Vec<_> = answer.headers["allow"].to_str().unwrap().split(',').collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["DELETE", "GET", "HEAD", "PUT"]);
}

#[tokio::test]
async fn a_chat_is_created_read_replaced_and_deleted() {
    let gateway = Gateway::new().await;
    let body = json!({"participants": ["user:bob", "agent:https://a.example/x", "user:bob"], "title": "Reports"});
    let created = gateway.operate("PUT", "/v1/chats/c1", Some(body)).await;
    assert_eq!(created.status, 201);
    assert_eq!(
        created.json(),
        json!({
            "chat": "c1",
            "title": "Reports",
            "participants": ["agent:https://a.example/x", "user:bob"],
            "created_at": "2027-01-15T08:00:00.000Z"
        })
    );
    let replaced = gateway.operate("PUT", "/v1/chats/c1", Some(json!({"participants": ["*"]}))).await;
    assert_eq!(replaced.status, 200);
    assert_eq!(gateway.operate("GET", "/v1/chats/c1", None).await.json(), replaced.json());
    let listed = json!({"chat": "c1", "title": null, "participants": 1, "created_at": replaced.json()["created_at"]});
    let all = gateway.operate("GET", "/v1/chats", None).await.json();
    assert_eq!(all, json!({"chats": [listed], "next_cursor": null}));
    assert_eq!(gateway.operate("GET", "/v1/chats?cursor=c1&limit=1", None).await.json()["chats"], json!([]));
    assert_eq!(gateway.ask("GET", "/v1/chats?cursor=a%2Fb", &gateway.operator(), None).await.status, 400);
    for list in ["/v1/chats", "/v1/agents", "/v1/links", "/v1/audit"] {
        let none = gateway.ask("GET", &format!("{list}?limit=0"), &gateway.operator(), None).await;
        assert_eq!(none.status, 400, "{list}");
        let message = none.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("limit") && message.contains("1 or more"), "{message}");
    }
    assert_eq!(replaced.json()["title"], Value::Null);
    assert_eq!(gateway.operate("DELETE", "/v1/chats/c1", None).await.status, 204);
    assert_eq!(gateway.operate("DELETE", "/v1/chats/c1", None).await.status, 404);
    assert_eq!(gateway.operate("GET", "/v1/chats/c1", None).await.status, 404);
}

#[tokio::test]
async fn bodies_are_read_strictly() {
    let gateway = Gateway::new().await;
    for (body, named) in [
        (json!({"participants": [], "titel": "x"}), "titel"),
        (json!({"title": "x"}), "participants"),
        (json!({"participants": ["alice"]}), "principal"),
        (json!({"participants": [], "title": "a\u{7}b"}), "title"),
        (json!({"participants": [], "title": "x".repeat(1025)}), "title"),
        (json!({"participants": vec!["user:a"; 10_001]}), "10000"),
    ] {
        let answer = gateway.operate("PUT", "/v1/chats/c1", Some(body)).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["code"].as_str()), (StatusCode::BAD_REQUEST, Some("bad_request")));
        assert!(error["message"].as_str().unwrap().contains(named), "{error}");
    }
    let plain = Request::builder().method("PUT").uri("/v1/chats/c1");
    let plain = plain.header("authorization", format!("Bearer {}", gateway.operator())).body(Body::from("{}")).unwrap();
    assert_eq!(gateway.send(plain).await.status, 415);
}

#[tokio::test]
async fn participants_come_and_go_escaped_or_not() {
    let gateway = Gateway::new().await;
    gateway.operate("PUT", "/v1/chats/c1", Some(json!({"participants": []}))).await;
    for path in ["agent:https%3A%2F%2Fa.example%2Fx", "agent:https://b.example/x", "user:alice"] {
        let path = format!("/v1/chats/c1/participants/{path}");
        assert_eq!(gateway.operate("PUT", &path, None).await.status, 204, "{path}");
    }
    let chat = gateway.operate("GET", "/v1/chats/c1", None).await.json();
    assert_eq!(chat["participants"], json!(["agent:https://a.example/x", "agent:https://b.example/x", "user:alice"]));
    assert_eq!(gateway.operate("DELETE", "/v1/chats/c1/participants/user:alice", None).await.status, 204);
    assert_eq!(gateway.operate("DELETE", "/v1/chats/c1/participants/user:alice", None).await.status, 404);
    assert_eq!(gateway.operate("PUT", "/v1/chats/c1/participants/alice", None).await.status, 400);
    assert_eq!(gateway.operate("PUT", "/v1/chats/none/participants/user:alice", None).await.status, 404);
}

#[tokio::test]
async fn a_session_is_bound_once() {
    let gateway = Gateway::new().await;
    let bind = |chat: &str, agent: &str| Some(json!({"session_id": "s1", "chat": chat, "agent": agent}));
    let missing = gateway.operate("POST", "/v1/sessions", bind("c1", "flow")).await;
    assert_eq!((missing.status.as_u16(), &missing.json()["error"]["code"]), (404, &json!("not_found")));
    let message = missing.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "there is no chat c1: make it first, with PUT /v1/chats/{chat}");
    for chat in ["c1", "c2"] {
        gateway.operate("PUT", &format!("/v1/chats/{chat}"), Some(json!({"participants": []}))).await;
    }
    let bound = gateway.operate("POST", "/v1/sessions", bind("c1", "flow")).await;
    assert_eq!((bound.status, &bound.json()["agent"]), (StatusCode::CREATED, &json!("agent:flow")));
    assert_eq!(gateway.operate("POST", "/v1/sessions", bind("c1", "flow")).await.status, 200);
    for (chat, agent) in [("c2", "flow"), ("c1", "other")] {
        let answer = gateway.operate("POST", "/v1/sessions", bind(chat, agent)).await;
        assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (StatusCode::CONFLICT, Some("conflict")));
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("bound to agent:flow and chat c1 already"), "{message}");
    }
}

#[tokio::test]
async fn a_session_goes_to_whoever_holds_the_name() {
    let gateway = Gateway::new().await;
    gateway.operate("PUT", "/v1/chats/c1", Some(json!({"participants": []}))).await;
    let holder = Principal::agent("https://a.example").unwrap();
    gateway.state.store.claim_name(&"flow".parse().unwrap(), &holder, NOW).await.unwrap();
    let body = json!({"session_id": "s1", "chat": "c1", "agent": "flow"});
    assert_eq!(gateway.operate("POST", "/v1/sessions", Some(body)).await.json()["agent"], holder.as_str());
    let body = json!({"session_id": "s2", "chat": "c1", "agent": "agent:flow"});
    assert_eq!(gateway.operate("POST", "/v1/sessions", Some(body)).await.json()["agent"], "agent:flow");
}

#[tokio::test]
async fn agents_are_listed_and_names_reassigned() {
    let gateway = Gateway::new().await;
    for (name, id) in [("a", "on"), ("b", "off"), ("c", "off")] {
        let principal = Principal::agent(id).unwrap();
        gateway.state.store.claim_name(&name.parse().unwrap(), &principal, NOW).await.unwrap();
    }
    let first = gateway.operate("GET", "/v1/agents?limit=2", None).await.json();
    assert_eq!(
        first["agents"][0],
        json!({
            "name": "a",
            "principal": "agent:on",
            "online": false,
            "created_at": "2027-01-15T08:00:00.000Z",
            "last_seen_at": "2027-01-15T08:00:00.000Z"
        })
    );
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = gateway.operate("GET", &format!("/v1/agents?limit=2&cursor={cursor}"), None).await.json();
    assert_eq!((second["agents"].as_array().unwrap().len(), &second["next_cursor"]), (1, &Value::Null));
    let reassigned = gateway.operate("PUT", "/v1/agents/b", Some(json!({"principal": "agent:on"}))).await;
    assert_eq!(reassigned.json()["principal"], "agent:on");
    assert_eq!(gateway.operate("PUT", "/v1/agents/b", Some(json!({"principal": "user:a"}))).await.status, 400);
    assert_eq!(gateway.operate("PUT", "/v1/agents/z", Some(json!({"principal": "agent:on"}))).await.status, 404);
    assert_eq!(gateway.operate("GET", "/v1/agents/z", None).await.status, 404);
    assert_eq!(gateway.operate("GET", "/v1/agents?page=2", None).await.status, 400);
}

#[tokio::test]
async fn a_participant_sees_the_chats_sets() {
    let gateway = Gateway::new().await;
    gateway.state.store.claim_name(&"flow".parse().unwrap(), &Principal::agent("on").unwrap(), NOW).await.unwrap();
    let set = gateway.with_set("on").await;
    let alice = gateway.reader("user:alice");
    assert_eq!(
        gateway.get("/v1/chats/c1/sets", &alice).await.json(),
        json!({
            "sets": [{
                "sha256": set.identity.to_hex(),
                "task_id": "t1",
                "agent": "flow",
                "size": 6,
                "created_at": "2027-01-15T08:00:00.000Z",
                "expires_at": null,
                "expired": false,
                "progress": null,
                "online": false,
                "entries": 2
            }],
            "next_cursor": null
        })
    );
    let path = format!("/v1/chats/c1/sets/{}", set.identity);
    let manifest = gateway.get(&path, &alice).await;
    assert_eq!(manifest.bytes, set.canonical);
    assert_eq!(manifest.headers["content-type"], "application/vnd.webagents.artifact-set+json");
    assert_eq!(manifest.headers["etag"], format!("\"sha256-{}\"", set.identity));
    assert!(manifest.headers["repr-digest"].to_str().unwrap().starts_with("sha-256=:"));

    let first = gateway.get(&format!("{path}/entries?limit=1"), &alice).await.json();
    assert_eq!(first["entries"][0]["url"], format!("https://files.example{path}/files/a.txt"));
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = gateway.get(&format!("{path}/entries?limit=1&cursor={cursor}"), &alice).await.json();
    assert_eq!(second["entries"][0]["path"], "dir/b c?ü.txt");
    assert_eq!(second["entries"][0]["url"], format!("https://files.example{path}/files/dir/b%20c%3F%C3%BC.txt"));
    assert_eq!(second["next_cursor"], Value::Null);
    assert_eq!(gateway.get("/v1/chats/c1/sets?cursor=x", &alice).await.status, 400);
    // An agent in the chat reads as itself.
    let agent = Identity::Agent { principal: Principal::agent("on").unwrap(), name: None, owner: None };
    assert_eq!(gateway.get(&path, &gateway.token(&agent)).await.status, 200);
}

#[tokio::test]
async fn a_stranger_cannot_tell_what_exists() {
    let gateway = Gateway::new().await;
    let set = gateway.with_set("on").await.identity;
    let (alice, mallory) = (gateway.reader("user:alice"), gateway.reader("user:mallory"));
    let other = Sha256::of(b"other");
    let limited = Identity::Reader(Caller {
        principal: "user:alice".parse().unwrap(),
        chats: Some(vec!["c2".parse().unwrap()].into()),
    });
    let elsewhere = gateway.token(&limited);
    let unknown = gateway.get("/v1/nothing", "").await.visible();
    // A route of downloads says so whatever it answers.
    let unknown_bytes = gateway.get(&format!("/v1/chats/none/sets/{other}"), &alice).await.visible();
    for (path, token) in [
        ("/v1/chats/c1/sets".to_owned(), &mallory),
        ("/v1/chats/none/sets".to_owned(), &mallory),
        (format!("/v1/chats/c1/sets/{set}"), &mallory),
        (format!("/v1/chats/c1/sets/{other}"), &mallory),
        (format!("/v1/chats/c1/sets/{set}/entries"), &mallory),
        (format!("/v1/chats/c1/sets/{set}/entries?cursor=x"), &mallory),
        (format!("/v1/chats/c1/sets/{other}"), &alice),
        (format!("/v1/chats/c1/sets/{other}/entries"), &alice),
        ("/v1/chats/c1/sets/not-a-hash".to_owned(), &alice),
        ("/v1/chats/c1%2Fx/sets".to_owned(), &alice),
        ("/v1/chats/%FF/sets".to_owned(), &alice),
        ("/v1/chats/c1/sets".to_owned(), &elsewhere),
        (format!("/v1/chats/c1/sets/{set}"), &elsewhere),
    ] {
        let lists = path.ends_with("/sets") || path.contains("/entries");
        let expected = if lists { &unknown } else { &unknown_bytes };
        assert_eq!(&gateway.get(&path, token).await.visible(), expected, "{path}");
    }
}

#[tokio::test]
async fn who_is_taken_out_of_a_chat_sees_nothing_at_once() {
    let gateway = Gateway::new().await;
    gateway.with_set("on").await;
    let alice = gateway.reader("user:alice");
    assert_eq!(gateway.get("/v1/chats/c1/sets", &alice).await.status, 200);
    gateway.operate("DELETE", "/v1/chats/c1/participants/user:alice", None).await;
    assert_eq!(gateway.get("/v1/chats/c1/sets", &alice).await.status, 404);
    gateway.operate("PUT", "/v1/chats/c1/participants/*", None).await;
    assert_eq!(gateway.get("/v1/chats/c1/sets", &alice).await.status, 200);
    gateway.operate("DELETE", "/v1/chats/c1", None).await;
    assert_eq!(gateway.get("/v1/chats/c1/sets", &alice).await.status, 404);
}

#[tokio::test]
async fn without_the_database_one_may_try_again() {
    let gateway = Gateway::new().await;
    gateway.state.store.close().await;
    let answer = gateway.operate("GET", "/v1/chats/c1", None).await;
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, Some("unavailable"))
    );
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn a_request_keeps_its_id_and_is_counted_by_its_route() {
    let gateway = Gateway::new().await;
    let request = Request::builder().uri("/v1/chats/c1/sets").header("x-request-id", "from-the-proxy");
    let answer = gateway.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.headers["x-request-id"], "from-the-proxy");
    gateway.get("/v1/nothing", "").await;
    for (route, status) in [("/v1/chats/{chat}/sets", "401"), ("unmatched", "404")] {
        assert_eq!(gateway.state.metrics.requests.with_label_values(&[route, status]).get(), 1, "{route}");
    }
}
