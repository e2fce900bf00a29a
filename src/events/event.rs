//! What readers are told: the events and their JSON.

use serde::Serialize;

use crate::protocol::frames::Progress;
use crate::protocol::{Sha256, TaskId};

/// An event, as it is told to everyone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    name: &'static str,
    data: Box<str>,
}

impl Event {
    pub(super) fn new(name: &'static str, data: &impl Serialize) -> Self {
        // Structures of texts and numbers: writing them as JSON has no way to fail.
        Self { name, data: serde_json::to_string(data).unwrap_or_default().into() }
    }

    /// What kind it is.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// JSON in one line.
    pub fn data(&self) -> &str {
        &self.data
    }

    /// About how many bytes it takes.
    pub(super) fn weight(&self) -> usize {
        size_of::<Self>() + self.data.len()
    }

    /// A set is new, or has no progress any more.
    pub(super) fn set(set: &impl Serialize) -> Self {
        Self::new("set", set)
    }

    pub(super) fn progress(progress: &ProgressEvent) -> Self {
        Self::new("progress", progress)
    }

    pub(super) fn agent(name: &str, online: bool) -> Self {
        Self::new("agent", &AgentEvent { name, online })
    }

    /// One transfer.
    pub(super) fn transfer(transfer: &TransferEvent) -> Self {
        Self::new("transfer", transfer)
    }

    /// The transfers of a reader that run.
    pub fn transfers(transfers: &[TransferEvent]) -> Self {
        #[derive(Serialize)]
        struct TransfersEvent<'a> {
            transfers: &'a [TransferEvent],
        }
        Self::new("transfers", &TransfersEvent { transfers })
    }

    /// Something was missed.
    pub fn reset(reason: Reset) -> Self {
        Self::new("reset", &ResetEvent { reason })
    }

    /// Nothing more comes.
    pub fn end(reason: End) -> Self {
        Self::new("end", &EndEvent { reason })
    }
}

/// How far a set is.
#[derive(Debug, Clone, Serialize)]
pub struct ProgressEvent {
    /// The manifest's identity.
    pub sha256: Sha256,
    /// The task it answers.
    pub task_id: Option<TaskId>,
    /// The agent, as the chat's list of sets names it.
    pub agent: String,
    /// Units done, and in all: finished once they are the same.
    #[serde(flatten)]
    pub progress: Progress,
}

/// An agent that has a set in the chat, or takes part in it, came or went.
#[derive(Debug, Clone, Copy, Serialize)]
struct AgentEvent<'a> {
    /// As the chat's list of sets names it.
    name: &'a str,
    online: bool,
}

/// One transfer, for its reader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TransferEvent {
    /// Unique within the process.
    pub id: u64,
    /// The file.
    pub sha256: Sha256,
    /// The file's complete length in bytes.
    pub size: u64,
    /// The first byte that is read of it.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Bytes of the range handed to the reader.
    pub sent_bytes: u64,
    /// What it waits for or does, as in an operator's list of transfers; `ended` in the last event.
    pub state: &'static str,
    /// How it ended: `complete`, `reader_left`, or the failure's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    /// For whoever delivers it.
    #[serde(skip)]
    pub step: Step,
}

/// Where a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It begins.
    Begin,
    /// It went on: the next event makes this one pointless.
    Go,
    /// It is over.
    End,
}

/// Why a reader has to ask for its lists again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reset {
    /// The id is from before a restart, from another node, or was never given.
    Unknown,
    /// More has happened since than is kept.
    TooOld,
    /// Something happened that could not be told.
    Lost,
}

#[derive(Serialize)]
struct ResetEvent {
    reason: Reset,
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The gateway stops: another one, or this one in a moment, goes on.
    Draining,
    /// The reader's credential has had its time.
    Expired,
    /// The reader was too slow for what happened.
    Lagged,
    /// The reader takes part in the chat no longer, or there is no such chat.
    Revoked,
}

#[derive(Serialize)]
struct EndEvent {
    reason: End,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(event: &Event) -> String {
        format!("{}: {}", event.name(), event.data())
    }

    #[test]
    fn others_rely_on_these() {
        let sha256 = Sha256::of(b"");
        let progress = |done| ProgressEvent {
            sha256,
            task_id: (done == 3).then(|| "t \"1\"".parse().unwrap()),
            agent: "ada".to_owned(),
            progress: Progress { done, total: 10 },
        };
        let transfer = |state, step, outcome| TransferEvent {
            id: 7,
            sha256,
            size: 1000,
            start: 10,
            end: 110,
            sent_bytes: 50,
            state,
            outcome,
            step,
        };
        let going = transfer("reading", Step::Go, None);
        let mut all = vec![
            Event::progress(&progress(3)),
            Event::progress(&progress(10)),
            Event::agent("ada", true),
            Event::agent("a\nb", false),
            Event::transfer(&going),
            Event::transfer(&transfer("ended", Step::End, Some("complete"))),
            Event::transfers(&[]),
            Event::transfers(&[going]),
        ];
        all.extend([Reset::Unknown, Reset::TooOld, Reset::Lost].map(Event::reset));
        all.extend([End::Draining, End::Expired, End::Lagged, End::Revoked].map(Event::end));
        let all: Vec<_> = all.iter().map(text).collect();
        insta::assert_snapshot!("events", all.join("\n"));
    }
}
