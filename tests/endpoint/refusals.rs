//! Everything that is refused, and what each refusal says.

use std::io::Write as _;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use crate::stage::{KEY, Stage, blob, large, large_blob, request, unsigned};
use crate::support::signer::Signing;
use crate::support::{Answer, SigningAgent, eventually, sha256};

/// The status, the code, and the check's code where the message starts with one.
fn refusal(answer: &Answer) -> (u16, String, String) {
    assert_eq!(answer.header("accept-ranges"), "bytes");
    assert_eq!(answer.header("cache-control"), "no-store");
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    let check = message.split_once(':').map_or("", |(check, _)| check).to_owned();
    (answer.status.as_u16(), answer.code(), check)
}

#[tokio::test]
async fn every_refusal_has_its_code() {
    let stage = Stage::new().await;
    let (address, hash) = (stage.address, sha256(&large()));
    let signing = || stage.signing("GET", &hash);
    let signed = |signing: &Signing| request(address, signing, &[]);
    let with = |request: Request<Full<Bytes>>, name: &'static str, value: &str| {
        let mut request = request;
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    let at = |path: &str| signed(&Signing { target: path.to_owned(), ..signing() });
    let body = |request: Request<Full<Bytes>>| request.map(|_| Full::from("body"));
    let foreign = Signing::new(&[KEY + 1], &stage.gateway.url, "GET", &address.to_string(), &large_blob());
    let elsewhere = Signing { authority: "agent.example".into(), ..signing() };
    let now = signing().created;
    let cases = [
        ("no credential", unsigned(address, "GET", &large_blob()), 401, "unauthorized", ""),
        (
            "a token",
            with(unsigned(address, "GET", &large_blob()), "authorization", "Bearer t"),
            401,
            "unauthorized",
            "",
        ),
        ("a hash that nobody has, unsigned", unsigned(address, "GET", &blob(&sha256(b"?"))), 401, "unauthorized", ""),
        ("no route, unsigned", unsigned(address, "GET", "/"), 404, "not_found", ""),
        ("no route", at("/artifacts/blobs"), 404, "not_found", ""),
        ("another base", at(&format!("/agents/ada{}", large_blob())), 404, "not_found", ""),
        ("a hash that nobody has", at(&blob(&sha256(b"?"))), 404, "not_found", ""),
        ("no hash", at(&blob("x")), 404, "not_found", ""),
        ("a hash in capitals", at(&blob(&hash.to_uppercase())), 404, "not_found", ""),
        ("another algorithm", at(&large_blob().replace("sha256", "sha512")), 404, "not_found", ""),
        ("another method", unsigned(address, "POST", &large_blob()), 405, "method_not_allowed", ""),
        ("a body", body(signed(&signing())), 400, "bad_request", ""),
        ("another agent's key", signed(&foreign), 401, "unauthorized", "signature_key_unknown"),
        ("another authority than the Host", signed(&elsewhere), 401, "unauthorized", "signature_invalid"),
        (
            "another authority, and a Host to it",
            with(signed(&elsewhere), "host", "agent.example"),
            401,
            "unauthorized",
            "signature_authority_mismatch",
        ),
        (
            "another Host than was signed for",
            with(signed(&signing()), "host", "agent.example"),
            401,
            "unauthorized",
            "signature_authority_mismatch",
        ),
        (
            "another method than was signed",
            signed(&Signing { method: "HEAD".into(), ..signing() }).map_method("GET"),
            401,
            "unauthorized",
            "signature_invalid",
        ),
        (
            "another path than was signed",
            signed(&Signing { target: blob(&sha256(b"")), ..signing() }).map_path(address, &large_blob()),
            401,
            "unauthorized",
            "signature_invalid",
        ),
        (
            "yesterday's signature",
            signed(&Signing { created: now - 86_400, expires: now - 86_340, ..signing() }),
            401,
            "unauthorized",
            "signature_expired",
        ),
        (
            "a signature for a day",
            signed(&Signing { expires: now + 86_400, ..signing() }),
            401,
            "unauthorized",
            "signature_params_invalid",
        ),
        (
            "a signature that is none",
            with(signed(&signing()), "signature", "sig1=:AAAA:"),
            401,
            "unauthorized",
            "signature_malformed",
        ),
    ];
    for (what, request, status, code, check) in cases {
        let answer = stage.whole(request).await;
        assert_eq!(refusal(&answer), (status, code.to_owned(), check.to_owned()), "{what}");
        match status {
            401 => {
                assert!(answer.header("accept-signature").contains("tag=\"web-bot-auth\""), "{what}");
                assert_eq!((answer.header("www-authenticate"), answer.header("connection")), ("Signature", "close"));
            }
            405 => assert_eq!(answer.header("allow"), "GET, HEAD"),
            _ => {}
        }
    }
    // After all of that the right request is as good as before.
    assert_eq!(stage.whole(signed(&signing())).await.body, large());
    stage.agent.stop().await;
}

/// Changes that a signature does not know of.
trait Forge {
    fn map_method(self, method: &str) -> Self;
    fn map_path(self, address: std::net::SocketAddr, path: &str) -> Self;
}

impl Forge for Request<Full<Bytes>> {
    fn map_method(mut self, method: &str) -> Self {
        *self.method_mut() = method.parse().unwrap();
        self
    }

    fn map_path(mut self, address: std::net::SocketAddr, path: &str) -> Self {
        *self.uri_mut() = format!("http://{address}{path}").parse().unwrap();
        self
    }
}

