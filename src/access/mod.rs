//! Who may read what.
//!
//! Answers come from the store and are remembered in memory, each with the store's generation from before it was asked
//! for: a write that may change access makes every older answer void. "Unknown" and "not yours" are one query and one
//! value, so nothing above can tell them apart. A hash alone grants nothing: every source stands for an announcement
//! that the caller may read.
//!
//! It must not know who is connected, nor read bytes of blobs.

mod cache;
mod claims;
mod find;
mod hash;
mod lists;
#[cfg(test)]
mod load;
mod manifests;
mod sources;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use crate::identity::Caller;
use crate::protocol::manifest::path;
use crate::protocol::{AgentName, ChatId, Chunks, EntryKind, Location, Principal, Sha256};
use crate::store::{FileId, ManifestOffer, Place, Scope, Store, StoreError};

use cache::{Answer, Cache, Key, Target};
pub use claims::Claims;
use claims::Records;
use hash::{Found, Rule, TaskNames};
use lists::Lists;
use manifests::Manifests;
pub use turns::Turn;
use turns::Turns;

/// Bytes that a caller may read, and where they may come from.
///
/// Every source stands for an announcement that this caller may read: a hash alone grants nothing.
#[derive(Debug, Clone)]
pub struct Readable {
    /// The blob.
    pub sha256: Sha256,
    /// Its complete length in bytes. Every source's entry agrees on it.
    pub size: u64,
    /// What vouches for each chunk, whichever source it comes from: every source's entry has this list. Without one, only
    /// the whole blob's hash does.
    pub chunks: Option<Arc<Chunks>>,
    /// Never empty, the one that was announced first in front, and none twice.
    pub sources: Vec<Source>,
    /// The chats that allow it: who takes part in none of them any more may not read on. None for what the gateway reads
    /// for itself.
    pub places: Arc<[Place]>,
    /// When the last set that allows it expires, Unix milliseconds; absent when one of them never does. Its agents may
    /// have thrown the bytes away by then.
    pub expires_at: Option<i64>,
    /// The store's generation before this was asked: what was written since is not considered here.
    pub as_of: u64,
}

impl FileAccess {
    /// The manifest that it is, where it is a nested one: kept here since it was announced.
    pub fn nested_manifest(&self) -> Option<KeptManifest> {
        let Readable { sha256, size, places, as_of, .. } = &self.readable;
        (self.kind == EntryKind::Manifest).then(|| KeptManifest {
            sha256: *sha256,
            size: *size,
            agent: self.agent.clone(),
            places: places.clone(),
            as_of: *as_of,
        })
    }
}

impl Readable {
    /// The same bytes, from agents' own connections only. `None` when nobody offers them that way.
    pub fn by_relay(mut self) -> Option<Self> {
        self.sources.retain(|source| source.way == Way::Relay);
        (!self.sources.is_empty()).then_some(self)
    }
}

/// One way to the bytes that an announcement names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Who announced it; a `relay` location reaches this agent only.
    pub agent: Principal,
    /// How they are had.
    pub way: Way,
}

/// How bytes are had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Over the agent's own connection.
    Relay,
    /// From a place that the announcement names.
    Location(Arc<Remote>),
}

/// A place that an announcement names. Its bytes are worth no more than the announcing agent's own word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Who names it: what the place gives for its sake is not for the others that name it.
    pub agent: Principal,
    /// Where.
    pub location: Location,
    /// The manifest's `producer.task`, which the producer's endpoint asks for.
    pub task: Option<String>,
    /// Whether the gateway may say who it is. It may not where the place is another agent's, as far as is known: what that
    /// agent lets this gateway have is not the announcing agent's to have.
    pub signed: bool,
}

/// Bytes that an announcement names before it is kept: its manifest, or one nested in it.
#[derive(Debug, Clone)]
pub struct Announced {
    /// The blob.
    pub sha256: Sha256,
    /// Its complete length in bytes, as announced.
    pub size: u64,
    /// The task it answers, which a producer's endpoint asks for.
    pub task: Option<String>,
    /// Where it can be read: the entry's or set's list, then the announcement's.
    pub locations: Vec<Location>,
}

