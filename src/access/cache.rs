use std::sync::Arc;

use super::{BlobAnswer, BlobRequest, FileAccess, KeptManifest, Readable, SetAccess, Source, Way};
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
    Blob { agent: Option<AgentName>, sha256: Sha256, task: Option<String>, require_task: bool },
}

impl Target {
    pub(super) fn blob(request: BlobRequest<'_>) -> Self {
        Self::Blob {
            agent: request.agent.cloned(),
            sha256: *request.sha256,
            task: request.task.map(str::to_owned),
            require_task: request.require_task,
        }
    }
}

/// What was found.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Participant(bool),
    Set(Option<SetAccess>),
    File(Option<FileAccess>),
    Blob(BlobAnswer),
}

/// An answer depends on who asks, within which limit, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    principal: Principal,
    chats: Option<Arc<[ChatId]>>,
    target: Target,
}

#[derive(Debug, Clone)]
pub(super) struct Cache(Remembered<Key, Answer>);

impl Cache {
    pub(super) fn new(bytes: u64) -> Self {
        let weigh = |key: &Key, answer: &Answer| Some(u32::try_from(weight(key, answer)).unwrap_or(u32::MAX));
        Self(Remembered::new(bytes, weigh, Store::generation))
    }

    /// The remembered answer, or else the one that `ask` gets. A failure is not remembered.
    pub(super) async fn answer(
        &self,
        store: &Store,
        caller: &Caller,
        target: Target,
        ask: impl Future<Output = Result<Answer, StoreError>>,
    ) -> Result<Answer, StoreError> {
        let key = Key { principal: caller.principal.clone(), chats: caller.chats.clone(), target };
        self.0.answer(store, key, ask).await
    }
}

/// About how many bytes an answer takes: texts and lists, and the rest as a lump.
fn weight(key: &Key, answer: &Answer) -> usize {
    const LUMP: usize = 512;
    let texts = match &key.target {
        Target::Chat(_) | Target::Set(..) | Target::Version(..) => 0,
        Target::File(_, _, path) => path.len(),
        Target::Blob { task, .. } => task.as_ref().map_or(0, String::len),
    };
    let asked = LUMP + key.principal.as_str().len() + key.chats.as_deref().map_or(0, weight_of) + texts;
    let places = |places: &[Place]| places.iter().map(|place| 64 + place.chat.as_str().len()).sum::<usize>();
    let tasks = |tasks: &super::Tasks| tasks.0.iter().map(|task| 16 + task.len()).sum::<usize>();
    let manifest = |manifest: &KeptManifest| places(&manifest.places);
    let of = |readable: &Readable| -> usize {
        let hashes = readable.chunks.as_ref().map_or(0, |chunks| chunks.hashes.len());
        // A location is as long as its target.
        let source = |source: &Source| match &source.way {
            Way::Relay => LUMP / 4,
            Way::Location(remote) => LUMP / 2 + remote.location.target.len(),
        };
        readable.sources.iter().map(source).sum::<usize>() + places(&readable.places) + 32 * hashes
    };
    let found = match answer {
        Answer::Set(Some(set)) => manifest(&set.manifest) + tasks(&set.tasks),
        Answer::File(Some(file)) => of(&file.readable) + file.path.len() + file.media_type.len() + tasks(&file.tasks),
        Answer::Blob(BlobAnswer::Blob(readable)) => of(readable),
        Answer::Blob(BlobAnswer::Manifest(found)) => manifest(found),
        _ => 0,
    };
    asked + found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a caller can make an answer hold is in its weight.
    #[test]
    fn an_answer_weighs_what_it_holds() {
        let target = |task: &str| Target::Blob {
            agent: None,
            sha256: Sha256::of(b"a"),
            task: Some(task.to_owned()),
            require_task: false,
        };
        let key = |chats: usize, task: &str| Key {
            principal: "user:a".parse().unwrap(),
            chats: (chats > 0).then(|| (0..chats).map(|n| format!("{n:0>200}").parse().unwrap()).collect()),
            target: target(task),
        };
        let not_found = Answer::Blob(BlobAnswer::NotFound);
        let least = weight(&key(0, ""), &not_found);
        assert!(weight(&key(1000, ""), &not_found) >= least + 1000 * 200);
        assert!(weight(&key(0, &"t".repeat(8000)), &not_found) >= least + 8000);
        let place = |n: usize| Place { chat: format!("{n:0>200}").parse().unwrap(), made_at: 0 };
        let kept = KeptManifest {
            sha256: Sha256::of(b"m"),
            size: 1,
            agent: "agent:a".parse().unwrap(),
            places: (0..64).map(place).collect(),
            as_of: 0,
        };
        assert!(weight(&key(0, ""), &Answer::Blob(BlobAnswer::Manifest(kept.clone()))) >= least + 64 * 200);
        let tasks = super::super::Tasks((0..128).map(|_| "t".repeat(256)).collect());
        let set = SetAccess { manifest: KeptManifest { places: [].into(), ..kept }, tasks };
        assert!(weight(&key(0, ""), &Answer::Set(Some(set))) >= least + 128 * 256);
    }
}
