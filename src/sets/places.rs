//! How many announcements are read at once, and whose turn it is when more want to be.
//!
//! A place is not taken from anybody as long as nobody waits. When somebody does, it is good for a while that grows with
//! what it brings, and then goes to those who hold fewer: whoever announces much, or announces and then says nothing,
//! holds up nobody but themselves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use url::Url;

use crate::agents::OpenSession;
use crate::protocol::Principal;

/// What a place brings in a second, in bytes, to be kept a second longer: a manifest of 16 MiB in four minutes.
const PACE: u64 = 64 * 1024;
/// How many times its patience a place is kept at most, however much it brings.
const LONGEST: u32 = 6;

/// Who shares places: agents of one owner are one party, however many they are. An agent that signs belongs to its host,
/// where anybody can have as many URLs as they like.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Party(String);

impl Party {
    /// Of an agent, as its session has it.
    pub(super) fn of(agent: &Principal, sessions: &[OpenSession]) -> Self {
        let owner = sessions.iter().find(|session| session.agent == *agent).and_then(|session| session.owner.as_ref());
        if let Some(owner) = owner {
            return Self(format!("owner {owner}"));
        }
        let host = agent.as_str().strip_prefix("agent:").and_then(|id| Url::parse(id).ok());
        let host = host.as_ref().and_then(Url::host_str);
        Self(host.map_or_else(|| agent.to_string(), |host| format!("host {host}")))
    }
}

/// The places. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// How long a place is kept at least.
    patience: Duration,
    state: Mutex<State>,
    /// Somebody waits.
    wanted: Notify,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// By party; never zero.
    held: HashMap<Party, usize>,
    /// Places whose holders were told to leave, and have not yet.
    leaving: usize,
    waiting: Vec<Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    party: Party,
    /// How often it had to leave a place.
    recalls: u32,
    grant: oneshot::Sender<Place>,
}

impl State {
    fn held(&self, party: &Party) -> usize {
        self.held.get(party).copied().unwrap_or(0)
    }

    /// Whoever does not wait any more is forgotten.
    fn tidy(&mut self) {
        self.waiting.retain(|waiting| !waiting.grant.is_closed());
    }
}

impl Places {
    /// So many, each kept for `patience` at least.
    pub(super) fn new(places: usize, patience: Duration) -> Self {
        let state = State { free: places, held: HashMap::new(), leaving: 0, waiting: Vec::new(), next: 0 };
        Self(Arc::new(Shared { patience, state: Mutex::new(state), wanted: Notify::new() }))
    }

