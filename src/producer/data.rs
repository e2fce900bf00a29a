//! The data connection, for bulk frames: open while there is a control session, dialled again when it drops.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Agent, Ended, Kind};
use super::link::Link;
use super::repeats::Repeats;
use super::wire::{Received, Sent};
use super::{AgentError, AgentEvent};
use crate::protocol::frames::DataHello;

/// How long `data.hello` may go unanswered.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// Holds the data connection until shutdown, if the agent is to have one. Nothing that happens to it ends the agent:
/// the control connection serves the same reads.
pub(super) async fn hold(agent: &Agent, mut connected: watch::Receiver<bool>) -> Result<(), AgentError> {
    if !agent.options.data {
        return Ok(());
    }
    let mut failures = 0;
    let mut repeats = Repeats::default();
    loop {
        tokio::select! {
            // The sender is gone only when everything is being dropped.
            open = connected.wait_for(|open| *open) => if open.is_err() { return Ok(()) },
            () = agent.shutdown.cancelled() => return Ok(()),
        }
        let started = Instant::now();
        let ended = tokio::select! {
            ended = connect(agent, &mut repeats) => ended,
            () = agent.shutdown.cancelled() => Ended::Shutdown,
        };
        let reason = match ended {
            Ended::Shutdown => return Ok(()),
            Ended::Retry(reason) => reason,
            // What to do about it is for the control connection to tell, which is refused likewise.
            Ended::Fatal(AgentError::TokenRefused(reason)) => reason,
            Ended::Fatal(error) => error.to_string(),
        };
        if started.elapsed() > agent.options.backoff.settled {
            failures = 0;
        }
        let retry_in = agent.options.backoff.delay(failures);
        failures = failures.saturating_add(1);
        if let Some(attempts) = repeats.failed(&reason, Instant::now()) {
            (agent.events)(AgentEvent::DataDisconnected { reason, attempts, retry_in });
        }
        tokio::select! {
            () = sleep(retry_in) => {}
            () = agent.shutdown.cancelled() => return Ok(()),
        }
    }
}

/// One connection from dialling to its end.
async fn connect(agent: &Agent, repeats: &mut Repeats) -> Ended {
    match timeout(READY_TIMEOUT, open(agent)).await {
        Ok(Ok(link)) => {
            repeats.succeeded();
            (agent.events)(AgentEvent::DataConnected);
            serve(agent, link).await
        }
        Ok(Err(ended)) => ended,
        Err(_) => Ended::Retry("the gateway did not take the data connection".to_owned()),
    }
}

async fn open(agent: &Agent) -> Result<Link, Ended> {
    let mut link = agent.dial(Kind::Data).await?;
    let envelope = agent.envelope();
    let hello = DataHello { event_id: Some(envelope.event_id), agent: agent.name.as_str().to_owned() };
    link.send(&Sent::DataHello { timestamp: envelope.timestamp, uamp_version: envelope.uamp_version, hello });
    loop {
        match link.next().await? {
            Received::DataReady => return Ok(link),
            Received::DataError(error) => {
                return Err(Ended::Retry(format!("the gateway refused it: {}: {}", error.code, error.message)));
            }
            _ => {}
        }
    }
}

async fn serve(agent: &Agent, mut link: Link) -> Ended {
    loop {
        tokio::select! {
            received = link.next() => if let Err(lost) = received { return lost.into() },
            () = agent.shutdown.cancelled() => {
                link.close().await;
                return Ended::Shutdown;
            }
        }
    }
}
