//! The readers' own face: a chat's sets, what is in them, and their files by path.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::{HeaderMap, Method};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::AppState;
use super::auth::Visitor;
use super::download::{self, Content, Representation, Way, named_task};
use super::error::Problem;
use super::json::{Limit, PathOf, QueryOf};
use super::routes::Routes;
use crate::access::FileAccess;
use crate::identity::Caller;
use crate::protocol::{ChatId, Sha256};
use crate::sets::{EntryList, SetList, VersionList};
use crate::store::{Cursor, FileId};

/// The media type of a manifest's canonical bytes (specification section 2).
pub const MANIFEST_TYPE: &str = "application/vnd.webagents.artifact-set+json";

/// Where a file of a set is.
pub const FILE_ROUTE: &str = "/v1/chats/{chat}/sets/{set}/files/{*path}";

/// Where a version of a file is. By an id and not by its path, which two agents may both use in a chat.
pub const VERSION_ROUTE: &str = "/v1/chats/{chat}/files/{file}/versions/{version}";

/// Most sets on a page, and how many there are when nobody says.
const SETS_PAGE: u32 = 200;
const SETS_PAGE_DEFAULT: u32 = 50;
/// Most entries on a page, and how many there are when nobody says.
const ENTRIES_PAGE: u32 = 1000;
const ENTRIES_PAGE_DEFAULT: u32 = 200;

/// What a path segment holds as it is (RFC 3986 section 2.3).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The routes of lists.
pub fn routes() -> Routes {
    Routes::new()
        .route("/v1/chats/{chat}/sets", get(sets))
        .route("/v1/chats/{chat}/sets/{set}/entries", get(entries))
        .route("/v1/chats/{chat}/files", get(files))
        .route("/v1/chats/{chat}/files/{file}/versions", get(versions))
}

/// The routes that serve bytes.
pub fn downloads() -> Routes {
    Routes::new()
        .route("/v1/chats/{chat}/sets/{set}", get(manifest))
        .route(FILE_ROUTE, get(file))
        .route(VERSION_ROUTE, get(version))
}

/// A page of a list. The cursor is read by the handler, after it is clear that the caller may see the list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PageQuery {
    cursor: Option<String>,
    limit: Option<Limit>,
}

impl PageQuery {
    fn cursor(&self) -> Result<Option<Cursor>, Problem> {
        let cursor = self.cursor.as_deref().map(str::parse).transpose();
        cursor.map_err(|_| Problem::BadRequest("the cursor is not one from an earlier page".into()))
    }
}

/// Lets a participant of the chat pass. Everyone else is told what they are told of a chat that does not exist.
pub async fn participant(state: &AppState, caller: &Caller, chat: &ChatId) -> Result<(), Problem> {
    if state.access.is_participant(caller, chat).await? { Ok(()) } else { Err(Problem::NotFound) }
}

async fn sets(
    Visitor(caller): Visitor,
    State(state): State<AppState>,
    PathOf(chat): PathOf<ChatId>,
    QueryOf(page): QueryOf<PageQuery>,
) -> Result<Json<SetList>, Problem> {
    participant(&state, &caller, &chat).await?;
    let limit = Limit::of(page.limit, SETS_PAGE_DEFAULT, SETS_PAGE);
    let _turn = state.access.turn(&caller).await?;
    let mut list = state.sets.list(&chat, page.cursor()?, limit).await?;
    for set in &mut list.sets {
        set.online = state.agents.registry.is_online(&set.principal);
    }
    Ok(Json(list))
}

async fn manifest(
    Visitor(caller): Visitor,
    State(state): State<AppState>,
    method: Method,
    PathOf((chat, set)): PathOf<(ChatId, Sha256)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let found = state.access.set(&caller, &chat, &set).await?.ok_or(Problem::NotFound)?;
    if !found.tasks.allow(named_task(&headers).as_deref()) {
        return Err(Problem::TaskMismatch);
    }
    let representation = Representation {
        name: format!("{set}.json"),
        media_type: MANIFEST_TYPE.to_owned(),
        content: Content::Here(found.manifest),
        way: Way { chat: Some(chat), ..Way::default() },
    };
    download::serve(&state, &caller, &method, &headers, representation).await
}

