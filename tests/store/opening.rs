//! Which databases and URLs are opened, and which are refused with what to do.

use std::time::Duration;

use sluice::store::{OpenError, Store, StoreOptions};
use sqlx::{AssertSqlSafe, Connection as _};

use super::db::{self, TestDatabase};
use super::sets::{id, open};
use crate::on_both_databases;

on_both_databases!(
    opening_again_finds_what_was_kept,
    a_newer_or_changed_or_half_migrated_database_is_refused,
    a_database_that_needs_migrations_is_refused_unless_asked,
    a_database_with_somebody_elses_tables_is_left_as_it_is,
);

async fn opening_again_finds_what_was_kept(database: &TestDatabase) {
    let store = open(database).await;
    store.put_chat(&id("c1"), Some("title"), &[]).await.unwrap();
    store.close().await;
    let only_look = StoreOptions { migrate: false, ..StoreOptions::default() };
    let store = Store::open(&database.url, only_look).await.unwrap();
    assert_eq!(store.chat(&id("c1")).await.unwrap().unwrap().title.as_deref(), Some("title"));
    store.ping().await.unwrap();
}

async fn execute(database: &TestDatabase, sql: &str) {
    let mut conn = sqlx::AnyConnection::connect(&database.url).await.unwrap();
    sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
    conn.close().await.unwrap();
}

/// The version of the newest migration; they count from 1.
fn newest_migration() -> i64 {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations")).unwrap();
    let versions = folder.map(|file| file.unwrap().file_name().to_str().unwrap().split('_').next().unwrap().parse());
    versions.map(Result::unwrap).max().unwrap()
}

/// How many migrations there are; numbers may be left out.
fn migrations() -> usize {
    std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations")).unwrap().count()
}

async fn a_newer_or_changed_or_half_migrated_database_is_refused(database: &TestDatabase) {
    open(database).await.close().await;
    let refused = async || Store::open(&database.url, StoreOptions::default()).await.unwrap_err();
    execute(database, "UPDATE _sqlx_migrations SET success = FALSE WHERE version = 1").await;
    assert!(matches!(refused().await, OpenError::Dirty { version: 1, .. }));
    let newest = newest_migration();
    execute(database, "UPDATE _sqlx_migrations SET success = TRUE").await;
    execute(database, &format!("UPDATE _sqlx_migrations SET version = 99 WHERE version = {newest}")).await;
    let newer = refused().await;
    assert!(matches!(newer, OpenError::Newer { found: 99, known, .. } if known == newest), "{newer}");
    assert!(newer.to_string().contains("use the newer sluice"), "{newer}");
    let forget = if database.is_postgres() { "'\\x00'::bytea" } else { "x'00'" };
    execute(
        database,
        &format!("UPDATE _sqlx_migrations SET version = {newest}, checksum = {forget} WHERE version = 99"),
    )
    .await;
    assert!(matches!(refused().await, OpenError::Modified { version, .. } if version == newest));
}

async fn a_database_that_needs_migrations_is_refused_unless_asked(database: &TestDatabase) {
    if let Some(folder) = database.folder() {
        // An empty file is an empty database.
        std::fs::write(folder.join("sluice.db"), "").unwrap();
    }
    let only_look = StoreOptions { migrate: false, ..StoreOptions::default() };
    let refused = Store::open(&database.url, only_look.clone()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Pending { pending, .. } if pending == migrations()), "{refused}");
    assert!(refused.to_string().contains("sluice migrate"));
    open(database).await.close().await;
    Store::open(&database.url, only_look).await.unwrap();
}

async fn a_database_with_somebody_elses_tables_is_left_as_it_is(database: &TestDatabase) {
    if let Some(folder) = database.folder() {
        std::fs::write(folder.join("sluice.db"), "").unwrap();
    }
    sqlx::any::install_default_drivers();
    execute(database, "CREATE TABLE sessions (theirs TEXT)").await;
    // However often it is tried.
    for _ in 0..2 {
        let refused = Store::open(&database.url, StoreOptions::default()).await.unwrap_err();
        assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
        assert!(refused.to_string().ends_with("use an empty database"), "{refused}");
    }
    execute(database, "SELECT theirs FROM sessions").await;
}

#[tokio::test]
async fn a_wrong_url_says_what_to_do() {
    let refuse = async |url: &str| {
        let options = StoreOptions { connect_timeout: Duration::from_secs(2), ..StoreOptions::default() };
        let message = Store::open(url, options).await.unwrap_err().to_string();
        assert!(!message.contains('\n') && !message.contains("hunter2"), "{message}");
        message
    };
    assert!(refuse("mysql://u:hunter2@db/x").await.contains("postgres:// or sqlite://"));
    assert!(refuse("nonsense").await.contains("postgres:// or sqlite://"));
    assert!(refuse("sqlite::memory:").await.contains("must be a file"));
    assert!(refuse("postgres://u:hunter2@[bad/x").await.contains("not valid"));
    assert!(refuse("postgres://u:hunter2@db/x?sslmode=maybe").await.contains("not valid"));
    // Bound and never listening: connections are refused.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let message = refuse(&format!("postgres://u:hunter2@127.0.0.1:{port}/x")).await;
    assert!(message.contains(&format!("127.0.0.1:{port}/x")), "{message}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "These are only some notes, long enough to have a header of their own.".repeat(20)).unwrap();
    assert!(refuse(&format!("sqlite://{}", file.display())).await.contains("not a SQLite database"));
    let missing = folder.path().join("no/such/folder/x.db");
    let message = refuse(&format!("sqlite://{}", missing.display())).await;
    assert!(message.contains("cannot open") && message.contains("x.db"), "{message}");
}

#[tokio::test]
async fn a_sqlite_path_keeps_its_steps_back_and_its_odd_characters() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("a b/c")).unwrap();
    for (path, file) in [("a b/c/../../100%25 new.db", "100% new.db"), ("a b/%23 and %3F.db", "a b/# and ?.db")] {
        let url = format!("sqlite://{}/{path}", folder.path().display());
        Store::open(&url, StoreOptions::default()).await.unwrap().close().await;
        assert!(folder.path().join(file).is_file(), "{path}");
    }
    // A relative path is the process's, so this only looks.
    let only_look = StoreOptions { migrate: false, ..StoreOptions::default() };
    let missing = Store::open("sqlite://../../no-such-folder/x.db", only_look).await.unwrap_err();
    assert!(
        matches!(&missing, OpenError::NotWritable { path, .. } if path == "../../no-such-folder/x.db"),
        "{missing}"
    );
}
