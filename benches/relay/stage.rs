//! What a row is measured on: a folder in memory, a gateway and its agent.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use sluice::clock::Clock;
use sluice::identity::{Identity, Tokens};
use sluice::protocol::Principal;

use crate::client::Connection;
use crate::machine;
use crate::process::Process;

/// How long a process may take to get ready; an agent hashes its folder first.
pub const READY: Duration = Duration::from_secs(60);
const BLOCK: usize = 1 << 20;
const CHAT: &str = "bench";
const READER: &str = "user:bench";
/// The setting of a gateway that keeps no bytes.
pub const NO_CACHE: (&str, &str) = ("SLUICE_CACHE_SIZE", "0");

/// The temporary folder, and what the whole run is about.
#[derive(Debug)]
pub struct Place {
    dir: PathBuf,
    keep: bool,
    /// The binary that is measured.
    pub sluice: PathBuf,
    nginx: Option<PathBuf>,
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
        let sluice = sluice.unwrap_or(Path::new(env!("CARGO_BIN_EXE_sluice"))).canonicalize()?;
        let place = Self {
            dir,
            keep,
            sluice,
            nginx: machine::find("nginx"),
            file_bytes: if quick { 256 << 20 } else { 1 << 30 },
            quick,
        };
        place.folder("shared", place.file_bytes)?;
        Ok(place)
    }

    /// Where everything of this run is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The nginx that is installed.
    pub fn nginx(&self) -> Option<&Path> {
        self.nginx.as_deref()
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
    settings: &'static [(&'static str, &'static str)],
    /// What a reader shows.
    pub reader_token: String,
}

impl Gateway {
    /// Starts a gateway with a chat, in a folder named after the row. It keeps no bytes: what is measured is the relay.
    pub fn start(place: &Place, row: &str) -> anyhow::Result<Self> {
        Self::with_settings(place, row, &[NO_CACHE])
    }

    /// The same, keeping bytes.
    pub fn with_cache(place: &Place, row: &str) -> anyhow::Result<Self> {
        Self::with_settings(place, row, &[("SLUICE_CACHE_SIZE", "8GiB")])
    }

    /// The same with these settings, as its environment.
    pub fn with_settings(
        place: &Place,
        row: &str,
        settings: &'static [(&'static str, &'static str)],
    ) -> anyhow::Result<Self> {
        let dir = place.dir.join(row);
        fs::create_dir_all(&dir)?;
        let sluice = Sluice { program: place.sluice.clone(), dir };
        let (process, address, operators) = serve(&sluice, settings, (Ipv4Addr::LOCALHOST, 0).into())?;
        let reader_token = sluice.token(&["reader", "--principal", READER])?;
        let gateway = Self { process, address, operators, sluice, settings, reader_token };
        gateway.operate("PUT", &format!("/v1/chats/{CHAT}"), &format!("{{\"participants\":[\"{READER}\"]}}"))?;
        Ok(gateway)
    }

    /// Ends it as an operator does, and starts it again on the same address.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.process.terminate(READY)?;
        (self.process, self.address, self.operators) = serve(&self.sluice, self.settings, self.address)?;
        Ok(())
    }

    /// Tokens of agents named `name`, as many as one likes.
    pub fn agent_tokens(&self) -> anyhow::Result<impl Fn(&str) -> anyhow::Result<String> + use<>> {
        let tokens = Tokens::open(&self.sluice.dir.join("sluice-data/token.secret"))?;
        Ok(move |name: &str| {
            let identity =
                Identity::Agent { principal: Principal::agent(name)?, name: Some(name.parse()?), owner: None };
            Ok(tokens.issue(&identity, Duration::from_secs(3600), &Clock::system())?)
        })
    }

    /// Binds a session of an agent that is still to come to the chat: its name is the session's too.
    pub fn expect_agent(&self, name: &str) -> anyhow::Result<String> {
        let body = format!("{{\"session_id\":\"{name}\",\"chat\":\"{CHAT}\",\"agent\":\"agent:{name}\"}}");
        self.operate("POST", "/v1/sessions", &body)?;
        self.sluice.token(&["agent", "--name", name])
    }

    /// Starts an agent with a data connection that serves `folder`, and waits until its file can be read.
    pub fn start_agent(&self, name: &str, folder: &Path) -> anyhow::Result<Agent> {
        self.start_agent_at(self.address, &["--data"], name, folder)
    }

    /// The same with these flags, dialling `at`, where something passes it on to the gateway.
    pub fn start_agent_at(&self, at: SocketAddr, flags: &[&str], name: &str, folder: &Path) -> anyhow::Result<Agent> {
        let token = self.expect_agent(name)?;
        let mut command = self.sluice.command(&["agent", "--session", name, "--gateway"]);
        command.arg(format!("http://{at}")).args(flags).arg(folder).env("SLUICE_TOKEN", token);
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

/// Starts `sluice serve` on `address`, and says where it listens for readers and agents, and for operators.
fn serve(
    sluice: &Sluice,
    settings: &[(&str, &str)],
    address: SocketAddr,
) -> anyhow::Result<(Process, SocketAddr, SocketAddr)> {
    let mut command = sluice.command(&["serve", "--ops-listen", "127.0.0.1:0", "--log-format", "json", "--listen"]);
    command.arg(address.to_string()).envs(settings.iter().copied());
    let mut process = Process::start(&mut command, sluice.dir.join("gateway.log"))?;
    let (address, operators) = process.await_line(READY, |line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        let address = |name| line.get(name)?.as_str()?.parse().ok();
        Some((address("listen")?, address("ops_listen")?))
    })?;
    Ok((process, address, operators))
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
pub fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
