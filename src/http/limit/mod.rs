//! How much one address, and one reader, may ask for; and how fast agents are let in.
//!
//! Every limit is the gateway's protection of everyone else, so each is far above what a single honest client does. What
//! is refused here is refused before anything is looked up.

mod address;
mod admission;
mod bodies;
mod messages;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::Request;
use http::Extensions;

use super::error::Problem;
use super::keyed::{InFlight, Permit, Rates, group};
use super::server::Peer;
use crate::config::RequestLimits;
use crate::events::Refused;
use crate::metrics::Metrics;
use crate::protocol::Principal;
use admission::Admission;
use bodies::Bodies;
pub use bodies::BodyPlace;
use messages::Messages;
pub use messages::{MessageRoom, Sender, Share};

/// Who is told to come back later, as the metric names it.
const LIMITS: [&str; 11] = [
    "address_rate",
    "address_requests",
    "address_connections",
    "reader_rate",
    "reader_requests",
    "failed_auth",
    "agent_admission",
    "agent_unopened",
    "signed_bodies",
    "reader_streams",
    "streams",
];
/// Connections of one agent that have no session yet. It has one that does, and perhaps a data connection.
const UNOPENED: u32 = 8;
/// When one who has too many requests running may try again. Nobody knows when one of them ends.
const RUNNING: Duration = Duration::from_secs(1);
/// The same for streams, which end less often.
const STREAMS: Duration = Duration::from_secs(5);

/// Who uses up a reader's rate and requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Spender {
    Reader(Principal),
    /// Whoever has the address of a link, by the link's id. What they do is not held against its maker.
    Link(String),
}

/// The limits and what has been used of them.
#[derive(Debug)]
pub struct Limiter {
    trusted_proxies: Vec<ipnet::IpNet>,
    addresses: Rates<IpAddr>,
    readers: Rates<Spender>,
    failures: Rates<IpAddr>,
    of_addresses: Arc<InFlight<IpAddr>>,
    of_readers: Arc<InFlight<Spender>>,
    admission: Admission,
    unopened: Arc<InFlight<Principal>>,
    messages: Arc<Messages>,
    bodies: Bodies,
    metrics: Arc<Metrics>,
}

/// Where a request comes from, as far as trusted proxies say: an extension of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client(pub IpAddr);

/// What a request takes from the limits for as long as it runs, its response's body included: an extension of requests.
#[derive(Debug, Clone, Default)]
pub struct Permits(Arc<Taken>);

