use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::*;
use crate::metrics::Metrics;
use crate::protocol::{AgentName, ChatId, Principal, Sha256};
use crate::store::Place;

fn hub(change: impl FnOnce(&mut Limits)) -> (Events, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new().unwrap());
    let mut limits = Limits::default();
    change(&mut limits);
    (Events::new(limits, metrics.clone()), metrics)
}

fn chat(name: &str) -> Place {
    Place { chat: name.parse().unwrap(), made_at: 1 }
}

fn user(name: &str) -> Principal {
    format!("user:{name}").parse().unwrap()
}

fn agent(name: &str) -> (Principal, AgentName) {
    (Principal::agent(name).unwrap(), name.parse().unwrap())
}

fn join(events: &Events, reader: &str, place: &Place) -> Subscription {
    events.subscribe(&user(reader), place, Since::Now, None).unwrap()
}

fn go_on(events: &Events, reader: &str, place: &Place, id: EventId) -> Subscription {
    events.subscribe(&user(reader), place, Since::Place(id), None).unwrap()
}

/// A set, by a number that stands for all of it.
fn set(events: &Events, place: &Place, number: u32) {
    events.set(place, &agent("ada").0, Some(&agent("ada").1), &number);
}

/// What is there to be told.
fn told(subscription: &mut Subscription) -> Vec<(EventId, &'static str, Value)> {
    let mut all = Vec::new();
    while let Some(next) = subscription.next().now_or_never() {
        match next {
            Next::Event(id, event) => all.push((id, event.name(), serde_json::from_str(event.data()).unwrap())),
            Next::End(end) => {
                all.push((subscription.id(), "end", json!(end)));
                break;
            }
        }
    }
    all
}

/// The same without ids.
fn data(subscription: &mut Subscription) -> Vec<(&'static str, Value)> {
    told(subscription).into_iter().map(|(_, name, data)| (name, data)).collect()
}

fn sets(numbers: std::ops::RangeInclusive<u32>) -> Vec<(&'static str, Value)> {
    numbers.map(|number| ("set", json!(number))).collect()
}

fn transfer(id: u64, sent_bytes: u64, step: Step) -> TransferEvent {
    let (sha256, outcome) = (Sha256::of(b""), None);
    TransferEvent { id, sha256, size: 9, start: 0, end: 9, sent_bytes, state: "reading", outcome, step }
}

#[test]
fn everyone_in_a_chat_is_told_and_nobody_else() {
    let (events, _) = hub(|_| ());
    let (here, there) = (chat("c1"), chat("c2"));
    let mut readers = [join(&events, "alice", &here), join(&events, "bob", &here), join(&events, "bob", &there)];
    for number in 1..=3 {
        set(&events, &here, number);
    }
    let [alice, bob, elsewhere] = readers.each_mut().map(told);
    assert_eq!(alice, bob);
    assert!(elsewhere.is_empty());
    assert!(alice.windows(2).all(|two| two[0].0.position + 1 == two[1].0.position), "{alice:?}");
}

#[test]
fn a_chat_that_nobody_is_told_about_keeps_nothing() {
    let (events, _) = hub(|_| ());
    let place = chat("c1");
    assert!(events.is_quiet() && !events.has(&place.chat));
    set(&events, &place, 1);
    events.agent(&agent("ada").0, &agent("ada").1, true);
    events.lose(&place.chat);
    assert_eq!(events.agents_version(&place.chat), None);
    let mut alice = join(&events, "alice", &place);
    assert!(!events.is_quiet() && events.has(&place.chat));
    assert_eq!(told(&mut alice), []);
    assert_eq!(alice.id().position, 0);
}

#[test]
fn who_comes_back_is_told_what_was_missed() {
    let (events, _) = hub(|_| ());
    let place = chat("c1");
    let mut alice = join(&events, "alice", &place);
    set(&events, &place, 1);
    let id = told(&mut alice)[0].0;
    drop(alice);
    // Also what happens while nobody is there.
    set(&events, &place, 2);
    set(&events, &place, 3);
    let mut again = go_on(&events, "alice", &place, id);
    assert_eq!((again.reset(), data(&mut again)), (None, sets(2..=3)));
    set(&events, &place, 4);
    assert_eq!(data(&mut again), sets(4..=4));
}

