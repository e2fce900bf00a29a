//! Log lines: where they go and what they look like. Nothing else in the process sets up a subscriber.

use std::io::IsTerminal as _;

use serde::Deserialize;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{FilterFn, ParseError, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Why log lines cannot be written as asked.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The directives are not understood.
    #[error("a log level is error, warn, info, debug, trace, or directives such as info,sluice=debug: {0}")]
    Level(#[from] ParseError),
    /// A word is no level.
    #[error("a log level is error, warn, info, debug, trace, or directives such as info,sluice=debug: {0:?} is none")]
    Word(String),
    /// Another subscriber is in place already.
    #[error("logging is set up twice")]
    Twice,
}

/// Parses a level or a list of `tracing` directives. A word that is no level is refused: as the name of a module, which
/// it would be for `tracing`, it would turn everything else off.
pub fn filter(level: &str) -> Result<EnvFilter, LoggingError> {
    // No word at all is a level for `tracing`.
    let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
    let words = || level.split(',').map(str::trim);
    if let Some(word) = words().find(|word| !word.contains(['=', '[']) && !is_level(word)) {
        return Err(LoggingError::Word(word.to_owned()));
    }
    Ok(EnvFilter::builder().parse(level)?)
}

/// Whether what a line may hold is known. Libraries write down at `trace` what goes over the wire, such as the frame that
/// an agent's token is in; this crate writes down no secret at any level.
fn is_known(metadata: &Metadata<'_>) -> bool {
    let own = metadata.target() == "sluice" || metadata.target().starts_with("sluice::");
    own || *metadata.level() < Level::TRACE
}

/// Keeps libraries' `trace` lines back, whatever the directives say.
fn known() -> FilterFn {
    filter_fn(is_known)
}

/// Sends log lines to standard error from here on; standard output is for what a command prints.
pub fn init(format: LogFormat, level: &str) -> Result<(), LoggingError> {
    let lines = tracing_subscriber::fmt().with_env_filter(filter(level)?).with_writer(std::io::stderr);
    let set = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).finish().with(known()).try_init(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .finish()
            .with(known())
            .try_init(),
    };
    set.map_err(|_| LoggingError::Twice)
}