/// A place among an agent's connections without a session, until this is dropped.
#[derive(Debug)]
pub struct Unopened(#[expect(dead_code, reason = "held for its drop")] Permit<Principal>);

#[derive(Debug, Default)]
struct Taken {
    address: OnceLock<Permit<IpAddr>>,
    reader: OnceLock<Permit<Spender>>,
    /// Set once the request has taken one of its address's failures.
    unproven: OnceLock<()>,
}

impl Limiter {
    /// Nothing is used yet.
    pub fn new(limits: &RequestLimits, metrics: Arc<Metrics>) -> Self {
        for limit in LIMITS {
            let _ = metrics.requests_limited.with_label_values(&[limit]);
        }
        Self {
            trusted_proxies: limits.trusted_proxies.clone(),
            addresses: Rates::per_second(limits.address_rate),
            readers: Rates::per_second(limits.reader_rate),
            failures: Rates::per_minute(limits.failed_auth_rate),
            of_addresses: Arc::new(InFlight::new(limits.address_requests)),
            of_readers: Arc::new(InFlight::new(limits.reader_requests)),
            admission: Admission::new(limits.agent_admission),
            unopened: Arc::new(InFlight::new(UNOPENED)),
            messages: Arc::default(),
            bodies: Bodies::default(),
            metrics,
        }
    }

    /// Counts a request of a principal that has just been authenticated.
    ///
    /// # Errors
    /// [`Problem::RateLimited`] when it has used up its rate, or has too many requests running.
    pub fn reader(&self, request: &Extensions, principal: &Principal) -> Result<(), Problem> {
        self.spend(request, Spender::Reader(principal.clone()))
    }

    /// Counts a request of somebody who has the address of a link.
    ///
    /// # Errors
    /// [`Problem::RateLimited`], as for a reader.
    pub fn link(&self, request: &Extensions, id: &str) -> Result<(), Problem> {
        self.spend(request, Spender::Link(id.to_owned()))
    }

    fn spend(&self, request: &Extensions, spender: Spender) -> Result<(), Problem> {
        self.readers.take(&spender).map_err(|wait| self.refuse("reader_rate", wait))?;
        if let Some(Permits(taken)) = request.get()
            && taken.reader.get().is_none()
        {
            let permit = self.of_readers.enter(&spender);
            let permit = permit.ok_or_else(|| self.refuse("reader_requests", RUNNING))?;
            let _ = taken.reader.set(permit);
        }
        Ok(())
    }

    /// Counts a credential that proved nothing, unless the request paid before.
    ///
    /// Whoever shares an address with a guesser goes on: a valid credential is never refused for the failures of others.
    /// Guessing one is hopeless as it is, and looking one up costs little. What costs more is paid for in advance, see
    /// [`unproven`](Self::unproven).
    ///
    /// # Errors
    /// [`Problem::RateLimited`] instead of what else would be said, when there were too many from this address.
    pub fn failed(&self, request: &Extensions) -> Result<(), Problem> {
        self.unproven(request).map_err(|retry_after| Problem::RateLimited { retry_after })
    }

    /// Counts a credential as one that proves nothing before much is done to find out, such as fetching a stranger's keys:
    /// once for each request. When there may be another, where there were too many from this address.
    pub fn unproven(&self, request: &Extensions) -> Result<(), Duration> {
        let Some(Client(address)) = request.get() else { return Ok(()) };
        if request.get().is_some_and(|Permits(taken)| taken.unproven.get().is_some()) {
            return Ok(());
        }
        self.failures.take(&group(*address)).inspect_err(|_| self.count("failed_auth"))?;
        if let Some(Permits(taken)) = request.get() {
            let _ = taken.unproven.set(());
        }
        Ok(())
    }

    /// Waits, not for long, for a place among those whose signed bodies are read. Those who are not `known` here have few.
    ///
    /// # Errors
    /// [`Problem::Busy`] when there is none.
    pub async fn body(&self, principal: &Principal, known: bool) -> Result<BodyPlace, Problem> {
        self.bodies.enter(principal, known).await.ok_or_else(|| {
            self.count("signed_bodies");
            Problem::Busy { retry_after: RUNNING }
        })
    }

    /// Lets an agent's connection in, perhaps after a short wait. A `stranger`, by address, is one that came without a valid
    /// credential: others do not queue behind it.
    ///
    /// # Errors
    /// [`Problem::Busy`] when too many wait already.
    pub async fn admit(&self, stranger: Option<IpAddr>) -> Result<(), Problem> {
        self.admission.admit(stranger).await.map_err(|retry_after| {
            self.count("agent_admission");
            Problem::Busy { retry_after }
        })
    }

    /// A place among those connections of an agent that have no session yet.
    ///
    /// # Errors
    /// [`Problem::Busy`] when it has as many of them as it may have.
    pub fn unopened(&self, agent: &Principal) -> Result<Unopened, Problem> {
        self.unopened.enter(agent).map(Unopened).ok_or_else(|| {
            self.count("agent_unopened");
            Problem::Busy { retry_after: RUNNING }
        })
    }

    /// A sender's share of the room for long messages.
    pub fn messages(&self, sender: Sender) -> Share {
        self.messages.share(sender)
    }

    /// What a reader is told who may have no further stream of events.
    pub fn stream(&self, refused: Refused) -> Problem {
        match refused {
            Refused::TooManyOfOne => self.refuse("reader_streams", STREAMS),
            Refused::TooMany => {
                self.count("streams");
                Problem::TooManyStreams { retry_after: STREAMS }
            }
        }
    }

    /// Counts a request against its address, for as long as the [`Permits`] live that it has from here on.
    ///
    /// # Errors
    /// [`Problem::RateLimited`] when its address has used up its rate, or has too many requests running.
    pub fn request(&self, request: &mut Request) -> Result<(), Problem> {
        let Some(Peer(peer)) = request.extensions().get().copied() else { return Ok(()) };
        let client = address::client(peer.ip(), request.headers(), &self.trusted_proxies);
        let permits = Permits::default();
        request.extensions_mut().insert(Client(client));
        request.extensions_mut().insert(permits.clone());
        let _ = permits.0.address.set(self.address(group(client))?);
        Ok(())
    }

    fn address(&self, address: IpAddr) -> Result<Permit<IpAddr>, Problem> {
        self.addresses.take(&address).map_err(|wait| self.refuse("address_rate", wait))?;
        self.of_addresses.enter(&address).ok_or_else(|| self.refuse("address_requests", RUNNING))
    }

    fn refuse(&self, limit: &str, retry_after: Duration) -> Problem {
        self.count(limit);
        Problem::RateLimited { retry_after }
    }

    fn count(&self, limit: &str) {
        self.metrics.requests_limited.with_label_values(&[limit]).inc();
    }
}
