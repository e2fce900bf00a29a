//! Who is known at which host and port.

use std::collections::{BTreeSet, HashMap, HashSet};

use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

use super::{Store, StoreError, rows};
use crate::protocol::Principal;
use crate::protocol::plain_url;

/// Most hosts and ports at which one agent is known by its announcements. What it names beyond is not its own.
const ENDPOINTS: usize = 64;

/// How exactly it is noted when an agent last named one, and how long it is kept at least: an announcement may be read
/// for some minutes before it is kept.
const SEEN_EVERY_MS: i64 = 10 * 60_000;
const KEPT_MS: i64 = 60 * 60_000;

/// Those of one principal.
pub(super) const OF_PRINCIPAL: &str = "SELECT authority, seen_at FROM endpoints WHERE principal = $1";

/// What nobody is known by any more.
pub(super) const SWEEP: &str = "DELETE FROM endpoints WHERE (authority, principal) IN \
     (SELECT e.authority, e.principal FROM endpoints e WHERE e.seen_at < $1 \
      AND NOT EXISTS (SELECT 1 FROM announcements n WHERE n.agent = e.principal) \
      AND (e.announced = 1 OR NOT EXISTS (SELECT 1 FROM agents a WHERE a.principal = e.principal) \
       AND NOT EXISTS (SELECT 1 FROM participants p WHERE p.principal = e.principal) \
       AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.agent = e.principal) \
       AND NOT EXISTS (SELECT 1 FROM keys k WHERE k.principal = e.principal)) LIMIT $2)";

impl Store {
    /// Notes that an agent known by its token names locations at these hosts and ports, before anything announced there can be
    /// read. Beyond some hosts and ports nothing is noted.
    pub async fn claim_endpoints(&self, agent: &Principal, mut named: BTreeSet<String>) -> Result<(), StoreError> {
        if named.is_empty() || agent.agent_url().is_some() {
            return Ok(());
        }
        let known: HashMap<String, i64> = self
            .bounded(async {
                let found = sqlx::query(OF_PRINCIPAL).bind(agent.as_str()).fetch_all(&self.0.reader).await?;
                found.iter().map(|row| Ok((row.try_get("authority")?, row.try_get("seen_at")?))).collect()
            })
            .await?;
        let now = self.now();
        named.retain(|authority| known.get(authority).is_none_or(|seen| seen.saturating_add(SEEN_EVERY_MS) <= now));
        let mut room = ENDPOINTS.saturating_sub(known.len());
        let new = named.iter().filter(|authority| !known.contains_key(*authority)).count().min(room) > 0;
        named.retain(|authority| {
            let fits = known.contains_key(authority) || room > 0;
            room = room.saturating_sub(usize::from(!known.contains_key(authority)));
            fits
        });
        if named.is_empty() {
            return Ok(());
        }
        let (store, agent) = (self.clone(), agent.clone());
        let write = async move {
            let mut tx = store.begin().await?;
            for authority in &named {
                insert(&mut tx, authority, &agent, true, now).await?;
            }
            tx.commit().await
        };
        // For whom a host's places are asked in the gateway's name may be another matter now.
        if new { self.write(write).await } else { self.note(write).await }
    }

    /// Who is the only one known at each of these hosts and ports, where there is only one.
    pub async fn sole_at(&self, authorities: &HashSet<String>) -> Result<HashMap<String, Principal>, StoreError> {
        self.bounded(async {
            let mut sole = HashMap::new();
            let authorities: Vec<&String> = authorities.iter().collect();
            for some in authorities.chunks(500) {
                let mut query = sqlx::query(AssertSqlSafe(known_at(some.len()))).persistent(false);
                for authority in some {
                    query = query.bind(authority.as_str());
                }
                for row in query.fetch_all(&self.0.reader).await? {
                    let (one, other): (String, String) = (row.try_get("one")?, row.try_get("other")?);
                    if one == other {
                        sole.insert(row.try_get("authority")?, rows::parsed(&row, "one")?);
                    }
                }
            }
            Ok(sole)
        })
        .await
    }

    /// Forgets at most `limit` endpoints of those who are not known any more. How many it were.
    pub async fn sweep_endpoints(&self, limit: u32) -> Result<u64, StoreError> {
        let store = self.clone();
        self.note(async move {
            let mut tx = store.begin().await?;
            let swept = sqlx::query(SWEEP).bind(store.now() - KEPT_MS).bind(i64::from(limit)).execute(&mut *tx).await?;
            tx.commit().await?;
            Ok(swept.rows_affected())
        })
        .await
    }
}

/// Two of those who are known at some hosts and ports, which are the same where there is only one.
pub(super) fn known_at(authorities: usize) -> String {
    let list = rows::placeholders(1, authorities);
    format!(
        "SELECT authority, MIN(principal) AS one, MAX(principal) AS other FROM endpoints \
         WHERE authority IN ({list}) GROUP BY authority"
    )
}

/// Notes that an agent that is known by its URL is known, in the transaction in which it becomes so.
pub(super) async fn note(conn: &mut AnyConnection, principal: &Principal, now: i64) -> Result<(), sqlx::Error> {
    match principal.agent_url().and_then(plain_url::authority) {
        Some(authority) => insert(conn, &authority, principal, false, now).await,
        None => Ok(()),
    }
}

async fn insert(
    conn: &mut AnyConnection,
    authority: &str,
    principal: &Principal,
    announced: bool,
    now: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO endpoints (authority, principal, announced, seen_at) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (authority, principal) DO UPDATE SET seen_at = excluded.seen_at",
    )
    .bind(authority)
    .bind(principal.as_str())
    .bind(i64::from(announced))
    .bind(now)
    .execute(conn)
    .await
    .map(drop)
}
