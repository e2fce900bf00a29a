//! What the store is asked where nothing is remembered: a chat's set, and a file of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Access, FileAccess, OFFERS, Readable, SET_TASKS, SetAccess, Tasks, kept, scope, sources};
use crate::identity::Caller;
use crate::protocol::{ChatId, EntryKind, Sha256};
use crate::store::{Offer, Scope, StoreError, TaskRule};

impl Access {
    pub(super) async fn find_set(
        &self,
        caller: &Caller,
        chat: &ChatId,
        set: &Sha256,
    ) -> Result<Option<SetAccess>, StoreError> {
        let as_of = self.store.generation();
        let offers = self.store.offers_of_set(scope(caller), chat, set, OFFERS).await?;
        let Some(first) = offers.into_iter().next() else { return Ok(None) };
        let announced =
            self.store.tasks_of_set(chat, set, SET_TASKS).await?.into_iter().map(|announced| announced.task);
        let tasks = Tasks::of(first.producer_task.clone().into_iter().chain(announced));
        Ok(Some(SetAccess { manifest: kept(*set, first, as_of), tasks }))
    }

    pub(super) async fn find_file(
        &self,
        caller: &Caller,
        chat: &ChatId,
        set: &Sha256,
        path: &str,
    ) -> Result<Option<FileAccess>, StoreError> {
        let as_of = self.store.generation();
        let offers = self.store.offers_of_file(scope(caller), chat, set, path, OFFERS).await?;
        self.file_of(caller, offers, as_of).await
    }

    /// The tasks of sets of one chat that list a file.
    async fn tasks_of_file(&self, caller: &Caller, offers: &[Offer]) -> Result<Tasks, StoreError> {
        let Some(first) = offers.first() else { return Ok(Tasks::of([])) };
        let mut announced = Vec::new();
        let sets: BTreeSet<Sha256> = offers.iter().map(|offer| offer.manifest).collect();
        if sets.len() == 1 {
            announced = self.store.tasks_of_set(&first.place.chat, &first.manifest, SET_TASKS).await?;
        } else {
            let chats = std::slice::from_ref(&first.place.chat);
            let scope = Scope { principal: &caller.principal, chats: Some(chats) };
            announced.extend(self.store.tasks_of_hash(scope, None, &first.sha256, SET_TASKS).await?);
            announced.retain(|task| task.agent == first.agent && sets.contains(&task.set));
        }
        let own = offers.iter().filter_map(|offer| offer.producer_task.clone());
        Ok(Tasks::of(own.chain(announced.into_iter().map(|announced| announced.task))))
    }

    /// A file that these announcements list, and who else may help out with it.
    pub(super) async fn file_of(
        &self,
        caller: &Caller,
        mut offers: Vec<Offer>,
        as_of: u64,
    ) -> Result<Option<FileAccess>, StoreError> {
        let Some(first) = offers.first().cloned() else { return Ok(None) };
        // The path names its chat: others that have the bytes are other paths.
        let (places, expires_at) = (Arc::new([first.place.clone()]), first.expires_at);
        let list = async {
            match first.list.is_empty() {
                true => Ok(None),
                false => self.lists.get(&first.manifest, first.position).await,
            }
        };
        // At once: whoever asks waits for all three.
        let (tasks, others, chunks) = tokio::try_join!(
            self.tasks_of_file(caller, &offers),
            self.store.offers_of_blob(scope(caller), None, &first.sha256, TaskRule::Any, OFFERS),
            list,
        )?;
        offers.extend(others);
        // Whoever else announced the hash may help out, but only with bytes that this entry's own list vouches for.
        offers.retain(|offer| (offer.size, &offer.list) == (first.size, &first.list));
        let sources = sources::of(&self.store, offers).await?;
        if sources.is_empty() && first.kind == EntryKind::File {
            return Ok(None);
        }
        Ok(Some(FileAccess {
            agent: first.agent,
            tasks,
            readable: Readable { sha256: first.sha256, size: first.size, chunks, sources, places, expires_at, as_of },
            path: first.path.into(),
            media_type: first.media_type.into(),
            kind: first.kind,
        }))
    }
}
