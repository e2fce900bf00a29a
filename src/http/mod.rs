//! HTTP: the only place with axum and status codes.
//!
//! [`server`] holds connections, [`trace`] sees every request, [`auth`] says who sent it, [`error`] turns failures into
//! answers, and each face has a file of its own. No face looks at another's types.

mod activity;
pub mod audit;
pub mod auth;
pub mod blobs;
pub mod connect;
pub mod download;
pub mod error;
pub mod events;
pub mod json;
mod keyed;
pub mod keys;
pub mod limit;
pub mod links;
mod misread;
pub mod native;
mod next;
pub mod operator;
pub mod ops;
mod page;
mod reading;
pub mod routes;
pub mod server;
pub mod signin;
pub mod trace;
pub mod transfers;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Access;
use crate::agents::Agents;
use crate::audit::Audit;
use crate::clock::Clock;
use crate::config::PublicUrl;
use crate::events::Events;
use crate::identity::{GatewayKey, HandedOut, Signatures, Tokens};
use crate::metrics::Metrics;
use crate::sets::Sets;
use crate::store::Store;
use crate::transfer::Transfers;
use limit::Limiter;
use routes::Routes;
use trace::Trace;

/// What handlers share. Each layer around a handler clones it for each request, so it is one pointer.
#[derive(Debug, Clone)]
pub struct AppState(Arc<Parts>);

/// What there is to share.
pub struct Parts {
    /// Verifies tokens.
    pub tokens: Tokens,
    /// Signs what the gateway asks of others.
    pub key: GatewayKey,
    /// Verifies signed requests.
    pub signatures: Signatures,
    /// The time.
    pub clock: Clock,
    /// What an operator can count.
    pub metrics: Arc<Metrics>,
    /// The base of every URL handed out.
    pub public_url: Arc<PublicUrl>,
    /// What the operator's face writes.
    pub store: Store,
    /// Who may read what.
    pub access: Access,
    /// What there is to read.
    pub sets: Sets,
    /// Whether the `Artifact-Task` header is required for sets that name a task.
    pub require_task: bool,
    /// Who is connected.
    pub agents: Arc<Agents>,
    /// What is read.
    pub transfers: Arc<Transfers>,
    /// What happens in chats, for those who want to know at once.
    pub events: Events,
    /// Cookies and links.
    pub handed_out: HandedOut,
    /// How long a browser stays signed in at most.
    pub signin_ttl: Duration,
    /// How long a link is good for at most; none where there are no links.
    pub links: Option<Duration>,
    /// How much one address, and one reader, may ask for.
    pub limiter: Arc<Limiter>,
    /// Who read what.
    pub audit: Audit,
    /// Cancelled when the responses are cut that did not finish before the gateway's end.
    pub cut: CancellationToken,
    /// Where tasks run that shutdown waits for.
    pub tracker: TaskTracker,
    /// Cancelled when the gateway begins to drain.
    pub draining: CancellationToken,
}

impl AppState {
    /// These parts, for every handler.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl Deref for AppState {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("public_url", &self.public_url).finish_non_exhaustive()
    }
}

/// Everything that the public listener serves.
pub fn router(state: AppState) -> Router {
    // The series of downloads exist from the start; those of other routes appear with their first request.
    for route in blobs::ROUTES.iter().chain([&native::FILE_ROUTE, &native::VERSION_ROUTE, &links::LINK_ROUTE]) {
        trace::touch_metrics(&state.metrics, route);
    }
    complete(routes().into_router(), state)
}

/// Every route of the public listener. `tests/routes.rs` asks each of them as people whom it does not concern.
pub fn routes() -> Routes {
    Routes::new()
        .route("/ws", get(connect::connect))
        .merge(keys::routes())
        .merge(operator::routes())
        .merge(transfers::routes())
        .merge(audit::routes())
        .merge(native::routes())
        .merge(events::routes())
        .merge(links::routes())
        .merge(signin::routes())
        .merge(downloads())
}

/// The routes that bytes leave by: whatever they answer says that they take ranges (specification section 2).
fn downloads() -> Routes {
    native::downloads().merge(blobs::routes()).merge(links::downloads()).each(|router| {
        router
            .method_not_allowed_fallback(error::method_not_allowed)
            .layer(middleware::map_response(error::accept_ranges))
    })
}

/// Gives `routes` what all routes have: answers to unknown paths and methods, limits, a log line and a count for each
/// request. Unknown paths are 404 with and without a credential.
fn complete(routes: Router<AppState>, state: AppState) -> Router {
    routes
        .method_not_allowed_fallback(error::method_not_allowed)
        .fallback(signin::not_found)
        .layer(middleware::from_fn_with_state(state.clone(), pass))
        .with_state(state)
}

/// What every request passes on its way to its handler, in one layer: each layer has all that is inside it copied for
/// every request.
async fn pass(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let allowed = state.limiter.request(&mut request);
    let trace = Trace::begin(&mut request, state.metrics.clone(), state.cut.clone());
    let answer = async {
        if let Err(problem) = allowed {
            return problem.into_response();
        }
        auth::read_signed_body(&state, &mut request).await;
        next.run(request).await
    };
    trace.follow(answer).await
}
