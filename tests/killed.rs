//! A gateway that is killed while it keeps bytes: at any time under load, and at each step of keeping them.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod process;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use process::{Gateway, PATIENCE, Process, sluice};
use sluice::protocol::Sha256;

const MIB: usize = 1 << 20;
/// What `sluice agent` cuts large files into.
const CHUNK: usize = 8 * MIB;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }
}

/// A gateway with an agent that serves some files.
struct House {
    gateway: Gateway,
    reader: String,
    limit: u64,
    /// Where each file is, and its bytes.
    files: Vec<(String, Vec<u8>)>,
    _agent: Process,
    _served: tempfile::TempDir,
}

impl House {
    fn open(args: &'static [&'static str], limit: u64, sizes: &[usize]) -> Self {
        let gateway = Gateway::start_with(args);
        gateway.open_chat();
        let served = tempfile::tempdir().unwrap();
        let contents: Vec<_> = sizes.iter().zip(1..).map(|(size, seed)| Random(seed).bytes(*size)).collect();
        for (n, content) in contents.iter().enumerate() {
            fs::write(served.path().join(n.to_string()), content).unwrap();
        }
        let (agent, set) = gateway.agent(served.path(), gateway.address);
        let path = |n: usize| format!("/v1/chats/{}/sets/{set}/files/{n}", process::CHAT);
        let files = contents.into_iter().enumerate().map(|(n, content)| (path(n), content)).collect();
        Self { reader: gateway.reader_token(), gateway, limit, files, _agent: agent, _served: served }
    }

    /// The names of the objects that the files are.
    fn names(&self) -> Vec<PathBuf> {
        let cache = cache(self.gateway.dir.path());
        let chunks = self.files.iter().flat_map(|(_, content)| content.chunks(CHUNK));
        let names = chunks.map(|chunk| Sha256::of(chunk).to_hex());
        names.map(|name| cache.join(&name[..2]).join(name)).collect()
    }

    /// Reads until everything is kept: a slow disk is not waited for.
    fn warm(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.names().iter().all(|path| path.exists()) {
            assert!(Instant::now() < deadline, "not everything is kept");
            self.read_everything();
            self.check("warming up");
        }
    }

    /// Every file, which must be right. Twice: what was wrong in the cache the first time is right the second.
    fn read_everything(&self) {
        for (path, content) in self.files.iter().chain(&self.files) {
            let body = download(self.gateway.address, path, &self.reader);
            assert!(body.expect("an answer to its end") == *content, "{path}: other bytes");
        }
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.gateway.ops("/metrics");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.expect(name).parse::<f64>().unwrap() as u64
    }

    /// Nothing unfinished is left, and what is there is counted and no more than may be.
    fn check(&self, what: &str) {
        let cache = cache(self.gateway.dir.path());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let counted = self.metric("sluice_cache_bytes");
            let (objects, unfinished) = (objects(&cache), unfinished(&cache));
            let held: u64 = objects.iter().map(|(_, size)| (*size).max(16 * 1024)).sum();
            if (held, unfinished) == (counted, 0) && held <= self.limit {
                return;
            }
            let state = format!("{held} bytes held, {counted} counted, {unfinished} unfinished");
            assert!(Instant::now() < deadline, "{what}: {state}, of {} that may be", self.limit);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// An answer that is 200 and comes to its end.
fn download(to: SocketAddr, path: &str, token: &str) -> Option<Vec<u8>> {
    let mut socket = TcpStream::connect(to).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).ok()?;
    let mut answer = BufReader::new(socket);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        answer.read_line(&mut head).ok().filter(|read| *read > 0)?;
    }
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.filter(|_| head.starts_with("HTTP/1.1 200 "))?];
    answer.read_exact(&mut body).ok()?;
    Some(body)
}

fn cache(dir: &Path) -> PathBuf {
    dir.join("sluice-data/cache")
}

/// The objects in the folder, each with its size.
fn objects(cache: &Path) -> Vec<(PathBuf, u64)> {
    let folders = cache.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let folders = folders.filter(|folder| folder.is_dir() && !folder.ends_with("tmp"));
    // What is removed meanwhile is not there.
    let files = folders.flat_map(|folder| folder.read_dir().unwrap().filter_map(|entry| Some(entry.ok()?.path())));
    files.filter_map(|path| path.metadata().ok().map(|metadata| (path, metadata.len()))).collect()
}

fn unfinished(cache: &Path) -> usize {
    cache.join("tmp").read_dir().unwrap().count()
}

