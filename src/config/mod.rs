//! The settings of the process.
//!
//! A flag wins over its environment variable (`SLUICE_` and the flag's name), that over the TOML file named by
//! `--config`, that over the default. This module reads and judges; it opens nothing but that file.

mod file;
mod layer;
mod values;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;

pub use layer::Layer;
pub use values::{Authority, DatabaseUrl, FetchUrl, InvalidValue, ListenAddr, Network, PublicUrl, Size, Span};

use crate::identity::{PlatformOptions, SignedAgents};
use crate::logging::LogFormat;
use crate::protocol::address::Allowed;
use crate::protocol::limits::DATA_PAYLOAD;
use crate::store::{Amount, Quota};

const MAX_TRANSFERS: u32 = 1024;
const ADDRESS_CONNECTIONS: u32 = 1024;
/// One address holds no more than this part of all connections, unless somebody chose the number.
const ADDRESS_PART: usize = 4;
/// Less would have clients give up before their next bytes come.
const BYTE_RATE_MIN: u64 = 1024;

/// Why the settings are not usable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file named by `--config` cannot be read.
    #[error("cannot read the settings file {}: {reason} (check --config)", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The file names a setting that does not exist.
    #[error("{}, line {line}: there is no setting {name} ({hint}see sluice serve --help)", path.display(), hint = hint(name))]
    UnknownSetting {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The key as it stands in the file.
        name: String,
    },
    /// The file is not TOML, or holds a value that its setting does not take.
    #[error("{}, line {line}: {reason} (see sluice serve --help)", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A value is refused.
    #[error("{reason} (set --{setting} or {variable})", variable = variable(setting))]
    Refused {
        /// The setting's flag, without dashes.
        setting: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// The environment variable of a setting.
fn variable(setting: &str) -> String {
    format!("SLUICE_{}", setting.replace('-', "_").to_uppercase())
}

/// What a key was meant to be that is spelt otherwise than settings are.
fn hint(key: &str) -> String {
    let spelt = key.trim_start_matches('-').replace('_', "-").to_lowercase();
    let spelt = spelt.strip_prefix("sluice-").unwrap_or(&spelt);
    let settings = Layer::augment_args(clap::Command::new("settings"));
    let known = settings.get_arguments().any(|setting| setting.get_long() == Some(spelt));
    if known { format!("write {spelt}; ") } else { String::new() }
}

/// The flags of every command that needs settings.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigArgs {
    /// TOML file with settings, named as the flags are
    #[arg(long, env = "SLUICE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Settings given by flag or environment.
    #[command(flatten)]
    pub layer: Layer,
}

/// Every setting, with a value.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The public listener.
    pub listen: SocketAddr,
    /// The operator's listener.
    pub ops_listen: SocketAddr,
    /// Host names by which the operator's listener may be reached, lower case, besides its own addresses.
    pub ops_allow_host: Vec<String>,
    /// What the gateway's own fetches may reach beside public addresses.
    pub allow_hosts: Allowed,
    /// The base of URLs, when somebody named it; see [`Settings::public_url`].
    pub named_public_url: Option<PublicUrl>,
    /// The authorities that a signature may be made for, when somebody named any; see [`Settings::authorities`].
    pub named_authorities: Vec<Authority>,
    /// Which agents may sign instead of sending a token.
    pub signed_agents: SignedAgents,
    /// Whether a known agent's new key needs one that it held before.
    pub key_continuity: bool,
    /// The database.
    pub database_url: DatabaseUrl,
    /// Everything kept on disk.
    pub data_dir: PathBuf,
    /// The secret that signs tokens.
    pub token_secret_file: PathBuf,
    /// The platform's own tokens, when they are accepted.
    pub platform: Option<PlatformOptions>,
    /// The key that signs the gateway's own requests.
    pub signing_key_file: PathBuf,
    /// How long a running transfer waits for its agent.
    pub resume_window: Duration,
    /// How long a new request waits for an agent that is offline.
    pub agent_wait: Duration,
    /// A read with credit that brings no byte for this long is asked again.
    pub read_timeout: Duration,
    /// How long bodies may take to finish at shutdown.
    pub shutdown_grace: Duration,
    /// A connection that takes none of the bytes waiting for it for this long is closed.
    pub stall_timeout: Duration,
    /// How often an agent's connection is pinged.
    pub ping_interval: Duration,
    /// How long an agent may take to answer a ping.
    pub ping_timeout: Duration,
    /// How long a new agent's connection may take to open its first session.
    pub handshake_timeout: Duration,
    /// Credit out over all transfers, in bytes.
    pub memory_budget: u64,
    /// Bytes of verified chunks kept on disk; 0 where none are.
    pub cache_size: u64,
    /// Connections held at once.
    pub max_connections: usize,
    /// Of these, from one address; 0 is no limit. None where nobody chose.
    pub named_address_connections: Option<u32>,
    /// Transfers at once: at most as many as the memory budget has frames.
    pub max_transfers: usize,
    /// The highest rates, in bytes a second.
    pub byte_rates: ByteRates,
    /// Whether sets of a task are served only to requests that name it.
    pub require_task: bool,
    /// What one address, and one reader, may ask for.
    pub request_limits: RequestLimits,
    /// How long a browser stays signed in at most.
    pub signin_ttl: Duration,
    /// How long a link is good for at most; none where nobody may make any.
    pub links: Option<Duration>,
    /// How long it stays written down who read what; zero for not at all.
    pub audit_retention: Duration,
    /// What agents may announce, and chats may hold.
    pub quota: Quota,
    /// How long a set is kept after it was last announced; zero: until its chat is deleted.
    pub set_retention: Duration,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which log lines are written, as `tracing` directives, where they were named.
    pub log_level: Option<String>,
}

