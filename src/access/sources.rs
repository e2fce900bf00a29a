use std::collections::HashMap;
use std::sync::Arc;

use super::Source;
use crate::protocol::{AgentName, Chunks, LocationKind, Principal, Sha256};
use crate::store::{Offer, Store, StoreError};

/// Most sources of one answer: each brings a chunk list of up to 8 MiB.
const SOURCES: usize = 8;

/// The offers that the relay can serve, as sources, in the same order: one for each agent.
pub(super) async fn of(store: &Store, offers: Vec<Offer>) -> Result<Vec<Source>, StoreError> {
    let mut named: Vec<AgentName> = offers.iter().flat_map(relay_names).collect();
    named.sort();
    named.dedup();
    let holders = if named.is_empty() { HashMap::new() } else { store.holders(&named).await? };

    let mut sources: Vec<Source> = Vec::new();
    let mut lists: HashMap<(Sha256, i64), Option<Arc<Chunks>>> = HashMap::new();
    for offer in offers {
        if sources.len() == SOURCES {
            break;
        }
        if !relays(&offer, &holders) || sources.iter().any(|source| source.agent == offer.agent) {
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

/// Whether the announcing agent's own connection is a way to the bytes: no location is named at all, or a `relay` one
/// whose name the announcing agent holds. One that names another agent gives nothing.
fn relays(offer: &Offer, holders: &HashMap<AgentName, Principal>) -> bool {
    offer.locations.is_empty() || relay_names(offer).any(|name| holders.get(&name) == Some(&offer.agent))
}

fn relay_names(offer: &Offer) -> impl Iterator<Item = AgentName> {
    let relays = offer.locations.iter().filter(|location| location.kind == LocationKind::Relay);
    relays.filter_map(|location| location.target.parse().ok())
}
