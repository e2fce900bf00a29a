//! Publishes the folder once, or whenever it has changed and been quiet for a moment.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use notify::{EventKind, RecursiveMode, Watcher as _};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

use super::publish::{PublishError, PublishedSet, Publisher};
use super::{AgentError, AgentEvent, AgentOptions, EventSink};

/// How many quiet times a busy folder is waited for.
const SETTLES_AT_MOST: u32 = 20;

/// Publishes into `sets`, and tells `looked` when the folder was looked at for the first time. Returns only with an error: the caller's other futures decide when it is over.
///
/// # Errors
/// The first publication failing, unless the folder is watched and may still become publishable; the folder not being
/// watchable.
pub(super) async fn publish(
    mut publisher: Publisher,
    options: &AgentOptions,
    sets: mpsc::Sender<PublishedSet>,
    looked: oneshot::Sender<()>,
    events: EventSink,
) -> Result<(), AgentError> {
    // Watching starts before the first look, so that no change falls between the two.
    let changes = options.watch.then(|| Changes::of(options)).transpose()?;
    let mut looked = Some(looked);
    loop {
        let published;
        (publisher, published) = publish_once(publisher).await?;
        match (published, &changes) {
            // The receiver is gone only when everything is being dropped.
            (Ok(Some(set)), _) => _ = sets.send(set).await,
            (Ok(None), _) => {}
            (Err(error), None) => return Err(error.into()),
            (Err(error), Some(_)) if looked.is_some() && !error.is_passing() => return Err(error.into()),
            (Err(error), Some(_)) => events(AgentEvent::PublishFailed { reason: error.to_string() }),
        }
        if let Some(looked) = looked.take() {
            // Nobody listens only when everything is being dropped.
            _ = looked.send(());
        }
        match &changes {
            Some(changes) => changes.settled(options.settle).await,
            None => pending().await,
        }
    }
}

/// Hashing blocks, so it runs on a thread of its own and hands the publisher back.
async fn publish_once(
    mut publisher: Publisher,
) -> Result<(Publisher, Result<Option<PublishedSet>, PublishError>), AgentError> {
    let hashing = tokio::task::spawn_blocking(move || {
        let published = publisher.publish();
        (publisher, published)
    });
    hashing.await.map_err(|_| PublishError::Interrupted.into())
}

/// Tells that something below the folder changed.
struct Changes {
    changed: Arc<Notify>,
    /// Watches for as long as it lives.
    _watcher: notify::RecommendedWatcher,
}

impl Changes {
    fn of(options: &AgentOptions) -> Result<Self, AgentError> {
        let changed = Arc::new(Notify::new());
        let sink = changed.clone();
        let watch = |error: notify::Error| AgentError::Watch(error.to_string());
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading is no change, and hashing reads. An error may hide a change.
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                sink.notify_one();
            }
        })
        .map_err(watch)?;
        watcher.watch(&options.dir, RecursiveMode::Recursive).map_err(watch)?;
        Ok(Self { changed, _watcher: watcher })
    }

    /// Waits for a change, and then until there has been none for `settle`; a folder that is never quiet is looked at
    /// all the same.
    async fn settled(&self, settle: Duration) {
        self.changed.notified().await;
        let quiet = async { while timeout(settle, self.changed.notified()).await.is_ok() {} };
        _ = timeout(settle * SETTLES_AT_MOST, quiet).await;
    }
}
