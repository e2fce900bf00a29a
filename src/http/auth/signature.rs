//! Agents that sign their requests (RFC 9421) instead of sending a token.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::super::AppState;
use super::super::error::Problem;
use crate::identity::{Identity, Refusal};
use crate::protocol::Principal;
use crate::protocol::signature::{self, BODY_BYTES, Proof, SignatureError, is_signed};

/// How long the body of a signed request may take, which is read before its handler runs.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What the layer leaves for the extractors of a signed request.
#[derive(Debug, Clone)]
enum Seen {
    /// There is no body, so the request is verified by whoever wants to know who sent it.
    WithoutBody,
    /// The body was read and the request is verified.
    Verified(Result<Identity, Problem>),
}

/// Who signed a request, which counts for its principal's limits.
///
/// # Errors
/// [`Problem::BadSignature`] when it proves nothing, [`Problem::RateLimited`] when there were too many; the signature is
/// then good for another try.
pub(super) async fn identify(parts: &Parts, state: &AppState) -> Result<Identity, Problem> {
    match parts.extensions.get::<Seen>() {
        Some(Seen::Verified(outcome)) => outcome.clone(),
        Some(Seen::WithoutBody) => {
            let proof = prove(parts, state).await?;
            state.limiter.reader(&parts.extensions, &proof.principal)?;
            accept(proof, state).await.map(agent)
        }
        // A body that nobody looked at proves nothing.
        None => Err(Problem::Internal),
    }
}

/// What the signature of a request without a body proves, once it is accepted.
///
/// # Errors
/// [`Problem::BadSignature`] when it proves nothing.
pub(in crate::http) async fn prove(parts: &Parts, state: &AppState) -> Result<Proof, Problem> {
    if !matches!(parts.extensions.get(), Some(Seen::WithoutBody)) {
        let rule = "a signature counts without a body here, and without an Authorization header beside it";
        return Err(Problem::BadRequest(rule.into()));
    }
    let request = signature::Request::of(&parts.method, &parts.uri, &parts.headers, None);
    let pay = || state.limiter.unproven(&parts.extensions);
    state.signatures.prove(request, pay).await.map_err(problem)
}

/// Who signed, for good: the signature is used up.
///
/// # Errors
/// [`Problem::BadSignature`] when it was used up before.
pub(in crate::http) async fn accept(proof: Proof, state: &AppState) -> Result<Principal, Problem> {
    state.signatures.accept(proof, &[]).await.map_err(problem)
}

/// Whether an agent that signed is known here, so that it may have more than a stranger.
///
/// # Errors
/// [`Problem::Unavailable`] when nobody can tell now.
pub(in crate::http) async fn knows(agent: &Principal, state: &AppState) -> Result<bool, Problem> {
    state.signatures.knows(agent).await.map_err(problem)
}

fn agent(principal: Principal) -> Identity {
    Identity::Agent { principal, name: None, owner: None }
}

/// Reads the body of a signed request once its signature has been verified, because the signature covers it too.
pub(in crate::http) async fn read_signed_body(state: &AppState, request: &mut Request) {
    if !is_signed(request.headers()) || request.headers().contains_key(AUTHORIZATION) {
        return;
    }
    let seen = if request.body().is_end_stream() {
        Seen::WithoutBody
    } else {
        let (parts, body) = std::mem::take(request).into_parts();
        let (outcome, body) = match read(state, &parts, body).await {
            Ok((identity, body)) => (Ok(identity), Body::from(body)),
            Err(problem) => (Err(problem), Body::empty()),
        };
        *request = Request::from_parts(parts, body);
        Seen::Verified(outcome)
    };
    request.extensions_mut().insert(seen);
}

async fn read(state: &AppState, parts: &Parts, body: Body) -> Result<(Identity, Bytes), Problem> {
    let (signatures, limiter) = (&state.signatures, &state.limiter);
    let least = body.size_hint().lower();
    let request = signature::Request::of(&parts.method, &parts.uri, &parts.headers, Some(least));
    let proof = signatures.prove(request, || limiter.unproven(&parts.extensions)).await.map_err(problem)?;
    limiter.reader(&parts.extensions, &proof.principal)?;
    let known = signatures.knows(&proof.principal).await.map_err(problem)?;
    let _place = limiter.body(&proof.principal, known).await?;
    let reading = Limited::new(body, BODY_BYTES as usize).collect();
    let read = tokio::time::timeout(BODY_TIMEOUT, reading).await.map_err(|_| Problem::Timeout)?;
    let body = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            let refusal = Refusal::Signature(SignatureError::BodyTooLarge);
            signatures.count(refusal);
            problem(refusal)
        } else {
            Problem::BadRequest("the request's body broke off".into())
        }
    })?;
    let body = body.to_bytes();
    let principal = signatures.accept(proof, &body).await.map_err(problem)?;
    Ok((agent(principal), body))
}

fn problem(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::Signature(error) => Problem::BadSignature(error),
        Refusal::NotTaken => Problem::SignatureNotTaken,
        Refusal::Limited(retry_after) => Problem::RateLimited { retry_after },
        Refusal::Busy(retry_after) => Problem::Busy { retry_after },
        Refusal::Unavailable => Problem::Unavailable,
    }
}
