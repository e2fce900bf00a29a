//! The only place that reads the system's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// Unix milliseconds as a person writes them. A time outside the years 1970 to 9999 is moved to the nearest end: the
/// formatter knows no others.
pub fn rfc3339(unix_millis: i64) -> String {
    const LAST: u64 = 253_402_300_799_999;
    let millis = u64::try_from(unix_millis).unwrap_or(0).min(LAST);
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(millis)).to_string()
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn times_are_written_whatever_a_manifest_says() {
        assert_eq!(rfc3339(1_792_231_200_000), "2026-10-17T10:00:00.000Z");
        assert_eq!(rfc3339(-1), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(i64::MAX), "9999-12-31T23:59:59.999Z");
    }
}
