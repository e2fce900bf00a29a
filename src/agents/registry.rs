//! Which agent is reachable over which connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::mapref::entry::Entry;
use dashmap::{DashMap, DashSet};
use tokio::sync::Notify;

use super::mailbox::Mailbox;
use super::slots::Slots;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::protocol::{AgentName, Principal, SessionId};

/// One connection, never used again: a late close of an old connection cannot remove a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// The number, for log lines.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Sessions, announcements, and bulk where there is no data connection.
    Control,
    /// Bulk only.
    Data,
}

impl Kind {
    /// The kind's name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Data => "data",
        }
    }
}

/// The way to one agent: over its data connection when it holds one, else over its control connection.
#[derive(Debug, Clone)]
pub struct Link {
    /// The connection.
    pub id: ConnectionId,
    /// Where reads are posted.
    pub mailbox: Arc<Mailbox>,
    /// The slots of the agent's control socket.
    pub slots: Arc<Slots>,
}

/// An agent that is connected, for people.
#[derive(Debug, Clone)]
pub struct Online {
    /// Who.
    pub agent: Principal,
    /// The name its latest connection used.
    pub name: AgentName,
    /// Since when, Unix milliseconds.
    pub since: i64,
    /// When something last came from it, Unix milliseconds.
    pub heard_at: i64,
    /// Whether it holds a control connection.
    pub control: bool,
    /// Whether it holds a data connection.
    pub data: bool,
}

#[derive(Debug)]
struct Presence {
    name: AgentName,
    since: i64,
    control: Option<Link>,
    data: Option<Link>,
}

/// Who is connected. Removal matches the connection's own id; a newer connection of the same agent and kind takes over.
#[derive(Debug)]
pub struct Registry {
    agents: DashMap<Principal, Presence>,
    waiting: DashMap<Principal, Arc<Notify>>,
    sessions: DashSet<SessionId>,
    next: AtomicU64,
    /// The highest rate of what is asked over one agent's control socket and its data connections, in bytes a second.
    agent_rate: Option<u64>,
    metrics: Arc<Metrics>,
    events: Events,
}

impl Registry {
    /// Nobody is connected. From one that is, no more than `agent_rate` bytes a second are asked.
    pub fn new(agent_rate: Option<u64>, metrics: Arc<Metrics>, events: Events) -> Self {
        Self {
            agent_rate,
            agents: DashMap::new(),
            waiting: DashMap::new(),
            sessions: DashSet::new(),
            next: AtomicU64::new(1),
            metrics,
            events,
        }
    }

