//! Every statement that meets a table which grows finds its rows by an index, on both databases.

use sqlx::{AssertSqlSafe, Row as _};

use super::audit::read_search;
use super::search::{
    Search, blob_search, file_search, hash_tasks, manifest_search, set_search, set_tasks, version_search,
};
use super::test_database as db;
use super::{
    FileId, LinkFilter, Outdated, ReadFilter, Scope, Store, StoreOptions, TaskRule, agents, announcements, audit,
    browsers, chats, endpoints, hashes, keys, links, listed, manifests, names, nonces, quota, ranks, retention,
    sessions, sets, versions,
};
use crate::on_both_databases;
use crate::protocol::{ChatId, Principal, Sha256};
use db::TestDatabase;

on_both_databases!(
    rows_are_found_by_index,
    a_blob_that_a_manifest_repeats_is_in_a_chat_once,
    a_search_by_hash_starts_from_the_searchers_chats,
    what_is_announced_elsewhere_or_again_is_not_visited,
    a_page_visits_no_more_than_its_chat_has,
);

/// Enough rows that a planner sees the point of an index.
const ROWS: [&str; 22] = [
    "INSERT INTO chats WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 499) \
     SELECT 'c' || i, NULL, 0 FROM n",
    "INSERT INTO participants WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999) \
     SELECT 'c' || (i % 500), 'user:' || i FROM n",
    "INSERT INTO agents WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999) \
     SELECT 'name' || i, 'agent:' || i, 0, 0 FROM n",
    "INSERT INTO manifests WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1999) \
     SELECT 'm' || i, 1, CAST('' AS BYTEA), 0, CAST(NULL AS BIGINT), 't', 10, 10, '[wide]', 1 FROM n",
    // Each blob is in some manifests, and ten times in a row within each.
    "INSERT INTO entries WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 39999) \
     SELECT 'm' || (i / 20), i % 20, 'p' || i, 1, 'b' || ((i / 10) % 1500), 'text/plain', 'file', \
     CAST(NULL AS BIGINT), CAST(NULL AS BYTEA), CAST(NULL AS TEXT), CASE WHEN i % 10 = 0 THEN 1 ELSE 0 END, \
     CASE WHEN i % 2 = 0 THEN 'm' || (i % 2000) END, CAST(NULL AS TEXT) FROM n",
    "INSERT INTO announcements WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 7999) \
     SELECT i, 'c' || (i % 500), 'agent:' || (i % 700), 'm' || (i % 2000), 1, 's' || i, 't' || i, \
     CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), CAST(NULL AS TEXT), 0, 0, CAST(NULL AS BIGINT), 20, 1, 1 FROM n",
    "INSERT INTO ranks WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 39999) \
     SELECT i % 8000, i / 8000, 0 FROM n",
    "INSERT INTO manifest_trees WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999) \
     SELECT 'm' || (i % 2000), 'm' || ((i + i / 2000) % 2000) FROM n",
    "INSERT INTO chat_hashes SELECT a.chat, e.sha256, a.manifest, a.agent, e.position, MIN(a.id) FROM announcements a \
     JOIN entries e ON e.manifest = a.manifest AND e.leads = 1 \
     GROUP BY a.chat, e.sha256, a.manifest, a.agent, e.position",
    "INSERT INTO chat_hashes SELECT a.chat, t.manifest, a.manifest, a.agent, -1, MIN(a.id) FROM announcements a \
     JOIN manifest_trees t ON t.root = a.manifest GROUP BY a.chat, t.manifest, a.manifest, a.agent",
    "INSERT INTO files WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 39999) \
     SELECT i, 'c' || (i % 500), 'agent:' || (i % 700), 'p' || i, 2, 'b' || (i % 1500), 1, 'text/plain', 'file', \
     i % 8000 FROM n",
    "INSERT INTO file_versions WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 79999) \
     SELECT i / 2, 1 + i % 2, 'b' || (i % 1500), 1, 'text/plain', 'file', i % 8000, 0 FROM n",
    "INSERT INTO sessions WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 7999) \
     SELECT 's' || i, 'agent:' || (i % 700), 'c' || (i % 500), i FROM n",
    "INSERT INTO nonces WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 39999) \
     SELECT 'agent:' || (i % 500), 'n' || i, i FROM n",
    "INSERT INTO keys WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999) \
     SELECT 'agent:' || (i / 2), 't' || i, i, i FROM n",
    "INSERT INTO endpoints WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) \
     SELECT 'h' || (i % 700) || ':443', 'agent:' || i, 0, 0 FROM n",
    "INSERT INTO audit WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) \
     SELECT i, 0, 0, 'user:' || (i % 500), 'c' || (i % 500), '[]', 'b' || (i % 900), 'p', 0, 1, 1, 'complete', \
     CAST(NULL AS BIGINT), CAST(NULL AS TEXT) FROM n",
    "INSERT INTO audit_agents WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) \
     SELECT 'agent:' || (i % 700), i FROM n",
    "INSERT INTO browsers WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999) \
     SELECT 'h' || i, 'user:' || (i % 500), CAST(NULL AS TEXT), i, i FROM n",
    "INSERT INTO signin_codes WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999) \
     SELECT 'h' || i, 'user:' || (i % 500), CAST(NULL AS TEXT), i FROM n",
    "INSERT INTO links WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999) \
     SELECT 'l' || i, 'h' || i, 'user:' || (i % 500), 'c' || (i % 500), 'm' || i, 'p', i, i FROM n",
    "ANALYZE",
];

