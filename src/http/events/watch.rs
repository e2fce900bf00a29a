//! What ends a stream from outside: a reader that takes nothing, or may no longer read.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::AppState;
use crate::events::{End, Subscriber};
use crate::store::StoreError;

/// The shortest and the longest time between two looks at the readers.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How soon what another process wrote to the same database ends streams here. One or two questions, however many there
/// are.
const RECHECK: Duration = Duration::from_secs(5);
/// Between two looks at who may still read.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the reader of a stream that was ended may take to hear of it.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Ends streams whose readers take nothing for `stall`, and those whose readers lost the chat, until `stop`.
pub async fn watch(state: &AppState, stall: Duration, stop: &CancellationToken) {
    let watching = async { tokio::join!(watch_readers(state, stall), watch_access(state)) };
    let _: Option<((), ())> = stop.run_until_cancelled(watching).await;
}

/// Only streams that can be cut one by one: a connection with one response at a time is watched where it is written.
async fn watch_readers(state: &AppState, stall: Duration) {
    let pause = (stall / 8).clamp(LOOKS.0, LOOKS.1);
    loop {
        tokio::time::sleep(pause).await;
        let now = Instant::now();
        for reader in state.events.subscribers() {
            let patience = if reader.is_ended() { LAST_WORD.min(stall) } else { stall };
            if reader.ignored_for(now) >= patience && reader.cut() {
                tracing::warn!(reader = %reader.principal, "a reader of events took nothing for too long");
            }
        }
    }
}

async fn watch_access(state: &AppState) {
    let mut revocations = state.access.revocations();
    loop {
        tokio::select! {
            // The store outlives this: its end of the channel is not dropped.
            _ = revocations.changed() => {}
            () = tokio::time::sleep(RECHECK) => {}
        }
        while let Err(error) = end_revoked(state).await {
            tracing::debug!(%error, "cannot tell who may still be told");
            tokio::time::sleep(PAUSE * 10).await;
        }
        state.events.trim();
        tokio::time::sleep(PAUSE).await;
    }
}

async fn end_revoked(state: &AppState) -> Result<(), StoreError> {
    let readers: Vec<Arc<Subscriber>> = state.events.subscribers();
    if readers.is_empty() {
        return Ok(());
    }
    let reads: Vec<_> =
        readers.iter().map(|reader| (reader.principal.clone(), [reader.place.clone()].into())).collect();
    for (reader, revoked) in readers.iter().zip(state.access.revoked(&reads).await?) {
        if revoked && !reader.is_ended() {
            tracing::info!(reader = %reader.principal, "a reader lost the chat whose events it was told");
            reader.end(End::Revoked);
        }
    }
    Ok(())
}
