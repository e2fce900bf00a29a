//! What a row is measured on: a folder in memory, nginx, a gateway and its agent.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use crate::client::Connection;
use crate::process::Process;

/// How long a process may take to get ready; an agent hashes its folder first.
const READY: Duration = Duration::from_secs(60);
const BLOCK: usize = 1 << 20;
const CHAT: &str = "bench";
const READER: &str = "user:bench";

/// The temporary folder, and what the whole run is about.
#[derive(Debug)]
pub struct Place {
    dir: PathBuf,
    keep: bool,
    /// The binary that is measured.
    pub sluice: PathBuf,
    nginx: Option<&'static str>,
    /// Size of the file that is read.
    pub file_bytes: u64,
    /// Whether the run only shows that everything works.
    pub quick: bool,
}

impl Place {
    /// A new folder, in memory where there is such a file system, with the file to be read. `sluice` is the binary
    /// to measure, in place of the one that cargo built for the bench.
    pub fn new(sluice: Option<&Path>, quick: bool, keep: bool) -> anyhow::Result<Self> {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("sluice-bench-").tempdir_in(root)?.keep();
        let nginx = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"];
        let nginx = nginx.into_iter().find(|path| Path::new(path).exists());
        let sluice = sluice.unwrap_or(Path::new(env!("CARGO_BIN_EXE_sluice"))).canonicalize()?;
        let place = Self { dir, keep, sluice, nginx, file_bytes: if quick { 256 << 20 } else { 1 << 30 }, quick };
        place.folder("shared", place.file_bytes)?;
        Ok(place)
    }

    /// Where everything of this run is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The nginx that is installed.
    pub fn nginx(&self) -> Option<&'static str> {
        self.nginx
    }

    /// `full` runs what a row is about, `quick` a small part of it.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// A folder to be served, with one file of `bytes` bytes.
    pub fn folder(&self, name: &str, bytes: u64) -> anyhow::Result<PathBuf> {
        let folder = self.dir.join(name);
        fs::create_dir_all(&folder)?;
        let mut file = File::create(folder.join("data.bin"))?;
        let mut random = SmallRng::seed_from_u64(bytes);
        let mut block = vec![0; BLOCK];
        for _ in 0..bytes / BLOCK as u64 {
            random.fill_bytes(&mut block);
            file.write_all(&block).context("no room for the file that is to be read")?;
        }
        Ok(folder)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("kept {}", self.dir.display());
        } else {
            // Nothing is left to do about a folder that cannot be removed.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// nginx with one worker, serving the same file from the same folder by `sendfile`.
#[derive(Debug)]
pub struct Nginx {
    /// The process, which is its own worker.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Nginx {
    /// The path of the file.
    pub const PATH: &str = "/data.bin";

    /// Starts nginx. `None` where it is not installed.
    pub fn start(place: &Place) -> anyhow::Result<Option<Self>> {
        let Some(program) = place.nginx else { return Ok(None) };
        let address = free_address()?;
        let dir = place.dir.join("nginx");
        fs::create_dir_all(&dir)?;
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("  {kind}_temp_path {}/{kind};\n", dir.display()))
            .concat();
        let config = format!(
            "daemon off;\nmaster_process off;\npid {dir}/pid;\nerror_log stderr;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n{temporary}  access_log off;\n  sendfile on;\n  tcp_nodelay on;\n  keepalive_requests 1000000;\n\
             \x20 server {{ listen {address}; root {root}; }}\n}}\n",
            dir = dir.display(),
            root = place.dir.join("shared").display(),
        );
        fs::write(dir.join("nginx.conf"), config)?;
        let mut command = Command::new(program);
        command.arg("-e").arg("stderr").arg("-p").arg(&dir).arg("-c").arg(dir.join("nginx.conf"));
        let process = Process::start(&mut command, dir.join("log"))?;
        let deadline = Instant::now() + READY;
        while TcpStream::connect(address).is_err() {
            ensure!(Instant::now() < deadline, "nginx does not listen: see its log with --keep");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(Self { process, address }))
    }
}

/// A gateway as `sluice serve` starts it, with its defaults.
#[derive(Debug)]
pub struct Gateway {
    /// Its process.
    pub process: Process,
    /// Where agents and readers find it.
    pub address: SocketAddr,
    /// Where its metrics are.
    operators: SocketAddr,
    sluice: Sluice,
    /// What a reader shows.
    pub reader_token: String,
}

