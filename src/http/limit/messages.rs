//! How much of agents' long messages may be on its way at once: a message is held until its last byte is here, which
//! its sender may keep back.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::protocol::Principal;

/// KiB that may be held of messages of agents that are known here, and of those that did not say who they are before
/// their connection was taken.
const KNOWN_KIB: usize = 256 * 1024;
const STRANGERS_KIB: usize = 32 * 1024;
/// Long messages of one sender at once: an agent has one control connection, and two for a moment.
const EACH: usize = 2;

/// Who sends a message, as far as is known before its connection has a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Sender {
    /// An agent whose credential came with the upgrade.
    Agent(Principal),
    /// Whoever has this address.
    Stranger(IpAddr),
}

/// The room for long messages.
#[derive(Debug)]
pub(super) struct Messages {
    known: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    senders: DashMap<Sender, Weak<Semaphore>>,
}

impl Default for Messages {
    fn default() -> Self {
        let room = |kib| Arc::new(Semaphore::new(kib));
        Self { known: room(KNOWN_KIB), strangers: room(STRANGERS_KIB), senders: DashMap::new() }
    }
}

impl Messages {
    pub(super) fn share(self: &Arc<Self>, sender: Sender) -> Share {
        let mut places = self.senders.entry(sender.clone()).or_default();
        let own = places.upgrade().unwrap_or_else(|| Arc::new(Semaphore::new(EACH)));
        *places = Arc::downgrade(&own);
        drop(places);
        let all = match sender {
            Sender::Agent(_) => Arc::clone(&self.known),
            Sender::Stranger(_) => Arc::clone(&self.strangers),
        };
        Share { own, all, sender, of: Arc::clone(self) }
    }
}

/// What the connections of one sender share.
#[derive(Debug)]
pub struct Share {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    sender: Sender,
    of: Arc<Messages>,
}

/// The room that one message takes, until this is dropped.
#[derive(Debug)]
pub struct MessageRoom {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Share {
    /// Waits for the room for a message of so many KiB. `None` where there is never so much.
    pub fn room(&self, kib: u32) -> impl Future<Output = Option<MessageRoom>> + Send + 'static {
        let (own, all) = (Arc::clone(&self.own), Arc::clone(&self.all));
        async move {
            // Its sender's first: whoever waits for that holds none of what others wait for.
            let own = own.acquire_owned().await.ok()?;
            Some(MessageRoom { _own: own, _all: all.acquire_many_owned(kib).await.ok()? })
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Another share of the same sender is made under the same lock.
        self.of.senders.remove_if(&self.sender, |_, places| places.strong_count() <= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn agent(number: usize) -> Sender {
        Sender::Agent(Principal::agent(&format!("https://{number}.example")).unwrap())
    }

    fn stranger(number: u8) -> Sender {
        Sender::Stranger([192, 0, 2, number].into())
    }

    #[test]
    fn one_sender_has_few_long_messages_on_whatever_connections() {
        let messages = Arc::new(Messages::default());
        let shares: Vec<_> = (0..3).map(|_| messages.share(agent(1))).collect();
        let take = |share: &Share| share.room(1024).now_or_never().flatten();
        let held = [take(&shares[0]), take(&shares[1])];
        assert!(held.iter().all(Option::is_some));
        assert!(take(&shares[2]).is_none() && take(&shares[0]).is_none());
        assert!(take(&messages.share(agent(2))).is_some());
        drop(held);
        assert!(take(&shares[2]).is_some());
        drop(shares);
        assert!(messages.senders.is_empty(), "nobody is remembered who has no connection");
    }

    #[test]
    fn all_together_hold_no_more_than_there_is_room_for() {
        let messages = Arc::new(Messages::default());
        let mib = |sender: Sender, mib: u32| {
            let share = messages.share(sender);
            share.room(mib * 1024).now_or_never().flatten().map(|room| (share, room))
        };
        let held: Vec<_> = (0..100).map_while(|number| mib(agent(number), 16)).collect();
        assert_eq!(held.len(), 16);
        let strange: Vec<_> = (0..=255).map_while(|number| mib(stranger(number), 1)).collect();
        assert_eq!(strange.len(), 32, "strangers use up their own");
        drop(held);
        assert!(mib(agent(200), 16).is_some());
        assert!(mib(stranger(200), 1).is_none());
    }

    #[tokio::test]
    async fn whoever_waits_has_their_turn() {
        let messages = Arc::new(Messages::default());
        let share = messages.share(agent(1));
        let held = share.room(u32::try_from(KNOWN_KIB).unwrap()).await;
        let other = messages.share(agent(2));
        let mut waiting = std::pin::pin!(other.room(1));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(held);
        assert!(waiting.await.is_some());
    }
}
