use std::net::IpAddr;

/// Why nothing, or not all, was fetched. No text tells more of a URL than its host: paths and queries may grant access.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// Not a URL that can be fetched.
    #[error("only https URLs without a user can be fetched")]
    UrlInvalid,
    /// Plain http to a host that the operator did not name.
    #[error("{host} may be fetched over https only (--allow-hosts opens exceptions)")]
    Insecure {
        /// The URL's host.
        host: String,
    },
    /// An address that may not be reached.
    #[error("{host} is at {address}, which is not a public address (--allow-hosts opens exceptions)")]
    Forbidden {
        /// The URL's host.
        host: String,
        /// The address that was refused.
        address: IpAddr,
    },
    /// The name has no address.
    #[error("{host} has no address")]
    Unresolved {
        /// The URL's host.
        host: String,
    },
    /// Nobody accepts connections there.
    #[error("cannot connect to {host}")]
    Unreachable {
        /// The URL's host.
        host: String,
    },
    /// No TLS session with somebody who is who the URL says.
    #[error("no TLS session with {host}: {reason}")]
    Tls {
        /// The URL's host.
        host: String,
        /// What is wrong, in one line.
        reason: String,
    },
    /// As many fetches wait as may.
    #[error("too many fetches are running")]
    Busy,
    /// No answer, or no next byte, in time.
    #[error("no answer in time")]
    TimedOut,
    /// More bytes than were asked for.
    #[error("the answer is longer than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// A body in another form than it has (RFC 9110 section 8.4), although that was not asked for.
    #[error("the answer is compressed, which was not asked for")]
    Encoded,
    /// The connection ended early, or what came is not HTTP.
    #[error("the connection broke off")]
    Broken,
}

impl FetchError {
    /// Every outcome's name, so that each has its counter from the start.
    pub const OUTCOMES: [&str; 12] = [
        "answered",
        "url_invalid",
        "insecure",
        "forbidden",
        "unresolved",
        "unreachable",
        "tls",
        "busy",
        "timed_out",
        "too_large",
        "encoded",
        "broken",
    ];

    /// Whether the request was sent before it failed: only then does it tell something of whom it was sent to.
    pub fn was_sent(&self) -> bool {
        match self {
            Self::TimedOut | Self::TooLarge { .. } | Self::Encoded | Self::Broken => true,
            Self::UrlInvalid
            | Self::Insecure { .. }
            | Self::Forbidden { .. }
            | Self::Unresolved { .. }
            | Self::Unreachable { .. }
            | Self::Tls { .. }
            | Self::Busy => false,
        }
    }

    /// The error's name in metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UrlInvalid => "url_invalid",
            Self::Insecure { .. } => "insecure",
            Self::Forbidden { .. } => "forbidden",
            Self::Unresolved { .. } => "unresolved",
            Self::Unreachable { .. } => "unreachable",
            Self::Tls { .. } => "tls",
            Self::Busy => "busy",
            Self::TimedOut => "timed_out",
            Self::TooLarge { .. } => "too_large",
            Self::Encoded => "encoded",
            Self::Broken => "broken",
        }
    }
}