/// The highest rates, in bytes a second; none is no limit.
#[derive(Debug, Clone, Copy)]
pub struct ByteRates {
    /// Of one transfer.
    pub transfer: Option<u64>,
    /// Of all transfers of one reader together.
    pub reader: Option<u64>,
    /// Of what is asked over one agent's connections.
    pub agent: Option<u64>,
}

/// What one address, and one reader, may ask for; 0 is no limit.
#[derive(Debug, Clone)]
pub struct RequestLimits {
    /// Requests each second of one reader.
    pub reader_rate: u32,
    /// Requests of one reader that run at once.
    pub reader_requests: u32,
    /// Requests each second from one address.
    pub address_rate: u32,
    /// Requests from one address that run at once.
    pub address_requests: u32,
    /// Credentials each minute from one address that may prove nothing.
    pub failed_auth_rate: u32,
    /// Agents' connections let in each second.
    pub agent_admission: u32,
    /// Whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
}

impl Settings {
    /// Reads the file that `args` names, lays flags and environment over it, and judges the result.
    pub fn load(args: ConfigArgs) -> Result<Self, ConfigError> {
        Self::load_over(args, Layer::default())
    }

    /// The same with other `defaults` where they name any.
    pub fn load_over(args: ConfigArgs, defaults: Layer) -> Result<Self, ConfigError> {
        let file = args.config.as_deref().map(file::read).transpose()?.unwrap_or_default();
        Self::resolve(args.layer.over(file).over(defaults))
    }

