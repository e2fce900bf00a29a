use std::collections::{HashMap, HashSet};

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

use super::names::{self, TooManyNames};
use super::{Page, Store, StoreError, endpoints, rows};
use crate::protocol::{AgentName, Principal};

/// A name, and the agent that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRecord {
    /// Unique on this gateway.
    pub name: AgentName,
    /// Whose it is.
    pub principal: Principal,
    /// When it was first held, Unix milliseconds.
    pub created_at: i64,
    /// When its holder was last heard of, Unix milliseconds; while it is connected, about when that began.
    pub last_seen_at: i64,
}

/// Who holds a name that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The principal that asked: from now on, or already.
    Held,
    /// Another principal.
    Foreign,
    /// The principal that asked may hold one name only, and holds this one.
    Other(AgentName),
    /// Nobody holds it, and the principal that asked may have no further one.
    TooMany(TooManyNames),
}

/// How exactly it is noted when an agent was last seen.
const SEEN_EVERY_MS: i64 = 60_000;

const COLUMNS: &str = "name, principal, created_at, last_seen_at";

/// Which of so many principals hold a name.
pub(super) fn among(principals: usize) -> String {
    let list = rows::placeholders(1, principals);
    format!(
        "SELECT principal FROM agents WHERE principal IN ({list}) \
         UNION SELECT principal FROM endpoints WHERE principal IN ({list})"
    )
}

/// The name that a principal held first.
pub(super) const FIRST_NAME: &str = "SELECT name FROM agents WHERE principal = $1 ORDER BY created_at, name LIMIT 1";

async fn holds(conn: &mut AnyConnection, name: &AgentName, principal: &Principal) -> Result<bool, sqlx::Error> {
    let query = sqlx::query("SELECT 1 FROM agents WHERE name = $1 AND principal = $2");
    Ok(query.bind(name.as_str()).bind(principal.as_str()).fetch_optional(conn).await?.is_some())
}

/// Whatever an agent is known by.
pub(super) const KNOWS: &str = "SELECT 1 FROM agents WHERE principal = $1 \
    UNION ALL SELECT 1 FROM participants WHERE principal = $1 \
    UNION ALL SELECT 1 FROM sessions WHERE agent = $1 LIMIT 1";

/// The holders of so many names.
pub(super) fn holders_of(names: usize) -> String {
    format!("SELECT {COLUMNS} FROM agents WHERE name IN ({})", rows::placeholders(1, names))
}

fn record(row: &AnyRow) -> Result<AgentRecord, sqlx::Error> {
    Ok(AgentRecord {
        name: rows::parsed(row, "name")?,
        principal: rows::parsed(row, "principal")?,
        created_at: row.try_get("created_at")?,
        last_seen_at: row.try_get("last_seen_at")?,
    })
}

impl Store {
    /// Takes a name for a principal unless another one holds it: the first principal wins. `now` is in Unix
    /// milliseconds.
    pub async fn claim_name(&self, name: &AgentName, principal: &Principal, now: i64) -> Result<Claim, StoreError> {
        self.claim(name, principal, false, now).await
    }

    /// The same for a principal that takes no name beside those that it holds.
    pub async fn claim_only_name(
        &self,
        name: &AgentName,
        principal: &Principal,
        now: i64,
    ) -> Result<Claim, StoreError> {
        self.claim(name, principal, true, now).await
    }

    async fn claim(&self, name: &AgentName, principal: &Principal, only: bool, now: i64) -> Result<Claim, StoreError> {
        // Nearly every claim is an agent that comes back: its name changes nothing about who can read what, and agents
        // that all come back at once do not all write.
        match self.agent_by_name(name).await? {
            Some(held) if held.principal != *principal => return Ok(Claim::Foreign),
            Some(held) if now < held.last_seen_at.saturating_add(SEEN_EVERY_MS) => return Ok(Claim::Held),
            Some(_) if self.see_again(name, principal, now).await? => return Ok(Claim::Held),
            _ => {}
        }
        let (store, name, principal) = (self.clone(), name.clone(), principal.clone());
        let claim = async move {
            let mut tx = store.begin().await?;
            if only {
                store.0.dialect.lock_agent(&mut tx, &principal).await?;
                let first = sqlx::query(FIRST_NAME).bind(principal.as_str()).fetch_optional(&mut *tx).await?;
                if let Some(first) = first.map(|row| rows::parsed::<AgentName>(&row, "name")).transpose()?
                    && !holds(&mut tx, &name, &principal).await?
                {
                    return Ok(Claim::Other(first));
                }
            }
            let taken = sqlx::query("SELECT 1 FROM agents WHERE name = $1").bind(name.as_str());
            if taken.fetch_optional(&mut *tx).await?.is_none()
                && let Some(exceeded) = names::exceeded(&mut tx, &store.0.quota, &principal).await?
            {
                return Ok(Claim::TooMany(exceeded));
            }
            // One statement, so that two claims cannot pass each other.
            let held = sqlx::query(
                "INSERT INTO agents (name, principal, created_at, last_seen_at) VALUES ($1, $2, $3, $3) \
                 ON CONFLICT (name) DO UPDATE SET last_seen_at = excluded.last_seen_at \
                 WHERE agents.principal = excluded.principal",
            )
            .bind(name.as_str())
            .bind(principal.as_str())
            .bind(now)
            .execute(&mut *tx)
            .await?
            .rows_affected();
            if held > 0 {
                endpoints::note(&mut tx, &principal, now).await?;
            }
            tx.commit().await?;
            Ok(if held > 0 { Claim::Held } else { Claim::Foreign })
        };
        self.write_if(claim, |claim| *claim == Claim::Held).await
    }

