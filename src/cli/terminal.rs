//! What a person at the terminal sees of an agent's work.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::producer::AgentEvent;

/// Whether the terminal's last line is one that is overwritten by what comes next.
static OVERWRITABLE: AtomicBool = AtomicBool::new(false);

/// Prints one line on standard error. On a terminal, the next line takes the place of one that tells of progress.
pub fn show(event: AgentEvent) {
    print(&event, matches!(event, AgentEvent::Hashing { .. }));
}

/// Prints one line on standard error, in place of one that tells of progress.
pub fn say(line: impl Display) {
    print(&line, false);
}

fn print(line: &dyn Display, passing: bool) {
    let mut stderr = std::io::stderr().lock();
    let overwritable = passing && stderr.is_terminal();
    let start = if OVERWRITABLE.swap(overwritable, Ordering::Relaxed) { "\r\x1b[K" } else { "" };
    let end = if overwritable { "" } else { "\n" };
    // In one piece, so that no other process writes into it. Nothing is left to do when standard error is gone.
    let _ = stderr.write_all(format!("{start}{line}{end}").as_bytes());
}
