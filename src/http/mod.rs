//! HTTP: the only place with axum and status codes.
//!
//! [`server`] holds connections, [`trace`] sees every request, [`auth`] says who sent it, [`error`] turns failures into
//! answers, and each face has a file of its own. No face looks at another's types.

pub mod auth;
pub mod error;
pub mod json;
pub mod ops;
pub mod server;
mod socket;
pub mod trace;

use std::sync::Arc;

use axum::Router;
use axum::middleware;

use crate::clock::Clock;
use crate::identity::Tokens;
use crate::metrics::Metrics;

/// What handlers share. Cloned for every request, so everything in it is cheap to clone.
#[derive(Debug, Clone)]
pub struct AppState {
    /// Verifies tokens.
    pub tokens: Tokens,
    /// The time.
    pub clock: Clock,
    /// What an operator can count.
    pub metrics: Arc<Metrics>,
}

/// Everything that the public listener serves.
pub fn router(state: AppState) -> Router {
    complete(Router::new(), state)
}

/// Gives `routes` what all routes have: answers to unknown paths and methods, a log line and a count for each request.
/// Unknown paths are 404 with and without a credential.
pub fn complete(routes: Router<AppState>, state: AppState) -> Router {
    routes
        .method_not_allowed_fallback(error::method_not_allowed)
        .fallback(error::not_found)
        .layer(middleware::from_fn_with_state(state.metrics.clone(), trace::trace))
        .with_state(state)
}
