//! A blob in an OCI registry: `GET /v2/<repository>/blobs/<digest>`, with a token where the registry asks for one, and
//! along a few redirects to wherever it keeps its blobs.

use std::time::Duration;

use http::HeaderValue;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use serde::Deserialize;
use url::Url;

use super::tokens::Tokens;
use super::{Refusal, Wanted, range_of, redirect, same_origin, single};
use crate::outbound::{Fetch, FetchError, Fetched, Outbound};
use crate::protocol::Principal;
use crate::protocol::oci::{Challenge, OciReference};

/// Redirects that are followed.
const HOPS: usize = 3;
/// Most bytes of an answer that holds a token.
const TOKEN_BYTES: u64 = 64 * 1024;

/// Asks registries, for one agent's announcement.
pub(super) struct Asker<'a> {
    pub(super) outbound: &'a Outbound,
    pub(super) tokens: &'a Tokens,
    pub(super) agent: &'a Principal,
    pub(super) timeout: Duration,
}

impl Asker<'_> {
    /// The answer to a request for the range, whatever its status.
    pub(super) async fn get(&self, reference: &str, wanted: Wanted) -> Result<Fetched, Refusal> {
        let reference = OciReference::parse(reference).ok_or(Refusal::Wrong("not a registry reference"))?;
        let url = blob_url(&reference, wanted).ok_or(FetchError::UrlInvalid)?;
        let known = self.tokens.get(self.agent, &reference);
        let fetched = self.ask(url.clone(), known.as_ref(), wanted).await?;
        if fetched.status != 401 {
            return self.follow(url, known, fetched, wanted).await;
        }
        if known.is_some() {
            self.tokens.forget(self.agent, &reference);
        }
        let challenge = single(&fetched.headers, &WWW_AUTHENTICATE).and_then(Challenge::parse);
        let challenge = challenge.ok_or(Refusal::Denied(401))?;
        drop(fetched);
        let (bearer, expires_in) = self.token(&challenge, &reference).await?;
        let fetched = self.ask(url.clone(), Some(&bearer), wanted).await?;
        // A token that opens nothing is not worth keeping.
        if !matches!(fetched.status, 401 | 403) {
            self.tokens.put(self.agent, &reference, bearer.clone(), expires_in);
        }
        self.follow(url, Some(bearer), fetched, wanted).await
    }

    async fn ask(&self, url: Url, bearer: Option<&HeaderValue>, wanted: Wanted) -> Result<Fetched, Refusal> {
        let mut fetch = range_of(url, wanted, self.timeout);
        if let Some(bearer) = bearer {
            fetch.headers.insert(AUTHORIZATION, bearer.clone());
        }
        Ok(self.outbound.get(fetch).await?)
    }

    /// Follows redirects, each through the same checks as any fetch. The token stays with the registry.
    async fn follow(
        &self,
        mut url: Url,
        mut bearer: Option<HeaderValue>,
        mut fetched: Fetched,
        wanted: Wanted,
    ) -> Result<Fetched, Refusal> {
        for _ in 0..HOPS {
            let Some(next) = redirect(&url, &fetched) else { return Ok(fetched) };
            drop(fetched);
            if !same_origin(&url, &next) {
                bearer = None;
            }
            fetched = self.ask(next.clone(), bearer.as_ref(), wanted).await?;
            url = next;
        }
        Ok(fetched)
    }

    /// A token for pulling from the repository, given to whoever asks, and for how many seconds it is good if it says so.
    async fn token(
        &self,
        challenge: &Challenge,
        reference: &OciReference,
    ) -> Result<(HeaderValue, Option<u64>), Refusal> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
            expires_in: Option<u64>,
        }
        let mut url: Url = challenge.realm.parse().map_err(|_| FetchError::UrlInvalid)?;
        // No more than pulling, whatever the challenge is for.
        let scope = format!("repository:{}:pull", reference.repository);
        {
            let mut query = url.query_pairs_mut();
            if let Some(service) = &challenge.service {
                query.append_pair("service", service);
            }
            query.append_pair("scope", &scope);
        }
        let fetched = self.outbound.get(Fetch::get(url, TOKEN_BYTES, self.timeout)).await?;
        if fetched.status != 200 {
            return Err(match fetched.status {
                status @ (401 | 403) => Refusal::Denied(status),
                status => Refusal::Gone(status),
            });
        }
        let bytes = fetched.bytes().await?;
        let answer: Answer = serde_json::from_slice(&bytes).map_err(|_| Refusal::Wrong("a malformed token"))?;
        let token = answer.token.or(answer.access_token).ok_or(Refusal::Wrong("no token"))?;
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| Refusal::Wrong("a malformed token"))?;
        bearer.set_sensitive(true);
        Ok((bearer, answer.expires_in))
    }
}

/// Registries speak https; on loopback they are for trying things out, and speak http as everybody's tools expect.
fn blob_url(reference: &OciReference, wanted: Wanted) -> Option<Url> {
    let OciReference { registry, repository } = reference;
    let at =
        |scheme: &str| Url::parse(&format!("{scheme}://{registry}/v2/{repository}/blobs/sha256:{}", wanted.sha256));
    let url = at("https").ok()?;
    let is_loopback = match url.host()? {
        url::Host::Domain(name) => name == "localhost",
        url::Host::Ipv4(address) => address.is_loopback(),
        url::Host::Ipv6(address) => address.is_loopback(),
    };
    if is_loopback { at("http").ok() } else { Some(url) }
}
