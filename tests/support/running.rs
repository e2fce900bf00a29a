//! The agent's side as `sluice agent` runs it, in the test's own process.

use sluice::producer::{AgentError, AgentEvent, AgentOptions, run};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::platform::within;

/// An agent that runs.
pub struct Running {
    pub task: JoinHandle<Result<(), AgentError>>,
    pub shutdown: CancellationToken,
    pub events: mpsc::Receiver<AgentEvent>,
}

impl Running {
    #[expect(clippy::disallowed_methods, reason = "tests have no task tracker to wait for")]
    pub fn start(options: AgentOptions) -> Self {
        let (sink, events) = mpsc::channel(10_000);
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(run(options, shutdown.clone(), move |event| sink.try_send(event).unwrap()));
        Self { task, shutdown, events }
    }

    pub async fn event(&mut self, wanted: impl Fn(&AgentEvent) -> bool) -> AgentEvent {
        loop {
            let event = within(self.events.recv()).await.expect("the agent ended");
            if wanted(&event) {
                return event;
            }
        }
    }

    /// Ends it from outside.
    pub async fn stop(self) {
        self.shutdown.cancel();
        within(self.task).await.unwrap().unwrap();
    }

    /// Waits for it to end by itself.
    pub async fn error(self) -> AgentError {
        within(self.task).await.unwrap().unwrap_err()
    }
}

/// A folder with these files.
pub fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, bytes) in files {
        let location = dir.path().join(path);
        std::fs::create_dir_all(location.parent().unwrap()).unwrap();
        std::fs::write(location, bytes).unwrap();
    }
    dir
}
