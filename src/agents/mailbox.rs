//! What others want of a connection's task, without ever waiting for it, and when it last heard from its agent.
//!
//! Nothing here can grow past what a connection may have in flight: a read needs a slot, credit is summed per read, a
//! cancel happens once per read, a takeover once per session, and a refusal keeps the room of its announcement until it is
//! written.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use tokio::sync::OwnedSemaphorePermit;

use super::answer::NewRead;
use super::message::Close;
use crate::protocol::frames::PlatformFrame;
use crate::protocol::limits::CREDIT_DEFAULT;
use crate::protocol::{Principal, RequestId};

/// The connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is gone")]
pub struct Gone;

/// The way into one connection's task.
#[derive(Debug, Default)]
pub struct Mailbox {
    mail: Mutex<State>,
    wake: AtomicWaker,
    /// Unix milliseconds.
    heard: AtomicI64,
}

#[derive(Debug, Default)]
struct State {
    mail: Mail,
    any: bool,
    closed: bool,
}

/// Everything that was posted since the task last looked.
#[derive(Debug, Default)]
pub struct Mail {
    /// Reads to ask.
    pub reads: Vec<NewRead>,
    /// Credit to add, in frames, by read.
    pub credit: HashMap<RequestId, u32>,
    /// Reads to stop.
    pub cancels: Vec<RequestId>,
    /// Refusals to send, in order, each with the room of its announcement.
    pub refusals: Vec<(PlatformFrame, Option<OwnedSemaphorePermit>)>,
    /// Agents whose newer connection took over.
    pub superseded: Vec<Principal>,
    /// Agents that lost their name to another.
    pub evicted: Vec<Principal>,
    /// Close the connection.
    pub close: Option<Close>,
}

impl Mailbox {
    /// An open mailbox.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Asks a read.
    pub fn read(&self, read: NewRead) -> Result<(), Gone> {
        self.post(|mail| mail.reads.push(read))
    }

    /// Adds credit to a read. Where the read itself has not been sent yet, it carries the credit: an agent ignores credit
    /// for a read that it does not know.
    pub fn credit(&self, id: &RequestId, frames: u32) {
        // A connection that is gone has ended its reads already.
        let _ = self.post(|mail| match mail.reads.iter_mut().find(|read| read.frame.request_id == *id) {
            Some(read) => *read.frame.credit.get_or_insert(CREDIT_DEFAULT) += frames,
            None => *mail.credit.entry(id.clone()).or_default() += frames,
        });
    }

    /// Stops a read.
    pub fn cancel(&self, id: &RequestId) {
        let _ = self.post(|mail| {
            mail.credit.remove(id);
            mail.cancels.push(id.clone());
        });
    }

    /// Sends the refusal of an announcement, whose room is free once it is written; none where it came in on another
    /// connection.
    pub fn refuse(&self, frame: PlatformFrame, room: Option<OwnedSemaphorePermit>) -> Result<(), Gone> {
        self.post(|mail| mail.refusals.push((frame, room)))
    }

    /// Says that a newer connection of this agent took over.
    pub fn supersede(&self, agent: &Principal) {
        let _ = self.post(|mail| mail.superseded.push(agent.clone()));
    }

    /// Says that this agent's name was given to another.
    pub fn evict(&self, agent: &Principal) {
        let _ = self.post(|mail| mail.evicted.push(agent.clone()));
    }

    /// The task's side: something came, at this time in Unix milliseconds.
    pub fn hear(&self, at: i64) {
        self.heard.store(at, Ordering::Relaxed);
    }

    /// When something last came, Unix milliseconds.
    pub fn heard_at(&self) -> i64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Closes the connection.
    pub fn close(&self, close: Close) {
        let _ = self.post(|mail| mail.close = Some(close));
    }

    /// The task's side: whatever was posted, or wait.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Mail> {
        self.wake.register(cx.waker());
        let mut state = self.lock();
        if !std::mem::take(&mut state.any) {
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(&mut state.mail))
    }

    /// The task's side, at its end: nothing is taken any more. What was left is handed back.
    pub fn shut(&self) -> Mail {
        let mut state = self.lock();
        state.closed = true;
        std::mem::take(&mut state.mail)
    }

    fn post(&self, put: impl FnOnce(&mut Mail)) -> Result<(), Gone> {
        let mut state = self.lock();
        if state.closed {
            return Err(Gone);
        }
        put(&mut state.mail);
        state.any = true;
        drop(state);
        self.wake.wake();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
