use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};

use sqlx::migrate::{Migrate as _, MigrateError, Migration, Migrator};
use sqlx::{AnyConnection, Connection as _};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

use super::dialect::Dialect;
use super::health::DatabaseFile;
use super::options::{OpenError, StoreOptions};
use super::target::Target;
use super::{Inner, Store, lock};

/// For readiness and the heartbeat, beside the others.
const HEALTH_CONNECTIONS: u32 = 1;

static MIGRATOR: Migrator = sqlx::migrate!();

impl Store {
    /// Opens the database that `url` names, after its schema has been looked at and, when asked for, migrated.
    pub async fn open(url: &str, options: StoreOptions) -> Result<Self, OpenError> {
        sqlx::any::install_default_drivers();
        let target = Target::parse(url, options.migrate)?;
        // Before the schema is touched: whoever has the file may be of an earlier version.
        let lock = if options.alone { lock::take(&target)? } else { None };
        bring_up(&target, &options).await?;

        let reader = target.pool(options.connections.max(1), &options);
        let writer = match target.dialect {
            Dialect::Sqlite => target.writer(&options),
            Dialect::Postgres => reader.clone(),
        };
        Ok(Self(Arc::new(Inner {
            dialect: target.dialect,
            writer,
            reader,
            health: target.pool(HEALTH_CONNECTIONS, &options),
            large: Semaphore::new(target.dialect.large_writes()),
            file: target.file.map(DatabaseFile::open),
            lock,
            operation_timeout: options.operation_timeout,
            quota: options.quota,
            clock: options.clock,
            tasks: TaskTracker::new(),
            generation: AtomicU64::new(0),
            written: AtomicU64::new(0),
            withdrawals: AtomicU64::new(0),
            revocations: watch::Sender::new(0),
            last_id: AtomicI64::new(0),
            #[cfg(test)]
            asked: AtomicU64::new(0),
        })))
    }

    /// Whether a gateway has the SQLite file that `url` names. Postgres is for several, so it never is.
    pub fn is_in_use(url: &str) -> Result<bool, OpenError> {
        Ok(lock::is_held(&Target::parse(url, false)?))
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
        let quiet = target.dialect.before_migrations(&mut conn).await;
        quiet.map_err(|error| migration_error(target, error.into()))?;
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
        other => {
            let cause = std::error::Error::source(&other).map(ToString::to_string);
            let reason = cause.unwrap_or_else(|| other.to_string());
            match reason.contains("already exists") {
                true => OpenError::Foreign { target, reason },
                false => OpenError::Migration { target, reason: other.to_string() },
            }
        }
    }
}