#[test]
fn who_comes_back_too_late_is_told_so() {
    let (events, _) = hub(|limits| limits.history = 3);
    let place = chat("c1");
    let alice = join(&events, "alice", &place);
    let id = alice.id();
    (1..=4).for_each(|number| set(&events, &place, number));
    let mut late = go_on(&events, "alice", &place, id);
    assert_eq!((late.reset(), data(&mut late)), (Some(Reset::TooOld), vec![]));
    // What was told then is a place to go on from.
    let id = late.id();
    set(&events, &place, 5);
    assert_eq!(data(&mut go_on(&events, "alice", &place, id)), sets(5..=5));
    let other = EventId { history: !id.history, ..id };
    assert_eq!(go_on(&events, "alice", &place, other).reset(), Some(Reset::Unknown));
}

#[test]
fn a_slow_reader_is_dropped_and_the_others_are_not() {
    let (events, metrics) = hub(|limits| limits.history = 3);
    let place = chat("c1");
    let (mut slow, mut quick) = (join(&events, "alice", &place), join(&events, "bob", &place));
    for number in 1..=5 {
        set(&events, &place, number);
        assert_eq!(data(&mut quick), sets(number..=number));
    }
    assert_eq!(data(&mut slow), [("end", json!("lagged"))]);
    drop((slow, quick));
    assert_eq!(metrics.events_dropped.get(), 5);
}

#[test]
fn a_chat_made_anew_is_another() {
    let (events, _) = hub(|_| ());
    let old = chat("c1");
    let new = Place { made_at: 2, ..old.clone() };
    let mut before = join(&events, "alice", &old);
    let id = before.id();
    set(&events, &old, 1);
    let mut after = go_on(&events, "bob", &new, id);
    assert_eq!(after.reset(), Some(Reset::Unknown));
    // What is still to be told of the old one.
    set(&events, &old, 2);
    events.transfer(&[old], &user("bob"), &transfer(1, 0, Step::Begin));
    assert_eq!(told(&mut after), []);
    set(&events, &new, 3);
    assert_eq!(data(&mut after), sets(3..=3));
    assert_eq!(data(&mut before), sets(1..=1));
    assert_eq!(events.subscribers().len(), 2, "both can be ended");
    drop(before);
    set(&events, &new, 4);
    assert_eq!(data(&mut after), sets(4..=4));
}

