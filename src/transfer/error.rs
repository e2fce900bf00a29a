//! Why a transfer fails, and what each way a read can end means for it.

use crate::agents::ReadEnd;
use crate::protocol::frames::BlobErrorCode;
use crate::protocol::limits::CONCURRENT_READS;

/// A transfer that cannot begin, or cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TransferError {
    /// No agent that has the bytes came back in time.
    #[error("no agent that has these bytes is online")]
    AgentOffline,
    /// Every agent that has the bytes failed to deliver them.
    #[error("the agent could not deliver the bytes")]
    AgentFailed,
    /// The agent has fewer of these bytes than were announced. To a reader it is the agent's failure.
    #[error("the agent has fewer bytes than were announced")]
    Shorter,
    /// What came is not what was announced.
    #[error("the agent's bytes are not the ones that were announced")]
    HashMismatch,
    /// Every agent that announced the bytes says that it no longer has them.
    #[error("the agent no longer has these bytes")]
    BlobGone,
    /// As many transfers run as may.
    #[error("{limit} transfers run at once, which is the limit")]
    TooManyTransfers {
        /// The limit that is used up.
        limit: usize,
    },
    /// What the gateway keeps itself cannot be read at the moment.
    #[error("the gateway cannot read what it keeps at the moment")]
    Unavailable,
    /// The reader took nothing of what was there for it.
    #[error("the reader took nothing for too long")]
    ReaderStalled,
    /// Its reader may no longer read these bytes.
    #[error("the reader may no longer read these bytes")]
    Revoked,
    /// An operator ended the transfer.
    #[error("an operator ended the transfer")]
    Cancelled,
}

impl TransferError {
    /// The outcome of a transfer that its reader ended.
    pub const READER_LEFT: &str = "reader_left";
    /// The outcome of a transfer that the gateway's end cut.
    pub const SHUTDOWN: &str = "shutdown";

    /// Every outcome's name, so that each has its counter from the start.
    pub const OUTCOMES: [&str; 12] = [
        "complete",
        Self::READER_LEFT,
        Self::SHUTDOWN,
        "reader_stalled",
        "agent_offline",
        "agent_failed",
        "hash_mismatch",
        "blob_gone",
        "too_many_transfers",
        "unavailable",
        "revoked",
        "cancelled",
    ];

    /// The error's name in metrics and logs, and its native code where it reaches a reader.
    pub fn code(self) -> &'static str {
        match self {
            Self::AgentOffline => "agent_offline",
            Self::AgentFailed | Self::Shorter => "agent_failed",
            Self::HashMismatch => "hash_mismatch",
            Self::BlobGone => "blob_gone",
            Self::TooManyTransfers { .. } => "too_many_transfers",
            Self::Unavailable => "unavailable",
            Self::ReaderStalled => "reader_stalled",
            Self::Revoked => "revoked",
            Self::Cancelled => "cancelled",
        }
    }
}

impl TransferError {
    /// Whether it is about who was asked: others may have the bytes.
    pub fn is_of_sources(self) -> bool {
        match self {
            Self::AgentOffline | Self::AgentFailed | Self::Shorter | Self::HashMismatch | Self::BlobGone => true,
            Self::TooManyTransfers { .. } => true,
            Self::Unavailable | Self::ReaderStalled | Self::Revoked | Self::Cancelled => false,
        }
    }

    /// Whether somebody was waited for in vain.
    pub fn is_of_waiting(self) -> bool {
        matches!(self, Self::AgentOffline | Self::TooManyTransfers { .. })
    }

    /// What it is where the set has expired: its agents need not have the bytes, and are not waited for.
    pub fn of_expired(self) -> Self {
        match self {
            Self::AgentOffline | Self::AgentFailed => Self::BlobGone,
            other => other,
        }
    }
}

/// What a feed does about a read that ended before its last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Ask for what remains as soon as an agent that has it is there.
    Resume,
    /// Ask again after a pause; when that never helps, this is the error.
    Wait(TransferError),
    /// Ask the same agent once more, then another; when none is left, this is the error.
    Retry(TransferError),
    /// Ask another agent; when none is left, this is the error.
    NextSource(TransferError),
}

/// The one table of what the ends of a read become.
///
/// | the read ended with | the transfer | a reader is told, if nothing helps |
/// |---|---|---|
/// | a lost connection, a takeover | goes on where it was when the agent is back | 503 `agent_offline` |
/// | `too_many_reads` | waits for a slot | 503 `too_many_transfers` |
/// | `duplicate_request` | asks again under a new id | 502 `agent_failed` |
/// | `unknown_blob` | asks another agent; where there is none and it had the bytes before, waits for it to have them again | 410 `blob_gone` |
/// | `read_failed`, `range_invalid`, `bad_request` | asks another agent | 502 `agent_failed` |
/// | a broken rule | asks another agent | 502 `agent_failed` |
///
/// After the head of a response has gone out, the same errors cut the response instead.
pub fn remedy(end: &ReadEnd) -> Remedy {
    match end {
        ReadEnd::Complete | ReadEnd::Disconnected => Remedy::Resume,
        ReadEnd::Broke(_) => Remedy::NextSource(TransferError::AgentFailed),
        ReadEnd::Refused(code) => match code {
            BlobErrorCode::TooManyReads => Remedy::Wait(TransferError::TooManyTransfers { limit: CONCURRENT_READS }),
            BlobErrorCode::DuplicateRequest => Remedy::Retry(TransferError::AgentFailed),
            BlobErrorCode::UnknownBlob => Remedy::NextSource(TransferError::BlobGone),
            BlobErrorCode::RangeInvalid => Remedy::NextSource(TransferError::Shorter),
            BlobErrorCode::ReadFailed | BlobErrorCode::BadRequest => Remedy::NextSource(TransferError::AgentFailed),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Violation;

    #[test]
    fn every_way_a_read_ends_has_its_remedy() {
        use BlobErrorCode::*;
        use TransferError::*;
        let table = [
            (ReadEnd::Disconnected, Remedy::Resume),
            (ReadEnd::Complete, Remedy::Resume),
            (ReadEnd::Refused(TooManyReads), Remedy::Wait(TooManyTransfers { limit: 16 })),
            (ReadEnd::Refused(DuplicateRequest), Remedy::Retry(AgentFailed)),
            (ReadEnd::Refused(UnknownBlob), Remedy::NextSource(BlobGone)),
            (ReadEnd::Refused(ReadFailed), Remedy::NextSource(AgentFailed)),
            (ReadEnd::Refused(RangeInvalid), Remedy::NextSource(Shorter)),
            (ReadEnd::Refused(BadRequest), Remedy::NextSource(AgentFailed)),
            (ReadEnd::Broke(Violation::NoCredit), Remedy::NextSource(AgentFailed)),
        ];
        for (end, expected) in table {
            assert_eq!(remedy(&end), expected, "{end:?}");
        }
    }
}
