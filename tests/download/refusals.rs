//! Who and what is refused, and that a refusal tells nothing of what is there.

use http::Method;

use crate::on_both_databases;
use crate::stage::{Answer, Stage, add, by_hash, sample};
use crate::support::db::{self, TestDatabase};
use crate::support::{Gateway, SampleSet, bytes, eventually, set_file, sha256};

on_both_databases!(
    unknown_and_foreign_are_one_404,
    a_task_that_is_named_must_be_the_sets,
    a_task_that_is_named_must_be_the_sets_by_any_way,
    a_file_is_gone_with_its_chat,
);

async fn unknown_and_foreign_are_one_404(database: &TestDatabase) {
    let stage = Stage::with_set(sample(), Gateway::builder().on(database).start().await).await;
    let (alice, mallory, operator) = (stage.alice(), stage.gateway.reader("user:mallory"), stage.gateway.operator());
    let (set, other) = (stage.set.identity(), sha256(b"other"));
    let blob = stage.set.file("plain.bin").sha256.clone();
    let mut requests = vec![
        (format!("/v1/chats/none/sets/{set}"), &alice),
        (format!("/v1/chats/c1/sets/{other}"), &alice),
        (format!("/v1/chats/c2/sets/{set}"), &alice),
        (format!("/v1/chats/c1/sets/{}", set.to_uppercase()), &alice),
        ("/v1/chats/c1/sets/nonsense".to_owned(), &alice),
        (format!("/v1/chats/c1/sets/{set}"), &mallory),
        (format!("/v1/chats/c2/sets/{set}"), &mallory),
        (format!("/v1/chats/c1/sets/{set}"), &operator),
        (format!("/v1/chats/c1/sets/{set}/files/plain.bin"), &mallory),
        (format!("/v1/chats/c2/sets/{set}/files/plain.bin"), &mallory),
        (format!("/v1/chats/c1/sets/{set}/files/plain.bin"), &operator),
        (format!("/v1/chats/c1/sets/{other}/files/plain.bin"), &alice),
        (format!("/v1/chats/none/sets/{set}/files/plain.bin"), &alice),
        (format!("/agents/nobody/artifacts/blobs/sha256:{blob}"), &alice),
        (format!("/agents/a%20b/artifacts/blobs/sha256:{blob}"), &alice),
        ("/artifacts/blobs/nonsense".to_owned(), &alice),
        (format!("/artifacts/blobs/{blob}"), &alice),
        (format!("/artifacts/blobs/sha512:{blob}"), &alice),
        ("/api/blob/cas/nonsense".to_owned(), &alice),
        // No text at all to one of the databases.
        (format!("/v1/chats/%00/sets/{set}"), &alice),
        (format!("/v1/chats/c1%00/sets/{set}/files/plain.bin"), &alice),
        (format!("/v1/chats/c1/sets/{set}/files/%00"), &mallory),
        (format!("/agents/%00/artifacts/blobs/sha256:{blob}"), &alice),
        (format!("/agents/ada%00/artifacts/blobs/sha256:{blob}"), &alice),
        (format!("/artifacts/blobs/sha256:{blob}%00"), &alice),
        (format!("/api/blob/cas/{blob}%00"), &alice),
        ("/v1/chats/c1/files/%00/versions/1".to_owned(), &alice),
        ("/v1/chats/c1/files/af_0000000000000001/versions/%00".to_owned(), &alice),
        ("/v1/chats/c1/files/af_7fffffffffffffff/versions/4294967295".to_owned(), &alice),
    ];
    for path in [
        "none",
        "PLAIN.BIN",
        "plain.bin/",
        "./plain.bin",
        "x/../plain.bin",
        "../../etc/passwd",
        "%2e%2e%2fa",
        "%00",
        "plain.bin%00",
        "%00/plain.bin",
        "%FF",
    ] {
        requests.push((format!("/v1/chats/c1/sets/{set}/files/{path}"), &alice));
    }
    for prefix in ["/artifacts/blobs/sha256:", "/agents/ada/artifacts/blobs/sha256:", "/api/blob/cas/"] {
        requests.push((format!("{prefix}{other}"), &alice));
        requests.push((format!("{prefix}{other}"), &mallory));
        for known in [&blob, &set] {
            requests.push((format!("{prefix}{known}"), &mallory));
            requests.push((format!("{prefix}{known}"), &operator));
        }
    }
    for method in [Method::GET, Method::HEAD] {
        let mut first: Option<Answer> = None;
        for (path, token) in &requests {
            // What exists is decided before ranges and preconditions.
            for headers in [vec![], vec![("range", "bytes=99999999-".to_owned()), ("if-match", "\"a\"".to_owned())]] {
                let mut request = stage.gateway.request(method.clone(), path, token, None);
                add(&mut request, &headers);
                let answer = Answer::of(stage.send(false, request).await).await.visible();
                assert_eq!(answer.status, 404, "{path}");
                assert_eq!(&answer, first.get_or_insert(answer_like(&answer)), "{method} {path}");
            }
        }
    }
    assert_eq!(stage.agent.reads().len(), 0);
}