    /// An id for a new connection.
    pub fn connection_id(&self) -> ConnectionId {
        ConnectionId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Puts a connection in charge of an agent, and tells an older one of the same kind that it no longer is.
    ///
    /// The answer is the slots that the socket shares from now on: `slots` where the socket has some already, else
    /// those of the agent's other connections, whose reads the agent still counts, else new ones.
    pub fn attach(
        &self,
        agent: &Principal,
        name: &AgentName,
        (id, kind, mailbox): (ConnectionId, Kind, &Arc<Mailbox>),
        slots: Option<Arc<Slots>>,
        now: i64,
    ) -> Arc<Slots> {
        let entry = self.agents.entry(agent.clone());
        let fresh = matches!(entry, Entry::Vacant(_));
        let mut presence =
            entry.or_insert_with(|| Presence { name: name.clone(), since: now, control: None, data: None });
        let known = presence.control.as_ref().or(presence.data.as_ref()).map(|link| link.slots.clone());
        let slots = match kind {
            Kind::Control => slots.or(known),
            Kind::Data => known,
        };
        let slots = slots.unwrap_or_else(|| Slots::new(self.agent_rate));
        let link = Link { id, mailbox: mailbox.clone(), slots: slots.clone() };
        presence.name = name.clone();
        let place = match kind {
            Kind::Control => &mut presence.control,
            Kind::Data => &mut presence.data,
        };
        let old = place.replace(link).filter(|old| old.id != id);
        if fresh {
            self.metrics.agents_online.inc();
            // While nobody else can change it, so that what is told last is so.
            self.events.agent(agent, name, true);
        }
        drop(presence);
        if let Some(old) = old {
            old.mailbox.supersede(agent);
        }
        self.wake(agent);
        slots
    }

    /// A connection no longer serves an agent. Nothing happens when a newer one took over meanwhile.
    pub fn detach(&self, agent: &Principal, id: ConnectionId) {
        let Entry::Occupied(mut entry) = self.agents.entry(agent.clone()) else { return };
        let presence = entry.get_mut();
        presence.control.take_if(|link| link.id == id);
        presence.data.take_if(|link| link.id == id);
        if presence.control.is_none() && presence.data.is_none() {
            self.metrics.agents_online.dec();
            self.events.agent(agent, &presence.name, false);
            entry.remove();
        }
    }

    /// Whether this connection is the one of its kind in charge of an agent.
    pub fn is_in_charge(&self, agent: &Principal, id: ConnectionId, kind: Kind) -> bool {
        self.agents.get(agent).is_some_and(|presence| {
            let link = match kind {
                Kind::Control => &presence.control,
                Kind::Data => &presence.data,
            };
            link.as_ref().is_some_and(|link| link.id == id)
        })
    }

    /// The way to an agent, if it is online.
    pub fn link(&self, agent: &Principal) -> Option<Link> {
        let presence = self.agents.get(agent)?;
        let link = presence.data.as_ref().or(presence.control.as_ref())?;
        let slots = &presence.control.as_ref().unwrap_or(link).slots;
        Some(Link { slots: slots.clone(), ..link.clone() })
    }

    /// Whether an agent is online.
    pub fn is_online(&self, agent: &Principal) -> bool {
        self.agents.contains_key(agent)
    }

    /// Waits until an agent is online.
    pub async fn online(&self, agent: &Principal) -> Link {
        self.wait_for(agent, || self.link(agent)).await
    }

    /// Waits for an agent's control connection: its mailbox.
    pub async fn control(&self, agent: &Principal) -> Arc<Mailbox> {
        let control = || self.agents.get(agent)?.control.as_ref().map(|link| link.mailbox.clone());
        self.wait_for(agent, control).await
    }

    /// Looks again whenever the agent opens a connection.
    async fn wait_for<T>(&self, agent: &Principal, look: impl Fn() -> Option<T>) -> T {
        let waiter = Waiter { registry: self, agent, notify: self.waiting.entry(agent.clone()).or_default().clone() };
        loop {
            let changed = waiter.notify.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }

    /// Everybody who is connected, in no order.
    pub fn everybody(&self) -> Vec<Online> {
        self.agents.iter().map(|entry| online(entry.key(), entry.value())).collect()
    }

    /// One agent, if it is connected.
    pub fn get(&self, agent: &Principal) -> Option<Online> {
        self.agents.get(agent).map(|presence| online(agent, &presence))
    }

    /// Ends an agent's connections: it no longer holds its name.
    pub fn evict(&self, agent: &Principal) {
        let Entry::Occupied(entry) = self.agents.entry(agent.clone()) else { return };
        self.metrics.agents_online.dec();
        self.events.agent(agent, &entry.get().name, false);
        let presence = entry.remove();
        for link in presence.control.into_iter().chain(presence.data) {
            link.mailbox.evict(agent);
        }
    }

    /// Whether this is a control session of some connection.
    pub fn is_session(&self, session: &SessionId) -> bool {
        self.sessions.contains(session)
    }

    pub(super) fn open_session(&self, session: &SessionId) {
        self.sessions.insert(session.clone());
    }

    pub(super) fn end_session(&self, session: &SessionId) {
        self.sessions.remove(session);
    }

    fn wake(&self, agent: &Principal) {
        if let Some(waiting) = self.waiting.get(agent) {
            waiting.notify_waiters();
        }
    }
}

fn online(agent: &Principal, presence: &Presence) -> Online {
    let links = presence.control.iter().chain(&presence.data);
    Online {
        agent: agent.clone(),
        name: presence.name.clone(),
        since: presence.since,
        heard_at: links.map(|link| link.mailbox.heard_at()).max().unwrap_or(presence.since),
        control: presence.control.is_some(),
        data: presence.data.is_some(),
    }
}

/// Forgets the place to wait at when its last waiter leaves.
struct Waiter<'a> {
    registry: &'a Registry,
    agent: &'a Principal,
    notify: Arc<Notify>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // Two are left when this is the last waiter: the map's and this one's.
        self.registry.waiting.remove_if(self.agent, |_, notify| Arc::strong_count(notify) <= 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Limits;

    fn registry() -> Registry {
        let metrics = Arc::new(Metrics::new().unwrap());
        Registry::new(None, metrics.clone(), Events::new(Limits::default(), metrics))
    }

    fn agent() -> (Principal, AgentName) {
        (Principal::agent("a").unwrap(), "ada".parse().unwrap())
    }

    fn attach(registry: &Registry, kind: Kind) -> (ConnectionId, Arc<Mailbox>, Arc<Slots>) {
        let (agent, name) = agent();
        let (id, mailbox) = (registry.connection_id(), Mailbox::new());
        let slots = registry.attach(&agent, &name, (id, kind, &mailbox), None, 0);
        (id, mailbox, slots)
    }

    fn superseded(mailbox: &Mailbox) -> bool {
        !mailbox.shut().superseded.is_empty()
    }

    #[test]
    fn a_newer_connection_takes_over_and_a_late_close_changes_nothing() {
        let registry = registry();
        let (old, old_mailbox, old_slots) = attach(&registry, Kind::Control);
        let (new, _, new_slots) = attach(&registry, Kind::Control);
        assert!(superseded(&old_mailbox));
        assert!(Arc::ptr_eq(&old_slots, &new_slots), "the agent still counts the old connection's reads");
        registry.detach(&agent().0, old);
        assert_eq!(registry.link(&agent().0).unwrap().id, new);
        registry.detach(&agent().0, new);
        assert!(registry.link(&agent().0).is_none());
        assert_eq!(registry.metrics.agents_online.get(), 0);
    }

    #[test]
    fn reads_go_over_the_data_connection_with_the_control_sockets_slots() {
        let registry = registry();
        let (control, control_mailbox, slots) = attach(&registry, Kind::Control);
        let (data, _, _) = attach(&registry, Kind::Data);
        assert!(!superseded(&control_mailbox), "another kind takes nothing over");
        let link = registry.link(&agent().0).unwrap();
        assert_eq!(link.id, data);
        assert!(Arc::ptr_eq(&link.slots, &slots));
        registry.detach(&agent().0, data);
        assert_eq!(registry.link(&agent().0).unwrap().id, control);
    }

    #[test]
    fn an_evicted_agent_is_offline_and_its_connections_are_told() {
        let registry = registry();
        let (id, control, _) = attach(&registry, Kind::Control);
        let (_, data, _) = attach(&registry, Kind::Data);
        registry.evict(&agent().0);
        assert!(registry.link(&agent().0).is_none());
        assert_eq!([control.shut().evicted, data.shut().evicted], [vec![agent().0], vec![agent().0]]);
        registry.detach(&agent().0, id);
        assert_eq!(registry.metrics.agents_online.get(), 0);
    }

    #[tokio::test]
    async fn waiting_ends_when_the_agent_comes_and_leaves_nothing_behind() {
        let registry = registry();
        let principal = agent().0;
        let mut waiting = Box::pin(registry.online(&principal));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        let (id, _, _) = attach(&registry, Kind::Control);
        assert_eq!(waiting.await.id, id);
        assert!(registry.waiting.is_empty());
    }

    #[tokio::test]
    async fn leaving_early_leaves_nothing_behind() {
        let registry = registry();
        let principal = agent().0;
        {
            let mut waiting = Box::pin(registry.online(&principal));
            assert!(futures_util::poll!(&mut waiting).is_pending());
        }
        assert!(registry.waiting.is_empty());
    }
}
