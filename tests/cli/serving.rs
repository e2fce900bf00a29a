//! Gateways that run, and what they say to those who start, ask and stop them.

use super::*;

#[test]
fn check_tells_a_running_gateway_from_whoever_else_has_its_ports() {
    let dir = tempfile::tempdir().unwrap();
    let (_gateway, serving) = serve(dir.path(), &FREE);
    let (listen, ops) = (serving["listen"].as_str().unwrap(), serving["ops_listen"].as_str().unwrap());
    let output = run(dir.path(), &["check", "--listen", listen, "--ops-listen", ops]);
    let told = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(told.contains(&format!("this gateway runs at {listen} already")), "{told}");
    assert!(told.contains(&format!("this gateway runs at {ops} already")), "{told}");
    assert!(told.contains("sluice.db is up to date, and this gateway uses it already"), "{told}");
    assert!(told.contains("cache: this gateway uses ./sluice-data/cache already"), "{told}");
    // One that would start at other ports would be refused, for the file or for the cache's folder.
    for (more, named) in [
        (&[][..], "sluice-data/sluice.db is in use by another gateway"),
        (&["--database-url", "sqlite://other.db"], "sluice-data/cache is in use by another"),
    ] {
        for command in ["check", "serve"] {
            let line = failure(&run(dir.path(), &[&[command, "--log-level", "error"], &FREE[..], more].concat()), 1);
            assert!(line.contains(named), "{command}: {line}");
        }
    }
    let output = run(dir.path(), &[&["check", "--data-dir", "elsewhere"], &FREE[..]].concat());
    let told = text(&output.stdout);
    assert!(told.contains("cache: elsewhere/cache is not there yet"), "{told}");
    // Another gateway's, by what is kept elsewhere.
    let elsewhere = ["--data-dir", "elsewhere"];
    for ports in [["--listen", listen, "--ops-listen", "127.0.0.1:0"], ["--listen", "127.0.0.1:0", "--ops-listen", ops]]
    {
        let line = failure(&run(dir.path(), &[&["check"], &elsewhere[..], &ports].concat()), 1);
        assert!(line.contains("cannot listen on "), "{line}");
    }
    // Something that is no gateway, and says nothing.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _taken = TcpListener::bind(taken).unwrap();
    let taken = ["--listen", &taken.to_string(), "--ops-listen", "127.0.0.1:0"];
    let line = failure(&run(dir.path(), &[&["check"], &elsewhere[..], &taken].concat()), 1);
    assert!(line.contains("set --listen "), "{line}");
}

#[test]
fn a_sqlite_file_has_one_gateway() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("b")).unwrap();
    // Without a cache, whose folder has a lock of its own; by its path, and by a link.
    std::os::unix::fs::symlink("../sluice-data/sluice.db", dir.path().join("b/link.db")).unwrap();
    let alone = [&["serve", "--cache-size", "0", "--log-level", "error"], &FREE[..]].concat();
    let elsewhere = ["--data-dir", "b", "--database-url"];
    let (mut first, serving) = serve(dir.path(), &[&FREE[..], &["--cache-size", "0"]].concat());
    let second: [(Vec<&str>, &str); 3] = [
        (vec![], "sluice-data/sluice.db is in use"),
        ([&elsewhere[..], &["sqlite://sluice-data/../sluice-data/sluice.db"]].concat(), "sluice.db is in use"),
        ([&elsewhere[..], &["sqlite://b/link.db"]].concat(), "b/link.db is in use"),
    ];
    for (args, named) in &second {
        let line = failure(&run(dir.path(), &[&alone[..], args].concat()), 1);
        assert!(line.contains(named) && line.contains("stop that one") && line.contains("PostgreSQL"), "{line}");
    }
    // What is meant to run beside a gateway does.
    let (listen, ops) = (serving["listen"].as_str().unwrap(), serving["ops_listen"].as_str().unwrap());
    for args in [&["token", "operator"][..], &["migrate"], &["check", "--listen", listen, "--ops-listen", ops]] {
        let output = run(dir.path(), args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    }
    // Killed, and at once another.
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    let (mut next, _) = serve(dir.path(), &[&FREE[..], &["--cache-size", "0"]].concat());
    // And after an orderly end.
    send("-TERM", &next.0);
    assert_eq!(next.0.wait().unwrap().code(), Some(0));
    serve(dir.path(), &[&FREE[..], &["--cache-size", "0"]].concat());
}