    /// Fills in the defaults and judges what depends on more than one value.
    pub fn resolve(layer: Layer) -> Result<Self, ConfigError> {
        let data_dir = layer.data_dir.unwrap_or_else(|| "./sluice-data".into());
        let database_url =
            layer.database_url.unwrap_or_else(|| DatabaseUrl::of_sqlite_file(&data_dir.join("sluice.db")));
        database_url.check().map_err(|e| refused("database-url", e.to_string()))?;
        let memory_budget = layer.memory_budget.map_or(512 << 20, Size::bytes);
        let max_connections = positive("max-connections", layer.max_connections.unwrap_or(16_384))?;
        let standard = Quota::default();
        let amount = |sets: Option<u64>, entries: Option<u64>, bytes: Option<Size>, standard: Amount| Amount {
            sets: sets.unwrap_or(standard.sets),
            entries: entries.unwrap_or(standard.entries),
            bytes: bytes.map_or(standard.bytes, Size::bytes),
        };
        let quota = Quota {
            agent: amount(layer.agent_sets, layer.agent_entries, layer.agent_bytes, standard.agent),
            chat: amount(layer.chat_sets, layer.chat_entries, layer.chat_bytes, standard.chat),
            chat_agent_percent: percent(
                "chat-agent-percent",
                layer.chat_agent_percent.unwrap_or(standard.chat_agent_percent),
            )?,
            manifest_bytes: layer.agent_manifest_bytes.map_or(standard.manifest_bytes, Size::bytes),
            ..standard
        };
        let link_ttl = some_time("link-ttl", seconds(layer.link_ttl, 24 * 60 * 60))?;
        let listen = layer.listen.map_or_else(|| loopback(8080), ListenAddr::get);
        let ops_listen = layer.ops_listen.map_or_else(|| loopback(9090), ListenAddr::get);
        if listen == ops_listen && listen.port() != 0 {
            return Err(refused("ops-listen", "the public and the operator's listener need an address each"));
        }
        if let Some(level) = &layer.log_level {
            crate::logging::filter(level).map_err(|e| refused("log-level", e.to_string()))?;
        }
        Ok(Self {
            listen,
            ops_listen,
            ops_allow_host: allowed_hosts(layer.ops_allow_host.unwrap_or_default())?,
            allow_hosts: Allowed::new(layer.allow_hosts.unwrap_or_default()),
            named_public_url: layer.public_url,
            named_authorities: layer.accept_authority.unwrap_or_default(),
            signed_agents: layer.signed_agents.unwrap_or_default(),
            key_continuity: layer.key_continuity.unwrap_or(true),
            token_secret_file: layer.token_secret_file.unwrap_or_else(|| data_dir.join("token.secret")),
            platform: platform(layer.token_jwks_url, layer.token_issuer, layer.token_audience)?,
            signing_key_file: layer.signing_key_file.unwrap_or_else(|| data_dir.join("signing.key")),
            database_url,
            data_dir,
            resume_window: seconds(layer.resume_window, 60),
            agent_wait: seconds(layer.agent_wait, 10),
            read_timeout: some_time("read-timeout", seconds(layer.read_timeout, 30))?,
            shutdown_grace: seconds(layer.shutdown_grace, 30),
            stall_timeout: some_time("stall-timeout", seconds(layer.stall_timeout, 600))?,
            ping_interval: some_time("ping-interval", seconds(layer.ping_interval, 20))?,
            ping_timeout: some_time("ping-timeout", seconds(layer.ping_timeout, 20))?,
            handshake_timeout: some_time("handshake-timeout", seconds(layer.handshake_timeout, 10))?,
            max_transfers: max_transfers(layer.max_transfers, memory_budget)?,
            memory_budget,
            cache_size: layer.cache_size.map_or(10 << 30, Size::bytes),
            max_connections,
            named_address_connections: layer.address_connections,
            byte_rates: ByteRates {
                transfer: byte_rate("transfer-byte-rate", layer.transfer_byte_rate)?,
                reader: byte_rate("reader-byte-rate", layer.reader_byte_rate)?,
                agent: byte_rate("agent-byte-rate", layer.agent_byte_rate)?,
            },
            require_task: layer.require_task.unwrap_or(false),
            request_limits: RequestLimits {
                reader_rate: layer.reader_rate.unwrap_or(1000),
                reader_requests: layer.reader_requests.unwrap_or(1024),
                address_rate: layer.address_rate.unwrap_or(2000),
                address_requests: layer.address_requests.unwrap_or(4096),
                failed_auth_rate: layer.failed_auth_rate.unwrap_or(60),
                agent_admission: layer.agent_admission.unwrap_or(200),
                trusted_proxies: layer.trusted_proxies.unwrap_or_default().into_iter().map(Network::get).collect(),
            },
            signin_ttl: some_time("signin-ttl", seconds(layer.signin_ttl, 12 * 60 * 60))?,
            links: layer.links.unwrap_or(false).then_some(link_ttl),
            audit_retention: seconds(layer.audit_retention, 90 * 24 * 60 * 60),
            quota,
            set_retention: seconds(layer.set_retention, 0),
            log_format: layer.log_format.unwrap_or_default(),
            log_level: layer.log_level,
        })
    }

    /// The base of every URL handed out: the one that was named, else the address that was `bound`.
    pub fn public_url(&self, bound: SocketAddr) -> PublicUrl {
        self.named_public_url.clone().unwrap_or_else(|| PublicUrl::of_listener(bound))
    }

