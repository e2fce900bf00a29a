//! What a hash is for a caller: found once, and then judged for each task that is named.

use std::collections::HashSet;
use std::sync::Arc;

use super::claims::{self, Claim, Claims, Records};
use super::lists::Lists;
use super::{BlobAnswer, OFFERS, Readable, Way, kept, sources};
use crate::protocol::{AgentName, Principal, Sha256};
use crate::store::{ManifestOffer, Offer, Place, Scope, Store, StoreError, TaskOffer, TaskRule};

/// Most tasks that are remembered of a hash. With more, one that is named is a question of its own.
const TASKS: u32 = 256;

/// A task rule, for as long as an answer to it is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Rule {
    Any,
    Is(String),
    None,
}

impl Rule {
    pub(super) fn of(task: Option<&str>, require_task: bool) -> Self {
        match task {
            Some(task) => Self::Is(task.to_owned()),
            None if require_task => Self::None,
            None => Self::Any,
        }
    }

    fn asked(&self) -> TaskRule<'_> {
        match self {
            Self::Any => TaskRule::Any,
            Self::Is(task) => TaskRule::Is(task),
            Self::None => TaskRule::None,
        }
    }

    /// What a caller is told of a hash that it may read, under none of the sets that pass.
    pub(super) fn refusal(&self) -> BlobAnswer {
        match self {
            Self::Any => BlobAnswer::NotFound,
            Self::Is(_) => BlobAnswer::TaskMismatch,
            Self::None => BlobAnswer::TaskRequired,
        }
    }

    /// Whether a set with this `producer.task` passes, which was announced under these tasks.
    fn lets(&self, producer_task: Option<&str>, announced: impl FnOnce(&str) -> bool) -> bool {
        match self {
            Self::Any => true,
            Self::Is(task) => producer_task == Some(task) || announced(task),
            Self::None => producer_task.is_none(),
        }
    }
}

/// The sets in which a caller may have a hash.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    /// Those that are the manifest of this hash, or have it nested in them.
    pub(super) manifests: Arc<[ManifestOffer]>,
    /// Those that list it, each with the ways to its bytes.
    pub(super) offers: Arc<[(Offer, Vec<Way>)]>,
    /// What agents say of it that were not asked for: it counts where it contradicts, and where it is proved.
    pub(super) others: Arc<[OthersClaim]>,
    /// As [`Readable::as_of`].
    pub(super) as_of: u64,
}

/// As [`Claim`].
#[derive(Debug, Clone)]
pub(super) struct OthersClaim {
    pub(super) agent: Principal,
    pub(super) size: u64,
    pub(super) list: String,
}

/// The tasks of those sets' announcements.
#[derive(Debug, Clone)]
pub(super) struct TaskNames {
    pub(super) tasks: Arc<HashSet<TaskOffer>>,
    /// Whether these are all.
    complete: bool,
}

impl TaskNames {
    /// For rules that no announcement's task matters to.
    pub(super) fn none() -> Self {
        Self { tasks: Arc::default(), complete: true }
    }

    pub(super) async fn find(
        store: &Store,
        scope: Scope<'_>,
        agent: Option<&AgentName>,
        sha256: &Sha256,
    ) -> Result<Self, StoreError> {
        store.tasks_of_hash(scope, agent, sha256, TASKS + 1).await.map(Self::of)
    }

    /// One more than are remembered are too many.
    pub(super) fn of(tasks: Vec<TaskOffer>) -> Self {
        let complete = tasks.len() <= TASKS as usize;
        Self { tasks: Arc::new(if complete { tasks.into_iter().collect() } else { HashSet::new() }), complete }
    }

    /// Whether no question is left that they do not answer.
    pub(super) fn suffice(&self) -> bool {
        self.complete
    }
}

impl Found {
    pub(super) async fn find(
        store: &Store,
        scope: Scope<'_>,
        (agent, sha256): (Option<&AgentName>, &Sha256),
        rule: &Rule,
    ) -> Result<Self, StoreError> {
        let as_of = store.generation();
        // Both at once: few hashes are a manifest's, and whoever asks waits for both answers.
        let (manifests, blobs) = tokio::try_join!(
            store.offers_of_manifest(scope, agent, sha256, rule.asked(), OFFERS),
            store.offers_of_blob(scope, agent, sha256, rule.asked(), OFFERS),
        )?;
        let (mut offers, mut others) = (Vec::new(), Vec::new());
        // A manifest before anything else: its bytes are here and are what the hash says, whatever anybody announces.
        if !manifests.iter().any(|offer| offer.of_agent) {
            (offers, others) = blobs.into_iter().partition(|offer| offer.of_agent);
        }
        let others = others.into_iter().map(|Offer { agent, size, list, .. }| OthersClaim { agent, size, list });
        let ways = sources::ways_of(store, &offers).await?;
        for offer in &mut offers {
            offer.locations = Vec::new();
        }
        let offers = offers.into_iter().zip(ways).collect();
        Ok(Self { manifests: manifests.into(), offers, others: others.collect(), as_of })
    }

    /// Whether there is nothing that the caller may have.
    pub(super) fn is_empty(&self) -> bool {
        self.offers.is_empty() && !self.manifests.iter().any(|offer| offer.of_agent)
    }

    /// Whether there are so many sets that those that pass a rule may be among the ones not looked at.
    pub(super) fn is_cut(&self) -> bool {
        let most = OFFERS as usize;
        self.manifests.len() >= most || self.offers.len() >= most
    }

