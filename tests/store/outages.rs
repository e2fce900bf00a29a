//! Callers that leave, connections that break and a network that falls silent.

use std::time::Duration;

use sluice::store::{Store, StoreError, StoreOptions};
use sqlx::{AssertSqlSafe, Connection as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;

use super::db::{self, TestDatabase};
use super::sets::{id, open};
use crate::on_both_databases;

on_both_databases!(a_write_outlives_its_caller);

async fn a_write_outlives_its_caller(database: &TestDatabase) {
    let store = open(database).await;
    let chat = id("c1");
    let generation = store.generation();
    {
        // Polled once, so that the write has begun, then dropped.
        let mut write = std::pin::pin!(store.put_chat(&chat, None, &[]));
        assert!(futures_util::poll!(&mut write).is_pending());
    }
    store.close().await;
    assert!(store.generation() > generation);
    assert!(store.ping().await.unwrap_err().is_unavailable());
    assert!(open(database).await.chat(&chat).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_come_back() {
    let Some(database) = TestDatabase::postgres().await else { return };
    let store = open(&database).await;
    store.put_chat(&id("c1"), None, &[]).await.unwrap();
    let (server, name) = database.on_server().unwrap();
    let mut admin = sqlx::postgres::PgConnection::connect(server).await.unwrap();
    let kill = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
    let mut tell = async |sql: String| sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
    for _ in 0..3 {
        tell(kill.clone()).await;
        // The pool tries a connection before it hands it out; a query that still meets a dead one says so.
        let first = store.chat(&id("c1")).await;
        assert!(!matches!(first, Err(StoreError::Failed(_))), "{first:?}");
        assert!(store.chat(&id("c1")).await.unwrap().is_some());
        store.put_chat(&id("c1"), None, &[]).await.unwrap();
    }
    // While the server lets nobody in, a query fails in bounded time.
    tell(format!("ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")).await;
    tell(kill).await;
    let away = store.chat(&id("c1")).await.unwrap_err();
    assert!(away.is_unavailable(), "{away}");
    tell(format!("ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")).await;
    assert!(store.chat(&id("c1")).await.unwrap().is_some());
}

/// Passes bytes on to the server while `open`, and holds them back otherwise: a network that swallows packets.
async fn pass_on(listener: tokio::net::TcpListener, server: String, open: watch::Receiver<bool>) {
    async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut open: watch::Receiver<bool>) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            if open.wait_for(|open| *open).await.is_err() || to.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    }
    let mut tasks = tokio::task::JoinSet::new();
    while let Ok((from, _)) = listener.accept().await {
        let to = tokio::net::TcpStream::connect(&server).await.unwrap();
        let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
        tasks.spawn(copy(from_read, to_write, open.clone()));
        tasks.spawn(copy(to_read, from_write, open.clone()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_network_is_unavailable_in_bounded_time() {
    let Some(database) = TestDatabase::postgres().await else { return };
    let url: http::Uri = database.url.parse().unwrap();
    let authority = url.authority().unwrap();
    let (user, server) = authority.as_str().rsplit_once('@').unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxied = format!("postgres://{user}@{}{}", listener.local_addr().unwrap(), url.path());
    let (open, opened) = watch::channel(true);
    let mut proxy = tokio::task::JoinSet::new();
    proxy.spawn(pass_on(listener, server.to_owned(), opened));

    let options = StoreOptions { acquire_timeout: Duration::from_millis(300), ..StoreOptions::default() };
    let store = Store::open(&proxied, options).await.unwrap();
    store.put_chat(&id("c1"), None, &[]).await.unwrap();
    open.send(false).unwrap();
    let started = std::time::Instant::now();
    assert!(store.chat(&id("c1")).await.unwrap_err().is_unavailable());
    assert!(store.put_chat(&id("c1"), None, &[]).await.unwrap_err().is_unavailable());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    open.send(true).unwrap();
    assert!(store.chat(&id("c1")).await.unwrap().is_some());
}
