//! The store, on both databases.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../support/db.rs"]
mod db;
#[path = "../support/sets.rs"]
mod sets;

mod announcements;
mod chats;
mod contents;
mod opening;
mod outages;

use sets::id;
use sluice::protocol::Sha256;
use sluice::store::{Announced, Binding, Commit, Store};

const FLOW: &str = "agent:https://agent.example/agents/flow";
const OTHER: &str = "agent:other";

fn stored(commit: Commit) -> Announced {
    match commit {
        Commit::Stored(announced) => announced,
        refused => panic!("not stored: {refused:?}"),
    }
}

async fn chat_with_session(store: &Store, chat: &str, session: &str) {
    store.put_chat(&id(chat), None, &[id("user:alice")]).await.unwrap();
    let bound = store.bind_session(&id(FLOW), &id(session), &id(chat)).await.unwrap();
    assert!(matches!(bound, Binding::Bound(_)), "{bound:?}");
}

async fn listed(store: &Store, chat: &str) -> Vec<Sha256> {
    let page = store.sets(&id(chat), None, 100).await.unwrap();
    page.items.into_iter().map(|set| set.sha256).collect()
}
