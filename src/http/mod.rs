//! HTTP: the only place with axum and status codes.
