//! Settings that are more than a word: durations, sizes, addresses and URLs, as people write them.

mod urls;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

pub use urls::{Authority, DatabaseUrl, FetchUrl, PublicUrl};

/// A value breaks the rule of its kind. The text says what is accepted and never repeats the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(&'static str);

/// A duration such as `90s`, `2m` or `1h 30m`, at most ten years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

impl Span {
    /// Keeps sums with the current time far from overflowing.
    const MAX: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

    /// The duration.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl From<Duration> for Span {
    /// At most ten years of it.
    fn from(duration: Duration) -> Self {
        Self(duration.min(Self::MAX))
    }
}

impl FromStr for Span {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let span = humantime::parse_duration(text.trim())
            .map_err(|_| InvalidValue("a duration is a number with its unit, such as 90s, 2m or 1h"))?;
        if span > Self::MAX {
            return Err(InvalidValue("a duration is at most ten years"));
        }
        Ok(Self(span))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;
        impl de::Visitor<'_> for Written {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration in quotes, such as \"5m\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Written)
    }
}

/// A number of bytes such as `512MiB`, `10 GB` or `4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

impl Size {
    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let size = text.trim().parse::<bytesize::ByteSize>();
        size.map(|size| Self(size.as_u64())).map_err(|_| InvalidValue("a size is a number of bytes, such as 512MiB"))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a size is a number of bytes, such as \"512MiB\"")]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

/// Where a listener is bound: an IP address and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAddr(SocketAddr);

impl ListenAddr {
    /// The address.
    pub const fn get(self) -> SocketAddr {
        self.0
    }
}

impl From<SocketAddr> for ListenAddr {
    fn from(address: SocketAddr) -> Self {
        Self(address)
    }
}

impl FromStr for ListenAddr {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A name may have many addresses, and which of them is bound should be no surprise.
        const RULE: &str = "a listener is an IP address and a port, such as 127.0.0.1:8080 (this machine only), 0.0.0.0:8080 or [::]:8080 \
                            (every address), and not a name";
        text.trim().parse().map(Self).map_err(|_| InvalidValue(RULE))
    }
}

impl<'de> Deserialize<'de> for ListenAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// An address, or a network of addresses as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network(IpNet);

impl Network {
    /// The network.
    pub const fn get(self) -> IpNet {
        self.0
    }
}

impl FromStr for Network {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        net.map(Self).map_err(|_| InvalidValue("a network is an address or a CIDR, such as 10.0.0.0/8"))
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_written_as_people_write_them() {
        let parse = |text: &str| text.parse::<Span>().map(Span::get);
        assert_eq!(parse("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        for refused in ["", "90", "-1s", "s", "1 fortnight", "99999999999years", "11years"] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn sizes_are_written_as_people_write_them() {
        let parse = |text: &str| text.parse::<Size>().map(Size::bytes);
        assert_eq!(parse("512MiB"), Ok(512 << 20));
        assert_eq!(parse("10 GB"), Ok(10_000_000_000));
        assert_eq!(parse("4096"), Ok(4096));
        for refused in ["", "MiB", "-1", "12 parsecs"] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_listener_is_an_address_and_a_port() {
        let parse = |text: &str| text.parse::<ListenAddr>().map(|address| address.get().to_string());
        assert_eq!(parse("127.0.0.1:8080").as_deref(), Ok("127.0.0.1:8080"));
        assert_eq!(parse(" [::]:0 ").as_deref(), Ok("[::]:0"));
        for refused in ["localhost:8080", "127.0.0.1", ":8080", "8080", "", "127.0.0.1:99999"] {
            let told = parse(refused).unwrap_err().to_string();
            assert!(told.contains("127.0.0.1:8080"), "{refused}: {told}");
        }
    }

    #[test]
    fn networks_are_addresses_or_cidrs() {
        let parse = |text: &str| text.parse::<Network>().map(|network| network.get().to_string());
        assert_eq!(parse("10.0.0.0/8").as_deref(), Ok("10.0.0.0/8"));
        assert_eq!(parse(" 2001:db8::1 ").as_deref(), Ok("2001:db8::1/128"));
        for refused in ["", "proxy", "10.0.0.0/33", "10.0.0.1:80"] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_value_or_an_error(text in "\\PC{0,40}") {
            let _ = text.parse::<Span>();
            let _ = text.parse::<Size>();
            let _ = text.parse::<PublicUrl>();
            let _ = DatabaseUrl::from(text.as_str()).to_string();
        }
    }
}
