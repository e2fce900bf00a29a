//! Who read what: rows that are only ever added, listed and swept.

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

use super::dialect::Dialect;
use super::rows::{self, signed};
use super::{Cursor, Page, Store, StoreError, first_id};
use crate::protocol::{ByteRange, ChatId, Principal, Sha256};

/// One read of bytes by somebody who may read them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRecord {
    /// From [`Store::read_id`] at the read's end.
    pub id: i64,
    /// Unix milliseconds.
    pub started_at: i64,
    /// From the request to the last byte that was handed on.
    pub duration_ms: u64,
    /// Who read.
    pub principal: Principal,
    /// The chat whose set it was, where the route says so.
    pub chat: Option<ChatId>,
    /// Who was asked for bytes, in order. Nobody where the gateway itself had them.
    pub agents: Vec<Principal>,
    /// The blob, or manifest.
    pub sha256: Sha256,
    /// The path in the set, where the route says so.
    pub path: Option<String>,
    /// What was asked for.
    pub range: ByteRange,
    /// What was handed on.
    pub sent_bytes: u64,
    /// How it ended: an outcome of a transfer.
    pub outcome: String,
    /// The transfer's number in its process, where there was one.
    pub transfer: Option<u64>,
    /// The link that was used.
    pub link: Option<String>,
}

/// Which reads to list. What is absent does not matter.
#[derive(Debug, Clone, Default)]
pub struct ReadFilter {
    /// Who read.
    pub principal: Option<Principal>,
    /// In which chat.
    pub chat: Option<ChatId>,
    /// From which agent.
    pub agent: Option<Principal>,
    /// Which blob or manifest.
    pub sha256: Option<Sha256>,
    /// Ended at or after, Unix milliseconds.
    pub since: Option<i64>,
    /// Ended before, Unix milliseconds.
    pub until: Option<i64>,
}

impl Store {
    /// An id for a read that ends now.
    pub fn read_id(&self) -> i64 {
        self.next_id()
    }

    /// Writes reads down, all or none. Reads that are there already stay as they are: a batch whose commit had no
    /// answer may be written again.
    pub async fn add_reads(&self, reads: Vec<ReadRecord>) -> Result<(), StoreError> {
        let store = self.clone();
        self.note(async move {
            let mut tx = store.begin().await?;
            insert_reads(&mut tx, &reads).await?;
            let agents: Vec<_> =
                reads.iter().flat_map(|read| read.agents.iter().map(|agent| (agent.clone(), read.id))).collect();
            insert_agents(&mut tx, &agents).await?;
            tx.commit().await
        })
        .await
    }

