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
//! It must not know who may read what, nor HTTP: whoever subscribes a reader has asked, and ends it when that changes.

mod channel;
mod event;
mod hub;
mod id;
mod log;
mod subscriber;
#[cfg(test)]
mod tests;

pub use channel::ChatAgents;
pub use event::{End, Event, ProgressEvent, Reset, Step, TransferEvent};
pub use hub::{Events, Limits, Refused};
pub use id::{EventId, InvalidEventId, Since};
pub use subscriber::{Next, Subscriber, Subscription};
