//! Chats and who takes part in them.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::super::AppState;
use super::super::auth::Operator;
use super::super::error::Problem;
use super::super::json::{JsonBody, Limit, PageOf, PathOf, QueryOf};
use super::super::routes::Routes;
use super::{bad_request, done};
use crate::protocol::{ChatId, Principal, timestamp};
use crate::store::{Added, Chat, ListedChat, Store};

/// Longest title of a chat, in bytes.
const TITLE_BYTES: usize = 1024;
/// Most participants of a chat.
const PARTICIPANTS: usize = 10_000;
/// Most chats on a page, and how many there are when nobody says.
const CHATS_PAGE: u32 = 1000;
const CHATS_PAGE_DEFAULT: u32 = 200;

pub(super) fn routes() -> Routes {
    Routes::new()
        .route("/v1/chats", get(list_chats))
        .route("/v1/chats/{chat}", put(put_chat).get(get_chat).delete(delete_chat))
        // A wildcard, because a principal may hold slashes and not everyone escapes them.
        .route("/v1/chats/{chat}/participants/{*principal}", put(add_participant).delete(remove_participant))
}

#[derive(Debug, Serialize)]
struct ListedView {
    chat: ChatId,
    title: Option<String>,
    /// How many: who they are, the chat itself tells.
    participants: u64,
    created_at: String,
}

impl From<ListedChat> for ListedView {
    fn from(chat: ListedChat) -> Self {
        let ListedChat { id, title, created_at, participants } = chat;
        Self { chat: id, title, participants, created_at: timestamp::format_nearest(created_at) }
    }
}

#[derive(Debug, Serialize)]
struct ChatList {
    chats: Vec<ListedView>,
    next_cursor: Option<ChatId>,
}

async fn list_chats(
    _: Operator,
    State(state): State<AppState>,
    QueryOf(page): QueryOf<PageOf<ChatId>>,
) -> Result<Json<ChatList>, Problem> {
    let limit = Limit::of(page.limit, CHATS_PAGE_DEFAULT, CHATS_PAGE);
    let page = state.store.chats(page.cursor.as_ref(), limit).await?;
    let chats = page.items.into_iter().map(ListedView::from).collect();
    Ok(Json(ChatList { chats, next_cursor: page.next }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChatBody {
    participants: Vec<Principal>,
    #[serde(default)]
    title: Option<String>,
}

#[derive(Debug, Serialize)]
struct ChatView {
    chat: ChatId,
    title: Option<String>,
    participants: Vec<Principal>,
    created_at: String,
}

impl From<Chat> for ChatView {
    fn from(chat: Chat) -> Self {
        let Chat { id, title, created_at, mut participants } = chat;
        participants.sort();
        Self { chat: id, title, participants, created_at: timestamp::format_nearest(created_at) }
    }
}

async fn chat_view(store: &Store, chat: &ChatId) -> Result<Json<ChatView>, Problem> {
    store.chat(chat).await?.map(|chat| Json(chat.into())).ok_or(Problem::NotFound)
}

async fn put_chat(
    _: Operator,
    State(state): State<AppState>,
    PathOf(chat): PathOf<String>,
    JsonBody(body): JsonBody<ChatBody>,
) -> Result<Response, Problem> {
    let chat: ChatId = chat.parse().map_err(bad_request)?;
    if body.participants.len() > PARTICIPANTS {
        return Err(Problem::BadRequest("a chat has at most 10000 participants".into()));
    }
    if body.title.as_ref().is_some_and(|title| title.len() > TITLE_BYTES || title.chars().any(char::is_control)) {
        return Err(Problem::BadRequest("a title has at most 1024 bytes, and no control characters".into()));
    }
    let new = state.store.put_chat(&chat, body.title.as_deref(), &body.participants).await?;
    state.sets.look_up_agents_or_lose(&chat).await;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, chat_view(&state.store, &chat).await?).into_response())
}

async fn get_chat(
    _: Operator,
    State(state): State<AppState>,
    PathOf(chat): PathOf<ChatId>,
) -> Result<Json<ChatView>, Problem> {
    chat_view(&state.store, &chat).await
}

async fn delete_chat(
    _: Operator,
    State(state): State<AppState>,
    PathOf(chat): PathOf<ChatId>,
) -> Result<StatusCode, Problem> {
    done(state.store.delete_chat(&chat).await?)
}

async fn add_participant(
    _: Operator,
    State(state): State<AppState>,
    PathOf((chat, principal)): PathOf<(ChatId, String)>,
) -> Result<StatusCode, Problem> {
    let principal: Principal = principal.parse().map_err(bad_request)?;
    let added = state.store.add_participant(&chat, &principal).await?;
    state.sets.look_up_agents_or_lose(&chat).await;
    done(added == Added::Participant)
}

async fn remove_participant(
    _: Operator,
    State(state): State<AppState>,
    PathOf((chat, principal)): PathOf<(ChatId, Principal)>,
) -> Result<StatusCode, Problem> {
    let removed = state.store.remove_participant(&chat, &principal).await?;
    state.sets.look_up_agents_or_lose(&chat).await;
    done(removed)
}
