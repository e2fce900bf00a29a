//! What ends a transfer from outside: a reader that takes nothing, or may no longer read. And who tells readers how far
//! theirs are.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Running, TransferError, Transfers};
use crate::store::StoreError;

/// The shortest and the longest time between two looks at the readers.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// How soon what another process wrote to the same database ends transfers here, which nobody tells this one about. One
/// or two questions, however many run.
const RECHECK: Duration = Duration::from_secs(5);
/// Between two looks at who may still read.
const PAUSE: Duration = Duration::from_millis(100);

impl Transfers {
    /// Ends transfers whose readers take nothing, and those whose readers lost the chats that allowed them, and tells
    /// readers who want to know how far theirs are, until `stop`.
    pub async fn watch(&self, stop: &CancellationToken) {
        let watching = async { tokio::join!(self.watch_readers(), self.watch_access(), self.tell_progress()) };
        let _: Option<((), (), ())> = stop.run_until_cancelled(watching).await;
    }

    /// Only transfers whose responses can be cut one by one: a connection with one response at a time is watched where
    /// it is written, which sees every byte and not only the pieces that are taken from here.
    async fn watch_readers(&self) {
        let (stall, pause) = (self.limits.stall_timeout, (self.limits.stall_timeout / 8).clamp(LOOKS.0, LOOKS.1));
        loop {
            tokio::time::sleep(pause).await;
            let now = Instant::now();
            self.readers.retain(|_, reader| !reader.is_idle(now));
            for running in self.all() {
                if running.cut.is_some() && running.live.ignored_for(now) >= stall {
                    tracing::warn!(transfer = running.live.id.0, reader = %running.live.reader,
                        sha256 = %running.live.sha256, "a reader took nothing for too long");
                    running.end(TransferError::ReaderStalled);
                }
            }
        }
    }

    async fn watch_access(&self) {
        let mut revocations = self.access.revocations();
        loop {
            tokio::select! {
                // The store outlives this: its end of the channel is not dropped.
                _ = revocations.changed() => {}
                () = self.overtaken.notified() => {}
                () = tokio::time::sleep(RECHECK) => {}
            }
            while let Err(error) = self.end_revoked().await {
                // What runs goes on without the database; who may read is asked again once it answers.
                tracing::debug!(%error, "cannot tell who may still read");
                tokio::time::sleep(PAUSE * 10).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn end_revoked(&self) -> Result<(), StoreError> {
        let mut all = self.all();
        all.retain(|running| !running.places.is_empty());
        if all.is_empty() {
            return Ok(());
        }
        let reads: Vec<_> = all.iter().map(|running| (running.live.reader.clone(), running.places.clone())).collect();
        for (running, revoked) in all.iter().zip(self.access.revoked(&reads).await?) {
            if revoked {
                tracing::info!(transfer = running.live.id.0, reader = %running.live.reader,
                    sha256 = %running.live.sha256, "a reader lost the chat it was reading from");
                running.end(TransferError::Revoked);
            }
        }
        Ok(())
    }

    pub(super) fn all(&self) -> Vec<Running> {
        self.running.iter().map(|entry| entry.value().clone()).collect()
    }
}