impl Gateway {
    /// Starts a gateway with a chat, in a folder named after the row. It keeps no bytes: what is measured is the relay.
    pub fn start(place: &Place, row: &str) -> anyhow::Result<Self> {
        Self::with_cache(place, row, "0")
    }

    /// The same with a cache of this size.
    pub fn with_cache(place: &Place, row: &str, size: &str) -> anyhow::Result<Self> {
        let dir = place.dir.join(row);
        fs::create_dir_all(&dir)?;
        let sluice = Sluice { program: place.sluice.clone(), dir };
        let mut command = sluice.command(&["serve", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]);
        command.args(["--log-format", "json"]).env("SLUICE_CACHE_SIZE", size);
        let mut process = Process::start(&mut command, sluice.dir.join("gateway.log"))?;
        let (address, operators) = process.await_line(READY, |line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let address = |name| line.get(name)?.as_str()?.parse().ok();
            Some((address("listen")?, address("ops_listen")?))
        })?;
        let reader_token = sluice.token(&["reader", "--principal", READER])?;
        let gateway = Self { process, address, operators, sluice, reader_token };
        gateway.operate("PUT", &format!("/v1/chats/{CHAT}"), &format!("{{\"participants\":[\"{READER}\"]}}"))?;
        Ok(gateway)
    }

    /// Binds a session of an agent that is still to come to the chat: its name is the session's too.
    pub fn expect_agent(&self, name: &str) -> anyhow::Result<String> {
        let body = format!("{{\"session_id\":\"{name}\",\"chat\":\"{CHAT}\",\"agent\":\"agent:{name}\"}}");
        self.operate("POST", "/v1/sessions", &body)?;
        self.sluice.token(&["agent", "--name", name])
    }

    /// Starts an agent with a data connection that serves `folder`, and waits until its file can be read.
    pub fn start_agent(&self, name: &str, folder: &Path) -> anyhow::Result<Agent> {
        let token = self.expect_agent(name)?;
        let mut command = self.sluice.command(&["agent", "--data", "--session", name, "--gateway"]);
        command.arg(format!("http://{}", self.address)).arg(folder).env("SLUICE_TOKEN", token);
        let mut process = Process::start(&mut command, self.sluice.dir.join(format!("{name}.log")))?;
        let set = process.await_line(READY, |line| line.strip_prefix("accepted sha256:").map(str::to_owned))?;
        Ok(Agent { process, path: file_path(&set) })
    }

    /// A reader's connection.
    pub fn connect(&self) -> anyhow::Result<Connection> {
        Connection::open(self.address, Some(&self.reader_token))
    }

    /// Bytes that came from agents so far.
    pub fn received_bytes(&self) -> anyhow::Result<f64> {
        let mut connection = Connection::open(self.operators, None)?;
        connection.get("/metrics", None)?;
        let mut metrics = Vec::new();
        connection.drain(|bytes| metrics.extend_from_slice(bytes))?;
        let metrics = String::from_utf8_lossy(&metrics);
        let received = metrics.lines().find_map(|line| line.strip_prefix("sluice_received_bytes_total "));
        received.context("there is no such metric")?.parse().context("a metric that is no number")
    }

    fn operate(&self, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
        let operator = self.sluice.token(&["operator"])?;
        Connection::open(self.address, Some(&operator))?.send_json(method, path, body)
    }
}

/// An agent as `sluice agent` starts it.
#[derive(Debug)]
pub struct Agent {
    /// Its process.
    pub process: Process,
    /// The path of its file at the gateway.
    pub path: String,
}

/// The path at the gateway of the one file of an agent's set.
pub fn file_path(set: &str) -> String {
    format!("/v1/chats/{CHAT}/sets/{set}/files/data.bin")
}

/// The binary in a folder of its own, without this environment's settings.
#[derive(Debug)]
struct Sluice {
    program: PathBuf,
    dir: PathBuf,
}

impl Sluice {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(&self.dir).env_clear();
        command
    }

    fn token(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.command(&["token"]).args(args).output()?;
        if !output.status.success() {
            bail!("sluice token: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }
}

/// An address that was free a moment ago.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