/// How bytes that `agent` is announcing can be read: as that agent says, and no other. None when it names no way to
/// them.
pub async fn announced(store: &Store, agent: &Principal, wanted: Announced) -> Result<Option<Readable>, StoreError> {
    sources::announced(store, agent, wanted).await
}

/// A manifest that a caller may read. Its bytes are here, and are what their hash says.
#[derive(Debug, Clone)]
pub struct KeptManifest {
    /// Its identity.
    pub sha256: Sha256,
    /// Bytes of its canonical form.
    pub size: u64,
    /// Who announced it.
    pub agent: Principal,
    /// The chats that allow it, as [`Readable::places`].
    pub places: Arc<[Place]>,
    /// As [`Readable::as_of`].
    pub as_of: u64,
}

/// The tasks by which a set may be asked for: its manifest's and those of its announcements.
#[derive(Debug, Clone)]
pub struct Tasks(Arc<[String]>);

impl Tasks {
    fn of(names: impl IntoIterator<Item = String>) -> Self {
        let names: BTreeSet<String> = names.into_iter().collect();
        Self(names.into_iter().collect())
    }

    /// Whether the set may be had by who names this task, or none.
    pub fn allow(&self, named: Option<&str>) -> bool {
        named.is_none_or(|named| self.0.iter().any(|task| task == named))
    }
}

/// A set of a chat that a caller may read.
#[derive(Debug, Clone)]
pub struct SetAccess {
    /// Its manifest.
    pub manifest: KeptManifest,
    /// The tasks it answers.
    pub tasks: Tasks,
}

/// The hosts and ports that locations name, at which an agent has to be known (see [`Store::claim_endpoints`]) before
/// anything that it announces there can be read.
pub fn endpoints<'a>(locations: impl IntoIterator<Item = &'a Location>) -> BTreeSet<String> {
    sources::endpoints(locations)
}

/// A file of a set that a caller may read.
#[derive(Debug, Clone)]
pub struct FileAccess {
    /// Who announced it.
    pub agent: Principal,
    /// The tasks its sets answer.
    pub tasks: Tasks,
    /// Its bytes.
    pub readable: Readable,
    /// Its path in the set.
    pub path: Arc<str>,
    /// Attacker controlled.
    pub media_type: Arc<str>,
    /// A file, or a nested manifest.
    pub kind: EntryKind,
}

/// What a caller may have of a hash.
#[derive(Debug, Clone)]
pub enum BlobAnswer {
    /// Unknown, or not this caller's.
    NotFound,
    /// Only sets that a task must be named for.
    TaskRequired,
    /// The task that was named is not that of a set that lists the blob.
    TaskMismatch,
    /// A blob.
    Blob(Claims),
    /// A manifest.
    Manifest(KeptManifest),
}

/// A blob that is asked for by its hash.
#[derive(Debug, Clone, Copy)]
pub struct BlobRequest<'a> {
    /// Only sets that the holder of this name announced.
    pub agent: Option<&'a AgentName>,
    /// The blob, or manifest.
    pub sha256: &'a Sha256,
    /// The `Artifact-Task` header. One that is sent must match.
    pub task: Option<&'a str>,
    /// Whether sets whose manifest names `producer.task` need the header.
    pub require_task: bool,
}

/// Most sets looked at for one answer. More exist only where many agents, or many sets, offer the same bytes.
const OFFERS: u32 = 64;
/// Most tasks that a set can be asked for by.
const SET_TASKS: u32 = 256;

/// The answers of the store, remembered. Clones share them.
#[derive(Debug, Clone)]
pub struct Access {
    store: Store,
    cache: Cache,
    manifests: Manifests,
    lists: Lists,
    records: Records,
    turns: Turns,
}

impl Access {
    /// Answers from this store, of which at most about `cache_bytes` bytes are remembered.
    pub fn new(store: Store, cache_bytes: u64) -> Self {
        Self {
            manifests: Manifests::new(store.clone()),
            lists: Lists::new(store.clone()),
            records: Records::default(),
            turns: Turns::default(),
            cache: Cache::new(cache_bytes),
            store,
        }
    }

    /// Whether the caller takes part in a chat, and its credential is good for it.
    pub async fn is_participant(&self, caller: &Caller, chat: &ChatId) -> Result<bool, StoreError> {
        if !caller.covers(chat) {
            return Ok(false);
        }
        let answer = self.answer(caller, Target::Chat(chat.clone())).await?;
        Ok(matches!(answer, Answer::Participant(true)))
    }