#[test]
fn what_is_kept_is_for_its_owner_alone() {
    for command in [&["demo", "--once", "--dir", "files"][..], &["serve"], &["migrate"]] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("files")).unwrap();
        std::fs::write(dir.path().join("files/a"), "a").unwrap();
        let _gateway = match command {
            ["serve"] => Some(serve(dir.path(), &FREE)),
            _ => {
                let output = run(dir.path(), &[command, &FREE].concat());
                assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
                None
            }
        };
        let data = dir.path().join("sluice-data");
        assert_eq!(mode(&data), 0o700, "{command:?}");
        for kept in std::fs::read_dir(&data).unwrap() {
            let kept = kept.unwrap().path();
            let expected = if kept.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode(&kept), expected, "{command:?}: {}", kept.display());
        }
    }
}

#[test]
fn a_port_that_is_taken_does_not_hide_what_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let (_gateway, serving) = serve(dir.path(), &FREE);
    for (flag, other) in [("--listen", "--ops-listen"), ("--ops-listen", "--listen")] {
        let taken = serving[flag.trim_start_matches("--").replace('-', "_")].as_str().unwrap();
        for (more, held) in [
            (&[][..], "sluice-data/sluice.db is in use by another gateway"),
            (&["--database-url", "sqlite://other.db"], "sluice-data/cache is in use by another process"),
        ] {
            let args = [&["serve", flag, taken, other, "127.0.0.1:0", "--log-level", "error"], more].concat();
            let line = failure(&run(dir.path(), &args), 1);
            assert!(line.contains(&format!("set {flag} ")) && line.contains(held), "{line}");
        }
        let elsewhere = ["serve", flag, taken, other, "127.0.0.1:0", "--data-dir", "b", "--log-level", "error"];
        let line = failure(&run(dir.path(), &elsewhere), 1);
        assert!(!line.contains("in use by another"), "{line}");
    }
}

fn send(signal: &str, process: &Child) {
    let sent = Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_new_secret_is_told_at_each_start_until_an_agent_has_come_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (files, secret) = (dir.path().join("files"), dir.path().join("sluice-data/token.secret"));
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("a"), "a").unwrap();
    let told = || {
        let args = [&["serve", "--log-format", "json", "--cache-size", "0"], &FREE[..]].concat();
        let mut gateway = Gateway(sluice(dir.path(), &args).stderr(Stdio::piped()).spawn().unwrap());
        let mut log = BufReader::new(gateway.0.stderr.take().unwrap())
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
        let mut told = false;
        let serving = log.find(|line| {
            told |= line["message"].as_str().unwrap().starts_with("the token secret is new to this database");
            line["message"] == "serving"
        });
        // Nobody has to read the rest, but somebody has to let it be written.
        std::thread::spawn(move || log.for_each(drop));
        (gateway, serving.unwrap()["public_url"].as_str().unwrap().to_owned(), told)
    };
    let stop = |gateway: &mut Gateway| {
        send("-TERM", &gateway.0);
        assert_eq!(gateway.0.wait().unwrap().code(), Some(0));
    };
    let an_agent_comes = |url: &str| {
        let token = text(&run(dir.path(), &["token", "agent", "--name", "flow"]).stdout);
        let args = ["agent", "files", "--gateway", url, "--token", token.trim()];
        let mut agent = Gateway(sluice(dir.path(), &args).stderr(Stdio::piped()).spawn().unwrap());
        let log = BufReader::new(agent.0.stderr.take().unwrap()).lines();
        assert!(log.map(Result::unwrap).any(|line| line.starts_with("accepted")));
        stop(&mut agent);
    };

    let (mut gateway, url, is_told) = told();
    assert!(!is_told, "a first start has nothing to tell");
    an_agent_comes(&url);
    // A start that is refused makes one too, and so does another command.
    std::fs::remove_file(&secret).unwrap();
    failure(&run(dir.path(), &[&["serve", "--log-level", "error"], &FREE[..]].concat()), 1);
    assert!(secret.exists());
    std::fs::remove_file(&secret).unwrap();
    run(dir.path(), &["token", "operator"]);
    stop(&mut gateway);
    for _ in 0..2 {
        let (mut gateway, _, is_told) = told();
        assert!(is_told);
        stop(&mut gateway);
    }
    let (mut gateway, url, _) = told();
    an_agent_comes(&url);
    stop(&mut gateway);
    assert!(!told().2, "an agent has come with it");
}

