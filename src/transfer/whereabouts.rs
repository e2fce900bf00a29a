//! Where a cursor is, for those who end its transfer from outside.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use super::TransferError;
use super::spool::{Given, Seat};

/// Where a cursor is: at a feed or at none, or nowhere any more.
#[derive(Debug, Default)]
pub struct Whereabouts {
    state: Mutex<State>,
    cursor: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    seat: Option<Seat>,
    failed: Option<TransferError>,
}

impl Whereabouts {
    /// Ends the transfer for its reader at once, and the read on the agent unless others share it. The first reason
    /// counts.
    pub fn end(&self, error: TransferError) {
        let seat = {
            let mut state = self.state();
            state.failed.get_or_insert(error);
            state.seat.take()
        };
        drop(seat);
        self.cursor.wake();
    }

    /// Why it ended, where that is an error.
    pub fn failed(&self) -> Option<TransferError> {
        self.state().failed
    }

    /// The cursor takes a seat, or leaves the one it had.
    pub fn take(&self, seat: Option<Seat>) {
        let before = {
            let mut state = self.state();
            let seat = seat.filter(|_| state.failed.is_none());
            std::mem::replace(&mut state.seat, seat)
        };
        drop(before);
    }

    /// Wakes the cursor when its transfer is ended from outside.
    pub fn register(&self, cx: &Context<'_>) {
        self.cursor.register(cx.waker());
    }

    /// The next bytes from where the cursor sits.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Given> {
        let state = self.state();
        match (&state.seat, state.failed) {
            (_, Some(error)) => Poll::Ready(Given::Failed(error)),
            (Some(seat), None) => seat.poll_next(cx),
            (None, None) => Poll::Ready(Given::Elsewhere),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
