//! Who is connected: agents' sockets, their sessions, and the reads in flight on them.
//!
//! One task owns one socket and its reads ([`connection`]); everyone else holds a [`registry::Link`] and posts to its
//! mailbox. Announcements are handed up by a bounded channel. What an announcement means, and what a read is for, is
//! not known here (specification section 4).

pub mod answer;
pub mod connection;
pub mod credit;
pub mod gate;
pub mod mailbox;
pub mod message;
mod outbox;
pub mod read;
mod reads;
pub mod registry;
mod session;
pub mod slots;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use answer::ReadEnd;
pub use connection::Connection;
pub use credit::Sharing;
pub use gate::{Credential, Gate};
pub use mailbox::Mailbox;
pub use message::{Close, Message, Text};
pub use read::{Read, ReadEvent};
pub use registry::{Kind, Link, Online, Registry};
pub use slots::{Slot, SlotRequest, Slots};

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::protocol::frames::BlobErrorCode;
use crate::protocol::{AgentName, Principal, SessionId};
use crate::read::Violation;

/// A control session that an agent holds on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// The session.
    pub id: SessionId,
    /// Whose it is.
    pub agent: Principal,
    /// The name it was opened under.
    pub name: AgentName,
    /// Whose agent it is, where its token says so.
    pub owner: Option<Arc<str>>,
}

/// An announcement as it came, for whoever decides it.
#[derive(Debug)]
pub struct Announce {
    /// The frame.
    pub text: Text,
    /// When it came.
    pub received: Instant,
    /// The sessions of the connection it came on, at that moment.
    pub by: Vec<OpenSession>,
    /// Where a refusal goes.
    pub reply: Arc<Mailbox>,
    /// What it takes up on its connection until this is dropped, which a refusal does when it is written.
    pub room: OwnedSemaphorePermit,
}

/// How long a connection may be silent.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Between two of our own pings.
    pub ping_interval: Duration,
    /// How long after a ping a peer may stay silent, and how long a write may be blocked.
    pub ping_timeout: Duration,
    /// How long a connection may be without a session.
    pub handshake_timeout: Duration,
}

/// What every connection shares.
#[derive(Debug)]
pub struct Agents {
    /// Who is connected.
    pub registry: Registry,
    /// Who may open a session.
    pub gate: Gate,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The time on envelopes.
    pub clock: Clock,
    /// How long a connection may be silent.
    pub timing: Timing,
    /// Closes every connection with 1012.
    pub stop: CancellationToken,
}

impl Agents {
    /// Every series of the agents' metrics exists from the start.
    pub fn touch_metrics(metrics: &Metrics) {
        for kind in [Kind::Control, Kind::Data] {
            let _ = metrics.connections.with_label_values(&[kind.name()]);
        }
        for violation in Violation::ALL {
            let _ = metrics.violations.with_label_values(&[violation.rule()]);
        }
        let codes = BlobErrorCode::ALL.map(BlobErrorCode::code);
        for how in codes.into_iter().chain(["complete", "cancelled", "disconnected", "violation"]) {
            let _ = metrics.reads_ended.with_label_values(&[how]);
        }
        for reason in ["lost", "1000", "1002", "1007", "1008", "1009", "1011", "1012", "1013", "4001", "4009"] {
            let _ = metrics.connections_ended.with_label_values(&[reason]);
        }
        for outcome in ["created", "unauthorized", "token_expired", "token_unbound", "forbidden"] {
            let _ = metrics.sessions.with_label_values(&[outcome]);
        }
    }
}
