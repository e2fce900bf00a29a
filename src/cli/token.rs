//! `sluice token`: prints a token and nothing else, so that its output can be used as it is.

use std::sync::Arc;

use clap::{Args, Subcommand};

use crate::clock::Clock;
use crate::config::{ConfigArgs, ConfigError, Settings, Span};
use crate::identity::{Caller, Identity, IssueError, SecretError, Tokens};
use crate::protocol::{AgentName, ChatId, Principal};

/// `sluice token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// Whose.
    #[command(subcommand)]
    pub holder: Holder,
}

/// Whose token it is.
#[derive(Debug, Subcommand)]
pub enum Holder {
    /// A token that an agent connects with
    Agent {
        /// Name that the agent is known by
        #[arg(long, value_name = "NAME")]
        name: AgentName,
        /// The agent's id, which its principal is made of [default: the name]
        #[arg(long, value_name = "ID")]
        id: Option<String>,
        /// Whose agent it is
        #[arg(long, value_name = "PRINCIPAL")]
        owner: Option<Principal>,
        /// Lifetime and secret.
        #[command(flatten)]
        common: Common,
    },
    /// A token that a reader downloads with
    Reader {
        /// Who reads, such as user:alice
        #[arg(long, value_name = "PRINCIPAL")]
        principal: Principal,
        /// The only chat the token is good for; may be repeated
        #[arg(long, value_name = "CHAT")]
        chat: Vec<ChatId>,
        /// Lifetime and secret.
        #[command(flatten)]
        common: Common,
    },
    /// A token that manages chats and sessions
    Operator {
        /// Lifetime and secret.
        #[command(flatten)]
        common: Common,
    },
}

/// What every token has.
#[derive(Debug, Args)]
pub struct Common {
    /// How long the token is good for
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub ttl: Span,
    /// The gateway's settings: where its secret is.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Why there is no token to print.
#[derive(Debug, thiserror::Error)]
pub enum TokenCommandError {
    /// The settings are not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The secret is not usable.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Signing failed.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// `--id` cannot be an agent's principal.
    #[error("an agent's id is printable and at most 506 bytes (set --id)")]
    Id,
    /// `--principal` stands for everyone.
    #[error("a reader is user:<id> or agent:<id>, and * is nobody (set --principal)")]
    Everyone,
    /// It would be over before it began.
    #[error("a token is good for some time (set --ttl to more than 0s)")]
    NoTime,
    /// The token would be refused for its length.
    #[error("the token would be longer than 8 KiB (name fewer chats)")]
    TooLong,
}

/// A token, and what whoever asked for it should know.
#[derive(Debug)]
pub struct Minted {
    /// For standard output.
    pub token: String,
    /// For standard error.
    pub note: Option<String>,
}

/// Mints the token that was asked for. Where there is no secret yet, as before the gateway's first start, one is made.
///
/// # Errors
/// See [`TokenCommandError`].
pub fn mint(args: TokenArgs, clock: &Clock) -> Result<Minted, TokenCommandError> {
    let (identity, common) = match args.holder {
        Holder::Agent { name, id, owner, common } => {
            let principal = Principal::agent(id.as_deref().unwrap_or(name.as_str()));
            let principal = principal.map_err(|_| TokenCommandError::Id)?;
            let owner = owner.map(|owner| owner.as_str().to_owned());
            (Identity::Agent { principal, name: Some(name), owner }, common)
        }
        Holder::Reader { principal, .. } if principal == Principal::everyone() => {
            return Err(TokenCommandError::Everyone);
        }
        Holder::Reader { principal, chat, common } => {
            let chats = (!chat.is_empty()).then(|| Arc::from(chat));
            (Identity::Reader(Caller { principal, chats }), common)
        }
        Holder::Operator { common } => (Identity::Operator, common),
    };
    if common.ttl.get().is_zero() {
        return Err(TokenCommandError::NoTime);
    }
    let Settings { token_secret_file: secret, signing_key_file: key, .. } = Settings::load(common.config)?;
    let is_new = !secret.exists();
    // The first start makes its key beside it.
    let is_unused = !key.exists() && key.parent() == secret.parent();
    let token = Tokens::open(&secret)?.issue(&identity, common.ttl.get(), clock)?;
    if token.len() > crate::identity::token::TOKEN_BYTES {
        return Err(TokenCommandError::TooLong);
    }
    // In a wrong directory, say: the gateway that was meant knows nothing of this secret.
    let note = (is_new || is_unused).then(|| {
        let place = std::path::absolute(&secret).unwrap_or(secret);
        let place = place.display();
        let why = match is_new {
            true => format!("there was no token secret, so a new one was made: {place}"),
            false => format!("no gateway has started with this token secret yet: {place}"),
        };
        format!(
            "note: {why}. The token is good for a gateway that uses this file; for one that runs already, run this in \
             its directory, or name its --data-dir or --token-secret-file"
        )
    });
    Ok(Minted { token, note })
}
