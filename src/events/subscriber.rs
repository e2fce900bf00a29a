//! One reader of a chat's events.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::channel::Channel;
use super::event::{End, Event, Reset, Step, TransferEvent};
use super::hub::Events;
use super::id::EventId;
use super::log::Behind;
use crate::protocol::Principal;
use crate::store::Place;

/// Most events about a reader's own transfers that wait for it.
const TRANSFERS: usize = 256;

/// A reader, as those see it who tell it something.
pub struct Subscriber {
    pub(super) number: u64,
    /// Who reads.
    pub principal: Principal,
    /// What.
    pub place: Place,
    cut: Option<CancellationToken>,
    woken: Notify,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    transfers: VecDeque<TransferEvent>,
    overflown: bool,
    end: Option<End>,
    /// Since when something has been there for the reader, who has taken nothing.
    since: Option<Instant>,
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("principal", &self.principal).field("place", &self.place).finish()
    }
}

impl Subscriber {
    pub(super) fn new(number: u64, principal: Principal, place: Place, cut: Option<CancellationToken>) -> Arc<Self> {
        Arc::new(Self { number, principal, place, cut, woken: Notify::new(), waiting: Mutex::default() })
    }

    /// Ends the stream: what has not been taken yet is not told any more.
    pub fn end(&self, end: End) {
        let mut waiting = self.waiting();
        waiting.end.get_or_insert(end);
        waiting.transfers.clear();
        waiting.since.get_or_insert_with(Instant::now);
        drop(waiting);
        self.woken.notify_one();
    }

    /// For how long the reader has taken nothing of what is there for it.
    pub fn ignored_for(&self, now: Instant) -> Duration {
        self.waiting().since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Whether it was [`end`](Self::end)ed and has not heard of it.
    pub fn is_ended(&self) -> bool {
        self.waiting().end.is_some()
    }

    /// Cuts the response where nobody may ask whether there is more to say for as long as its reader takes nothing.
    /// Whether it can be cut.
    pub fn cut(&self) -> bool {
        self.cut.as_ref().inspect(|cut| cut.cancel()).is_some()
    }

    pub(super) fn wake(&self) {
        self.waiting().since.get_or_insert_with(Instant::now);
        self.woken.notify_one();
    }

    pub(super) fn tell(&self, transfer: &TransferEvent) {
        let mut waiting = self.waiting();
        if waiting.end.is_some() || waiting.overflown {
            return;
        }
        let pointless = |other: &&mut TransferEvent| other.id == transfer.id && other.step == Step::Go;
        if let Some(other) = waiting.transfers.iter_mut().find(pointless) {
            *other = transfer.clone();
        } else if waiting.transfers.len() < TRANSFERS / 2 || transfer.step != Step::Go {
            // How far it is will be told again; its beginning and its end will not.
            if waiting.transfers.len() >= TRANSFERS {
                waiting.overflown = true;
            } else {
                waiting.transfers.push_back(transfer.clone());
            }
        }
        waiting.since.get_or_insert_with(Instant::now);
        drop(waiting);
        self.woken.notify_one();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a reader is told next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Something happened. The id is the place to go on from.
    Event(EventId, Arc<Event>),
    /// Nothing more comes.
    End(End),
}

/// A reader's place among a chat's events. Its drop is its end.
#[derive(Debug)]
pub struct Subscription {
    events: Events,
    channel: Arc<Channel>,
    subscriber: Arc<Subscriber>,
    position: u64,
    reset: Option<Reset>,
}

impl Subscription {
    pub(super) fn new(
        events: Events,
        channel: Arc<Channel>,
        subscriber: Arc<Subscriber>,
        (position, reset): (u64, Option<Reset>),
    ) -> Self {
        Self { events, channel, subscriber, position, reset }
    }

    /// Why it does not go on from where its reader wanted.
    pub fn reset(&self) -> Option<Reset> {
        self.reset
    }

    /// The place to go on from.
    pub fn id(&self) -> EventId {
        self.channel.state().log.id(self.position)
    }

    /// Whether the chat's agents have been looked up.
    pub fn knows_agents(&self) -> bool {
        self.channel.state().knows_agents()
    }

    /// The next event. Nothing is lost when it is dropped before it answers.
    pub async fn next(&mut self) -> Next {
        loop {
            if let Some(next) = self.take() {
                return next;
            }
            self.subscriber.woken.notified().await;
        }
    }

    fn take(&mut self) -> Option<Next> {
        let state = self.channel.state();
        let mut waiting = self.subscriber.waiting();
        if let Some(end) = waiting.end {
            return Some(Next::End(end));
        }
        waiting.since = Some(Instant::now());
        match state.log.after(self.position) {
            Ok(Some(event)) => {
                self.position += 1;
                return Some(Next::Event(state.log.id(self.position), Arc::clone(event)));
            }
            Ok(None) => {}
            Err(Behind(_)) => return Some(Next::End(End::Lagged)),
        }
        if let Some(transfer) = waiting.transfers.pop_front() {
            return Some(Next::Event(state.log.id(self.position), Arc::new(Event::transfer(&transfer))));
        }
        if waiting.overflown {
            return Some(Next::End(End::Lagged));
        }
        waiting.since = None;
        None
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // However it ended: one that stopped reading was not asked whether it is too slow.
        let behind = self.channel.state().log.after(self.position).err().map_or(0, |Behind(missed)| missed);
        let overflown = u64::from(self.subscriber.waiting().overflown);
        self.events.count_dropped(behind + overflown);
        self.events.leave(&self.channel, &self.subscriber);
    }
}
