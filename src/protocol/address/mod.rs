//! Which addresses the gateway's own fetches may connect to.
//!
//! A stranger chooses what is fetched, so an address is reached only when everybody could reach it (the IANA registries
//! of special-purpose addresses), or when the operator names it. Addresses that carry another one inside (IPv4-mapped,
//! NAT64 and 6to4) are judged by the inner one, which is where the packets end up.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Deserializer, de};

/// Who could reach an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Everybody.
    Public,
    /// Whoever stands at the right place: reached only where the operator says so.
    Private,
    /// Link-local, or a cloud's metadata service, which hands out credentials: never reached, whatever is allowed.
    Never,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(segments: [u16; 8], prefix: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix)
}

/// What is not globally reachable.
const PRIVATE_V4: [Ipv4Net; 15] = [
    v4(0, 0, 0, 0, 8),
    v4(10, 0, 0, 0, 8),
    v4(100, 64, 0, 0, 10),
    v4(127, 0, 0, 0, 8),
    v4(169, 254, 0, 0, 16),
    v4(172, 16, 0, 0, 12),
    v4(192, 0, 0, 0, 24),
    v4(192, 0, 2, 0, 24),
    v4(192, 88, 99, 0, 24),
    v4(192, 168, 0, 0, 16),
    v4(198, 18, 0, 0, 15),
    v4(198, 51, 100, 0, 24),
    v4(203, 0, 113, 0, 24),
    v4(224, 0, 0, 0, 4),
    v4(240, 0, 0, 0, 4),
];
/// Link-local, and the metadata services of Alibaba, Oracle and Azure.
const NEVER_V4: [Ipv4Net; 4] =
    [v4(169, 254, 0, 0, 16), v4(100, 100, 100, 200, 32), v4(192, 0, 0, 192, 32), v4(168, 63, 129, 16, 32)];

/// The only global unicast addresses that are handed out (RFC 4291 section 2.4, IANA).
const UNICAST_V6: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
/// What of it is not globally reachable: protocol assignments and two ranges for documentation.
const PRIVATE_V6: [Ipv6Net; 3] = [
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
];
/// Link-local, and the metadata services of AWS and Google.
const NEVER_V6: [Ipv6Net; 3] = [
    v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128),
    v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128),
];
/// The well-known prefix of NAT64 (RFC 6052 section 2.1).
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
/// 6to4 (RFC 3056 section 2): the IPv4 address stands behind the first 16 bits.
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);
/// IPv4-compatible addresses (RFC 4291 section 2.5.5.1): nobody routes them any more, so they are never public.
const COMPATIBLE: Ipv6Net = v6([0; 8], 96);

/// Who could reach `address`.
pub fn reach(address: IpAddr) -> Reach {
    match address {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => match inner(address) {
            Some(inner) => reach_v4(inner),
            None => reach_v6(address),
        },
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    if NEVER_V4.iter().any(|net| net.contains(&address)) {
        Reach::Never
    } else if PRIVATE_V4.iter().any(|net| net.contains(&address)) {
        Reach::Private
    } else {
        Reach::Public
    }
}

fn reach_v6(address: Ipv6Addr) -> Reach {
    let compatible = COMPATIBLE.contains(&address).then(|| last_four(address));
    if NEVER_V6.iter().any(|net| net.contains(&address))
        || compatible.is_some_and(|inner| reach_v4(inner) == Reach::Never)
    {
        Reach::Never
    } else if UNICAST_V6.contains(&address) && !PRIVATE_V6.iter().any(|net| net.contains(&address)) {
        Reach::Public
    } else {
        Reach::Private
    }
}

/// The IPv4 address that packets to `address` end up at.
fn inner(address: Ipv6Addr) -> Option<Ipv4Addr> {
    if SIX_TO_FOUR.contains(&address) {
        let [_, _, a, b, c, d, ..] = address.octets();
        return Some(Ipv4Addr::new(a, b, c, d));
    }
    address.to_ipv4_mapped().or_else(|| NAT64.contains(&address).then(|| last_four(address)))
}

fn last_four(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

/// An entry is not of a form that [`AllowedHost`] takes. The text says what is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an allowed host is a name, an address or a CIDR, perhaps with a port, such as files.internal, 10.0.0.0/8 or [::1]:8080"
)]
pub struct InvalidAllowedHost;

