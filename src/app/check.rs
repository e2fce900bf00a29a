//! `sluice check`: tries everything that the settings name, as a start would, and leaves no trace.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::{FETCHES, cache_dir, open_store};
use crate::clock::Clock;
use crate::config::Settings;
use crate::content::{self, Cache};
use crate::http::server::Listener;
use crate::identity::{GatewayKey, Platform, Tokens};
use crate::metrics::Metrics;
use crate::outbound::Outbound;
use crate::protocol::signature::JWKS_PATH;
use crate::store::{OpenError, Store};

/// How long whatever holds a port may take to say what it is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// As much of its answer as is looked at, in bytes.
const ANSWER_BYTES: u64 = 256 * 1024;
/// A metric that every gateway has.
const METRIC: &str = "sluice_database_up";

/// Opens everything that the settings name, and changes nothing. What the first start makes may be missing. Returns
/// what was found, a line for each thing.
///
/// # Errors
/// Names the first thing that does not work.
pub async fn check(settings: Settings) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    found.push(secret(&settings)?);
    let key = match settings.signing_key_file.exists() {
        true => Some(GatewayKey::open(&settings.signing_key_file, &settings.public_url(settings.listen).to_string())?),
        false => None,
    };
    found.push(described("signing key", &settings.signing_key_file, key.is_some()));
    if let Some(options) = settings.platform.clone() {
        let metrics = Arc::new(Metrics::new().context("cannot register the metrics")?);
        let outbound = Outbound::new(settings.allow_hosts.clone(), FETCHES, metrics);
        let url = options.jwks_url.to_string();
        let platform = Platform::new(options, outbound, TaskTracker::new());
        platform.fetch().await.context("the platform's tokens cannot be verified (check --token-jwks-url)")?;
        found.push(format!("platform's keys: {url} answers"));
    }
    let own_keys = key.map(|key| key.jwks().to_string());
    // What is in use is as it should be where this gateway runs.
    let port = public_port(settings.listen, own_keys.as_deref()).await;
    let runs = port.as_ref().is_ok_and(|(runs, _)| *runs);
    found.push(data_dir(&settings.data_dir)?);
    found.push(database(&settings, runs).await?);
    if settings.cache_size > 0 {
        found.push(cache(&cache_dir(&settings), runs)?);
    }
    found.push(port?.1);
    found.push(ops_port(settings.ops_listen, runs).await?);
    Ok(found)
}

fn described(what: &str, path: &Path, exists: bool) -> String {
    let state = if exists { "can be used" } else { "is not there yet; the first start makes it" };
    format!("{what}: {} {state}", path.display())
}

fn secret(settings: &Settings) -> anyhow::Result<String> {
    let path = &settings.token_secret_file;
    let exists = path.exists();
    if exists {
        Tokens::open(path)?;
    }
    Ok(described("token secret", path, exists))
}

/// Only writing tells whether one may write: access rights are not all that stands against it.
fn try_writing(folder: &Path) -> io::Result<()> {
    let trial = folder.join(format!(".sluice-check.{:016x}", rand::random::<u64>()));
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&trial)?;
    fs::remove_file(&trial)
}

fn data_dir(dir: &Path) -> anyhow::Result<String> {
    let existing = dir.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let existing = existing.into_iter().find(|path| path.exists()).unwrap_or(dir);
    try_writing(existing).with_context(|| {
        format!("cannot write to the data directory {} (set --data-dir to a writable place)", dir.display())
    })?;
    let state = if existing == dir { "can be written" } else { "is not there yet; the first start makes it" };
    Ok(format!("data directory: {} {state}", dir.display()))
}

/// The cache's folder, which one gateway at a time may use.
fn cache(folder: &Path, runs: bool) -> anyhow::Result<String> {
    match (Cache::is_in_use(folder)?, runs) {
        (true, true) => Ok(format!("cache: this gateway uses {} already", folder.display())),
        (true, false) => Err(content::OpenError::InUse(folder.to_owned()).into()),
        (false, _) => Ok(described("cache", folder, folder.exists())),
    }
}

async fn database(settings: &Settings, runs: bool) -> anyhow::Result<String> {
    let url = &settings.database_url;
    if let Some(file) = url.sqlite_file().filter(|file| !file.exists()) {
        // A start makes the data directory, and no other.
        let folder = file
            .parent()
            .map_or(Path::new("."), |folder| if folder == Path::new("") { Path::new(".") } else { folder });
        if folder != settings.data_dir {
            let place = || format!("cannot make {url} (set --database-url to a file in a folder that is there)");
            try_writing(folder).with_context(place)?;
        }
        return Ok(format!("database: {url} is not there yet; the first start makes it"));
    }
    let in_use = Store::is_in_use(url.expose())?;
    if in_use && !runs {
        let path = url.sqlite_file().unwrap_or_default().display().to_string();
        return Err(OpenError::InUse { path }.into());
    }
    match open_store(settings, false, &Clock::system()).await {
        Ok(store) => store.close().await,
        Err(OpenError::Pending { pending, .. }) => {
            return Ok(format!(
                "database: {url} needs {pending} migration(s), which the next start, or sluice migrate, runs"
            ));
        }
        Err(error) => return Err(error.into()),
    }
    let used = if in_use { ", and this gateway uses it already" } else { "" };
    Ok(format!("database: {url} is up to date{used}"))
}

/// Whether this very gateway runs already at the public address, which then is in use as it should be.
async fn public_port(address: SocketAddr, own_keys: Option<&str>) -> anyhow::Result<(bool, String)> {
    let Err(error) = Listener::bind(address, "listen").await else {
        return Ok((false, format!("--listen: {address} is free")));
    };
    let runs = match own_keys {
        Some(keys) if error.is_in_use() => ask(address, JWKS_PATH).await.is_ok_and(|answer| answer.contains(keys)),
        _ => false,
    };
    if runs { Ok((true, format!("--listen: this gateway runs at {address} already"))) } else { Err(error.into()) }
}

async fn ops_port(address: SocketAddr, runs: bool) -> anyhow::Result<String> {
    let Err(error) = Listener::bind(address, "ops-listen").await else {
        return Ok(format!("--ops-listen: {address} is free"));
    };
    let is_gateway = error.is_in_use() && ask(address, "/metrics").await.is_ok_and(|answer| answer.contains(METRIC));
    match (is_gateway, runs) {
        (true, true) => Ok(format!("--ops-listen: this gateway runs at {address} already")),
        (true, false) => Err(error).context("another gateway runs there"),
        (false, _) => Err(error.into()),
    }
}

/// What the listener at `address` answers to a GET, as far as it is looked at.
async fn ask(address: SocketAddr, path: &str) -> io::Result<String> {
    // A listener on every address answers on loopback, under its name.
    let reached = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((Ipv6Addr::LOCALHOST, address.port())),
        _ => address,
    };
    let asking = async {
        let mut socket = TcpStream::connect(reached).await?;
        socket.write_all(format!("GET {path} HTTP/1.0\r\nHost: {reached}\r\n\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        socket.take(ANSWER_BYTES).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    tokio::time::timeout(ANSWER_TIMEOUT, asking).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
