//! What differs between SQLite and Postgres, in one place.

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Database as _, Row as _};

use super::{StoreError, rows};
use crate::protocol::{ChatId, Principal};

/// Which database speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// What a connection speaks.
    pub(super) fn of(conn: &AnyConnection) -> Self {
        if conn.backend_name() == sqlx::Postgres::NAME { Self::Postgres } else { Self::Sqlite }
    }

    /// How a transaction that writes begins. SQLite takes its write lock at once: taking it at the first write could
    /// fail after reads that the write depends on.
    pub(super) fn begin(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN",
        }
    }

    /// What every new connection is told.
    pub(super) fn on_connect(self) -> &'static [&'static str] {
        match self {
            // FULL, because an announcement that was accepted must survive a power cut: nobody announces it again.
            Self::Sqlite => &[
                "PRAGMA busy_timeout = 3000",
                "PRAGMA journal_mode = WAL",
                "PRAGMA synchronous = FULL",
                "PRAGMA foreign_keys = ON",
            ],
            Self::Postgres => &["SET statement_timeout = 5000", "SET lock_timeout = 3000"],
        }
    }

    /// What the connection that writes is told as well, where there is one for that.
    pub(super) fn on_connect_to_write(self) -> &'static [&'static str] {
        match self {
            Self::Sqlite => &[
                // KiB. The indexes that a large announcement goes into stay in memory until its commit.
                "PRAGMA cache_size = -32768",
                // Pages. Only when nobody has come to it for long: see `checkpoint`.
                "PRAGMA wal_autocheckpoint = 32768",
                // What is left of the log's file once it begins anew, in bytes.
                "PRAGMA journal_size_limit = 67108864",
            ],
            Self::Postgres => &[],
        }
    }

    /// What moves the committed pages of the log into the database's file and holds off nobody meanwhile.
    pub(super) fn checkpoint(self) -> Option<&'static str> {
        (self == Self::Sqlite).then_some("PRAGMA wal_checkpoint(PASSIVE)")
    }

    /// Whether everybody else's writes wait while one transaction is open.
    pub(super) fn has_one_writer(self) -> bool {
        self == Self::Sqlite
    }

    /// How many writes of many rows may run at once: SQLite has one writer, and on Postgres most connections are to stay
    /// free for everybody else.
    pub(super) fn large_writes(self) -> usize {
        match self {
            Self::Sqlite => 1,
            Self::Postgres => 2,
        }
    }

    /// `($1, …), (…)`: `count` rows of `columns` placeholders each, the whole of what is bound to a statement, in order.
    pub(super) fn tuples(self, count: usize, columns: usize) -> String {
        let row = |row| format!("({})", self.placeholders(1 + row * columns, columns));
        (0..count).map(row).collect::<Vec<_>>().join(", ")
    }

    /// `$first, …`: `count` placeholders of a statement that may have thousands. SQLite finds one with a name by going
    /// through all that have one; those without come in the order in which values are bound, and before any with a name.
    pub(super) fn placeholders(self, first: usize, count: usize) -> String {
        match self {
            Self::Sqlite => vec!["?"; count].join(", "),
            Self::Postgres => rows::placeholders(first, count),
        }
    }

    /// Holds off every other transaction that changes this principal's announcements, sessions or links until this one ends.
    /// SQLite has one writer anyway.
    pub(super) async fn lock_agent(self, conn: &mut AnyConnection, principal: &Principal) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite => Ok(()),
            Self::Postgres => sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
                .bind(principal.as_str())
                .execute(conn)
                .await
                .map(drop),
        }
    }

    /// Whether a statement that writes may take the rows that another one within it has written.
    pub(super) fn hands_rows_on(self) -> bool {
        self == Self::Postgres
    }

    /// What makes a query in a transaction that writes hold the rows it finds until the end. SQLite has one writer
    /// anyway.
    pub(super) fn for_update(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres => " FOR UPDATE",
        }
    }

    /// Holds off every other transaction that adds to this chat's announcements until this one ends, and tells whether
    /// one may have been there since this one began. SQLite has one writer anyway.
    pub(super) async fn lock_chat(self, conn: &mut AnyConnection, chat: &ChatId) -> Result<bool, sqlx::Error> {
        match self {
            Self::Sqlite => Ok(false),
            // A key that others name it by does not change, so those who only name it go on.
            Self::Postgres => sqlx::query("SELECT 1 FROM chats WHERE id = $1 FOR NO KEY UPDATE")
                .bind(chat.as_str())
                .execute(conn)
                .await
                .map(|_| true),
        }
    }

    /// Whether sqlx's table of applied migrations exists.
    pub(super) async fn has_migrations_table(self, conn: &mut AnyConnection) -> Result<bool, sqlx::Error> {
        let sql = match self {
            Self::Sqlite => "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '_sqlx_migrations'",
            Self::Postgres => "SELECT count(to_regclass('_sqlx_migrations'))",
        };
        sqlx::query(sql).fetch_one(conn).await?.try_get::<i64, _>(0).map(|found| found > 0)
    }

    /// Keeps a connection from telling what is as it should be: that a table "already exists, skipping".
    pub(super) async fn before_migrations(self, conn: &mut AnyConnection) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite => Ok(()),
            Self::Postgres => sqlx::query("SET client_min_messages TO warning").execute(conn).await.map(drop),
        }
    }

    /// What the common migrations cannot say.
    pub(super) async fn after_migrations(self, conn: &mut AnyConnection) -> Result<(), sqlx::Error> {
        if self == Self::Sqlite {
            return Ok(());
        }
        let mut tx = conn.begin().await?;
        // Two gateways that start at once would each wait for tables of the other.
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))").bind("tables").execute(&mut *tx).await?;
        // Asked first, because a statement that alters a table locks it even when it changes nothing.
        for (pending, alter) in [(COMPRESSES, STORE_AS_IT_IS), (IS_PACKED, LEAVE_ROOM)] {
            if sqlx::query(pending).fetch_one(&mut *tx).await?.try_get::<i64, _>(0)? > 0 {
                sqlx::query(alter).execute(&mut *tx).await?;
            }
        }
        for row in sqlx::query(AssertSqlSafe(by_language(TABLES))).fetch_all(&mut *tx).await? {
            let (alter, table): (String, String) = (row.try_get("alter_table")?, row.try_get("table_name")?);
            sqlx::query(AssertSqlSafe(alter)).execute(&mut *tx).await?;
            // What was known of the columns' values went with their types.
            sqlx::query(AssertSqlSafe(format!("ANALYZE {table}"))).execute(&mut *tx).await?;
        }
        tx.commit().await
    }

    /// Sorts a driver's error by what the caller can do about it.
    pub(super) fn error(self, error: sqlx::Error) -> StoreError {
        use sqlx::Error as E;
        match &error {
            E::Io(_)
            | E::Tls(_)
            | E::Protocol(_)
            | E::PoolTimedOut
            | E::PoolClosed
            | E::WorkerCrashed
            | E::BeginFailed => StoreError::Unavailable(error.to_string()),
            E::Database(refusal) if self.is_passing(&**refusal) => {
                StoreError::Unavailable(refusal.message().to_owned())
            }
            _ => StoreError::Failed(error),
        }
    }

    /// Whether the database itself is in trouble (gone, busy, full), rather than the statement.
    fn is_passing(self, refusal: &dyn DatabaseError) -> bool {
        let Some(code) = refusal.code() else { return false };
        match self {
            // Primary result codes: BUSY, LOCKED, READONLY, IOERR, FULL, CANTOPEN.
            Self::Sqlite => code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 5 | 6 | 8 | 10 | 13 | 14)),
            // A fatal refusal ends the connection, or comes instead of one.
            Self::Postgres if is_fatal(refusal) => true,
            // Classes: connection, read-only after a fail-over, rollback (deadlock), resources (disk full, too many
            // connections), a lock not got in time, operator's intervention (shutdown, statement timeout), I/O.
            Self::Postgres => {
                matches!(&*code, "25006" | "55P03")
                    || ["08", "40", "53", "57", "58"].iter().any(|class| code.starts_with(class))
            }
        }
    }
}

