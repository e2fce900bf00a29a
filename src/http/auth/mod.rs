//! Who is calling, for handlers: extractors that answer before anything is looked up. Each kind of credential has a
//! file of its own, and all of them yield an [`Identity`].

mod bearer;

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::AppState;
use super::error::Problem;
use crate::identity::{Caller, Identity};

pub(super) use bearer::bearer;

/// The request carries an operator's token. It must be a handler's first argument.
#[derive(Debug, Clone, Copy)]
pub struct Operator;

/// The request carries a reader's or an agent's credential. It must be a handler's first argument.
#[derive(Debug, Clone)]
pub struct Reader(pub Caller);

impl FromRequestParts<AppState> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
        match authenticate(parts, state).await? {
            Identity::Operator => Ok(Self),
            Identity::Agent { .. } | Identity::Reader(_) => Err(Problem::Forbidden),
        }
    }
}

impl FromRequestParts<AppState> for Reader {
    type Rejection = Problem;

    /// An operator takes part in no chat, and is told what every stranger is told.
    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
        authenticate(parts, state).await?.caller().map(Self).ok_or(Problem::NotFound)
    }
}

/// Who the credential of a request proves its sender to be, whichever kind it carries. An `Authorization` header goes
/// before every other kind: it is there because somebody meant it.
///
/// # Errors
/// [`Problem::NoCredential`] without one, [`Problem::BadCredential`] when it proves nothing.
pub async fn authenticate(parts: &Parts, state: &AppState) -> Result<Identity, Problem> {
    let token = bearer(&parts.headers).ok_or(Problem::NoCredential)?;
    bearer::identify(token, state).await
}
