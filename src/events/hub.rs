//! Which chats somebody is told about.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::channel::{Channel, ChatAgents};
use super::event::{Event, ProgressEvent, Reset, TransferEvent};
use super::subscriber::Subscriber;
use crate::metrics::Metrics;
use crate::protocol::{AgentName, ChatId, Principal};
use crate::store::Place;

/// What may be kept, and for how many.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Events kept of a chat.
    pub history: usize,
    /// Bytes of them.
    pub history_bytes: usize,
    /// How long they are kept when nobody reads them any more: for readers who come back.
    pub linger: Duration,
    /// Of how many such chats.
    pub lingering: usize,
    /// Readers at once.
    pub subscribers: usize,
    /// The same of one principal.
    pub per_principal: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            history: 256,
            history_bytes: 64 * 1024,
            linger: Duration::from_secs(5 * 60),
            lingering: 512,
            subscribers: 2048,
            per_principal: 64,
        }
    }
}

/// Tells readers what happens in their chats. Clones share everything.
#[derive(Clone)]
pub struct Events(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) limits: Limits,
    table: Mutex<Table>,
    /// The sizes of what the table holds, for those who have something to tell and nobody to tell it to.
    chats: AtomicUsize,
    subscribers: AtomicUsize,
    pub(super) metrics: Arc<Metrics>,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) channels: HashMap<ChatId, Arc<Channel>>,
    pub(super) of_principal: HashMap<Principal, usize>,
    /// By their numbers.
    pub(super) subscribers: HashMap<u64, Arc<Subscriber>>,
    pub(super) next: u64,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

impl Events {
    /// Nobody is told anything yet.
    pub fn new(limits: Limits, metrics: Arc<Metrics>) -> Self {
        let (chats, subscribers) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self(Arc::new(Inner { limits, table: Mutex::default(), chats, subscribers, metrics }))
    }

    /// Whether anybody is told what happens in a chat, or will be who comes back.
    pub fn has(&self, chat: &ChatId) -> bool {
        self.0.chats.load(Ordering::SeqCst) > 0 && self.table().channels.contains_key(chat)
    }

    /// Whether nobody at all is told anything now.
    pub fn is_quiet(&self) -> bool {
        self.0.subscribers.load(Ordering::SeqCst) == 0
    }

    /// An agent has announced a set, or finished it: the set as the chat's list shows it.
    pub fn set(&self, place: &Place, agent: &Principal, name: Option<&AgentName>, set: &impl Serialize) {
        self.of_set(place, agent, name, || Event::set(set));
    }

    /// A set that was announced before went on.
    pub fn progress(&self, place: &Place, agent: &Principal, name: Option<&AgentName>, progress: &ProgressEvent) {
        self.of_set(place, agent, name, || Event::progress(progress));
    }

    fn of_set(&self, place: &Place, agent: &Principal, name: Option<&AgentName>, event: impl FnOnce() -> Event) {
        if let Some(channel) = self.channel(&place.chat).filter(|channel| channel.place == *place) {
            let event = event();
            let mut state = channel.state();
            state.add_agent(agent, name);
            state.tell(event);
        }
    }

    /// Something happened in a chat that cannot be told.
    pub fn lose(&self, chat: &ChatId) {
        if let Some(channel) = self.channel(chat) {
            channel.tell(Event::reset(Reset::Lost));
        }
    }

    /// An agent came or went, which its chats are told. `name` is the one that its connection uses.
    pub fn agent(&self, agent: &Principal, name: &AgentName, online: bool) {
        if self.0.chats.load(Ordering::SeqCst) == 0 {
            return;
        }
        // Under the lock, so that two changes of one agent are told in the order in which they were handed in.
        for channel in self.table().channels.values() {
            let mut state = channel.state();
            let event = state.name_of(agent, name).map(|name| Event::agent(name.as_str(), online));
            if let Some(event) = event {
                state.tell(event);
            }
        }
    }

    /// A transfer began, went on or ended, which its reader is told in the chats that allow it.
    pub fn transfer(&self, places: &[Place], reader: &Principal, transfer: &TransferEvent) {
        for place in places {
            let Some(channel) = self.channel(&place.chat).filter(|channel| channel.place == *place) else { continue };
            let state = channel.state();
            let mine = state.subscribers.iter().filter(|subscriber| subscriber.principal == *reader);
            mine.for_each(|subscriber| subscriber.tell(transfer));
        }
    }

    /// The state of what is known of a chat's agents, for [`set_agents`](Self::set_agents). None where nobody wants to
    /// know.
    pub fn agents_version(&self, chat: &ChatId) -> Option<u64> {
        self.channel(chat).map(|channel| channel.state().agents_version())
    }

    /// Says which agents a chat has, as they were looked up after `version`. False when more became known meanwhile:
    /// then they have to be looked up again.
    pub fn set_agents(&self, chat: &ChatId, version: u64, agents: ChatAgents) -> bool {
        self.channel(chat).is_none_or(|channel| channel.state().set_agents(version, agents))
    }

    /// Everybody who is told something.
    pub fn subscribers(&self) -> Vec<Arc<Subscriber>> {
        self.table().subscribers.values().cloned().collect()
    }

    /// Gives up the histories that nobody came back for.
    pub fn trim(&self) {
        let mut table = self.table();
        self.trim_table(&mut table, Instant::now());
    }

    pub(super) fn count_dropped(&self, events: u64) {
        self.0.metrics.events_dropped.inc_by(events);
    }

    pub(super) fn leave(&self, channel: &Arc<Channel>, subscriber: &Arc<Subscriber>) {
        let mut table = self.table();
        let now = Instant::now();
        channel.leave(subscriber, now);
        table.subscribers.remove(&subscriber.number);
        if let Entry::Occupied(mut mine) = table.of_principal.entry(subscriber.principal.clone()) {
            *mine.get_mut() -= 1;
            if *mine.get() == 0 {
                mine.remove();
            }
        }
        // No chat with somebody is without one of the subscribers.
        if table.channels.len() > table.subscribers.len() + self.0.limits.lingering {
            self.trim_table(&mut table, now);
        }
        self.publish_sizes(&table);
        drop(table);
        self.0.metrics.event_subscribers.dec();
    }

    fn trim_table(&self, table: &mut Table, now: Instant) {
        let Limits { linger, lingering, .. } = self.0.limits;
        let idle = table.channels.iter().filter_map(|(chat, channel)| Some((channel.idle_for(now)?, chat.clone())));
        let mut idle: Vec<_> = idle.collect();
        idle.sort();
        let keep = idle.iter().take(lingering).take_while(|(idle, _)| *idle < linger).count();
        for (_, chat) in idle.drain(keep..) {
            table.channels.remove(&chat);
        }
        self.publish_sizes(table);
    }

    pub(super) fn publish_sizes(&self, table: &Table) {
        self.0.chats.store(table.channels.len(), Ordering::SeqCst);
        self.0.subscribers.store(table.subscribers.len(), Ordering::SeqCst);
    }

    fn channel(&self, chat: &ChatId) -> Option<Arc<Channel>> {
        if self.0.chats.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.table().channels.get(chat).cloned()
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
