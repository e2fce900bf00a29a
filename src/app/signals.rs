//! SIGINT and SIGTERM: the first asks for an orderly end, the second for one at once.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A second signal came while the first was still being obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ended at once by a second signal")]
pub struct EndedAtOnce {
    /// The signal's number.
    signal: i32,
}

impl EndedAtOnce {
    /// The exit code of a process that a signal ended: 130 for SIGINT, 143 for SIGTERM.
    pub fn exit_code(self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(u8::MAX)
    }
}

/// What whoever runs this process asks of it by signals.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    stop: CancellationToken,
}

impl Signals {
    /// Listens from here on.
    ///
    /// # Errors
    /// When the system does not let this process listen.
    pub fn listen() -> anyhow::Result<Self> {
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        Ok(Self { interrupt, terminate, stop: CancellationToken::new() })
    }

    /// Cancelled by the first signal.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Does `work`, which ends in order once [`stop`](Self::stop) is cancelled.
    ///
    /// # Errors
    /// The work's own, and [`EndedAtOnce`] when a second signal comes first: the work is dropped where it is.
    pub async fn obeyed_by<T>(mut self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let signals = async {
            self.next().await;
            self.stop.cancel();
            EndedAtOnce { signal: self.next().await }
        };
        tokio::select! {
            done = work => done,
            ended = signals => Err(ended.into()),
        }
    }

    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
        }
    }
}
