//! What happens in a chat, told to the readers who want to know while it happens.
//!
//! A chat that nobody is told about costs nothing: whoever has something to tell looks at a counter. One that somebody
//! is told about has the last of its events, which every reader takes at its own pace from its own place; a reader
//! that is too slow finds its place gone, and its stream ends. So does one that comes back later than the events are
//! kept: it is told that it missed something. Neither happens silently.
//!
//! Nothing outlives the process: an id from before a restart, or from another node, is no place here. What a reader's
//! own transfers do is told to that reader alone, and is in nobody's history: a stream begins with those that run.
//!
//! # What is told
//! Others rely on the names and the JSON:
//!
//! | event | data |
//! |---|---|
//! | `set` | a set that is new, or has no progress any more: the same object as in the chat's list of sets |
//! | `progress` | [`ProgressEvent`]: how far a set is that was told or listed before |
//! | `agent` | `{"name", "online"}`: an agent that has a set in the chat, or takes part in it, came or went |
//! | `transfer` | [`TransferEvent`]: one of the reader's own begins, is under way (about once a second) or ends |
//! | `transfers` | `{"transfers": […]}`: all of the reader's that run, once at the beginning of a stream |
//! | `reset` | `{"reason"}`, a [`Reset`]: something was missed; whoever keeps a list asks for it again |
//! | `end` | `{"reason"}`, an [`End`]: the last event of a stream |
//!
//! A set is known by its hash and its task. It takes the place of the unfinished ones of the same agent and task, of
//! whose going nobody is told besides.
//!
//! It must not know who may read what, nor HTTP: whoever subscribes a reader has asked, and ends it when that changes.

mod channel;
mod event;
mod hub;
mod id;
mod log;
mod subscriber;
mod subscription;
#[cfg(test)]
mod tests;

pub use channel::ChatAgents;
pub use event::{End, Event, ProgressEvent, Reset, Step, TransferEvent};
pub use hub::{Events, Limits};
pub use id::{EventId, InvalidEventId, Since};
pub use subscriber::Subscriber;
pub use subscription::{Next, Refused, Subscription};
