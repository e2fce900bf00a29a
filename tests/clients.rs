//! Programs that people download with: whole, by range, resumed, and while the agent's network goes away and comes back.
//! Every one of them must end with the file's own bytes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use process::cable::Cable;
use process::{Gateway, Process, python, tool};

const MIB: usize = 1 << 20;
const NAME: &str = "gds/top.gds";

/// A file of an agent, and a folder to download it to. The agent reaches its gateway over a cable.
struct Fixture {
    gateway: Gateway,
    cable: Cable,
    bytes: Vec<u8>,
    url: String,
    header: String,
    token: String,
    folder: tempfile::TempDir,
    agent: Option<Process>,
    served: tempfile::TempDir,
}

impl Fixture {
    fn of(size: usize) -> Self {
        let gateway = Gateway::start();
        gateway.open_chat();
        let cable = Cable::to(gateway.address);
        let served = tempfile::tempdir().unwrap();
        let bytes = noise(size);
        let file = served.path().join(NAME);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, &bytes).unwrap();
        let (agent, set) = gateway.agent(served.path(), cable.address);
        let (url, token) = (gateway.file_url(&set, NAME), gateway.reader_token());
        let header = format!("Authorization: Bearer {token}");
        let folder = tempfile::tempdir().unwrap();
        Self { gateway, cable, bytes, url, header, token, folder, agent: Some(agent), served }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What a download that was cut after `bytes` bytes has left behind.
    fn truncated(&self, name: &str, bytes: usize) -> PathBuf {
        fs::write(self.path(name), &self.bytes[..bytes]).unwrap();
        self.path(name)
    }

    fn assert_whole(&self, path: &Path) {
        let got = fs::read(path).unwrap();
        assert!(got == self.bytes, "{} has {} bytes of {}", path.display(), got.len(), self.bytes.len());
    }

    /// The cable was cut once while something was downloaded, and the agent was asked for the rest.
    fn assert_was_cut(&self) {
        assert_eq!(self.cable.cuts(), 1);
        self.assert_resumed();
    }

    fn assert_resumed(&self) {
        let metrics = self.gateway.ops("/metrics");
        let resumed =
            metrics.lines().find_map(|line| line.strip_prefix("sluice_resumes_total{reason=\"disconnected\"} "));
        assert!(resumed.unwrap().parse::<u64>().unwrap() > 0, "{metrics}");
    }

    /// `program`, in the folder, for at most two minutes.
    fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg("120").arg(program).args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// curl without anybody's own settings, failing on an error's status.
    fn curl(&self, curl: &Path, args: &[&str]) -> Output {
        let common = ["-q", "-sS", "-H", &self.header, "-w", "%{http_code} %{size_download}"];
        self.command(curl, &[&common, args, &[&self.url]].concat()).output().unwrap()
    }
}

/// Bytes of which no two places look alike.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(size).collect()
}

