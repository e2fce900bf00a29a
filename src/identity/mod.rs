//! Who is calling: what a credential proves. What someone may read is decided elsewhere.

mod file;
mod handed;
mod key;
mod key_sets;
mod nonces;
mod opaque;
mod secret;
mod signatures;
pub mod token;

use std::sync::Arc;

pub use handed::HandedOut;
pub use key::{GatewayKey, KeyError};
pub use opaque::{OpaqueKey, OpaqueSecret, Purpose};
pub use secret::SecretError;
pub use signatures::{Refusal, Signatures, SignedAgents};
pub use token::platform::{KeySetError, Platform, PlatformOptions};
pub use token::{IssueError, TokenError, Tokens};

use crate::protocol::{AgentName, ChatId, Principal};

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

/// What a credential proves its bearer to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// An agent.
    Agent {
        /// `agent:<agent_id>` by token, `agent:<agent URL>` by signature.
        principal: Principal,
        /// The only name it may open a session under, when its credential carries one.
        name: Option<AgentName>,
        /// Whose agent it is, in the platform's own words. Never the agent itself.
        owner: Option<String>,
    },
    /// Someone who reads.
    Reader(Caller),
    /// The platform's operator, who is no principal and reads nothing.
    Operator,
}

impl Identity {
    /// The caller that this is on routes for readers: an agent reads as itself, an operator not at all.
    pub fn caller(self) -> Option<Caller> {
        match self {
            Self::Agent { principal, .. } => Some(Caller { principal, chats: None }),
            Self::Reader(caller) => Some(caller),
            Self::Operator => None,
        }
    }
}
