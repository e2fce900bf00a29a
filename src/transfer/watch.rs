//! What ends a transfer from outside: a reader that takes nothing.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Running, TransferError, Transfers};

/// The shortest and the longest time between two looks at the readers.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));

impl Transfers {
    /// Ends transfers whose readers take nothing, until `stop`.
    ///
    /// Only those whose responses can be cut one by one: a connection with one response at a time is watched where it
    /// is written, which sees every byte and not only the pieces that are taken from here.
    pub async fn watch(&self, stop: &CancellationToken) {
        let pause = (self.limits.stall_timeout / 8).clamp(LOOKS.0, LOOKS.1);
        let watching = async {
            loop {
                tokio::time::sleep(pause).await;
                self.end_ignored();
            }
        };
        let _: Option<()> = stop.run_until_cancelled(watching).await;
    }

    fn end_ignored(&self) {
        let (now, stall) = (Instant::now(), self.limits.stall_timeout);
        let ignored = |running: &Running| running.cut.is_some() && running.pipe.ignored_for(now) >= stall;
        let ended: Vec<Running> =
            self.running.iter().map(|entry| entry.value().clone()).filter(|running| ignored(running)).collect();
        for running in ended {
            let Running { live, .. } = &running;
            tracing::warn!(transfer = %live.id, reader = %live.reader, sha256 = %live.sha256,
                "a reader took nothing for too long");
            running.end(TransferError::ReaderStalled);
        }
    }
}
