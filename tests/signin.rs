//! Browsers: signing in, what their cookie is good for, and out again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use futures_util::future::join_all;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use sluice::clock::Clock;
use sluice::identity::{Caller, Identity};
use std::time::Duration;
use support::db::{self, TestDatabase};
use support::{Answer, Gateway, span};

on_both_databases!(
    whoever_opens_the_bare_address_in_a_browser_is_sent_to_the_page_there_is,
    a_person_who_is_not_signed_in_comes_back_after_signing_in,
    what_strangers_sign_out_changes_nothing,
    a_browser_that_has_to_make_room_is_out_at_once,
    a_token_signs_a_browser_in_and_the_cookie_reads,
    a_code_signs_in_once_however_many_come_together,
    signing_out_ends_the_cookie_wherever_it_is,
    what_a_cookie_may_ends_with_its_holders_place_in_the_chat,
    a_cookie_outlives_a_restart_and_ends_with_its_token,
);

const SETS: &str = "/v1/chats/c1/sets";
const NOW: i64 = 1_800_000_000_000;

async fn house(builder: support::gateway::GatewayBuilder) -> Gateway {
    let gateway = builder.start().await;
    gateway.put_chat("c1", &["user:alice"]).await;
    gateway.put_chat("c2", &["user:alice"]).await;
    gateway
}

