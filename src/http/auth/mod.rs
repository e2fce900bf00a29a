//! Who is calling, for handlers: extractors that answer before anything is looked up. Each kind of credential has a
//! file of its own, and all of them yield an [`Identity`].

mod bearer;
pub(super) mod cookie;
mod signature;

use axum::extract::FromRequestParts;
use http::header::AUTHORIZATION;
use http::request::Parts;

use super::AppState;
use super::error::Problem;
use crate::identity::{Caller, Identity};
use crate::protocol::signature::is_signed;

pub(super) use bearer::bearer;
pub use cookie::{Stay, Visitor};
pub(super) use signature::{accept, knows, prove, read_signed_body};

/// The request carries an operator's token. It must be a handler's first argument.
#[derive(Debug, Clone, Copy)]
pub struct Operator;

/// The request carries a reader's or an agent's credential. It must be a handler's first argument.
#[derive(Debug, Clone)]
pub struct Reader(pub Caller);

impl FromRequestParts<AppState> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
        match identify(parts, state).await? {
            Identity::Operator => Ok(Self),
            Identity::Agent { .. } | Identity::Reader(_) => Err(Problem::Forbidden),
        }
    }
}

impl FromRequestParts<AppState> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
        reader(identify(parts, state).await?, parts, state).map(Self)
    }
}

/// Who reads, within the limits of a reader. An operator takes part in no chat, and is told what every stranger is told.
fn reader(identity: Identity, parts: &Parts, state: &AppState) -> Result<Caller, Problem> {
    let caller = identity.caller().ok_or(Problem::NotFound)?;
    // Whoever signed was counted before the signature was used up.
    if !by_signature(parts) {
        state.limiter.reader(&parts.extensions, &caller.principal)?;
    }
    Ok(caller)
}

async fn identify(parts: &Parts, state: &AppState) -> Result<Identity, Problem> {
    identify_until(parts, state).await.map(|(identity, _)| identity)
}

/// The same as [`authenticate`], where failures of one address are limited.
async fn identify_until(parts: &Parts, state: &AppState) -> Result<(Identity, Option<i64>), Problem> {
    let identity = authenticate(parts, state).await;
    if let Err(Problem::BadCredential(_) | Problem::BadSignature(_) | Problem::SignatureNotTaken) = identity {
        state.limiter.failed(&parts.extensions)?;
    }
    identity
}

/// Who the credential of a request proves its sender to be, whichever kind it carries, and until when the credential
/// is good, in Unix milliseconds, where it is for more than one request. An `Authorization` header goes before every other
/// kind: it is there because somebody meant it.
///
/// # Errors
/// [`Problem::NoCredential`] without one, [`Problem::BadCredential`] or [`Problem::BadSignature`] when it proves nothing.
pub async fn authenticate(parts: &Parts, state: &AppState) -> Result<(Identity, Option<i64>), Problem> {
    if let Some(token) = bearer(&parts.headers) {
        let (identity, until) = bearer::identify_until(token, state).await?;
        return Ok((identity, Some(until)));
    }
    if by_signature(parts) {
        return Ok((signature::identify(parts, state).await?, None));
    }
    Err(Problem::NoCredential)
}

/// Whether the request is judged by its signature.
fn by_signature(parts: &Parts) -> bool {
    is_signed(&parts.headers) && !parts.headers.contains_key(AUTHORIZATION)
}

/// Who a token proves its holder to be, and until when, for one that does not come in a header.
///
/// # Errors
/// [`Problem::BadCredential`] when it proves nothing.
pub(super) async fn token_until(token: &str, state: &AppState) -> Result<(Identity, i64), Problem> {
    bearer::identify_until(token, state).await
}