/// What an operator allows although it is private: a name, an address or a CIDR, at one port or at every.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    place: Place,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// Lower case.
    Name(String),
    Net(IpNet),
}

impl AllowedHost {
    fn covers(&self, host: &str, address: IpAddr, port: u16) -> bool {
        let inner = match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => inner(address).map(IpAddr::V4),
        };
        let place = match &self.place {
            Place::Name(name) => name.eq_ignore_ascii_case(host),
            Place::Net(net) => net.contains(&address) || inner.is_some_and(|inner| net.contains(&inner)),
        };
        place && self.port.is_none_or(|only| only == port)
    }
}

impl FromStr for AllowedHost {
    type Err = InvalidAllowedHost;

    fn from_str(text: &str) -> Result<Self, InvalidAllowedHost> {
        if let Some(net) = net(text) {
            return Ok(Self { place: Place::Net(net), port: None });
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (address, port) = rest.split_once("]:").ok_or(InvalidAllowedHost)?;
            let net = net(address).filter(|net| net.addr().is_ipv6()).ok_or(InvalidAllowedHost)?;
            return Ok(Self { place: Place::Net(net), port: Some(parse_port(port)?) });
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(parse_port(port)?)),
            None => (text, None),
        };
        let place = net(host).map(Place::Net).or_else(|| name(host).map(Place::Name));
        Ok(Self { place: place.ok_or(InvalidAllowedHost)?, port })
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.place {
            Place::Name(name) => name.clone(),
            Place::Net(net) if net.prefix_len() == net.max_prefix_len() => net.addr().to_string(),
            Place::Net(net) => net.to_string(),
        };
        match self.port {
            Some(port) if place.contains("::") || place.matches(':').count() > 1 => write!(f, "[{place}]:{port}"),
            Some(port) => write!(f, "{place}:{port}"),
            None => f.write_str(&place),
        }
    }
}

impl<'de> Deserialize<'de> for AllowedHost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// An address, or a network whose bits behind the prefix are zero: anything else is a slip that would allow more than
/// was meant.
fn net(text: &str) -> Option<IpNet> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(IpNet::from(address));
    }
    text.parse::<IpNet>().ok().filter(|net| net.trunc() == *net)
}

/// A host name (RFC 1123 section 2.1, and underscores). One whose last label is a number would be an address.
fn name(text: &str) -> Option<String> {
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    let last = text.rsplit('.').next()?;
    let is_name = text.len() <= 253 && text.split('.').all(label) && !last.starts_with(|c: char| c.is_ascii_digit());
    is_name.then(|| text.to_ascii_lowercase())
}

fn parse_port(text: &str) -> Result<u16, InvalidAllowedHost> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0).ok_or(InvalidAllowedHost)
}

/// What may be reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowed(Vec<AllowedHost>);

impl Allowed {
    /// Public addresses, and these.
    pub fn new(hosts: Vec<AllowedHost>) -> Self {
        Self(hosts)
    }

    /// Whether nothing but public addresses may be reached, and over TLS only.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a fetch from `host` may connect to `address`, which the name resolved to, at `port`. Without TLS only what
    /// the operator named may be reached.
    pub fn permits(&self, host: &str, address: IpAddr, port: u16, tls: bool) -> bool {
        let named = || self.0.iter().any(|allowed| allowed.covers(host, address, port));
        match reach(address) {
            Reach::Never => false,
            Reach::Public => tls || named(),
            Reach::Private => named(),
        }
    }
}

#[cfg(test)]
mod tests;
