//! What the figures were measured on, and what the kernel says of its sockets.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// Bytes in a page of the kernel's memory, on every machine that this was run on.
const PAGE: u64 = 4096;

/// The machine and the versions of what runs on it.
#[derive(Debug)]
pub struct Machine {
    facts: Vec<(&'static str, String)>,
}

/// Looks around. `file` says what is read, and where it lies.
pub fn describe(sluice: &Path, nginx: Option<&Path>, tunnels: String, file: String) -> Machine {
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".to_owned());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Machine {
        facts: vec![
            ("machine", format!("{} cores, {model}, Linux {}", cores(), kernel.trim())),
            ("load", load().to_string()),
            ("sluice", version(sluice, "--version")),
            ("nginx", nginx.map_or_else(|| "not installed: no rows beside it".into(), |path| version(path, "-v"))),
            ("tunnels", tunnels),
            ("file", file),
        ],
    }
}

impl Machine {
    /// The facts by name.
    pub fn to_json(&self) -> Value {
        self.facts.iter().map(|(name, fact)| ((*name).to_owned(), json!(fact))).collect()
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.facts.iter().map(|(name, fact)| format!("{name:<8} {fact}")).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// How many tasks wanted a processor over the last minute: above the number of cores, figures suffer.
pub fn load() -> f64 {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// Processors that this process may use.
pub fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

/// Bytes that all of the machine's TCP sockets hold in the kernel.
pub fn tcp_memory() -> u64 {
    let sockstat = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let words = sockstat.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default().split(' ');
    words.skip_while(|word| *word != "mem").nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}

/// What the kernel holds for each socket of a local port, in bytes, both directions together. Empty without `ss`.
pub fn socket_memory(port: u16) -> Vec<f64> {
    let listed = Command::new("ss").args(["-tmnH", "state", "established", &format!("( sport = :{port} )")]).output();
    let Ok(listed) = listed else { return Vec::new() };
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    // skmem:(r0,rb131072,t0,tb87040,f0,w0,o0,bl0,d0): r is received and not read, w is written and not acknowledged.
    let memories =
        text.lines().filter_map(|line| line.split_once("skmem:(").and_then(|(_, rest)| rest.split_once(')')));
    let held = |fields: &str| -> f64 {
        let digits = |name: char| fields.split(',').find_map(|field| field.strip_prefix(name)?.parse::<f64>().ok());
        digits('r').unwrap_or(0.0) + digits('w').unwrap_or(0.0)
    };
    memories.map(|(fields, _)| held(fields)).collect()
}

/// A program by its name: on the path, or where daemons are.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    places.map(|place| place.join(program)).find(|file| file.is_file())
}

/// Lets this process, and those it starts, open as many files as the system allows it, and says how many that are.
pub fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Where that is refused, it stays as it was.
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(_) => current.unwrap_or(u64::MAX),
    }
}

/// The first line of what a program says of itself.
fn version(program: &Path, flag: &str) -> String {
    said(program, flag).lines().next().unwrap_or("unknown").to_owned()
}

/// What a program says of itself, on whichever stream.
pub fn said(program: &Path, flag: &str) -> String {
    let said = Command::new(program).arg(flag).output();
    said.map(|said| String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned()).unwrap_or_default()
}

/// The first line of a file that begins with `name`, after its colon.
pub fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
