//! URLs and hosts among the settings: the gateway's own, those that it fetches from, and the database's.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use serde::{Deserialize, Deserializer, de};
use url::Url;

use super::InvalidValue;

/// What a path in a URL holds as it is (RFC 3986 section 2.3), and what separates its segments.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The base of every URL handed out: an origin (RFC 6454) over http or https, in canonical spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl {
    https: bool,
    authority: String,
}

impl PublicUrl {
    /// The URL of a listener that nobody named: `http://` and its address, with loopback in place of "every address".
    pub fn of_listener(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let authority = match address.port() {
            80 => SocketAddr::new(ip, 80).to_string().trim_end_matches(":80").to_owned(),
            port => SocketAddr::new(ip, port).to_string(),
        };
        Self { https: false, authority }
    }

    /// Host and port, lower case, without the scheme's default port.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }

    /// Whether readers come over TLS, so that a cookie may be marked `Secure`.
    pub fn is_https(&self) -> bool {
        self.https
    }
}

impl FromStr for PublicUrl {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = InvalidValue("a public URL is http:// or https://, a host and perhaps a port, without a path");
        let uri: Uri = text.parse().map_err(|_| invalid)?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid),
        };
        let authority = uri.authority().ok_or(invalid)?;
        // `Uri` drops a fragment without a word, so it is looked for in the text itself.
        let bare = uri.path() == "/" && uri.query().is_none() && !text.contains(['#', '?', '@']);
        if !bare || authority.host().is_empty() {
            return Err(invalid);
        }
        let host = authority.host().to_ascii_lowercase();
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => None,
            Some(port) => Some(port.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()).ok_or(invalid)?),
            None => return Err(invalid),
        };
        let default_port = if https { 443 } else { 80 };
        let authority = match port {
            Some(0) => return Err(invalid),
            Some(port) if port != default_port => format!("{host}:{port}"),
            _ => host,
        };
        Ok(Self { https, authority })
    }
}

impl fmt::Display for PublicUrl {
    /// Without a trailing slash, so that a path is simply appended.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority)
    }
}

impl<'de> Deserialize<'de> for PublicUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// An https URL that the gateway fetches; http where `--allow-hosts` names its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchUrl(Url);

impl FetchUrl {
    /// The URL.
    pub fn get(&self) -> &Url {
        &self.0
    }
}

impl FromStr for FetchUrl {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = InvalidValue("a URL to fetch is https:// (or http://), without a user or a fragment");
        let url = Url::parse(text).map_err(|_| invalid)?;
        let plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
        let valid = matches!(url.scheme(), "https" | "http") && url.has_host() && plain;
        if valid { Ok(Self(url)) } else { Err(invalid) }
    }
}

impl<'de> Deserialize<'de> for FetchUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A host, perhaps with a port, as the `Host` header names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority(String);

impl Authority {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Authority {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = InvalidValue("an authority is a host, perhaps with a port, such as files.example:8443");
        let authority: http::uri::Authority = text.parse().map_err(|_| invalid)?;
        let bare = !authority.host().is_empty() && !text.contains('@');
        if bare { Ok(Self(text.to_owned())) } else { Err(invalid) }
    }
}

impl<'de> Deserialize<'de> for Authority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A `postgres://` or `sqlite://` URL. It may hold a password, so only [`expose`](Self::expose) shows it whole.
///
/// Taking the text in never fails: a parser's error would repeat it. [`check`](Self::check) judges it later.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The whole text, password included: for the database driver and nobody else.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The URL of a SQLite file, whatever characters its path holds.
    pub fn of_sqlite_file(file: &Path) -> Self {
        Self(format!("sqlite://{}", percent_encode(file.as_os_str().as_bytes(), PATH)))
    }

    /// The file of a SQLite database.
    pub fn sqlite_file(&self) -> Option<PathBuf> {
        let file = self.0.strip_prefix("sqlite://").or_else(|| self.0.strip_prefix("sqlite:"))?;
        let file = file.split('?').next().unwrap_or_default();
        Some(OsString::from_vec(percent_decode_str(file).collect()).into())
    }

    /// Whether the text names a kind of database that there is.
    pub fn check(&self) -> Result<(), InvalidValue> {
        let known = ["postgres://", "postgresql://", "sqlite:"];
        if self.0.starts_with("sqlite:") && self.0.contains(":memory:") {
            Err(InvalidValue("a SQLite database must be a file: sqlite:///path/to/sluice.db"))
        } else if known.iter().any(|scheme| self.0.len() > scheme.len() && self.0.starts_with(scheme)) {
            Ok(())
        } else {
            Err(InvalidValue("a database URL starts with postgres:// or sqlite://"))
        }
    }
}

