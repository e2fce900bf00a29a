//! Readers who come back.

use serde_json::json;
use sluice::events::Limits;

use super::support::db::{self, TestDatabase};
use super::support::{EventStream, Told};
use super::{House, next_set};
use crate::on_both_databases;

on_both_databases!(
    who_comes_back_is_told_what_was_missed,
    what_is_no_longer_known_is_told_to_be_so,
    a_restart_is_told_to_be_one,
);

fn names(told: &[Told]) -> Vec<&str> {
    told.iter().map(|told| told.name.as_str()).collect()
}

async fn who_comes_back_is_told_what_was_missed(database: &TestDatabase) {
    let house = House::open(database).await;
    let mut alice = house.stream("user:alice").await;
    let first = house.announce(1).await;
    assert_eq!(next_set(&mut alice).await, first.identity());
    let id = alice.last_event_id.clone();
    drop(alice);
    house.gateway.wait_for_metric(super::SUBSCRIBERS, 0.0).await;
    let missed = [house.announce(2).await.identity(), house.announce(3).await.identity()];
    // The id is the chat's, and not one reader's.
    for reader in ["user:alice", "user:bob"] {
        let (mut again, first) = house.go_on(reader, &id).await;
        assert_eq!((names(&first), &first[0].id), (vec!["transfers"], &id));
        for set in &missed {
            assert_eq!(&next_set(&mut again).await, set);
        }
    }
    // One that had been told nothing yet goes on from its beginning.
    let quiet = house.stream("user:alice").await;
    let set = house.announce(4).await;
    let (mut again, _) = house.go_on("user:alice", &quiet.last_event_id).await;
    assert_eq!(next_set(&mut again).await, set.identity());
}

async fn what_is_no_longer_known_is_told_to_be_so(database: &TestDatabase) {
    let house = House::open(database).await;
    let old = house.stream("user:alice").await.last_event_id.clone();
    (0..=Limits::default().history).for_each(|_| house.happen());
    let forged = format!("{}9", old);
    let other_chat = EventStream::open(&house.gateway, "c2", &house.gateway.reader("user:carol"), "").await.0;
    for (id, reason) in [
        (old.as_str(), "too_old"),
        (&forged, "unknown"),
        (&other_chat.last_event_id, "unknown"),
        ("0000000000000001-0", "unknown"),
        ("42", "unknown"),
        ("\u{fc}", "unknown"),
    ] {
        let (mut stream, first) = house.go_on("user:alice", id).await;
        assert_eq!(names(&first), ["reset", "transfers"], "{id}");
        assert_eq!(first[0].data, json!({"reason": reason}), "{id}");
        // From then on everything is told, and the new id is one to come back with.
        house.happen();
        assert_eq!(stream.expect("reset").await, json!({"reason": "lost"}));
        let (_, first) = house.go_on("user:alice", &stream.last_event_id).await;
        assert_eq!(names(&first), ["transfers"], "{id}");
    }
}

async fn a_restart_is_told_to_be_one(database: &TestDatabase) {
    let mut house = House::open(database).await;
    let mut alice = house.stream("user:alice").await;
    house.announce(1).await;
    next_set(&mut alice).await;
    let id = alice.last_event_id.clone();
    house.gateway.restart().await;
    // Where the id's number is one that has not come yet, and where it is one that has.
    let mut bob = None;
    for _ in 0..2 {
        let (_, first) = house.go_on("user:alice", &id).await;
        assert_eq!((names(&first), &first[0].data), (vec!["reset", "transfers"], &json!({"reason": "unknown"})));
        bob.get_or_insert(house.stream("user:bob").await);
        (0..3).for_each(|_| house.happen());
    }
}
