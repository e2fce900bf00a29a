//! The built binary as people run it: a gateway and agents as processes of their own, and other people's tools.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

pub mod cable;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

pub const CHAT: &str = "c1";
pub const SESSION: &str = "turn-1";
pub const AGENT: &str = "flow";
pub const READER: &str = "user:alice";

/// How long anything may take before the test has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// `sluice` without this environment's own settings.
pub fn sluice(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(args).env_clear().stdin(Stdio::null());
    command
}

/// A child process that ends with the test, however the test ends, and whose lines can be waited for.
pub struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl Process {
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the command starts");
        let lines = lines_of(child.stderr.take().unwrap());
        Self { child, lines, seen: Vec::new() }
    }

    /// The next line that `found` makes something of.
    pub fn wait_for<T>(&mut self, what: &str, found: impl Fn(&str) -> Option<T>) -> T {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else { panic!("no {what} in {:#?}", self.seen) };
            let value = found(&line);
            self.seen.push(line);
            if let Some(value) = value {
                return value;
            }
        }
    }

    /// Asks for an orderly end, and expects exit code 0. Every line that was written.
    pub fn stop(mut self) -> Vec<String> {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{:#?}", self.seen);
        // Its end closes the pipe, and so the channel.
        self.seen.extend(self.lines.iter());
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(stderr: ChildStderr) -> mpsc::Receiver<String> {
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        // A pipe that nobody reads would stop the process; a test that no longer listens is over.
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    lines
}

/// A gateway with a chat, a reader in it, and a session bound to it.
pub struct Gateway {
    process: Process,
    pub dir: tempfile::TempDir,
    pub address: SocketAddr,
    pub ops: SocketAddr,
    args: &'static [&'static str],
}

impl Gateway {
    /// Listens on ports of its own, and keeps everything in a folder of its own.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with more arguments.
    pub fn start_with(args: &'static [&'static str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let (process, address, ops) = serve(dir.path(), any, any, args);
        Self { process, dir, address, ops, args }
    }

    /// Stops in order. Every line of its log.
    pub fn stop(self) -> Vec<String> {
        self.process.stop()
    }

    /// Stops in order, and starts again at the same addresses with the same data.
    pub fn restart(self) -> Self {
        let Self { process, dir, address, ops, args } = self;
        process.stop();
        let (process, address, ops) = serve(dir.path(), address, ops, args);
        Self { process, dir, address, ops, args }
    }

    /// Ends it by SIGKILL, whatever it is doing, and starts it again at the same addresses, after `meanwhile` was done in
    /// its folder.
    pub fn crash(self, meanwhile: impl FnOnce(&Path)) -> Self {
        let Self { process, dir, address, ops, args } = self;
        drop(process);
        meanwhile(dir.path());
        let (process, address, ops) = serve(dir.path(), address, ops, args);
        Self { process, dir, address, ops, args }
    }

    /// What `sluice token …` prints.
    pub fn token(&self, args: &[&str]) -> String {
        let output = sluice(&[&["token"], args].concat()).current_dir(self.dir.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn agent_token(&self) -> String {
        self.token(&["agent", "--name", AGENT])
    }

    pub fn reader_token(&self) -> String {
        self.token(&["reader", "--principal", READER])
    }

    /// Makes the chat, and binds the session to it.
    pub fn open_chat(&self) {
        let token = self.token(&["operator"]);
        let chat = json!({ "participants": [READER] });
        assert_eq!(request(self.address, "PUT", &format!("/v1/chats/{CHAT}"), &token, &chat).0, 201);
        let session = json!({ "session_id": SESSION, "chat": CHAT, "agent": AGENT });
        assert_eq!(request(self.address, "POST", "/v1/sessions", &token, &session).0, 201);
    }

    /// An agent that serves `folder` through `gateway`, its set accepted. With it, the hash of that set.
    pub fn agent(&self, folder: &Path, gateway: SocketAddr) -> (Process, String) {
        let (gateway, token) = (format!("http://{gateway}"), self.agent_token());
        let folder = folder.to_str().unwrap();
        let args = ["agent", folder, "--gateway", &gateway, "--token", &token, "--session", SESSION];
        let mut agent = Process::spawn(sluice(&args));
        let set = agent.wait_for("accepted set", |line| line.strip_prefix("accepted sha256:").map(str::to_owned));
        (agent, set)
    }

    /// Where a reader downloads a file of a set.
    pub fn file_url(&self, set: &str, path: &str) -> String {
        format!("http://{}/v1/chats/{CHAT}/sets/{set}/files/{path}", self.address)
    }

    /// What the operator's listener answers, with status 200.
    pub fn ops(&self, path: &str) -> String {
        let (status, body) = get(self.ops, path);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }
}

fn serve(dir: &Path, listen: SocketAddr, ops: SocketAddr, more: &[&str]) -> (Process, SocketAddr, SocketAddr) {
    let (listen, ops) = (listen.to_string(), ops.to_string());
    // What is kept is not asked for again: these tests want agents asked.
    let args = ["serve", "--listen", &listen, "--ops-listen", &ops, "--log-format", "json"];
    let mut command = sluice(&args);
    command.current_dir(dir).args(more);
    if !more.contains(&"--cache-size") {
        command.args(["--cache-size", "0"]);
    }
    let mut process = Process::spawn(command);
    let serving = process.wait_for("line that says it serves", |line| {
        serde_json::from_str::<Value>(line).ok().filter(|line| line["message"] == "serving")
    });
    let address = |name: &str| serving[name].as_str().unwrap().parse().unwrap();
    (process, address("listen"), address("ops_listen"))
}

/// A request with a JSON body, and its answer's status and body.
pub fn request(to: SocketAddr, method: &str, path: &str, token: &str, body: &Value) -> (u16, String) {
    let body = body.to_string();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {to}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    exchange(to, &(head + &body))
}

/// A request without a credential. HTTP/1.0, so that no answer is chunked.
pub fn get(to: SocketAddr, path: &str) -> (u16, String) {
    exchange(to, &format!("GET {path} HTTP/1.0\r\nHost: {to}\r\n\r\n"))
}

/// A request as it goes over the wire, and its answer's status and body.
pub fn exchange(to: SocketAddr, request: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    // Not everyone closes a connection when told to: a body ends where its head says.
    let mut answer = BufReader::new(socket);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(answer.read_line(&mut head).unwrap() > 0, "an answer");
    }
    let length = head.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().unwrap())
    });
    let mut body = String::new();
    answer.take(length.unwrap_or(u64::MAX)).read_to_string(&mut body).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

/// Where other people's program is. Without it the test is skipped, visibly, unless `SLUICE_TEST_TOOLS` is `required`,
/// as it is under `tests/run`.
pub fn tool(name: &str) -> Option<PathBuf> {
    // Programs that are not on the path are named by variables: SLUICE_TEST_PYTHON, SLUICE_TEST_PROMETHEUS.
    let named = std::env::var_os(format!("SLUICE_TEST_{}", name.to_uppercase())).map(PathBuf::from);
    let path = std::env::var_os("PATH").filter(|_| name != "python").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    let found = named.or_else(|| places.find(|place| place.is_file()));
    if found.is_none() {
        let required = std::env::var_os("SLUICE_TEST_TOOLS").is_some_and(|value| value == "required");
        assert!(!required, "{name} is missing");
        eprintln!("SKIPPED: {name} is missing; tests/run installs it");
    }
    found
}

/// A script of `tests/interop`, whose packages only the interpreter named by `SLUICE_TEST_PYTHON` is known to have.
pub fn python(script: &str) -> Option<Command> {
    let mut command = Command::new(tool("python")?);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(script));
    Some(command)
}
