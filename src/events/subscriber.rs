//! One reader of a chat's events, as those see it who tell it something.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::event::{End, Step, TransferEvent};
use crate::protocol::Principal;
use crate::store::Place;

/// Most events about a reader's own transfers that wait for it.
const TRANSFERS: usize = 256;

/// A reader.
pub struct Subscriber {
    pub(super) number: u64,
    /// Who reads.
    pub principal: Principal,
    /// What.
    pub place: Place,
    cut: Option<CancellationToken>,
    pub(super) woken: Notify,
    waiting: Mutex<Waiting>,
}

/// What waits for it, besides its chat's events.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) transfers: VecDeque<TransferEvent>,
    pub(super) overflown: bool,
    pub(super) end: Option<End>,
    /// Since when something has been there for the reader, who has taken nothing.
    pub(super) since: Option<Instant>,
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

    pub(super) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