    /// What the caller may have under this rule. `announced` are the tasks; without them, what was found was found by the
    /// rule itself, and tells what passes it.
    pub(super) async fn answer(
        &self,
        sha256: &Sha256,
        rule: &Rule,
        announced: Option<&TaskNames>,
        (lists, records): (&Lists, &Records),
    ) -> Result<BlobAnswer, StoreError> {
        let (mut answer, list) = self.judge(sha256, rule, announced, records);
        if let (BlobAnswer::Blob(claims), Some((manifest, position))) = (&mut answer, list) {
            claims.first_mut().chunks = lists.get(&manifest, position).await?;
        }
        Ok(answer)
    }

    /// The same, and the entry whose chunk list goes with the first claim.
    fn judge(
        &self,
        sha256: &Sha256,
        rule: &Rule,
        announced: Option<&TaskNames>,
        records: &Records,
    ) -> (BlobAnswer, Option<(Sha256, i64)>) {
        let lets = |place: &Place, agent: &_, set: &Sha256, producer_task: Option<&String>, passes: bool| {
            let Some(announced) = announced else { return passes };
            let named = |task: &str| {
                let (chat, agent) = (place.chat.clone(), crate::protocol::Principal::clone(agent));
                announced.tasks.contains(&TaskOffer { chat, agent, set: *set, task: task.to_owned() })
            };
            rule.lets(producer_task.map(String::as_str), named)
        };
        let fits = |offer: &&ManifestOffer| {
            lets(&offer.place, &offer.agent, &offer.set, offer.producer_task.as_ref(), offer.passes)
        };
        if self.manifests.iter().any(|offer| offer.of_agent) {
            let first = self.manifests.iter().filter(|offer| offer.of_agent).find(fits);
            let manifest = |offer: &ManifestOffer| BlobAnswer::Manifest(kept(*sha256, offer.clone(), self.as_of));
            return (first.map_or_else(|| rule.refusal(), manifest), None);
        }
        if self.offers.is_empty() {
            return (BlobAnswer::NotFound, None);
        }
        let passing: Vec<_> = self
            .offers
            .iter()
            .filter(|(offer, _)| {
                lets(&offer.place, &offer.agent, &offer.manifest, offer.producer_task.as_ref(), offer.passes)
            })
            .collect();
        let Some((first, _)) = passing.first() else { return (rule.refusal(), None) };
        if let Some(offer) = self.manifests.iter().find(fits).or(self.manifests.first()) {
            // A file to the agent that is asked for, and a manifest to another.
            return (BlobAnswer::Manifest(kept(*sha256, offer.clone(), self.as_of)), None);
        }
        let (claims, list) = match first.contested {
            false => (self.readable(sha256, &passing).map(Claims::from), (!first.list.is_empty()).then_some(first)),
            true => self.contested(sha256, passing, records),
        };
        let answer = claims.map_or(BlobAnswer::NotFound, BlobAnswer::Blob);
        (answer, list.map(|offer| (offer.manifest, offer.position)))
    }

    /// What may be had where the sets contradict each other: one of them lies, and only the hash of the whole can tell
    /// which. So no list is believed until the bytes have told, and the claims are tried in turn.
    fn contested<'a>(
        &'a self,
        sha256: &Sha256,
        passing: Vec<&'a (Offer, Vec<Way>)>,
        records: &Records,
    ) -> (Option<Claims>, Option<&'a Offer>) {
        let of = |offer: &'a Offer| Claim { agent: &offer.agent, size: offer.size, list: &offer.list };
        let own = self.offers.iter().map(|(offer, _)| of(offer));
        let others = self.others.iter().map(|OthersClaim { agent, size, list }| Claim {
            agent,
            size: *size,
            list: list.as_str(),
        });
        let standing = records.look(sha256, own.chain(others));
        let ordered = claims::in_order(&standing, passing, |item| {
            let (offer, _) = *item;
            of(offer)
        });
        // What contradicts may be among what was not looked at.
        let all = self.offers.len() + self.others.len() < OFFERS as usize;
        let believed = ordered.first().map(|(offer, _)| offer);
        let believed = believed.filter(|offer| all && !offer.list.is_empty() && standing.believes(&of(offer)));
        let mut readable = Vec::new();
        for size in claims::sizes(&standing, ordered.iter().map(|(offer, _)| offer.size)) {
            let fits = |offer: &Offer| {
                let vouched = believed.is_none_or(|first| first.size != size || first.list == offer.list);
                offer.size == size && vouched
            };
            let agreeing: Vec<_> = ordered.iter().copied().filter(|(offer, _)| fits(offer)).collect();
            readable.extend(self.readable(sha256, &agreeing));
        }
        // The list goes with the first, unless that one has no way to it.
        let believed = believed.filter(|offer| readable.first().is_some_and(|first| first.size == offer.size));
        let mut agents: Vec<Principal> = Vec::new();
        for (offer, _) in self.offers.iter() {
            if !agents.contains(&offer.agent) {
                agents.push(offer.agent.clone());
            }
        }
        (Claims::of(readable, agents), believed)
    }

    /// What agreeing sets give, without a chunk list. `None` where they name no way to it.
    fn readable(&self, sha256: &Sha256, agreeing: &[&(Offer, Vec<Way>)]) -> Option<Readable> {
        let size = agreeing.first()?.0.size;
        let places: HashSet<Place> = agreeing.iter().map(|(offer, _)| offer.place.clone()).collect();
        let expiries: Option<Vec<i64>> = agreeing.iter().map(|(offer, _)| offer.expires_at).collect();
        let sources = sources::pick(agreeing.iter().map(|(offer, ways)| (&offer.agent, ways.clone())));
        (!sources.is_empty()).then(|| Readable {
            sha256: *sha256,
            size,
            chunks: None,
            sources,
            places: places.into_iter().collect(),
            expires_at: expiries.and_then(|all| all.into_iter().max()),
            as_of: self.as_of,
        })
    }
}
