//! Who is connected.

use crate::protocol::{AgentName, Principal, SessionId};

/// A control session that an agent holds on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// The session.
    pub id: SessionId,
    /// Whose it is.
    pub agent: Principal,
    /// The name it was opened under.
    pub name: AgentName,
}
