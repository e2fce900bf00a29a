//! Rates and counts, one for each key, in bounded memory; and which addresses are one key.

use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use dashmap::{DashMap, Entry};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Most keys remembered. With more, the least used are forgotten, which gives them their whole burst again.
const KEYS: u64 = 65_536;
/// How many seconds' worth of its rate a key may use at once.
const BURST_SECONDS: u32 = 4;

/// A rate for each key.
pub(in crate::http) struct Rates<K> {
    /// None where there is no limit.
    quota: Option<Quota>,
    buckets: moka::sync::Cache<K, Arc<DefaultDirectRateLimiter>>,
}

impl<K> fmt::Debug for Rates<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rates").field("quota", &self.quota).finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Rates<K> {
    /// So many each second, and some seconds' worth at once; 0 is no limit.
    pub(in crate::http) fn per_second(rate: u32) -> Self {
        let burst = NonZeroU32::new(rate.saturating_mul(BURST_SECONDS));
        Self::new(
            NonZeroU32::new(rate).map(Quota::per_second).zip(burst).map(|(quota, burst)| quota.allow_burst(burst)),
        )
    }

    /// So many each minute, and as many at once; 0 is no limit.
    pub(in crate::http) fn per_minute(rate: u32) -> Self {
        Self::new(NonZeroU32::new(rate).map(Quota::per_minute))
    }

    fn new(quota: Option<Quota>) -> Self {
        // A bucket that nobody used for as long as it takes to fill is as good as a new one.
        let filled = quota.map_or(Duration::ZERO, |quota| quota.burst_size_replenished_in());
        let buckets = moka::sync::Cache::builder().max_capacity(KEYS).time_to_idle(filled + Duration::from_secs(1));
        Self { quota, buckets: buckets.build() }
    }

    /// Takes one, or says how long until there is one.
    pub(in crate::http) fn take(&self, key: &K) -> Result<(), Duration> {
        let Some(quota) = self.quota else { return Ok(()) };
        let bucket = self.buckets.get_with_by_ref(key, || Arc::new(RateLimiter::direct(quota)));
        bucket.check().map_err(|not_until| not_until.wait_time_from(DefaultClock::default().now()))
    }
}

/// A count for each key of what it has running.
#[derive(Debug)]
pub(in crate::http) struct InFlight<K: Hash + Eq> {
    /// 0 where there is no limit.
    limit: usize,
    running: DashMap<K, usize>,
}

impl<K: Hash + Eq + Clone> InFlight<K> {
    pub(in crate::http) fn new(limit: u32) -> Self {
        Self { limit: usize::try_from(limit).unwrap_or(usize::MAX), running: DashMap::new() }
    }

    /// One more, unless there are as many as may be. The permit's drop is its end.
    pub(in crate::http) fn enter(self: &Arc<Self>, key: &K) -> Option<Permit<K>> {
        match self.running.entry(key.clone()) {
            Entry::Occupied(running) if self.limit > 0 && *running.get() >= self.limit => return None,
            Entry::Occupied(mut running) => *running.get_mut() += 1,
            Entry::Vacant(none) => drop(none.insert(1)),
        }
        Some(Permit { of: Arc::clone(self), key: key.clone() })
    }
}

/// Something that runs.
#[derive(Debug)]
pub(in crate::http) struct Permit<K: Hash + Eq> {
    of: Arc<InFlight<K>>,
    key: K,
}

impl<K: Hash + Eq> Drop for Permit<K> {
    fn drop(&mut self) {
        self.of.running.remove_if_mut(&self.key, |_, running| {
            *running = running.saturating_sub(1);
            *running == 0
        });
    }
}

/// Addresses that count as one: an IPv6 network of 64 bits is one customer's.
pub(in crate::http) fn group(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_used_up_by_its_own_key_only() {
        let rates = Rates::per_minute(2);
        assert!(rates.take(&"a").is_ok() && rates.take(&"a").is_ok());
        let wait = rates.take(&"a").unwrap_err();
        assert!(wait > Duration::from_secs(20) && wait <= Duration::from_secs(30), "{wait:?}");
        assert!(rates.take(&"b").is_ok());
    }

    #[test]
    fn without_a_limit_there_is_none() {
        let rates = Rates::per_second(0);
        assert!((0..10_000).all(|_| rates.take(&"a").is_ok()));
        let running = Arc::new(InFlight::new(0));
        let held: Vec<_> = (0..100).map(|_| running.enter(&"a")).collect();
        assert!(held.iter().all(Option::is_some));
    }

    #[test]
    fn a_place_is_free_again_once_its_holder_is_gone() {
        let running = Arc::new(InFlight::new(2));
        let (first, second) = (running.enter(&"a"), running.enter(&"a"));
        assert!(first.is_some() && second.is_some());
        assert!(running.enter(&"a").is_none());
        assert!(running.enter(&"b").is_some());
        drop(first);
        assert!(running.enter(&"a").is_some());
        drop(second);
        assert!(running.running.is_empty(), "nobody is remembered who has nothing running");
    }

    #[test]
    fn a_customer_has_one_network_of_many_addresses() {
        let group = |text: &str| group(text.parse().unwrap()).to_string();
        assert_eq!(group("2001:db8:1:2:3:4:5:6"), group("2001:db8:1:2::1"));
        assert_ne!(group("2001:db8:1:3::1"), group("2001:db8:1:2::1"));
        assert_eq!(group("192.0.2.1"), "192.0.2.1");
    }
}
