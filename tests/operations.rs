//! What is written for operators, held to what the gateway does: dashboards, alerts, the compose file, the README.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod process;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use process::{AGENT, CHAT, Gateway, Process, SESSION, exchange, request, sluice};
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).expect(file)
}

/// Every word of `text` that begins with `prefix`.
fn words<'a>(text: &'a str, prefix: &'a str) -> BTreeSet<&'a str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with(prefix)).collect()
}

fn files(folder: &str, extension: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.filter(|path| path.extension().is_some_and(|e| e == extension));
    found.map(|path| format!("{folder}/{}", path.file_name().unwrap().to_str().unwrap())).collect()
}

/// A setting as `sluice serve --help` tells it.
struct Setting {
    flag: String,
    variable: String,
    meaning: String,
}

fn settings() -> Vec<Setting> {
    let output = sluice(&["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let mut settings: Vec<Setting> = Vec::new();
    for line in help.lines().map(str::trim) {
        if line.starts_with("--") {
            settings.push(Setting { flag: line.to_owned(), variable: String::new(), meaning: String::new() });
        } else if let Some(setting) = settings.last_mut() {
            if let Some(variable) = line.strip_prefix("[env: ") {
                setting.variable = variable.trim_end_matches(']').trim_end_matches('=').to_owned();
            } else if setting.meaning.is_empty() {
                setting.meaning = line.to_owned();
            }
        }
    }
    settings.retain(|setting| !setting.variable.is_empty());
    assert!(settings.len() > 15, "{help}");
    settings
}

#[test]
fn dashboards_can_be_read_and_ask_for_something() {
    let dashboards = files("dashboards", "json");
    assert!(!dashboards.is_empty());
    for file in dashboards {
        let dashboard: Value = serde_json::from_str(&read(&file)).expect(&file);
        let panels = dashboard["panels"].as_array().unwrap();
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len(), "{file}: two panels with one id");
        for panel in panels {
            let targets = panel["targets"].as_array().unwrap();
            let named = targets.iter().all(|target| !words(target["expr"].as_str().unwrap(), "sluice_").is_empty());
            assert!(named && !targets.is_empty(), "{file}: {}", panel["title"]);
        }
    }
}

#[test]
fn everything_that_is_watched_exists_on_a_fresh_gateway() {
    let gateway = Gateway::start();
    let metrics = gateway.ops("/metrics");
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    let exist: BTreeSet<&str> = samples.filter_map(|line| line.split(['{', ' ']).next()).collect();
    for file in [files("dashboards", "json"), files("dashboards", "yml")].concat() {
        let text = read(&file);
        let watched = words(&text, "sluice_");
        assert!(!watched.is_empty(), "{file}");
        let missing: Vec<_> = watched.difference(&exist).collect();
        assert!(missing.is_empty(), "{file} watches {missing:?}");
    }
    // And whatever exists is on a dashboard, but for the sum and count beside a histogram's buckets.
    let shown = files("dashboards", "json").iter().map(|file| read(file)).collect::<String>();
    let shown = words(&shown, "sluice_");
    let hidden: Vec<_> = exist
        .iter()
        .filter(|name| !shown.contains(*name) && !name.ends_with("_seconds_sum") && !name.ends_with("_seconds_count"))
        .collect();
    assert_eq!(hidden, [&"sluice_reads_started_total", &"sluice_transfers_started_total"]);
    // A label that an alert asks for is one that there is. An answer with status 500 has no place here.
    for alert in files("dashboards", "yml").iter().map(|file| read(file)) {
        for (_, rest) in alert.match_indices("outcome=").map(|(at, word)| alert.split_at(at + word.len())) {
            for outcome in rest.trim_start_matches('~').split('"').nth(1).unwrap().split('|') {
                assert!(metrics.contains(&format!("outcome=\"{outcome}\"")), "no outcome is {outcome}");
            }
        }
    }
}

#[test]
fn a_log_in_json_has_numbers_where_numbers_belong() {
    let gateway = Gateway::start_with(&["--log-level", "info,sluice=trace"]);
    gateway.open_chat();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "text").unwrap();
    let (agent, set) = gateway.agent(folder.path(), gateway.address);
    let (path, reader) = (format!("/v1/chats/{CHAT}/sets/{set}/files/a.txt"), gateway.reader_token());
    assert_eq!(request(gateway.address, "GET", &path, &reader, &Value::Null), (200, "text".to_owned()));
    agent.stop();
    let lines: Vec<Value> = gateway.stop().iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        for (field, value) in line.as_object().unwrap() {
            let Some(text) = value.as_str().filter(|_| !["message", "timestamp"].contains(&field.as_str())) else {
                continue;
            };
            let is_other = serde_json::from_str::<Value>(text).is_ok();
            assert!(!is_other && !text.starts_with(['[', '{', '"']), "{field} is text: {line}");
        }
    }
    let of = |message: &str| lines.iter().find(|line| line["message"] == message).expect(message);
    assert!(of("a transfer ended")["transfer"].is_u64());
    let (opened, ended) = (of("a session opened"), of("an agent's connection ended"));
    assert!(opened["connection"].is_u64() && opened["connection"] == ended["connection"]);
    assert_eq!((&opened["agent"], &ended["agent"]), (&AGENT.into(), &AGENT.into()));
}

