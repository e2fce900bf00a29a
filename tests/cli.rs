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
        (&["serve", "--public-url", "https://a.example/base"], "--public-url"),
        (&["token", "agent"], "--name"),
        (&["token", "reader", "--principal", "alice"], "--principal"),
        (&["agent", "out"], "--gateway"),
        (&[], "--help"),
    ] {
        let line = failure(&run(dir.path(), args), 2);
        assert!(line.contains(named), "{line}");
    }
    let output = sluice(dir.path(), &["serve"]).env("SLUICE_LISTEN", "nowhere").output().unwrap();
    assert!(failure(&output, 2).contains("--listen"));
}

#[test]
fn a_token_is_the_only_thing_printed() {
    let dir = tempfile::tempdir().unwrap();
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
    let secret = dir.path().join("sluice-data/token.secret");
    assert_eq!(std::fs::metadata(secret).unwrap().permissions().mode() & 0o777, 0o600);
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
    let line = failure(&run(dir.path(), &["serve", "--config", "missing.toml"]), 1);
    assert!(line.contains("missing.toml"), "{line}");
    let line = failure(&run(dir.path(), &["check", "--database-url", "mysql://u:hunter2@h/d"]), 1);
    assert!(line.contains("--database-url") && !line.contains("hunter2"), "{line}");
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
    let output = run(dir.path(), &[&["check"], &data[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    for command in ["migrate", "migrate", "check"] {
        let output = run(dir.path(), &[&[command], &data[..]].concat());
        assert!(output.status.success(), "{command}: {}", text(&output.stderr));
        assert!(dir.path().join(data[1]).join("sluice.db").exists());
    }
    let line = failure(&run(dir.path(), &["migrate", "--data-dir", "/proc/sluice"]), 1);
    assert!(line.contains("--data-dir"), "{line}");
    std::fs::write(dir.path().join("other.db"), "this is not a database, but it is long enough to be looked at")
        .unwrap();
    let line = failure(&run(dir.path(), &["check", "--database-url", "sqlite://other.db"]), 1);
    assert!(line.contains("other.db"), "{line}");
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
    }
}

/// A gateway that is stopped when the test is over, however it ends.
struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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

    let killed = Command::new("kill").args(["-TERM", &gateway.0.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert!(lines.any(|line| line["message"] == "stopped"));
    assert_eq!(gateway.0.wait().unwrap().code(), Some(0));
}
