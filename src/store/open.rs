use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use sqlx::migrate::{Migrate as _, MigrateError, Migration, Migrator};
use sqlx::{AnyConnection, Connection as _};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

use super::dialect::Dialect;
use super::health::DatabaseFile;
use super::target::Target;
use super::{Inner, Store};
use crate::clock::Clock;

static MIGRATOR: Migrator = sqlx::migrate!();

/// How to open a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Run pending migrations (and create a SQLite file that does not exist). Without it such a database is refused.
    pub migrate: bool,
    /// Connections to Postgres, or readers of SQLite.
    pub connections: u32,
    /// How long connecting at the start may take.
    pub connect_timeout: Duration,
    /// How long a query waits for a free connection, including a new one to a database that is away.
    pub acquire_timeout: Duration,
    /// How long a query may take in all.
    pub operation_timeout: Duration,
    /// Where the time comes from.
    pub clock: Clock,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            migrate: true,
            connections: 8,
            connect_timeout: Duration::from_secs(5),
            acquire_timeout: Duration::from_secs(3),
            operation_timeout: Duration::from_secs(6),
            clock: Clock::system(),
        }
    }
}

/// Why a store cannot be opened: one line that says what to do. Never holds a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Neither SQLite nor Postgres.
    #[error("the database URL must start with postgres:// or sqlite://")]
    Scheme,
    /// The right scheme, but no usable URL.
    #[error("the database URL is not valid: {0}")]
    Url(String),
    /// SQLite without a file.
    #[error("a SQLite database must be a file: write sqlite:///path/to/sluice.db")]
    InMemory,
    /// Nothing answers.
    #[error("cannot connect to {target}: {reason}; check that it runs and that the database URL is right")]
    Connect {
        /// Host, port and database, or the file.
        target: String,
        /// What the driver says.
        reason: String,
    },
    /// The file is something else.
    #[error("{path} is not a SQLite database; move it away or name another file")]
    NotADatabase {
        /// The file.
        path: String,
    },
    /// The file or its folder cannot be written or does not exist.
    #[error("cannot open {path} for writing: {reason}; check the folder and its permissions")]
    NotWritable {
        /// The file.
        path: String,
        /// What the driver says.
        reason: String,
    },
    /// A later version of this program has been here.
    #[error("{target} has schema version {found}, newer than this program's {known}; use the newer sluice")]
    Newer {
        /// Which database.
        target: String,
        /// Its version.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// Migrations are pending and were not asked for.
    #[error("{target} needs {pending} migration(s); run `sluice migrate`")]
    Pending {
        /// Which database.
        target: String,
        /// How many.
        pending: usize,
    },
    /// An earlier migration stopped half way.
    #[error(
        "migration {version} of {target} stopped half way; restore a backup, or repair it and its row in _sqlx_migrations"
    )]
    Dirty {
        /// Which database.
        target: String,
        /// Which migration.
        version: i64,
    },
    /// A migration was changed after it had run.
    #[error("migration {version} of {target} is not the one this program carries; use the sluice that made it")]
    Modified {
        /// Which database.
        target: String,
        /// Which migration.
        version: i64,
    },
    /// A migration failed.
    #[error("migrating {target} failed: {reason}")]
    Migration {
        /// Which database.
        target: String,
        /// What the driver says.
        reason: String,
    },
}

impl Store {
    /// Opens the database that `url` names, after its schema has been looked at and, when asked for, migrated.
    pub async fn open(url: &str, options: StoreOptions) -> Result<Self, OpenError> {
        sqlx::any::install_default_drivers();
        let target = Target::parse(url, options.migrate)?;
        bring_up(&target, &options).await?;

        let reader = target.pool(options.connections.max(1), &options);
        let writer = match target.dialect {
            Dialect::Sqlite => target.pool(1, &options),
            Dialect::Postgres => reader.clone(),
        };
        Ok(Self(Arc::new(Inner {
            dialect: target.dialect,
            writer,
            reader,
            large: Semaphore::new(target.dialect.large_writes()),
            file: target.file.map(DatabaseFile::open),
            operation_timeout: options.operation_timeout,
            clock: options.clock,
            tasks: TaskTracker::new(),
            generation: AtomicU64::new(0),
            revocations: watch::Sender::new(0),
            last_id: AtomicI64::new(0),
            #[cfg(test)]
            asked: AtomicU64::new(0),
        })))
    }

    /// Brings the database that `url` names to this program's schema, and tells what that took.
    pub async fn migrate(url: &str, options: StoreOptions) -> Result<Migrated, OpenError> {
        sqlx::any::install_default_drivers();
        let options = StoreOptions { migrate: true, ..options };
        let applied = bring_up(&Target::parse(url, true)?, &options).await?;
        let applied = applied.into_iter().map(|done| (done.version, done.description.to_string())).collect();
        Ok(Migrated { applied, version: newest() })
    }
}

/// What migrating a database took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The migrations that ran: version and description, in order.
    pub applied: Vec<(i64, String)>,
    /// The schema's version now.
    pub version: i64,
}

/// The schema's version that this program knows.
fn newest() -> i64 {
    MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Leaves the schema as this program knows it, or refuses. The migrations that ran.
async fn bring_up(target: &Target, options: &StoreOptions) -> Result<Vec<&'static Migration>, OpenError> {
    target.make_private()?;
    let mut conn = target.connect(options.connect_timeout).await?;
    let pending = pending(target, &mut conn).await?;
    if !pending.is_empty() && !options.migrate {
        return Err(OpenError::Pending { target: target.shown.clone(), pending: pending.len() });
    }
    if options.migrate {
        MIGRATOR.run(&mut conn).await.map_err(|error| migration_error(target, error))?;
        let done = target.dialect.after_migrations(&mut conn).await;
        done.map_err(|error| migration_error(target, error.into()))?;
    }
    // Closing is a courtesy; whoever goes on has connections of its own.
    let _ = conn.close().await;
    Ok(pending)
}

/// The migrations that are still to run. Only looks: no table is created.
async fn pending(target: &Target, conn: &mut AnyConnection) -> Result<Vec<&'static Migration>, OpenError> {
    let known = newest();
    let look = async {
        if !target.dialect.has_migrations_table(conn).await? {
            return Ok(Vec::new());
        }
        if let Some(version) = conn.dirty_version(&MIGRATOR.table_name).await? {
            return Err(MigrateError::Dirty(version));
        }
        conn.list_applied_migrations(&MIGRATOR.table_name).await
    };
    let applied = look.await.map_err(|error| migration_error(target, error))?;
    for done in &applied {
        match MIGRATOR.iter().find(|migration| migration.version == done.version) {
            None => return Err(OpenError::Newer { target: target.shown.clone(), found: done.version, known }),
            Some(migration) if migration.checksum != done.checksum => {
                return Err(OpenError::Modified { target: target.shown.clone(), version: done.version });
            }
            Some(_) => {}
        }
    }
    Ok(MIGRATOR.iter().filter(|known| applied.iter().all(|done| done.version != known.version)).collect())
}

fn migration_error(target: &Target, error: MigrateError) -> OpenError {
    let target = target.shown.clone();
    match error {
        MigrateError::Dirty(version) => OpenError::Dirty { target, version },
        MigrateError::VersionMismatch(version) => OpenError::Modified { target, version },
        MigrateError::VersionMissing(found) => OpenError::Newer { target, found, known: newest() },
        other => OpenError::Migration { target, reason: other.to_string() },
    }
}