#[test]
fn a_request_can_be_followed_in_the_log() {
    let gateway = Gateway::start();
    gateway.open_chat();
    let folder = tempfile::tempdir().unwrap();
    for name in ["here.txt", "away.txt"] {
        fs::write(folder.path().join(name), name).unwrap();
    }
    let (agent, set) = gateway.agent(folder.path(), gateway.address);
    let (path, reader) = (format!("/v1/chats/{CHAT}/sets/{set}/files"), gateway.reader_token());
    let get = |name: &str| {
        format!(
            "GET {path}/{name} HTTP/1.1\r\nHost: sluice\r\nAuthorization: Bearer {reader}\r\nX-Request-Id: {name}\r\n\
             Connection: close\r\n\r\n"
        )
    };
    assert_eq!(exchange(gateway.address, &get("here.txt")), (200, "here.txt".to_owned()));
    agent.stop();
    // One that its reader gives up while the agent is waited for.
    let mut impatient = TcpStream::connect(gateway.address).unwrap();
    impatient.write_all(get("away.txt").as_bytes()).unwrap();
    let until = |text: &str| {
        let is_so = || gateway.ops("/metrics").lines().any(|line| line.contains(text));
        let seen = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            is_so()
        });
        assert!(seen, "{text}");
    };
    until("sluice_transfers_running 1");
    drop(impatient);
    until("status=\"none\"} 1");
    let lines: Vec<Value> = gateway.stop().iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    for (name, status, outcomes) in [
        ("here.txt", Value::from(200), ["complete", "complete"]),
        ("away.txt", Value::Null, ["reader_left", "abandoned"]),
    ] {
        let of = |line: &&Value| line["request_id"] == name || line["span"]["request_id"] == name;
        let told: Vec<_> = lines.iter().filter(of).map(|line| (&line["message"], &line["outcome"])).collect();
        let expected = ["a transfer ended", "request"].map(Value::from);
        let outcomes = outcomes.map(Value::from);
        assert_eq!(told, expected.iter().zip(&outcomes).collect::<Vec<_>>(), "{name}");
        assert_eq!(lines.iter().rfind(of).unwrap()["status"], status, "{name}");
    }
}

#[test]
fn a_place_that_is_closed_is_told_once_to_whoever_can_open_it() {
    for (args, is_closed) in [(&[][..], true), (&["--allow-hosts", "127.0.0.1"], false)] {
        let gateway = Gateway::start_with(args);
        gateway.open_chat();
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.txt", "b.txt"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let (url, token) = (format!("http://{}", gateway.address), gateway.agent_token());
        let folder = folder.path().to_str().unwrap();
        let args = ["agent", folder, "--gateway", &url, "--token", &token, "--session", SESSION];
        let mut agent = Process::spawn(sluice(&[&args[..], &["--serve", "127.0.0.1:0"]].concat()));
        let set = agent.wait_for("accepted set", |line| line.strip_prefix("accepted sha256:").map(str::to_owned));
        let reader = gateway.reader_token();
        for name in ["a.txt", "b.txt"] {
            let path = format!("/v1/chats/{CHAT}/sets/{set}/files/{name}");
            assert_eq!(request(gateway.address, "GET", &path, &reader, &Value::Null), (200, name.to_owned()));
        }
        let told = |lines: &[String], text: &str| lines.iter().filter(|line| line.contains(text)).count();
        let lines = agent.stop();
        assert_eq!(told(&lines, "--allow-hosts"), usize::from(is_closed), "{lines:#?}");
        let lines = gateway.stop();
        let warned = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let warned: Vec<_> = warned.filter(|line| line["level"] == "WARN").collect();
        assert_eq!(warned.len(), usize::from(is_closed), "{warned:#?}");
        if let Some(line) = warned.first() {
            assert_eq!((&line["agent"], &line["kind"]), (&"agent:flow".into(), &"https".into()));
            assert!(line["refusal"].as_str().unwrap().contains("--allow-hosts"), "{line}");
        }
    }
}

#[test]
fn the_compose_file_names_what_there_is() {
    let compose = read("docker-compose.yml");
    let known = settings();
    let known: BTreeSet<_> = known.iter().map(|setting| setting.variable.as_str()).collect();
    for text in [&compose, &read("Dockerfile")] {
        let named = words(text, "SLUICE_");
        assert!(!named.is_empty());
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{unknown:?} are no settings");
    }
    let mounts: Vec<_> = compose.lines().filter_map(|line| line.trim().strip_prefix("- ./")).collect();
    assert!(mounts.len() >= 4);
    for mount in mounts {
        let path = mount.split(':').next().unwrap();
        assert!(root().join(path).exists(), "{path} does not exist");
    }
    // Prometheus asks for the operator's listener by a name that the gateway was told, and nobody else can.
    assert!(compose.contains("SLUICE_OPS_ALLOW_HOST: gateway\n"));
    assert!(read("deploy/prometheus.yml").contains("- targets: [\"gateway:9090\"]"));
    assert!(!compose.contains(":9090"), "the operator's listener is published");
    let published = compose.lines().filter_map(|line| line.trim().strip_prefix("- \"")).collect::<Vec<_>>();
    assert!(published.iter().all(|port| port.starts_with("127.0.0.1:")), "{published:?}");
}

#[test]
fn the_readme_has_every_setting_as_it_is() {
    let mut table = "| flag | variable | meaning |\n|---|---|---|\n".to_owned();
    for Setting { flag, variable, meaning } in settings() {
        table += &format!("| `{flag}` | `{variable}` | {meaning} |\n");
    }
    assert!(read("README.md").contains(&table), "README.md, Settings: the table is to be\n\n{table}");
}

#[test]
fn the_image_is_built_with_the_toolchain_that_the_package_asks_for() {
    let manifest = read("Cargo.toml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"')).unwrap();
    assert!(read("Dockerfile").starts_with(&format!("FROM rust:{version}-")));
}