#[test]
fn a_second_signal_ends_a_drain_at_once() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut gateway, serving) = serve(dir.path(), &[&FREE[..], &["--shutdown-grace", "10m"]].concat());
        let mut log = BufReader::new(gateway.0.stderr.take().unwrap());
        // A request that has begun keeps the drain waiting.
        let mut request = TcpStream::connect(serving["listen"].as_str().unwrap()).unwrap();
        request.write_all(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n").unwrap();
        send(signal, &gateway.0);
        let draining = log_line(&mut log, "draining");
        assert_eq!((&draining["transfers"], &draining["grace_ms"]), (&0.into(), &600_000.into()));
        assert!(draining["message"].as_str().unwrap().contains("a second signal ends at once"));
        assert!(gateway.0.try_wait().unwrap().is_none(), "it did not drain");
        send(signal, &gateway.0);
        assert_eq!(gateway.0.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn a_demo_ends_soon_when_asked_to_although_somebody_downloads() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/large"), vec![7; 64 << 20]).unwrap();
    let args = [&["demo", "--dir", "files"][..], &FREE].concat();
    let mut demo = Gateway(sluice(dir.path(), &args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut command = String::new();
    BufReader::new(demo.0.stdout.as_mut().unwrap()).read_line(&mut command).unwrap();
    let command = command.strip_prefix("curl -f -H '").unwrap().trim_end();
    let (authorization, rest) = command.split_once("' ").unwrap();
    let url = rest.rsplit('\'').nth(1).unwrap().strip_prefix("http://").unwrap();
    let (host, path) = url.split_once('/').unwrap();
    let mut reader = TcpStream::connect(host).unwrap();
    write!(reader, "GET /{path} HTTP/1.1\r\nHost: {host}\r\n{authorization}\r\n\r\n").unwrap();
    reader.read_exact(&mut [0; 1000]).unwrap();
    let begun = std::time::Instant::now();
    send("-INT", &demo.0);
    assert_eq!(demo.0.wait().unwrap().code(), Some(0));
    // A reader that takes nothing would hold a gateway for thirty seconds.
    assert!(begun.elapsed() < std::time::Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn serve_logs_json_and_stops_on_sigterm_with_exit_code_0() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--log-format", "json"];
    let mut gateway = Gateway(sluice(dir.path(), &args).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(gateway.0.stderr.take().unwrap()).lines().map(|line| {
        let line = line.unwrap();
        serde_json::from_str::<serde_json::Value>(&line).expect(&line)
    });
    let serving = lines.find(|line| line["message"] == "serving").unwrap();
    let public = serving["public_url"].as_str().unwrap().strip_prefix("http://").unwrap();

    let mut request = TcpStream::connect(public).unwrap();
    let head = "GET /v1/chats/hunter2/sets?token=hunter2 HTTP/1.1\r\nHost: hunter2\r\nAuthorization: Bearer hunter2\r\n\
                X-Request-Id: from-the-proxy\r\nConnection: close\r\n\r\n";
    request.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    request.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 401 ") && head.contains("x-request-id: from-the-proxy"), "{head}");
    let line = lines.find(|line| line["message"] == "request").unwrap();
    assert!(!line.to_string().contains("hunter2"), "{line}");
    assert_eq!(line["request_id"], "from-the-proxy");
    assert_eq!(line["route"], "/v1/chats/{chat}/sets");
    assert_eq!((line["status"].as_u64(), line["outcome"].as_str()), (Some(401), Some("complete")));
    assert_eq!(line["size_bytes"], body.len());
    assert!(line["duration_ms"].is_u64() && line["peer"].is_string(), "{line}");

    send("-TERM", &gateway.0);
    assert!(lines.any(|line| line["message"] == "stopped"));
    assert_eq!(gateway.0.wait().unwrap().code(), Some(0));
}
