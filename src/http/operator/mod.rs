//! The operator's face: chats and who takes part in them, sessions of turns, agents' names and keys.

mod agents;
mod chats;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::AppState;
use super::auth::Operator;
use super::error::Problem;
use super::json::JsonBody;
use super::routes::Routes;
use crate::protocol::{AgentName, ChatId, Principal, SessionId};
use crate::store::{Binding, Store};

/// The routes.
pub fn routes() -> Routes {
    Routes::new().route("/v1/sessions", post(bind_session)).merge(chats::routes()).merge(agents::routes())
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
        Binding::Conflict => return Err(bound_already(&state, &session_id).await?),
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

/// Says how a session is bound. It stays so: what was announced with it is in that chat.
async fn bound_already(state: &AppState, session: &SessionId) -> Result<Problem, Problem> {
    let how = match state.store.session(session).await? {
        Some(bound) => format!("bound to {} and chat {}", bound.agent, bound.chat),
        None => "bound to another agent or chat".to_owned(),
    };
    Ok(Problem::Conflict(format!("the session is {how} already, and stays so: use another session id").into()))
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

fn done(found: bool) -> Result<StatusCode, Problem> {
    if found { Ok(StatusCode::NO_CONTENT) } else { Err(Problem::NotFound) }
}

fn bad_request(error: impl std::fmt::Display) -> Problem {
    Problem::BadRequest(error.to_string().into())
}
