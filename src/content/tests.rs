//! The cache on a real disk: kept, found, spoilt, evicted, crashed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tempfile::TempDir;
use tokio_util::task::TaskTracker;

use super::*;
use crate::metrics::Metrics;
use crate::protocol::{Principal, Sha256};

const LIMIT: u64 = 64 << 20;

struct Disk {
    dir: TempDir,
    metrics: Arc<Metrics>,
}

/// A process's life with the cache.
struct Life {
    cache: Arc<Cache>,
    tracker: TaskTracker,
}

impl Disk {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap(), metrics: Arc::new(Metrics::new().unwrap()) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    async fn start(&self, limit: u64) -> Life {
        let tracker = TaskTracker::new();
        let cache = Cache::open(&self.path(), limit, self.metrics.clone(), tracker.clone()).unwrap();
        let life = Life { cache, tracker };
        life.settle().await;
        life
    }

    fn file(&self, sha256: &Sha256) -> PathBuf {
        let hex = sha256.to_hex();
        self.path().join(&hex[..2]).join(hex)
    }

    fn writes(&self, outcome: &str) -> u64 {
        self.metrics.cache_writes.with_label_values(&[outcome]).get()
    }
}

impl Life {
    /// Until what was asked of the disk is done.
    async fn settle(&self) {
        self.tracker.close();
        self.tracker.wait().await;
        self.tracker.reopen();
    }

    async fn keep(&self, bytes: &Bytes, agent: &str) {
        let mut writer = self.cache.write(Sha256::of(bytes), bytes.len() as u64, voucher(agent)).unwrap();
        bytes.chunks(100_000).for_each(|piece| writer.append(Bytes::copy_from_slice(piece)));
        writer.keep(voucher(agent));
        self.settle().await;
    }

    /// What an agent's readers get from `from` on.
    async fn read_from(&self, bytes: &Bytes, from: u64, agent: &str) -> Option<Vec<u8>> {
        let wanted = Wanted { sha256: Sha256::of(bytes), length: bytes.len() as u64, agents: &[voucher(agent)] };
        rest_of(self.cache.find(wanted, from).await?).await.ok()
    }

    async fn holds(&self, bytes: &Bytes, agent: &str) -> bool {
        self.read_from(bytes, 0, agent).await.is_some_and(|read| read[..] == bytes[..])
    }
}

async fn rest_of(mut stored: Stored) -> std::io::Result<Vec<u8>> {
    let mut read = Vec::new();
    while stored.left() > 0 {
        let (rest, piece) = stored.read(70_000).await?;
        read.extend_from_slice(&piece);
        stored = rest;
    }
    Ok(read)
}

fn voucher(agent: &str) -> Voucher {
    Voucher::of(&agent.parse::<Principal>().unwrap())
}

fn sample(seed: u8, length: usize) -> Bytes {
    (0..length).map(|at| (at as u64).wrapping_mul(2_654_435_761).rotate_left(9) as u8 ^ seed).collect()
}

fn unfinished(disk: &Disk) -> usize {
    disk.path().join("tmp").read_dir().unwrap().count()
}

#[tokio::test]
async fn what_was_kept_is_read_from_anywhere_in_it() {
    let disk = Disk::new();
    let life = disk.start(LIMIT).await;
    let bytes = sample(1, 1_000_003);
    assert!(!life.holds(&bytes, "agent:a").await);
    life.keep(&bytes, "agent:a").await;
    for from in [0, 1, 70_000, 999_999, 1_000_003] {
        assert_eq!(life.read_from(&bytes, from, "agent:a").await.unwrap(), bytes[from as usize..]);
    }
    assert_eq!((unfinished(&disk), disk.writes("kept")), (0, 1));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&disk.path()), mode(&disk.file(&Sha256::of(&bytes)))), (0o700, 0o600));
}

#[tokio::test]
async fn an_object_of_no_bytes_is_one() {
    let disk = Disk::new();
    let life = disk.start(LIMIT).await;
    life.keep(&Bytes::new(), "agent:a").await;
    assert!(life.holds(&Bytes::new(), "agent:a").await);
}

