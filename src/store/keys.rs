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
