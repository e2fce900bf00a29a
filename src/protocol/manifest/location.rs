//! Locations: hints where bytes can be fetched (specification section 1, "Locations").
//!
//! A location never has to be trusted, but it is fetched: what is not one of the forms below is refused here.

use std::net::IpAddr;

use serde::de::{Error, MapAccess, SeqAccess};

use super::error::ManifestCode;
use super::walk::{At, Level, Spot, Text};
use super::{Location, LocationKind};
use crate::protocol::AgentName;
use crate::protocol::limits::LOCATIONS;

/// Longest `url` or `ref`, in bytes.
const TARGET_BYTES: usize = 2048;
/// Longest name of a kind that this gateway does not know, in bytes.
const KIND_BYTES: usize = 32;

impl LocationKind {
    /// The kind on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Https => "https",
            Self::Oci => "oci",
            Self::S3 => "s3",
            Self::Robutler => "robutler",
            Self::Relay => "relay",
            Self::Other(name) => name,
        }
    }

    /// A kind that the specification does not name is a location like any other, to be passed over by whoever does
    /// not implement it: a lower-case word of at most 32 characters.
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "https" => Self::Https,
            "oci" => Self::Oci,
            "s3" => Self::S3,
            "robutler" => Self::Robutler,
            "relay" => Self::Relay,
            _ => {
                let in_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-._".contains(&byte);
                let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
                if !starts || name.len() > KIND_BYTES || !name.bytes().all(in_word) {
                    return None;
                }
                Self::Other(name.to_owned())
            }
        })
    }

    /// The one member that says where; of an unknown kind a `url`.
    pub(super) fn member(&self) -> &'static str {
        match self {
            Self::Https | Self::S3 | Self::Robutler | Self::Other(_) => "url",
            Self::Oci => "ref",
            Self::Relay => "agent",
        }
    }

    /// Whether a location of this kind may name this target.
    ///
    /// # Errors
    /// What it must be like.
    pub fn check(&self, target: &str) -> Result<(), &'static str> {
        let (valid, rule) = match self {
            Self::Https | Self::S3 | Self::Robutler => (
                is_fetchable(target),
                "must be an https URL (http only to loopback) without a user, at most 2048 bytes",
            ),
            Self::Oci | Self::Other(_) => (is_visible(target), "must be 1 to 2048 visible ASCII characters"),
            Self::Relay => (target.parse::<AgentName>().is_ok(), "must be an agent's name"),
        };
        if valid { Ok(()) } else { Err(rule) }
    }
}

fn is_visible(target: &str) -> bool {
    (1..=TARGET_BYTES).contains(&target.len()) && target.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_fetchable(url: &str) -> bool {
    if !is_visible(url) {
        return false;
    }
    let Ok(url) = url.parse::<http::Uri>() else {
        return false;
    };
    let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return false;
    };
    let host = authority.host();
    if host.is_empty() || authority.as_str().contains('@') {
        return false;
    }
    match scheme {
        "https" => true,
        "http" => is_loopback(host),
        _ => false,
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A list of at most 16 locations.
pub(super) struct LocationList<'s>(pub(super) Spot<'s>);

impl<'de> Level<'de> for LocationList<'_> {
    type Out = Vec<Location>;

    fn misshapen<E: Error>(self) -> E {
        self.0.refuse(ManifestCode::LocationsInvalid, "must be a list")
    }

    fn array<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Out, A::Error> {
        let mut locations = Vec::new();
        while let Some(location) = array.next_element_seed(At(OneLocation {
            spot: self.0.index(locations.len()),
            full: locations.len() == LOCATIONS,
        }))? {
            locations.push(location);
        }
        Ok(locations)
    }
}

struct OneLocation<'s> {
    spot: Spot<'s>,
    /// The list holds as many as it may.
    full: bool,
}

impl<'de> Level<'de> for OneLocation<'_> {
    type Out = Location;

    fn misshapen<E: Error>(self) -> E {
        if self.full {
            return self.spot.refuse(ManifestCode::TooManyLocations, "more than 16 locations");
        }
        self.spot.refuse(ManifestCode::LocationsInvalid, "must be an object")
    }

    fn object<A: MapAccess<'de>>(self, mut object: A) -> Result<Location, A::Error> {
        if self.full {
            return Err(self.misshapen());
        }
        let spot = &self.spot;
        let (mut kind, mut url, mut reference, mut agent) = (None, None, None, None);
        while let Some(name) = spot.next_name(&mut object)? {
            match name.as_str() {
                "kind" => spot.fill(&mut object, &mut kind, kind_level(spot), "kind")?,
                "url" => spot.fill(&mut object, &mut url, target_level(spot, "url"), "url")?,
                "ref" => spot.fill(&mut object, &mut reference, target_level(spot, "ref"), "ref")?,
                "agent" => spot.fill(&mut object, &mut agent, target_level(spot, "agent"), "agent")?,
                _ => return Err(spot.unknown(&name)),
            }
        }
        let kind: LocationKind = spot.require(kind, ManifestCode::LocationKindInvalid, "kind")?;
        let member = kind.member();
        let mut found = None;
        for (name, value) in [("url", url), ("ref", reference), ("agent", agent)] {
            match value {
                Some(_) if name != member => return Err(spot.unknown(name)),
                Some(value) => found = Some(value),
                None => {}
            }
        }
        let target: String = spot.require(found, ManifestCode::LocationUrlInvalid, member)?;
        kind.check(&target).map_err(|rule| spot.member(member).refuse(ManifestCode::LocationUrlInvalid, rule))?;
        Ok(Location { kind, target })
    }
}

fn kind_level<'de>(spot: &Spot<'_>) -> impl Level<'de, Out = LocationKind> {
    Text {
        spot: spot.member("kind"),
        code: ManifestCode::LocationKindInvalid,
        rule: "must be a kind of location",
        parse: LocationKind::parse,
    }
}

/// Any text that is short enough to be kept until the kind is known.
fn target_level<'de>(spot: &Spot<'_>, name: &'static str) -> impl Level<'de, Out = String> {
    Text {
        spot: spot.member(name),
        code: ManifestCode::LocationUrlInvalid,
        rule: "must be a text of at most 2048 bytes",
        parse: |text: &str| (text.len() <= TARGET_BYTES).then(|| text.to_owned()),
    }
}
