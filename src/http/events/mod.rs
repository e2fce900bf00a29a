//! `GET /v1/chats/{chat}/events`: what happens in a chat, as server-sent events (HTML Standard, section 9.2).
//!
//! A stream begins with `transfers`, after a `reset` where its reader missed something, and goes on with what
//! [`crate::events`] lists. Every event has an id, and a reader that comes back with it as `Last-Event-ID` is told what
//! happened since. Whoever keeps a list of sets connects first and asks for the list then: nothing falls in between.

mod stream;
mod watch;

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::auth::Stay;
use super::error::Problem;
use super::json::PathOf;
use super::routes::Routes;
use super::{AppState, server};
use crate::events::Since;
use crate::protocol::ChatId;

pub use watch::watch;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The route.
pub fn routes() -> Routes {
    Routes::new().route("/v1/chats/{chat}/events", get(events))
}

async fn events(
    stay: Stay,
    State(state): State<AppState>,
    method: Method,
    PathOf(chat): PathOf<ChatId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let as_of = state.store.generation();
    let place = state.access.place(&stay.caller, &chat).await?.ok_or(Problem::NotFound)?;
    if method == Method::HEAD {
        // Of no known length, as the stream itself: `Content-Length` would be added otherwise.
        return Ok(head(Body::from_stream(futures_util::stream::empty::<Result<Bytes, Infallible>>())));
    }
    if state.draining.is_cancelled() {
        return Err(Problem::Unavailable);
    }
    let principal = &stay.caller.principal;
    let subscription = state.events.subscribe(principal, &place, since(&headers), server::stream_cut());
    let subscription = subscription.map_err(|refused| state.limiter.stream(refused))?;
    if !subscription.knows_agents() {
        state.sets.look_up_agents(&chat).await?;
    }
    // Whoever took the chat away meanwhile may have looked for this reader before it was here.
    if state.access.has_moved_on(as_of) && state.access.place(&stay.caller, &chat).await?.as_ref() != Some(&place) {
        return Err(Problem::NotFound);
    }
    let running = state.transfers.running_of(principal, &place);
    Ok(head(stream::body(&state, stay, subscription, &running)))
}

/// The id of the last event that a reader was told; two such headers are none.
fn since(headers: &HeaderMap) -> Since {
    let mut all = headers.get_all(LAST_EVENT_ID).iter();
    match (all.next(), all.next()) {
        (None, _) => Since::Now,
        (Some(id), None) => Since::of(id.as_bytes()),
        (Some(_), Some(_)) => Since::Unknown,
    }
}

fn head(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Whoever compresses on the way holds events back until there is enough of them.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_id_is_taken_and_two_are_none() {
        let of = |ids: &[&str]| since(&ids.iter().map(|id| (LAST_EVENT_ID, id.parse().unwrap())).collect());
        let id = "0000000000000007-3";
        assert_eq!(of(&[]), Since::Now);
        assert_eq!(of(&[""]), Since::Now);
        assert_eq!(of(&[id]), Since::Place(id.parse().unwrap()));
        assert_eq!(of(&[id, id]), Since::Unknown);
        assert_eq!(of(&["7"]), Since::Unknown);
    }
}