/// A request as a browser sends it: with a form or not, a cookie or not, and the origin of the page it was on.
async fn browse(gateway: &Gateway, method: Method, path: &str, headers: &[(&str, &str)], form: &str) -> Answer {
    let mut request = gateway.request(method, path, "", None);
    if !form.is_empty() {
        request.headers_mut().insert("content-type", "application/x-www-form-urlencoded".parse().unwrap());
    }
    for (name, value) in headers {
        request.headers_mut().append(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
    }
    let (head, _) = request.into_parts();
    let request = Request::from_parts(head, Full::from(form.to_owned()));
    gateway.client().send(request).await.whole().await
}

async fn sign_in(gateway: &Gateway, form: &str) -> Answer {
    let origin = gateway.state().public_url.to_string();
    browse(gateway, Method::POST, "/signin", &[("origin", &origin)], form).await
}

/// What the browser sends back of a `Set-Cookie`.
fn cookie(answer: &Answer) -> String {
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", String::from_utf8_lossy(&answer.body));
    answer.header("set-cookie").split(';').next().unwrap().to_owned()
}

async fn get(gateway: &Gateway, path: &str, cookie: &str) -> Answer {
    browse(gateway, Method::GET, path, &[("cookie", cookie)], "").await
}

async fn code(gateway: &Gateway, body: Value) -> String {
    let answer = gateway.operate(Method::POST, "/v1/signin-codes", Some(body)).await;
    assert_eq!(answer.status, 201);
    let url = answer.json()["url"].as_str().unwrap().to_owned();
    url.strip_prefix(&gateway.state().public_url.to_string()).unwrap().to_owned()
}

/// The form that a page's button sends: its hidden fields.
fn hidden_fields(page: &Answer) -> String {
    let html = String::from_utf8(page.body.clone()).unwrap();
    let fields = html.split("<input type=\"hidden\" name=\"").skip(1).map(|rest| {
        let (name, rest) = rest.split_once("\" value=\"").unwrap();
        (name.to_owned(), rest.split('"').next().unwrap().replace("&amp;", "&"))
    });
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

/// What browsers accept when somebody follows a link.
const PAGE: (&str, &str) = ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");

async fn whoever_opens_the_bare_address_in_a_browser_is_sent_to_the_page_there_is(database: &TestDatabase) {
    let gateway = house(Gateway::builder().on(database)).await;
    for more in [&[][..], &[("cookie", "sluice=x")]] {
        let answer = browse(&gateway, Method::GET, "/?x=1", &[&[PAGE], more].concat(), "").await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (303, "/signin"));
    }
    let authorization = format!("Bearer {}", gateway.reader("user:alice"));
    for (method, path, headers) in [
        (Method::GET, "/", &[][..]),
        (Method::GET, "/", &[("accept", "*/*")]),
        (Method::GET, "/", &[PAGE, ("authorization", &authorization)]),
        (Method::GET, "/nothing", &[PAGE]),
        (Method::HEAD, "/", &[PAGE]),
        (Method::POST, "/", &[PAGE]),
    ] {
        let answer = browse(&gateway, method, path, headers, "").await;
        assert_eq!((answer.status.as_u16(), answer.header("content-type")), (404, "application/json"), "{path}");
    }
}

async fn a_person_who_is_not_signed_in_comes_back_after_signing_in(database: &TestDatabase) {
    let gateway = house(Gateway::builder().on(database)).await;
    let path = format!("{SETS}?limit=7");
    let sent_on = browse(&gateway, Method::GET, &path, &[PAGE], "").await;
    assert_eq!((sent_on.status.as_u16(), sent_on.header("cache-control")), (303, "no-store"));
    let location = sent_on.header("location").to_owned();
    assert_eq!(location, "/signin?next=%2Fv1%2Fchats%2Fc1%2Fsets%3Flimit%3D7");
    let form = hidden_fields(&browse(&gateway, Method::GET, &location, &[PAGE], "").await);
    let signed_in = sign_in(&gateway, &format!("{form}&token={}", gateway.reader("user:alice"))).await;
    assert_eq!(signed_in.header("location"), path);
    let alice = cookie(&signed_in);
    assert_eq!(browse(&gateway, Method::GET, &path, &[PAGE, ("cookie", &alice)], "").await.status, 200);

    // By whatever address a file is reached, and whether it is there or not. A cookie that has ended is none.
    let file = format!("/v1/chats/none/sets/{}/files/a/b", "0".repeat(64));
    for headers in [&[PAGE][..], &[PAGE, ("cookie", "sluice=ended")]] {
        let answer = browse(&gateway, Method::GET, &file, headers, "").await;
        assert_eq!((answer.status.as_u16(), answer.header("accept-ranges")), (303, "bytes"));
        assert!(answer.header("location").ends_with("%2Ffiles%2Fa%2Fb"), "{}", answer.header("location"));
    }
    // Programs, other methods, other credentials, and routes that a cookie does not open are told as ever.
    let blob = format!("/artifacts/blobs/sha256:{}", "0".repeat(64));
    let plain = browse(&gateway, Method::GET, &file, &[], "").await;
    for (method, path, headers) in [
        (Method::GET, &file, &[("accept", "*/*")][..]),
        (Method::HEAD, &file, &[PAGE]),
        (Method::POST, &"/v1/chats/c1/links".to_owned(), &[PAGE]),
        (Method::GET, &file, &[PAGE, ("authorization", "Basic eDp5")]),
        (Method::GET, &file, &[PAGE, ("authorization", "Bearer nonsense")]),
        (Method::GET, &blob, &[PAGE]),
        (Method::GET, &"/v1/agents".to_owned(), &[PAGE]),
    ] {
        let answer = browse(&gateway, method.clone(), path, headers, "").await;
        assert_eq!(answer.status, 401, "{method} {path} {headers:?}");
        assert!(!answer.headers.contains_key("location"));
    }
    let asked = browse(&gateway, Method::GET, &file, &[("accept", "*/*")], "").await;
    assert_eq!(
        (asked.body, asked.headers.get("www-authenticate")),
        (plain.body, plain.headers.get("www-authenticate"))
    );
    // A path that a browser would take for another host is not gone back to.
    let evil = browse(&gateway, Method::GET, "//evil.example/v1/chats", &[PAGE], "").await;
    assert!(!evil.headers.contains_key("location"), "{}", evil.status);
}

async fn what_strangers_sign_out_changes_nothing(database: &TestDatabase) {
    let gateway = house(Gateway::builder().on(database)).await;
    let alice = cookie(&sign_in(&gateway, &format!("token={}", gateway.reader("user:alice"))).await);
    assert_eq!(get(&gateway, SETS, &alice).await.status, 200);
    let store = gateway.state().store.clone();
    let before = (store.generation(), store.withdrawals());
    let origin = gateway.state().public_url.to_string();
    for value in ["A".repeat(43), "short".to_owned()] {
        let headers = [("origin", origin.as_str()), ("cookie", &*format!("sluice={value}"))];
        assert_eq!(browse(&gateway, Method::POST, "/signout", &headers, "").await.status, 303);
    }
    let link = gateway.ask(Method::DELETE, "/v1/chats/c1/links/x", &gateway.reader("user:alice"), None).await;
    assert_eq!(link.status, 404);
    assert_eq!((store.generation(), store.withdrawals()), before);
    // Signing out for real ends that cookie, and voids no answer about what others may read.
    let headers = [("origin", origin.as_str()), ("cookie", alice.as_str())];
    assert_eq!(browse(&gateway, Method::POST, "/signout", &headers, "").await.status, 303);
    assert_eq!((store.generation(), store.withdrawals()), (before.0, before.1 + 1));
    assert_eq!(get(&gateway, SETS, &alice).await.status, 401);
}

async fn a_browser_that_has_to_make_room_is_out_at_once(database: &TestDatabase) {
    let gateway = house(Gateway::builder().on(database)).await;
    let form = format!("token={}", gateway.reader("user:alice"));
    let first = cookie(&sign_in(&gateway, &form).await);
    assert_eq!(get(&gateway, SETS, &first).await.status, 200);
    // Two in one millisecond would be in no order.
    tokio::time::sleep(Duration::from_millis(5)).await;
    for _ in 0..63 {
        sign_in(&gateway, &form).await;
    }
    assert_eq!(get(&gateway, SETS, &first).await.status, 200);
    sign_in(&gateway, &form).await;
    assert_eq!(get(&gateway, SETS, &first).await.status, 401);
}

async fn a_token_signs_a_browser_in_and_the_cookie_reads(database: &TestDatabase) {
    let gateway = house(Gateway::builder().on(database)).await;
    let page = gateway.get("/signin?next=/chats/c1", "").await;
    assert_eq!((page.status.as_u16(), page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").starts_with("default-src 'none'; style-src 'sha256-"));
    assert_eq!(page.header("referrer-policy"), "same-origin");
    assert_eq!(page.header("cache-control"), "no-store");
    assert!(!String::from_utf8_lossy(&page.body).contains("<script"));

    let form = format!("{}&token={}", hidden_fields(&page), gateway.reader("user:alice"));
    let answer = sign_in(&gateway, &form).await;
    assert_eq!((answer.status.as_u16(), answer.header("location")), (303, "/chats/c1"));
    let set = answer.header("set-cookie");
    let flags: Vec<_> = set.split("; ").skip(1).collect();
    assert_eq!(flags[..3], ["Path=/", "HttpOnly", "SameSite=Lax"]);
    let age: u64 = flags[3].strip_prefix("Max-Age=").unwrap().parse().unwrap();
    // No longer than the token of an hour.
    assert!((3590..=3600).contains(&age), "{age}");
    assert_eq!(flags.len(), 4, "Secure would be lost over plain HTTP");

    let cookie = cookie(&answer);
    assert_eq!(get(&gateway, SETS, &cookie).await.status, 200);
    assert_eq!(get(&gateway, "/v1/chats/c3/sets", &cookie).await.status, 404);
    let page = get(&gateway, "/signin", &cookie).await;
    assert!(String::from_utf8_lossy(&page.body).contains("user:alice"));

    // It is good for the native routes only, and for nothing that operators do.
    let hash = "0".repeat(64);
    for path in [format!("/api/blob/cas/{hash}"), format!("/artifacts/blobs/sha256:{hash}"), "/v1/agents".to_owned()] {
        assert_eq!(get(&gateway, &path, &cookie).await.status, 401, "{path}");
    }
    // A token goes before it, also a bad one.
    let both = [("cookie", cookie.as_str()), ("authorization", "Bearer nonsense")];
    assert_eq!(browse(&gateway, Method::GET, SETS, &both, "").await.status, 401);
    // Any other cookie is none.
    for other in ["sluice=x", "sluice=", &format!("{cookie}; {cookie}"), &format!("sluice={}", "A".repeat(43))] {
        let answer = get(&gateway, SETS, other).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (401, "unauthorized"), "{other}");
    }
}

async fn a_code_signs_in_once_however_many_come_together(database: &TestDatabase) {
    let gateway = house(Gateway::builder().on(database)).await;
    let body = json!({"principal": "user:alice", "chats": ["c1"], "next": "/chats/c1?x=1&y=2"});
    let path = code(&gateway, body).await;
    // Whoever previews links has looked at it already.
    for _ in 0..3 {
        assert_eq!(gateway.get(&path, "").await.status, 200);
        assert_eq!(gateway.ask(Method::HEAD, &path, "", None).await.status, 200);
    }
    let form = hidden_fields(&gateway.get(&path, "").await);
    let answers = join_all((0..8).map(|_| sign_in(&gateway, &form))).await;
    let (good, bad): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 303);
    assert_eq!(good.len(), 1);
    assert!(bad.iter().all(|answer| answer.status == 401 && answer.header("set-cookie").is_empty()));
    assert_eq!(good[0].header("location"), "/chats/c1?x=1&y=2");
    let cookie = cookie(&good[0]);
    assert_eq!(get(&gateway, SETS, &cookie).await.status, 200);
    assert_eq!(get(&gateway, "/v1/chats/c2/sets", &cookie).await.status, 404, "the code's limit carries over");

    for body in [
        json!({"principal": "*"}),
        json!({"principal": "alice"}),
        json!({"principal": "user:alice", "ttl": "2h"}),
        json!({"principal": "user:alice", "ttl": "0s"}),
        json!({"principal": "user:alice", "next": "//evil.example"}),
        json!({"principal": "user:alice", "who": 1}),
    ] {
        let answer = gateway.ask(Method::POST, "/v1/signin-codes", &gateway.operator(), Some(body.clone())).await;
        assert_eq!(answer.status, 400, "{body}");
    }
    let body = json!({"principal": "user:bob"});
    let answer = gateway.ask(Method::POST, "/v1/signin-codes", &gateway.reader("user:alice"), Some(body)).await;
    assert_eq!(answer.status, 403);
}

async fn signing_out_ends_the_cookie_wherever_it_is(database: &TestDatabase) {
    let gateway = house(Gateway::builder().on(database)).await;
    let origin = gateway.state().public_url.to_string();
    let token = gateway.reader("user:alice");
    let first = cookie(&sign_in(&gateway, &format!("token={token}")).await);
    let second = cookie(&sign_in(&gateway, &format!("token={token}")).await);
    for cookie in [&first, &second] {
        assert_eq!(get(&gateway, SETS, cookie).await.status, 200);
    }
    // Not from elsewhere.
    let foreign = [("cookie", first.as_str()), ("origin", "https://evil.example")];
    let answer = browse(&gateway, Method::POST, "/signout", &foreign, "").await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (403, "forbidden"));
    assert_eq!(get(&gateway, SETS, &first).await.status, 200);

    let own = [("cookie", first.as_str()), ("origin", origin.as_str())];
    let answer = browse(&gateway, Method::POST, "/signout", &own, "").await;
    assert_eq!((answer.status.as_u16(), answer.header("location")), (303, "/signin"));
    assert!(answer.header("set-cookie").starts_with("sluice=; ") && answer.header("set-cookie").contains("Max-Age=0"));
    assert_eq!(get(&gateway, SETS, &first).await.status, 401);
    assert_eq!(get(&gateway, SETS, &second).await.status, 200, "the other browser stays");
}

