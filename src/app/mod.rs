//! The gateway as a whole: builds the parts, wires them, and drains them.

mod check;
mod signals;
mod sweep;
mod worker;

use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Access;
use crate::agents::{Agents, Gate, Registry, Timing};
use crate::audit::Audit;
use crate::clock::Clock;
use crate::config::{self, PublicUrl, Settings};
use crate::content::{self, Cache};
use crate::events::{self, Events};
use crate::http::limit::Limiter;
use crate::http::ops::{self, Hosts, Ops, Probe};
use crate::http::server::{self, Limits, Listener, PerAddress};
use crate::http::{self, AppState, Parts};
use crate::identity::{GatewayKey, HandedOut, Platform, Signatures, Tokens};
use crate::metrics::Metrics;
use crate::outbound::{Bounds, Outbound};
use crate::protocol::signature::{self, Rules};
use crate::sets::{Fetch, IsOnline, IsOpen, SetLimits, Sets};
use crate::store::{Migrated, OpenError, Store, StoreOptions};
use crate::transfer::location::Locations;
use crate::transfer::{self, Transfers};
pub use check::check;
pub use signals::{EndedAtOnce, Signals};
use sweep::Retention;
pub use worker::on_worker;

/// Connections at once on the operator's listener.
const OPS_CONNECTIONS: usize = 256;
/// Of these, from one address that is not loopback.
const OPS_ADDRESS_CONNECTIONS: u32 = 64;
/// What the answers of [`Access`] may take.
const ACCESS_BYTES: u64 = 64 << 20;

/// Fetches of key sets and other small things at once.
const FETCHES: Bounds = Bounds { total: 32, per_host: 2, waiting: 1024, lookups: 32, lookups_per_domain: 16 };

/// How long connections may take to end after the grace period.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two looks at the database.
const DATABASE_CHECK: Duration = Duration::from_secs(5);

/// Runs the gateway until SIGINT or SIGTERM, then drains it; a second signal ends it at once.
///
/// # Errors
/// When a part cannot be started, and [`EndedAtOnce`]. What fails later is logged where it happens.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let signals = Signals::listen()?;
    let stop = signals.stop();
    let serving = async {
        Gateway::start(settings, Clock::system()).await?.run(stop).await;
        Ok(())
    };
    signals.obeyed_by(serving).await
}

/// A gateway with everything built and both listeners bound.
pub struct Gateway {
    settings: Settings,
    state: AppState,
    public: Listener,
    operators: Listener,
    /// Cancelled when the gateway begins to drain.
    draining: CancellationToken,
    /// Cancelled when what did not finish in time is cut.
    cut: CancellationToken,
    /// Cancelled when the last reader has gone.
    ended: CancellationToken,
}

