//! What a hash is for a caller: found once, and then judged for each task that is named.

use std::collections::HashSet;
use std::sync::Arc;

use super::lists::Lists;
use super::{BlobAnswer, OFFERS, Readable, Way, kept, sources};
use crate::protocol::{AgentName, Sha256};
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
    /// As [`Readable::as_of`].
    pub(super) as_of: u64,
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
        let manifests = store.offers_of_manifest(scope, agent, sha256, rule.asked(), OFFERS).await?;
        let mut offers = Vec::new();
        // A manifest before anything else: its bytes are here and are what the hash says, whatever anybody announces.
        if !manifests.iter().any(|offer| offer.of_agent) {
            offers = store.offers_of_blob(scope, agent, sha256, rule.asked(), OFFERS).await?;
            // What others say counts already where it contradicts.
            offers.retain(|offer| offer.of_agent);
        }
        let ways = sources::ways_of(store, &offers).await?;
        for offer in &mut offers {
            offer.locations = Vec::new();
        }
        Ok(Self { manifests: manifests.into(), offers: offers.into_iter().zip(ways).collect(), as_of })
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
        lists: &Lists,
    ) -> Result<BlobAnswer, StoreError> {
        let (mut answer, list) = self.judge(sha256, rule, announced);
        if let (BlobAnswer::Blob(readable), Some((manifest, position))) = (&mut answer, list) {
            readable.chunks = lists.get(&manifest, position).await?;
        }
        Ok(answer)
    }

    /// The same, and the entry whose chunk list goes with it.
    fn judge(
        &self,
        sha256: &Sha256,
        rule: &Rule,
        announced: Option<&TaskNames>,
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
        // The first one's claim stands. Where others contradict it one of them lies, and only the hash of the whole can
        // tell: no list is believed.
        let agreeing = || passing.iter().filter(|(offer, _)| offer.size == first.size);
        let places: HashSet<Place> = agreeing().map(|(offer, _)| offer.place.clone()).collect();
        let expiries: Option<Vec<i64>> = agreeing().map(|(offer, _)| offer.expires_at).collect();
        let sources = sources::pick(agreeing().map(|(offer, ways)| (&offer.agent, ways.clone())));
        if sources.is_empty() {
            return (BlobAnswer::NotFound, None);
        }
        let is_believed = !first.contested && !first.list.is_empty();
        let readable = Readable {
            sha256: *sha256,
            size: first.size,
            chunks: None,
            sources,
            places: places.into_iter().collect(),
            expires_at: expiries.and_then(|all| all.into_iter().max()),
            as_of: self.as_of,
        };
        (BlobAnswer::Blob(readable), is_believed.then_some((first.manifest, first.position)))
    }
}
