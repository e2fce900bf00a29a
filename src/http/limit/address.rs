//! Which address a request comes from.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use ipnet::IpNet;

const X_FORWARDED_FOR: &str = "x-forwarded-for";
/// Most hops looked at. A chain of trusted proxies is a few long.
const HOPS: usize = 16;

/// The peer, or, where that is a trusted proxy, the last address in `X-Forwarded-For` that is none. What stands further
/// left was written by whoever is there, and is not believed.
pub(super) fn client(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|net| net.contains(&address));
    let mut client = peer.to_canonical();
    if !is_trusted(client) {
        return client;
    }
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let hops = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    for hop in hops.take(HOPS) {
        let Some(address) = parse(hop) else { break };
        client = address;
        if !is_trusted(client) {
            break;
        }
    }
    client
}

/// An address, as proxies write them: with a port, in brackets, or bare.
fn parse(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn from(peer: &str, lines: &[&str], trusted: &[&str]) -> String {
        let headers = lines.iter().map(|line| (X_FORWARDED_FOR.parse().unwrap(), line.parse().unwrap())).collect();
        let trusted: Vec<IpNet> = trusted.iter().map(|net| net.parse().unwrap()).collect();
        client(peer.parse().unwrap(), &headers, &trusted).to_string()
    }

    #[test]
    fn a_stranger_says_nothing_about_where_he_comes_from() {
        assert_eq!(from("192.0.2.1", &["198.51.100.7"], &[]), "192.0.2.1");
        assert_eq!(from("192.0.2.1", &["198.51.100.7"], &["10.0.0.0/8"]), "192.0.2.1");
    }

    #[test]
    fn a_trusted_proxy_says_whom_it_serves() {
        let trusted = ["10.0.0.0/8", "2001:db8::/32"];
        for (lines, client) in [
            (&["198.51.100.7"][..], "198.51.100.7"),
            (&["203.0.113.9, 198.51.100.7"], "198.51.100.7"),
            (&["203.0.113.9", "198.51.100.7, 10.0.0.2"], "198.51.100.7"),
            (&["203.0.113.9, 198.51.100.7 , 10.0.0.2,10.0.0.3"], "198.51.100.7"),
            (&["198.51.100.7:4711"], "198.51.100.7"),
            (&["[2001:db9::1]:80"], "2001:db9::1"),
            (&["[2001:db9::1]"], "2001:db9::1"),
            (&["::ffff:198.51.100.7"], "198.51.100.7"),
            (&["10.0.0.5"], "10.0.0.5"),
            (&[], "10.0.0.1"),
            (&["unknown"], "10.0.0.1"),
            (&["198.51.100.7, unknown, 10.0.0.2"], "10.0.0.2"),
        ] {
            assert_eq!(from("10.0.0.1", lines, &trusted), client, "{lines:?}");
            assert_eq!(from("::ffff:10.0.0.1", lines, &trusted), client, "{lines:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_forwarded_is_an_address(line in "[ -~]{0,60}") {
            let headers: HeaderMap =
                [(X_FORWARDED_FOR.parse().unwrap(), line.parse().unwrap())].into_iter().collect();
            let trusted = ["127.0.0.0/8".parse().unwrap()];
            client(std::net::Ipv4Addr::LOCALHOST.into(), &headers, &trusted);
        }
    }
}
