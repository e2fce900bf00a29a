//! Bytes from places that an announcement names (specification section 1, "Locations"): how each kind is asked for a
//! range, and what its answer has to be before a byte of it is used.

mod fetch;
mod oci;
mod tokens;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, CONTENT_RANGE, LOCATION, RANGE, RETRY_AFTER, VIA};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use moka::sync::Cache;
use url::Url;

pub use fetch::{FetchEnd, Fetching};

use crate::access::Remote;
use crate::clock::Clock;
use crate::identity::GatewayKey;
use crate::metrics::Metrics;
use crate::outbound::{self, Bounds, Fetch, FetchError, Fetched, Outbound};
use crate::protocol::digest_field::parse_repr_digest;
use crate::protocol::limits::CONCURRENT_TRANSFERS;
use crate::protocol::{ByteRange, LocationKind, Principal, Sha256};
use tokens::Tokens;

/// Fetches of bytes at once: as many to one host as a producer serves (specification section 6).
const BOUNDS: Bounds =
    Bounds { total: 1024, per_host: CONCURRENT_TRANSFERS, waiting: 1024, lookups: 64, lookups_per_domain: 16 };
/// The header that names the set's task (specification section 2).
const ARTIFACT_TASK: HeaderName = HeaderName::from_static("artifact-task");
/// By what name this gateway is known to those who look out for loops (RFC 9110 section 7.6.3).
pub const VIA_NAME: &str = "1.1 sluice";
/// How long a busy place is left alone when it does not say.
const BUSY: Duration = Duration::from_secs(1);
/// The longest that it may say.
const BUSY_MAX: Duration = Duration::from_secs(60);

/// How many agents' closed places the operator is told of, and how often.
const WARNED: u64 = 1024;
const WARNED_AGAIN: Duration = Duration::from_secs(24 * 60 * 60);

/// Why a place did not answer with bytes that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A kind that this gateway does not implement.
    #[error("the kind is not one that this gateway fetches from")]
    Unsupported,
    /// This gateway's own URL: whatever it has for the reader is among the sources already.
    #[error("the place is this gateway itself")]
    Own,
    /// It takes no more transfers now.
    #[error("the place is busy")]
    Busy(Duration),
    /// It does not let this gateway have the bytes.
    #[error("the place answers {0}: it does not take this gateway's signature, or wants another credential")]
    Denied(u16),
    /// It does not have the bytes, or not any longer.
    #[error("the place answers {0}")]
    Gone(u16),
    /// An answer that is not the range of the blob that was asked for.
    #[error("the answer is not what was asked for: {0}")]
    Wrong(&'static str),
    /// No answer.
    #[error(transparent)]
    Unreachable(FetchError),
}

impl From<FetchError> for Refusal {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::TooLarge { .. } => Self::Wrong("more than the range"),
            error => Self::Unreachable(error),
        }
    }
}

impl Refusal {
    /// Whether the place stays closed until the operator opens it.
    fn is_closed(&self) -> bool {
        matches!(self, Self::Unreachable(FetchError::Forbidden { .. } | FetchError::Insecure { .. }))
    }

    /// The refusal's name in metrics.
    fn code(&self) -> &'static str {
        match self {
            Self::Unsupported => "location_kind_unsupported",
            Self::Own => "own",
            Self::Busy(_) => "busy",
            Self::Denied(_) => "denied",
            Self::Gone(_) => "gone",
            Self::Wrong(_) => "wrong",
            Self::Unreachable(_) => "unreachable",
        }
    }
}

const OUTCOMES: [&str; 8] =
    ["answered", "location_kind_unsupported", "own", "busy", "denied", "gone", "wrong", "unreachable"];
const KINDS: [&str; 5] = ["https", "s3", "robutler", "oci", "other"];

/// A range of a blob.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The blob.
    pub sha256: Sha256,
    /// Its complete length.
    pub size: u64,
    /// Of it.
    pub range: ByteRange,
}

impl Wanted {
    fn is_whole(&self) -> bool {
        self.range.start == 0 && self.range.end == self.size
    }
}

/// Asks places for bytes.
pub struct Locations {
    outbound: Outbound,
    key: GatewayKey,
    /// Scheme, host and port of this gateway's public URL.
    own: String,
    tokens: Tokens,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// Agents whose closed places the operator was told of lately: whoever names places can name any number.
    warned: Cache<Principal, ()>,
}

