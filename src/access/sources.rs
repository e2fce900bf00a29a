use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::{Announced, Readable, Remote, Source, Way};
use crate::protocol::plain_url;
use crate::protocol::{AgentName, Location, LocationKind, PlainUrl, Principal};
use crate::store::{Offer, Store, StoreError};

/// Most agents whose announcements are sources of one answer.
const AGENTS: usize = 8;
/// Most sources of one announcement.
const SOURCES: usize = 8;

/// The ways that the offers name, in the offers' order and in each one's own: one offer for each agent.
pub(super) async fn of(store: &Store, offers: Vec<Offer>) -> Result<Vec<Source>, StoreError> {
    let ways = ways_of(store, &offers).await?;
    Ok(pick(offers.iter().map(|offer| &offer.agent).zip(ways)))
}

/// The ways that each of the offers names.
pub(super) async fn ways_of(store: &Store, offers: &[Offer]) -> Result<Vec<Vec<Way>>, StoreError> {
    let named = offers.iter().flat_map(|offer| offer.locations.iter().map(|location| (&offer.agent, location)));
    let people = People::named(store, named.collect()).await?;
    let ways = |offer: &Offer| ways(&offer.agent, offer.producer_task.as_ref(), &offer.locations, &people);
    Ok(offers.iter().map(ways).collect())
}

/// One offer for each agent, of some agents.
pub(super) fn pick<'a>(offers: impl Iterator<Item = (&'a Principal, Vec<Way>)>) -> Vec<Source> {
    let mut found: Vec<Source> = Vec::new();
    let mut seen: HashSet<&Principal> = HashSet::new();
    for (agent, ways) in offers {
        if seen.len() == AGENTS {
            break;
        }
        if ways.is_empty() || !seen.insert(agent) {
            continue;
        }
        found.extend(ways.into_iter().map(|way| Source { agent: agent.clone(), way }));
    }
    found
}

/// Whom locations name.
struct People {
    /// Who holds the names of `relay` locations.
    holders: HashMap<AgentName, Principal>,
    /// The agents, known by their URLs, that places below another agent's URL belong to.
    owners: HashSet<Principal>,
    /// Who is the only one known at a host and port.
    sole: HashMap<String, Principal>,
}

impl People {
    async fn named(store: &Store, locations: Vec<(&Principal, &Location)>) -> Result<Self, StoreError> {
        let mut names: Vec<AgentName> = Vec::new();
        let mut possible: HashSet<Principal> = HashSet::new();
        let mut authorities: HashSet<String> = HashSet::new();
        for (agent, location) in locations {
            match location.kind {
                LocationKind::Relay => names.extend(location.target.parse::<AgentName>()),
                LocationKind::Https | LocationKind::Robutler => {
                    let Some(place) = PlainUrl::parse(&location.target) else { continue };
                    match agent.agent_url() {
                        Some(url) => possible.extend(own(url, &place).iter().flat_map(|own| place.owners_below(own))),
                        None => drop(authorities.insert(place.authority().to_owned())),
                    }
                }
                LocationKind::S3 | LocationKind::Oci | LocationKind::Other(_) => {}
            }
        }
        names.sort();
        names.dedup();
        Ok(Self {
            holders: if names.is_empty() { HashMap::new() } else { store.holders(&names).await? },
            owners: if possible.is_empty() { possible } else { store.agents_among(&possible).await? },
            sole: if authorities.is_empty() { HashMap::new() } else { store.sole_at(&authorities).await? },
        })
    }

    /// Whether the gateway may sign what it asks at `target` for an agent. One that is known by its URL may name what lies
    /// below that URL and below no other agent's; one that is known by its token only what is at a host and port where
    /// nobody else is known.
    fn let_sign(&self, agent: &Principal, kind: &LocationKind, target: &str) -> bool {
        match kind {
            LocationKind::Https | LocationKind::Robutler => {
                let Some(place) = PlainUrl::parse(target) else { return false };
                match agent.agent_url() {
                    Some(url) => own(url, &place)
                        .is_some_and(|own| place.owners_below(&own).all(|owner| !self.owners.contains(&owner))),
                    None => self.sole.get(place.authority()) == Some(agent),
                }
            }
            LocationKind::S3 | LocationKind::Oci | LocationKind::Relay | LocationKind::Other(_) => false,
        }
    }
}