/// Canonical manifests hardly compress on the way to disk, and trying costs four times the insert.
const COMPRESSES: &str = "SELECT count(*) FROM pg_attribute \
    WHERE attrelid = 'manifests'::regclass AND attname = 'bytes' AND attstorage <> 'e'";
const STORE_AS_IT_IS: &str = "ALTER TABLE manifests ALTER COLUMN bytes SET STORAGE EXTERNAL";

/// A file's next version goes beside the one before it where there is room, and the indexes stay as they are.
const IS_PACKED: &str = "SELECT count(*) FROM pg_class \
    WHERE oid = 'files'::regclass AND NOT COALESCE(reloptions @> ARRAY['fillfactor=45'], false)";
const LEAVE_ROOM: &str = "ALTER TABLE files SET (fillfactor = 45)";

/// Every table of the migrations.
const TABLES: &str = "'chats', 'participants', 'agents', 'sessions', 'manifests', 'entries', 'announcements', 'nonces', \
    'keys', 'audit', 'audit_agents', 'browsers', 'signin_codes', 'links', 'manifest_trees', 'files', 'file_versions', \
    'ranks', 'endpoints', 'chat_hashes', 'token_secrets'";

/// What has texts compared byte by byte, as SQLite does: nothing here is sorted for people, and by the rules of a language
/// the database spends more on comparing keys than on all else that an index needs. One statement for each table that has
/// such columns still.
fn by_language(tables: &str) -> String {
    format!(
        "SELECT CAST(c.relname AS TEXT) AS table_name, 'ALTER TABLE ' || c.relname || ' ' || string_agg( \
         'ALTER COLUMN ' || quote_ident(a.attname) || ' TYPE TEXT COLLATE \"C\"', ', ') AS alter_table FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid \
         WHERE c.oid IN (SELECT to_regclass(t) FROM unnest(ARRAY[{tables}]) t) AND a.atttypid = 'text'::regtype \
         AND NOT a.attisdropped AND a.attcollation <> (SELECT o.oid FROM pg_collation o \
         WHERE o.collname = 'C' AND o.collnamespace = 'pg_catalog'::regnamespace) GROUP BY c.relname ORDER BY c.relname"
    )
}

fn is_fatal(refusal: &dyn DatabaseError) -> bool {
    let refusal = refusal.try_downcast_ref::<PgDatabaseError>();
    refusal.is_some_and(|refusal| matches!(refusal.severity(), PgSeverity::Fatal | PgSeverity::Panic))
}
