//! The only place that reads the system's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Wall-clock time, handed to whoever needs it so that tests can set it.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    fixed: Option<Arc<AtomicI64>>,
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands still at `unix_millis` until it is [`set`](Self::set).
    pub fn fixed(unix_millis: i64) -> Self {
        Self { fixed: Some(Arc::new(AtomicI64::new(unix_millis))) }
    }

    /// Moves a fixed clock; the system's own is not moved.
    pub fn set(&self, unix_millis: i64) {
        if let Some(fixed) = &self.fixed {
            fixed.store(unix_millis, Ordering::Relaxed);
        }
    }

    /// Milliseconds since the Unix epoch.
    pub fn unix_millis(&self) -> i64 {
        if let Some(fixed) = &self.fixed {
            return fixed.load(Ordering::Relaxed);
        }
        #[expect(clippy::disallowed_methods, reason = "this module is where the system's clock is read")]
        let now = SystemTime::now();
        now.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}