    /// A chat's set. `None` when there is none, or the caller may not read it.
    pub async fn set(&self, caller: &Caller, chat: &ChatId, set: &Sha256) -> Result<Option<SetAccess>, StoreError> {
        match self.answer(caller, Target::Set(chat.clone(), *set)).await? {
            Answer::Set(set) => Ok(set),
            Answer::Participant(_) | Answer::File(_) | Answer::Hash(_) | Answer::Tasks(_) => Ok(None),
        }
    }

    /// The chat that the caller takes part in, as it was made, when its credential is good for it. Not remembered: whoever
    /// asks stays.
    pub async fn place(&self, caller: &Caller, chat: &ChatId) -> Result<Option<Place>, StoreError> {
        if !caller.covers(chat) {
            return Ok(None);
        }
        self.store.place_of(chat, &caller.principal).await
    }

    /// A file of a chat's set. `None` when there is none, or the caller may not read it.
    pub async fn file(
        &self,
        caller: &Caller,
        chat: &ChatId,
        set: &Sha256,
        path: &str,
    ) -> Result<Option<FileAccess>, StoreError> {
        // What no entry can be named names nothing, and need not be what a database takes for text.
        if path::check(path).is_err() {
            return Ok(None);
        }
        match self.answer(caller, Target::File(chat.clone(), *set, path.to_owned())).await? {
            Answer::File(file) => Ok(file),
            Answer::Participant(_) | Answer::Set(_) | Answer::Hash(_) | Answer::Tasks(_) => Ok(None),
        }
    }

    /// A version of a chat's file. `None` when there is none, or the caller may not read it.
    pub async fn version(
        &self,
        caller: &Caller,
        chat: &ChatId,
        file: FileId,
        version: u32,
    ) -> Result<Option<FileAccess>, StoreError> {
        match self.answer(caller, Target::Version(chat.clone(), file, version)).await? {
            Answer::File(file) => Ok(file),
            Answer::Participant(_) | Answer::Set(_) | Answer::Hash(_) | Answer::Tasks(_) => Ok(None),
        }
    }

    /// The canonical bytes of a manifest that may be read, the same ones for everybody who asks. None when it is not kept
    /// any more.
    pub async fn read(&self, manifest: &KeptManifest) -> Result<Option<Bytes>, StoreError> {
        self.manifests.bytes(&manifest.sha256, manifest.size).await
    }

    /// A blob or manifest by its hash, from every set that the caller may read and whose task fits the request.
    pub async fn blob(&self, caller: &Caller, request: BlobRequest<'_>) -> Result<BlobAnswer, StoreError> {
        let BlobRequest { agent, sha256, task, require_task } = request;
        let rule = Rule::of(task, require_task);
        let found = self.hash(caller, agent, sha256, Rule::Any).await?;
        if found.is_empty() {
            return Ok(BlobAnswer::NotFound);
        }
        let known = (&self.lists, &self.records);
        let announced = match rule {
            Rule::Is(_) => self.tasks_of_hash(caller, agent, sha256).await?,
            Rule::Any | Rule::None => TaskNames::none(),
        };
        if rule == Rule::Any || !found.is_cut() && announced.suffice() {
            return found.answer(sha256, &rule, Some(&announced), known).await;
        }
        let found = self.hash(caller, agent, sha256, rule.clone()).await?;
        found.answer(sha256, &rule, None, known).await
    }

    /// An agent has served the whole blob, of this size, and the blob's own hash was right.
    pub fn proved(&self, agent: &Principal, sha256: Sha256, size: u64) {
        self.records.proved(agent, sha256, size);
    }

    /// What an agent served alone as the whole blob has another hash, or it has fewer bytes than it announced.
    pub fn failed(&self, agent: &Principal, sha256: Sha256) {
        self.records.failed(agent, sha256);
    }

    /// The sets in which the caller may have a hash.
    async fn hash(
        &self,
        caller: &Caller,
        agent: Option<&AgentName>,
        sha256: &Sha256,
        rule: Rule,
    ) -> Result<Found, StoreError> {
        let target = Target::Hash { agent: agent.cloned(), sha256: *sha256, rule };
        match self.answer(caller, target).await? {
            Answer::Hash(found) => Ok(found),
            Answer::Participant(_) | Answer::Set(_) | Answer::File(_) | Answer::Tasks(_) => Ok(Found::default()),
        }
    }

