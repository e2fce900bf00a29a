use sqlx::{AnyConnection, Row as _};

use super::rows;
use crate::protocol::plain_url;
use crate::protocol::{ChatId, Principal, SessionId, Sha256, TaskId};

/// How much may have been announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// By one agent.
    pub agent: Amount,
    /// In one chat, by all agents.
    pub chat: Amount,
    /// How much of that one agent may take, in percent: the others have the rest, whatever it announces.
    pub chat_agent_percent: u8,
    /// Bytes of one agent's manifests, which is what the database holds of a set.
    pub manifest_bytes: u64,
    /// One agent's sets that are in no chat.
    pub unbound: u64,
    /// Entries of these: their versions are given out in one go, when the session is bound.
    pub unbound_entries: u64,
    /// The same of agents known by their URLs that nobody has let into a chat: of those at one host and port, for whoever
    /// has a web server has as many URLs as they like, and of all.
    pub strangers_of_host: Unbound,
    /// Of all such agents.
    pub strangers: Unbound,
    /// Names of one agent.
    pub names: u64,
    /// Agents known by their URLs at one host and port that hold names, and that nobody has let into a chat.
    pub named_strangers_of_host: u64,
}

/// What sets that are in no chat are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unbound {
    /// Sets.
    pub sets: u64,
    /// Bytes of their manifests.
    pub manifest_bytes: u64,
}

/// What sets are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// Sets.
    pub sets: u64,
    /// Entries of all of them.
    pub entries: u64,
    /// Bytes of all entries, to the next KiB for each set. They lie with the agents, not here.
    pub bytes: u64,
}

impl Amount {
    /// What there is too much of.
    fn exceeded(&self, sets: u64, entries: u64, kib: u64) -> Option<&'static str> {
        if sets > self.sets {
            Some("sets")
        } else if entries > self.entries {
            Some("entries")
        } else if kib > self.bytes / 1024 {
            Some("bytes")
        } else {
            None
        }
    }

    /// So much of it, and at least one of what it has any of.
    fn percent(&self, percent: u8) -> Self {
        let part = |amount: u64| {
            let part = u128::from(amount) * u128::from(percent) / 100;
            u64::try_from(part).unwrap_or(u64::MAX).max(amount.min(1))
        };
        Self { sets: part(self.sets), entries: part(self.entries), bytes: part(self.bytes) }
    }
}

impl Quota {
    /// Which part of a chat's quota there is too much of, by what all agents have in it, and one of them.
    fn exceeded_in_chat(&self, all: Counted, of_agent: Counted) -> Option<Exceeded> {
        let share = self.chat.percent(self.chat_agent_percent);
        let too_many = self.chat.exceeded(all.sets, all.entries, all.kib).map(Exceeded::Chat);
        too_many.or_else(|| share.exceeded(of_agent.sets, of_agent.entries, of_agent.kib).map(Exceeded::Share))
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            agent: Amount { sets: 10_000, entries: 5_000_000, bytes: 1 << 50 },
            chat: Amount { sets: 20_000, entries: 10_000_000, bytes: 2 << 50 },
            chat_agent_percent: 50,
            manifest_bytes: 4 << 30,
            unbound: 1000,
            unbound_entries: 50_000,
            strangers_of_host: Unbound { sets: 2000, manifest_bytes: 256 << 20 },
            strangers: Unbound { sets: 20_000, manifest_bytes: 4 << 30 },
            names: 256,
            named_strangers_of_host: 2000,
        }
    }
}

/// Which part of a quota is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// The agent has as many of these as it may have.
    Agent(&'static str),
    /// The chat has as many of these as it may have.
    Chat(&'static str),
    /// The agent has as many of these in the chat as one agent may have there.
    Share(&'static str),
    /// Agents that nobody has let into a chat have as many of these as they may have together.
    Strangers(&'static str),
}

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Agent(what) => write!(f, "the agent may not announce more {what}"),
            Self::Chat(what) => write!(f, "the chat may not hold more {what}"),
            Self::Share(what) => write!(f, "one agent may not have more {what} in the chat"),
            Self::Strangers(what) => {
                write!(f, "agents that are in no chat here may not announce more {what}: bind a session of this one's")
            }
        }
    }
}

/// What a set counts for.
pub(super) struct Weight {
    pub(super) manifest: Sha256,
    /// Of the manifest and those nested in it.
    pub(super) manifest_bytes: u64,
    pub(super) expires_at: Option<i64>,
    pub(super) entries: u64,
    pub(super) kib: u64,
}

impl Weight {
    fn counted(&self) -> Counted {
        Counted { sets: 1, entries: self.entries, kib: self.kib }
    }
}

