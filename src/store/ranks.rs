//! Who announced a blob first, where the announcement that did has made way for a later state of its task.

use std::collections::HashMap;

use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

use super::dialect::Dialect;
use crate::protocol::{Principal, Sha256};

/// Rows to a statement.
const ROWS: usize = 500;

/// An announcement that earlier unfinished sets of its task in the same place make way for.
pub(super) struct Successor<'a> {
    pub(super) id: i64,
    pub(super) agent: &'a Principal,
    pub(super) task: &'a str,
    /// As [`super::announcements::FIND`] writes it.
    pub(super) place: &'a str,
    pub(super) manifest: Sha256,
}

/// The blobs of the sets that make way, and since when each of them stands there.
pub(super) const OF_PREDECESSORS: &str = "SELECT e.sha256, e.size, CAST(MIN(COALESCE(r.since, a.id)) AS BIGINT) AS since \
    FROM announcements a JOIN entries e ON e.manifest = a.manifest AND e.leads = 1 \
    LEFT JOIN ranks r ON r.announcement = a.id AND r.position = e.position \
    WHERE a.agent = $1 AND a.task_id = $2 AND a.id < $3 AND a.done < a.total AND a.versioned = 0 \
    AND COALESCE('c:' || a.chat, 's:' || a.session_id, '') = $4 GROUP BY e.sha256, e.size";

/// The blobs of a set.
pub(super) const OF_SET: &str = "SELECT position, sha256, size FROM entries WHERE manifest = $1 AND leads = 1";

/// Gives the blobs that both list the place that they have in the sets that make way. Before these are removed. One that
/// is said to be of another size now is another claim, and later than those of before.
///
/// The two are put together here and not in SQL: how many rows a manifest has that was just written no database knows,
/// and planned for a few it looks at every pair of thousands. Whether there were any.
pub(super) async fn carry(conn: &mut AnyConnection, to: &Successor<'_>) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(OF_PREDECESSORS).persistent(false).bind(to.agent.as_str()).bind(to.task);
    let found = query.bind(to.id).bind(to.place).fetch_all(&mut *conn).await?;
    if found.is_empty() {
        return Ok(false);
    }
    let mut since: HashMap<(String, i64), i64> = HashMap::with_capacity(found.len());
    for row in &found {
        since.insert((row.try_get("sha256")?, row.try_get("size")?), row.try_get("since")?);
    }
    let listed = sqlx::query(OF_SET).bind(to.manifest.to_hex()).fetch_all(&mut *conn).await?;
    let mut ranks: Vec<(i64, i64)> = Vec::new();
    for row in &listed {
        let blob = (row.try_get("sha256")?, row.try_get("size")?);
        if let Some(since) = since.get(&blob) {
            ranks.push((row.try_get("position")?, *since));
        }
    }
    let carried = !ranks.is_empty();
    for some in ranks.chunks(ROWS) {
        let sql = format!(
            "INSERT INTO ranks (announcement, position, since) VALUES {} ON CONFLICT (announcement, position) \
             DO UPDATE SET since = excluded.since WHERE ranks.since > excluded.since",
            Dialect::of(conn).tuples(some.len(), 3)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        for (position, since) in some {
            query = query.bind(to.id).bind(*position).bind(*since);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(carried)
}
