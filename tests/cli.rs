//! The built binary, as people run it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// `sluice` without this environment's own settings, in a directory of its own.
fn sluice(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(args).current_dir(dir).env_clear();
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    sluice(dir, args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// One line on standard error, nothing on standard output.
fn failure(output: &Output, code: i32) -> String {
    let line = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert!(output.stdout.is_empty());
    assert!(line.starts_with("error: ") && line.lines().count() == 1, "{line}");
    line
}

#[test]
fn every_command_has_help() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["--help"][..],
        &["serve", "--help"],
        &["demo", "--help"],
        &["agent", "--help"],
        &["token", "--help"],
        &["token", "agent", "--help"],
        &["token", "reader", "--help"],
        &["token", "operator", "--help"],
        &["migrate", "--help"],
        &["check", "--help"],
        &["--version"],
    ] {
        let output = run(dir.path(), args);
        assert!(output.status.success(), "{args:?}");
        assert!(text(&output.stdout).contains("sluice") && output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn help_never_shows_a_secret_of_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    for (args, variable) in [(["serve", "--help"], "SLUICE_DATABASE_URL"), (["agent", "--help"], "SLUICE_TOKEN")] {
        let output = sluice(dir.path(), &args).env(variable, "postgres://u:hunter2@h/d").output().unwrap();
        assert!(output.status.success());
        assert!(!text(&output.stdout).contains("hunter2"));
    }
}

#[test]
fn what_is_misunderstood_is_one_line_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    for (args, named) in [
        (&["serve", "--no-such-flag"][..], "--no-such-flag"),
        (&["serve", "--resume-window", "90"], "--resume-window"),
        (&["serve", "--listen", "localhost:8080"], "127.0.0.1:8080"),
        (&["serve", "--public-url", "https://a.example/base"], "--public-url"),
        (&["token", "agent"], "--name"),
        (&["token", "reader", "--principal", "alice"], "--principal"),
        (&["agent", "out"], "--gateway"),
        (&[], "--help"),
    ] {
        let line = failure(&run(dir.path(), args), 2);
        assert!(line.contains(named), "{line}");
    }
    // A value's own source is named.
    for (variable, flag) in
        [("SLUICE_LISTEN", "--listen"), ("SLUICE_LINKS", "--links"), ("SLUICE_CACHE_SIZE", "--cache-size")]
    {
        let output = sluice(dir.path(), &["serve"]).env(variable, "nowhere").output().unwrap();
        let line = failure(&output, 2);
        assert!(line.contains(flag) && line.contains(variable), "{line}");
        let output = sluice(dir.path(), &["serve", flag, "x"]).env(variable, "nowhere").output().unwrap();
        assert!(!failure(&output, 2).contains(variable));
    }
}

#[test]
fn a_token_is_the_only_thing_printed() {
    let dir = tempfile::tempdir().unwrap();
    // One that was not there is made, and that is told beside the token.
    let secret = dir.path().join("sluice-data/token.secret");
    let made = run(dir.path(), &["token", "operator"]);
    let note = text(&made.stderr);
    assert!(made.status.success() && note.starts_with("note: ") && note.lines().count() == 1, "{note}");
    assert!(note.contains(secret.canonicalize().unwrap().to_str().unwrap()) && note.contains("--data-dir"), "{note}");
    assert_eq!(text(&made.stdout).lines().count(), 1);
    // Nor is it told once only: no gateway knows it yet.
    let again = run(dir.path(), &["token", "operator"]);
    assert!(text(&again.stderr).starts_with("note: no gateway has started with this token secret yet: "));
    drop(serve(dir.path(), &FREE));
    for args in [
        &["token", "agent", "--name", "flow", "--owner", "user:alice"][..],
        &["token", "reader", "--principal", "user:alice", "--chat", "c1", "--chat", "c2", "--ttl", "2m"],
        &["token", "operator"],
    ] {
        let output = run(dir.path(), args);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
        let printed = text(&output.stdout);
        let token = printed.strip_suffix('\n').unwrap();
        assert_eq!(token.split('.').count(), 3, "{token}");
        assert!(!token.contains(char::is_whitespace), "{token}");
    }
    assert_eq!(mode(&secret), 0o600);
}

#[test]
fn a_token_that_would_not_work_is_not_printed() {
    let dir = tempfile::tempdir().unwrap();
    failure(&run(dir.path(), &["token", "reader", "--principal", "*"]), 1);
    let id = "x".repeat(600);
    failure(&run(dir.path(), &["token", "agent", "--name", "flow", "--id", &id]), 1);
    std::fs::write(dir.path().join("short"), "secret").unwrap();
    let line = failure(&run(dir.path(), &["token", "operator", "--token-secret-file", "short"]), 1);
    assert!(line.contains("short"), "{line}");
}

#[test]
fn a_secret_that_everyone_can_read_is_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("open.secret");
    std::fs::write(&secret, "x".repeat(40)).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = run(dir.path(), &["token", "operator", "--token-secret-file", "open.secret"]);
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("chmod 600"));
    assert_eq!(text(&output.stdout).lines().count(), 1);
}