impl Gateway {
    /// Builds the parts and binds the listeners. Nobody is served yet.
    ///
    /// # Errors
    /// Names the part that cannot be started and the setting that it depends on.
    pub async fn start(settings: Settings, clock: Clock) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::new().context("cannot register the metrics")?);
        Agents::touch_metrics(&metrics);
        sweep::touch_metrics(&metrics);
        Cache::touch_metrics(&metrics);
        let public = listen(settings.listen, "listen", &settings).await?;
        let operators = listen(settings.ops_listen, "ops-listen", &settings).await?;
        make_data_dir(&settings.data_dir)?;
        let tracker = TaskTracker::new();
        let outbound = Outbound::new(settings.allow_hosts.clone(), FETCHES, metrics.clone());
        let mut tokens = Tokens::open(&settings.token_secret_file)?;
        if let Some(options) = settings.platform.clone() {
            tokens = tokens.with_platform(Platform::new(options, outbound.clone(), tracker.clone()));
        }
        let public_url = settings.public_url(public.address());
        let key = GatewayKey::open(&settings.signing_key_file, &public_url.to_string())?;
        let store = open_store(&settings, true, &clock).await?;
        // It answered just now; a look at the metrics before the first check must not find it down.
        metrics.database_up.set(1);
        let (draining, cut) = (CancellationToken::new(), CancellationToken::new());
        let signatures = Signatures::new(
            signature_rules(&settings, &public_url),
            (settings.signed_agents, settings.key_continuity),
            &outbound,
            (store.clone(), clock.clone(), metrics.clone()),
            tracker.clone(),
        );
        let events = Events::new(events::Limits::default(), metrics.clone());
        let agents = Arc::new(Agents {
            registry: Registry::new(settings.byte_rates.agent, metrics.clone(), events.clone()),
            gate: Gate::new(tokens.clone(), signatures.clone(), store.clone(), clock.clone()),
            metrics: metrics.clone(),
            clock: clock.clone(),
            timing: Timing {
                ping_interval: settings.ping_interval,
                ping_timeout: settings.ping_timeout,
                handshake_timeout: settings.handshake_timeout,
            },
            stop: CancellationToken::new(),
        });
        let limits = transfer::Limits {
            resume_window: settings.resume_window,
            agent_wait: settings.agent_wait,
            read_timeout: settings.read_timeout,
            stall_timeout: settings.stall_timeout,
            memory_budget: settings.memory_budget,
            max_transfers: settings.max_transfers,
            transfer_rate: settings.byte_rates.transfer,
            reader_rate: settings.byte_rates.reader,
        };
        let registry = Arc::clone(&agents);
        let is_open: IsOpen = Arc::new(move |session| registry.registry.is_session(session));
        let registry = Arc::clone(&agents);
        let is_online: IsOnline = Arc::new(move |agent| registry.registry.is_online(agent));
        let own = public_url.to_string();
        let locations = Locations::new(&outbound, key.clone(), &own, clock.clone(), metrics.clone());
        let access = Access::new(store.clone(), ACCESS_BYTES);
        let cache = match settings.cache_size {
            0 => {
                warn_of_cache(&cache_dir(&settings));
                None
            }
            limit => Some(Cache::open(&cache_dir(&settings), limit, metrics.clone(), tracker.clone())?),
        };
        let running = (tracker.clone(), cut.clone(), events.clone());
        let transfers = Transfers::new(Arc::clone(&agents), access.clone(), (locations, cache), limits, running);
        let reads = Arc::clone(&transfers);
        let fetch: Fetch = Arc::new(move |agent, readable, brought| {
            let transfers = Arc::clone(&reads);
            async move { transfers.fetch(agent, readable, &brought).await }.boxed()
        });
        // What may refuse the start is behind it.
        warn_of_secret(&store, &tokens, &settings.token_secret_file).await;
        let set_limits = SetLimits { quota: settings.quota, ..SetLimits::default() };
        let ended = CancellationToken::new();
        let audit = match settings.audit_retention.is_zero() {
            true => Audit::off(),
            false => Audit::start(store.clone(), metrics.clone(), &tracker, ended.clone()),
        };
        let state = AppState::new(Parts {
            handed_out: HandedOut::new(store.clone(), &tokens, clock.clone()),
            signin_ttl: settings.signin_ttl,
            links: settings.links,
            signatures,
            limiter: Arc::new(Limiter::new(&settings.request_limits, metrics.clone())),
            audit,
            key,
            tokens,
            clock,
            metrics: metrics.clone(),
            public_url: Arc::new(public_url),
            require_task: settings.require_task,
            access,
            sets: Sets::new(
                store.clone(),
                metrics,
                set_limits,
                is_open,
                fetch,
                (events.clone(), is_online),
                draining.clone(),
            ),
            events,
            draining: draining.clone(),
            store,
            transfers,
            agents,
            cut: cut.clone(),
            tracker,
        });
        Ok(Self { settings, state, public, operators, draining, cut, ended })
    }

    /// Where the public listener is bound.
    pub fn address(&self) -> SocketAddr {
        self.public.address()
    }

    /// Where the operator's listener is bound.
    pub fn ops_address(&self) -> SocketAddr {
        self.operators.address()
    }

    /// What the routes share.
    pub fn state(&self) -> &AppState {
        &self.state
    }

    /// Serves until `stop` is cancelled. Then it is not ready any more, accepts nothing, lets bodies finish up to the
    /// grace period, closes the agents' connections with 1012, and returns.
    pub async fn run(self, stop: CancellationToken) {
        let Self { settings, state, public, operators, draining, cut, ended } = self;
        tracing::info!(
            listen = %public.address(),
            ops_listen = %operators.address(),
            public_url = %state.public_url,
            database = %settings.database_url,
            "serving"
        );
        let limits = Limits {
            connections: settings.max_connections,
            of_addresses: PerAddress::new(
                settings.address_connections(),
                state.metrics.requests_limited.with_label_values(&["address_connections"]),
            ),
            head: server::HEAD_TIMEOUT,
            idle: server::IDLE_TIMEOUT,
            stall: settings.stall_timeout,
            grace: settings.shutdown_grace,
        };
        let refusal = Arc::new(Mutex::new(None));
        let ops = Ops {
            metrics: state.metrics.clone(),
            draining: draining.clone(),
            database: probe(state.store.clone(), refusal.clone()),
            hosts: Hosts::new(operators.address(), settings.ops_allow_host.clone()),
        };
        let retention = Retention { reads: settings.audit_retention, sets: settings.set_retention };
        let drained = CancellationToken::new();
        let signal = async {
            stop.cancelled().await;
            tracing::info!(
                transfers = state.transfers.running().len(),
                grace_ms = u64::try_from(settings.shutdown_grace.as_millis()).unwrap_or(u64::MAX),
                "draining: transfers that run may finish within the grace period; a second signal ends at once"
            );
            draining.cancel();
        };
        let ops_limits = Limits {
            connections: OPS_CONNECTIONS,
            of_addresses: PerAddress::new(
                (OPS_ADDRESS_CONNECTIONS, config::loopback_nets().into()),
                state.metrics.requests_limited.with_label_values(&["address_connections"]),
            ),
            ..limits.clone()
        };
        let serving = async {
            on_worker(server::serve(public, http::router(state.clone()), limits, draining.clone(), cut)).await;
            state.agents.stop.cancel();
            ended.cancel();
            state.tracker.close();
            if tokio::time::timeout(CLOSE_TIMEOUT, state.tracker.wait()).await.is_err() {
                tracing::warn!(tasks = state.tracker.len(), "tasks were still running at the end");
            }
            drained.cancel();
        };
        // The operator's listener stays while the public one drains: that is when it is looked at.
        let operating =
            server::serve(operators, ops::router(ops), ops_limits, drained.clone(), CancellationToken::new());
        tokio::join!(
            signal,
            serving,
            operating,
            state.transfers.watch(&drained),
            http::events::watch(&state, settings.stall_timeout, &drained),
            watch_database(&state, &refusal, &draining),
            sweep::run(
                (state.store.clone(), state.transfers.clone()),
                state.clock.clone(),
                &state.metrics,
                retention,
                draining.clone(),
            ),
        );
        state.transfers.close();
        state.store.close().await;
        tracing::info!("stopped");
    }
}

