//! The opening handshake of a WebSocket over HTTP/1.1, the client's side (RFC 6455 section 4.1).

use bytes::Bytes;
use http::header::{
    CONNECTION, HOST, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::protocol::handshake;

/// Why there is no WebSocket.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotUpgraded {
    /// The answer was another one.
    #[error("{0}")]
    Status(StatusCode),
    /// It was to another request, or of another protocol.
    #[error("the answer accepts something else than a WebSocket")]
    NotAccepted,
    /// HTTP came to no answer.
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// Asks for a WebSocket over a connection. The request names its resource and its credential; the rest is added here.
pub(super) async fn upgrade<S>(
    stream: S,
    authority: HeaderValue,
    mut request: Request<Empty<Bytes>>,
) -> Result<Upgraded, NotUpgraded>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let key = handshake::key(rand::random());
    let accept = handshake::accept(key.as_bytes());
    let headers = request.headers_mut();
    headers.insert(HOST, authority);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::try_from(key).map_err(|_| NotUpgraded::NotAccepted)?);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        check(&response, &accept)?;
        Ok(hyper::upgrade::on(response).await?)
    };
    let driven = async {
        // How it ends is told to whoever waits for the answer.
        let _ = connection.with_upgrades().await;
        std::future::pending().await
    };
    tokio::select! {
        upgraded = exchange => upgraded,
        never = driven => never,
    }
}

fn check(response: &Response<Incoming>, accept: &str) -> Result<(), NotUpgraded> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(NotUpgraded::Status(response.status()));
    }
    let says = |name, value: &str| {
        response.headers().get(name).is_some_and(|said| said.as_bytes().eq_ignore_ascii_case(value.as_bytes()))
    };
    let accepts = response.headers().get(SEC_WEBSOCKET_ACCEPT).is_some_and(|said| said == accept);
    if accepts && says(UPGRADE, "websocket") && says(CONNECTION, "upgrade") {
        Ok(())
    } else {
        Err(NotUpgraded::NotAccepted)
    }
}