fn assert_success(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn curl_downloads_ranges_and_resumes() {
    let Some(curl) = tool("curl") else { return };
    let it = Fixture::of(4 * MIB + 3);
    let size = it.bytes.len();

    let said = assert_success(&it.curl(&curl, &["-f", "-o", "whole"]));
    assert_eq!(said, format!("200 {size}"));
    it.assert_whole(&it.path("whole"));

    let half = it.truncated("half", 1_000_000);
    let said = assert_success(&it.curl(&curl, &["-f", "-C", "-", "-o", "half"]));
    assert_eq!(said, format!("206 {}", size - 1_000_000));
    it.assert_whole(&half);

    // Nothing is left to download: 416, which curl takes for success.
    assert!(assert_success(&it.curl(&curl, &["-C", "-", "-o", "half"])).starts_with("416 "));
    it.assert_whole(&half);

    for (range, expected) in [("1000-1999", 1000..2000), ("-500", size - 500..size), ("4194304-", 4 * MIB..size)] {
        assert_success(&it.curl(&curl, &["-f", "-r", range, "-o", "range"]));
        assert!(fs::read(it.path("range")).unwrap() == it.bytes[expected], "{range}");
    }

    assert_success(&it.curl(&curl, &["-f", "--limit-rate", "4M", "-o", "slow"]));
    it.assert_whole(&it.path("slow"));

    let said = assert_success(&it.curl(&curl, &["-f", "--http2-prior-knowledge", "-o", "over-http2"]));
    assert_eq!(said, format!("200 {size}"));
    it.assert_whole(&it.path("over-http2"));
}

#[test]
fn curl_goes_on_after_a_reader_that_left() {
    let Some(curl) = tool("curl") else { return };
    let it = Fixture::of(24 * MIB);
    let mut left = it.command(&curl, &["-q", "-sS", "-f", "-H", &it.header, &it.url]);
    let mut child = left.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = vec![0; 3_000_000];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    // The pipe is closed, so curl gives up.
    assert_eq!(child.wait().unwrap().code(), Some(23));
    assert!(first == it.bytes[..first.len()]);

    let half = it.truncated("half", first.len());
    assert_success(&it.curl(&curl, &["-f", "-C", "-", "-o", "half"]));
    it.assert_whole(&half);
}

#[test]
fn curl_sees_nothing_of_an_agent_that_comes_back() {
    let Some(curl) = tool("curl") else { return };
    for args in [&["-f", "-o", "file"][..], &["-f", "--http2-prior-knowledge", "-o", "file"]] {
        let it = Fixture::of(24 * MIB);
        it.cable.cut_after(6 * MIB);
        let said = assert_success(&it.curl(&curl, args));
        assert_eq!(said, format!("200 {}", it.bytes.len()));
        it.assert_whole(&it.path("file"));
        it.assert_was_cut();
    }
}

#[test]
fn curl_sees_nothing_of_an_agent_that_is_started_again() {
    let Some(curl) = tool("curl") else { return };
    let mut it = Fixture::of(64 * MIB);
    let mut reading = it.command(&curl, &["-q", "-sS", "-f", "-H", &it.header, &it.url]);
    let mut child = reading.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut got = vec![0; 3_000_000];
    stdout.read_exact(&mut got).unwrap();
    // Most of the file has not left the agent, because nobody has taken it.
    drop(it.agent.take());
    it.agent = Some(it.gateway.agent(it.served.path(), it.cable.address).0);
    stdout.read_to_end(&mut got).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(got == it.bytes, "{} bytes of {}", got.len(), it.bytes.len());
    it.assert_resumed();
}

#[test]
fn wget_resumes() {
    let Some(wget) = tool("wget") else { return };
    let it = Fixture::of(24 * MIB);
    let get = |name: &str| {
        let args = ["--no-config", "-q", "-c", "--tries=2", "--header", &it.header, "-O", name, &it.url];
        assert_success(&it.command(&wget, &args).output().unwrap());
        it.assert_whole(&it.path(name));
    };
    it.truncated("half", 1_000_000);
    get("half");
    // Again: it is complete, and stays as it is.
    get("half");
    it.cable.cut_after(6 * MIB);
    get("cut");
    it.assert_was_cut();
}

#[test]
fn aria2_downloads_over_sixteen_connections() {
    let Some(aria2) = tool("aria2c") else { return };
    let it = Fixture::of(24 * MIB + 1);
    let get = |name: &str| {
        let parallel = ["-x16", "-s16", "-j1", "-k1M", "--min-split-size=1M", "--file-allocation=none"];
        let mine = ["--no-conf", "-q", "-c", "--max-tries=2", "--header", &it.header, "-o", name, &it.url];
        assert_success(&it.command(&aria2, &[&parallel[..], &mine[..]].concat()).output().unwrap());
        it.assert_whole(&it.path(name));
    };
    get("whole");
    it.truncated("half", 5_000_000);
    get("half");
    it.cable.cut_after(6 * MIB);
    get("cut");
    it.assert_was_cut();
}

#[test]
fn requests_streams_ranges_and_resumes() {
    let it = Fixture::of(24 * MIB);
    let expected = it.path("expected");
    fs::write(&expected, &it.bytes).unwrap();
    let Some(mut script) = python("requests_client.py") else { return };
    it.cable.cut_after(6 * MIB);
    let script = script.arg(&it.url).arg(expected).env("SLUICE_TOKEN", &it.token);
    assert_success(&script.output().expect("the interpreter starts"));
    it.assert_was_cut();
}
