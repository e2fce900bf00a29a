//! Links to one file, for tools that can send no header.
//!
//! A link reads as the one who made it, in its chat and nothing else, and is judged anew each time it is used: it opens
//! nothing that its maker may not read any more. Whoever has the address has the file, so links are off until an operator
//! turns them on, and operators see and end those of everybody. What opens one is told to its maker once, and nobody else.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get};
use http::header::{CACHE_CONTROL, REFERRER_POLICY};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};

use super::AppState;
use super::auth::{Operator, Visitor};
use super::download::Way;
use super::error::Problem;
use super::json::{JsonBody, Limit, PathOf, QueryOf};
use super::native::{participant, serve_file};
use super::routes::Routes;
use crate::config::Span;
use crate::identity::{Caller, Purpose};
use crate::protocol::timestamp;
use crate::protocol::{ChatId, Principal, Sha256};
use crate::store::{LinkAdded, LinkFilter, LinkRecord};

/// What a link is downloaded by.
pub const LINK_ROUTE: &str = "/l/{secret}";
/// Most links that one principal has at a time.
const LINKS: u32 = 256;
/// How long a link is good for when nobody says.
const TTL: Duration = Duration::from_secs(60 * 60);
/// Most links on an operator's page, and how many there are when nobody says.
const PAGE: u32 = 1000;
const PAGE_DEFAULT: u32 = 200;

const X_ROBOTS_TAG: HeaderName = HeaderName::from_static("x-robots-tag");

/// The routes by which links are made and ended.
pub fn routes() -> Routes {
    Routes::new()
        .route("/v1/chats/{chat}/links", get(list).post(make))
        .route("/v1/chats/{chat}/links/{id}", delete(revoke))
        .route("/v1/links", get(list_all))
        .route("/v1/links/{id}", delete(end))
}

/// The route by which they are used.
pub fn downloads() -> Routes {
    Routes::new().route(LINK_ROUTE, get(follow))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkBody {
    set: Sha256,
    path: String,
    #[serde(default)]
    ttl: Option<Span>,
}

#[derive(Serialize)]
struct NewLink {
    id: String,
    url: String,
    expires_at: String,
}

#[derive(Serialize)]
struct LinkList {
    links: Vec<LinkView>,
}

#[derive(Serialize)]
struct LinkView {
    id: String,
    set: Sha256,
    path: String,
    created_at: String,
    expires_at: String,
}

impl From<LinkRecord> for LinkView {
    fn from(link: LinkRecord) -> Self {
        Self {
            id: link.id,
            set: link.manifest,
            path: link.path,
            created_at: timestamp::format_nearest(link.created_at),
            expires_at: timestamp::format_nearest(link.expires_at),
        }
    }
}

async fn make(
    Visitor(caller): Visitor,
    State(state): State<AppState>,
    PathOf(chat): PathOf<ChatId>,
    JsonBody(body): JsonBody<LinkBody>,
) -> Result<Response, Problem> {
    participant(&state, &caller, &chat).await?;
    let longest = state.links.ok_or(Problem::LinksOff)?;
    let ttl = body.ttl.map_or(TTL.min(longest), Span::get);
    if ttl.is_zero() || ttl > longest {
        let longest = humantime::format_duration(longest);
        return Err(Problem::BadRequest(format!("a link is good for more than no time and at most {longest}").into()));
    }
    let file = state.access.file(&caller, &chat, &body.set, &body.path).await?.ok_or(Problem::NotFound)?;
    let now = state.clock.unix_millis();
    let expires_at = now.saturating_add(timestamp::millis(ttl));
    let secret = state.handed_out.issue(Purpose::Link);
    let link = LinkRecord {
        id: format!("{:032x}", rand::random::<u128>()),
        principal: caller.principal,
        chat,
        manifest: body.set,
        path: file.path.to_string(),
        created_at: now,
        expires_at,
    };
    match state.store.add_link(&state.handed_out.hash(Purpose::Link, &secret), &link, LINKS).await? {
        LinkAdded::Added => {}
        LinkAdded::NoSuchChat => return Err(Problem::NotFound),
        LinkAdded::TooMany => {
            return Err(Problem::Conflict(format!("you have {LINKS} links already: delete one, or wait").into()));
        }
    }
    let url = format!("{}/l/{}", state.public_url, secret.expose());
    let no_store = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    let view = NewLink { id: link.id, url, expires_at: timestamp::format_nearest(expires_at) };
    Ok((StatusCode::CREATED, no_store, Json(view)).into_response())
}

/// The caller's own links in a chat. Their addresses are not known here any more.
async fn list(
    Visitor(caller): Visitor,
    State(state): State<AppState>,
    PathOf(chat): PathOf<ChatId>,
) -> Result<Json<LinkList>, Problem> {
    participant(&state, &caller, &chat).await?;
    let links = state.store.links(&caller.principal, &chat).await?;
    Ok(Json(LinkList { links: links.into_iter().map(LinkView::from).collect() }))
}

/// What names a link to its maker and to operators: 32 hex digits. Anything else is no link's.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct LinkId(String);

impl TryFrom<String> for LinkId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_id = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if is_id { Ok(Self(text)) } else { Err("a link's id is 32 hex digits") }
    }
}

