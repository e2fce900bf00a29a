//! The rows of a set's entries, and the statements that write them.
//!
//! Postgres takes all rows in one statement, an array for each column: a statement costs it a journey, and time for each
//! value bound. SQLite has no arrays, and no journeys: there each row's values are bound.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use sqlx::any::AnyArguments;
use sqlx::error::BoxDynError;
use sqlx::{AnyConnection, Arguments as _, AssertSqlSafe};
use tokio::task::JoinHandle;

use super::dialect::Dialect;
use super::{LARGE_ROWS, rows};
use crate::protocol::manifest::TreeEntry;
use crate::protocol::{Entry, Tree};

/// How many rows one statement takes on SQLite: far below its limit of bound values (32,766), and no faster above.
const ROWS: usize = 250;
/// Values that are bound for each row, the manifest aside, which is bound once for all of them.
const VALUES: usize = 12;
/// The same for an entry of a set that has neither nested manifests nor locations of single entries.
const PLAIN_VALUES: usize = 10;

/// The statement of full length, of a set that is plain and of any other.
static FULL: LazyLock<[Arc<str>; 2]> = LazyLock::new(|| [true, false].map(|plain| text(plain, ROWS).into()));

/// The manifest is bound last: what has a number comes after what has none.
fn text(plain: bool, count: usize) -> String {
    let (more, values) = if plain { ("", PLAIN_VALUES) } else { (", locations, owner", VALUES) };
    let row = format!("({}, ${})", Dialect::Sqlite.placeholders(1, values), count * values + 1);
    format!(
        "INSERT INTO entries (position, path, size, sha256, media_type, kind, chunk_size, chunk_hashes, \
         chunks_sha256, leads{more}, manifest) VALUES {}",
        vec![row; count].join(", ")
    )
}

/// All rows of a set. The hashes of all chunks are one value, of which each row has a part.
const ARRAYS: &str = "INSERT INTO entries (manifest, position, path, size, sha256, media_type, kind, chunk_size, \
    chunk_hashes, chunks_sha256, leads, locations, owner) SELECT $1, e.position - 1, e.path, e.size, e.sha256, \
    e.media_type, e.kind, e.chunk_size, substring($2 FROM e.hashes_from FOR e.hashes_bytes), e.chunks_sha256, e.leads, \
    e.locations, e.owner FROM unnest(CAST($3 AS TEXT[]), CAST($4 AS BIGINT[]), CAST($5 AS TEXT[]), CAST($6 AS TEXT[]), \
    CAST($7 AS TEXT[]), CAST($8 AS BIGINT[]), CAST($9 AS INT[]), CAST($10 AS INT[]), CAST($11 AS TEXT[]), \
    CAST($12 AS BIGINT[]), CAST($13 AS TEXT[]), CAST($14 AS TEXT[])) WITH ORDINALITY AS e(path, size, sha256, \
    media_type, kind, chunk_size, hashes_from, hashes_bytes, chunks_sha256, leads, locations, owner, position)";

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
        let make = match dialect {
            Dialect::Sqlite => by_rows,
            Dialect::Postgres => by_columns,
        };
        if tree.entries().len() as u64 <= LARGE_ROWS {
            return Self::Done(make(tree));
        }
        let tree = tree.clone();
        Self::Running(tokio::task::spawn_blocking(move || make(&tree)))
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

fn by_rows(tree: &Tree) -> Statements {
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
            (_, true) => FULL[usize::from(!plain)].clone(),
            (_, false) => text(plain, count).into(),
        };
        values.add(manifest.as_str())?;
        statements.push(Statement { sql, values, is_full });
    }
}

fn by_columns(tree: &Tree) -> Statements {
    let mut columns: [Array; 12] = std::array::from_fn(|_| Array::default());
    let [
        paths,
        sizes,
        hashes,
        media_types,
        kinds,
        chunk_sizes,
        hashes_from,
        hashes_bytes,
        list_names,
        leads,
        places,
        owners,
    ] = &mut columns;
    let mut all_hashes = Vec::new();
    let mut seen = HashSet::with_capacity(tree.entries().len());
    for TreeEntry { path, owner, entry } in tree.entries() {
        let Entry { size, sha256, media_type, kind, chunks, locations, .. } = entry;
        paths.text(Some(path));
        sizes.number(Some(*size));
        hashes.text(Some(&sha256.to_hex()));
        media_types.text(Some(media_type.as_str()));
        kinds.text(Some(rows::kind_text(*kind)));
        let list = chunks.as_ref().map(rows::hashes_bytes);
        chunk_sizes.number(chunks.as_ref().map(|chunks| chunks.chunk_size));
        hashes_from.number(list.as_ref().map(|_| 1 + all_hashes.len() as u64));
        hashes_bytes.number(list.as_ref().map(|list| list.len() as u64));
        list_names.text(chunks.as_ref().map(rows::list_name).as_deref());
        leads.number(Some(u64::from(seen.insert(*sha256))));
        places.text(rows::locations_text(locations.as_deref())?.as_deref());
        owners.text(owner.map(|owner| owner.to_hex()).as_deref());
        all_hashes.extend(list.unwrap_or_default());
    }
    let mut values = AnyArguments::default();
    values.add(tree.root().identity.to_hex())?;
    values.add(all_hashes)?;
    for column in columns {
        values.add(column.end())?;
    }
    Ok(vec![Statement { sql: ARRAYS.into(), values, is_full: true }])
}

/// An array as Postgres reads one from a text: `{1,NULL}`, `{"a","b"}`.
#[derive(Default)]
struct Array(String);

impl Array {
    fn next(&mut self) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
    }

    fn text(&mut self, value: Option<&str>) {
        self.next();
        let Some(value) = value else { return self.0.push_str("NULL") };
        self.0.push('"');
        for part in value.split_inclusive(['"', '\\']) {
            let special = part.ends_with(['"', '\\']);
            let plain = part.len() - usize::from(special);
            self.0.push_str(&part[..plain]);
            if special {
                self.0.push('\\');
                self.0.push_str(&part[plain..]);
            }
        }
        self.0.push('"');
    }

    fn number(&mut self, value: Option<u64>) {
        self.next();
        match value {
            // Writing to a string does not fail.
            Some(value) => _ = write!(self.0, "{value}"),
            None => self.0.push_str("NULL"),
        }
    }

    fn end(mut self) -> String {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_written_as_postgres_reads_it() {
        let mut texts = Array::default();
        for text in [Some("a"), None, Some(""), Some(r#"\a"b\"#), Some("NULL"), Some("{ü, ,}")] {
            texts.text(text);
        }
        assert_eq!(texts.end(), r#"{"a",NULL,"","\\a\"b\\","NULL","{ü, ,}"}"#);
        let mut numbers = Array::default();
        numbers.number(Some(7));
        numbers.number(None);
        assert_eq!(numbers.end(), "{7,NULL}");
        assert_eq!(Array::default().end(), "{}");
    }
}