async fn filled(database: &TestDatabase) -> Store {
    let store = Store::open(&database.url, StoreOptions::default()).await.unwrap();
    let mut conn = store.0.writer.acquire().await.unwrap();
    if database.is_postgres() {
        // So many rows at once may take long beside other tests.
        sqlx::query("SET statement_timeout = 0").execute(&mut *conn).await.unwrap();
    }
    for sql in ROWS {
        // As wide as a row with a few locations.
        let sql = sql.replace("[wide]", &"x".repeat(1500));
        sqlx::query(AssertSqlSafe(sql)).execute(&mut *conn).await.unwrap();
    }
    drop(conn);
    store
}

#[derive(Clone)]
enum Value {
    Text(String),
    Number(i64),
}

fn text(value: impl Into<String>) -> Value {
    Value::Text(value.into())
}

/// The plan of a statement, a line for each step.
async fn plan(store: &Store, database: &TestDatabase, sql: &str, values: &[Value]) -> Vec<String> {
    let (explain, column) = if database.is_postgres() { ("EXPLAIN", 0) } else { ("EXPLAIN QUERY PLAN", 3) };
    let mut query = sqlx::query(AssertSqlSafe(format!("{explain} {sql}")));
    for value in values {
        query = match value {
            Value::Text(text) => query.bind(text.as_str()),
            Value::Number(number) => query.bind(*number),
        };
    }
    let steps = query.fetch_all(&store.0.writer).await.unwrap();
    steps.iter().map(|step| step.get(column)).collect()
}