/// An agent's own URL, where the place lies below it.
fn own(agent: &str, place: &PlainUrl) -> Option<PlainUrl> {
    PlainUrl::parse(agent.trim_end_matches('/')).filter(|own| place.is_below(own))
}

/// The ways to some bytes that an agent's announcement names. Where it names no location at all, the agent's own
/// connection is one. A `relay` location gives nothing unless the announcing agent holds its name.
fn ways(agent: &Principal, task: Option<&String>, locations: &[Location], people: &People) -> Vec<Way> {
    if locations.is_empty() {
        return vec![Way::Relay];
    }
    let mut ways: Vec<Way> = Vec::new();
    for location in locations {
        let way = match location.kind {
            LocationKind::Relay => {
                let holder = location.target.parse().ok().and_then(|name: AgentName| people.holders.get(&name));
                if holder != Some(agent) {
                    continue;
                }
                Way::Relay
            }
            _ => Way::Location(Arc::new(Remote {
                agent: agent.clone(),
                location: location.clone(),
                task: task.cloned(),
                signed: people.let_sign(agent, &location.kind, &location.target),
            })),
        };
        if !ways.contains(&way) && ways.len() < SOURCES {
            ways.push(way);
        }
    }
    ways
}

/// The hosts and ports at which places of these locations are asked.
pub(super) fn endpoints<'a>(locations: impl IntoIterator<Item = &'a Location>) -> BTreeSet<String> {
    let asked = |location: &&Location| matches!(location.kind, LocationKind::Https | LocationKind::Robutler);
    plain_url::authorities(locations.into_iter().filter(asked).map(|location| location.target.as_str()))
}

/// Where the bytes of an announcement that is not kept yet can be read: the same rules as for offers.
pub(super) async fn announced(
    store: &Store,
    agent: &Principal,
    wanted: Announced,
) -> Result<Option<Readable>, StoreError> {
    let Announced { sha256, size, task, locations } = wanted;
    store.claim_endpoints(agent, endpoints(&locations)).await?;
    let people = People::named(store, locations.iter().map(|location| (agent, location)).collect()).await?;
    let ways = ways(agent, task.as_ref(), &locations, &people);
    let sources: Vec<_> = ways.into_iter().map(|way| Source { agent: agent.clone(), way }).collect();
    // Read whole, so that its own hash vouches for every byte.
    let (chunks, places, as_of, expires_at) = (None, Arc::from([]), store.generation(), None);
    Ok((!sources.is_empty()).then_some(Readable { sha256, size, chunks, sources, places, as_of, expires_at }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(id: &str) -> Principal {
        Principal::agent(id).unwrap()
    }

    #[test]
    fn a_place_is_asked_in_the_gateways_name_only_for_whom_it_belongs_to() {
        let url = "https://a.example/agents/flow/artifacts/blobs/sha256:00";
        let people = People {
            holders: HashMap::new(),
            owners: [agent("https://a.example/agents/other")].into(),
            sole: [("a1.example:443".to_owned(), agent("a1")), ("a2.example:443".to_owned(), agent("a2"))].into(),
        };
        let signed = |who: &str, target: &str| people.let_sign(&agent(who), &LocationKind::Https, target);
        assert!(signed("https://a.example/agents/flow", url));
        assert!(signed("https://a.example", url));
        for other in [
            "https://a.example/agents/flo",
            "https://a.example/agents/flow/more",
            "https://b.example",
            "https://a.example/agents/%66low",
        ] {
            assert!(!signed(other, url), "{other}");
        }
        // Not even below its own URL where that is another agent's.
        assert!(!signed("https://a.example", "https://a.example/agents/other/artifacts/blobs/sha256:00"));
        // By its token, an agent may stand behind a host and port where it is the only one.
        assert!(signed("a1", "https://a1.example/artifacts/blobs/sha256:00"));
        assert!(signed("a1", "https://A1.example:443/any/where"));
        for target in
            [url, "https://a2.example/x", "https://a1.example:8443/x", "https://a1.example/%78", "https://b.example/x"]
        {
            assert!(!signed("a1", target), "{target}");
        }
        assert!(!people.let_sign(&agent("a1"), &LocationKind::S3, "https://a1.example/x"));
    }
}
