use std::time::Duration;

use super::quota::Quota;
use crate::clock::Clock;

/// How to open a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Run pending migrations (and create a SQLite file that does not exist). Without it such a database is refused.
    pub migrate: bool,
    /// Be the only one that does so on a SQLite file, until the store is closed. For gateways; other commands go beside them.
    pub alone: bool,
    /// Connections to Postgres, or readers of SQLite.
    pub connections: u32,
    /// How long connecting at the start may take.
    pub connect_timeout: Duration,
    /// How long a query waits for a free connection, including a new one to a database that is away.
    pub acquire_timeout: Duration,
    /// How long a query may take in all.
    pub operation_timeout: Duration,
    /// What a chat may hold, for sets that come into it when their session is bound. An announcement brings its own.
    pub quota: Quota,
    /// Where the time comes from.
    pub clock: Clock,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            migrate: true,
            alone: false,
            connections: 8,
            connect_timeout: Duration::from_secs(5),
            acquire_timeout: Duration::from_secs(3),
            operation_timeout: Duration::from_secs(6),
            quota: Quota::default(),
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
    /// Another gateway has the file.
    #[error(
        "{path} is in use by another gateway: stop that one first, or let both use PostgreSQL (--database-url postgres://…)"
    )]
    InUse {
        /// The file.
        path: String,
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
    #[error(
        "migration {version} of {target} is not the one this program carries; use the sluice that made it, or an empty database"
    )]
    Modified {
        /// Which database.
        target: String,
        /// Which migration.
        version: i64,
    },
    /// There are tables of somebody else's.
    #[error("{target} holds tables that are not Sluice's ({reason}); use an empty database")]
    Foreign {
        /// Which database.
        target: String,
        /// What the driver says.
        reason: String,
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
