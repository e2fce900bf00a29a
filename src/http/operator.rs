//! The operator's face: chats and who takes part in them, sessions of turns, agents' names.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::AppState;
use super::auth::Operator;
use super::error::Problem;
use super::json::{JsonBody, PathOf, QueryOf};
use super::routes::Routes;
use crate::protocol::{AgentName, ChatId, Principal, SessionId, timestamp};
use crate::store::{Added, AgentRecord, Binding, Chat, Store};

/// Longest title of a chat, in bytes.
const TITLE_BYTES: usize = 1024;
/// Most participants of a chat.
const PARTICIPANTS: usize = 10_000;
/// Most agents on a page, and how many there are when nobody says.
const AGENTS_PAGE: u32 = 200;

/// The routes.
pub fn routes() -> Routes {
    Routes::new()
        .route("/v1/chats/{chat}", put(put_chat).get(get_chat).delete(delete_chat))
        // A wildcard, because a principal may hold slashes and not everyone escapes them.
        .route("/v1/chats/{chat}/participants/{*principal}", put(add_participant).delete(remove_participant))
        .route("/v1/sessions", post(bind_session))
        .route("/v1/agents", get(list_agents))
        .route("/v1/agents/{agent}", get(get_agent).put(put_agent))
        .route("/v1/agents/{agent}/keys", delete(forget_keys))
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionBody {
    session_id: SessionId,
    chat: ChatId,
    agent: String,
}

#[derive(Debug, Serialize)]
struct SessionView {
    session_id: SessionId,
    chat: ChatId,
    agent: Principal,
}

async fn bind_session(
    _: Operator,
    State(state): State<AppState>,
    JsonBody(body): JsonBody<SessionBody>,
) -> Result<Response, Problem> {
    let SessionBody { session_id, chat, agent } = body;
    let agent = resolve_agent(&state.store, &agent).await?;
    let status = match state.store.bind_session(&agent, &session_id, &chat).await? {
        Binding::Bound(sets) => {
            if sets > 0 {
                state.sets.tell_bound(&agent, &session_id, &chat).await;
            }
            StatusCode::CREATED
        }
        Binding::Unchanged => StatusCode::OK,
        Binding::Conflict => return Err(Problem::Conflict("the session is bound to another agent or chat".into())),
        Binding::NoSuchChat => {
            let message = format!("there is no chat {chat}: make it first, with PUT /v1/chats/{{chat}}");
            return Err(Problem::Missing(message.into()));
        }
        Binding::QuotaExceeded(exceeded) => {
            let message = format!("sets wait for this session, and {exceeded}: make room there, or raise its limits");
            return Err(Problem::Conflict(message.into()));
        }
    };
    Ok((status, Json(SessionView { session_id, chat, agent })).into_response())
}

/// An agent as an operator writes it: its principal, or the name that it holds. A name that nobody holds yet is taken
/// for the id of an agent that is still to connect: `agent:<name>`, what `sluice token agent --name` makes of it.
async fn resolve_agent(store: &Store, written: &str) -> Result<Principal, Problem> {
    if written.starts_with("agent:") {
        return written.parse().map_err(bad_request);
    }
    let name: AgentName = written.parse().map_err(bad_request)?;
    match store.agent_by_name(&name).await? {
        Some(record) => Ok(record.principal),
        None => Principal::agent(name.as_str()).map_err(bad_request),
    }
}

#[derive(Debug, Serialize)]
struct AgentView {
    name: AgentName,
    principal: Principal,
    online: bool,
    created_at: String,
    last_seen_at: String,
}

impl AgentView {
    fn of(record: AgentRecord, state: &AppState) -> Self {
        let AgentRecord { name, principal, created_at, last_seen_at } = record;
        let online = state.agents.registry.get(&principal);
        // Frames are not written down: of an agent that is connected, its connections know better than the store.
        let last_seen_at = online.as_ref().map_or(last_seen_at, |online| last_seen_at.max(online.heard_at));
        Self {
            name,
            principal,
            online: online.is_some(),
            created_at: timestamp::format_nearest(created_at),
            last_seen_at: timestamp::format_nearest(last_seen_at),
        }
    }
}

#[derive(Debug, Serialize)]
struct AgentList {
    agents: Vec<AgentView>,
    next_cursor: Option<AgentName>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentPage {
    cursor: Option<AgentName>,
    limit: Option<u32>,
}

async fn list_agents(
    _: Operator,
    State(state): State<AppState>,
    QueryOf(page): QueryOf<AgentPage>,
) -> Result<Json<AgentList>, Problem> {
    let limit = page.limit.unwrap_or(AGENTS_PAGE).clamp(1, AGENTS_PAGE);
    let page = state.store.agents(page.cursor.as_ref(), limit).await?;
    let agents = page.items.into_iter().map(|record| AgentView::of(record, &state)).collect();
    Ok(Json(AgentList { agents, next_cursor: page.next }))
}

async fn get_agent(
    _: Operator,
    State(state): State<AppState>,
    PathOf(name): PathOf<AgentName>,
) -> Result<Json<AgentView>, Problem> {
    let record = state.store.agent_by_name(&name).await?.ok_or(Problem::NotFound)?;
    Ok(Json(AgentView::of(record, &state)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentBody {
    principal: Principal,
}

/// Gives a name to another agent: the one way to take it from whoever held it first, whose connections end.
async fn put_agent(
    operator: Operator,
    State(state): State<AppState>,
    PathOf(name): PathOf<AgentName>,
    JsonBody(body): JsonBody<AgentBody>,
) -> Result<Json<AgentView>, Problem> {
    if !body.principal.is_agent() {
        return Err(Problem::BadRequest("a name belongs to an agent: agent:<id>".into()));
    }
    let old = state.store.agent_by_name(&name).await?.ok_or(Problem::NotFound)?;
    if !state.store.reassign_name(&name, &body.principal).await? {
        return Err(Problem::NotFound);
    }
    if old.principal != body.principal {
        state.agents.registry.evict(&old.principal);
    }
    get_agent(operator, State(state), PathOf(name)).await
}

/// Forgets the keys that an agent is known by, so that it can go on with new ones after it lost the old. The agent is
/// written by its name or as a principal, for one that only reads has no name.
async fn forget_keys(
    _: Operator,
    State(state): State<AppState>,
    PathOf(agent): PathOf<String>,
) -> Result<StatusCode, Problem> {
    let agent = resolve_agent(&state.store, &agent).await.map_err(|problem| match problem {
        Problem::BadRequest(_) => Problem::NotFound,
        problem => problem,
    })?;
    done(state.signatures.forget_keys(&agent).await?)
}

fn done(found: bool) -> Result<StatusCode, Problem> {
    if found { Ok(StatusCode::NO_CONTENT) } else { Err(Problem::NotFound) }
}

fn bad_request(error: impl std::fmt::Display) -> Problem {
    Problem::BadRequest(error.to_string().into())
}
