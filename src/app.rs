//! The gateway as a whole: builds the parts, wires them, and drains them.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::Settings;
use crate::http::ops::{self, Hosts, Ops, Probe};
use crate::http::server::{self, Limits, Listener};
use crate::http::{self, AppState};
use crate::identity::Tokens;
use crate::metrics::Metrics;

/// Connections at once on the operator's listener.
const OPS_CONNECTIONS: usize = 256;

/// Runs the gateway until SIGINT or SIGTERM, then drains it.
///
/// # Errors
/// When a part cannot be started. What fails later is logged where it happens.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let stop = stop_on_signals()?;
    let metrics = Arc::new(Metrics::new().context("cannot register the metrics")?);
    let public = Listener::bind(settings.listen, "listen").await?;
    let operators = Listener::bind(settings.ops_listen, "ops-listen").await?;
    let tokens = Tokens::open(&settings.token_secret_file)?;

    let state = AppState { tokens, clock: Clock::system(), metrics: metrics.clone() };
    let database: Probe = Arc::new(|| Box::pin(async { true }));
    let hosts = Hosts::new(operators.address(), settings.ops_allow_host.clone());
    let ops = Ops { metrics, draining: stop.clone(), database, hosts };
    let limits = Limits {
        connections: settings.max_connections,
        head: server::HEAD_TIMEOUT,
        stall: settings.stall_timeout,
        grace: settings.shutdown_grace,
    };
    tracing::info!(
        listen = %public.address(),
        ops_listen = %operators.address(),
        public_url = %settings.public_url(public.address()),
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
    tracing::info!("stopped");
    Ok(())
}

/// Opens everything that the settings name, and closes it again.
///
/// # Errors
/// Names the first thing that does not work.
pub async fn check(settings: Settings) -> anyhow::Result<()> {
    Tokens::open(&settings.token_secret_file)?;
    Listener::bind(settings.listen, "listen").await?;
    Listener::bind(settings.ops_listen, "ops-listen").await?;
    Ok(())
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