    /// The tasks of those sets' announcements.
    async fn tasks_of_hash(
        &self,
        caller: &Caller,
        agent: Option<&AgentName>,
        sha256: &Sha256,
    ) -> Result<TaskNames, StoreError> {
        let target = Target::Tasks { agent: agent.cloned(), sha256: *sha256 };
        match self.answer(caller, target).await? {
            Answer::Tasks(tasks) => Ok(tasks),
            Answer::Participant(_) | Answer::Set(_) | Answer::File(_) | Answer::Hash(_) => Ok(TaskNames::none()),
        }
    }

    /// Waits for the caller's turn to ask the database something, which it keeps for as long as it holds this. Of those
    /// that are answered here it need not be asked for.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when the caller has as many questions under way as it may have, for longer than a moment.
    pub async fn turn(&self, caller: &Caller) -> Result<Turn, StoreError> {
        self.turns.enter(&caller.principal).await
    }

    /// Whether anything was written since that may change who can read what.
    pub fn has_moved_on(&self, as_of: u64) -> bool {
        self.store.generation() != as_of
    }

    /// Changes when a write of this process may have taken access away from somebody.
    pub fn revocations(&self) -> watch::Receiver<u64> {
        self.store.revocations()
    }

    /// Which of these readers take part in none of the chats any more that allowed what they read: by the store as it is
    /// now, whoever wrote it. Nothing else takes away what was allowed, neither expiry nor the sweep of old sets.
    pub async fn revoked(&self, reads: &[(Principal, Arc<[Place]>)]) -> Result<Vec<bool>, StoreError> {
        let readers = reads.iter().map(|(reader, _)| reader.clone()).collect();
        let places = reads.iter().flat_map(|(_, places)| places.iter().cloned()).collect();
        let found = self.store.participants_of(&places, &readers).await?;
        let everyone = Principal::everyone();
        let takes_part = |reader: &Principal, place: &Place| {
            [reader, &everyone].iter().any(|&principal| found.contains(&(place.clone(), principal.clone())))
        };
        Ok(reads.iter().map(|(reader, places)| !places.iter().any(|place| takes_part(reader, place))).collect())
    }

    /// The remembered answer, or else the store's.
    async fn answer(&self, caller: &Caller, target: Target) -> Result<Answer, StoreError> {
        let key = Key::of(caller, target);
        if let Some(known) = self.cache.known(&self.store, &key) {
            return Ok(known);
        }
        // Many may ask the same at once: whoever had a turn before may have been told.
        let _turn = self.turns.enter(&caller.principal).await?;
        let target = key.target.clone();
        let ask = async {
            match &target {
                Target::Chat(chat) => self.store.is_participant(chat, &caller.principal).await.map(Answer::Participant),
                Target::Set(chat, set) => self.find_set(caller, chat, set).await.map(Answer::Set),
                Target::File(chat, set, path) => self.find_file(caller, chat, set, path).await.map(Answer::File),
                Target::Version(chat, file, version) => {
                    let as_of = self.store.generation();
                    let offers = self.store.offers_of_version(scope(caller), chat, (*file, *version), OFFERS).await?;
                    self.file_of(caller, offers, as_of).await.map(Answer::File)
                }
                Target::Hash { agent, sha256, rule } => {
                    Found::find(&self.store, scope(caller), (agent.as_ref(), sha256), rule).await.map(Answer::Hash)
                }
                Target::Tasks { agent, sha256 } => {
                    let found = TaskNames::find(&self.store, scope(caller), agent.as_ref(), sha256).await;
                    found.map(Answer::Tasks)
                }
            }
        };
        self.cache.answer(&self.store, key, ask).await
    }
}

fn kept(sha256: Sha256, offer: ManifestOffer, as_of: u64) -> KeptManifest {
    KeptManifest { sha256, size: offer.size, agent: offer.agent, places: [offer.place].into(), as_of }
}

fn scope(caller: &Caller) -> Scope<'_> {
    Scope { principal: &caller.principal, chats: caller.chats.as_deref() }
}