#[tokio::test]
async fn only_through_an_agent_that_has_served_the_bytes() {
    let disk = Disk::new();
    let bytes = sample(2, 300_000);
    let life = disk.start(LIMIT).await;
    life.keep(&bytes, "agent:a").await;
    assert!(!life.holds(&bytes, "agent:b").await);
    // It may ask with the wrong length too.
    let wanted = Wanted { sha256: Sha256::of(&bytes), length: 299_999, agents: &[voucher("agent:a")] };
    assert!(life.cache.find(wanted, 0).await.is_none());
    life.cache.vouch(Sha256::of(&bytes), bytes.len() as u64, voucher("agent:b"));
    life.settle().await;
    assert!(life.holds(&bytes, "agent:b").await && life.holds(&bytes, "agent:a").await);
    drop(life);
    let life = disk.start(LIMIT).await;
    assert!(!life.holds(&bytes, "agent:c").await, "also while nothing was hashed yet");
    assert!(life.holds(&bytes, "agent:b").await && life.holds(&bytes, "agent:a").await, "after a restart");
    assert!(!life.holds(&bytes, "agent:c").await);
}

#[tokio::test]
async fn bytes_that_are_not_all_there_are_not_kept() {
    let disk = Disk::new();
    let life = disk.start(LIMIT).await;
    let bytes = sample(3, 300_000);
    let (sha256, length) = (Sha256::of(&bytes), bytes.len() as u64);
    let mut writer = life.cache.write(sha256, length, voucher("agent:a")).unwrap();
    writer.append(bytes.slice(..200_000));
    assert!(life.cache.write(sha256, length, voucher("agent:a")).is_none(), "it is being written");
    drop(writer);
    life.settle().await;
    let mut writer = life.cache.write(sha256, length, voucher("agent:a")).expect("nobody writes it any more");
    writer.append(bytes.slice(..200_000));
    writer.keep(voucher("agent:a"));
    life.settle().await;
    let mut writer = life.cache.write(sha256, length, voucher("agent:a")).unwrap();
    writer.append(bytes.clone());
    writer.append(bytes.slice(..1));
    writer.keep(voucher("agent:a"));
    life.settle().await;
    assert!(!life.holds(&bytes, "agent:a").await);
    assert_eq!((unfinished(&disk), life.cache.write(sha256, length, voucher("agent:a")).is_some()), (0, true));
}

#[tokio::test]
async fn a_planted_file_is_found_out_on_first_use() {
    let disk = Disk::new();
    let bytes = sample(4, 500_000);
    let file = disk.file(&Sha256::of(&bytes));
    {
        let life = disk.start(LIMIT).await;
        life.keep(&bytes, "agent:a").await;
    }
    let kept = std::fs::read(&file).unwrap();
    // What a torn write, a crash or a hand in the folder may leave.
    let flipped = |at: usize| {
        let mut torn = kept.clone();
        torn[at] ^= 1;
        torn
    };
    for planted in [flipped(0), flipped(499_999), kept[..499_999].to_vec(), Vec::new(), vec![0; kept.len()]] {
        std::fs::write(&file, &planted).unwrap();
        let life = disk.start(LIMIT).await;
        assert!(!life.holds(&bytes, "agent:a").await, "{} bytes", planted.len());
        drop(life);
        std::fs::write(&file, &kept).unwrap();
        let life = disk.start(LIMIT).await;
        assert!(life.holds(&bytes, "agent:a").await);
        // Under the hands of a process that has hashed it.
        std::fs::write(&file, &planted).unwrap();
        assert!(!life.holds(&bytes, "agent:a").await, "{} bytes", planted.len());
        std::fs::write(&file, &kept).unwrap();
    }
    assert!(disk.metrics.cache_spoilt.get() >= 3);
}