/// Where a set is to count.
pub(super) struct Here<'a> {
    pub(super) agent: &'a Principal,
    pub(super) task: Option<&'a TaskId>,
    /// The place as `FIND` writes it.
    pub(super) place: &'a str,
    pub(super) chat: Option<&'a ChatId>,
}

/// What an agent has announced, without what a new announcement of the task would supersede.
pub(super) const OF_AGENT: &str = "SELECT count(*) AS sets, CAST(COALESCE(SUM(entries), 0) AS BIGINT) AS entries, \
    CAST(COALESCE(SUM(announced_kib), 0) AS BIGINT) AS kib, \
    CAST(COALESCE(SUM(manifest_size), 0) AS BIGINT) AS manifest_bytes, \
    CAST(COALESCE(SUM(CASE WHEN chat IS NULL THEN 1 ELSE 0 END), 0) AS BIGINT) AS unbound, \
    CAST(COALESCE(SUM(CASE WHEN chat IS NULL THEN entries ELSE 0 END), 0) AS BIGINT) AS unbound_entries \
    FROM announcements WHERE agent = $1 AND NOT (COALESCE(task_id, '') = $2 AND $2 <> '' AND versioned = 0 \
    AND COALESCE(done, 0) < COALESCE(total, 0) AND COALESCE('c:' || chat, 's:' || session_id, '') = $3)";

/// What a chat holds, without the same, and what of that is this agent's.
pub(super) const OF_CHAT: &str = "SELECT count(*) AS sets, CAST(COALESCE(SUM(entries), 0) AS BIGINT) AS entries, \
    CAST(COALESCE(SUM(announced_kib), 0) AS BIGINT) AS kib, \
    CAST(COALESCE(SUM(CASE WHEN agent = $2 THEN 1 ELSE 0 END), 0) AS BIGINT) AS own_sets, \
    CAST(COALESCE(SUM(CASE WHEN agent = $2 THEN entries ELSE 0 END), 0) AS BIGINT) AS own_entries, \
    CAST(COALESCE(SUM(CASE WHEN agent = $2 THEN announced_kib ELSE 0 END), 0) AS BIGINT) AS own_kib \
    FROM announcements WHERE chat = $1 AND NOT (agent = $2 AND COALESCE(task_id, '') = $3 AND $3 <> '' \
    AND versioned = 0 AND COALESCE(done, 0) < COALESCE(total, 0))";

/// Whether somebody has let an agent into a chat, or bound a session of its.
pub(super) const LET_IN: &str = "SELECT 1 FROM participants WHERE principal = $1 \
    UNION ALL SELECT 1 FROM sessions WHERE agent = $1 LIMIT 1";

/// What agents known by their URLs have announced into no chat: those at one host and port, and all.
pub(super) const UNBOUND_AT: &str = "SELECT count(*) AS sets, \
    CAST(COALESCE(SUM(manifest_size), 0) AS BIGINT) AS manifest_bytes FROM announcements WHERE chat IS NULL \
    AND agent IN (SELECT principal FROM endpoints WHERE authority = $1 AND announced = 0)";
pub(super) const UNBOUND: &str = "SELECT count(*) AS sets, \
    CAST(COALESCE(SUM(manifest_size), 0) AS BIGINT) AS manifest_bytes FROM announcements WHERE chat IS NULL \
    AND agent LIKE 'agent:http%'";

/// What waits for a session of an agent to be bound.
pub(super) const WAITING: &str = "SELECT count(*) AS sets, CAST(COALESCE(SUM(entries), 0) AS BIGINT) AS entries, \
    CAST(COALESCE(SUM(announced_kib), 0) AS BIGINT) AS kib \
    FROM announcements WHERE agent = $1 AND session_id = $2 AND chat IS NULL";

/// Which part of a quota a set would exceed. Sets that it supersedes do not count: they make way in the same
/// transaction. Other agents may announce into the same chat meanwhile, which [`exceeded_in_chat`] tells once they are
/// held off.
pub(super) async fn exceeded(
    conn: &mut AnyConnection,
    quota: &Quota,
    here: &Here<'_>,
    adds: &Weight,
) -> Result<Option<Exceeded>, sqlx::Error> {
    let task = here.task.map_or("", TaskId::as_str);
    let used =
        sqlx::query(OF_AGENT).bind(here.agent.as_str()).bind(task).bind(here.place).fetch_one(&mut *conn).await?;
    let of = |column: &str| used.try_get::<i64, _>(column).map(i64::unsigned_abs);
    let above = |used: u64, adds: u64, limit: u64| used.saturating_add(adds) > limit;
    let with = Counted::of(&used, ["sets", "entries", "kib"])?.plus(adds.counted());
    if let Some(what) = quota.agent.exceeded(with.sets, with.entries, with.kib) {
        return Ok(Some(Exceeded::Agent(what)));
    }
    if above(of("manifest_bytes")?, adds.manifest_bytes, quota.manifest_bytes) {
        return Ok(Some(Exceeded::Agent("bytes of manifests")));
    }
    if here.chat.is_none() {
        return Ok(if above(of("unbound")?, 1, quota.unbound) {
            Some(Exceeded::Agent("sets whose session is not bound to a chat"))
        } else if above(of("unbound_entries")?, adds.entries, quota.unbound_entries) {
            Some(Exceeded::Agent("entries of sets whose session is not bound to a chat"))
        } else {
            exceeded_by_strangers(conn, quota, here.agent, adds).await?
        });
    }
    exceeded_in_chat(conn, quota, here, adds).await
}

