//! What a chat's readers are told about its sets and its agents. Nothing is looked up for a chat that nobody is told
//! about.

use super::list::item;
use super::{Accepted, Sets};
use crate::events::ProgressEvent;
use crate::protocol::{ChatId, Principal, SessionId};
use crate::store::StoreError;

/// Most sets told one by one when a session is bound: who has to be told of more, asks for the list.
const ONE_BY_ONE: u32 = 64;

impl Sets {
    /// Tells the chat of a set that was just kept.
    pub(super) async fn tell(&self, accepted: &Accepted) {
        if let (Some(id), Some(chat)) = (accepted.id, &accepted.chat)
            && self.events.has(chat)
        {
            self.tell_set(chat, id, accepted.new).await;
        }
    }

    /// Tells a chat of the sets that came to it with a session.
    pub async fn tell_bound(&self, agent: &Principal, session: &SessionId, chat: &ChatId) {
        if !self.events.has(chat) {
            return;
        }
        match self.store.announcements_of((agent, session), chat, ONE_BY_ONE + 1).await {
            Ok(all) if all.len() <= ONE_BY_ONE as usize => {
                for id in all {
                    self.tell_set(chat, id, true).await;
                }
            }
            Ok(_) => {
                self.events.lose(chat);
                self.look_up_agents_or_lose(chat).await;
            }
            Err(error) => self.lose(chat, &error),
        }
    }

    /// Looks up which agents a chat has, where somebody wants to know of their coming and going: at first, and when its
    /// participants changed.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn look_up_agents(&self, chat: &ChatId) -> Result<(), StoreError> {
        // Again when another set came meanwhile.
        while let Some(version) = self.events.agents_version(chat) {
            if self.events.set_agents(chat, version, self.store.agents_of(chat).await?) {
                break;
            }
        }
        Ok(())
    }

    /// The same, where nobody waits for it.
    pub async fn look_up_agents_or_lose(&self, chat: &ChatId) {
        if let Err(error) = self.look_up_agents(chat).await {
            self.lose(chat, &error);
        }
    }

    async fn tell_set(&self, chat: &ChatId, id: i64, new: bool) {
        let (place, set) = match self.store.set(id).await {
            Ok(Some(found)) => found,
            // Another one has taken its place, and its chat is told of that one.
            Ok(None) => return,
            Err(error) => return self.lose(chat, &error),
        };
        let (agent, name, task_id) = (set.agent.clone(), set.agent_name.clone(), set.task.clone());
        let mut item = item(set, self.store.now());
        match item.progress {
            Some(progress) if !new => {
                let event = ProgressEvent { sha256: item.sha256, task_id, agent: item.agent, progress };
                self.events.progress(&place, &agent, name.as_ref(), &event);
            }
            _ => {
                item.online = (self.is_online)(&agent);
                self.events.set(&place, &agent, name.as_ref(), &item);
                // It may have come or gone while nobody knew yet that the chat wants to know.
                if (self.is_online)(&agent) != item.online {
                    item.online = !item.online;
                    self.events.set(&place, &agent, name.as_ref(), &item);
                }
            }
        }
    }

    fn lose(&self, chat: &ChatId, error: &StoreError) {
        tracing::warn!(%error, "readers of a chat are told to ask again, for want of the database");
        self.events.lose(chat);
    }
}