    /// How many connections one address may hold, and of which it is not counted: trusted proxies, and unless somebody
    /// chose the number, this machine's own, behind whose loopback there may be a proxy that nobody named.
    pub fn address_connections(&self) -> (u32, Vec<IpNet>) {
        let mut uncounted = self.request_limits.trusted_proxies.clone();
        if self.named_address_connections.is_none() {
            uncounted.extend(loopback_nets());
        }
        let a_part = u32::try_from(self.max_connections / ADDRESS_PART).unwrap_or(u32::MAX);
        (self.named_address_connections.unwrap_or(ADDRESS_CONNECTIONS.min(a_part).max(1)), uncounted)
    }

    /// The authorities that a signature may be made for: those that were named, else the public URL's.
    pub fn authorities(&self, public_url: &PublicUrl) -> Vec<String> {
        if self.named_authorities.is_empty() {
            return vec![public_url.authority().to_owned()];
        }
        self.named_authorities.iter().map(|authority| authority.as_str().to_owned()).collect()
    }
}

/// This machine's own addresses, as far as only it has them.
pub fn loopback_nets() -> [IpNet; 2] {
    [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)].map(IpNet::from)
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn seconds(given: Option<Span>, default: u64) -> Duration {
    given.map_or(Duration::from_secs(default), Span::get)
}

fn refused(setting: &'static str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Refused { setting, reason: reason.into() }
}

fn some_time(setting: &'static str, duration: Duration) -> Result<Duration, ConfigError> {
    if duration.is_zero() {
        return Err(refused(setting, "the duration is more than zero"));
    }
    Ok(duration)
}

fn positive(setting: &'static str, number: u32) -> Result<usize, ConfigError> {
    match usize::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(refused(setting, "the number is at least 1")),
    }
}

fn byte_rate(setting: &'static str, given: Option<Size>) -> Result<Option<u64>, ConfigError> {
    match given.map_or(0, Size::bytes) {
        0 => Ok(None),
        1..BYTE_RATE_MIN => Err(refused(setting, "a rate is at least 1KiB each second, or 0 for no limit")),
        bytes => Ok(Some(bytes)),
    }
}

fn percent(setting: &'static str, number: u8) -> Result<u8, ConfigError> {
    match number {
        1..=100 => Ok(number),
        _ => Err(refused(setting, "a part is 1 to 100 percent")),
    }
}

/// The three go together: a key set alone would accept every token that its keys ever signed, for whomever.
fn platform(
    jwks_url: Option<FetchUrl>,
    issuer: Option<String>,
    audience: Option<String>,
) -> Result<Option<PlatformOptions>, ConfigError> {
    let missing = |setting| refused(setting, "--token-jwks-url, --token-issuer and --token-audience go together");
    let text = |text: Option<String>| text.filter(|text| !text.is_empty());
    match (jwks_url, text(issuer), text(audience)) {
        (None, None, None) => Ok(None),
        (Some(url), Some(issuer), Some(audience)) => {
            Ok(Some(PlatformOptions { jwks_url: url.get().clone(), issuer, audience }))
        }
        (None, ..) => Err(missing("token-jwks-url")),
        (_, None, _) => Err(missing("token-issuer")),
        (_, _, None) => Err(missing("token-audience")),
    }
}

/// One frame is reserved for each admitted transfer, so there are never more transfers than frames in the budget.
fn max_transfers(given: Option<u32>, memory_budget: u64) -> Result<usize, ConfigError> {
    let frames = u32::try_from(memory_budget / DATA_PAYLOAD as u64).unwrap_or(u32::MAX);
    if frames == 0 {
        return Err(refused("memory-budget", "the memory budget is at least one frame of 256KiB"));
    }
    match given {
        Some(number) if number > frames => {
            Err(refused("max-transfers", format!("the memory budget has frames for {frames} transfers only")))
        }
        given => positive("max-transfers", given.unwrap_or(MAX_TRANSFERS.min(frames))),
    }
}

fn allowed_hosts(names: Vec<String>) -> Result<Vec<String>, ConfigError> {
    let valid = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    if !names.iter().all(|name| valid(name)) {
        return Err(refused("ops-allow-host", "a host name has letters, digits, dots and dashes, and no port"));
    }
    Ok(names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
}

#[cfg(test)]
mod tests;