impl fmt::Debug for Locations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locations").field("own", &self.own).finish_non_exhaustive()
    }
}

impl Locations {
    /// Asks through `outbound`, in the name of `key`. `own` is this gateway's public URL.
    pub fn new(outbound: &Outbound, key: GatewayKey, own: &str, clock: Clock, metrics: Arc<Metrics>) -> Arc<Self> {
        for kind in KINDS {
            for outcome in OUTCOMES {
                let _ = metrics.locations.with_label_values(&[kind, outcome]);
            }
        }
        let own = own.parse().map_or_else(|_| own.to_owned(), |url: Url| url.origin().ascii_serialization());
        let (outbound, tokens) = (outbound.lane(BOUNDS), Tokens::default());
        let warned = Cache::builder().max_capacity(WARNED).time_to_live(WARNED_AGAIN).build();
        Arc::new(Self { outbound, key, own, tokens, clock, metrics, warned })
    }

    /// Asks for a range. Whatever answers has said that it is this range of this blob.
    async fn ask(&self, remote: &Remote, wanted: Wanted, timeout: Duration) -> Result<Fetched, Refusal> {
        let outcome = self.ask_kind(remote, wanted, timeout).await;
        let kind = match &remote.location.kind {
            LocationKind::Other(_) => "other",
            kind => kind.as_str(),
        };
        let code = outcome.as_ref().err().map_or("answered", Refusal::code);
        self.metrics.locations.with_label_values(&[kind, code]).inc();
        if let Err(refusal) = &outcome {
            // The target may hold what grants access, so only its kind is told.
            let kind = remote.location.kind.as_str();
            tracing::info!(kind, sha256 = %wanted.sha256, code, %refusal, "a location is passed over");
            if refusal.is_closed() && self.warned.entry(remote.agent.clone()).or_insert(()).is_fresh() {
                tracing::warn!(agent = %remote.agent, kind, %refusal, "an agent names a place that is never asked");
            }
        }
        outcome
    }

    async fn ask_kind(&self, remote: &Remote, wanted: Wanted, timeout: Duration) -> Result<Fetched, Refusal> {
        let target = &remote.location.target;
        match &remote.location.kind {
            LocationKind::Https | LocationKind::Robutler => {
                let url: Url = target.parse().map_err(|_| FetchError::UrlInvalid)?;
                if url.origin().ascii_serialization() == self.own {
                    return Err(Refusal::Own);
                }
                let by_hash = names(&url, &wanted.sha256);
                let mut fetch = range_of(url, wanted, timeout);
                fetch.headers.insert(VIA, HeaderValue::from_static(VIA_NAME));
                // Beyond ASCII, servers read a field's bytes in different ways (RFC 9110 section 5.5).
                match remote.task.as_deref().map(|task| HeaderValue::from_str(task).ok().filter(|_| task.is_ascii())) {
                    Some(Some(task)) => drop(fetch.headers.insert(ARTIFACT_TASK, task)),
                    Some(None) => {
                        tracing::info!(sha256 = %wanted.sha256, "a place is asked without the task, whose name is no ASCII");
                    }
                    None => {}
                }
                if remote.signed && by_hash {
                    let Fetch { url, headers, .. } = &mut fetch;
                    self.key.sign(&Method::GET, url, headers, &[ARTIFACT_TASK], &self.clock);
                }
                accept(self.outbound.get(fetch).await?, wanted)
            }
            LocationKind::S3 => {
                let url: Url = target.parse().map_err(|_| FetchError::UrlInvalid)?;
                accept(self.outbound.get(range_of(url, wanted, timeout)).await?, wanted)
            }
            LocationKind::Oci => {
                let asker =
                    oci::Asker { outbound: &self.outbound, tokens: &self.tokens, agent: &remote.agent, timeout };
                accept(asker.get(target, wanted).await?, wanted)
            }
            LocationKind::Relay | LocationKind::Other(_) => Err(Refusal::Unsupported),
        }
    }
}

/// Whether a URL asks for this blob by its hash, as producers' endpoints and content stores are asked, and for nothing
/// else. Only such a request is worth the gateway's name: whoever trusts it with more must not be asked for that by an
/// agent that names any URL it likes.
fn names(url: &Url, sha256: &Sha256) -> bool {
    let last = url.path_segments().and_then(|mut segments| segments.next_back()).unwrap_or_default();
    let hash = ["sha256:", "sha256%3A", "sha256%3a"].iter().find_map(|prefix| last.strip_prefix(prefix));
    url.query().is_none() && hash.unwrap_or(last) == sha256.to_hex()
}

