//! A database of its own for each test: a SQLite file in a temporary folder, or a database on a Postgres server.
//!
//! Which server is `SLUICE_TEST_POSTGRES`, the URL of a database that may create others. Without it the usual local one
//! is tried, and the Postgres half of a test is skipped, visibly, where none answers.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _};

/// A database that goes when this is dropped.
pub struct TestDatabase {
    /// For opening a store.
    pub url: String,
    kind: Kind,
}

enum Kind {
    Sqlite(tempfile::TempDir),
    Postgres { server: String, name: String },
}

impl TestDatabase {
    /// A SQLite file that does not exist yet.
    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("sqlite://{}", folder.path().join("sluice.db").display());
        Self { url, kind: Kind::Sqlite(folder) }
    }

    /// An empty database on a Postgres server, or none when there is no server to be had.
    pub async fn postgres() -> Option<Self> {
        let wanted = std::env::var("SLUICE_TEST_POSTGRES").ok();
        let server = wanted.clone().unwrap_or_else(|| "postgres://root@127.0.0.1:5432/postgres".to_owned());
        let connect = tokio::time::timeout(Duration::from_secs(10), PgConnection::connect(&server));
        let mut conn = match connect.await {
            Ok(Ok(conn)) => conn,
            failed => {
                assert!(wanted.is_none(), "SLUICE_TEST_POSTGRES does not answer: {failed:?}");
                eprintln!("SKIPPED on Postgres: no server answers, and SLUICE_TEST_POSTGRES is not set");
                return None;
            }
        };
        let name = format!("sluice_test_{:016x}", rand::random::<u64>());
        let create = format!("CREATE DATABASE {name}");
        sqlx::query(AssertSqlSafe(create)).execute(&mut conn).await.expect("a new database");
        let (base, options) = server.split_once('?').map_or((&*server, None), |(base, options)| (base, Some(options)));
        let (host, _) = base.rsplit_once('/').expect("a URL with a database");
        let url = format!("{host}/{name}{}", options.map(|options| format!("?{options}")).unwrap_or_default());
        Some(Self { url, kind: Kind::Postgres { server, name } })
    }

    /// Whether this is Postgres.
    pub fn is_postgres(&self) -> bool {
        matches!(self.kind, Kind::Postgres { .. })
    }

    /// The server's own database, and this one's name there.
    pub fn on_server(&self) -> Option<(&str, &str)> {
        match &self.kind {
            Kind::Sqlite(_) => None,
            Kind::Postgres { server, name } => Some((server, name)),
        }
    }

    /// The folder of the SQLite file.
    pub fn folder(&self) -> Option<&std::path::Path> {
        match &self.kind {
            Kind::Sqlite(folder) => Some(folder.path()),
            Kind::Postgres { .. } => None,
        }
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let Kind::Postgres { server, name } = &self.kind else { return };
        let (server, name) = (server.clone(), name.clone());
        // A runtime cannot block within itself, and the test's own may be on its way out.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let Ok(mut conn) = PgConnection::connect(&server).await else { return };
                let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                let _ = sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await;
            });
        });
        let _ = dropped.join();
    }
}

/// Runs each test once on either database.
#[macro_export]
macro_rules! on_both_databases {
    ($($test:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::db::TestDatabase::sqlite()).await;
            })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                if let Some(database) = super::db::TestDatabase::postgres().await {
                    super::$test(&database).await;
                }
            })*
        }
    };
}