fn answer_like(answer: &Answer) -> Answer {
    Answer { status: answer.status, headers: answer.headers.clone(), body: answer.body.clone() }
}

#[tokio::test]
async fn a_method_is_refused_by_its_route_and_a_stranger_by_its_lack_of_credential() {
    let stage = Stage::new().await;
    let alice = stage.alice();
    let (set, blob, other) = (stage.set.identity(), stage.set.file("plain.bin").sha256.clone(), sha256(b"other"));
    let routes = [
        [format!("/v1/chats/c1/sets/{set}"), format!("/v1/chats/none/sets/{other}")],
        [format!("/v1/chats/c1/sets/{set}/files/plain.bin"), format!("/v1/chats/none/sets/{other}/files/x")],
        [format!("/artifacts/blobs/sha256:{blob}"), format!("/artifacts/blobs/sha256:{other}")],
        [format!("/agents/ada/artifacts/blobs/sha256:{blob}"), format!("/agents/x/artifacts/blobs/sha256:{other}")],
        [format!("/api/blob/cas/{blob}"), "/api/blob/cas/x".to_owned()],
    ];
    for paths in &routes {
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS] {
            let mut answers = Vec::new();
            for (path, token) in paths.iter().flat_map(|path| [(path, alice.as_str()), (path, ""), (path, "nonsense")])
            {
                let request = stage.gateway.request(method.clone(), path, token, None);
                answers.push(Answer::of(stage.send(false, request).await).await.visible());
            }
            assert_eq!((answers[0].status.as_u16(), answers[0].code().as_str()), (405, "method_not_allowed"));
            assert_eq!(answers[0].header("accept-ranges"), Some("bytes"), "{paths:?}");
            assert!(answers[0].header("allow").unwrap().contains("GET"));
            assert!(answers.iter().all(|answer| *answer == answers[0]), "{method} {paths:?}");
        }
        for (token, challenge) in [("", "Bearer"), ("nonsense", "Bearer error=\"invalid_token\"")] {
            let mut answers = Vec::new();
            for path in paths {
                let request = stage.gateway.request(Method::GET, path, token, None);
                answers.push(Answer::of(stage.send(false, request).await).await.visible());
            }
            assert_eq!((answers[0].status.as_u16(), answers[0].code().as_str()), (401, "unauthorized"));
            assert_eq!(answers[0].header("www-authenticate"), Some(challenge));
            assert_eq!(answers[0].header("accept-ranges"), Some("bytes"));
            assert_eq!(answers[0], answers[1], "{paths:?}");
        }
    }
}

async fn a_task_that_is_named_must_be_the_sets(database: &TestDatabase) {
    for required in [false, true] {
        let (again, postgres) = (TestDatabase::sqlite(), TestDatabase::postgres());
        let database = match (required, database.is_postgres()) {
            (false, _) => database,
            (true, false) => &again,
            (true, true) => &postgres.await.unwrap(),
        };
        let builder = Gateway::builder().on(database).with(|layer| layer.require_task = Some(required));
        let gateway = builder.start().await;
        let set = SampleSet::of([("a.bin", bytes(1, 100))]).task("task-7");
        let stage = Stage::with_set(set, gateway).await;
        let free = SampleSet::of([("b.bin", bytes(2, 100))]);
        stage.agent.announce_in("turn-1", &free).await;
        stage.gateway.wait_for_set("c1", &free.identity()).await;
        let without = if required { (403, "task_required") } else { (200, "") };
        for (set, task, expected) in [
            (&stage.set, None, without),
            (&stage.set, Some("task-7"), (200, "")),
            (&stage.set, Some("task-8"), (403, "task_mismatch")),
            (&stage.set, Some(""), (403, "task_mismatch")),
            (&free, None, (200, "")),
            (&free, Some("task-8"), (403, "task_mismatch")),
        ] {
            let names = [(set.files[0].sha256.clone(), set.files[0].bytes.to_vec()), (set.identity(), set.canonical())];
            for (hash, bytes) in names {
                for resource in by_hash(&hash, &bytes, "") {
                    let headers: Vec<_> = task.iter().map(|task| ("artifact-task", (*task).to_owned())).collect();
                    let answer = stage.get(&resource.path, &headers).await;
                    let what = format!("{required} {task:?} {}", resource.path);
                    let code = if answer.status == 200 { String::new() } else { answer.code() };
                    assert_eq!((answer.status.as_u16(), code.as_str()), expected, "{what}");
                    assert_eq!(answer.header("accept-ranges"), Some("bytes"), "{what}");
                    // A stranger is told nothing of tasks.
                    let mallory = stage.gateway.reader("user:mallory");
                    let mut request = stage.gateway.request(Method::GET, &resource.path, &mallory, None);
                    add(&mut request, &headers);
                    assert_eq!(stage.send(false, request).await.status, 404, "{what}");
                }
            }
        }
    }
}