async fn rows_are_found_by_index(database: &TestDatabase) {
    let store = filled(database).await;
    let chat: ChatId = "c1".parse().unwrap();
    let principal: Principal = "user:1".parse().unwrap();
    let name = "name1".parse().unwrap();
    let hash = Sha256::of(b"");
    let chats = [chat.clone()];
    let free = Scope { principal: &principal, chats: None };
    let limited = Scope { principal: &principal, chats: Some(&chats) };
    let of = |search: Search| (search.sql, search.values.into_iter().map(Value::Text).collect::<Vec<_>>());
    let statements = [
        of(file_search(free, &chat, &hash, "p", 64)),
        of(blob_search(free, None, &hash, TaskRule::Any, 64)),
        of(blob_search(limited, Some(&name), &hash, TaskRule::Is("t"), 64)),
        of(blob_search(free, Some(&name), &hash, TaskRule::None, 64)),
        of(manifest_search(limited, Some(&name), &hash, TaskRule::None, 64)),
        of(manifest_search(free, Some(&name), &hash, TaskRule::Is("t"), 64)),
        of(hash_tasks(free, Some(&name), &hash, 64)),
        of(hash_tasks(limited, None, &hash, 64)),
        of(set_tasks(&chat, &hash, 64)),
        (hashes::OTHER.to_owned(), vec![text("c1"), text("m1"), text("agent:1"), Value::Number(1)]),
        (format!("{}{}", hashes::BLOBS, hashes::ANEW), vec![text("c1"), text("m1"), text("agent:1"), Value::Number(1)]),
        (
            format!("{}{}", hashes::MANIFESTS, hashes::EARLIER),
            vec![text("c1"), text("m1"), text("agent:1"), Value::Number(1)],
        ),
        (hashes::BLOBS.to_owned(), vec![text("c1"), text("m1"), text("agent:1"), Value::Number(1)]),
        (
            format!("{}{}", hashes::RANKED_BLOBS, hashes::EARLIER),
            vec![text("c1"), text("m1"), text("agent:1"), Value::Number(1)],
        ),
        (hashes::LISTED.to_owned(), vec![text("c1"), text("m1"), text("agent:1")]),
        (hashes::OF_CHAT.to_owned(), vec![text("c1")]),
        (hashes::OF_MANIFEST.to_owned(), vec![text("m1")]),
        (sessions::OF_SESSION.to_owned(), vec![text("agent:1"), text("s1"), text("c1")]),
        of(set_search(free, &chat, &hash, 64)),
        (sets::SETS.to_owned(), vec![text("c1"), Value::Number(i64::MAX), Value::Number(100)]),
        (sets::SET.to_owned(), vec![Value::Number(7)]),
        (sets::OF_SESSION.to_owned(), vec![text("agent:1"), text("s1"), text("c1"), Value::Number(65)]),
        (chats::LIST.to_owned(), vec![text(""), Value::Number(100)]),
        (chats::LIST.to_owned(), vec![text("c250"), Value::Number(100)]),
        (chats::PLACE.to_owned(), vec![text("c1"), text("user:1")]),
        (chats::AGENTS.to_owned(), vec![text("c1")]),
        (sets::HAS_SET.to_owned(), vec![text("c1"), text("m1")]),
        (sets::FIRST.to_owned(), vec![text("c1"), text("m1")]),
        (
            sets::ENTRIES.to_owned(),
            vec![text("c1"), text("m1"), text("agent:1"), Value::Number(1), Value::Number(-1), Value::Number(100)],
        ),
        of(version_search(limited, &chat, (FileId(1), 1), 64)),
        (versions::latest_sql(), vec![text("c1"), Value::Number(-1), Value::Number(100)]),
        (versions::versions_sql(), vec![text("c1"), Value::Number(1), Value::Number(9), Value::Number(100)]),
        (ranks::OF_PREDECESSORS.to_owned(), vec![text("agent:1"), text("t1"), Value::Number(1), text("c:c1")]),
        (ranks::OF_SET.to_owned(), vec![text("m1")]),
        (sessions::WAITING.to_owned(), vec![text("agent:1"), text("s1")]),
        (manifests::ANNOUNCED_BY.to_owned(), vec![text("m1"), text("agent:1")]),
        (announcements::KNOWN.to_owned(), vec![text("m1"), text("agent:1")]),
        (announcements::LATER.to_owned(), vec![text("agent:1"), text("t1"), Value::Number(1), text("c:c1")]),
        (announcements::FIND.to_owned(), vec![text("agent:1"), text("m1"), text(""), text("c:c1")]),
        (announcements::SUPERSEDE.to_owned(), vec![text("agent:1"), text("t1"), Value::Number(1), text("c:c1")]),
        (quota::OF_AGENT.to_owned(), vec![text("agent:1"), text("t1"), text("c:c1")]),
        (quota::OF_CHAT.to_owned(), vec![text("c1"), text("agent:1"), text("t1")]),
        (sessions::TO_VERSION.to_owned(), vec![text("agent:1"), text("s1"), text("c1")]),
        (quota::WAITING.to_owned(), vec![text("agent:1"), text("s1")]),
        (quota::LET_IN.to_owned(), vec![text("agent:1")]),
        (quota::UNBOUND_AT.to_owned(), vec![text("h1:443")]),
        (agents::FIRST_NAME.to_owned(), vec![text("agent:1")]),
        (names::OF_AGENT.to_owned(), vec![text("agent:1"), Value::Number(256)]),
        (names::STRANGERS_AT.to_owned(), vec![text("h1:443"), Value::Number(2000)]),
        (agents::KNOWS.to_owned(), vec![text("agent:1")]),
        (endpoints::OF_PRINCIPAL.to_owned(), vec![text("agent:1")]),
        (endpoints::known_at(2), vec![text("h1:443"), text("h2:443")]),
        (agents::among(2), vec![text("agent:1"), text("agent:2")]),
        (agents::holders_of(2), vec![text("name1"), text("name2")]),
        (keys::OF_AGENT.to_owned(), vec![text("agent:1")]),
        (keys::AGENTS.to_owned(), vec![text("agent:"), Value::Number(10)]),
        (keys::SWEEP.to_owned(), vec![Value::Number(10), text("agent:1"), text("agent:11")]),
        (nonces::SWEEP.to_owned(), vec![Value::Number(1000), Value::Number(100)]),
        (nonces::count(2), vec![Value::Number(0), text("agent:1"), text("agent:2")]),
        (sessions::SAME.to_owned(), vec![text("agent:1"), text("s1"), text("c1")]),
        (sessions::SUPERSEDED.to_owned(), vec![text("agent:1"), text("s1"), text("c1")]),
        (Outdated::ExpiredBefore(0).search(), vec![Value::Number(10)]),
        (Outdated::UntouchedSince(0).search(), vec![Value::Number(10)]),
        (Outdated::UnboundBefore(0).search(), vec![Value::Number(10)]),
        (retention::SESSIONS.to_owned(), vec![Value::Number(-1), Value::Number(10)]),
        (sessions::BIND.to_owned(), vec![text("agent:1"), text("s1"), text("c1")]),
    ];
    let reads = |filter: &dyn Fn(&mut ReadFilter)| {
        let mut wanted = ReadFilter::default();
        filter(&mut wanted);
        let search = read_search(&wanted, None, 200);
        let bounds = [Value::Number(search.from), Value::Number(search.below)];
        (search.sql, bounds.into_iter().chain(search.values.into_iter().map(Value::Text)).collect::<Vec<_>>())
    };
    let reads = [
        reads(&|_| {}),
        reads(&|filter| filter.principal = Some(principal.clone())),
        reads(&|filter| filter.chat = Some(chat.clone())),
        reads(&|filter| filter.agent = Some("agent:1".parse().unwrap())),
        reads(&|filter| filter.sha256 = Some(hash)),
        (audit::SWEEP_READS.to_owned(), vec![Value::Number(10), Value::Number(500)]),
        (browsers::OLDEST_BROWSERS.to_owned(), vec![text("user:1"), Value::Number(64)]),
        (links::LINKS.to_owned(), vec![text("user:1"), text("c1"), Value::Number(10)]),
        (links::LINKS_HELD.to_owned(), vec![text("user:1"), Value::Number(10)]),
        (listed::MANIFESTS.to_owned(), vec![text("m1"), Value::Number(0), Value::Number(20)]),
        (listed::SIZES.to_owned(), vec![text("m1"), Value::Number(0), Value::Number(500)]),
        (listed::LISTS.to_owned(), vec![text("m1"), Value::Number(0), Value::Number(500)]),
    ];
    let of_set = |more: &[i64]| {
        let set = [text("c1"), text("agent:1"), text("m1")].into_iter();
        set.chain([1].iter().chain(more).map(|number| Value::Number(*number))).collect::<Vec<_>>()
    };
    let versions = match database.is_postgres() {
        true => {
            [versions::PUT, versions::PUT_LATE].map(|put| (versions::number_put(put), of_set(&[100_000, 0]))).to_vec()
        }
        false => vec![
            (versions::PUT.to_owned(), of_set(&[100_000])),
            (versions::PUT_LATE.to_owned(), of_set(&[100_000])),
            (versions::number(), of_set(&[0])),
        ],
    };
    let sweeps = browsers::SWEEP_HANDED_OUT.map(|sql| (sql.to_owned(), vec![Value::Number(10), Value::Number(5)]));
    let links_of = |principal: Option<&Principal>, chat: Option<&ChatId>| {
        let (sql, values) = links::link_search(&LinkFilter { principal: principal.cloned(), chat: chat.cloned() });
        let page = [text("l1"), Value::Number(10), Value::Number(100)];
        (sql, page.into_iter().chain(values.into_iter().map(Value::Text)).collect::<Vec<_>>())
    };
    let every_link = [
        links_of(None, None),
        links_of(Some(&principal), None),
        links_of(None, Some(&chat)),
        links_of(Some(&principal), Some(&chat)),
    ];
    let statements = statements.into_iter().chain(every_link);
    for (sql, values) in statements.chain(reads).chain(versions).chain(sweeps) {
        let steps = plan(&store, database, &sql, &values).await;
        assert!(!steps.is_empty());
        // SQLite goes through what a part of the statement has found as well.
        let is_found =
            |step: &str| ["SCAN (subquery", "SCAN hits", "SCAN chosen"].iter().any(|found| step.starts_with(found));
        let is_scan = |step: &str| step.starts_with("SCAN") && !is_found(step);
        let scans = |step: &&String| step.contains("Seq Scan") || is_scan(step.trim_start());
        assert_eq!(steps.iter().find(scans), None, "{sql}\n{}", steps.join("\n"));
    }
    // The check can fail.
    let steps = plan(&store, database, "SELECT * FROM entries WHERE media_type = $1", &[text("x")]).await;
    assert!(steps.iter().any(|step| step.contains("Seq Scan") || step.contains("SCAN")), "{steps:?}");
}

