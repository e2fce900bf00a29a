use std::sync::Arc;

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, AssertSqlSafe, Row as _};

use super::dialect::Dialect;
use super::entries::Prepared;
use super::{Store, StoreError, hashes, rows};
use crate::protocol::{Manifest, Principal, Sha256, Tree};

/// Nested manifests to a statement.
const MANIFEST_ROWS: usize = 50;
/// Places in a tree to a statement.
const TREE_ROWS: usize = 250;

/// A manifest that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Bytes of its canonical form.
    pub size: u64,
    /// Its entries, and where it was announced as a set those of what is nested in it.
    pub entries: u64,
}

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

    /// A manifest that this agent has announced, by itself or nested in a set. What only others have announced is not
    /// known here: a hash alone grants nothing.
    pub async fn announced_by(&self, agent: &Principal, manifest: &Sha256) -> Result<Option<Held>, StoreError> {
        self.bounded(async {
            let query = sqlx::query(ANNOUNCED_BY).bind(manifest.to_hex()).bind(agent.as_str());
            let found = query.fetch_optional(&self.0.reader).await?;
            let held =
                |row| Ok(Held { size: rows::unsigned(&row, "size")?, entries: rows::unsigned(&row, "entry_count")? });
            found.map(held).transpose()
        })
        .await
    }

    /// Removes up to `limit` manifests that no announcement names any more, with their entries. Returns how many.
    /// Manifests nested in one that is removed are left for the next time.
    pub async fn sweep_manifests(&self, limit: u32) -> Result<u64, StoreError> {
        let orphans = self
            .bounded(async {
                let sql = "SELECT sha256 FROM manifests WHERE NOT EXISTS \
                           (SELECT 1 FROM announcements a WHERE a.manifest = manifests.sha256) AND NOT EXISTS \
                           (SELECT 1 FROM manifest_trees t WHERE t.manifest = manifests.sha256 AND t.root <> manifests.sha256) LIMIT $1";
                let found = sqlx::query(sql).bind(i64::from(limit)).fetch_all(&self.0.reader).await?;
                found.iter().map(|row| row.try_get::<String, _>(0)).collect::<Result<Vec<_>, _>>()
            })
            .await?;
        let mut swept = 0;
        for manifest in orphans {
            let store = self.clone();
            let remove = async move {
                let mut tx = store.begin().await?;
                // Before it, and not by its key: whether Postgres looks first at this key or at the one that says that it is
                // in its own tree is a matter of chance.
                sqlx::query("DELETE FROM manifest_trees WHERE root = $1").bind(&manifest).execute(&mut *tx).await?;
                let sql = "DELETE FROM manifests WHERE sha256 = $1 AND NOT EXISTS \
                           (SELECT 1 FROM announcements a WHERE a.manifest = manifests.sha256) AND NOT EXISTS \
                           (SELECT 1 FROM manifest_trees t WHERE t.manifest = manifests.sha256 AND t.root <> manifests.sha256)";
                let removed = sqlx::query(sql).bind(&manifest).execute(&mut *tx).await?.rows_affected();
                if removed > 0 {
                    sqlx::query("DELETE FROM entries WHERE manifest = $1").bind(&manifest).execute(&mut *tx).await?;
                    hashes::forget_manifest(&mut tx, &manifest).await?;
                    tx.commit().await?;
                }
                Ok(removed)
            };
            // Nobody could read it: what announced it went before.
            match self.note(remove).await {
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

/// A manifest that an agent has announced, by itself or nested in another. (A set is kept only when every manifest of
/// its tree came from its agent.)
pub(super) const ANNOUNCED_BY: &str = "SELECT m.size, m.entry_count FROM manifests m WHERE m.sha256 = $1 AND EXISTS (\
    SELECT 1 FROM manifest_trees t JOIN announcements a ON a.manifest = t.root WHERE t.manifest = $1 AND a.agent = $2)";

const COLUMNS: &str =
    "sha256, size, bytes, created_at, expires_at, producer_task, entry_count, total_size, locations, listed";
const COLUMN_COUNT: usize = 10;

/// Stores a set's manifest, those nested in it and its entries, unless another announcement has done so. Where the
/// statements for the entries of a large set are not made yet, they are while the database takes the manifest.
pub(super) async fn insert(
    conn: &mut AnyConnection,
    tree: &Arc<Tree>,
    entries: Option<Prepared>,
) -> Result<(), sqlx::Error> {
    let entries = entries.unwrap_or_else(|| Prepared::of(tree, Dialect::of(conn)));
    let sql = format!(
        "INSERT INTO manifests ({COLUMNS}) VALUES ({}) \
         ON CONFLICT (sha256) DO UPDATE SET listed = 1, entry_count = excluded.entry_count, \
         total_size = excluded.total_size WHERE manifests.listed = 0",
        rows::placeholders(1, COLUMN_COUNT)
    );
    let counts = (tree.entries().len() as u64, tree.total_size());
    let query = bind_manifest(sqlx::query(AssertSqlSafe(sql)), tree.root(), counts, true)?;
    if query.execute(&mut *conn).await?.rows_affected() > 0 {
        insert_nested(conn, tree).await?;
        entries.insert(conn).await?;
    }
    Ok(())
}

fn bind_manifest<'q>(
    query: Query<'q, Any, AnyArguments>,
    manifest: &'q Manifest,
    (entries, total_size): (u64, u64),
    listed: bool,
) -> Result<Query<'q, Any, AnyArguments>, sqlx::Error> {
    Ok(query
        .bind(manifest.identity.to_hex())
        .bind(rows::signed(manifest.canonical.len() as u64)?)
        .bind(&*manifest.canonical)
        .bind(manifest.created_at)
        .bind(manifest.expires_at)
        .bind(manifest.producer_task.as_ref().map(|task| task.as_str().to_owned()))
        .bind(rows::signed(entries)?)
        .bind(rows::signed(total_size)?)
        .bind(rows::locations_text(Some(&manifest.locations))?)
        .bind(i64::from(listed)))
}

/// Stores the manifests nested in a set, and which manifests its tree has.
async fn insert_nested(conn: &mut AnyConnection, tree: &Tree) -> Result<(), sqlx::Error> {
    let root = tree.root().identity;
    // In one order everywhere, so that two sets that share some do not wait for each other.
    let mut nested: Vec<_> = tree.nested().iter().collect();
    nested.sort_unstable_by_key(|manifest| manifest.identity);
    for some in nested.chunks(MANIFEST_ROWS) {
        let sql = format!(
            "INSERT INTO manifests ({COLUMNS}) VALUES {} ON CONFLICT (sha256) DO NOTHING",
            Dialect::of(conn).tuples(some.len(), COLUMN_COUNT)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        for manifest in some {
            let total = manifest.entries.iter().map(|entry| entry.size).sum();
            query = bind_manifest(query, manifest, (manifest.entries.len() as u64, total), false)?;
        }
        query.execute(&mut *conn).await?;
    }
    let all: Vec<Sha256> = nested.iter().map(|manifest| manifest.identity).chain([root]).collect();
    for some in all.chunks(TREE_ROWS) {
        let values = Dialect::of(conn).tuples(some.len(), 2);
        let sql = format!("INSERT INTO manifest_trees (root, manifest) VALUES {values}");
        let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        for manifest in some {
            query = query.bind(root.to_hex()).bind(manifest.to_hex());
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}
