use std::sync::Arc;
use std::time::Duration;

use super::{BlobAnswer, BlobRequest, FileAccess, Readable, Source, Way};
use crate::identity::Caller;
use crate::protocol::{AgentName, ChatId, Principal, Sha256};
use crate::store::{FileId, Store, StoreError};

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Chat(ChatId),
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
    File(Option<FileAccess>),
    Blob(BlobAnswer),
    /// The hash is a manifest that may be read.
    Manifest,
}

/// An answer depends on who asks, within which limit, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    principal: Principal,
    chats: Option<Arc<[ChatId]>>,
    target: Target,
}

#[derive(Debug, Clone)]
struct Kept {
    /// The store's, from before the question.
    generation: u64,
    answer: Answer,
}

#[derive(Debug, Clone)]
pub(super) struct Cache(moka::sync::Cache<Key, Kept>);

/// How long an answer lives at most. The generation sees only the writes of this process whose end this process saw.
const TIME_TO_LIVE: Duration = Duration::from_secs(30);

impl Cache {
    pub(super) fn new(bytes: u64) -> Self {
        let cache = moka::sync::Cache::builder()
            .max_capacity(bytes)
            .weigher(|key: &Key, kept: &Kept| u32::try_from(weight(key, &kept.answer)).unwrap_or(u32::MAX))
            .time_to_live(TIME_TO_LIVE)
            .build();
        Self(cache)
    }

    /// The remembered answer, or else the one that `ask` gets. A failure is not remembered.
    pub(super) async fn answer(
        &self,
        store: &Store,
        caller: &Caller,
        target: Target,
        ask: impl Future<Output = Result<Answer, StoreError>>,
    ) -> Result<Answer, StoreError> {
        // Read before asking: a write that ends in between leaves an answer that is void from the start.
        let generation = store.generation();
        let key = Key { principal: caller.principal.clone(), chats: caller.chats.clone(), target };
        if let Some(kept) = self.0.get(&key)
            && kept.generation == generation
        {
            return Ok(kept.answer);
        }
        let answer = ask.await?;
        self.0.insert(key, Kept { generation, answer: answer.clone() });
        Ok(answer)
    }
}

/// About how many bytes an answer takes: the chunk lists, and the rest as a lump.
fn weight(key: &Key, answer: &Answer) -> usize {
    const LUMP: usize = 512;
    let texts = match &key.target {
        Target::Chat(_) | Target::Version(..) => 0,
        Target::File(_, _, path) => path.len(),
        Target::Blob { task, .. } => task.as_ref().map_or(0, String::len),
    };
    let of = |readable: &Readable| -> usize {
        let hashes = readable.chunks.as_ref().map_or(0, |chunks| chunks.hashes.len());
        // A location is as long as its target.
        let source = |source: &Source| match &source.way {
            Way::Relay => LUMP / 4,
            Way::Location(remote) => LUMP / 2 + remote.location.target.len(),
        };
        readable.sources.iter().map(source).sum::<usize>() + 32 * hashes
    };
    let found = match answer {
        Answer::File(Some(file)) => of(&file.readable) + file.path.len() + file.media_type.len(),
        Answer::Blob(BlobAnswer::Blob(readable)) => of(readable),
        _ => 0,
    };
    LUMP + texts + found
}
