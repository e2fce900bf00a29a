//! The relay's decisions as state machines without I/O: what may be sent, asked, released and granted.
//!
//! Nothing here waits, spawns, locks or reads a clock; `now` is an argument. The callers are [`crate::agents`] (one
//! read on a connection, the slots of a socket) and [`crate::transfer`] (the reads of one range of a blob).

pub mod fairness;
pub mod plan;
pub mod progress;
pub mod promise;
pub mod rate;
pub mod shares;
#[cfg(test)]
mod simulator;
pub mod verify;
pub mod window;

pub use fairness::{Fairness, Ticket};
pub use plan::Plan;
pub use progress::{Progress, Violation};
pub use promise::{Coverage, Object, Promise, object_at};
pub use rate::Rate;
pub use shares::{Held, Share, Sharer, Shares};
pub use verify::{Mismatch, Released, Verifier};
pub use window::Window;
