//! The producer endpoint's shape (specification section 2) over every set that the caller may read: an unmodified
//! client uses the gateway as an `https` or `robutler` location.

use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::{HeaderMap, Method};
use serde::Deserialize;

use super::AppState;
use super::auth::Reader;
use super::download::{self, Content, Representation, Way, named_task};
use super::error::Problem;
use super::json::PathOf;
use super::native::MANIFEST_TYPE;
use super::routes::Routes;
use crate::access::{BlobAnswer, BlobRequest};
use crate::protocol::{AgentName, Sha256};

const OCTET_STREAM: &str = "application/octet-stream";

/// The three routes that name a blob by its hash.
pub const ROUTES: [&str; 3] =
    ["/artifacts/blobs/{name}", "/agents/{agent}/artifacts/blobs/{name}", "/api/blob/cas/{hex}"];

/// What answers on [`ROUTES`].
pub fn routes() -> Routes {
    ROUTES.into_iter().fold(Routes::new(), |routes, route| routes.route(route, get(blob)))
}

/// The parameters of [`ROUTES`].
#[derive(Debug, Deserialize)]
struct BlobPath {
    /// Only this agent's.
    agent: Option<AgentName>,
    /// `sha256:<hex>`; anything else names nothing.
    name: Option<String>,
    hex: Option<Sha256>,
}

impl BlobPath {
    fn sha256(&self) -> Result<Sha256, Problem> {
        let named = || self.name.as_ref()?.strip_prefix("sha256:")?.parse().ok();
        self.hex.or_else(named).ok_or(Problem::NotFound)
    }
}

async fn blob(
    Reader(caller): Reader,
    State(state): State<AppState>,
    method: Method,
    PathOf(path): PathOf<BlobPath>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let sha256 = path.sha256()?;
    let task = named_task(&headers);
    let request = BlobRequest {
        agent: path.agent.as_ref(),
        sha256: &sha256,
        task: task.as_deref(),
        require_task: state.require_task,
    };
    let (media_type, content) = match state.access.blob(&caller, request).await? {
        BlobAnswer::NotFound => return Err(Problem::NotFound),
        BlobAnswer::TaskRequired => return Err(Problem::TaskRequired),
        BlobAnswer::TaskMismatch => return Err(Problem::TaskMismatch),
        BlobAnswer::Blob(claims) => (OCTET_STREAM, Content::Remote(claims)),
        BlobAnswer::Manifest(manifest) => (MANIFEST_TYPE, Content::Here(manifest)),
    };
    let (name, media_type) = (sha256.to_hex(), media_type.to_owned());
    let representation = Representation { name, media_type, content, way: Way::default() };
    download::serve(&state, &caller, &method, &headers, representation).await
}