impl From<String> for DatabaseUrl {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for DatabaseUrl {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for DatabaseUrl {
    /// Without the password and without the query, where drivers accept one too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return match self.sqlite_file() {
                Some(file) => write!(f, "sqlite://{}", file.display()),
                None => f.write_str("(not a URL)"),
            };
        };
        // The last `@` of all, because a password that should have been escaped may hold `/`, `?` and `@`.
        let (user, rest) = match rest.rsplit_once('@') {
            Some((userinfo, rest)) => (userinfo.split(':').next(), rest),
            None => (None, rest),
        };
        let place = rest.split('?').next().unwrap_or_default();
        match user {
            Some(user) => write!(f, "{scheme}://{user}:***@{place}"),
            None => write!(f, "{scheme}://{place}"),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_public_url_is_an_origin_in_canonical_spelling() {
        let parse = |text: &str| text.parse::<PublicUrl>().map(|url| url.to_string());
        assert_eq!(parse("https://Files.Example:443/").as_deref(), Ok("https://files.example"));
        assert_eq!(parse("http://127.0.0.1:8080").as_deref(), Ok("http://127.0.0.1:8080"));
        assert_eq!(parse("http://[::1]:80").as_deref(), Ok("http://[::1]"));
        assert_eq!(parse("https://a.example:80").as_deref(), Ok("https://a.example:80"));
        let refused = [
            "",
            "files.example",
            "ftp://a.example",
            "https://a.example/base",
            "https://a.example/?x",
            "https://a.example?x",
            "https://a.example/#x",
            "https://a.example#x",
            "https://user:pw@a.example",
            "https://",
            "https://:443",
            "https://a.example:0",
            "https://a.example:99999",
        ];
        for text in refused {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_listener_on_every_address_is_reached_over_loopback() {
        let of = |text: &str| PublicUrl::of_listener(text.parse().unwrap()).to_string();
        assert_eq!(of("0.0.0.0:8080"), "http://127.0.0.1:8080");
        assert_eq!(of("[::]:80"), "http://[::1]");
        assert_eq!(of("192.0.2.1:1"), "http://192.0.2.1:1");
    }

    #[test]
    fn a_database_url_never_shows_its_password() {
        for text in [
            "postgres://sluice:hunter2@db.example:5432/sluice?sslmode=require",
            "postgres://sluice:hunter2/with?odd@characters@db.example/sluice",
            "postgres://db.example/sluice?password=hunter2",
            "hunter2",
        ] {
            let url = DatabaseUrl::from(text);
            assert!(!format!("{url} {url:?}").contains("hunter2"), "{url}");
        }
        let url = DatabaseUrl::from("postgres://sluice:hunter2@db.example:5432/sluice");
        assert_eq!(url.to_string(), "postgres://sluice:***@db.example:5432/sluice");
        assert_eq!(DatabaseUrl::from("sqlite:///var/lib/x.db").to_string(), "sqlite:///var/lib/x.db");
        assert_eq!(DatabaseUrl::from("sqlite:x.db?mode=rwc").to_string(), "sqlite://x.db");
    }

    #[test]
    fn only_known_databases_are_accepted() {
        for known in ["postgres://h/d", "postgresql://h/d", "sqlite://x.db", "sqlite:x.db"] {
            assert_eq!(DatabaseUrl::from(known).check(), Ok(()), "{known}");
        }
        for unknown in ["", "mysql://h/d", "x.db", "postgres://", "sqlite::memory:", "sqlite://:memory:"] {
            assert!(DatabaseUrl::from(unknown).check().is_err(), "{unknown}");
        }
    }

    #[test]
    fn a_sqlite_file_may_have_any_path() {
        for path in ["./sluice-data/sluice.db", "/srv/s/sluice.db", "a:b/c d?e#f%20/ü.db"] {
            let url = DatabaseUrl::of_sqlite_file(Path::new(path));
            assert_eq!(url.sqlite_file().as_deref(), Some(Path::new(path)), "{url}");
        }
        assert_eq!(DatabaseUrl::from("postgres://h/d").sqlite_file(), None);
    }

    proptest! {
        #[test]
        fn a_public_url_reads_back(host in "[a-z][a-z0-9.-]{0,20}[a-z]", port in 1u16.., https: bool) {
            let text = format!("{}://{host}:{port}", if https { "https" } else { "http" });
            let url: PublicUrl = text.parse().unwrap();
            prop_assert_eq!(url.to_string().parse::<PublicUrl>().unwrap(), url);
        }
    }
}
