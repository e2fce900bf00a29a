use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};

use sqlx::migrate::{Migrate as _, MigrateError, Migrator};
use sqlx::{AnyConnection, Connection as _};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

use super::dialect::Dialect;
use super::health::DatabaseFile;
use super::options::{OpenError, StoreOptions};
use super::target::Target;
use super::{Inner, Store};

static MIGRATOR: Migrator = sqlx::migrate!();

impl Store {
    /// Opens the database that `url` names, after its schema has been looked at and, when asked for, migrated.
    pub async fn open(url: &str, options: StoreOptions) -> Result<Self, OpenError> {
        sqlx::any::install_default_drivers();
        let target = Target::parse(url, options.migrate)?;
        let mut conn = target.connect(options.connect_timeout).await?;
        bring_up(&target, &mut conn, options.migrate).await?;
        // Closing is a courtesy; the pools below have connections of their own.
        let _ = conn.close().await;

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
            chat_limit: options.chat_limit,
            clock: options.clock,
            tasks: TaskTracker::new(),
            generation: AtomicU64::new(0),
            withdrawals: AtomicU64::new(0),
            revocations: watch::Sender::new(0),
            last_id: AtomicI64::new(0),
            #[cfg(test)]
            asked: AtomicU64::new(0),
        })))
    }
}

/// Leaves the schema as this program knows it, or refuses.
async fn bring_up(target: &Target, conn: &mut AnyConnection, migrate: bool) -> Result<(), OpenError> {
    let pending = pending(target, conn).await?;
    if pending > 0 && !migrate {
        return Err(OpenError::Pending { target: target.shown.clone(), pending });
    }
    if migrate {
        MIGRATOR.run(&mut *conn).await.map_err(|error| migration_error(target, error))?;
        let done = target.dialect.after_migrations(conn).await;
        done.map_err(|error| migration_error(target, error.into()))?;
    }
    Ok(())
}

/// How many migrations are still to run. Only looks: no table is created.
async fn pending(target: &Target, conn: &mut AnyConnection) -> Result<usize, OpenError> {
    let known = MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0);
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
    Ok(MIGRATOR.iter().count() - applied.len())
}

fn migration_error(target: &Target, error: MigrateError) -> OpenError {
    let target = target.shown.clone();
    match error {
        MigrateError::Dirty(version) => OpenError::Dirty { target, version },
        MigrateError::VersionMismatch(version) => OpenError::Modified { target, version },
        MigrateError::VersionMissing(found) => {
            let known = MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0);
            OpenError::Newer { target, found, known }
        }
        other => OpenError::Migration { target, reason: other.to_string() },
    }
}
