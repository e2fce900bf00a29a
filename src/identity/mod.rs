//! Who is calling.

use std::sync::Arc;

use crate::protocol::{ChatId, Principal};

/// An authenticated principal on one request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Who it is.
    pub principal: Principal,
    /// The only chats the credential is good for, when it names any.
    pub chats: Option<Arc<[ChatId]>>,
}

impl Caller {
    /// Whether the credential itself is good for this chat. Being a participant is another question.
    pub fn covers(&self, chat: &ChatId) -> bool {
        self.chats.as_ref().is_none_or(|chats| chats.contains(chat))
    }
}
