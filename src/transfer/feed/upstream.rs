//! What a feed has its bytes from: a read on an agent's connection, or a fetch from a place that an announcement names.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::agents::{Read, ReadEnd, ReadEvent};
use crate::protocol::ByteRange;
use crate::transfer::location::{FetchEnd, Fetching};

/// Bytes on their way.
#[derive(Debug)]
pub enum Upstream {
    /// From an agent.
    Relay(Read),
    /// From a place.
    Location(Box<Fetching>),
}

/// What happens next on it.
#[derive(Debug)]
pub enum UpstreamEvent {
    /// The next bytes.
    Data(Bytes),
    /// A read ended.
    ReadEnded(ReadEnd),
    /// A fetch ended.
    FetchEnded(FetchEnd),
}

impl Upstream {
    /// What was asked.
    pub fn range(&self) -> ByteRange {
        match self {
            Self::Relay(read) => read.range(),
            Self::Location(fetching) => fetching.range(),
        }
    }

    /// The next bytes, or the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<UpstreamEvent> {
        match self {
            Self::Relay(read) => read.poll_next(cx).map(|event| match event {
                ReadEvent::Data(bytes) => UpstreamEvent::Data(bytes),
                ReadEvent::Ended(end) => UpstreamEvent::ReadEnded(end),
            }),
            Self::Location(fetching) => fetching.poll_next(cx).map(|event| match event {
                Ok(bytes) => UpstreamEvent::Data(bytes),
                Err(end) => UpstreamEvent::FetchEnded(end),
            }),
        }
    }

    /// Lets more come.
    pub fn grant(&mut self, frames: u32, now: Instant) {
        match self {
            Self::Relay(read) => read.grant(frames, now.into_std()),
            Self::Location(fetching) => fetching.grant(frames),
        }
    }

    /// Frames that may come and have not.
    pub fn credit(&self) -> u32 {
        match self {
            Self::Relay(read) => read.credit(),
            Self::Location(fetching) => fetching.credit(),
        }
    }

    /// How much more credit the rest needs.
    pub fn credit_needed(&self) -> u32 {
        match self {
            Self::Relay(read) => read.credit_needed(),
            Self::Location(fetching) => fetching.credit_needed(),
        }
    }

    /// The latest time from a grant to the first bytes that used it.
    pub fn take_round_trip(&mut self) -> Option<Duration> {
        match self {
            Self::Relay(read) => read.take_round_trip(),
            Self::Location(fetching) => fetching.take_round_trip(),
        }
    }

    /// Whether it keeps a place's connection.
    pub fn is_location(&self) -> bool {
        matches!(self, Self::Location(_))
    }
}