#[test]
fn readers_are_counted() {
    let (events, metrics) = hub(|limits| (limits.subscribers, limits.per_principal) = (3, 2));
    let join = |reader: &str, place: &str| events.subscribe(&user(reader), &chat(place), Since::Now, None);
    let first = join("alice", "c1").unwrap();
    let _second = join("alice", "c2").unwrap();
    assert_eq!(join("alice", "c3").unwrap_err(), Refused::TooManyOfOne);
    let _bobs = join("bob", "c1").unwrap();
    assert_eq!(join("bob", "c1").unwrap_err(), Refused::TooMany);
    assert_eq!(metrics.event_subscribers.get(), 3);
    drop(first);
    assert!(join("alice", "c3").is_ok());
    assert_eq!(metrics.event_subscribers.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn histories_that_nobody_comes_back_for_are_given_up() {
    let (events, _) = hub(|limits| (limits.lingering, limits.linger) = (2, Duration::from_secs(60)));
    let held = join(&events, "alice", &chat("held"));
    for name in ["c1", "c2", "c3"] {
        drop(join(&events, "alice", &chat(name)));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let has = || ["held", "c1", "c2", "c3"].map(|name| events.has(&name.parse::<ChatId>().unwrap()));
    assert_eq!(has(), [true, false, true, true], "the one that nobody has come back for the longest");
    tokio::time::advance(Duration::from_secs(58)).await;
    events.trim();
    assert_eq!(has(), [true, false, false, true]);
    tokio::time::advance(Duration::from_secs(3600)).await;
    events.trim();
    assert_eq!(has(), [true, false, false, false]);
    drop(held);
}

#[test]
fn agents_of_the_chat_come_and_go_under_the_names_it_has_for_them() {
    let (events, _) = hub(|_| ());
    let place = chat("c1");
    let mut alice = join(&events, "alice", &place);
    let online = |name: &str, online| events.agent(&agent(name).0, &agent(name).1, online);
    online("ada", true);
    assert_eq!(told(&mut alice), [], "nobody has said yet which agents the chat has");
    let version = events.agents_version(&place.chat).unwrap();
    let known = [(agent("ada").0, Some("lovelace".parse().unwrap())), (agent("bea").0, None)];
    assert!(events.set_agents(&place.chat, version, known.clone().into()));
    online("ada", false);
    online("bea", true);
    online("eve", true);
    let wanted = |name: &str, online: bool| ("agent", json!({"name": name, "online": online}));
    assert_eq!(data(&mut alice), [wanted("lovelace", false), wanted("bea", true)]);
    // One that announces a set is one of the chat's from then on, whatever was looked up before.
    let version = events.agents_version(&place.chat).unwrap();
    events.set(&place, &agent("eve").0, Some(&agent("eve").1), &7);
    assert!(!events.set_agents(&place.chat, version, known.into()));
    online("eve", false);
    assert_eq!(data(&mut alice), [("set", json!(7)), wanted("eve", false)]);
}

#[test]
fn what_cannot_be_told_is_told_to_be_so() {
    let (events, _) = hub(|_| ());
    let mut alice = join(&events, "alice", &chat("c1"));
    events.lose(&chat("c1").chat);
    assert_eq!(data(&mut alice), [("reset", json!({"reason": "lost"}))]);
}

#[test]
fn transfers_are_told_to_their_reader_alone() {
    let (events, _) = hub(|_| ());
    let place = chat("c1");
    let (mut alice, mut bob) = (join(&events, "alice", &place), join(&events, "bob", &place));
    let id = alice.id();
    for (sent, step) in [(0, Step::Begin), (3, Step::Go), (6, Step::Go), (9, Step::End)] {
        events.transfer(&[chat("c2"), place.clone()], &user("alice"), &transfer(1, sent, step));
    }
    let seen = told(&mut alice);
    // How far it was in between is pointless by now; the ids tell nobody else how much she reads.
    let sent: Vec<_> = seen.iter().map(|(_, _, data)| data["sent_bytes"].as_u64().unwrap()).collect();
    assert_eq!(sent, [0, 9]);
    assert!(seen.iter().all(|(of, name, _)| (*of, *name) == (id, "transfer")));
    assert_eq!(told(&mut bob), []);
    assert_eq!(told(&mut go_on(&events, "alice", &place, id)), [], "they are in nobody's history");
}

#[test]
fn progress_never_fills_what_waits_and_ends_do() {
    let (events, metrics) = hub(|_| ());
    let place = chat("c1");
    let mut alice = join(&events, "alice", &place);
    let tell = |id, step| events.transfer(std::slice::from_ref(&place), &user("alice"), &transfer(id, 1, step));
    (0..10_000).for_each(|id| tell(id, Step::Go));
    let seen = data(&mut alice);
    assert!((1..=128).contains(&seen.len()) && seen.iter().all(|(name, _)| *name == "transfer"), "{}", seen.len());
    (0..1000).for_each(|id| tell(id, Step::End));
    let seen = data(&mut alice);
    assert_eq!((seen.len(), seen.last()), (257, Some(&("end", json!("lagged")))));
    drop(alice);
    assert_eq!(metrics.events_dropped.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_was_ended_hears_that_and_nothing_more() {
    let (events, _) = hub(|_| ());
    let place = chat("c1");
    let mut alice = join(&events, "alice", &place);
    set(&events, &place, 1);
    let waiting = tokio::time::Duration::from_secs(3);
    tokio::time::advance(waiting).await;
    let subscriber = events.subscribers().remove(0);
    assert_eq!(subscriber.ignored_for(tokio::time::Instant::now()), waiting);
    subscriber.end(End::Revoked);
    subscriber.end(End::Lagged);
    assert_eq!(data(&mut alice), [("end", json!("revoked"))]);
}

#[tokio::test]
async fn a_waiting_reader_is_woken() {
    let (events, _) = hub(|_| ());
    let place = chat("c1");
    let mut alice = join(&events, "alice", &place);
    let mut next = Box::pin(alice.next());
    assert!(futures_util::poll!(&mut next).is_pending());
    set(&events, &place, 1);
    assert!(matches!(next.await, Next::Event(_, event) if event.name() == "set"));
    assert_eq!(events.subscribers()[0].ignored_for(tokio::time::Instant::now()).as_secs(), 0);
}
