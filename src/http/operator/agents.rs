//! Agents: their names, whether they are connected, and the keys that they are known by.

use axum::Json;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::super::AppState;
use super::super::auth::Operator;
use super::super::error::Problem;
use super::super::json::{JsonBody, Limit, PageOf, PathOf, QueryOf};
use super::super::routes::Routes;
use super::{done, resolve_agent};
use crate::protocol::{AgentName, Principal, timestamp};
use crate::store::{AgentRecord, HeldKey};

/// Most agents on a page, and how many there are when nobody says.
const AGENTS_PAGE: u32 = 200;

pub(super) fn routes() -> Routes {
    Routes::new()
        .route("/v1/agents", get(list_agents))
        .route("/v1/agents/{agent}", get(get_agent).put(put_agent))
        .route("/v1/agents/{agent}/keys", get(list_keys).delete(forget_keys))
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

async fn list_agents(
    _: Operator,
    State(state): State<AppState>,
    QueryOf(page): QueryOf<PageOf<AgentName>>,
) -> Result<Json<AgentList>, Problem> {
    let limit = Limit::of(page.limit, AGENTS_PAGE, AGENTS_PAGE);
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

#[derive(Debug, Serialize)]
struct KeyView {
    thumbprint: String,
    first_seen_at: String,
    last_seen_at: String,
}

impl From<HeldKey> for KeyView {
    fn from(key: HeldKey) -> Self {
        let HeldKey { thumbprint, first_seen_at, last_seen_at } = key;
        Self {
            thumbprint,
            first_seen_at: timestamp::format_nearest(first_seen_at),
            last_seen_at: timestamp::format_nearest(last_seen_at),
        }
    }
}

#[derive(Debug, Serialize)]
struct KeyList {
    agent: Principal,
    keys: Vec<KeyView>,
}

/// The keys that an agent is known by, the latest first. The agent is written by its name or as a principal, for one that
/// only reads has no name.
async fn list_keys(
    _: Operator,
    State(state): State<AppState>,
    PathOf(agent): PathOf<String>,
) -> Result<Json<KeyList>, Problem> {
    let agent = whose_keys(&state, &agent).await?;
    let keys = state.store.keys(&agent).await?;
    if keys.is_empty() {
        return Err(Problem::NotFound);
    }
    Ok(Json(KeyList { agent, keys: keys.into_iter().map(KeyView::from).collect() }))
}

/// Forgets the keys that an agent is known by, so that it can go on with new ones after it lost the old.
async fn forget_keys(
    _: Operator,
    State(state): State<AppState>,
    PathOf(agent): PathOf<String>,
) -> Result<StatusCode, Problem> {
    let agent = whose_keys(&state, &agent).await?;
    done(state.signatures.forget_keys(&agent).await?)
}

/// What is no agent's name or principal has no keys.
async fn whose_keys(state: &AppState, agent: &str) -> Result<Principal, Problem> {
    resolve_agent(&state.store, agent).await.map_err(|problem| match problem {
        Problem::BadRequest(_) => Problem::NotFound,
        problem => problem,
    })
}
