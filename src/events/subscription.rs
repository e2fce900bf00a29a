//! A reader's place among a chat's events.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::channel::Channel;
use super::event::{End, Event, Reset};
use super::hub::{Events, Inner};
use super::id::{EventId, Since};
use super::log::{Behind, Most};
use super::subscriber::Subscriber;
use crate::protocol::Principal;
use crate::store::Place;

/// Why a reader is not told anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has as many streams as one principal may have.
    #[error("one reader has too many event streams")]
    TooManyOfOne,
    /// There are as many as there may be.
    #[error("there are too many event streams")]
    TooMany,
}

impl Events {
    /// Tells a reader what happens in a chat from now on, or from a place on. It may: whoever asks for it knows.
    ///
    /// `cut` ends a response that may not be asked for its next bytes for as long as its reader takes none.
    ///
    /// # Errors
    /// When there are too many.
    pub fn subscribe(
        &self,
        principal: &Principal,
        place: &Place,
        since: Since,
        cut: Option<CancellationToken>,
    ) -> Result<Subscription, Refused> {
        let Inner { limits, metrics, .. } = &*self.0;
        let mut table = self.table();
        if table.subscribers.len() >= limits.subscribers {
            return Err(Refused::TooMany);
        }
        let mine = table.of_principal.entry(principal.clone()).or_default();
        if *mine >= limits.per_principal {
            return Err(Refused::TooManyOfOne);
        }
        *mine += 1;
        let most = Most { events: limits.history, bytes: limits.history_bytes };
        let channel = match table.channels.entry(place.chat.clone()) {
            Entry::Occupied(there) if there.get().place == *place => Arc::clone(there.get()),
            // The chat was made anew, and what happened in the old one is none of the new one's business.
            entry => entry.insert_entry(Channel::new(place.clone(), most, Instant::now())).get().clone(),
        };
        table.next += 1;
        let subscriber = Subscriber::new(table.next, principal.clone(), place.clone(), cut);
        table.subscribers.insert(subscriber.number, Arc::clone(&subscriber));
        let from = channel.state().log.resume(since);
        channel.join(Arc::clone(&subscriber));
        self.publish_sizes(&table);
        drop(table);
        metrics.event_subscribers.inc();
        Ok(Subscription::new(self.clone(), channel, subscriber, from))
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
