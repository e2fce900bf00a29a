//! The operator's listener: metrics and health, for machines. It names no agent, chat or principal.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::BoxFuture;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST};
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::error::{self, Problem};
use crate::metrics::Metrics;

/// How long the database may take to answer before the process is not ready.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks the database whether it answers, and takes what is written; otherwise what is wrong with it.
pub type Probe = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// What the operator's routes look at.
#[derive(Clone)]
pub struct Ops {
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the process begins to stop: from then on it is not ready.
    pub draining: CancellationToken,
    /// Whether the database answers, and takes what is written.
    pub database: Probe,
    /// Where the listener may be reached.
    pub hosts: Hosts,
}

/// The hosts that a request to the operator's listener may name.
///
/// A page of any origin can send a browser here under a name of its own (DNS rebinding), so names are refused unless
/// they are known. Addresses cannot be rebound: those of the listener are enough.
#[derive(Debug, Clone)]
pub struct Hosts {
    listener: IpAddr,
    names: Arc<[String]>,
}

impl Hosts {
    /// The `listener`'s own address, loopback, and `names` in lower case.
    pub fn new(listener: SocketAddr, names: Vec<String>) -> Self {
        Self { listener: listener.ip(), names: names.into() }
    }

    fn allow(&self, host: &str) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return ip.is_loopback() || ip == self.listener || self.listener.is_unspecified();
        }
        let host = host.to_ascii_lowercase();
        host == "localhost" || self.names.contains(&host)
    }
}

/// Everything that the operator's listener serves.
pub fn router(ops: Ops) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .method_not_allowed_fallback(error::method_not_allowed)
        .fallback(error::not_found)
        .layer(middleware::from_fn_with_state(ops.hosts.clone(), check_host))
        .with_state(ops)
}

async fn check_host(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    match host(request.uri(), request.headers()) {
        Some(authority) if hosts.allow(authority.host()) => next.run(request).await,
        _ => (StatusCode::MISDIRECTED_REQUEST, "this host name is not served here (set --ops-allow-host)\n")
            .into_response(),
    }
}

/// The target's authority (HTTP/2), else the Host header.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    match uri.authority() {
        Some(authority) => Some(authority.clone()),
        None => headers.get(HOST)?.to_str().ok()?.parse().ok(),
    }
}

async fn metrics(State(ops): State<Ops>) -> Result<Response, Problem> {
    let text = ops.metrics.render().map_err(|error| {
        tracing::error!(%error, "cannot render the metrics");
        Problem::Internal
    })?;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8"), (CACHE_CONTROL, "no-store")], text)
        .into_response())
}

/// The process runs; whether it should be sent requests is another question.
async fn healthz() -> Response {
    status(StatusCode::OK, "ok")
}

async fn readyz(State(ops): State<Ops>) -> Response {
    if ops.draining.is_cancelled() {
        return status(StatusCode::SERVICE_UNAVAILABLE, "draining");
    }
    let silent = |_| Err(format!("no answer within {} s", PROBE_TIMEOUT.as_secs()));
    let answer = tokio::time::timeout(PROBE_TIMEOUT, (ops.database)()).await.unwrap_or_else(silent);
    ops.metrics.database_up.set(answer.is_ok().into());
    match answer {
        Ok(()) => status(StatusCode::OK, "ready"),
        Err(reason) => {
            let body = json!({ "status": "database down", "reason": reason });
            (StatusCode::SERVICE_UNAVAILABLE, [(CACHE_CONTROL, "no-store")], Json(body)).into_response()
        }
    }
}

fn status(code: StatusCode, status: &'static str) -> Response {
    (code, [(CACHE_CONTROL, "no-store")], Json(json!({ "status": status }))).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::ServiceExt as _;

    use super::*;

    fn ops(database: Probe) -> Ops {
        Ops {
            metrics: Arc::new(Metrics::new().unwrap()),
            draining: CancellationToken::new(),
            database,
            hosts: Hosts::new("127.0.0.1:9090".parse().unwrap(), vec!["ops.example".to_owned()]),
        }
    }

    fn up() -> Probe {
        Arc::new(|| Box::pin(async { Ok(()) }))
    }

    async fn ask(ops: &Ops, path: &str, host: &str) -> StatusCode {
        let request = Request::builder().uri(path).header(HOST, host).body(Body::empty()).unwrap();
        router(ops.clone()).oneshot(request).await.unwrap().status()
    }

    #[tokio::test]
    async fn a_running_process_is_healthy_and_ready() {
        let ops = ops(up());
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert_eq!(ask(&ops, path, "localhost:9090").await, 200, "{path}");
        }
        assert_eq!(ops.metrics.database_up.get(), 1);
        assert_eq!(ask(&ops, "/", "localhost:9090").await, 404);
    }

    #[tokio::test]
    async fn a_stopping_process_is_healthy_and_not_ready() {
        let ops = ops(up());
        ops.draining.cancel();
        assert_eq!(ask(&ops, "/readyz", "localhost").await, 503);
        assert_eq!(ask(&ops, "/healthz", "localhost").await, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_without_its_database_is_not_ready() {
        let down = ops(Arc::new(|| Box::pin(async { Err("its disk is full".to_owned()) })));
        let silent = ops(Arc::new(|| Box::pin(std::future::pending())));
        for (ops, reason) in [(down, "its disk is full"), (silent, "no answer within 2 s")] {
            ops.metrics.database_up.set(1);
            let request = Request::builder().uri("/readyz").header(HOST, "localhost").body(Body::empty()).unwrap();
            let answer = router(ops.clone()).oneshot(request).await.unwrap();
            assert_eq!(answer.status(), 503);
            let body = axum::body::to_bytes(answer.into_body(), 1024).await.unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body, json!({ "status": "database down", "reason": reason }));
            assert_eq!(ops.metrics.database_up.get(), 0);
        }
    }

    #[tokio::test]
    async fn only_known_hosts_are_served() {
        let ops = ops(up());
        for host in
            ["localhost", "LOCALHOST:1", "127.0.0.1:9090", "127.0.0.2", "[::1]:9090", "ops.example", "OPS.example:80"]
        {
            assert_eq!(ask(&ops, "/metrics", host).await, 200, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", "", "a b"] {
            assert_eq!(ask(&ops, "/metrics", host).await, 421, "{host}");
        }
    }

    #[test]
    fn a_listener_on_every_address_is_reached_by_every_address_and_by_no_name() {
        let hosts = Hosts::new("0.0.0.0:9090".parse().unwrap(), Vec::new());
        assert!(hosts.allow("192.0.2.1") && hosts.allow("[2001:db8::1]"));
        assert!(!hosts.allow("evil.example"));
    }
}