/// A request for the range. The whole blob is asked for without one, so that servers that know no ranges serve it.
fn range_of(url: Url, wanted: Wanted, timeout: Duration) -> Fetch {
    let mut fetch = Fetch::get(url, wanted.range.len(), timeout);
    if !wanted.is_whole() {
        let range = format!("bytes={}-{}", wanted.range.start, wanted.range.end - 1);
        if let Ok(range) = HeaderValue::from_str(&range) {
            fetch.headers.insert(RANGE, range);
        }
    }
    fetch
}

/// Whether the answer says that it is what was asked for: status, range, length, and the digest of the whole.
fn accept(fetched: Fetched, wanted: Wanted) -> Result<Fetched, Refusal> {
    let Fetched { status, headers, .. } = &fetched;
    match *status {
        206 => {
            let expected = format!("bytes {}-{}/{}", wanted.range.start, wanted.range.end - 1, wanted.size);
            if single(headers, &CONTENT_RANGE) != Some(expected.as_str()) {
                return Err(Refusal::Wrong("another range"));
            }
        }
        // A server that ignores ranges is of use only for a whole file (specification section 3).
        200 if wanted.is_whole() => {}
        200 => return Err(Refusal::Wrong("the whole file for a range of it")),
        429 | 503 => return Err(Refusal::Busy(retry_after(headers))),
        401 | 403 => return Err(Refusal::Denied(*status)),
        status => return Err(Refusal::Gone(status)),
    }
    if let Some(length) = headers.get(CONTENT_LENGTH)
        && length.to_str().ok().and_then(|length| length.parse().ok()) != Some(wanted.range.len())
    {
        return Err(Refusal::Wrong("another length"));
    }
    if let Some(digest) = headers.get("repr-digest") {
        let named = parse_repr_digest(digest.as_bytes()).map_err(|_| Refusal::Wrong("a malformed Repr-Digest"))?;
        if named.is_some_and(|named| named != wanted.sha256) {
            return Err(Refusal::Wrong("another blob's Repr-Digest"));
        }
    }
    Ok(fetched)
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

/// How long a busy place wants to be left alone, in seconds (RFC 9110 section 10.2.3); dates are not asked for often
/// enough to be read.
fn retry_after(headers: &HeaderMap) -> Duration {
    let seconds = single(headers, &RETRY_AFTER).and_then(|value| value.trim().parse().ok());
    seconds.map_or(BUSY, |seconds| Duration::from_secs(seconds).min(BUSY_MAX))
}

/// Where a redirect leads.
fn redirect(from: &Url, fetched: &Fetched) -> Option<Url> {
    if !matches!(fetched.status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    from.join(single(&fetched.headers, &LOCATION)?).ok()
}

/// Whether a request came from a gateway that fetches a location. Such a one is served by agents only: two gateways
/// that name each other would otherwise ask in circles.
pub fn is_from_gateway(headers: &HeaderMap) -> bool {
    let mut names = headers.get_all(VIA).iter().filter_map(|value| value.to_str().ok()).flat_map(|via| via.split(','));
    names.any(|name| name.trim().starts_with(VIA_NAME))
}

/// Whether two URLs are of one origin, so that what was given for one may be told to the other.
fn same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme() && outbound::authority(one) == outbound::authority(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateways_name_goes_with_the_blobs_own_hash_only() {
        let (sha256, other) = (Sha256::of(b"a"), Sha256::of(b"b"));
        let named = |url: String| names(&Url::parse(&url).unwrap(), &sha256);
        for path in ["agents/flow/artifacts/blobs/sha256:", "artifacts/blobs/sha256%3A", "x/sha256%3a", "api/blob/cas/"]
        {
            assert!(named(format!("https://a.example/{path}{sha256}")), "{path}");
            assert!(!named(format!("https://a.example/{path}{other}")), "{path}");
            assert!(!named(format!("https://a.example/{path}{sha256}?all=1")), "{path}");
            assert!(!named(format!("https://a.example/{path}{sha256}/more")), "{path}");
        }
        for path in ["", "secrets", "artifacts/blobs/it", "artifacts/blobs/sha256:"] {
            assert!(!named(format!("https://a.example/{path}")), "{path}");
        }
    }
}