    /// Reads, the latest first.
    pub async fn reads(
        &self,
        filter: &ReadFilter,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<ReadRecord>, StoreError> {
        let search = read_search(filter, after, limit);
        self.bounded(async {
            let mut query = sqlx::query(AssertSqlSafe(search.sql)).bind(search.from).bind(search.below);
            for value in &search.values {
                query = query.bind(value.as_str());
            }
            let found = query.fetch_all(&self.0.reader).await?;
            let reads = found.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            Ok(Page::cut(reads, limit, |read| Cursor(read.id)))
        })
        .await
    }

    /// Removes at most `limit` reads that ended before a time, and says how many those were.
    pub async fn sweep_reads(&self, before: i64, limit: u32) -> Result<u64, StoreError> {
        let store = self.clone();
        self.note(async move {
            let swept = sqlx::query(SWEEP_READS).bind(first_id(before)).bind(i64::from(limit));
            Ok(swept.execute(&store.0.writer).await?.rows_affected())
        })
        .await
    }
}

pub(super) const SWEEP_READS: &str =
    "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id < $1 ORDER BY id LIMIT $2)";

/// A statement and its values: the ids from `$1` on and below `$2`, then texts.
pub(super) struct ReadSearch {
    pub(super) sql: String,
    pub(super) from: i64,
    pub(super) below: i64,
    pub(super) values: Vec<String>,
}

pub(super) fn read_search(filter: &ReadFilter, after: Option<Cursor>, limit: u32) -> ReadSearch {
    let from = filter.since.map_or(i64::MIN, first_id);
    let until = filter.until.map_or(i64::MAX, first_id);
    let below = after.map_or(until, |Cursor(id)| id.min(until));
    let mut sql = "SELECT a.* FROM audit a".to_owned();
    let mut values = Vec::new();
    let mut clauses = String::new();
    let mut is = |column: &str, value: Option<String>| {
        if let Some(value) = value {
            values.push(value);
            clauses.push_str(&format!(" AND {column} = ${}", values.len() + 2));
        }
    };
    is("g.agent", filter.agent.as_ref().map(|agent| agent.as_str().to_owned()));
    is("a.principal", filter.principal.as_ref().map(|principal| principal.as_str().to_owned()));
    is("a.chat", filter.chat.as_ref().map(|chat| chat.as_str().to_owned()));
    is("a.sha256", filter.sha256.map(Sha256::to_hex));
    // Bounds on the table whose index is walked, so that a page costs its rows and no more.
    let walked = if filter.agent.is_some() { "g" } else { "a" };
    if filter.agent.is_some() {
        sql.push_str(" JOIN audit_agents g ON g.id = a.id");
    }
    sql.push_str(&format!(
        " WHERE {walked}.id >= $1 AND {walked}.id < $2{clauses} ORDER BY {walked}.id DESC LIMIT {}",
        i64::from(limit) + 1
    ));
    ReadSearch { sql, from, below, values }
}

/// Columns of `audit`, and so values of a row.
const COLUMNS: usize = 14;
/// Rows of one statement: what both databases take values for.
const ROWS: usize = 500;

async fn insert_reads(conn: &mut AnyConnection, reads: &[ReadRecord]) -> Result<(), sqlx::Error> {
    for some in reads.chunks(ROWS) {
        let sql = format!(
            "INSERT INTO audit (id, started_at, duration_ms, principal, chat, agents, sha256, path, range_start, \
             range_end, sent_bytes, outcome, transfer, link) VALUES {} ON CONFLICT (id) DO NOTHING",
            Dialect::of(conn).tuples(some.len(), COLUMNS)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        for read in some {
            let agents: Vec<_> = read.agents.iter().map(Principal::as_str).collect();
            let agents = serde_json::to_string(&agents).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
            query = query
                .bind(read.id)
                .bind(read.started_at)
                .bind(signed(read.duration_ms)?)
                .bind(read.principal.as_str())
                .bind(read.chat.as_ref().map(ChatId::as_str))
                .bind(agents)
                .bind(read.sha256.to_hex())
                .bind(read.path.as_deref())
                .bind(signed(read.range.start)?)
                .bind(signed(read.range.end)?)
                .bind(signed(read.sent_bytes)?)
                .bind(read.outcome.as_str())
                .bind(read.transfer.map(signed).transpose()?)
                .bind(read.link.as_deref());
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

async fn insert_agents(conn: &mut AnyConnection, agents: &[(Principal, i64)]) -> Result<(), sqlx::Error> {
    for some in agents.chunks(ROWS) {
        let sql = format!(
            "INSERT INTO audit_agents (agent, id) VALUES {} ON CONFLICT (agent, id) DO NOTHING",
            Dialect::of(conn).tuples(some.len(), 2)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        for (agent, id) in some {
            query = query.bind(agent.as_str()).bind(*id);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

fn read(row: &AnyRow) -> Result<ReadRecord, sqlx::Error> {
    let agents: Vec<Principal> = serde_json::from_str(&row.try_get::<String, _>("agents")?)
        .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    let transfer = row.try_get::<Option<i64>, _>("transfer")?;
    Ok(ReadRecord {
        id: row.try_get("id")?,
        started_at: row.try_get("started_at")?,
        duration_ms: rows::unsigned(row, "duration_ms")?,
        principal: rows::parsed(row, "principal")?,
        chat: rows::parsed_option(row, "chat")?,
        agents,
        sha256: rows::parsed(row, "sha256")?,
        path: row.try_get("path")?,
        range: ByteRange { start: rows::unsigned(row, "range_start")?, end: rows::unsigned(row, "range_end")? },
        sent_bytes: rows::unsigned(row, "sent_bytes")?,
        outcome: row.try_get("outcome")?,
        transfer: transfer.and_then(|transfer| transfer.try_into().ok()),
        link: row.try_get("link")?,
    })
}
