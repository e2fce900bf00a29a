use std::sync::Arc;

use super::hash::{Found, Rule, TaskNames};
use super::{FileAccess, KeptManifest, Readable, SetAccess, Way, lists};
use crate::identity::Caller;
use crate::protocol::{AgentName, ChatId, Principal, Sha256};
use crate::store::{FileId, Place, Remembered, Store, StoreError, weight_of};

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Chat(ChatId),
    Set(ChatId, Sha256),
    File(ChatId, Sha256, String),
    Version(ChatId, FileId, u32),
    Hash { agent: Option<AgentName>, sha256: Sha256, rule: Rule },
    Tasks { agent: Option<AgentName>, sha256: Sha256 },
}

/// What was found.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Participant(bool),
    Set(Option<SetAccess>),
    File(Option<FileAccess>),
    Hash(Found),
    Tasks(TaskNames),
}

/// An answer depends on who asks, within which limit, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    principal: Principal,
    chats: Option<Arc<[ChatId]>>,
    pub(super) target: Target,
}

#[derive(Debug, Clone)]
pub(super) struct Cache(Remembered<Key, Answer>);

impl Cache {
    pub(super) fn new(bytes: u64) -> Self {
        let weigh = |key: &Key, answer: &Answer| Some(u32::try_from(weight(key, answer)).unwrap_or(u32::MAX));
        Self(Remembered::new(bytes, weigh, Store::generation))
    }

    /// The remembered answer, if it is as good as a new one.
    pub(super) fn known(&self, store: &Store, key: &Key) -> Option<Answer> {
        self.0.known(store, key)
    }

    /// The remembered answer, or else the one that `ask` gets. A failure is not remembered.
    pub(super) async fn answer(
        &self,
        store: &Store,
        key: Key,
        ask: impl Future<Output = Result<Answer, StoreError>>,
    ) -> Result<Answer, StoreError> {
        self.0.answer(store, key, ask).await
    }
}

impl Key {
    pub(super) fn of(caller: &Caller, target: Target) -> Self {
        Self { principal: caller.principal.clone(), chats: caller.chats.clone(), target }
    }
}

/// About how many bytes an answer takes: texts and lists, and the rest as a lump.
fn weight(key: &Key, answer: &Answer) -> usize {
    const LUMP: usize = 512;
    let texts = match &key.target {
        Target::Chat(_) | Target::Set(..) | Target::Version(..) | Target::Tasks { .. } => 0,
        Target::File(_, _, path) => path.len(),
        Target::Hash { rule: Rule::Is(task), .. } => task.len(),
        Target::Hash { .. } => 0,
    };
    let asked = LUMP + key.principal.as_str().len() + key.chats.as_deref().map_or(0, weight_of) + texts;
    let places = |places: &[Place]| places.iter().map(|place| 64 + place.chat.as_str().len()).sum::<usize>();
    let tasks = |tasks: &super::Tasks| tasks.0.iter().map(|task| 16 + task.len()).sum::<usize>();
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    // A location is as long as its target.
    let way = |way: &Way| match way {
        Way::Relay => LUMP / 4,
        Way::Location(remote) => LUMP / 2 + remote.location.target.len() + text(&remote.task),
    };
    let manifest = |manifest: &KeptManifest| places(&manifest.places);
    let of = |readable: &Readable| -> usize {
        let list = readable.chunks.as_deref().map_or(0, lists::weight);
        readable.sources.iter().map(|source| way(&source.way)).sum::<usize>() + places(&readable.places) + list
    };
    let found = match answer {
        Answer::Set(Some(set)) => manifest(&set.manifest) + tasks(&set.tasks),
        Answer::File(Some(file)) => of(&file.readable) + file.path.len() + file.media_type.len() + tasks(&file.tasks),
        Answer::Hash(found) => {
            let names = |place: &Place, task: &Option<String>| LUMP + place.chat.as_str().len() + text(task);
            let manifests = found.manifests.iter().map(|offer| names(&offer.place, &offer.producer_task));
            let offers = found.offers.iter().map(|(offer, ways)| {
                let own = offer.path.len() + offer.media_type.len() + offer.agent.as_str().len();
                names(&offer.place, &offer.producer_task) + own + ways.iter().map(way).sum::<usize>()
            });
            let others = found.others.iter().map(|claim| LUMP / 4 + claim.agent.as_str().len() + claim.list.len());
            manifests.chain(offers).chain(others).sum()
        }
        Answer::Tasks(found) => found
            .tasks
            .iter()
            .map(|task| LUMP / 2 + task.task.len() + task.chat.as_str().len() + task.agent.as_str().len())
            .sum(),
        _ => 0,
    };
    asked + found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ManifestOffer, TaskOffer};

    /// Whatever a caller can make an answer hold is in its weight.
    #[test]
    fn an_answer_weighs_what_it_holds() {
        let target =
            |task: &str| Target::Hash { agent: None, sha256: Sha256::of(b"a"), rule: Rule::Is(task.to_owned()) };
        let key = |chats: usize, task: &str| Key {
            principal: "user:a".parse().unwrap(),
            chats: (chats > 0).then(|| (0..chats).map(|n| format!("{n:0>200}").parse().unwrap()).collect()),
            target: target(task),
        };
        let not_found = Answer::Hash(Found::default());
        let least = weight(&key(0, ""), &not_found);
        assert!(weight(&key(1000, ""), &not_found) >= least + 1000 * 200);
        assert!(weight(&key(0, &"t".repeat(8000)), &not_found) >= least + 8000);
        let place = |n: usize| Place { chat: format!("{n:0>200}").parse().unwrap(), made_at: 0 };
        let agent: Principal = "agent:a".parse().unwrap();
        let offer = |n: usize| ManifestOffer {
            agent: agent.clone(),
            place: place(n),
            size: 1,
            set: Sha256::of(b"m"),
            producer_task: Some("t".repeat(256)),
            of_agent: true,
            passes: true,
        };
        let found = Found { manifests: (0..64).map(offer).collect(), ..Found::default() };
        assert!(weight(&key(0, ""), &Answer::Hash(found)) >= least + 64 * (200 + 256));
        let task = |n: usize| TaskOffer {
            chat: place(n).chat,
            agent: agent.clone(),
            set: Sha256::of(b"m"),
            task: format!("{n:0>256}"),
        };
        let found = TaskNames::of((0..256).map(task).collect());
        assert!(weight(&key(0, ""), &Answer::Tasks(found)) >= least + 256 * (200 + 256));
        let kept = KeptManifest { sha256: Sha256::of(b"m"), size: 1, agent, places: [].into(), as_of: 0 };
        let tasks = super::super::Tasks((0..128).map(|_| "t".repeat(256)).collect());
        let set = SetAccess { manifest: kept, tasks };
        assert!(weight(&key(0, ""), &Answer::Set(Some(set))) >= least + 128 * 256);
    }
}
