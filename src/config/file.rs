//! The TOML file with settings.

use std::path::Path;

use clap::Args as _;

use super::{ConfigArgs, ConfigError, Layer};

/// A settings file is a page of text; anything longer is a mistake in the path.
const CONFIG_BYTES: u64 = 1024 * 1024;

/// Reads the file that `--config` names.
pub(super) fn read(path: &Path) -> Result<Layer, ConfigError> {
    let unreadable = |reason: String| ConfigError::Unreadable { path: path.to_owned(), reason };
    let length = std::fs::metadata(path).map_err(|e| unreadable(e.to_string()))?.len();
    if length > CONFIG_BYTES {
        return Err(unreadable("it is longer than 1 MiB".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|e| unreadable(e.to_string()))?;
    parse(path, &text)
}

/// Reads settings. What is wrong with them is told in words of this program: the parser's own rendering quotes the
/// offending line, which may hold a password, and nothing that repeats the value is kept.
pub(super) fn parse(path: &Path, text: &str) -> Result<Layer, ConfigError> {
    let malformed = |line: usize, rule: String| {
        let reason = match key_at(text, line) {
            Some(key) => format!("{key}: {rule}"),
            None => rule,
        };
        ConfigError::Malformed { path: path.to_owned(), line, reason }
    };
    toml::from_str::<toml::Table>(text)
        .map_err(|error| malformed(line_of(&error, text), no_toml(error.message()).to_owned()))?;
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let (line, message) = (line_of(&error, text), error.message());
        match message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
            Some((name, _)) => ConfigError::UnknownSetting { path: path.to_owned(), line, name: name.to_owned() },
            None => malformed(line, rule(message)),
        }
    })
}

/// Where something is wrong, counted from 1.
fn line_of(error: &toml::de::Error, text: &str) -> usize {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    before.matches('\n').count() + 1
}

/// What to write, where something is no TOML.
fn no_toml(message: &str) -> &'static str {
    match message.starts_with("duplicate key") {
        true => "it is set twice",
        false => {
            "this is no TOML: write setting = value, texts, durations and sizes in quotes, numbers, true and false without"
        }
    }
}

/// What a setting takes, where a value is of another type, out of bounds or none of its words.
fn rule(message: &str) -> String {
    let of_type = message.strip_prefix("invalid type: ").and_then(|rest| rest.split_once(", expected "));
    let of_words = message.strip_prefix("unknown variant ").and_then(|rest| rest.split_once(", expected "));
    if let Some((found, expected)) = of_type {
        let found = found.split(['"', '`']).next().unwrap_or_default().trim();
        let expected = match expected.trim() {
            "a boolean" => "true or false, without quotes",
            "u8" | "u32" | "u64" => "a whole number, without quotes",
            "a string" => "a text in quotes",
            "a sequence" => "a list of texts in brackets",
            other => other,
        };
        return format!("it takes {expected}, and this is of the type {found}");
    }
    if let Some((_, words)) = of_words {
        return format!("it takes one of these: {}", words.trim_start_matches("one of "));
    }
    match message.starts_with("invalid value: integer ") {
        true => "the number is too small or too large".to_owned(),
        false => message.replace('\n', ", "),
    }
}

/// The setting whose value stands on a line, or goes on there. What is none may be a part of a value of several lines, and
/// is not repeated.
fn key_at(text: &str, line: usize) -> Option<&str> {
    let settings = ConfigArgs::augment_args(clap::Command::new("settings"));
    let is_setting = |key: &str| settings.get_arguments().any(|arg| arg.get_long() == Some(key));
    let above: Vec<&str> = text.lines().take(line).collect();
    above.into_iter().rev().find_map(|line| {
        let (key, _) = line.split_once('=')?;
        Some(key.trim()).filter(|key| is_setting(key))
    })
}