async fn a_blob_that_a_manifest_repeats_is_in_a_chat_once(database: &TestDatabase) {
    let store = filled(database).await;
    let count = async |sql: &str| -> i64 {
        sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_one(&store.0.reader).await.unwrap().get(0)
    };
    let met = count("SELECT count(*) FROM chat_hashes WHERE sha256 = 'b7' AND position >= 0").await;
    let sets = "SELECT count(*) FROM (SELECT DISTINCT a.chat, a.manifest, a.agent FROM announcements a \
                JOIN entries e ON e.manifest = a.manifest WHERE e.sha256 = 'b7') s";
    assert!(met > 0);
    assert_eq!(met, count(sets).await);
}

/// A search of hashes by `user:1`, who takes part in chat `c1`, for `hash`, which need not look like one.
fn searches(hash: &str) -> [(String, Vec<Value>); 5] {
    let principal: Principal = "user:1".parse().unwrap();
    let (free, any, name) = (Scope { principal: &principal, chats: None }, Sha256::of(b""), "name1".parse().unwrap());
    let value = |value: String| text(if value == any.to_hex() { hash.to_owned() } else { value });
    [
        blob_search(free, None, &any, TaskRule::Any, 64),
        blob_search(free, Some(&name), &any, TaskRule::Is("t1"), 64),
        manifest_search(free, None, &any, TaskRule::Any, 64),
        manifest_search(free, Some(&name), &any, TaskRule::Is("t1"), 64),
        hash_tasks(free, None, &any, 64),
    ]
    .map(|search| (search.sql, search.values.into_iter().map(value).collect()))
}