#[test]
fn settings_that_cannot_work_are_one_line_and_exit_code_1() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("sluice.toml"), "listen = \"127.0.0.1:0\"\nlisten-on = 1\n").unwrap();
    let line = failure(&run(dir.path(), &["serve", "--config", "sluice.toml"]), 1);
    assert!(line.contains("line 2") && line.contains("listen-on"), "{line}");
    for key in ["cache_size", "SLUICE_CACHE_SIZE", "Cache-Size"] {
        std::fs::write(dir.path().join("sluice.toml"), format!("{key} = \"1GiB\"\n")).unwrap();
        let line = failure(&run(dir.path(), &["serve", "--config", "sluice.toml"]), 1);
        assert!(line.contains(&format!("no setting {key} (write cache-size; see ")), "{line}");
    }
    let line = failure(&run(dir.path(), &["serve", "--config", "missing.toml"]), 1);
    assert!(line.contains("missing.toml"), "{line}");
    let line = failure(&run(dir.path(), &["check", "--database-url", "mysql://u:hunter2@h/d"]), 1);
    assert!(line.contains("--database-url or SLUICE_DATABASE_URL") && !line.contains("hunter2"), "{line}");
}

#[test]
fn an_agent_that_cannot_work_says_so_once_and_ends_with_exit_code_1() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), "a").unwrap();
    let gateway = ["--gateway", "http://127.0.0.1:1", "--token", "t", "--name", "flow"];
    for (args, named) in [
        (&["--gateway", "ftp://a.example", "--token", "t", "--name", "flow"][..], "is not a scheme to dial"),
        (&[&gateway[..], &["--serve", "0.0.0.0:0"]].concat(), "--serve-url"),
        (
            &[&gateway[..], &["--serve", "127.0.0.1:0", "--serve-url", "http://a.example"]].concat(),
            "is an https URL (http only to loopback)",
        ),
    ] {
        let line = failure(&run(dir.path(), &[&["agent", "."], args].concat()), 1);
        assert_eq!(line.matches(named).count(), 1, "{line}");
    }
}

#[test]
fn check_changes_nothing_and_migrate_makes_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let data = ["--data-dir", "a:b c?d%20#"];
    let check = [&["check"], &data[..], &FREE].concat();
    let output = run(dir.path(), &check);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).ends_with("the settings are good\n"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    for (args, told) in [
        (&[&["migrate"], &data[..]].concat(), "applied migration 1: "),
        (&[&["migrate"], &data[..]].concat(), "nothing to do: "),
        (&check, "sluice.db is up to date"),
    ] {
        let output = run(dir.path(), args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains(told), "{}", text(&output.stdout));
        assert!(dir.path().join(data[1]).join("sluice.db").exists());
    }
    let line = failure(&run(dir.path(), &["migrate", "--data-dir", "/proc/sluice"]), 1);
    assert!(line.contains("--data-dir"), "{line}");
    std::fs::write(dir.path().join("other.db"), "this is not a database, but it is long enough to be looked at")
        .unwrap();
    let line = failure(&run(dir.path(), &["check", "--database-url", "sqlite://other.db"]), 1);
    assert!(line.contains("other.db"), "{line}");
    let line = failure(&run(dir.path(), &["check", "--data-dir", "/proc/sluice/data"]), 1);
    assert!(line.contains("/proc/sluice/data") && line.contains("--data-dir"), "{line}");
}