    /// Waits for a place. Those whose party holds fewest go first, of these those who had to leave least often
    /// (`recalls`), of these the first that came.
    pub(super) async fn take(&self, party: &Party, recalls: u32) -> Place {
        let (grant, granted) = oneshot::channel();
        {
            let mut state = self.lock();
            state.tidy();
            let number = state.next;
            state.next += 1;
            state.waiting.push(Waiting { number, party: party.clone(), recalls, grant });
        }
        self.grant();
        self.0.wanted.notify_waiters();
        match granted.await {
            Ok(place) => place,
            // Whoever waits is taken off the list by being granted, or by going away.
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives away what is free.
    fn grant(&self) {
        // Dropped without the lock, which dropping a place takes.
        let mut unwanted = Vec::new();
        let mut state = self.lock();
        state.tidy();
        while state.free > 0 {
            let rank = |waiting: &Waiting| (state.held(&waiting.party), waiting.recalls, waiting.number);
            let next = state.waiting.iter().enumerate().min_by_key(|(_, waiting)| rank(waiting));
            let Some(at) = next.map(|(at, _)| at) else { break };
            let Waiting { party, grant, .. } = state.waiting.swap_remove(at);
            state.free -= 1;
            *state.held.entry(party.clone()).or_default() += 1;
            let place = Place {
                places: self.clone(),
                party,
                since: Instant::now(),
                brought: Arc::default(),
                told: AtomicBool::new(false),
            };
            unwanted.extend(grant.send(place).err());
        }
        drop(state);
        drop(unwanted);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the places, free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    party: Party,
    since: Instant,
    brought: Arc<AtomicU64>,
    /// That it has to be left.
    told: AtomicBool,
}

impl Place {
    /// Where bytes are counted that came for it.
    pub(super) fn brought(&self) -> &Arc<AtomicU64> {
        &self.brought
    }

    /// Waits until it has to be left for others.
    pub(super) async fn recalled(&self) {
        loop {
            let wanted = self.places.0.wanted.notified();
            let until = self.kept_until();
            if Instant::now() < until {
                tokio::time::sleep_until(until).await;
            } else if self.must_leave() {
                return;
            } else {
                wanted.await;
            }
        }
    }

    fn kept_until(&self) -> Instant {
        let patience = self.places.0.patience;
        let earned = Duration::from_secs(self.brought.load(Ordering::Relaxed) / PACE);
        self.since + (patience + earned).min(patience * LONGEST)
    }

    /// Whether somebody waits for whom nobody else leaves. Only for those whose party would not hold more than this one
    /// does.
    fn must_leave(&self) -> bool {
        let mut state = self.places.lock();
        state.tidy();
        let own = state.held(&self.party);
        let waits = |waiting: &&Waiting| waiting.party == self.party || state.held(&waiting.party) < own;
        let must = state.waiting.iter().filter(waits).count() > state.leaving;
        if must {
            state.leaving += 1;
            self.told.store(true, Ordering::Relaxed);
        }
        must
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        state.free += 1;
        if *self.told.get_mut() {
            state.leaving -= 1;
        }
        if let Some(held) = state.held.get_mut(&self.party) {
            *held -= 1;
            if *held == 0 {
                state.held.remove(&self.party);
            }
        }
        drop(state);
        self.places.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn party(name: &str) -> Party {
        Party(name.to_owned())
    }

    fn now(places: &Places, name: &str) -> Place {
        places.take(&party(name), 0).now_or_never().expect("a free place")
    }

    async fn recalled(place: &Place, within: Duration) -> bool {
        tokio::time::timeout(within, place.recalled()).await.is_ok()
    }

    #[test]
    fn agents_of_one_owner_or_host_are_one_party() {
        let session = |agent: &str, owner: Option<&str>| OpenSession {
            id: format!("s {agent}").parse().unwrap(),
            agent: Principal::agent(agent).unwrap(),
            name: "name".parse().unwrap(),
            owner: owner.map(Into::into),
        };
        let sessions = [
            session("a", Some("olga")),
            session("b", Some("olga")),
            session("c", None),
            session("d", None),
            session("https://host.example/x", None),
            session("https://host.example:8443/y", None),
            session("https://other.example", None),
        ];
        let parties: Vec<_> = sessions.iter().map(|of| Party::of(&of.agent, &sessions)).collect();
        assert_eq!(parties[0], parties[1]);
        assert_ne!(parties[2], parties[3]);
        assert_eq!(parties[4], parties[5]);
        let distinct: std::collections::HashSet<_> = parties.iter().collect();
        assert_eq!(distinct.len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_nobodys_to_take_until_somebody_waits() {
        let places = Places::new(1, PATIENCE);
        let silent = now(&places, "silent");
        assert!(!recalled(&silent, PATIENCE * 100).await, "nobody waits");
        let waiting = {
            let places = places.clone();
            async move { places.take(&party("other"), 0).await }
        };
        let (place, ()) = tokio::join!(waiting, async {
            silent.recalled().await;
            drop(silent);
        });
        assert!(places.take(&party("third"), 0).now_or_never().is_none());
        drop(place);
        now(&places, "third");
        assert!(places.lock().held.is_empty() && places.lock().free == 1 && places.lock().leaving == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_brings_bytes_is_kept_longer_and_not_for_ever() {
        let places = Places::new(2, PATIENCE);
        let (silent, busy) = (now(&places, "a"), now(&places, "b"));
        busy.brought().store(PACE * 10, Ordering::Relaxed);
        let mut waiting: Vec<_> = ["c", "d"]
            .map(|name| {
                let (places, party) = (places.clone(), party(name));
                Box::pin(async move { places.take(&party, 0).await })
            })
            .into();
        for waiting in &mut waiting {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        assert!(!recalled(&silent, PATIENCE - Duration::from_millis(1)).await);
        assert!(recalled(&silent, Duration::from_millis(2)).await);
        assert!(!recalled(&busy, Duration::from_secs(9)).await);
        busy.brought().store(u64::MAX, Ordering::Relaxed);
        assert!(!recalled(&busy, PATIENCE).await);
        assert!(recalled(&busy, PATIENCE * LONGEST).await);
    }

    #[tokio::test(start_paused = true)]
    async fn one_leaves_for_each_that_waits() {
        let places = Places::new(3, PATIENCE);
        let held = ["a", "b", "c"].map(|name| now(&places, name));
        let one = party("d");
        let mut waiting = Box::pin(places.take(&one, 0));
        assert!(waiting.as_mut().now_or_never().is_none());
        tokio::time::sleep(PATIENCE).await;
        let told = held.iter().filter(|place| place.recalled().now_or_never().is_some()).count();
        assert_eq!(told, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_hold_fewest_go_first_and_take_from_those_who_hold_more() {
        let places = Places::new(3, PATIENCE);
        let (greedy, modest) = ([now(&places, "greedy"), now(&places, "greedy")], now(&places, "modest"));
        let (again, other) = (party("greedy"), party("other"));
        let mut more = Box::pin(places.take(&again, 0));
        assert!(more.as_mut().now_or_never().is_none());
        tokio::time::sleep(PATIENCE * LONGEST).await;
        assert!(modest.recalled().now_or_never().is_none(), "not for one that holds two already");
        let mut first = Box::pin(places.take(&other, 3));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(greedy[0].recalled().now_or_never().is_some());
        let [left, kept] = greedy;
        drop(left);
        let first = first.await;
        assert!(more.as_mut().now_or_never().is_none());
        drop(modest);
        more.await;
        drop((first, kept));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_had_to_leave_stands_behind_those_who_come_new() {
        let places = Places::new(1, PATIENCE);
        let held = now(&places, "a");
        let (back, new) = (party("b"), party("c"));
        let mut recalled = Box::pin(places.take(&back, 1));
        assert!(recalled.as_mut().now_or_never().is_none());
        let mut gone = Box::pin(places.take(&new, 0));
        assert!(gone.as_mut().now_or_never().is_none());
        let mut fresh = Box::pin(places.take(&new, 0));
        assert!(fresh.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        let place = fresh.as_mut().now_or_never().expect("the new one");
        assert!(recalled.as_mut().now_or_never().is_none());
        drop(place);
        recalled.await;
    }
}
