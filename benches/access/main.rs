//! What a question of access costs when nothing is remembered, with a million entries in ten thousand chats on PostgreSQL.
//! See `benches/README.md`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench that cannot go on ends")]

#[path = "../../tests/support/db.rs"]
mod db;

use std::time::{Duration, Instant};

use db::TestDatabase;
use sluice::access::{Access, BlobAnswer, BlobRequest};
use sluice::identity::Caller;
use sluice::protocol::{ChatId, Sha256};
use sluice::store::{Store, StoreError, StoreOptions};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};

const CHATS: u64 = 10_000;
const SETS: u64 = 20_000;
const ENTRIES: u64 = 50;
/// Every so many chats have this reader too.
const BUSY: u64 = 50;
const QUESTIONS: u64 = 2_000;
const GOAL: Duration = Duration::from_millis(3);

/// A hash that this bench can make on both sides.
const HASH: &str = "CREATE FUNCTION hash(kind TEXT, n BIGINT) RETURNS TEXT IMMUTABLE LANGUAGE SQL AS \
    $$ SELECT encode(sha256(convert_to(kind || n, 'UTF8')), 'hex') $$";

/// Every set is announced in one chat; every tenth blob is in two sets.
const ROWS: [&str; 13] = [
    "INSERT INTO chats SELECT 'c' || i, NULL, 0 FROM generate_series(0, 9999) i",
    "INSERT INTO participants SELECT 'c' || i, 'user:' || i FROM generate_series(0, 9999) i",
    "INSERT INTO participants SELECT 'c' || i, 'user:busy' FROM generate_series(0, 9999, 50) i",
    "INSERT INTO agents SELECT 'name' || i, 'agent:' || i, 0, 0 FROM generate_series(0, 999) i",
    "INSERT INTO manifests SELECT hash('m', i), 10000, '', 0, NULL, NULL, 50, 50, NULL, 1 FROM generate_series(0, 19999) i",
    "INSERT INTO entries SELECT hash('m', i / 50), i % 50, 'results/' || i % 50, 1000000, \
     hash('b', CASE WHEN i % 10 = 0 THEN i % 500000 ELSE i END), 'text/plain', 'file', NULL, NULL, NULL, 1, NULL, NULL \
     FROM generate_series(0, 999999) i",
    "INSERT INTO announcements SELECT i, 'c' || i % 10000, 'agent:' || i % 1000, hash('m', i), 10000, 's' || i, 't' || i, \
     NULL, NULL, NULL, 0, 0, NULL, 50, 1, 1 FROM generate_series(0, 19999) i",
    "INSERT INTO manifest_trees SELECT sha256, sha256 FROM manifests",
    "INSERT INTO chat_hashes SELECT a.chat, e.sha256, a.manifest, a.agent, e.position, a.id \
     FROM announcements a JOIN entries e ON e.manifest = a.manifest",
    "INSERT INTO chat_hashes SELECT chat, manifest, manifest, agent, -1, id FROM announcements",
    "INSERT INTO files SELECT a.id * 50 + e.position, a.chat, a.agent, a.id || '/' || e.path, 1, e.sha256, e.size, \
     e.media_type, e.kind, a.id FROM announcements a JOIN entries e ON e.manifest = a.manifest",
    "INSERT INTO file_versions SELECT id, version, sha256, size, media_type, kind, announcement, 0 FROM files",
    "VACUUM ANALYZE",
];

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        match TestDatabase::postgres().await {
            Some(database) => measure(&database).await,
            None => println!("PostgreSQL: no server; set SLUICE_TEST_POSTGRES"),
        }
    });
}

async fn measure(database: &TestDatabase) {
    let options = StoreOptions { operation_timeout: Duration::from_secs(60), ..StoreOptions::default() };
    let store = Store::open(&database.url, options).await.unwrap();
    let begun = Instant::now();
    let mut connection = PgConnection::connect(&database.url).await.unwrap();
    connection.execute(HASH).await.unwrap();
    for sql in ROWS {
        connection.execute(sql).await.unwrap();
    }
    println!("{} entries in {CHATS} chats: filled in {} s", SETS * ENTRIES, begun.elapsed().as_secs());
    // It remembers nothing.
    let access = Access::new(store.clone(), 0);
    let readers = |n: u64| (caller(&format!("user:{}", n % CHATS)), n);
    let busy = |n: u64| (caller("user:busy"), n * BUSY);
    report("a file by its path", true, readers, async |caller, n| {
        let (chat, set) = place(n);
        access.file(&caller, &chat, &set, &format!("results/{}", n % ENTRIES)).await.map(|file| file.is_some())
    })
    .await;
    let by_hash = async |caller: Caller, n: u64| {
        let entry = (n % SETS) * ENTRIES + n % ENTRIES;
        let sha256 = hash("b", if entry.is_multiple_of(10) { entry % 500_000 } else { entry });
        let request = BlobRequest { agent: None, sha256: &sha256, task: None, require_task: false };
        access.blob(&caller, request).await.map(|answer| matches!(answer, BlobAnswer::Blob(_)))
    };
    report("a blob by its hash, of a reader of one chat", true, readers, by_hash).await;
    report("a blob by its hash, of a reader of 200 chats", true, busy, by_hash).await;
    report("a foreign blob by its hash", false, |n| (caller("user:busy"), n * BUSY + 1), by_hash).await;
    report("a chat's sets", true, readers, async |_, n| {
        store.sets(&place(n).0, None, 50).await.map(|page| page.items.len() == 2)
    })
    .await;
    report("a chat's files", true, readers, async |_, n| {
        store.latest_files(&place(n).0, None, 100).await.map(|page| page.items.len() == 100)
    })
    .await;
}

/// Asks one question after the other, each about something else.
async fn report<Q>(what: &str, expected: bool, of: impl Fn(u64) -> (Caller, u64), question: Q)
where
    Q: AsyncFn(Caller, u64) -> Result<bool, StoreError>,
{
    let mut took = Vec::new();
    for n in 0..QUESTIONS {
        // Far from one another, so that not each finds the last one's pages.
        let (caller, n) = of(n * 7919 % SETS);
        let begun = Instant::now();
        assert_eq!(question(caller, n % SETS).await.unwrap(), expected, "{what}: {n}");
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    let at = |share: usize| took[took.len() * share / 100].as_secs_f64() * 1000.0;
    let goal = if took[took.len() * 99 / 100] <= GOAL { "kept" } else { "MISS" };
    println!("{what}: p50 {:.2} ms, p99 {:.2} ms (goal {} ms: {goal})", at(50), at(99), GOAL.as_millis());
}

fn place(n: u64) -> (ChatId, Sha256) {
    (format!("c{}", n % CHATS).parse().unwrap(), hash("m", n % SETS))
}

fn hash(kind: &str, n: u64) -> Sha256 {
    Sha256::of(format!("{kind}{n}").as_bytes())
}

fn caller(name: &str) -> Caller {
    Caller { principal: name.parse().unwrap(), chats: None }
}
