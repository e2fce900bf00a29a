use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn allowed(entries: &[&str]) -> Allowed {
    Allowed::new(entries.iter().map(|entry| entry.parse().unwrap()).collect())
}

#[test]
fn public_is_what_everybody_could_reach() {
    for address in [
        "93.184.216.34",
        "8.8.8.8",
        "1.1.1.1",
        "172.32.0.1",
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ] {
        assert_eq!(reach(ip(address)), Reach::Public, "{address}");
    }
}

#[test]
fn special_ranges_are_private() {
    for address in [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.255.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b:1::808:808",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:a00:1::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fec0::1",
        "ff02::1",
    ] {
        assert_eq!(reach(ip(address)), Reach::Private, "{address}");
    }
}

#[test]
fn metadata_and_link_local_are_never_reached() {
    let everything = allowed(&["0.0.0.0/0", "::/0", "metadata.internal"]);
    for address in [
        "100.100.100.200",
        "168.63.129.16",
        "169.254.169.254",
        "169.254.0.1",
        "192.0.0.192",
        "::169.254.169.254",
        "::ffff:169.254.169.254",
        "64:ff9b::169.254.169.254",
        "2002:a9fe:a9fe::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fe80::1",
    ] {
        assert_eq!(reach(ip(address)), Reach::Never, "{address}");
        assert!(!everything.permits("metadata.internal", ip(address), 80, false), "{address}");
    }
}

#[test]
fn the_operator_names_exceptions() {
    let cases: [(&[&str], &str, u16, bool); 13] = [
        (&["127.0.0.1"], "127.0.0.1", 8080, true),
        (&["127.0.0.1:8080"], "127.0.0.1", 8080, true),
        (&["127.0.0.1:8080"], "127.0.0.1", 9090, false),
        (&["10.0.0.0/8"], "10.20.30.40", 443, true),
        (&["10.0.0.0/8"], "192.168.1.1", 443, false),
        (&["10.0.0.0/8:443"], "10.1.1.1", 80, false),
        (&["10.0.0.0/8"], "::ffff:10.1.1.1", 80, true),
        (&["[::1]:8080"], "::1", 8080, true),
        (&["[fd00::/8]:8080"], "fd01::1", 8080, true),
        (&["::1"], "::1", 1, true),
        (&["169.254.0.0/16"], "169.254.169.254", 80, false),
        (&["0.0.0.0/0"], "10.1.1.1", 80, true),
        (&[], "8.8.8.8", 443, true),
    ];
    for (entries, address, port, permitted) in cases {
        let list = allowed(entries);
        assert_eq!(list.permits("files.example", ip(address), port, true), permitted, "{entries:?} {address}");
    }
}

#[test]
fn a_name_opens_what_it_resolves_to_and_no_other_name() {
    let list = allowed(&["Files.Internal:8080"]);
    assert!(list.permits("files.internal", ip("10.0.0.1"), 8080, true));
    assert!(!list.permits("files.internal", ip("10.0.0.1"), 443, true));
    assert!(!list.permits("files.internal.example", ip("10.0.0.1"), 8080, true));
}

#[test]
fn without_tls_only_what_is_named_is_reached() {
    assert!(!allowed(&[]).permits("files.example", ip("8.8.8.8"), 80, false));
    assert!(allowed(&["8.8.8.8"]).permits("files.example", ip("8.8.8.8"), 80, false));
    assert!(allowed(&["files.example"]).permits("files.example", ip("8.8.8.8"), 80, false));
}

#[test]
fn a_slip_in_an_entry_is_refused() {
    for entry in [
        "",
        "10.0.0.0/33",
        "10.0.0.1/8",
        "10.0.0",
        "1.2.3.4.5",
        "127.0.0.1:0",
        "127.0.0.1:70000",
        "127.0.0.1:+80",
        "[::1]",
        "[::1]:",
        "[127.0.0.1]:80",
        "::1:8080x",
        "http://files.internal",
        "files.internal/path",
        "files..internal",
        "*.internal",
    ] {
        assert_eq!(entry.parse::<AllowedHost>(), Err(InvalidAllowedHost), "{entry}");
    }
}

proptest! {
    #[test]
    fn an_address_inside_another_is_judged_alike(bits: u32) {
        let v4 = Ipv4Addr::from(bits);
        let [a, b, c, d] = v4.octets();
        let wrapped = [
            IpAddr::V6(v4.to_ipv6_mapped()),
            ip(&format!("64:ff9b::{:x}:{:x}", u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))),
            ip(&format!("2002:{:x}:{:x}::1", u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))),
        ];
        for address in wrapped {
            prop_assert_eq!(reach(address), reach(IpAddr::V4(v4)), "{}", address);
        }
    }

    #[test]
    fn public_ipv4_is_what_the_standard_library_knows_no_other_name_for(bits: u32) {
        let address = Ipv4Addr::from(bits);
        if reach(IpAddr::V4(address)) == Reach::Public {
            prop_assert!(!address.is_private() && !address.is_loopback() && !address.is_link_local());
            prop_assert!(!address.is_multicast() && !address.is_broadcast() && !address.is_documentation());
            prop_assert!(!address.is_unspecified());
        }
    }

    #[test]
    fn public_ipv6_is_global_unicast(bits: u128) {
        let address = Ipv6Addr::from(bits);
        if reach(IpAddr::V6(address)) == Reach::Public && inner(address).is_none() {
            prop_assert!(!address.is_unique_local() && !address.is_unicast_link_local() && !address.is_multicast());
        }
    }

    #[test]
    fn any_text_is_an_entry_or_refused(text in "\\PC{0,40}|[a-z0-9.:/\\[\\]]{0,24}") {
        if let Ok(entry) = text.parse::<AllowedHost>() {
            prop_assert_eq!(entry.to_string().parse::<AllowedHost>(), Ok(entry));
        }
    }
}