async fn what_a_cookie_may_ends_with_its_holders_place_in_the_chat(database: &TestDatabase) {
    let gateway = house(Gateway::builder().on(database)).await;
    let limited = gateway.token(&Identity::Reader(Caller {
        principal: "user:alice".parse().unwrap(),
        chats: Some(["c2".parse().unwrap()].into()),
    }));
    let free = cookie(&sign_in(&gateway, &format!("token={}", gateway.reader("user:alice"))).await);
    let limited = cookie(&sign_in(&gateway, &format!("token={limited}")).await);
    assert_eq!(get(&gateway, SETS, &free).await.status, 200);
    assert_eq!(get(&gateway, SETS, &limited).await.status, 404, "the token's limit carries over");
    assert_eq!(get(&gateway, "/v1/chats/c2/sets", &limited).await.status, 200);
    gateway.operate(Method::DELETE, "/v1/chats/c1/participants/user:alice", None).await;
    gateway.operate(Method::DELETE, "/v1/chats/c2", None).await;
    assert_eq!(get(&gateway, SETS, &free).await.status, 404);
    assert_eq!(get(&gateway, "/v1/chats/c2/sets", &limited).await.status, 404);
}

async fn a_cookie_outlives_a_restart_and_ends_with_its_token(database: &TestDatabase) {
    let clock = Clock::fixed(NOW);
    let mut gateway = house(Gateway::builder().on(database).clock(clock.clone())).await;
    let alice = Identity::Reader(Caller { principal: "user:alice".parse().unwrap(), chats: None });
    let day = gateway.state().tokens.issue(&alice, Duration::from_secs(24 * 3600), &clock).unwrap();
    let hour = cookie(&sign_in(&gateway, &format!("token={}", gateway.reader("user:alice"))).await);
    let half_day = cookie(&sign_in(&gateway, &format!("token={day}")).await);
    let old_code = code(&gateway, json!({"principal": "user:alice", "ttl": "1m"})).await;
    gateway.restart().await;
    assert_eq!(get(&gateway, SETS, &hour).await.status, 200);
    clock.set(NOW + 3_600_000);
    assert_eq!(get(&gateway, SETS, &hour).await.status, 401);
    assert_eq!(get(&gateway, SETS, &half_day).await.status, 200);
    let form = hidden_fields(&gateway.get(&old_code, "").await);
    assert_eq!(sign_in(&gateway, &form).await.status, 401, "a code has its time");
    clock.set(NOW + 12 * 3_600_000);
    assert_eq!(get(&gateway, SETS, &half_day).await.status, 401);
    // What has had its time is swept away.
    gateway.restart().await;
    support::eventually("the sweep", async || {
        (gateway.state().store.sweep_handed_out(1).await.unwrap() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn only_forms_of_the_gateways_own_pages_sign_in() {
    let gateway = house(Gateway::builder()).await;
    let form = format!("token={}", gateway.reader("user:alice"));
    let own = gateway.state().public_url.to_string();
    for headers in
        [&[][..], &[("origin", "null")], &[("origin", "https://evil.example")], &[("origin", &own), ("origin", &own)]]
    {
        let answer = browse(&gateway, Method::POST, "/signin", headers, &form).await;
        assert_eq!((answer.status.as_u16(), answer.header("set-cookie")), (403, ""), "{headers:?}");
        assert!(String::from_utf8_lossy(&answer.body).contains(&format!("{own}/signin")));
    }
    let bad = [
        ("", 415),
        ("token=", 401),
        ("token=nonsense", 401),
        (&format!("token={}", gateway.operator()), 403),
        ("code=nonsense", 401),
        (&format!("code={}", "A".repeat(43)), 401),
        (&format!("token={}", "x".repeat(17_000)), 413),
    ];
    for (form, status) in bad {
        let answer = sign_in(&gateway, form).await;
        assert_eq!((answer.status.as_u16(), answer.header("set-cookie")), (status, ""), "{form:.40}");
        assert!(!String::from_utf8_lossy(&answer.body).contains("nonsense"));
    }
    // Wherever it should go on to, it stays here; and what is said of the address is text.
    for next in ["https://evil.example", "//evil.example", "/%5Cevil.example", "/%0d%0aX: y"] {
        let answer = sign_in(&gateway, &format!("{form}&next={next}")).await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (303, "/signin"), "{next}");
    }
    let page = gateway.get("/signin?next=/%22%3E%3Cb%3E", "").await;
    assert!(!String::from_utf8_lossy(&page.body).contains("\"><b>"));
}

#[tokio::test]
async fn over_tls_the_cookie_is_secure_and_of_this_host_alone() {
    let gateway = house(Gateway::builder().with(|layer| {
        layer.public_url = Some("https://files.example".parse().unwrap());
        layer.signin_ttl = Some(span("10m"));
    }))
    .await;
    let answer = sign_in(&gateway, &format!("token={}", gateway.reader("user:alice"))).await;
    let set = answer.header("set-cookie");
    assert!(set.starts_with("__Host-sluice=") && set.ends_with("; Secure"), "{set}");
    assert!(set.contains("; Max-Age=600;") || set.contains("; Max-Age=599;"), "{set}");
    let cookie = cookie(&answer);
    assert_eq!(get(&gateway, SETS, &cookie).await.status, 200);
    let planted = cookie.replace("__Host-", "");
    assert_eq!(get(&gateway, SETS, &planted).await.status, 401);
}

#[tokio::test]
async fn what_changes_something_needs_an_origin_of_our_own() {
    let gateway = house(Gateway::builder().with(|layer| layer.links = Some(true))).await;
    let cookie = cookie(&sign_in(&gateway, &format!("token={}", gateway.reader("user:alice"))).await);
    let own = gateway.state().public_url.to_string();
    let path = format!("/v1/chats/c1/links/{}", "0".repeat(32));
    for (origin, status) in [("", 403), ("null", 403), ("https://evil.example", 403), (own.as_str(), 404)] {
        let mut headers = vec![("cookie", cookie.as_str())];
        if !origin.is_empty() {
            headers.push(("origin", origin));
        }
        assert_eq!(browse(&gateway, Method::DELETE, &path, &headers, "").await.status, status, "{origin}");
    }
}
