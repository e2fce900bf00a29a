//! Who may open a session under which name.

use std::fmt;
use std::sync::Arc;

use crate::clock::Clock;
use crate::identity::{Identity, TokenError, Tokens};
use crate::protocol::frames::ErrorBody;
use crate::protocol::{AgentName, Principal};
use crate::store::{Claim, Store};

/// A token as it came, kept out of logs.
#[derive(Clone)]
pub struct Credential(Arc<str>);

impl Credential {
    /// Wraps a token.
    pub fn new(token: &str) -> Self {
        Self(token.into())
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

/// An agent that may open a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// Who it is.
    pub agent: Principal,
    /// The name it asked for, which is its own.
    pub name: AgentName,
}

/// Decides `session.create` and `data.hello`.
#[derive(Debug, Clone)]
pub struct Gate {
    tokens: Tokens,
    store: Store,
    clock: Clock,
}

impl Gate {
    /// A gate that knows these tokens, and names by this store.
    pub fn new(tokens: Tokens, store: Store, clock: Clock) -> Self {
        Self { tokens, store, clock }
    }

    /// Who a credential says its bearer is. It may wait for a platform's keys.
    pub async fn identify(&self, credential: Option<&Credential>) -> Result<(Principal, Option<AgentName>), ErrorBody> {
        let credential = credential.ok_or_else(no_credential)?;
        agent(self.tokens.identify(&credential.0, &self.clock).await)
    }

    /// As [`identify`](Self::identify), by what is known now.
    pub fn identify_now(&self, credential: &Credential) -> Result<(Principal, Option<AgentName>), ErrorBody> {
        agent(self.tokens.verify(&credential.0, &self.clock))
    }

    /// Admits an agent under the name it asks for. A name belongs to the first principal that held it.
    pub async fn admit(&self, credential: Option<&Credential>, name: Option<&str>) -> Result<Admitted, ErrorBody> {
        let (agent, own_name) = self.identify(credential).await?;
        let Some(name) = name else {
            return Err(ErrorBody::new("bad_request", "the frame names no agent"));
        };
        let name: AgentName =
            name.parse().map_err(|error| ErrorBody::new("bad_request", format!("session.agent: {error}")))?;
        if let Some(own_name) = own_name
            && own_name != name
        {
            let message = format!("the token is for the agent {own_name}, not for the one named");
            return Err(ErrorBody::new("forbidden", message));
        }
        match self.store.claim_name(&name, &agent, self.clock.unix_millis()).await {
            Ok(Claim::Held) => Ok(Admitted { agent, name }),
            Ok(Claim::Foreign) => Err(ErrorBody::new("forbidden", "this name belongs to another agent")),
            Err(error) => {
                tracing::warn!(%error, "cannot look an agent's name up");
                Err(ErrorBody::new("unavailable", "the gateway's database does not answer; try again"))
            }
        }
    }
}

fn no_credential() -> ErrorBody {
    ErrorBody::new("unauthorized", "a token is required: in session.token, ?token= or Authorization")
}

fn agent(verified: Result<Identity, TokenError>) -> Result<(Principal, Option<AgentName>), ErrorBody> {
    match verified {
        Ok(Identity::Agent { principal, name, .. }) => Ok((principal, name)),
        Ok(Identity::Reader(_) | Identity::Operator) => {
            Err(ErrorBody::new("forbidden", "this token is not an agent's: it has no agent_id and no scope agent"))
        }
        Err(error) => Err(ErrorBody::new(error.code(), error.to_string())),
    }
}
