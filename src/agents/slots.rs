//! The read slots of a control socket, as something to wait for.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{oneshot, watch};

use super::credit::{Credit, Sharing};
use crate::protocol::Principal;
use crate::read::{Fairness, Ticket};

/// The slots, and the credit, shared by the agents of one control socket and their data connections.
#[derive(Debug)]
pub struct Slots {
    queue: Mutex<Queue>,
    contended: watch::Sender<bool>,
    credit: Arc<Credit>,
}

#[derive(Debug, Default)]
struct Queue {
    fairness: Fairness<Principal>,
    waiting: HashMap<Ticket, oneshot::Sender<Slot>>,
}

/// Leave to have one read in flight. Dropping it gives the slot back.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    /// In whose name.
    reader: Principal,
    refused: bool,
}

/// A place in the queue for a slot. Dropping it leaves the queue.
#[derive(Debug)]
pub struct SlotRequest {
    slots: Arc<Slots>,
    reader: Principal,
    ticket: Ticket,
    granted: oneshot::Receiver<Slot>,
}

impl Slots {
    /// All slots free, and this highest rate in bytes a second.
    pub fn new(bytes_per_second: Option<u64>) -> Arc<Self> {
        let credit = Credit::new(bytes_per_second);
        Arc::new(Self { queue: Mutex::default(), contended: watch::Sender::new(false), credit })
    }

    /// Queues up, to read about `length` bytes for these readers: in the name of the one that has and awaits the least.
    /// `None` where there is no reader.
    pub fn request(self: &Arc<Self>, readers: &[Principal], length: u64) -> Option<SlotRequest> {
        let (sender, granted) = oneshot::channel();
        let mut queue = self.lock();
        let reader = queue.fairness.least(readers)?.clone();
        let ticket = queue.fairness.request(&reader, length);
        queue.waiting.insert(ticket, sender);
        self.settle(queue);
        Some(SlotRequest { slots: self.clone(), reader, ticket, granted })
    }

    /// Takes a slot for these readers if one is free and nobody waits.
    pub fn try_take(self: &Arc<Self>, readers: &[Principal]) -> Option<Slot> {
        let mut queue = self.lock();
        let reader = queue.fairness.least(readers)?.clone();
        queue.fairness.try_take(&reader).then(|| Slot { slots: self.clone(), reader, refused: false })
    }

    /// A part in the link's credit.
    pub fn share(&self) -> Sharing {
        self.credit.enter()
    }

    /// The link's credit.
    pub fn credit(&self) -> &Arc<Credit> {
        &self.credit
    }

    /// Whether somebody waits for a slot.
    pub fn is_contended(&self) -> bool {
        *self.contended.borrow()
    }

    /// Tells when somebody begins or ends to wait for a slot.
    pub fn contention(&self) -> watch::Receiver<bool> {
        self.contended.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands free slots to those whose turn it is, outside the lock: a slot whose waiter has left comes back here.
    fn settle(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) {
        let mut granted = Vec::new();
        while let Some((reader, ticket)) = queue.fairness.grant() {
            granted.push((reader, queue.waiting.remove(&ticket)));
        }
        let contended = queue.fairness.waiting() > 0;
        self.contended.send_if_modified(|known| std::mem::replace(known, contended) != contended);
        drop(queue);
        for (reader, waiter) in granted {
            let slot = Slot { slots: self.clone(), reader, refused: false };
            if let Some(waiter) = waiter {
                drop(waiter.send(slot));
            }
        }
    }
}

impl Slot {
    /// Gives the slot back because the agent said `too_many_reads`.
    pub fn refused(mut self) {
        self.refused = true;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut queue = self.slots.lock();
        if self.refused {
            queue.fairness.refused(&self.reader);
        } else {
            queue.fairness.release(&self.reader);
        }
        self.slots.settle(queue);
    }
}

impl Future for SlotRequest {
    type Output = Slot;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Slot> {
        match Pin::new(&mut self.granted).poll(cx) {
            Poll::Ready(Ok(slot)) => Poll::Ready(slot),
            // The sender lives in the queue until the slot is granted.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for SlotRequest {
    fn drop(&mut self) {
        let mut queue = self.slots.lock();
        queue.fairness.withdraw(&self.reader, self.ticket);
        queue.waiting.remove(&self.ticket);
        self.slots.settle(queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::limits::CONCURRENT_READS;

    #[tokio::test]
    async fn a_freed_slot_goes_to_the_next_in_line() {
        let (slots, readers) = (Slots::new(None), ["user:a".parse().unwrap()]);
        let mut held: Vec<_> = (0..CONCURRENT_READS).map(|_| slots.try_take(&readers).unwrap()).collect();
        assert!(slots.try_take(&readers).is_none());
        let waiting = slots.request(&readers, 1).unwrap();
        assert!(slots.is_contended());
        held.pop();
        let slot = waiting.await;
        assert!(!slots.is_contended());
        drop(slot);
        assert!(slots.try_take(&readers).is_some());
    }

    #[tokio::test]
    async fn leaving_before_or_after_the_grant_loses_no_slot() {
        let (slots, readers) = (Slots::new(None), ["user:a".parse().unwrap()]);
        let mut held: Vec<_> = (0..CONCURRENT_READS).map(|_| slots.try_take(&readers).unwrap()).collect();
        let left_early = slots.request(&readers, 1).unwrap();
        let left_late = slots.request(&readers, 1).unwrap();
        drop(left_early);
        held.pop();
        drop(left_late);
        assert!(slots.try_take(&readers).is_some());
    }
}
