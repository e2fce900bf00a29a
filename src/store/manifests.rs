use std::collections::HashSet;

use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

use super::{Store, StoreError, rows};
use crate::protocol::{Entry, Manifest, Sha256, TaskId};

/// Columns of `entries`, and how many rows one statement takes: far below both databases' limits of bound values
/// (32,766 on SQLite, 65,535 on Postgres), and no faster above.
const ENTRY_COLUMNS: usize = 11;
const ENTRY_ROWS: usize = 250;

impl Store {
    /// A manifest's canonical bytes. Says nothing about who may read them.
    pub async fn manifest_bytes(&self, manifest: &Sha256) -> Result<Option<bytes::Bytes>, StoreError> {
        self.bounded(async {
            let query = sqlx::query("SELECT bytes FROM manifests WHERE sha256 = $1").bind(manifest.to_hex());
            let found = query.fetch_optional(&self.0.reader).await?;
            found.map(|row| row.try_get::<Vec<u8>, _>(0).map(bytes::Bytes::from)).transpose()
        })
        .await
    }

    /// Removes up to `limit` manifests that no announcement names any more, with their entries. Returns how many.
    pub async fn sweep_manifests(&self, limit: u32) -> Result<u64, StoreError> {
        let orphans = self
            .bounded(async {
                let sql = "SELECT sha256 FROM manifests WHERE NOT EXISTS \
                           (SELECT 1 FROM announcements a WHERE a.manifest = manifests.sha256) LIMIT $1";
                let found = sqlx::query(sql).bind(i64::from(limit)).fetch_all(&self.0.reader).await?;
                found.iter().map(|row| row.try_get::<String, _>(0)).collect::<Result<Vec<_>, _>>()
            })
            .await?;
        let mut swept = 0;
        for manifest in orphans {
            let store = self.clone();
            let remove = async move {
                let mut tx = store.begin().await?;
                let sql = "DELETE FROM manifests WHERE sha256 = $1 AND NOT EXISTS \
                           (SELECT 1 FROM announcements a WHERE a.manifest = manifests.sha256)";
                let removed = sqlx::query(sql).bind(&manifest).execute(&mut *tx).await?.rows_affected();
                if removed > 0 {
                    sqlx::query("DELETE FROM entries WHERE manifest = $1").bind(&manifest).execute(&mut *tx).await?;
                }
                tx.commit().await?;
                Ok(removed)
            };
            match self.write(remove).await {
                Ok(removed) => swept += removed,
                // Announced again in the meantime: the announcement's key holds the manifest in place.
                Err(StoreError::Failed(error)) if is_foreign_key(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(swept)
    }
}

pub(super) fn is_foreign_key(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|refusal| refusal.is_foreign_key_violation())
}

/// Stores a manifest and its entries, unless another announcement has done so.
pub(super) async fn insert(conn: &mut AnyConnection, manifest: &Manifest) -> Result<(), sqlx::Error> {
    let total_size = manifest.entries.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.size));
    let inserted = sqlx::query(
        "INSERT INTO manifests \
         (sha256, size, bytes, created_at, expires_at, producer_task, entry_count, total_size, locations) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (sha256) DO NOTHING",
    )
    .bind(manifest.identity.to_hex())
    .bind(rows::signed(manifest.canonical.len() as u64)?)
    .bind(manifest.canonical.to_vec())
    .bind(manifest.created_at)
    .bind(manifest.expires_at)
    .bind(manifest.producer_task.as_ref().map(TaskId::as_str))
    .bind(rows::signed(manifest.entries.len() as u64)?)
    // 10,000 entries of at most 2^53 - 1 bytes may be more than a BIGINT holds.
    .bind(i64::try_from(total_size).unwrap_or(i64::MAX))
    .bind(rows::locations_text(Some(&manifest.locations))?)
    .execute(&mut *conn)
    .await?
    .rows_affected();
    if inserted > 0 {
        insert_entries(conn, manifest).await?;
    }
    Ok(())
}

async fn insert_entries(conn: &mut AnyConnection, manifest: &Manifest) -> Result<(), sqlx::Error> {
    let identity = manifest.identity.to_hex();
    let mut seen = HashSet::with_capacity(manifest.entries.len());
    let mut position = 0;
    for some in manifest.entries.chunks(ENTRY_ROWS) {
        // Only the statement of full length comes again.
        let mut query = sqlx::query(AssertSqlSafe(insert_sql(some.len()))).persistent(some.len() == ENTRY_ROWS);
        for entry in some {
            let Entry { path, size, sha256, media_type, kind, chunks, locations } = entry;
            query = query
                .bind(identity.clone())
                .bind(position)
                .bind(path.clone())
                .bind(rows::signed(*size)?)
                .bind(sha256.to_hex())
                .bind(media_type.clone())
                .bind(rows::kind_text(*kind))
                .bind(chunks.as_ref().map(|chunks| rows::signed(chunks.chunk_size)).transpose()?)
                .bind(chunks.as_ref().map(rows::hashes_bytes))
                .bind(rows::locations_text(locations.as_deref())?)
                .bind(i64::from(seen.insert(*sha256)));
            position += 1_i64;
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

fn insert_sql(rows: usize) -> String {
    let values: Vec<String> =
        (0..rows).map(|row| format!("({})", rows::placeholders(1 + row * ENTRY_COLUMNS, ENTRY_COLUMNS))).collect();
    format!(
        "INSERT INTO entries (manifest, position, path, size, sha256, media_type, kind, chunk_size, chunk_hashes, \
         locations, leads) VALUES {}",
        values.join(", ")
    )
}