    /// Notes when agents that have left were last heard of, in Unix milliseconds, under names that they still hold. Those
    /// of one connection, which are few.
    pub async fn last_seen(&self, agents: Vec<(AgentName, Principal)>, at: i64) -> Result<(), StoreError> {
        if agents.is_empty() {
            return Ok(());
        }
        let store = self.clone();
        self.note(async move {
            let mut tx = store.begin().await?;
            for (name, principal) in agents {
                let sql = "UPDATE agents SET last_seen_at = $3 \
                           WHERE name = $1 AND principal = $2 AND last_seen_at < $3";
                sqlx::query(sql).bind(name.as_str()).bind(principal.as_str()).bind(at).execute(&mut *tx).await?;
            }
            tx.commit().await
        })
        .await
    }

    /// Notes that an agent uses a name that it holds. Whether it holds it.
    async fn see_again(&self, name: &AgentName, principal: &Principal, now: i64) -> Result<bool, StoreError> {
        let (store, name, principal) = (self.clone(), name.clone(), principal.clone());
        self.note(async move {
            let mut tx = store.begin().await?;
            let seen = sqlx::query("UPDATE agents SET last_seen_at = $3 WHERE name = $1 AND principal = $2")
                .bind(name.as_str())
                .bind(principal.as_str())
                .bind(now)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok(seen.rows_affected() > 0)
        })
        .await
    }

    /// Who holds a name.
    pub async fn agent_by_name(&self, name: &AgentName) -> Result<Option<AgentRecord>, StoreError> {
        self.bounded(async {
            let sql = "SELECT name, principal, created_at, last_seen_at FROM agents WHERE name = $1";
            let found = sqlx::query(sql).bind(name.as_str()).fetch_optional(&self.0.reader).await?;
            found.as_ref().map(record).transpose()
        })
        .await
    }

    /// Gives a name to another principal. False when nobody has held it yet.
    pub async fn reassign_name(&self, name: &AgentName, principal: &Principal) -> Result<bool, StoreError> {
        let (store, name, principal) = (self.clone(), name.clone(), principal.clone());
        self.write(async move {
            let mut tx = store.begin().await?;
            let changed = sqlx::query("UPDATE agents SET principal = $2 WHERE name = $1")
                .bind(name.as_str())
                .bind(principal.as_str())
                .execute(&mut *tx)
                .await?;
            if changed.rows_affected() > 0 {
                endpoints::note(&mut tx, &principal, store.now()).await?;
            }
            tx.commit().await?;
            Ok(changed.rows_affected() > 0)
        })
        .await
    }

    /// Every name that has been held, in the database's order of names, after one of an earlier page.
    pub async fn agents(
        &self,
        after: Option<&AgentName>,
        limit: u32,
    ) -> Result<Page<AgentRecord, AgentName>, StoreError> {
        self.bounded(async {
            // The empty text sorts before every name.
            let sql = "SELECT name, principal, created_at, last_seen_at FROM agents \
                       WHERE name > $1 ORDER BY name LIMIT $2";
            let query = sqlx::query(sql).bind(after.map_or("", AgentName::as_str)).bind(i64::from(limit) + 1);
            let found = query.fetch_all(&self.0.reader).await?;
            let items = found.iter().map(record).collect::<Result<Vec<_>, _>>()?;
            Ok(Page::cut(items, limit, |agent| agent.name.clone()))
        })
        .await
    }

    /// Whether an agent holds a name, takes part in a chat, or has had a session bound.
    pub async fn knows_agent(&self, agent: &Principal) -> Result<bool, StoreError> {
        self.bounded(async {
            let query = sqlx::query(KNOWS).bind(agent.as_str());
            Ok(query.fetch_optional(&self.0.reader).await?.is_some())
        })
        .await
    }

    /// Those of `principals` that are known: agents by a name, or by their URLs.
    pub async fn agents_among(&self, principals: &HashSet<Principal>) -> Result<HashSet<Principal>, StoreError> {
        self.bounded(async {
            let mut known = HashSet::new();
            let principals: Vec<&Principal> = principals.iter().collect();
            for some in principals.chunks(1000) {
                let mut query = sqlx::query(AssertSqlSafe(among(some.len()))).persistent(false);
                for principal in some {
                    query = query.bind(principal.as_str());
                }
                for row in query.fetch_all(&self.0.reader).await? {
                    known.insert(rows::parsed(&row, "principal")?);
                }
            }
            Ok(known)
        })
        .await
    }

    /// The holders of those of `names` that are held.
    pub async fn holders(&self, names: &[AgentName]) -> Result<HashMap<AgentName, Principal>, StoreError> {
        self.bounded(async {
            let mut holders = HashMap::new();
            for some in names.chunks(1000) {
                let mut query = sqlx::query(AssertSqlSafe(holders_of(some.len()))).persistent(false);
                for name in some {
                    query = query.bind(name.as_str());
                }
                for row in query.fetch_all(&self.0.reader).await? {
                    let AgentRecord { name, principal, .. } = record(&row)?;
                    holders.insert(name, principal);
                }
            }
            Ok(holders)
        })
        .await
    }
}
