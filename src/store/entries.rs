//! The rows of a set's entries, and the statements that write them.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use sqlx::any::AnyArguments;
use sqlx::error::BoxDynError;
use sqlx::{AnyConnection, Arguments as _, AssertSqlSafe};
use tokio::task::JoinHandle;

use super::dialect::Dialect;
use super::{LARGE_ROWS, rows};
use crate::protocol::manifest::TreeEntry;
use crate::protocol::{Entry, Tree};

/// How many rows one statement takes: far below both databases' limits of bound values (32,766 on SQLite, 65,535 on
/// Postgres), and no faster above.
const ROWS: usize = 250;
/// Values that are bound for each row, the manifest aside, which is bound once for all of them.
const VALUES: usize = 12;
/// The same for an entry of a set that has neither nested manifests nor locations of single entries.
const PLAIN_VALUES: usize = 10;

/// The statements of full length: of a plain set and of any other, on SQLite and on Postgres.
static FULL: LazyLock<[[Arc<str>; 2]; 2]> = LazyLock::new(|| {
    [Dialect::Sqlite, Dialect::Postgres].map(|dialect| [true, false].map(|plain| text(dialect, plain, ROWS).into()))
});

fn full(dialect: Dialect, plain: bool) -> Arc<str> {
    let [sqlite, postgres] = &*FULL;
    let [of_plain, of_other] = if dialect == Dialect::Sqlite { sqlite } else { postgres };
    if plain { of_plain.clone() } else { of_other.clone() }
}

/// The manifest is bound last.
fn text(dialect: Dialect, plain: bool, count: usize) -> String {
    let (more, values) = if plain { ("", PLAIN_VALUES) } else { (", locations, owner", VALUES) };
    let manifest = count * values + 1;
    let row = |row: usize| format!("({}, ${manifest})", dialect.placeholders(1 + row * values, values));
    let rows: Vec<String> = (0..count).map(row).collect();
    format!(
        "INSERT INTO entries (position, path, size, sha256, media_type, kind, chunk_size, chunk_hashes, \
         chunks_sha256, leads{more}, manifest) VALUES {}",
        rows.join(", ")
    )
}

/// What is bound to the statements, in order.
pub(super) type Statements = Result<Vec<Statement>, BoxDynError>;

pub(super) struct Statement {
    sql: Arc<str>,
    values: AnyArguments,
    /// Only the statement of full length comes again.
    is_full: bool,
}

/// The statements for a set's entries: made, or in the making.
pub(super) enum Prepared {
    Done(Statements),
    Running(JoinHandle<Statements>),
}

impl Prepared {
    /// Of a large set they are made on another thread.
    pub(super) fn of(tree: &Arc<Tree>, dialect: Dialect) -> Self {
        if tree.entries().len() as u64 <= LARGE_ROWS {
            return Self::Done(statements(tree, dialect));
        }
        let tree = tree.clone();
        Self::Running(tokio::task::spawn_blocking(move || statements(&tree, dialect)))
    }

    /// The same once they are made: a database with one writer is not to wait for them in a transaction.
    pub(super) async fn made(self) -> Result<Self, sqlx::Error> {
        self.statements().await.map(Self::Done)
    }

    async fn statements(self) -> Result<Statements, sqlx::Error> {
        match self {
            Self::Done(statements) => Ok(statements),
            // It does not panic, and is broken off only when the process ends.
            Self::Running(task) => task.await.map_err(|_| sqlx::Error::WorkerCrashed),
        }
    }

    pub(super) async fn insert(self, conn: &mut AnyConnection) -> Result<(), sqlx::Error> {
        let statements = self.statements().await?;
        for Statement { sql, values, is_full } in statements.map_err(sqlx::Error::Encode)? {
            sqlx::query_with(AssertSqlSafe(sql), values).persistent(is_full).execute(&mut *conn).await?;
        }
        Ok(())
    }
}

fn statements(tree: &Tree, dialect: Dialect) -> Statements {
    let manifest = tree.root().identity.to_hex();
    let plain = tree.nested().is_empty() && tree.entries().all(|entry| entry.entry.locations.is_none());
    let per_row = if plain { PLAIN_VALUES } else { VALUES };
    let mut seen = HashSet::with_capacity(tree.entries().len());
    let mut statements = Vec::with_capacity(tree.entries().len().div_ceil(ROWS));
    let mut entries = tree.entries().enumerate();
    loop {
        let some = entries.by_ref().take(ROWS);
        let mut values = AnyArguments::default();
        values.reserve(1 + per_row * some.size_hint().0, 0);
        let mut count = 0;
        for (position, TreeEntry { path, owner, entry }) in some {
            let Entry { size, sha256, media_type, kind, chunks, locations, .. } = entry;
            values.add(rows::signed(position as u64)?)?;
            values.add(path)?;
            values.add(rows::signed(*size)?)?;
            values.add(sha256.to_hex())?;
            values.add(media_type.as_str())?;
            values.add(rows::kind_text(*kind))?;
            values.add(chunks.as_ref().map(|chunks| rows::signed(chunks.chunk_size)).transpose()?)?;
            values.add(chunks.as_ref().map(rows::hashes_bytes))?;
            values.add(chunks.as_ref().map(rows::list_name))?;
            values.add(i64::from(seen.insert(*sha256)))?;
            if !plain {
                values.add(rows::locations_text(locations.as_deref())?)?;
                values.add(owner.map(|owner| owner.to_hex()))?;
            }
            count += 1;
        }
        let is_full = count == ROWS;
        let sql = match (count, is_full) {
            (0, _) => return Ok(statements),
            (_, true) => full(dialect, plain),
            (_, false) => text(dialect, plain, count).into(),
        };
        values.add(manifest.as_str())?;
        statements.push(Statement { sql, values, is_full });
    }
}
