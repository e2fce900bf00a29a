use std::collections::HashMap;
use std::sync::Arc;

use super::{Announced, Readable, Source};
use crate::protocol::{AgentName, Chunks, Location, LocationKind, Principal, Sha256};
use crate::store::{Offer, Store, StoreError};

/// Most sources of one answer: each brings a chunk list of up to 8 MiB.
const SOURCES: usize = 8;

/// The offers that the relay can serve, as sources, in the same order: one for each agent.
pub(super) async fn of(store: &Store, offers: Vec<Offer>) -> Result<Vec<Source>, StoreError> {
    let mut named: Vec<AgentName> = offers.iter().flat_map(|offer| relay_names(&offer.locations)).collect();
    named.sort();
    named.dedup();
    let holders = if named.is_empty() { HashMap::new() } else { store.holders(&named).await? };

    let mut sources: Vec<Source> = Vec::new();
    let mut lists: HashMap<(Sha256, i64), Option<Arc<Chunks>>> = HashMap::new();
    for offer in offers {
        if sources.len() == SOURCES {
            break;
        }
        if !relays(&offer.agent, &offer.locations, &holders) || sources.iter().any(|source| source.agent == offer.agent)
        {
            continue;
        }
        let entry = (offer.manifest, offer.position);
        let chunks = match lists.get(&entry) {
            Some(chunks) => chunks.clone(),
            None => {
                let chunks = store.chunks(&offer.manifest, offer.position).await?.map(Arc::new);
                lists.insert(entry, chunks.clone());
                chunks
            }
        };
        sources.push(Source { agent: offer.agent, chunks });
    }
    Ok(sources)
}

/// Sources of a blob that is asked for by its hash alone. Where their chunk lists contradict each other one of them lies,
/// and only the whole file's hash can tell: none of the lists is used.
pub(super) fn settle(sources: &mut [Source]) {
    let contested = sources.windows(2).any(|pair| pair[0].chunks != pair[1].chunks);
    if contested {
        sources.iter_mut().for_each(|source| source.chunks = None);
    }
}

/// Where the bytes of an announcement that is not kept yet can be read: the same rule as for offers.
pub(super) async fn announced(
    store: &Store,
    agent: &Principal,
    wanted: Announced,
) -> Result<Option<Readable>, StoreError> {
    let Announced { sha256, size, chunks, locations } = wanted;
    let named: Vec<AgentName> = relay_names(&locations).collect();
    let holders = if named.is_empty() { HashMap::new() } else { store.holders(&named).await? };
    let source = Source { agent: agent.clone(), chunks };
    Ok(relays(agent, &locations, &holders).then(|| Readable { sha256, size, sources: vec![source] }))
}

/// Whether the announcing agent's own connection is a way to the bytes: no location is named at all, or a `relay` one
/// whose name the announcing agent holds. One that names another agent gives nothing.
fn relays(agent: &Principal, locations: &[Location], holders: &HashMap<AgentName, Principal>) -> bool {
    locations.is_empty() || relay_names(locations).any(|name| holders.get(&name) == Some(agent))
}

fn relay_names(locations: &[Location]) -> impl Iterator<Item = AgentName> {
    let relays = locations.iter().filter(|location| location.kind == LocationKind::Relay);
    relays.filter_map(|location| location.target.parse().ok())
}
