//! Every statement that meets a table which grows finds its rows by an index, on both databases.

#[path = "../../tests/support/db.rs"]
mod db;

use sqlx::{AssertSqlSafe, Row as _};

use super::audit::read_search;
use super::offers::{Search, blob_search, file_search, manifest_search, set_search, version_search};
use super::{
    FileId, Outdated, ReadFilter, Scope, Store, StoreOptions, TaskRule, agents, announcements, audit, browsers, chats,
    endpoints, keys, links, manifests, nonces, quota, ranks, retention, sessions, sets, versions,
};
use crate::on_both_databases;
use crate::protocol::{ChatId, Principal, Sha256};
use db::TestDatabase;

on_both_databases!(rows_are_found_by_index, repeated_blobs_meet_a_manifest_once);

/// Enough rows that a planner sees the point of an index.
const ROWS: [&str; 20] = [
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
    for sql in ROWS {
        // As wide as a row with a few locations.
        let sql = sql.replace("[wide]", &"x".repeat(1500));
        sqlx::query(AssertSqlSafe(sql)).execute(&store.0.writer).await.unwrap();
    }
    store
}

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
        of(manifest_search(limited, Some(&name), &hash, TaskRule::None)),
        of(set_search(free, &chat, &hash, 64)),
        (sets::SETS.to_owned(), vec![text("c1"), Value::Number(i64::MAX), Value::Number(100)]),
        (sets::SET.to_owned(), vec![Value::Number(7)]),
        (sets::OF_SESSION.to_owned(), vec![text("agent:1"), text("s1"), text("c1"), Value::Number(65)]),
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
        (
            versions::PUT.to_owned(),
            vec![text("c1"), text("agent:1"), text("m1"), Value::Number(1), Value::Number(100_000)],
        ),
        (
            versions::PUT_LATE.to_owned(),
            vec![text("c1"), text("agent:1"), text("m1"), Value::Number(1), Value::Number(100_000)],
        ),
        (ranks::OF_PREDECESSORS.to_owned(), vec![text("agent:1"), text("t1"), Value::Number(1), text("c:c1")]),
        (ranks::OF_SET.to_owned(), vec![text("m1")]),
        (sessions::WAITING.to_owned(), vec![text("agent:1"), text("s1")]),
        (versions::NUMBER.to_owned(), vec![Value::Number(1), Value::Number(0)]),
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
        (agents::KNOWS.to_owned(), vec![text("agent:1")]),
        (endpoints::OF_PRINCIPAL.to_owned(), vec![text("agent:1")]),
        (endpoints::known_at(2), vec![text("h1:443"), text("h2:443")]),
        (agents::among(2), vec![text("agent:1"), text("agent:2")]),
        (agents::holders_of(2), vec![text("name1"), text("name2")]),
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
    ];
    let sweeps = browsers::SWEEP_HANDED_OUT.map(|sql| (sql.to_owned(), vec![Value::Number(10), Value::Number(5)]));
    for (sql, values) in statements.into_iter().chain(reads).chain(sweeps) {
        let steps = plan(&store, database, &sql, &values).await;
        assert!(!steps.is_empty());
        // SQLite goes through what a part of the statement has found as well.
        let is_scan = |step: &str| step.starts_with("SCAN") && !step.starts_with("SCAN (subquery");
        let scans = |step: &&String| step.contains("Seq Scan") || is_scan(step.trim_start());
        assert_eq!(steps.iter().find(scans), None, "{sql}\n{}", steps.join("\n"));
    }
    // The check can fail.
    let steps = plan(&store, database, "SELECT * FROM entries WHERE media_type = $1", &[text("x")]).await;
    assert!(steps.iter().any(|step| step.contains("Seq Scan") || step.contains("SCAN")), "{steps:?}");
}

async fn repeated_blobs_meet_a_manifest_once(database: &TestDatabase) {
    let store = filled(database).await;
    let sql = "SELECT count(*) FROM entries e JOIN announcements a ON a.manifest = e.manifest \
               WHERE e.sha256 = 'b7' AND e.leads = 1";
    let met: i64 = sqlx::query(sql).fetch_one(&store.0.reader).await.unwrap().get(0);
    let listed = "SELECT count(DISTINCT a.id) FROM entries e JOIN announcements a ON a.manifest = e.manifest \
                  WHERE e.sha256 = 'b7'";
    let announcements: i64 = sqlx::query(listed).fetch_one(&store.0.reader).await.unwrap().get(0);
    assert!(met > 0);
    assert_eq!(met, announcements);
}