#[test]
fn killed_at_any_time_under_load_it_keeps_what_is_right_and_no_more_than_it_may() {
    // Less than the files take: something always goes.
    let mut house = House::open(&["--cache-size", "24MiB"], 24 << 20, &[20 * MIB, 9 * MIB, 5 * MIB, MIB, 10_000]);
    let mut random = Random(20);
    let complete = AtomicUsize::new(0);
    for round in 0..6 {
        let (address, stop) = (house.gateway.address, AtomicBool::new(false));
        let (files, reader) = (&house.files, &house.reader);
        let wait = Duration::from_millis(random.next() % 1500);
        let starts = random.next() as usize;
        let gateway = thread::scope(|scope| {
            for worker in 0..3 {
                let (stop, complete) = (&stop, &complete);
                scope.spawn(move || {
                    for (path, content) in files.iter().cycle().skip((starts + worker) % files.len()) {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        if let Some(body) = download(address, path, reader) {
                            assert!(body == *content, "{path}: other bytes");
                            complete.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            thread::sleep(wait);
            house.gateway.crash(|dir| {
                stop.store(true, Ordering::Relaxed);
                // An object that was to go may still be there.
                let held: u64 = objects(&cache(dir)).iter().map(|(_, size)| size).sum();
                assert!(held <= (24 << 20) + CHUNK as u64, "{held} bytes when it was killed");
            })
        });
        house.gateway = gateway;
        house.check(&format!("round {round}, killed after {wait:?}"));
    }
    house.read_everything();
    house.check("at the end");
    println!("{} answers came to their end under load", complete.into_inner());
}

/// What a process may leave that is killed at a step, or a machine that loses power there.
const STEPS: [&str; 12] = [
    "created",
    "partly written",
    "whole, and not under its name",
    "under its name, and not counted",
    "without the agent that served it",
    "with a part of the agent that served it",
    "cut in the middle",
    "of the right length, and never written",
    "before what had to go was removed",
    "while the last process's objects were counted",
    "the folder of an object, and no object",
    "somebody else's files",
];

#[test]
fn killed_at_each_step_of_keeping_an_object_it_goes_on_as_if_nothing_was() {
    const LIMIT: u64 = 64 << 20;
    let mut house = House::open(&["--cache-size", "64MiB"], LIMIT, &[2 * CHUNK + MIB, MIB, 100]);
    for step in STEPS {
        house.warm();
        let (files, gateway) = (&house.files, house.gateway);
        let chunk = Sha256::of(&files[0].1[..CHUNK]).to_hex();
        house.gateway = gateway.crash(|dir| {
            let cache = cache(dir);
            let object = cache.join(&chunk[..2]).join(&chunk);
            let kept = fs::read(&object).expect("it was kept");
            let tmp = |name: &str| cache.join("tmp").join(name);
            match step {
                "created" => fs::write(tmp("0"), b"").unwrap(),
                "partly written" => fs::write(tmp("1"), &kept[..CHUNK / 2]).unwrap(),
                "whole, and not under its name" => fs::rename(&object, tmp("2")).unwrap(),
                "under its name, and not counted" => {}
                "without the agent that served it" => fs::write(&object, &kept[..CHUNK]).unwrap(),
                "with a part of the agent that served it" => fs::write(&object, &kept[..CHUNK + 7]).unwrap(),
                "cut in the middle" => fs::write(&object, &kept[..CHUNK / 2]).unwrap(),
                "of the right length, and never written" => fs::write(&object, vec![0; kept.len()]).unwrap(),
                "before what had to go was removed" => plant(&cache, 20, 4 * MIB),
                "while the last process's objects were counted" => {
                    plant(&cache, 1000, 10);
                    for wait in [0, 20, 100, 400] {
                        let mut serve = sluice(&["serve", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]);
                        let process = Process::spawn({
                            serve.current_dir(dir).args(["--cache-size", "64MiB"]);
                            serve
                        });
                        thread::sleep(Duration::from_millis(wait));
                        // By SIGKILL.
                        drop(process);
                    }
                }
                "the folder of an object, and no object" => {
                    fs::remove_file(&object).unwrap();
                    fs::create_dir_all(cache.join("00")).unwrap();
                }
                "somebody else's files" => {
                    fs::write(object.with_extension("bak"), b"mine").unwrap();
                    fs::write(cache.join("README"), b"mine").unwrap();
                }
                other => unreachable!("{other}"),
            }
        });
        assert_eq!(unfinished(&cache(house.gateway.dir.path())), 0, "{step}");
        if step == "somebody else's files" {
            let others = cache(house.gateway.dir.path()).join(&chunk[..2]).join(format!("{chunk}.bak"));
            assert_eq!(fs::read(&others).unwrap(), b"mine", "they are left alone");
            fs::remove_file(others).unwrap();
        }
        house.check(step);
        house.read_everything();
        house.check(step);
        if step == "under its name, and not counted" {
            assert_eq!(house.metric("sluice_received_bytes_total"), 0, "{step}: it is as good as any");
        }
    }
}

/// So many files with names of objects, whose bytes they do not have.
fn plant(cache: &Path, count: u64, size: usize) {
    for n in 0..count {
        let name = Sha256::of(&n.to_be_bytes()).to_hex();
        fs::create_dir_all(cache.join(&name[..2])).unwrap();
        fs::write(cache.join(&name[..2]).join(&name), vec![7; size]).unwrap();
    }
}