async fn revoke(
    Visitor(caller): Visitor,
    State(state): State<AppState>,
    PathOf((chat, id)): PathOf<(ChatId, LinkId)>,
) -> Result<StatusCode, Problem> {
    participant(&state, &caller, &chat).await?;
    match state.store.remove_link(&caller.principal, &chat, &id.0).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::NotFound),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllQuery {
    principal: Option<Principal>,
    chat: Option<ChatId>,
    cursor: Option<LinkId>,
    limit: Option<Limit>,
}

#[derive(Serialize)]
struct AllLinks {
    links: Vec<OwnedView>,
    next_cursor: Option<String>,
}

/// A link as operators see it.
#[derive(Serialize)]
struct OwnedView {
    principal: Principal,
    chat: ChatId,
    #[serde(flatten)]
    link: LinkView,
}

/// Everybody's links.
async fn list_all(
    _: Operator,
    State(state): State<AppState>,
    QueryOf(query): QueryOf<AllQuery>,
) -> Result<Json<AllLinks>, Problem> {
    let filter = LinkFilter { principal: query.principal, chat: query.chat };
    let limit = Limit::of(query.limit, PAGE_DEFAULT, PAGE);
    let page = state.store.all_links(&filter, query.cursor.as_ref().map(|id| id.0.as_str()), limit).await?;
    let view =
        |link: LinkRecord| OwnedView { principal: link.principal.clone(), chat: link.chat.clone(), link: link.into() };
    Ok(Json(AllLinks { links: page.items.into_iter().map(view).collect(), next_cursor: page.next }))
}

async fn end(_: Operator, State(state): State<AppState>, PathOf(id): PathOf<LinkId>) -> Result<StatusCode, Problem> {
    if state.store.end_link(&id.0).await? { Ok(StatusCode::NO_CONTENT) } else { Err(Problem::NotFound) }
}

/// The file behind a link, as its maker would be served it.
async fn follow(
    State(state): State<AppState>,
    method: Method,
    PathOf(secret): PathOf<String>,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let link = match state.handed_out.read(Purpose::Link, &secret) {
        Some(secret) if state.links.is_some() => state.handed_out.link(&secret).await?,
        _ => None,
    };
    let Some(link) = link else {
        state.limiter.failed(&extensions)?;
        return Err(Problem::NotFound);
    };
    let caller = Caller { principal: link.principal, chats: Some([link.chat.clone()].into()) };
    state.limiter.link(&extensions, &link.id)?;
    let file = state.access.file(&caller, &link.chat, &link.manifest, &link.path).await?.ok_or(Problem::NotFound)?;
    let way = Way { chat: Some(link.chat), link: Some(link.id), ..Way::default() };
    let mut response = serve_file(&state, &caller, &method, &headers, (file, way)).await?;
    // The address is the credential: no other site is to learn it from a browser, and no search engine to keep it.
    response.headers_mut().insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response.headers_mut().insert(X_ROBOTS_TAG, HeaderValue::from_static("noindex"));
    Ok(response)
}
