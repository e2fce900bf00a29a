//! A real Prometheus on a fresh gateway: under its first transfer no panel is empty, and no alert is due.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use process::{Gateway, PATIENCE, Process, get, tool};
use serde_json::Value;

/// Prometheus with the alert rules, looking at one gateway every second.
struct Prometheus {
    address: SocketAddr,
    _process: Process,
    _dir: tempfile::TempDir,
}

impl Prometheus {
    fn watch(program: &Path, gateway: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards/*.yml");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: ['{}']\n\
             scrape_configs: [{{ job_name: sluice, static_configs: [{{ targets: ['{gateway}'] }}] }}]\n",
            rules.display()
        );
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        // Whoever takes the port in between makes this fail, and nothing pass.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new(program);
        command.current_dir(dir.path()).stdin(Stdio::null()).args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            &format!("--web.listen-address={address}"),
        ]);
        let mut process = Process::spawn(command);
        process.wait_for("ready server", |line| line.contains("ready to receive web requests").then_some(()));
        Self { address, _process: process, _dir: dir }
    }

    fn ask(&self, path: &str) -> Value {
        let (status, body) = get(self.address, path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str::<Value>(&body).unwrap()["data"].take()
    }

    /// The values of an expression now.
    fn values(&self, expression: &str) -> Vec<f64> {
        let escaped: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let data = self.ask(&format!("/api/v1/query?query={escaped}"));
        let value = |sample: &Value| sample["value"][1].as_str().unwrap().parse::<f64>().unwrap();
        data["result"].as_array().unwrap().iter().map(value).collect()
    }
}

/// Asks again until it is so: what another process makes of its samples cannot be waited for otherwise.
fn until<T: std::fmt::Debug + Default + PartialEq>(what: &str, ask: impl Fn() -> T) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = ask();
        if left == T::default() {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {left:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Each panel's expressions, as Grafana would send them.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(include_str!("../dashboards/sluice.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let each = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap();
        targets.iter().map(|target| (panel["title"].as_str().unwrap(), target["expr"].as_str().unwrap()))
    });
    each.map(|(title, expression)| {
        let expression =
            expression.replace("$__rate_interval", "1m").replace("$__range", "1h").replace("$job", "sluice");
        (title.to_owned(), expression)
    })
    .collect()
}

#[test]
fn no_panel_is_empty_and_no_alert_is_due_on_a_fresh_gateway() {
    let Some(program) = tool("prometheus") else { return };
    let gateway = Gateway::start();
    gateway.open_chat();
    let prometheus = Prometheus::watch(&program, gateway.ops);
    until("samples from before the transfer", || 2.0 > prometheus.values("sum(count_over_time(up[1h]))").iter().sum());

    let served = tempfile::tempdir().unwrap();
    fs::write(served.path().join("report.txt"), vec![b'x'; 1 << 20]).unwrap();
    let (_agent, set) = gateway.agent(served.path(), gateway.address);
    let url = gateway.file_url(&set, "report.txt");
    let path = url.strip_prefix(&format!("http://{}", gateway.address)).unwrap();
    let (status, body) = process::request(gateway.address, "GET", path, &gateway.reader_token(), &Value::Null);
    assert_eq!((status, body.len()), (200, 1 << 20));

    let panels = panels();
    until("empty panels", || {
        let empty = |expression: &str| prometheus.values(expression).iter().all(|value| value.is_nan());
        panels.iter().filter(|(_, expression)| empty(expression)).cloned().collect::<Vec<_>>()
    });
    until("groups of rules that were not evaluated", || {
        let groups = prometheus.ask("/api/v1/rules");
        let groups = groups["groups"].as_array().unwrap().clone();
        assert!(!groups.is_empty());
        let late = |group: &Value| group["lastEvaluation"].as_str().is_none_or(|time| time.starts_with("0001"));
        groups.iter().filter(|group| late(group)).count()
    });
    let rules = prometheus.ask("/api/v1/rules");
    for rule in rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap()) {
        assert_eq!(rule["health"], "ok", "{rule}");
        // Neither firing nor on its way to it.
        assert_eq!(rule["state"], "inactive", "{rule}");
    }
    assert_eq!(prometheus.values("sum(sluice_transfers_ended_total{outcome=\"complete\"})"), [1.0]);
}