async fn file(
    Visitor(caller): Visitor,
    State(state): State<AppState>,
    method: Method,
    PathOf((chat, set, path)): PathOf<(ChatId, Sha256, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let file = state.access.file(&caller, &chat, &set, &path).await?.ok_or(Problem::NotFound)?;
    serve_file(&state, &caller, &method, &headers, (file, Way { chat: Some(chat), ..Way::default() })).await
}

/// A file that was found for the caller, and the way it was found, which its path completes. A nested manifest is kept
/// here and asks no agent. A task that the request names must be one of its sets'; none has to be named, for who asks by
/// a set's path has named the set, and browsers can send no header.
pub(super) async fn serve_file(
    state: &AppState,
    caller: &Caller,
    method: &Method,
    headers: &HeaderMap,
    (file, way): (FileAccess, Way),
) -> Result<Response, Problem> {
    if !file.tasks.allow(named_task(headers).as_deref()) {
        return Err(Problem::TaskMismatch);
    }
    let content = match file.nested_manifest() {
        Some(manifest) => Content::Here(manifest),
        None => Content::Remote(file.readable.into()),
    };
    let way = Way { path: Some(file.path.to_string()), ..way };
    let representation =
        Representation { name: file.path.to_string(), media_type: file.media_type.to_string(), content, way };
    download::serve(state, caller, method, headers, representation).await
}

async fn files(
    Visitor(caller): Visitor,
    State(state): State<AppState>,
    PathOf(chat): PathOf<ChatId>,
    QueryOf(page): QueryOf<PageQuery>,
) -> Result<Json<VersionList>, Problem> {
    participant(&state, &caller, &chat).await?;
    let limit = Limit::of(page.limit, ENTRIES_PAGE_DEFAULT, ENTRIES_PAGE);
    let _turn = state.access.turn(&caller).await?;
    let list = state.sets.files(&chat, page.cursor()?, limit).await?;
    Ok(Json(with_urls(&state, &chat, list)))
}

async fn versions(
    Visitor(caller): Visitor,
    State(state): State<AppState>,
    PathOf((chat, file)): PathOf<(ChatId, FileId)>,
    QueryOf(page): QueryOf<PageQuery>,
) -> Result<Json<VersionList>, Problem> {
    participant(&state, &caller, &chat).await?;
    let limit = Limit::of(page.limit, ENTRIES_PAGE_DEFAULT, ENTRIES_PAGE);
    let _turn = state.access.turn(&caller).await?;
    let list = state.sets.versions(&chat, file, page.cursor()?, limit).await?.ok_or(Problem::NotFound)?;
    Ok(Json(with_urls(&state, &chat, list)))
}

async fn version(
    Visitor(caller): Visitor,
    State(state): State<AppState>,
    method: Method,
    PathOf((chat, file, version)): PathOf<(ChatId, FileId, u32)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let file = state.access.version(&caller, &chat, file, version).await?.ok_or(Problem::NotFound)?;
    serve_file(&state, &caller, &method, &headers, (file, Way { chat: Some(chat), ..Way::default() })).await
}

fn with_urls(state: &AppState, chat: &ChatId, mut list: VersionList) -> VersionList {
    let (base, chat) = (&state.public_url, utf8_percent_encode(chat.as_str(), SEGMENT));
    for file in &mut list.files {
        file.url = format!("{base}/v1/chats/{chat}/files/{}/versions/{}", file.id, file.version);
    }
    list
}

async fn entries(
    Visitor(caller): Visitor,
    State(state): State<AppState>,
    PathOf((chat, set)): PathOf<(ChatId, Sha256)>,
    QueryOf(page): QueryOf<PageQuery>,
) -> Result<Json<EntryList>, Problem> {
    participant(&state, &caller, &chat).await?;
    let limit = Limit::of(page.limit, ENTRIES_PAGE_DEFAULT, ENTRIES_PAGE);
    let _turn = state.access.turn(&caller).await?;
    let list = state.sets.entries(&chat, &set, page.cursor()?, limit).await?;
    let mut list = list.ok_or(Problem::NotFound)?;
    for entry in &mut list.entries {
        entry.url = file_url(&state, &chat, &set, &entry.path);
    }
    Ok(Json(list))
}

/// Where a file of a set is downloaded.
pub fn file_url(state: &AppState, chat: &ChatId, set: &Sha256, path: &str) -> String {
    let base = &state.public_url;
    let chat = utf8_percent_encode(chat.as_str(), SEGMENT);
    let path: Vec<String> = path.split('/').map(|part| utf8_percent_encode(part, SEGMENT).to_string()).collect();
    format!("{base}/v1/chats/{chat}/sets/{set}/files/{}", path.join("/"))
}