/// Tells at each start that agents' tokens were made under another secret than this, until one has come with a new one:
/// whoever reads the log may have missed it, and the secret may have been made by `sluice token` or a start that failed.
async fn warn_of_secret(store: &Store, tokens: &Tokens, path: &Path) {
    match store.note_token_secret(&tokens.opaque_key().fingerprint()).await {
        Ok(true) => tracing::warn!(secret = %path.display(),
            "the token secret is new to this database, and no agent has come with a token of it yet: tokens that were made \
             under another secret are good no more (put the old file back, or name it by --token-secret-file, and start \
             again; or make new tokens with `sluice token`)"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, "cannot tell whether the token secret is new to this database"),
    }
}

/// Tells where a cache was left that is not used any more: it may have been turned off for the sake of its room.
fn warn_of_cache(dir: &Path) {
    if std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        tracing::warn!(path = %dir.display(), "the cache is off, and what it kept still takes room: remove the folder");
    }
}

/// What signatures are judged by.
fn signature_rules(settings: &Settings, public_url: &PublicUrl) -> Rules {
    let authorities = settings.authorities(public_url);
    Rules {
        authorities: authorities.iter().map(|authority| signature::normal_authority(authority)).collect(),
        scheme: public_url.scheme(),
        plain_http: !settings.allow_hosts.is_empty(),
    }
}

/// Whether the database answers now and took what was last written to it, for readiness.
fn probe(store: Store, refusal: Arc<LastRefusal>) -> Probe {
    Arc::new(move || {
        let (store, refusal) = (store.clone(), refusal.lock().unwrap_or_else(PoisonError::into_inner).clone());
        Box::pin(async move {
            match refusal {
                Some(refusal) => Err(refusal),
                None => store.ping().await.map_err(|error| error.to_string()),
            }
        })
    })
}

