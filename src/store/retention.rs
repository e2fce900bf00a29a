//! What is removed because it has had its time: a few rows at once, each batch a transaction of its own.
//!
//! A transfer that runs has what it needs, so none of this ends one.

use sqlx::AssertSqlSafe;

use super::{Store, StoreError, first_id};

/// Which announcements have had their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outdated {
    /// Those that expired before, Unix milliseconds.
    ExpiredBefore(i64),
    /// Those that nothing was announced of since, Unix milliseconds.
    UntouchedSince(i64),
    /// Those made before, Unix milliseconds, that are still in no chat.
    UnboundBefore(i64),
}

impl Outdated {
    /// Finds up to `$1` of them.
    pub(super) fn search(self) -> String {
        let condition = match self {
            Self::ExpiredBefore(before) => format!("expires_at < {before}"),
            // Nothing is touched before it is made.
            Self::UntouchedSince(before) => format!("id < {} AND updated_at < {before}", first_id(before)),
            Self::UnboundBefore(before) => format!("chat IS NULL AND id < {}", first_id(before)),
        };
        format!("SELECT id FROM announcements WHERE {condition} LIMIT $1")
    }
}

impl Store {
    /// Removes up to `limit` announcements that have had their time; the answer is how many. Their manifests stay until
    /// [`sweep_manifests`](Self::sweep_manifests).
    pub async fn sweep_announcements(&self, outdated: Outdated, limit: u32) -> Result<u64, StoreError> {
        let search = outdated.search();
        let one = self.bounded(async {
            // The text is another at each moment.
            let query = sqlx::query(AssertSqlSafe(search.clone())).persistent(false).bind(1_i64);
            query.fetch_optional(&self.0.reader).await
        });
        if one.await?.is_none() {
            // A write makes every remembered answer void.
            return Ok(0);
        }
        let store = self.clone();
        self.write(async move {
            let mut tx = store.begin().await?;
            let sql = format!("DELETE FROM announcements WHERE id IN ({search})");
            let query = sqlx::query(AssertSqlSafe(sql)).persistent(false).bind(i64::from(limit));
            let removed = query.execute(&mut *tx).await?;
            tx.commit().await?;
            Ok(removed.rows_affected())
        })
        .await
    }

    /// Removes up to `limit` sessions that were bound before, Unix milliseconds. What was announced with them stays where
    /// it is.
    pub async fn sweep_sessions(&self, before: i64, limit: u32) -> Result<u64, StoreError> {
        let store = self.clone();
        self.note(async move {
            let mut tx = store.begin().await?;
            let removed = sqlx::query(SESSIONS).bind(before).bind(i64::from(limit)).execute(&mut *tx).await?;
            tx.commit().await?;
            Ok(removed.rows_affected())
        })
        .await
    }
}

/// Sessions that were bound before.
pub(super) const SESSIONS: &str = "DELETE FROM sessions WHERE session_id IN \
    (SELECT session_id FROM sessions WHERE created_at < $1 ORDER BY created_at LIMIT $2)";
