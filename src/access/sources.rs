use std::collections::HashMap;
use std::sync::Arc;

use super::Source;
use crate::protocol::{AgentName, Chunks, LocationKind, Principal, Sha256};
use crate::store::{Offer, Store, StoreError};

/// Most sources of one answer: a chunk list of up to 8 MiB is looked at for each.
const SOURCES: usize = 8;

/// A source, and the chunk list of its own entry: never that of another entry of the same blob.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) source: Source,
    pub(super) chunks: Option<Arc<Chunks>>,
}

/// The offers that the relay can serve, as sources, in the same order: one for each agent.
pub(super) async fn of(store: &Store, offers: Vec<Offer>) -> Result<Vec<Listed>, StoreError> {
    let mut named: Vec<AgentName> = offers.iter().flat_map(relay_names).collect();
    named.sort();
    named.dedup();
    let holders = if named.is_empty() { HashMap::new() } else { store.holders(&named).await? };

    let mut found: Vec<Listed> = Vec::new();
    let mut lists: HashMap<(Sha256, i64), Option<Arc<Chunks>>> = HashMap::new();
    for offer in offers {
        if found.len() == SOURCES {
            break;
        }
        if !relays(&offer, &holders) || found.iter().any(|listed| listed.source.agent == offer.agent) {
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
        found.push(Listed { source: Source { agent: offer.agent }, chunks });
    }
    Ok(found)
}

/// The chunk list for a blob that is asked for by its hash alone. Where the lists contradict each other one of them lies,
/// and only the whole file's hash can tell: none of them is used.
pub(super) fn settled(found: &[Listed]) -> Option<Arc<Chunks>> {
    let contested = found.windows(2).any(|pair| pair[0].chunks != pair[1].chunks);
    if contested { None } else { found.first()?.chunks.clone() }
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
