use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use url::Url;

use super::{Announced, Readable, Remote, Source, Way};
use crate::protocol::{AgentName, Location, LocationKind, Principal};
use crate::store::{Offer, Store, StoreError};

/// Most agents whose announcements are sources of one answer.
const AGENTS: usize = 8;
/// Most sources of one announcement.
const SOURCES: usize = 8;
/// How deep in a URL's path an agent's own URL may lie.
const SEGMENTS: usize = 8;

/// The ways that the offers name, in the offers' order and in each one's own: one offer for each agent.
pub(super) async fn of(store: &Store, offers: Vec<Offer>) -> Result<Vec<Source>, StoreError> {
    let people = People::named(store, offers.iter().flat_map(|offer| &offer.locations)).await?;
    let mut found: Vec<Source> = Vec::new();
    let mut seen: HashSet<Principal> = HashSet::new();
    for offer in offers {
        if seen.len() == AGENTS {
            break;
        }
        let ways = ways(&offer.agent, offer.producer_task.as_ref(), &offer.locations, &people);
        if ways.is_empty() || !seen.insert(offer.agent.clone()) {
            continue;
        }
        found.extend(ways.into_iter().map(|way| Source { agent: offer.agent.clone(), way }));
    }
    Ok(found)
}

/// Whom locations name.
struct People {
    /// Who holds the names of `relay` locations.
    holders: HashMap<AgentName, Principal>,
    /// The agents, known by their URLs, whose places are named.
    owners: HashSet<Principal>,
}

impl People {
    async fn named(store: &Store, locations: impl IntoIterator<Item = &Location>) -> Result<Self, StoreError> {
        let mut names: Vec<AgentName> = Vec::new();
        let mut possible: HashSet<Principal> = HashSet::new();
        for location in locations {
            match location.kind {
                LocationKind::Relay => names.extend(location.target.parse::<AgentName>()),
                LocationKind::Https | LocationKind::Robutler => possible.extend(owners(&location.target)),
                LocationKind::S3 | LocationKind::Oci | LocationKind::Other(_) => {}
            }
        }
        names.sort();
        names.dedup();
        Ok(Self {
            holders: if names.is_empty() { HashMap::new() } else { store.holders(&names).await? },
            owners: if possible.is_empty() { possible } else { store.agents_among(&possible).await? },
        })
    }
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
                signed: is_signed(agent, &location.kind, &location.target, &people.owners),
            })),
        };
        if !ways.contains(&way) && ways.len() < SOURCES {
            ways.push(way);
        }
    }
    ways
}

/// Whether the gateway may sign what it asks at `target`. An agent that is known by its URL may name only what lies below
/// that URL; one that is known by its token only what lies below no other agent's.
fn is_signed(agent: &Principal, kind: &LocationKind, target: &str, known: &HashSet<Principal>) -> bool {
    match kind {
        LocationKind::Https | LocationKind::Robutler => {
            let mut owners = owners(target);
            if agent.as_str().starts_with("agent:http") {
                owners.any(|owner| owner == *agent)
            } else {
                !owners.any(|owner| known.contains(&owner))
            }
        }
        LocationKind::S3 | LocationKind::Oci | LocationKind::Relay | LocationKind::Other(_) => false,
    }
}

/// The agents, known by their URLs, that a URL may belong to: its origin, and every folder that it lies in.
fn owners(target: &str) -> impl Iterator<Item = Principal> + use<> {
    let url = Url::parse(target).ok();
    let segments: Vec<String> =
        url.iter().flat_map(|url| url.path_segments()).flatten().map(str::to_owned).take(SEGMENTS).collect();
    let origin = url.map(|url| url.origin().ascii_serialization());
    let folders = (0..=segments.len()).map(move |depth| segments[..depth].join("/"));
    let bases = origin.into_iter().flat_map(move |origin| {
        folders.clone().map(move |folder| if folder.is_empty() { origin.clone() } else { format!("{origin}/{folder}") })
    });
    bases.filter_map(|base| Principal::agent(&base).ok())
}

/// Where the bytes of an announcement that is not kept yet can be read: the same rules as for offers.
pub(super) async fn announced(
    store: &Store,
    agent: &Principal,
    wanted: Announced,
) -> Result<Option<Readable>, StoreError> {
    let Announced { sha256, size, task, locations } = wanted;
    let people = People::named(store, &locations).await?;
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
        let known: HashSet<_> = [agent("https://b.example"), agent("https://c.example/agents/x")].into();
        let signed = |who: &str, target: &str| is_signed(&agent(who), &LocationKind::Https, target, &known);
        assert!(signed("https://a.example/agents/flow", url));
        assert!(signed("https://a.example", url));
        assert!(!signed("https://a.example/agents/flo", url));
        assert!(!signed("https://a.example/agents/flow/more", url));
        assert!(!signed("https://b.example", url));
        // By its token, an agent may stand behind any URL that is nobody's.
        assert!(signed("a1", url));
        assert!(!signed("a1", "https://b.example/anything"));
        assert!(!signed("a1", "https://B.example:443/anything"));
        assert!(!signed("a1", "https://c.example/agents/x/artifacts/blobs/sha256:00"));
        assert!(!signed("a1", "https://c.example/agents/y/../x/artifacts/blobs/sha256:00"));
        assert!(signed("a1", "https://c.example/agents/y/artifacts/blobs/sha256:00"));
        assert!(!is_signed(&agent("a1"), &LocationKind::S3, url, &known));
    }
}