#[tokio::test]
async fn a_file_that_is_changed_while_it_is_read_is_noticed() {
    let disk = Disk::new();
    let life = disk.start(LIMIT).await;
    let bytes = sample(5, 300_000);
    life.keep(&bytes, "agent:a").await;
    let wanted = Wanted { sha256: Sha256::of(&bytes), length: 300_000, agents: &[voucher("agent:a")] };
    let stored = life.cache.find(wanted, 0).await.unwrap();
    let (stored, first) = stored.read(100_000).await.unwrap();
    assert_eq!(first, bytes[..100_000]);
    std::fs::write(disk.file(&Sha256::of(&bytes)), sample(6, 300_016)).unwrap();
    assert!(stored.read(100_000).await.is_err());
    // An agent's name behind the bytes is no change of theirs.
    let other = sample(7, 300_000);
    life.keep(&other, "agent:a").await;
    let wanted = Wanted { sha256: Sha256::of(&other), ..wanted };
    let stored = life.cache.find(wanted, 0).await.unwrap();
    life.cache.vouch(Sha256::of(&other), 300_000, voucher("agent:b"));
    life.settle().await;
    assert!(rest_of(stored).await.unwrap() == other);
}

#[tokio::test]
async fn a_tiny_piece_takes_its_place_in_the_queue() {
    let disk = Disk::new();
    let life = disk.start(LIMIT).await;
    let bytes = sample(9, 100_000);
    // What waits for the disk leaves room for the byte, and none for what it costs to keep track of it.
    let waiting = 16 * 1024 * 1024 - 100;
    life.cache.queued.fetch_add(waiting, Ordering::Relaxed);
    let mut writer = life.cache.write(Sha256::of(&bytes), 100_000, voucher("agent:a")).unwrap();
    writer.append(bytes.slice(..1));
    assert_eq!(disk.writes("slow"), 1);
    drop(writer);
    life.settle().await;
    assert_eq!((life.cache.queued.load(Ordering::Relaxed), unfinished(&disk)), (waiting, 0));
}

#[tokio::test]
async fn many_first_uses_at_once_hash_an_object_few_times() {
    let disk = Disk::new();
    let bytes = sample(10, 4 << 20);
    {
        let life = disk.start(LIMIT).await;
        life.keep(&bytes, "agent:a").await;
    }
    let life = disk.start(LIMIT).await;
    let held = life.cache.hashing.acquire_many(2).await.unwrap();
    let mut waiting: Vec<_> = (0..20).map(|_| Box::pin(life.holds(&bytes, "agent:a"))).collect();
    for first_use in &mut waiting {
        assert!(futures_util::poll!(first_use.as_mut()).is_pending());
    }
    assert_eq!(life.cache.hashing.available_permits(), 0);
    drop(held);
    assert!(futures_util::future::join_all(waiting).await.into_iter().all(|holds| holds));
    assert_eq!(life.cache.hashing.available_permits(), 2);
}

#[tokio::test]
async fn what_was_not_used_longest_makes_room_and_its_readers_finish() {
    let disk = Disk::new();
    let life = disk.start(10 << 20).await;
    let objects: Vec<_> = (0..9).map(|seed| sample(seed, 1 << 20)).collect();
    for bytes in &objects {
        life.keep(bytes, "agent:a").await;
    }
    let wanted = Wanted { sha256: Sha256::of(&objects[1]), length: 1 << 20, agents: &[voucher("agent:a")] };
    let reading = life.cache.find(wanted, 0).await.unwrap();
    assert!(life.holds(&objects[0], "agent:a").await);
    for seed in 20..28 {
        life.keep(&sample(seed, 1 << 20), "agent:a").await;
    }
    assert!(!life.holds(&objects[2], "agent:a").await);
    assert!(!disk.file(&Sha256::of(&objects[2])).exists());
    assert!(rest_of(reading).await.unwrap() == objects[1], "it was removed while it was read");
    assert!(disk.metrics.cache_bytes.get() <= 10 << 20);
    assert!(
        life.cache.write(Sha256::of(b"large"), 6 << 20, voucher("agent:a")).is_none(),
        "it would push out more than half"
    );
}

#[tokio::test]
async fn a_restart_counts_what_is_there_and_clears_what_is_not_finished() {
    let disk = Disk::new();
    let objects: Vec<_> = (0..8).map(|seed| sample(seed, 1 << 20)).collect();
    {
        let life = disk.start(LIMIT).await;
        for bytes in &objects {
            life.keep(bytes, "agent:a").await;
        }
    }
    std::fs::write(disk.path().join("tmp").join("17"), b"half of it").unwrap();
    std::fs::write(disk.path().join("README"), b"somebody's own").unwrap();
    let life = disk.start(5 << 20).await;
    assert_eq!((unfinished(&disk), disk.path().join("README").exists()), (0, true));
    assert!(disk.metrics.cache_bytes.get() <= 5 << 20, "a smaller limit is met at once");
    assert!(life.holds(&objects[7], "agent:a").await && !life.holds(&objects[0], "agent:a").await);
}

