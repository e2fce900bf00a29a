//! How many names one agent, and the agents of one host, may take.

use sqlx::AnyConnection;

use super::{Quota, rows};
use crate::protocol::{Principal, plain_url};

/// Why a name is not given to an agent that nobody else holds it against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooManyNames {
    /// The agent holds as many as it may.
    Agent,
    /// As many agents at its host hold one as may before anybody lets them into a chat.
    Host,
}

/// The names of one agent, as far as they are counted.
pub(super) const OF_AGENT: &str =
    "SELECT count(*) AS count FROM (SELECT 1 FROM agents WHERE principal = $1 LIMIT $2) hits";

/// The agents at one host and port that hold a name, are in no chat, and have had no session bound.
pub(super) const STRANGERS_AT: &str = "SELECT count(*) AS count FROM (SELECT 1 FROM endpoints e \
    WHERE e.authority = $1 AND e.announced = 0 \
    AND EXISTS (SELECT 1 FROM agents a WHERE a.principal = e.principal) \
    AND NOT EXISTS (SELECT 1 FROM participants p WHERE p.principal = e.principal) \
    AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.agent = e.principal) LIMIT $2) hits";

/// Whether an agent may take one more name, in the transaction in which it does. Some that come at once may all pass.
pub(super) async fn exceeded(
    conn: &mut AnyConnection,
    quota: &Quota,
    agent: &Principal,
) -> Result<Option<TooManyNames>, sqlx::Error> {
    let names = count(conn, OF_AGENT, agent.as_str(), quota.names).await?;
    if names >= quota.names {
        return Ok(Some(TooManyNames::Agent));
    }
    let Some(authority) = agent.agent_url().and_then(plain_url::authority) else { return Ok(None) };
    let let_in = sqlx::query(super::quota::LET_IN).bind(agent.as_str()).fetch_optional(&mut *conn).await?;
    // Who holds a name already is counted, and takes nobody else's place with another.
    if names > 0 || let_in.is_some() {
        return Ok(None);
    }
    let strangers = count(conn, STRANGERS_AT, &authority, quota.named_strangers_of_host).await?;
    Ok((strangers >= quota.named_strangers_of_host).then_some(TooManyNames::Host))
}

async fn count(conn: &mut AnyConnection, sql: &'static str, of: &str, most: u64) -> Result<u64, sqlx::Error> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    rows::unsigned(&sqlx::query(sql).bind(of).bind(most).fetch_one(conn).await?, "count")
}
