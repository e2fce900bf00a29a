//! Chats with their participants and sessions, and the names of agents.

use sluice::protocol::{AgentName, Principal};
use sluice::store::{Added, Binding, Claim};

use super::db::TestDatabase;
use super::sets::{announcement, id, open, set};
use super::{FLOW, OTHER, chat_with_session, db, listed, stored};
use crate::on_both_databases;

on_both_databases!(
    a_chat_is_created_replaced_and_deleted,
    a_session_is_bound_once,
    one_of_many_claims_gets_the_name,
    agents_are_listed_by_page,
    a_deleted_chat_leaves_nothing,
);

async fn a_chat_is_created_replaced_and_deleted(database: &TestDatabase) {
    let store = open(database).await;
    let chat = id("c1");
    let alice: Principal = id("user:alice");
    assert_eq!(store.add_participant(&chat, &alice).await.unwrap(), Added::NoSuchChat);
    assert_eq!(store.chat(&chat).await.unwrap(), None);

    let generation = store.generation();
    assert!(store.put_chat(&chat, Some("one"), &[alice.clone(), alice.clone()]).await.unwrap());
    assert!(store.generation() > generation);
    assert!(!store.put_chat(&chat, None, &[id("user:bob")]).await.unwrap());
    let found = store.chat(&chat).await.unwrap().unwrap();
    assert_eq!((found.title, found.participants), (None, vec![id("user:bob")]));

    assert_eq!(store.add_participant(&chat, &alice).await.unwrap(), Added::Participant);
    assert_eq!(store.add_participant(&chat, &alice).await.unwrap(), Added::Participant);
    assert!(store.is_participant(&chat, &alice).await.unwrap());
    assert!(store.remove_participant(&chat, &alice).await.unwrap());
    assert!(!store.remove_participant(&chat, &alice).await.unwrap());
    assert!(!store.is_participant(&chat, &alice).await.unwrap());
    store.add_participant(&chat, &Principal::everyone()).await.unwrap();
    assert!(store.is_participant(&chat, &alice).await.unwrap());

    assert!(store.delete_chat(&chat).await.unwrap());
    assert!(!store.delete_chat(&chat).await.unwrap());
    assert!(!store.is_participant(&chat, &alice).await.unwrap());
}

async fn a_session_is_bound_once(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    store.put_chat(&id("c2"), None, &[]).await.unwrap();
    assert_eq!(store.bind_session(&id(FLOW), &id("s1"), &id("c1")).await.unwrap(), Binding::Unchanged);
    assert_eq!(store.bind_session(&id(FLOW), &id("s1"), &id("c2")).await.unwrap(), Binding::Conflict);
    assert_eq!(store.bind_session(&id(OTHER), &id("s1"), &id("c1")).await.unwrap(), Binding::Conflict);
    assert_eq!(store.session(&id("s1")).await.unwrap().unwrap().agent, id(FLOW));
    assert_eq!(store.session(&id("s2")).await.unwrap(), None);
}

async fn one_of_many_claims_gets_the_name(database: &TestDatabase) {
    let store = open(database).await;
    let name: AgentName = id("flow");
    let claims = (0..8).map(|n| {
        let (store, name) = (store.clone(), name.clone());
        async move { store.claim_name(&name, &id(&format!("agent:{n}")), n).await.unwrap() }
    });
    let outcomes = futures_util::future::join_all(claims).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Claim::Held).count(), 1);
    let holder = store.agent_by_name(&name).await.unwrap().unwrap().principal;
    let generation = store.generation();
    let first_seen = store.agent_by_name(&name).await.unwrap().unwrap().last_seen_at;
    for (now, seen) in [(59_999, first_seen), (70_000, 70_000), (70_001, 70_000)] {
        assert_eq!(store.claim_name(&name, &holder, now).await.unwrap(), Claim::Held);
        assert_eq!(store.agent_by_name(&name).await.unwrap().unwrap().last_seen_at, seen, "to the minute");
    }
    // When it leaves, it was heard of until then, under the name that it held; later never becomes earlier.
    let other: AgentName = id("other");
    for (at, seen) in [(71_234, 71_234), (71_000, 71_234)] {
        store.last_seen(vec![(name.clone(), holder.clone()), (other.clone(), holder.clone())], at).await.unwrap();
        store.last_seen(vec![(name.clone(), id(OTHER))], 80_000).await.unwrap();
        assert_eq!(store.agent_by_name(&name).await.unwrap().unwrap().last_seen_at, seen);
    }
    assert!(store.agent_by_name(&other).await.unwrap().is_none(), "leaving takes no name");
    assert_eq!(store.generation(), generation, "an agent that comes and goes voids nobody's answers");

    assert!(store.reassign_name(&name, &id(OTHER)).await.unwrap());
    assert!(!store.reassign_name(&id("nobody"), &id(OTHER)).await.unwrap());
    assert_eq!(store.claim_name(&name, &holder, 100).await.unwrap(), Claim::Foreign);
}

async fn agents_are_listed_by_page(database: &TestDatabase) {
    let store = open(database).await;
    for name in ["b", "a", "c"] {
        store.claim_name(&id(name), &id(OTHER), 1).await.unwrap();
    }
    let first = store.agents(None, 2).await.unwrap();
    assert_eq!(first.items.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let second = store.agents(first.next.as_ref(), 2).await.unwrap();
    assert_eq!(second.items.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>(), ["c"]);
    assert_eq!(second.next, None);
}

async fn a_deleted_chat_leaves_nothing(database: &TestDatabase) {
    let store = open(database).await;
    chat_with_session(&store, "c1", "s1").await;
    let manifest = set(&[("a", "a")]);
    stored(store.commit_announcement(announcement(FLOW, Some("s1"), manifest.clone())).await.unwrap());
    store.delete_chat(&id("c1")).await.unwrap();
    assert_eq!(store.session(&id("s1")).await.unwrap(), None);
    store.put_chat(&id("c1"), None, &[id("user:alice")]).await.unwrap();
    assert_eq!(listed(&store, "c1").await, []);
    assert!(store.entries(&id("c1"), &manifest.identity, None, 10).await.unwrap().items.is_empty());
}