async fn a_search_by_hash_starts_from_the_searchers_chats(database: &TestDatabase) {
    let store = filled(database).await;
    for (sql, values) in searches("b7") {
        let steps = plan(&store, database, &sql, &values).await.join("\n");
        if database.is_postgres() {
            let condition = "Index Cond: ((chat = p.chat) AND (sha256 = ";
            assert!(steps.contains(condition) && steps.contains("participants_by_principal"), "{sql}\n{steps}");
        } else {
            let search = "SEARCH h USING";
            let by = steps.lines().find(|step| step.contains(search)).unwrap_or_default();
            assert!(by.contains("(chat=? AND sha256=?"), "{sql}\n{steps}");
            let participants = steps.lines().find(|step| step.contains("SEARCH p ")).unwrap_or_default();
            assert!(participants.contains("participants_by_principal (principal=?"), "{sql}\n{steps}");
        }
        // Nor does it look at what its sets' agents announced in other chats.
        assert!(!steps.contains("h.chat = chat") && !steps.contains("manifest_trees"), "{sql}\n{steps}");
    }
}

/// How many rows a statement visits on Postgres: all that its steps bring or put aside.
async fn visited(store: &Store, sql: &str, values: &[Value]) -> u64 {
    let mut query = sqlx::query(AssertSqlSafe(format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {sql}")));
    for value in values {
        query = match value {
            Value::Text(text) => query.bind(text.as_str()),
            Value::Number(number) => query.bind(*number),
        };
    }
    let number = |line: &str, name: &str| -> Option<f64> {
        let rest = &line[line.find(name)? + name.len()..];
        rest.split(|c: char| c != '.' && !c.is_ascii_digit()).next()?.parse().ok()
    };
    let steps: Vec<String> =
        query.fetch_all(&store.0.writer).await.unwrap().iter().map(|step| step.get::<String, _>(0)).collect();
    let (mut rows, mut loops) = (0.0, 1.0);
    for step in &steps {
        if let Some(actual) = number(step, "actual rows=") {
            loops = number(step, "loops=").unwrap_or(1.0);
            rows += actual * loops;
        }
        rows += number(step, "Rows Removed by Filter: ").map_or(0.0, |removed| removed * loops);
    }
    assert!(rows >= 0.0 && steps.iter().any(|step| step.contains("actual rows=")), "{steps:?}");
    rows as u64
}

async fn what_is_announced_elsewhere_or_again_is_not_visited(database: &TestDatabase) {
    // How many rows it visits, SQLite does not tell: there the plan has to do.
    if !database.is_postgres() {
        return;
    }
    let store = filled(database).await;
    for sql in [
        // Listed in every chat but c1, and in c1 again and again under one task after another.
        "INSERT INTO chat_hashes SELECT chat, 'foreign', manifest, agent, position, since FROM chat_hashes \
         WHERE chat <> 'c1' AND position >= 0",
        "INSERT INTO announcements (id, chat, agent, manifest, manifest_size, task_id, created_at, updated_at) \
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) \
         SELECT 1000000 + i, 'c1', 'agent:1', 'm1', 1, 'u' || i, 0, 0 FROM n",
        "INSERT INTO entries (manifest, position, path, size, sha256, media_type, kind, leads) \
         VALUES ('m1', 99, 'own', 1, 'own', 'text/plain', 'file', 1)",
        "INSERT INTO chat_hashes VALUES ('c1', 'own', 'm1', 'agent:1', 99, 1)",
        "ANALYZE",
    ] {
        sqlx::query(sql).execute(&store.0.writer).await.unwrap();
    }
    for ((unknown, foreign), own) in searches("unknown").into_iter().zip(searches("foreign")).zip(searches("own")) {
        let least = visited(&store, &unknown.0, &unknown.1).await;
        assert_eq!(visited(&store, &foreign.0, &foreign.1).await, least, "{}", foreign.0);
        let most = visited(&store, &own.0, &own.1).await;
        // The tasks themselves are as many as are asked for.
        assert!(most <= least + 200, "{most} and {least}: {}", own.0);
    }
    // The count can tell.
    let all = visited(&store, "SELECT count(*) FROM chat_hashes WHERE sha256 = $1", &[text("foreign")]).await;
    assert!(all > 1000, "{all}");
}

async fn a_page_visits_no_more_than_its_chat_has(database: &TestDatabase) {
    if !database.is_postgres() {
        return;
    }
    let store = filled(database).await;
    for sql in [
        "INSERT INTO entries WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1999) \
         SELECT 'm1', 1000 + i, 'x' || i, 1, 'x' || i, 'text/plain', 'file', CAST(NULL AS BIGINT), \
         CAST(NULL AS BYTEA), CAST(NULL AS TEXT), 1, CAST(NULL AS TEXT), CAST(NULL AS TEXT) FROM n",
        "INSERT INTO chat_hashes WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1999) \
         SELECT 'c1', 'x' || i, 'm1', 'agent:1', 1000 + i, 1 FROM n",
        "INSERT INTO files WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1999) \
         SELECT 200000 + i, 'c1', 'agent:1', 'x' || i, 1, 'x' || i, 1, 'text/plain', 'file', 1 FROM n",
        "INSERT INTO file_versions WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1999) \
         SELECT 200000 + i, 1, 'x' || i, 1, 'text/plain', 'file', 1, 0 FROM n",
        "ANALYZE",
    ] {
        sqlx::query(sql).execute(&store.0.writer).await.unwrap();
    }
    let principal: Principal = "user:1".parse().unwrap();
    let (scope, chat) = (Scope { principal: &principal, chats: None }, "c1".parse().unwrap());
    let of = |search: Search| (search.sql, search.values.into_iter().map(Value::Text).collect::<Vec<_>>());
    let set = [text("c1"), text("m1"), text("agent:1"), Value::Number(1), Value::Number(900), Value::Number(100)];
    for (sql, values) in [
        (versions::latest_sql(), vec![text("c1"), Value::Number(199_999), Value::Number(100)]),
        (versions::versions_sql(), vec![text("c1"), Value::Number(200_000), Value::Number(9), Value::Number(100)]),
        (sets::SETS.to_owned(), vec![text("c1"), Value::Number(i64::MAX), Value::Number(100)]),
        (sets::ENTRIES.to_owned(), set.to_vec()),
        of(version_search(scope, &chat, (FileId(200_000), 1), 64)),
        of(file_search(scope, &chat, &Sha256::of(b""), "x1", 64)),
    ] {
        let most = visited(&store, &sql, &values).await;
        // A few for each of the chat's 2000 files at most, and not each of them for every other.
        assert!(most < 8000, "{most} rows for a page of 100: {sql}");
    }
}