/// Ports that nobody else has.
const FREE: [&str; 4] = ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"];

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

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
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("sluice.toml"), "token-secret-file = \"from-file\"\n").unwrap();
    // Too short, so that each is refused by its name.
    for name in ["from-file", "from-environment", "from-flag"] {
        std::fs::write(dir.path().join(name), "short").unwrap();
    }
    let refused = |flags: &[&str], environment: &[(&str, &str)]| {
        let mut command = sluice(dir.path(), &[&["check", "--config", "sluice.toml"], flags].concat());
        failure(&command.envs(environment.iter().copied()).output().unwrap(), 1)
    };
    let environment = [("SLUICE_TOKEN_SECRET_FILE", "from-environment")];
    assert!(refused(&[], &[]).contains("from-file"));
    assert!(refused(&[], &environment).contains("from-environment"));
    assert!(refused(&["--token-secret-file", "from-flag"], &environment).contains("from-flag"));
}

#[test]
fn a_port_that_is_taken_names_its_setting() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, other) in [("--listen", "--ops-listen"), ("--ops-listen", "--listen")] {
        let line =
            failure(&run(dir.path(), &["serve", flag, &address, other, "127.0.0.1:0", "--log-level", "error"]), 1);
        assert!(line.contains(&address) && line.contains(&format!("set {flag} ")), "{line}");
        assert_eq!(line.matches("os error").count(), 1, "{line}");
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

#[test]
fn what_is_wrong_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), "a").unwrap();
    for args in [
        &["agent", ".", "--gateway", "nonsense", "--token", "t", "--name", "flow"][..],
        &["agent", "missing", "--gateway", "http://127.0.0.1:1", "--token", "t", "--name", "flow"],
        &["agent", ".", "--gateway", "http://127.0.0.1:1", "--token", "t"],
        &["token", "operator", "--token-secret-file", "a/b"],
        &["token", "operator", "--token-secret-file", "a"],
        &["serve", "--data-dir", "a", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--log-level", "off"],
        &["check", "--database-url", "sqlite://missing/x.db", "--listen", "127.0.0.1:0"],
        &["check", "--config", "missing"],
    ] {
        let line = failure(&run(dir.path(), args), 1);
        let told: Vec<_> = line.split(": ").map(str::trim).collect();
        for (at, part) in told.iter().enumerate() {
            assert!(!told[at + 1..].contains(part), "{part:?} is told twice: {line}");
        }
        assert!(line.matches("os error").count() <= 1, "{line}");
    }
    let line = failure(&run(dir.path(), &["agent", ".", "--gateway", "http://127.0.0.1:1", "--token", "t"]), 1);
    assert!(line.contains("check that it is an agent's"), "{line}");
}

/// A gateway that is stopped when the test is over, however it ends.
struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A gateway in `dir` that logs JSON, once it serves, and the line that says so.
fn serve(dir: &Path, args: &[&str]) -> (Gateway, serde_json::Value) {
    let args = [&["serve", "--log-format", "json"], args].concat();
    let mut gateway = Gateway(sluice(dir, &args).stderr(Stdio::piped()).spawn().unwrap());
    let serving = log_line(&mut BufReader::new(gateway.0.stderr.as_mut().unwrap()), "serving");
    (gateway, serving)
}

/// The next line with this message of a log in JSON.
fn log_line(log: &mut impl std::io::BufRead, message: &str) -> serde_json::Value {
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
    lines.into_iter().find(|line| line["message"].as_str().is_some_and(|told| told.starts_with(message))).unwrap()
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