/// By a set's path none need be named, whatever is required by hash: browsers and links can name none.
async fn a_task_that_is_named_must_be_the_sets_by_any_way(database: &TestDatabase) {
    let builder = Gateway::builder().on(database).with(|layer| {
        layer.require_task = Some(true);
        layer.links = Some(true);
    });
    let inner = SampleSet::of([("i", bytes(1, 10))]);
    let set = SampleSet::around(&inner, "d/inner", "a.bin").task("task-7");
    let gateway = builder.start().await;
    let stage = Stage::with_served(&[&inner], set, gateway).await;
    let body = serde_json::json!({"set": stage.set.identity(), "path": "a.bin"});
    let link = stage.gateway.ask(Method::POST, "/v1/chats/c1/links", &stage.alice(), Some(body)).await.json();
    let link = link["url"].as_str().unwrap().strip_prefix(&stage.gateway.url).unwrap().to_owned();
    let files = stage.gateway.get("/v1/chats/c1/files", &stage.alice()).await.json();
    let version = files["files"].as_array().unwrap().iter().find(|file| file["path"] == "a.bin").unwrap();
    let version = version["url"].as_str().unwrap().strip_prefix(&stage.gateway.url).unwrap().to_owned();
    let paths = [
        format!("/v1/chats/c1/sets/{}", stage.set.identity()),
        set_file("c1", &stage.set, "a.bin"),
        set_file("c1", &stage.set, "d/inner"),
        set_file("c1", &stage.set, "d/i"),
        version,
        link,
    ];
    for path in &paths {
        for (tasks, expected) in [
            (&[][..], 200),
            (&["task-7"], 200),
            // The announcement's.
            (&["task-sample"], 200),
            (&["task-8"], 403),
            (&[""], 403),
            // Two are none that a set has, whichever comes first.
            (&["task-7", "task-8"], 403),
            (&["task-8", "task-7"], 403),
            (&["task-7", "task-7"], 403),
        ] {
            let headers: Vec<_> = tasks.iter().map(|task| ("artifact-task", (*task).to_owned())).collect();
            for method in [Method::HEAD, Method::GET] {
                let answer = stage.ask(false, &method, path, &headers).await;
                assert_eq!(answer.status, expected, "{method} {path} {tasks:?}");
                if expected == 403 && method == Method::GET {
                    assert_eq!(answer.code(), "task_mismatch", "{path} {tasks:?}");
                }
            }
        }
        // A stranger is told nothing of tasks.
        if !path.starts_with("/l/") {
            let mut request = stage.gateway.request(Method::GET, path, &stage.gateway.reader("user:mallory"), None);
            add(&mut request, &[("artifact-task", "task-8".to_owned())]);
            assert_eq!(stage.send(false, request).await.status, 404, "{path}");
        }
    }
}

async fn a_file_is_gone_with_its_chat(database: &TestDatabase) {
    let stage = Stage::with_set(sample(), Gateway::builder().on(database).start().await).await;
    let paths: Vec<_> = stage.resources().into_iter().map(|resource| resource.path).collect();
    assert_eq!(stage.get(&paths[0], &[]).await.status, 200);
    stage.gateway.operate(Method::DELETE, "/v1/chats/c1", None).await;
    for path in paths {
        assert_eq!(stage.get(&path, &[]).await.status, 404, "{path}");
    }
    eventually("the last transfer's end", async || stage.gateway.state().transfers.running().is_empty().then_some(()))
        .await;
}
