//! One layer of settings: what flags and environment say, or what a file says.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use super::values::{Authority, DatabaseUrl, FetchUrl, ListenAddr, Network, PublicUrl, Size, Span};
use crate::identity::SignedAgents;
use crate::logging::LogFormat;
use crate::protocol::address::AllowedHost;

/// Declares the settings once, for flags, environment variables and file alike.
macro_rules! layer {
    ($($(#[$meta:meta])* $field:ident: $kind:ty,)*) => {
        /// Settings that one source names; the rest is left to the sources below it.
        #[derive(Debug, Clone, Default, Args, Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
        pub struct Layer {
            $($(#[$meta])* pub $field: Option<$kind>,)*
        }

        impl Layer {
            /// This layer's settings, and `lower`'s where it has none.
            pub fn over(self, lower: Self) -> Self {
                Self { $($field: self.$field.or(lower.$field),)* }
            }
        }
    };
}

layer! {
    /// Public listener for agents and readers, HTTP/1.1 and HTTP/2 [default: 127.0.0.1:8080]
    #[arg(long, env = "SLUICE_LISTEN", value_name = "ADDR:PORT")]
    listen: ListenAddr,

    /// Listener for /metrics, /healthz and /readyz, without a sign-in [default: 127.0.0.1:9090]
    #[arg(long, env = "SLUICE_OPS_LISTEN", value_name = "ADDR:PORT")]
    ops_listen: ListenAddr,

    /// Host names, besides loopback and the address itself, by which the ops listener may be reached
    #[arg(long, env = "SLUICE_OPS_ALLOW_HOST", value_name = "NAME", value_delimiter = ',')]
    ops_allow_host: Vec<String>,

    /// Names, addresses or CIDRs, with or without a port, that the gateway's own fetches may reach although they are
    /// private, and there over http too
    #[arg(long, env = "SLUICE_ALLOW_HOSTS", value_name = "HOST", value_delimiter = ',')]
    allow_hosts: Vec<AllowedHost>,

    /// Base of every URL handed out, without a path [default: http://LISTEN]
    #[arg(long, env = "SLUICE_PUBLIC_URL", value_name = "URL")]
    public_url: PublicUrl,

    /// Authorities (host, perhaps with a port) that a signature may be made for [default: the public URL's]
    #[arg(long, env = "SLUICE_ACCEPT_AUTHORITY", value_name = "AUTHORITY", value_delimiter = ',')]
    accept_authority: Vec<Authority>,

    /// Agents that may sign instead of sending a token: none, known (in a chat, by a name, or with a bound session), any
    /// [default: any]
    #[arg(long, env = "SLUICE_SIGNED_AGENTS", value_name = "WHICH", value_enum)]
    signed_agents: SignedAgents,

    /// Take a new key of a known agent only from a request that a key held before signed too [default: true]
    #[arg(long, env = "SLUICE_KEY_CONTINUITY", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    key_continuity: bool,

    /// postgres:// or sqlite:// URL [default: a SQLite file in the data directory]
    #[arg(long, env = "SLUICE_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database_url: DatabaseUrl,

    /// Directory for everything kept on disk [default: ./sluice-data]
    #[arg(long, env = "SLUICE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,

    /// HS256 secret of the tokens, created at first start [default: DATA_DIR/token.secret]
    #[arg(long, env = "SLUICE_TOKEN_SECRET_FILE", value_name = "FILE")]
    token_secret_file: PathBuf,

    /// Key set of the platform's own tokens (RS256, ES256 or EdDSA), fetched when it is needed
    #[arg(long, env = "SLUICE_TOKEN_JWKS_URL", value_name = "URL")]
    token_jwks_url: FetchUrl,

    /// The issuer of the platform's own tokens, exactly as in their iss
    #[arg(long, env = "SLUICE_TOKEN_ISSUER", value_name = "ISSUER")]
    token_issuer: String,

    /// What the aud of the platform's own tokens has to name
    #[arg(long, env = "SLUICE_TOKEN_AUDIENCE", value_name = "AUDIENCE")]
    token_audience: String,

    /// Ed25519 key that signs the gateway's own requests, in PKCS#8 PEM, created at first start [default: DATA_DIR/signing.key]
    #[arg(long, env = "SLUICE_SIGNING_KEY_FILE", value_name = "FILE")]
    signing_key_file: PathBuf,

    /// How long a running transfer waits for its agent to come back [default: 60s]
    #[arg(long, env = "SLUICE_RESUME_WINDOW", value_name = "DURATION")]
    resume_window: Span,

    /// How long a new request waits for an agent that is offline [default: 10s]
    #[arg(long, env = "SLUICE_AGENT_WAIT", value_name = "DURATION")]
    agent_wait: Span,

    /// A read with credit that brings no byte for this long is asked again [default: 30s]
    #[arg(long, env = "SLUICE_READ_TIMEOUT", value_name = "DURATION")]
    read_timeout: Span,

    /// How long running downloads may take to finish at shutdown [default: 30s]
    #[arg(long, env = "SLUICE_SHUTDOWN_GRACE", value_name = "DURATION")]
    shutdown_grace: Span,

    /// A connection that takes none of the bytes waiting for it for this long is closed [default: 10m]
    #[arg(long, env = "SLUICE_STALL_TIMEOUT", value_name = "DURATION")]
    stall_timeout: Span,

    /// How often an agent's connection is pinged [default: 20s]
    #[arg(long, env = "SLUICE_PING_INTERVAL", value_name = "DURATION")]
    ping_interval: Span,

    /// How long an agent may take to answer a ping [default: 20s]
    #[arg(long, env = "SLUICE_PING_TIMEOUT", value_name = "DURATION")]
    ping_timeout: Span,

    /// How long a new agent's connection may take to open its first session [default: 10s]
    #[arg(long, env = "SLUICE_HANDSHAKE_TIMEOUT", value_name = "DURATION")]
    handshake_timeout: Span,

    /// Credit out over all transfers, in bytes [default: 512MiB]
    #[arg(long, env = "SLUICE_MEMORY_BUDGET", value_name = "SIZE")]
    memory_budget: Size,

    /// Verified chunks kept on disk under DATA_DIR/cache; 0 turns it off [default: 10GiB]
    #[arg(long, env = "SLUICE_CACHE_SIZE", value_name = "SIZE")]
    cache_size: Size,

    /// Connections held at once; idle ones make way, or more wait to be accepted [default: 16384]
    #[arg(long, env = "SLUICE_MAX_CONNECTIONS", value_name = "N")]
    max_connections: u32,

    /// Connections held at once from one address (IPv6: a /64) that is no trusted proxy's; 0: no limit [default: 1024, or a
    /// quarter of --max-connections, without counting loopback]
    #[arg(long, env = "SLUICE_ADDRESS_CONNECTIONS", value_name = "N")]
    address_connections: u32,

    /// Transfers at once; one more is answered 503 [default: 1024, or what the memory budget has frames for]
    #[arg(long, env = "SLUICE_MAX_TRANSFERS", value_name = "N")]
    max_transfers: u32,

    /// Bytes a second that one transfer brings at most; 0: no limit [default: 0]
    #[arg(long, env = "SLUICE_TRANSFER_BYTE_RATE", value_name = "SIZE")]
    transfer_byte_rate: Size,

    /// Bytes a second that all transfers of one reader bring together at most; 0: no limit [default: 0]
    #[arg(long, env = "SLUICE_READER_BYTE_RATE", value_name = "SIZE")]
    reader_byte_rate: Size,

    /// Bytes a second asked at most over one agent's connections, for all readers together; 0: no limit [default: 0]
    #[arg(long, env = "SLUICE_AGENT_BYTE_RATE", value_name = "SIZE")]
    agent_byte_rate: Size,

    /// By hash, require the Artifact-Task header for sets whose manifest names a task [default: false]
    #[arg(long, env = "SLUICE_REQUIRE_TASK", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    require_task: bool,

    /// Requests each second of one reader, and four seconds' worth at once; 0: no limit [default: 1000]
    #[arg(long, env = "SLUICE_READER_RATE", value_name = "N")]
    reader_rate: u32,

    /// Requests of one reader that run at once; 0: no limit [default: 1024]
    #[arg(long, env = "SLUICE_READER_REQUESTS", value_name = "N")]
    reader_requests: u32,

    /// Requests each second from one address, and four seconds' worth at once; 0: no limit [default: 2000]
    #[arg(long, env = "SLUICE_ADDRESS_RATE", value_name = "N")]
    address_rate: u32,

    /// Requests from one address that run at once; 0: no limit [default: 4096]
    #[arg(long, env = "SLUICE_ADDRESS_REQUESTS", value_name = "N")]
    address_requests: u32,

    /// Credentials each minute from one address that may prove nothing; 0: no limit [default: 60]
    #[arg(long, env = "SLUICE_FAILED_AUTH_RATE", value_name = "N")]
    failed_auth_rate: u32,

    /// Agents' connections let in each second; a few wait, the rest are answered 503; 0: no limit [default: 200]
    #[arg(long, env = "SLUICE_AGENT_ADMISSION", value_name = "N")]
    agent_admission: u32,

    /// Proxies whose X-Forwarded-For says where a request comes from, as addresses or CIDRs [default: none]
    #[arg(long, env = "SLUICE_TRUSTED_PROXIES", value_name = "CIDR", value_delimiter = ',')]
    trusted_proxies: Vec<Network>,

    /// How long a browser stays signed in at most [default: 12h]
    #[arg(long, env = "SLUICE_SIGNIN_TTL", value_name = "DURATION")]
    signin_ttl: Span,

    /// Let readers make links that open one file without a token [default: false]
    #[arg(long, env = "SLUICE_LINKS", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    links: bool,

    /// How long a link is good for at most [default: 24h]
    #[arg(long, env = "SLUICE_LINK_TTL", value_name = "DURATION")]
    link_ttl: Span,

    /// How long it stays written down who read what; 0s: nothing is written down [default: 90d]
    #[arg(long, env = "SLUICE_AUDIT_RETENTION", value_name = "DURATION")]
    audit_retention: Span,

    /// Sets that one agent may have announced [default: 10000]
    #[arg(long, env = "SLUICE_AGENT_SETS", value_name = "N")]
    agent_sets: u64,

    /// Entries of all sets that one agent may have announced [default: 5000000]
    #[arg(long, env = "SLUICE_AGENT_ENTRIES", value_name = "N")]
    agent_entries: u64,

    /// Bytes of all entries that one agent may have announced; they stay with it [default: 1PiB]
    #[arg(long, env = "SLUICE_AGENT_BYTES", value_name = "SIZE")]
    agent_bytes: Size,

    /// Bytes of manifests that one agent may have announced; the database keeps them [default: 4GiB]
    #[arg(long, env = "SLUICE_AGENT_MANIFEST_BYTES", value_name = "SIZE")]
    agent_manifest_bytes: Size,

    /// Sets that may be announced into one chat [default: 20000]
    #[arg(long, env = "SLUICE_CHAT_SETS", value_name = "N")]
    chat_sets: u64,

    /// Entries of all sets that may be announced into one chat [default: 10000000]
    #[arg(long, env = "SLUICE_CHAT_ENTRIES", value_name = "N")]
    chat_entries: u64,

    /// Bytes of all entries that may be announced into one chat [default: 2PiB]
    #[arg(long, env = "SLUICE_CHAT_BYTES", value_name = "SIZE")]
    chat_bytes: Size,

    /// How much of what one chat may hold one agent may announce into it, in percent [default: 50]
    #[arg(long, env = "SLUICE_CHAT_AGENT_PERCENT", value_name = "N")]
    chat_agent_percent: u8,

    /// How long a set is kept after it was last announced; 0s: until its chat is deleted [default: 0s]
    #[arg(long, env = "SLUICE_SET_RETENTION", value_name = "DURATION")]
    set_retention: Span,

    /// How log lines look [default: text]
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_name = "FORMAT", value_enum)]
    log_format: LogFormat,

    /// Which log lines are written: a level, or directives such as info,sluice=debug [default: info]
    #[arg(long, env = "SLUICE_LOG_LEVEL", value_name = "LEVEL")]
    log_level: String,
}