/// Why the database took nothing when it was last tried, if it did not.
type LastRefusal = Mutex<Option<String>>;

/// Looks whether the database takes what is written: every few seconds, because a look is a write, and whoever asks for
/// readiness may ask as often as they like. Keeps the metric true, and tells the log when it changes.
async fn watch_database(state: &AppState, refusal: &LastRefusal, until: &CancellationToken) {
    let watching = async {
        loop {
            let taken = state.store.beat().await;
            state.metrics.database_up.set(taken.is_ok().into());
            let told = taken.as_ref().err().map(ToString::to_string);
            let before = std::mem::replace(&mut *refusal.lock().unwrap_or_else(PoisonError::into_inner), told);
            match (before, taken) {
                (None, Err(error)) => tracing::error!(%error, "the database takes nothing"),
                (Some(_), Ok(())) => tracing::info!("the database takes what is written again"),
                _ => {}
            }
            tokio::time::sleep(DATABASE_CHECK).await;
        }
    };
    let _ = until.run_until_cancelled(watching).await;
}

/// Brings the database to this version's schema. Returns what was done, a line for each thing.
///
/// # Errors
/// When it cannot be opened or migrated.
pub async fn migrate(settings: Settings) -> anyhow::Result<Vec<String>> {
    make_data_dir(&settings.data_dir)?;
    let options = StoreOptions { clock: Clock::system(), ..StoreOptions::default() };
    let Migrated { applied, version } = Store::migrate(settings.database_url.expose(), options).await?;
    let mut done: Vec<_> =
        applied.iter().map(|(version, description)| format!("applied migration {version}: {description}")).collect();
    let url = &settings.database_url;
    done.push(match done.is_empty() {
        true => format!("nothing to do: {url} is at schema version {version} already"),
        false => format!("{url} is at schema version {version} now"),
    });
    Ok(done)
}

/// Where verified bytes are kept.
fn cache_dir(settings: &Settings) -> PathBuf {
    settings.data_dir.join("cache")
}

/// Binds a listener. Whatever has its port may be a gateway that has the database or the cache too: then both are told, for
/// whoever moved the port alone would be refused again.
async fn listen(address: SocketAddr, setting: &'static str, settings: &Settings) -> anyhow::Result<Listener> {
    Listener::bind(address, setting).await.map_err(|error| match in_use(settings).filter(|_| error.is_in_use()) {
        Some(also) => anyhow::anyhow!("{error}; and {also}"),
        None => error.into(),
    })
}

/// What another process has of that which one gateway has to itself, if it can be told.
fn in_use(settings: &Settings) -> Option<String> {
    let url = &settings.database_url;
    if Store::is_in_use(url.expose()).unwrap_or(false) {
        let path = url.sqlite_file().unwrap_or_default().display().to_string();
        return Some(OpenError::InUse { path }.to_string());
    }
    let cache = cache_dir(settings);
    let has_cache = settings.cache_size > 0 && Cache::is_in_use(&cache).unwrap_or(false);
    has_cache.then(|| content::OpenError::InUse(cache).to_string())
}

/// The store, `to_serve` from it or only to look.
async fn open_store(settings: &Settings, to_serve: bool, clock: &Clock) -> Result<Store, OpenError> {
    let (clock, quota) = (clock.clone(), settings.quota);
    let options = StoreOptions { migrate: to_serve, alone: to_serve, clock, quota, ..StoreOptions::default() };
    Store::open(settings.database_url.expose(), options).await
}

/// Nobody else's business: it holds a secret, and the names of everyone's files.
///
/// # Errors
/// When it is not there and cannot be made.
pub fn make_data_dir(dir: &Path) -> anyhow::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(|| {
        format!("cannot create the data directory {} (set --data-dir to a writable place)", dir.display())
    })?;
    // One that is there may be anything, such as a home or /tmp: its owner decides about it.
    if dir.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o007 != 0) {
        tracing::warn!(path = %dir.display(), "every user of this machine can look into the data directory: chmod 700 it");
    }
    Ok(())
}