#[tokio::test]
async fn a_stranger_that_proves_who_it_is_stays_one_and_is_not_asked() {
    let stage = Stage::new().await;
    let stranger = SigningAgent::start(&[7]).await;
    let signing = Signing::new(&[7], &stranger.url, "GET", &stage.address.to_string(), &large_blob());
    let answer = stage.whole(request(stage.address, &signing, &[])).await;
    assert_eq!(refusal(&answer), (401, "unauthorized".into(), "signature_key_unknown".into()));
    assert_eq!(stranger.origin.accepted(), 0, "a stranger chose what this agent fetches");
}

#[tokio::test]
async fn a_signature_is_good_for_one_request() {
    let stage = Stage::new().await;
    let signing = stage.signing("GET", &sha256(&large()));
    let first = request(stage.address, &signing, &[("range", "bytes=0-9".to_owned())]);
    let (one, other) = tokio::join!(stage.whole(first.clone()), stage.whole(first.clone()));
    let mut both = [one.status.as_u16(), other.status.as_u16()];
    both.sort();
    assert_eq!(both, [206, 401], "the same signature twice at the same time");
    let again = stage.whole(first).await;
    assert_eq!(refusal(&again), (401, "unauthorized".into(), "signature_replayed".into()));
}

#[tokio::test]
async fn a_set_of_a_task_is_given_to_whoever_names_it() {
    let stage = Stage::with(|options| options.task = Some("task-7".parse().unwrap())).await;
    let ask = async |hash: &str, tasks: &[&str]| {
        let headers: Vec<_> = tasks.iter().map(|task| ("artifact-task", (*task).to_owned())).collect();
        stage.ask("GET", hash, &headers).await.whole().await
    };
    for hash in [sha256(&large()), stage.identity.clone()] {
        for (tasks, code) in [
            (&[][..], "task_required"),
            (&["task-8"], "task_mismatch"),
            (&["TASK-7"], "task_mismatch"),
            (&["task-7", "task-7"], "task_mismatch"),
        ] {
            assert_eq!(refusal(&ask(&hash, tasks).await), (403, code.into(), String::new()), "{tasks:?}");
        }
        assert_eq!(ask(&hash, &["task-7"]).await.status.as_u16(), 200);
    }
    // What is not there is not there for any task.
    assert_eq!(refusal(&ask(&sha256(b"?"), &[]).await).0, 404);
    let unsigned = stage.whole(unsigned(stage.address, "GET", &large_blob())).await;
    assert_eq!(refusal(&unsigned).0, 401, "a stranger learns of no task");
}

#[tokio::test]
async fn transfers_beyond_the_limit_are_told_when_to_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let huge = crate::support::bytes(3, 16 << 20);
    std::fs::write(dir.path().join("huge.bin"), &huge).unwrap();
    let stage = Stage::with(|options| {
        options.dir = dir.path().to_owned();
        options.serve.as_mut().unwrap().transfers = 2;
    })
    .await;
    let hash = sha256(&huge);
    let slow = crate::support::Client::of(stage.address).receive_buffer(64 * 1024);
    let ask = async || slow.send(request(stage.address, &stage.signing("GET", &hash), &[])).await;
    let (mut first, second) = (ask().await, ask().await);
    let third = stage.ask("GET", &hash, &[]).await.whole().await;
    assert_eq!(refusal(&third), (503, "too_many_transfers".into(), String::new()));
    assert_eq!((third.json()["error"]["limit"].as_u64(), third.header("retry-after")), (Some(2), "1"));
    // What sends no file takes no place.
    assert_eq!(stage.ask("HEAD", &hash, &[]).await.status.as_u16(), 200);
    let same = [("if-none-match", format!("\"sha256-{hash}\""))];
    assert_eq!(stage.ask("GET", &hash, &same).await.status.as_u16(), 304);
    drop(second);
    let few = [("range", "bytes=5-6".to_owned())];
    eventually("a place", async || {
        let answer = stage.ask("GET", &hash, &few).await.whole().await;
        (answer.status.as_u16() == 206).then_some(())
    })
    .await;
    assert!(first.rest().await.0 == huge, "other bytes than the file's");
}

#[tokio::test]
async fn a_file_that_changed_is_not_served_under_its_old_hash() {
    let dir = tempfile::tempdir().unwrap();
    let huge = crate::support::bytes(3, 16 << 20);
    let location = dir.path().join("huge.bin");
    std::fs::write(&location, &huge).unwrap();
    let stage = Stage::with(|options| options.dir = dir.path().to_owned()).await;
    let hash = sha256(&huge);
    let slow = crate::support::Client::of(stage.address).receive_buffer(64 * 1024);
    let mut download = slow.send(request(stage.address, &stage.signing("GET", &hash), &[])).await;
    assert!(download.read(1000).await == huge[..1000]);
    std::fs::OpenOptions::new().append(true).open(&location).unwrap().write_all(b"more").unwrap();
    let (rest, end) = download.rest().await;
    assert!(end.is_err() && rest.len() < huge.len() - 1000, "a transfer ended as if nothing had happened");
    assert!(huge[1000..].starts_with(&rest), "bytes that were not announced");
    for method in ["GET", "HEAD"] {
        assert_eq!(stage.ask(method, &hash, &[]).await.status.as_u16(), 410, "{method}");
    }
    let gone = stage.ask("GET", &hash, &[("range", "bytes=0-9".to_owned())]).await.whole().await;
    assert_eq!(refusal(&gone), (410, "blob_gone".into(), String::new()));
    std::fs::remove_file(&location).unwrap();
    assert_eq!(stage.ask("GET", &hash, &[]).await.status.as_u16(), 410);
}
