//! The operator's view of who read what.

use axum::Json;
use axum::extract::State;
use axum::routing::get;
use serde::{Deserialize, Serialize};

use super::AppState;
use super::auth::Operator;
use super::error::Problem;
use super::json::{Limit, QueryOf};
use super::routes::Routes;
use crate::protocol::{ChatId, Principal, Sha256, timestamp};
use crate::store::{ReadFilter, ReadRecord};

/// Most reads on a page, and how many there are when nobody says.
const PAGE: u32 = 1000;
const PAGE_DEFAULT: u32 = 200;

/// The route of this file.
pub fn routes() -> Routes {
    Routes::new().route("/v1/audit", get(list))
}

/// Which reads: `since` and `until` bound the time at which they ended.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    principal: Option<Principal>,
    chat: Option<ChatId>,
    agent: Option<Principal>,
    sha256: Option<Sha256>,
    since: Option<String>,
    until: Option<String>,
    cursor: Option<String>,
    limit: Option<Limit>,
}

#[derive(Serialize)]
struct ReadList {
    reads: Vec<ReadView>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct ReadView {
    principal: Principal,
    chat: Option<ChatId>,
    agents: Vec<Principal>,
    sha256: Sha256,
    path: Option<String>,
    /// The first byte, and one past the last.
    start: u64,
    end: u64,
    sent_bytes: u64,
    outcome: String,
    started_at: String,
    duration_ms: u64,
    transfer: Option<u64>,
    link: Option<String>,
}

impl From<ReadRecord> for ReadView {
    fn from(read: ReadRecord) -> Self {
        Self {
            principal: read.principal,
            chat: read.chat,
            agents: read.agents,
            sha256: read.sha256,
            path: read.path,
            start: read.range.start,
            end: read.range.end,
            sent_bytes: read.sent_bytes,
            outcome: read.outcome,
            started_at: timestamp::format_nearest(read.started_at),
            duration_ms: read.duration_ms,
            transfer: read.transfer,
            link: read.link,
        }
    }
}

async fn list(
    _: Operator,
    State(state): State<AppState>,
    QueryOf(query): QueryOf<AuditQuery>,
) -> Result<Json<ReadList>, Problem> {
    let cursor = query.cursor.as_deref().map(str::parse).transpose();
    let cursor = cursor.map_err(|_| Problem::BadRequest("the cursor is not one from an earlier page".into()))?;
    let filter = ReadFilter {
        principal: query.principal,
        chat: query.chat,
        agent: query.agent,
        sha256: query.sha256,
        since: time("since", query.since.as_deref())?,
        until: time("until", query.until.as_deref())?,
    };
    let limit = Limit::of(query.limit, PAGE_DEFAULT, PAGE);
    let page = state.store.reads(&filter, cursor, limit).await?;
    let reads = page.items.into_iter().map(ReadView::from).collect();
    Ok(Json(ReadList { reads, next_cursor: page.next.map(|cursor| cursor.to_string()) }))
}

fn time(name: &str, text: Option<&str>) -> Result<Option<i64>, Problem> {
    let invalid = || Problem::BadRequest(format!("{name} is a time such as 2026-10-17T10:00:00Z").into());
    text.map(|text| timestamp::parse(text).ok_or_else(invalid)).transpose()
}
