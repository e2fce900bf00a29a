//! What a person at the terminal sees of an agent's work.

use std::io::{IsTerminal as _, Write as _};

use crate::producer::AgentEvent;

/// Prints one line on standard error. Progress overwrites itself, and is left out where nobody watches.
pub fn show(event: AgentEvent) {
    let mut stderr = std::io::stderr().lock();
    // Nothing is left to do when standard error is gone.
    let _ = match event {
        AgentEvent::Hashing { .. } if stderr.is_terminal() => write!(stderr, "\r\x1b[K{event}"),
        AgentEvent::Hashing { .. } => Ok(()),
        AgentEvent::Published { .. } if stderr.is_terminal() => writeln!(stderr, "\r\x1b[K{event}"),
        _ => writeln!(stderr, "{event}"),
    };
}
