//! The opening handshake of a WebSocket over HTTP/1.1, the server's side (RFC 6455 section 4.2).

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::header::{
    AsHeaderName, CONNECTION, HeaderMap, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use http::{Method, StatusCode, Version};
use hyper::upgrade::OnUpgrade;

use crate::protocol::handshake;

/// A request that asks for a WebSocket.
pub(super) struct Upgrade {
    on: OnUpgrade,
    accept: String,
}

impl Upgrade {
    /// What the request asks for; `None` where that is something else.
    pub(super) fn of(parts: &Parts) -> Option<Self> {
        let Parts { headers, .. } = parts;
        let asks = parts.method == Method::GET
            && parts.version == Version::HTTP_11
            && lists(headers, CONNECTION, "upgrade")
            && lists(headers, UPGRADE, "websocket")
            && headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
        let key = headers.get(SEC_WEBSOCKET_KEY).filter(|_| asks)?;
        let on = parts.extensions.get::<OnUpgrade>()?.clone();
        Some(Self { on, accept: handshake::accept(key.as_bytes()) })
    }

    /// The answer that accepts it, and what becomes the connection once that is written.
    pub(super) fn accept(self) -> (Response, OnUpgrade) {
        let headers = [(CONNECTION, "upgrade"), (UPGRADE, "websocket"), (SEC_WEBSOCKET_ACCEPT, self.accept.as_str())];
        ((StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response(), self.on)
    }
}

/// Whether a list of tokens names this one (RFC 9110 section 5.6.1).
fn lists(headers: &HeaderMap, name: impl AsHeaderName, token: &str) -> bool {
    let mut listed = headers.get_all(name).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    listed.any(|listed| listed.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}
