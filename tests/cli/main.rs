//! The built binary, as people run it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

mod serving;

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

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
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
