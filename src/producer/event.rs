//! What an agent tells while it runs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;

use super::folder::SkipReason;
use crate::protocol::{AgentName, SessionId, Sha256};

/// What happened, for the terminal and for tests. [`Display`](fmt::Display) prints one line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgentEvent {
    /// Something in the folder is not published.
    Skipped {
        /// Relative to the folder.
        path: String,
        /// Why.
        reason: SkipReason,
    },
    /// Hashing has come this far. Told every two seconds, and not at all of what is hashed sooner.
    Hashing {
        /// Files hashed whole, or found unreadable.
        done_files: usize,
        /// Files in all that are to be hashed.
        total_files: usize,
        /// Bytes hashed.
        done_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
    },
    /// The folder is hashed and can be served.
    Published {
        /// The manifest's identity.
        sha256: Sha256,
        /// How many files.
        files: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// The watched folder could not be published as it is now; what was published before stays, if anything was.
    PublishFailed {
        /// Why.
        reason: String,
    },
    /// A file was asked for that is no longer as it was published. Told once for each file.
    Unserved {
        /// Where it is.
        path: PathBuf,
        /// Why it cannot be read.
        reason: String,
        /// The folder is watched, and so published again by itself.
        is_watched: bool,
    },
    /// The producer endpoint is open.
    Serving {
        /// Its public URL.
        url: String,
    },
    /// The gateway reads a file over the connection, and never asked at the producer endpoint. Told once.
    Bypassed {
        /// The endpoint's public URL.
        url: String,
    },
    /// A session is open on the control connection.
    Connected {
        /// The control session.
        session: SessionId,
    },
    /// The control connection is gone, or could not be made. Told at once for a reason that is new, and then once a
    /// minute.
    Disconnected {
        /// Why.
        reason: String,
        /// How many attempts ended so since it was told last, this one among them.
        attempts: u32,
        /// When the next attempt starts.
        retry_in: Duration,
    },
    /// The data connection is in use.
    DataConnected,
    /// The data connection is gone, or could not be made. Told as often as the control connection's end.
    DataDisconnected {
        /// Why.
        reason: String,
        /// How many attempts ended so since it was told last, this one among them.
        attempts: u32,
        /// When the next attempt starts.
        retry_in: Duration,
    },
    /// The announcement has been sent.
    Announced {
        /// The manifest's identity.
        sha256: Sha256,
        /// How long the gateway has to refuse it.
        confirm_window: Duration,
    },
    /// Nobody refused the announcement within the confirm window.
    Accepted {
        /// The manifest's identity.
        sha256: Sha256,
    },
    /// Who can read what was accepted. The gateway does not tell, nor whether the session is bound yet. Told once.
    Audience {
        /// This agent.
        agent: AgentName,
        /// The session that the set was announced in, where it is a turn's.
        session: Option<SessionId>,
    },
    /// The connection ended within the confirm window, so whether the set was accepted is not known.
    Unconfirmed {
        /// The manifest's identity.
        sha256: Sha256,
    },
    /// The gateway refused an announcement (`artifact.error`).
    Refused {
        /// The manifest named in the refusal, as it was written there.
        sha256: String,
        /// The gateway's code.
        code: String,
        /// The gateway's message.
        message: String,
    },
}

impl fmt::Display for AgentEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skipped { path, reason } => write!(f, "skipped {path:?}: {reason}"),
            Self::Hashing { done_files, total_files, done_bytes, total_bytes } => {
                let ending = if *total_files == 1 { "" } else { "s" };
                let (done, total) = (ByteSize(*done_bytes), ByteSize(*total_bytes));
                let percent = u128::from(*done_bytes) * 100 / u128::from(*total_bytes).max(1);
                write!(f, "hashed {done_files} of {total_files} file{ending}, {done} of {total} ({percent} %)")
            }
            Self::Published { sha256, files, bytes } => {
                let ending = if *files == 1 { "" } else { "s" };
                write!(f, "published {files} file{ending}, {bytes} bytes, as sha256:{sha256}")
            }
            Self::PublishFailed { reason } => {
                write!(f, "not published: {reason}; the folder is looked at again when it changes")
            }
            Self::Unserved { path, reason, is_watched } => {
                let advice = match is_watched {
                    true => "the folder is published again as it is now, once it is quiet",
                    false => "start again, or use --watch, to publish it as it is now",
                };
                write!(f, "cannot serve {path:?}: {reason}; whoever asked for it got an error ({advice})")
            }
            Self::Serving { url } => write!(f, "serving the gateway at {url}"),
            Self::Bypassed { url } => write!(
                f,
                "the gateway reads over the connection and has not asked at {url}: check that it reaches that address, and \
                 that its operator's --allow-hosts names it, if it is no public https address"
            ),
            Self::Connected { session } => write!(f, "connected, session {session}"),
            Self::Disconnected { reason, attempts, retry_in } => {
                write!(f, "not connected{}: {reason}; trying again in {retry_in:.1?}", Since(*attempts))
            }
            Self::DataConnected => f.write_str("data connection open"),
            Self::DataDisconnected { reason, attempts, retry_in } => {
                write!(f, "no data connection{}: {reason}; trying again in {retry_in:.1?}", Since(*attempts))
            }
            Self::Announced { sha256, confirm_window } => {
                write!(f, "announced sha256:{sha256}, which the gateway may refuse within {confirm_window:?}")
            }
            Self::Accepted { sha256 } => write!(f, "accepted sha256:{sha256}"),
            Self::Audience { agent, session: Some(session) } => write!(
                f,
                "readers of the chat that session {session} of agent {agent} is bound to see it; if it is bound to none \
                 yet, from when the operator binds it (POST /v1/sessions)"
            ),
            Self::Audience { session: None, .. } => f.write_str(
                "nobody can read it: without --session it belongs to no chat; give --session the id of a session that is \
                 bound to one",
            ),
            Self::Unconfirmed { sha256 } => {
                write!(f, "sha256:{sha256} may not have been accepted: the connection ended")
            }
            Self::Refused { sha256, code, message } => {
                write!(f, "artifact.error for sha256:{sha256}: {code}: {message}")
            }
        }
    }
}

/// How many attempts failed since that was told last, where it was more than one.
struct Since(u32);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 | 1 => Ok(()),
            attempts => write!(f, " after {attempts} more attempts"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_failure_says_how_often_it_was_tried() {
        let told = |attempts| {
            let reason = "the gateway is away".to_owned();
            AgentEvent::Disconnected { reason, attempts, retry_in: Duration::from_secs(9) }.to_string()
        };
        assert_eq!(told(1), "not connected: the gateway is away; trying again in 9.0s");
        assert_eq!(told(7), "not connected after 7 more attempts: the gateway is away; trying again in 9.0s");
    }
}
