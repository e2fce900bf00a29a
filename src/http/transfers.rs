//! The operator's view of the transfers that run.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::routing::{delete, get};
use http::StatusCode;
use serde::Serialize;

use super::AppState;
use super::auth::Operator;
use super::error::Problem;
use super::json::PathOf;
use super::routes::Routes;
use crate::protocol::{Principal, Sha256, timestamp};
use crate::transfer::{Live, TransferId};

/// The routes of this file.
pub fn routes() -> Routes {
    Routes::new().route("/v1/transfers", get(list)).route("/v1/transfers/{id}", delete(cancel))
}

#[derive(Serialize)]
struct TransferList {
    transfers: Vec<Transfer>,
    /// Most that may run at once.
    limit: usize,
}

#[derive(Serialize)]
struct Transfer {
    id: u64,
    reader: Principal,
    agent: Principal,
    sha256: Sha256,
    /// The first byte, and one past the last.
    start: u64,
    end: u64,
    sent_bytes: u64,
    state: &'static str,
    started_at: String,
}

impl Transfer {
    fn of(live: &Arc<Live>) -> Self {
        Self {
            id: live.id.0,
            reader: live.reader.clone(),
            agent: live.agent(),
            sha256: live.sha256,
            start: live.range.start,
            end: live.range.end,
            sent_bytes: live.sent(),
            state: live.state().name(),
            started_at: timestamp::format_nearest(live.since),
        }
    }
}

async fn list(_: Operator, State(state): State<AppState>) -> Json<TransferList> {
    let transfers = state.transfers.running().iter().map(Transfer::of).collect();
    Json(TransferList { transfers, limit: state.transfers.limit() })
}

/// Ends a transfer: its response is cut. 204, also when it is ending on its own already; 404 for one that never ran.
async fn cancel(_: Operator, State(state): State<AppState>, PathOf(id): PathOf<u64>) -> Result<StatusCode, Problem> {
    if state.transfers.cancel(TransferId(id)) { Ok(StatusCode::NO_CONTENT) } else { Err(Problem::NotFound) }
}
