//! One chat that somebody is told about, or was a moment ago.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::event::Event;
use super::log::{Log, Most};
use super::subscriber::Subscriber;
use crate::protocol::{AgentName, Principal};
use crate::store::Place;

/// The agents of a chat, and the names that its list of sets has for them.
pub type ChatAgents = HashMap<Principal, Option<AgentName>>;

/// One chat. A chat that is made anew under the same name has another.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) place: Place,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) log: Log,
    pub(super) subscribers: Vec<Arc<Subscriber>>,
    /// Since when there is nobody.
    idle_since: Option<Instant>,
    /// None until somebody has looked them up.
    agents: Option<ChatAgents>,
    /// Counts what became known of the agents, so that what was looked up before does not undo it.
    agents_version: u64,
}

impl Channel {
    pub(super) fn new(place: Place, most: Most, now: Instant) -> Arc<Self> {
        let state = State {
            log: Log::new(rand::random(), most),
            subscribers: Vec::new(),
            idle_since: Some(now),
            agents: None,
            agents_version: 0,
        };
        Arc::new(Self { place, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everybody.
    pub(super) fn tell(&self, event: Event) {
        self.state().tell(event);
    }

    pub(super) fn join(&self, subscriber: Arc<Subscriber>) {
        let mut state = self.state();
        state.idle_since = None;
        state.subscribers.push(subscriber);
    }

    pub(super) fn leave(&self, subscriber: &Arc<Subscriber>, now: Instant) {
        let mut state = self.state();
        state.subscribers.retain(|other| !Arc::ptr_eq(other, subscriber));
        if state.subscribers.is_empty() {
            state.idle_since = Some(now);
        }
    }

    /// For how long there has been nobody; none while there is somebody.
    pub(super) fn idle_for(&self, now: Instant) -> Option<Duration> {
        self.state().idle_since.map(|since| now.saturating_duration_since(since))
    }
}

impl State {
    pub(super) fn tell(&mut self, event: Event) {
        self.log.push(Arc::new(event));
        self.subscribers.iter().for_each(|subscriber| subscriber.wake());
    }

    /// The name of an agent, when it is one of the chat's. One that holds no name is known by the name that it uses.
    pub(super) fn name_of<'a>(&'a self, agent: &Principal, used: &'a AgentName) -> Option<&'a AgentName> {
        let name = self.agents.as_ref()?.get(agent)?;
        Some(name.as_ref().unwrap_or(used))
    }

    /// An agent has a set here.
    pub(super) fn add_agent(&mut self, agent: &Principal, name: Option<&AgentName>) {
        let known = self.agents.as_ref().and_then(|agents| agents.get(agent));
        if known.is_some_and(|known| known.as_ref() == name) {
            return;
        }
        self.agents_version += 1;
        if let Some(agents) = &mut self.agents {
            agents.insert(agent.clone(), name.cloned());
        }
    }

    pub(super) fn knows_agents(&self) -> bool {
        self.agents.is_some()
    }

    pub(super) fn agents_version(&self) -> u64 {
        self.agents_version
    }

    /// Takes what was looked up, unless more became known since.
    pub(super) fn set_agents(&mut self, version: u64, agents: ChatAgents) -> bool {
        let current = self.agents_version == version;
        if current {
            self.agents = Some(agents);
        }
        current
    }
}
