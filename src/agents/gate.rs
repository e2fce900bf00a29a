//! Who may open a session under which name.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::clock::Clock;
use crate::identity::{Identity, Refusal, Signatures, TokenError, Tokens};
use crate::protocol::frames::ErrorBody;
use crate::protocol::{AgentName, Principal};
use crate::store::{Claim, Store, StoreError, TooManyNames};

/// What an agent brought to prove who it is.
#[derive(Clone)]
pub enum Credential {
    /// A token as it came, kept out of logs.
    Token(Arc<str>),
    /// A signature that was verified: who signed, and the one name that it opens sessions under on this connection.
    Signed(Principal, Arc<OnceLock<AgentName>>),
    /// One that was refused already, and why.
    Refused(Arc<ErrorBody>),
}

impl Credential {
    /// Wraps a token.
    pub fn token(token: &str) -> Self {
        Self::Token(token.into())
    }

    /// A connection of the agent that signed its upgrade.
    pub fn signed(agent: Principal) -> Self {
        Self::Signed(agent, Arc::default())
    }

    /// What was refused before the connection was there to say so.
    pub fn refused(error: ErrorBody) -> Self {
        Self::Refused(Arc::new(error))
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
    /// Whose agent it is, where its token says so.
    pub owner: Option<Arc<str>>,
}

/// What a credential proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proven {
    /// Who its bearer is.
    pub agent: Principal,
    /// The one name it is good for; none where it is good for any.
    pub name: Option<AgentName>,
    /// Whose agent that is, where it says so.
    pub owner: Option<Arc<str>>,
}

/// Decides `session.create` and `data.hello`.
#[derive(Debug, Clone)]
pub struct Gate {
    tokens: Tokens,
    signatures: Signatures,
    store: Store,
    clock: Clock,
}

impl Gate {
    /// A gate that knows these tokens, names by this store, and the keys of those that sign by `signatures`.
    pub fn new(tokens: Tokens, signatures: Signatures, store: Store, clock: Clock) -> Self {
        Self { tokens, signatures, store, clock }
    }

    /// Who a credential says its bearer is. It may wait for a platform's keys.
    pub async fn identify(&self, credential: Option<&Credential>) -> Result<Proven, ErrorBody> {
        match credential.ok_or_else(no_credential)? {
            Credential::Token(token) => agent(self.tokens.identify(token, &self.clock).await),
            Credential::Signed(agent, _) => Ok(Proven { agent: agent.clone(), name: None, owner: None }),
            Credential::Refused(error) => Err(ErrorBody::clone(error)),
        }
    }

    /// Who a token says its bearer is, by what is known now.
    pub fn identify_now(&self, token: &str) -> Result<Proven, ErrorBody> {
        agent(self.tokens.verify(token, &self.clock))
    }

    /// Admits an agent under the name it asks for. A name belongs to the first principal that held it.
    pub async fn admit(&self, credential: Option<&Credential>, name: Option<&str>) -> Result<Admitted, ErrorBody> {
        let Proven { agent, name: own_name, owner } = self.identify(credential).await?;
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
        let now = self.clock.unix_millis();
        let claim = match credential {
            // The first name that it asked for on its connection, and one that it holds once it holds any: another agent
            // on the same connection would otherwise pass as this one.
            Some(Credential::Signed(_, once)) => {
                let first = once.get_or_init(|| name.clone());
                if first != &name {
                    return Err(foreign(first));
                }
                self.store.claim_only_name(&name, &agent, now).await
            }
            _ => self.store.claim_name(&name, &agent, now).await,
        };
        match claim.map_err(|error| unavailable(&error))? {
            Claim::Held => {}
            Claim::Foreign => return Err(ErrorBody::new("forbidden", "this name belongs to another agent")),
            Claim::Other(known) => return Err(foreign(&known)),
            Claim::TooMany(of) => return Err(too_many(of)),
        }
        if matches!(credential, Some(Credential::Signed(..))) {
            // It has a name now, so its keys are to be known for good.
            self.signatures.keep_keys(&agent).await.map_err(|refusal| match refusal {
                Refusal::Signature(_) => ErrorBody::new("unauthorized", refusal.to_string()),
                _ => ErrorBody::new("unavailable", refusal.to_string()),
            })?;
        }
        Ok(Admitted { agent, name, owner })
    }

    /// Notes that agents that have left were last heard of at this time, in Unix milliseconds.
    pub async fn left(&self, agents: Vec<(AgentName, Principal)>, heard_at: i64) {
        if let Err(error) = self.store.last_seen(agents, heard_at).await {
            tracing::debug!(%error, "cannot note when an agent was last heard of");
        }
    }
}

fn foreign(known: &AgentName) -> ErrorBody {
    let message = format!("the signature proves the agent {known}; another agent here needs a token of its own");
    ErrorBody::new("forbidden", message)
}

fn too_many(of: TooManyNames) -> ErrorBody {
    let message = match of {
        TooManyNames::Agent => "the agent holds as many names as one may: use one of them",
        TooManyNames::Host => {
            "agents at this one's host hold as many names as they may while they are in no chat here: \
             have an operator let this one into a chat"
        }
    };
    ErrorBody::new("quota_exceeded", message)
}

fn no_credential() -> ErrorBody {
    ErrorBody::new(
        "unauthorized",
        "a token is required, in session.token, ?token= or Authorization, or a signature of the upgrade",
    )
}

fn agent(verified: Result<Identity, TokenError>) -> Result<Proven, ErrorBody> {
    match verified {
        Ok(Identity::Agent { principal: agent, name, owner }) => {
            Ok(Proven { agent, name, owner: owner.map(Into::into) })
        }
        Ok(Identity::Reader(_) | Identity::Operator) => {
            Err(ErrorBody::new("forbidden", "this token is not an agent's: it has no agent_id and no scope agent"))
        }
        Err(error) => Err(ErrorBody::new(error.code(), error.to_string())),
    }
}

fn unavailable(error: &StoreError) -> ErrorBody {
    tracing::warn!(%error, "cannot look an agent's name up");
    ErrorBody::new("unavailable", "the gateway's database does not answer; try again")
}
