//! The gateway as a whole: builds the parts, wires them, and drains them.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::clock::Clock;
use crate::config::Settings;
use crate::http::ops::{self, Hosts, Ops, Probe};
use crate::http::server::{self, Limits, Listener};
use crate::http::{self, AppState};
use crate::identity::Tokens;
use crate::metrics::Metrics;
use crate::sets::{SetLimits, Sets};
use crate::store::{OpenError, Store, StoreOptions};

/// Connections at once on the operator's listener.
const OPS_CONNECTIONS: usize = 256;
/// What the answers of [`Access`] may take.
const ACCESS_BYTES: u64 = 64 << 20;

/// Runs the gateway until SIGINT or SIGTERM, then drains it.
///
/// # Errors
/// When a part cannot be started. What fails later is logged where it happens.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let stop = stop_on_signals()?;
    let clock = Clock::system();
    let metrics = Arc::new(Metrics::new().context("cannot register the metrics")?);
    let public = Listener::bind(settings.listen, "listen").await?;
    let operators = Listener::bind(settings.ops_listen, "ops-listen").await?;
    make_data_dir(&settings.data_dir)?;
    let tokens = Tokens::open(&settings.token_secret_file)?;
    let store = open_store(&settings, true).await?;

    let probed = store.clone();
    let database: Probe = Arc::new(move || {
        let store = probed.clone();
        Box::pin(async move { store.ping().await.is_ok() })
    });
    let hosts = Hosts::new(operators.address(), settings.ops_allow_host.clone());
    let ops = Ops { metrics: metrics.clone(), draining: stop.clone(), database, hosts };
    let state = AppState {
        tokens,
        clock,
        metrics: metrics.clone(),
        public_url: Arc::new(settings.public_url(public.address())),
        access: Access::new(store.clone(), ACCESS_BYTES),
        sets: Sets::new(store.clone(), metrics, SetLimits::default(), Arc::new(|_| false), stop.clone()),
        store: store.clone(),
        online: Arc::new(|_| false),
    };
    let limits = Limits {
        connections: settings.max_connections,
        head: server::HEAD_TIMEOUT,
        stall: settings.stall_timeout,
        grace: settings.shutdown_grace,
    };
    tracing::info!(
        listen = %public.address(),
        ops_listen = %operators.address(),
        public_url = %state.public_url,
        database = %settings.database_url,
        "serving"
    );

    // The operator's listener stays while the public one drains: that is when it is looked at.
    let drained = CancellationToken::new();
    let serving = async {
        server::serve(public, http::router(state), limits, stop).await;
        drained.cancel();
    };
    let ops_limits = Limits { connections: OPS_CONNECTIONS, ..limits };
    tokio::join!(serving, server::serve(operators, ops::router(ops), ops_limits, drained.clone()));
    store.close().await;
    tracing::info!("stopped");
    Ok(())
}

/// Brings the database to this version's schema.
///
/// # Errors
/// When it cannot be opened or migrated.
pub async fn migrate(settings: Settings) -> anyhow::Result<()> {
    make_data_dir(&settings.data_dir)?;
    open_store(&settings, true).await?.close().await;
    Ok(())
}

/// Opens everything that the settings name, and changes nothing. What the first start makes may be missing.
///
/// # Errors
/// Names the first thing that does not work.
pub async fn check(settings: Settings) -> anyhow::Result<()> {
    if settings.token_secret_file.exists() {
        Tokens::open(&settings.token_secret_file)?;
    }
    if settings.database_url.sqlite_file().is_some_and(|file| !file.exists()) {
        return Ok(());
    }
    match open_store(&settings, false).await {
        Ok(store) => store.close().await,
        Err(OpenError::Pending { target, pending }) => {
            tracing::warn!(database = target, pending, "the next start, or sluice migrate, will migrate the database");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

async fn open_store(settings: &Settings, migrate: bool) -> Result<Store, OpenError> {
    Store::open(settings.database_url.expose(), StoreOptions { migrate, ..StoreOptions::default() }).await
}

/// Nobody else's business: it holds a secret, and the names of everyone's files.
fn make_data_dir(dir: &Path) -> anyhow::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(|| {
        format!("cannot create the data directory {} (set --data-dir to a writable place)", dir.display())
    })
}

/// A token that is cancelled by the first SIGINT or SIGTERM.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let signalled = stop.clone();
    // The one task that lives as long as the process and that nobody waits for.
    #[expect(clippy::disallowed_methods, reason = "shutdown starts here, so there is nothing yet to wait on it")]
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("stopping");
        signalled.cancel();
    });
    Ok(stop)
}
