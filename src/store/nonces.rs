use std::collections::{HashMap, HashSet};

use sqlx::{AssertSqlSafe, Row as _};

use super::{Store, StoreError, rows};
use crate::protocol::Principal;
use crate::protocol::signature::LEEWAY_SECS;

/// A nonce that a signature brought, and until when (Unix milliseconds) it could come again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nonce {
    /// Whose.
    pub principal: Principal,
    /// As it was sent.
    pub nonce: String,
    /// Forgotten after this.
    pub expires_at: i64,
}

/// How much longer than it is good for a nonce is remembered: a signature may be judged some time before its nonce is
/// spent, and on another node by another clock.
const KEPT_MS: i64 = 2 * LEEWAY_SECS * 1000;
/// Rows of one statement.
const ROWS: usize = 500;

pub(super) const SWEEP: &str = "DELETE FROM nonces WHERE (principal, nonce) IN \
     (SELECT principal, nonce FROM nonces WHERE expires_at < $1 ORDER BY expires_at LIMIT $2)";

/// Counts what some principals have, from the second placeholder on.
pub(super) fn count(principals: usize) -> String {
    let list = rows::placeholders(2, principals);
    format!(
        "SELECT principal, count(*) AS count FROM nonces WHERE expires_at >= $1 AND principal IN ({list}) \
         GROUP BY principal"
    )
}

impl Store {
    /// Remembers nonces, and answers which of them nobody had brought before. On return they are on disk, so that they
    /// are refused after a restart and on other nodes too.
    pub async fn spend_nonces(&self, mut nonces: Vec<Nonce>) -> Result<HashSet<(Principal, String)>, StoreError> {
        // In one order, so that two nodes that insert the same ones wait for each other instead of both.
        nonces.sort();
        nonces.dedup_by(|a, b| (&a.principal, &a.nonce) == (&b.principal, &b.nonce));
        let store = self.clone();
        self.note(async move {
            let mut tx = store.begin().await?;
            let mut fresh = HashSet::with_capacity(nonces.len());
            for some in nonces.chunks(ROWS) {
                let sql = format!(
                    "INSERT INTO nonces (principal, nonce, expires_at) VALUES {} ON CONFLICT DO NOTHING \
                     RETURNING principal, nonce",
                    store.0.dialect.tuples(some.len(), 3)
                );
                let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(some.len() == 1);
                for nonce in some {
                    query = query.bind(nonce.principal.as_str()).bind(nonce.nonce.as_str()).bind(nonce.expires_at);
                }
                for row in query.fetch_all(&mut *tx).await? {
                    fresh.insert((rows::parsed(&row, "principal")?, row.try_get("nonce")?));
                }
            }
            tx.commit().await?;
            Ok(fresh)
        })
        .await
    }

    /// How many nonces that have not expired by `now` (Unix milliseconds) are remembered for each of `principals`; one
    /// that is not in the answer has none.
    pub async fn count_nonces(
        &self,
        principals: &[Principal],
        now: i64,
    ) -> Result<HashMap<Principal, u64>, StoreError> {
        self.bounded(async {
            let mut counts = HashMap::new();
            for some in principals.chunks(ROWS) {
                let mut query = sqlx::query(AssertSqlSafe(count(some.len()))).persistent(false).bind(now);
                for principal in some {
                    query = query.bind(principal.as_str());
                }
                for row in query.fetch_all(&self.0.reader).await? {
                    counts.insert(rows::parsed(&row, "principal")?, rows::unsigned(&row, "count")?);
                }
            }
            Ok(counts)
        })
        .await
    }

    /// Forgets at most `limit` nonces that expired a while before `now` (Unix milliseconds). How many it were.
    pub async fn sweep_nonces(&self, now: i64, limit: u32) -> Result<u64, StoreError> {
        let store = self.clone();
        self.note(async move {
            let mut tx = store.begin().await?;
            let swept =
                sqlx::query(SWEEP).bind(now.saturating_sub(KEPT_MS)).bind(i64::from(limit)).execute(&mut *tx).await?;
            tx.commit().await?;
            Ok(swept.rows_affected())
        })
        .await
    }
}