#[tokio::test]
async fn two_processes_cannot_share_a_folder() {
    let disk = Disk::new();
    let life = disk.start(LIMIT).await;
    let second = Cache::open(&disk.path(), LIMIT, disk.metrics.clone(), TaskTracker::new());
    assert!(matches!(second, Err(OpenError::InUse(_))));
    drop(life);
    disk.start(LIMIT).await;
}

#[tokio::test]
async fn a_disk_that_refuses_is_left_alone() {
    let disk = Disk::new();
    let life = disk.start(LIMIT).await;
    let bytes = sample(8, 100_000);
    let unfinished = disk.path().join("tmp");
    std::fs::remove_dir(&unfinished).unwrap();
    let mut writer = life.cache.write(Sha256::of(&bytes), 100_000, voucher("agent:a")).unwrap();
    writer.append(bytes.clone());
    life.settle().await;
    writer.keep(voucher("agent:a"));
    life.settle().await;
    assert!(!life.holds(&bytes, "agent:a").await);
    assert_eq!(disk.writes("failed"), 1);
    assert!(life.cache.write(Sha256::of(b"next"), 100_000, voucher("agent:a")).is_none(), "not for a while");
}

#[tokio::test]
async fn what_says_not_whose_it_is_makes_way_for_what_does() {
    let disk = Disk::new();
    let bytes = sample(11, 300_000);
    let file = disk.file(&Sha256::of(&bytes));
    for tail in [0, 1, 15, 17] {
        let life = disk.start(LIMIT).await;
        life.keep(&bytes, "agent:a").await;
        let mut kept = std::fs::read(&file).unwrap();
        kept.resize(bytes.len() + tail, 7);
        std::fs::write(&file, &kept).unwrap();
        drop(life);
        let life = disk.start(LIMIT).await;
        assert!(!life.holds(&bytes, "agent:b").await && !file.exists(), "{tail} bytes behind it");
        life.keep(&bytes, "agent:a").await;
        assert!(life.holds(&bytes, "agent:a").await);
        std::fs::remove_file(&file).unwrap();
    }
}

#[tokio::test]
async fn who_comes_meanwhile_waits_for_an_object_of_its_own_agents() {
    let disk = Disk::new();
    let life = disk.start(LIMIT).await;
    let bytes = sample(12, 500_000);
    let (sha256, length) = (Sha256::of(&bytes), 500_000);
    let (ada, eve) = ([voucher("agent:a")], [voucher("agent:b")]);
    let wanted = Wanted { sha256, length, agents: &ada };
    assert!(life.cache.awaited(&wanted, length).is_none(), "nobody writes it");
    for kept in [true, false] {
        let mut writer = life.cache.write(sha256, length, voucher("agent:a")).unwrap();
        writer.append(bytes.slice(..200_000));
        assert!(life.cache.awaited(&Wanted { agents: &eve, ..wanted }, length).is_none(), "not from her agent");
        assert!(life.cache.awaited(&Wanted { length: 499_999, ..wanted }, length).is_none());
        assert!(life.cache.awaited(&wanted, 299_999).is_none(), "less would be asked for than is missing");
        let mut waiting = Box::pin(life.cache.awaited(&wanted, 300_000).unwrap().wait());
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        if kept {
            writer.append(bytes.slice(200_000..));
            writer.keep(voucher("agent:a"));
        } else {
            drop(writer);
        }
        waiting.await;
        assert_eq!(life.holds(&bytes, "agent:a").await, kept);
        life.settle().await;
        life.cache.remove(&[sha256]);
    }
    let waits = |outcome: &str| disk.metrics.cache_waits.with_label_values(&[outcome]).get();
    assert_eq!((waits("over"), waits("given_up")), (2, 0));
}
