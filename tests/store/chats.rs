//! Chats with their participants and sessions, and the names of agents.

use sluice::protocol::{AgentName, ChatId, Principal};
use sluice::store::{Added, Binding, Claim, ListedChat, Page, Quota, Store, StoreOptions, TooManyNames};

use super::db::TestDatabase;
use super::sets::{announcement, id, open, set};
use super::{FLOW, OTHER, chat_with_session, db, listed, stored};
use crate::on_both_databases;

on_both_databases!(
    a_chat_is_created_replaced_and_deleted,
    a_session_is_bound_once,
    one_of_many_claims_gets_the_name,
    an_agent_that_may_have_one_name_gets_one_however_many_it_asks_for,
    names_are_taken_up_to_a_bound,
    who_is_known_at_a_host,
    agents_are_listed_by_page,
    chats_are_listed_by_page,
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

async fn an_agent_that_may_have_one_name_gets_one_however_many_it_asks_for(database: &TestDatabase) {
    let store = open(database).await;
    let claims = (0..8).map(|n| {
        let store = store.clone();
        async move { store.claim_only_name(&id(&format!("name{n}")), &id(FLOW), 1).await.unwrap() }
    });
    let outcomes = futures_util::future::join_all(claims).await;
    let held: Vec<usize> = (0..8).filter(|n| outcomes[*n] == Claim::Held).collect();
    assert_eq!(held.len(), 1, "{outcomes:?}");
    let name: AgentName = id(&format!("name{}", held[0]));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Claim::Other(name.clone())).count(), 7);
    assert_eq!(store.claim_only_name(&name, &id(FLOW), 100_000).await.unwrap(), Claim::Held);
}

async fn names_are_taken_up_to_a_bound(database: &TestDatabase) {
    let quota = Quota { names: 3, named_strangers_of_host: 2, ..Quota::default() };
    let store = Store::open(&database.url, StoreOptions { quota, ..StoreOptions::default() }).await.unwrap();
    let claim = async |name: &str, agent: &str| store.claim_name(&id(name), &id(agent), 1).await.unwrap();
    for name in ["a1", "a2", "a3"] {
        assert_eq!(claim(name, "agent:a").await, Claim::Held);
    }
    assert_eq!(claim("a4", "agent:a").await, Claim::TooMany(TooManyNames::Agent));
    assert_eq!(store.agent_by_name(&id("a4")).await.unwrap(), None);
    // What it holds it goes on to hold, what another has is the other's, and a name that was refused is free.
    assert_eq!(store.claim_name(&id("a1"), &id("agent:a"), 1_000_000).await.unwrap(), Claim::Held);
    assert_eq!(claim("a1", "agent:b").await, Claim::Foreign);
    assert_eq!(claim("a4", "agent:b").await, Claim::Held);
    // One host has many URLs.
    let own = async |name: &str, agent: &str| store.claim_only_name(&id(name), &id(agent), 1).await.unwrap();
    for n in 1..3 {
        assert_eq!(own(&format!("e{n}"), &format!("agent:https://evil.example/{n}")).await, Claim::Held);
    }
    for url in ["https://evil.example/3", "https://EVIL.example:443/4"] {
        assert_eq!(own("e3", &format!("agent:{url}")).await, Claim::TooMany(TooManyNames::Host), "{url}");
    }
    assert_eq!(own("g", "agent:https://good.example/1").await, Claim::Held);
    assert_eq!(own("e1", "agent:https://evil.example/1").await, Claim::Held);
    // Whom an operator lets in is no stranger, and takes nobody's place.
    store.put_chat(&id("c1"), None, &[id("agent:https://evil.example/3")]).await.unwrap();
    assert_eq!(own("e3", "agent:https://evil.example/3").await, Claim::Held);
    assert_eq!(own("e4", "agent:https://evil.example/4").await, Claim::TooMany(TooManyNames::Host));
}

async fn who_is_known_at_a_host(database: &TestDatabase) {
    let store = open(database).await;
    let hosts: std::collections::HashSet<String> = ["h:443", "x:443", "y:443"].map(str::to_owned).into();
    let sole = async || {
        let sole = store.sole_at(&hosts).await.unwrap();
        let mut sole: Vec<_> = sole.into_iter().map(|(host, who)| format!("{host} {who}")).collect();
        sole.sort();
        sole
    };
    let claim = async |who: &str, hosts: &[&str]| {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        store.claim_endpoints(&id(who), hosts).await.unwrap();
    };
    claim("agent:a", &["h:443", "x:443"]).await;
    assert_eq!(sole().await, ["h:443 agent:a", "x:443 agent:a"]);
    let generation = store.generation();
    claim("agent:a", &["h:443"]).await;
    assert_eq!(store.generation(), generation, "nothing new");
    claim("agent:b", &["x:443"]).await;
    assert!(store.generation() > generation, "what was known of x is void");
    assert_eq!(sole().await, ["h:443 agent:a"]);
    // An agent known by its URL is known there however it comes to be known, and claims nothing by announcing.
    claim("agent:https://z/agents/u", &["y:443"]).await;
    assert_eq!(sole().await, ["h:443 agent:a"]);
    store.put_chat(&id("c1"), None, &[id("agent:https://h/agents/x")]).await.unwrap();
    assert_eq!(sole().await, [""; 0]);
    store.bind_session(&id("agent:https://y"), &id("s1"), &id("c1")).await.unwrap();
    assert_eq!(sole().await, ["y:443 agent:https://y"]);
    store.claim_name(&id("n"), &id("agent:https://y/z"), 1).await.unwrap();
    assert_eq!(sole().await, [""; 0]);
    // One agent has so many.
    let many: Vec<String> = (0..100).map(|n| format!("m{n}:443")).collect();
    claim("agent:many", &many.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(store.sole_at(&many.into_iter().collect()).await.unwrap().len(), 64);
    // What nobody is known by any more goes, after a while.
    assert_eq!(store.sweep_endpoints(1000).await.unwrap(), 0);
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

async fn chats_are_listed_by_page(database: &TestDatabase) {
    let store = open(database).await;
    store.put_chat(&id("c2"), None, &[]).await.unwrap();
    store.put_chat(&id("C3"), Some("title"), &[id("user:alice"), id("*")]).await.unwrap();
    store.put_chat(&id("c1"), None, &[id("user:bob")]).await.unwrap();
    let first = store.chats(None, 2).await.unwrap();
    let seen = |page: &Page<ListedChat, ChatId>| {
        page.items.iter().map(|chat| (chat.id.to_string(), chat.participants)).collect::<Vec<_>>()
    };
    assert_eq!(seen(&first), [("C3".to_owned(), 2), ("c1".to_owned(), 1)]);
    assert_eq!(first.items[0].title.as_deref(), Some("title"));
    let second = store.chats(first.next.as_ref(), 2).await.unwrap();
    assert_eq!((seen(&second), second.next), (vec![("c2".to_owned(), 0)], None));
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
