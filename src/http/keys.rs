//! The gateway's own signing keys, for whoever it asks for something.

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use super::AppState;
use super::routes::Routes;
use crate::protocol::signature::JWKS_PATH;

/// A key is not taken back in a hurry, and the shortest time that verifiers keep a set is 5 minutes.
const CACHED: HeaderValue = HeaderValue::from_static("public, max-age=300");

pub(super) fn routes() -> Routes {
    Routes::new().route(JWKS_PATH, get(jwks))
}

/// `GET /.well-known/jwks.json`: open to everybody, as key sets are (RFC 7517 section 8.5.2).
async fn jwks(State(state): State<AppState>) -> Response {
    let json = HeaderValue::from_static("application/jwk-set+json");
    ([(CONTENT_TYPE, json), (CACHE_CONTROL, CACHED)], state.key.jwks().to_string()).into_response()
}
