//! Waiting for an object that is being written rather than reading it again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::cache::{Cache, Wanted, lock};
use super::underway::Underway;

/// An object that has not come by then is not waited for, whatever its pace promised.
const LONGEST: Duration = Duration::from_secs(10);
/// Between two looks at its pace.
const LOOK: Duration = Duration::from_millis(50);

/// A wait for an object. It holds none of its bytes.
#[derive(Debug)]
pub struct Waiting {
    cache: Arc<Cache>,
    underway: Arc<Underway>,
    instead: u64,
}

impl Cache {
    /// The wait for an object that one of the agents is serving just now, where that is sooner than to read the `instead`
    /// bytes of it that would have to be asked for otherwise. No wait is longer than ten seconds, and one ends when the
    /// object comes no nearer.
    pub fn awaited(self: &Arc<Self>, wanted: &Wanted<'_>, instead: u64) -> Option<Waiting> {
        let underway = lock(&self.writing).get(&wanted.sha256).cloned()?;
        let is_theirs = underway.length == wanted.length && wanted.agents.contains(&underway.agent);
        (is_theirs && underway.is_near(instead, Instant::now())).then(|| Waiting {
            cache: Arc::clone(self),
            underway,
            instead,
        })
    }
}

impl Waiting {
    /// Waits until the object is held, or is not worth waiting for any more.
    pub async fn wait(self) {
        let longest = Instant::now() + LONGEST;
        let mut over = false;
        while !over && Instant::now() < longest && self.underway.is_near(self.instead, Instant::now()) {
            over = tokio::time::timeout(LOOK, self.underway.over.cancelled()).await.is_ok();
        }
        self.cache.metrics.cache_waits.with_label_values(&[if over { "over" } else { "given_up" }]).inc();
    }
}