/// Which part of the quota of strangers one more of their sets would exceed. (Two of different agents that come at once
/// may both pass.)
async fn exceeded_by_strangers(
    conn: &mut AnyConnection,
    quota: &Quota,
    agent: &Principal,
    adds: &Weight,
) -> Result<Option<Exceeded>, sqlx::Error> {
    let Some(authority) = agent.agent_url().and_then(plain_url::authority) else { return Ok(None) };
    if sqlx::query(LET_IN).bind(agent.as_str()).fetch_optional(&mut *conn).await?.is_some() {
        return Ok(None);
    }
    let of_host = sqlx::query(UNBOUND_AT).bind(authority).fetch_one(&mut *conn).await?;
    let of_all = sqlx::query(UNBOUND).fetch_one(conn).await?;
    for (used, limit) in [(of_host, &quota.strangers_of_host), (of_all, &quota.strangers)] {
        if rows::unsigned(&used, "sets")? >= limit.sets {
            return Ok(Some(Exceeded::Strangers("sets")));
        }
        if rows::unsigned(&used, "manifest_bytes")?.saturating_add(adds.manifest_bytes) > limit.manifest_bytes {
            return Ok(Some(Exceeded::Strangers("bytes of manifests")));
        }
    }
    Ok(None)
}

/// Which part of its chat's quota a set would exceed.
pub(super) async fn exceeded_in_chat(
    conn: &mut AnyConnection,
    quota: &Quota,
    here: &Here<'_>,
    adds: &Weight,
) -> Result<Option<Exceeded>, sqlx::Error> {
    let Some(chat) = here.chat else { return Ok(None) };
    let (all, own) = held(conn, chat, here.agent, here.task.map_or("", TaskId::as_str)).await?;
    Ok(quota.exceeded_in_chat(all.plus(adds.counted()), own.plus(adds.counted())))
}

/// Which part of its quota a chat would exceed with what waits for a session.
pub(super) async fn exceeded_by_waiting(
    conn: &mut AnyConnection,
    quota: &Quota,
    chat: &ChatId,
    (agent, session): (&Principal, &SessionId),
) -> Result<Option<Exceeded>, sqlx::Error> {
    let adds = sqlx::query(WAITING).bind(agent.as_str()).bind(session.as_str()).fetch_one(&mut *conn).await?;
    let adds = Counted::of(&adds, ["sets", "entries", "kib"])?;
    if adds.sets == 0 {
        return Ok(None);
    }
    let (all, own) = held(conn, chat, agent, "").await?;
    Ok(quota.exceeded_in_chat(all.plus(adds), own.plus(adds)))
}

/// What a chat holds, and what of that is the agent's, without what a new set of the task would supersede.
async fn held(
    conn: &mut AnyConnection,
    chat: &ChatId,
    agent: &Principal,
    task: &str,
) -> Result<(Counted, Counted), sqlx::Error> {
    let held = sqlx::query(OF_CHAT).bind(chat.as_str()).bind(agent.as_str()).bind(task).fetch_one(conn).await?;
    let own = Counted::of(&held, ["own_sets", "own_entries", "own_kib"])?;
    Ok((Counted::of(&held, ["sets", "entries", "kib"])?, own))
}

/// What some sets come to.
#[derive(Debug, Clone, Copy)]
struct Counted {
    sets: u64,
    entries: u64,
    kib: u64,
}

impl Counted {
    fn of(row: &sqlx::any::AnyRow, [sets, entries, kib]: [&str; 3]) -> Result<Self, sqlx::Error> {
        let of = |column| rows::unsigned(row, column);
        Ok(Self { sets: of(sets)?, entries: of(entries)?, kib: of(kib)? })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            sets: self.sets.saturating_add(other.sets),
            entries: self.entries.saturating_add(other.entries),
            kib: self.kib.saturating_add(other.kib),
        }
    }
}
