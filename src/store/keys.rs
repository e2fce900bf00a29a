use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{Store, StoreError, rows};
use crate::protocol::Principal;

/// Most keys that are held for one agent; the one that was seen least recently makes room.
const KEYS: i64 = 16;

/// Whether keys continue those that an agent is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuity {
    /// One of them was held, or none was held yet; now all of them are.
    Held,
    /// The agent is known, by other keys only. Nothing was changed.
    Broken,
}

/// A key that an agent is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldKey {
    /// Of RFC 7638.
    pub thumbprint: String,
    /// When it first signed, Unix milliseconds.
    pub first_seen_at: i64,
    /// When it last did, about.
    pub last_seen_at: i64,
}

/// The keys of an agent.
pub(super) const OF_AGENT: &str = "SELECT thumbprint, first_seen, last_seen FROM keys WHERE principal = $1 \
    ORDER BY last_seen DESC, first_seen DESC, thumbprint";
/// Agents whose keys are held.
pub(super) const AGENTS: &str = "SELECT DISTINCT principal FROM keys WHERE principal > $1 ORDER BY principal LIMIT $2";
/// Forgets the keys of those between two agents that have nothing and have not signed lately.
pub(super) const SWEEP: &str = "DELETE FROM keys WHERE last_seen < $1 AND principal BETWEEN $2 AND $3 \
    AND NOT EXISTS (SELECT 1 FROM keys k WHERE k.principal = keys.principal AND k.last_seen >= $1) \
    AND NOT EXISTS (SELECT 1 FROM agents n WHERE n.principal = keys.principal) \
    AND NOT EXISTS (SELECT 1 FROM announcements a WHERE a.agent = keys.principal) \
    AND NOT EXISTS (SELECT 1 FROM participants p WHERE p.principal = keys.principal)";

impl Store {
    /// Holds the keys that signed one request together, given by thumbprint, when one of them is held already, when the
    /// agent is not known yet, or when it need not be `continuous`. `now` is in Unix milliseconds.
    pub async fn hold_keys(
        &self,
        agent: &Principal,
        thumbprints: &[String],
        continuous: bool,
        now: i64,
    ) -> Result<Continuity, StoreError> {
        let (store, agent, thumbprints) = (self.clone(), agent.clone(), thumbprints.to_vec());
        self.note(async move {
            let mut tx = store.begin().await?;
            // Two first requests with different keys must not both be the first.
            store.0.dialect.lock_agent(&mut tx, &agent).await?;
            let held = sqlx::query("SELECT thumbprint FROM keys WHERE principal = $1")
                .bind(agent.as_str())
                .fetch_all(&mut *tx)
                .await?;
            let held =
                held.iter().map(|row| rows::parsed::<String>(row, "thumbprint")).collect::<Result<Vec<_>, _>>()?;
            if continuous && !held.is_empty() && !thumbprints.iter().any(|thumbprint| held.contains(thumbprint)) {
                return Ok(Continuity::Broken);
            }
            for thumbprint in &thumbprints {
                sqlx::query(
                    "INSERT INTO keys (principal, thumbprint, first_seen, last_seen) VALUES ($1, $2, $3, $3) \
                     ON CONFLICT (principal, thumbprint) DO UPDATE SET last_seen = excluded.last_seen",
                )
                .bind(agent.as_str())
                .bind(thumbprint.as_str())
                .bind(now)
                .execute(&mut *tx)
                .await?;
            }
            sqlx::query(
                "DELETE FROM keys WHERE principal = $1 AND thumbprint NOT IN \
                 (SELECT thumbprint FROM keys WHERE principal = $1 ORDER BY last_seen DESC, first_seen DESC LIMIT $2)",
            )
            .bind(agent.as_str())
            .bind(KEYS)
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(Continuity::Held)
        })
        .await
    }

    /// The keys that are held for an agent, the one that signed last in front.
    pub async fn keys(&self, agent: &Principal) -> Result<Vec<HeldKey>, StoreError> {
        self.bounded(async {
            let found = sqlx::query(OF_AGENT).bind(agent.as_str()).fetch_all(&self.0.reader).await?;
            let held = |row: &AnyRow| {
                Ok(HeldKey {
                    thumbprint: row.try_get("thumbprint")?,
                    first_seen_at: row.try_get("first_seen")?,
                    last_seen_at: row.try_get("last_seen")?,
                })
            };
            found.iter().map(held).collect()
        })
        .await
    }

    /// Forgets the keys of those among up to `limit` agents after one that have not signed since `before` (Unix
    /// milliseconds) and have nothing here: no name, no set, no chat. Whoever signs for such an agent next gets nothing by
    /// it. Returns where the next ones begin; none at the end.
    pub async fn sweep_keys(
        &self,
        before: i64,
        after: Option<&Principal>,
        limit: u32,
    ) -> Result<Option<Principal>, StoreError> {
        let looked_at = self
            .bounded(async {
                let query = sqlx::query(AGENTS).bind(after.map_or("", Principal::as_str)).bind(i64::from(limit));
                let found = query.fetch_all(&self.0.reader).await?;
                found.iter().map(|row| rows::parsed::<Principal>(row, "principal")).collect::<Result<Vec<_>, _>>()
            })
            .await?;
        let (Some(first), Some(last)) = (looked_at.first().cloned(), looked_at.last().cloned()) else {
            return Ok(None);
        };
        let (store, until) = (self.clone(), last.clone());
        self.note(async move {
            let mut tx = store.begin().await?;
            sqlx::query(SWEEP).bind(before).bind(first.as_str()).bind(until.as_str()).execute(&mut *tx).await?;
            tx.commit().await
        })
        .await?;
        Ok((looked_at.len() == usize::try_from(limit).unwrap_or(usize::MAX)).then_some(last))
    }

    /// Forgets every key of an agent, so that the next one that signs for it is taken for its own. Whether there was any.
    pub async fn forget_keys(&self, agent: &Principal) -> Result<bool, StoreError> {
        let (store, agent) = (self.clone(), agent.clone());
        self.note(async move {
            let mut tx = store.begin().await?;
            let forgotten =
                sqlx::query("DELETE FROM keys WHERE principal = $1").bind(agent.as_str()).execute(&mut *tx).await?;
            tx.commit().await?;
            Ok(forgotten.rows_affected() > 0)
        })
        .await
    }
}
