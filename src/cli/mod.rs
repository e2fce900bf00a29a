//! The command line: what can be asked for, and how a failure is told. It runs nothing itself, but `sluice token`.

pub mod terminal;
pub mod token;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::config::ConfigArgs;
use crate::protocol::{AgentName, SessionId, TaskId};

/// Streams verified file ranges from agents that can only dial out to ordinary HTTP readers.
#[derive(Debug, Parser)]
#[command(
    name = "sluice",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `sluice` does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway
    Serve(ServeArgs),
    /// Run a gateway, an agent and a chat in one process, to see it work
    Demo(DemoArgs),
    /// Serve a folder as an agent, over an outbound connection to a gateway
    Agent(AgentArgs),
    /// Print a signed token, and nothing else
    Token(token::TokenArgs),
    /// Bring the database to this version's schema
    Migrate(ServeArgs),
    /// Check the settings and connect to everything they name
    Check(ServeArgs),
}

/// Commands that take the gateway's settings and nothing more.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The gateway's settings.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// `sluice demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Folder that the demo's agent serves [default: a generated sample]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Download once, verify the hash, print the figures and exit
    #[arg(long)]
    pub once: bool,
    /// The gateway's settings.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// `sluice agent`.
#[derive(Args)]
pub struct AgentArgs {
    /// Folder to serve
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The gateway: http, https, ws or wss
    #[arg(long, env = "SLUICE_GATEWAY", value_name = "URL")]
    pub gateway: String,
    /// An agent's token
    #[arg(long, env = "SLUICE_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: String,
    /// Name to open the session under [default: the token's]
    #[arg(long, value_name = "NAME")]
    pub name: Option<AgentName>,
    /// Session of the turn that the folder answers, which binds the set to that turn's chat
    #[arg(long, value_name = "SESSION")]
    pub session: Option<SessionId>,
    /// Task that the folder answers
    #[arg(long, value_name = "TASK")]
    pub task: Option<TaskId>,
    /// Open a data connection as well
    #[arg(long)]
    pub data: bool,
    /// Announce again whenever a file changes
    #[arg(long)]
    pub watch: bool,
    /// Serve hidden files too: those whose name, or a folder's above them, begins with a dot
    #[arg(long)]
    pub hidden: bool,
    /// Serve the gateway's signed requests on this address too, over HTTP; announced before the connection
    #[arg(long, value_name = "ADDR:PORT")]
    pub serve: Option<SocketAddr>,
    /// Public URL of --serve behind a proxy with TLS, which keeps Host and path [default: http://ADDR:PORT, loopback only]
    #[arg(long, value_name = "URL", requires = "serve")]
    pub serve_url: Option<String>,
}

impl fmt::Debug for AgentArgs {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentArgs").field("dir", &self.dir).field("gateway", &self.gateway).finish_non_exhaustive()
    }
}

/// What the command line itself says: help that was asked for, or how it was misunderstood.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// For standard output; exit code 0.
    Text(String),
    /// One line for standard error; exit code 2.
    Usage(String),
}

/// Settings that matter to a command which takes all of them. Help leaves out the rest, which is accepted, so that one
/// set of flags does for every command.
const SETTINGS: [(&str, &[&str]); 2] =
    [("token", &["token_secret_file"]), ("migrate", &["database_url", "log_format", "log_level"])];
/// What each of them needs besides.
const COMMON: [&str; 2] = ["config", "data_dir"];

fn command() -> clap::Command {
    let settings: Vec<_> = ConfigArgs::augment_args(clap::Command::new("settings"))
        .get_arguments()
        .map(|setting| setting.get_id().clone())
        .collect();
    SETTINGS.iter().fold(Cli::command(), |cli, (command, shown)| {
        let shown = |id: &clap::Id| COMMON.iter().chain(*shown).any(|shown| id == *shown);
        cli.mut_subcommand(command, |command| leave_out(command, &|id| settings.contains(id) && !shown(id)))
    })
}

/// Hides arguments of a command, and of what stands below it, from help.
fn leave_out(command: clap::Command, hidden: &dyn Fn(&clap::Id) -> bool) -> clap::Command {
    let below: Vec<_> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = command.mut_args(|arg| if hidden(arg.get_id()) { arg.hide(true) } else { arg });
    below.into_iter().fold(command, |command, name| command.mut_subcommand(name, |below| leave_out(below, hidden)))
}

/// Reads a command line.
///
/// # Errors
/// An [`Answer`] to print instead of doing anything.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, Answer> {
    let args = with_negative_values(args);
    let parsed = command().try_get_matches_from(&args).and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    parsed.map_err(|error| {
        let answer = switch_with_a_word(&error, &args).or_else(|| missing(&error)).or_else(|| no_kind(&error, &args));
        if let Some(answer) = answer {
            return answer;
        }
        let rendered = error.render().to_string();
        if error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            Answer::Usage(one_line(&rendered, variable_of(&error, &args)))
        } else if error.use_stderr() {
            Answer::Usage("error: no command was given (see sluice --help)".to_owned())
        } else {
            Answer::Text(rendered)
        }
    })
}

/// The arguments of a command, and of what stands below it.
fn arguments(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    let below = command.get_subcommands();
    let below =
        below.flat_map(|sub| sub.get_arguments().chain(sub.get_subcommands().flat_map(clap::Command::get_arguments)));
    command.get_arguments().chain(below)
}

/// The command line with `--name -5s` as `--name=-5s`: `clap` takes the value for a flag of its own, and complains of a `-5`
/// that nobody has written.
fn with_negative_values(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let command = command();
    let takes_value = |flag: &str| {
        let mut named = arguments(&command).filter(|arg| arg.get_long() == flag.strip_prefix("--"));
        named.any(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set())
    };
    let mut joined: Vec<OsString> = Vec::new();
    for arg in args {
        let digit = arg.as_encoded_bytes().strip_prefix(b"-").and_then(<[u8]>::first).is_some_and(u8::is_ascii_digit);
        match joined.last_mut().filter(|last| digit && last.to_str().is_some_and(takes_value)) {
            Some(flag) => {
                flag.push("=");
                flag.push(arg);
            }
            None => joined.push(arg),
        }
    }
    joined
}

/// The environment variable that the value came from which an error is about, if it did.
fn variable_of(error: &clap::Error, args: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = shown.split([' ', '=', '[']).next()?;
    let is_flag = |arg: &OsString| arg.to_str().and_then(|arg| arg.split('=').next()) == Some(flag);
    if args.iter().any(is_flag) {
        return None;
    }
    let command = command();
    let named = arguments(&command).find(|arg| arg.get_long() == flag.strip_prefix("--"))?;
    Some(named.get_env()?.to_str()?.to_owned())
}

/// What to write instead of `--links maybe`: a switch stands alone, or takes its value behind `=`. `clap` takes the word for
/// an argument of its own.
fn switch_with_a_word(error: &clap::Error, args: &[OsString]) -> Option<Answer> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let place = args.iter().position(|arg| arg == word.as_str())?;
    let name = args.get(place.checked_sub(1)?)?.to_str()?.strip_prefix("--")?;
    let settings = ConfigArgs::augment_args(clap::Command::new("settings"));
    settings.get_arguments().find(|arg| arg.get_long() == Some(name) && arg.is_require_equals_set())?;
    Some(Answer::Usage(format!("error: write --{name} or --{name}=true, or else --{name}=false (see --help)")))
}

/// What is missing, each with the environment variable that would do too.
fn missing(error: &clap::Error) -> Option<Answer> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return None;
    }
    let command = command();
    let with_variable = |shown: &String| {
        let flag = shown.split([' ', '=', '[']).next()?.strip_prefix("--")?;
        let variable = arguments(&command).find(|arg| arg.get_long() == Some(flag))?.get_env()?.to_str()?;
        Some(format!("{shown} or {variable}"))
    };
    let named: Vec<_> = missing.iter().map(|shown| with_variable(shown).unwrap_or_else(|| shown.clone())).collect();
    Some(Answer::Usage(format!("error: missing: {} (see --help)", named.join(", "))))
}

/// Which kinds of tokens there are, where none of them is named.
fn no_kind(error: &clap::Error, args: &[OsString]) -> Option<Answer> {
    let is_kind = matches!(
        error.kind(),
        ErrorKind::MissingSubcommand
            | ErrorKind::InvalidSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    (is_kind && args.get(1).is_some_and(|command| command == "token")).then(|| {
        let text = "error: whose token? write sluice token agent, reader or operator, such as: sluice token reader \
                    --principal user:alice (see sluice token --help)";
        Answer::Usage(text.to_owned())
    })
}

/// Names of environment variables that look like settings and are none: nothing reads them, so whoever set one has
/// mistyped it. What tests are told by is left out.
pub fn unknown_variables(names: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let command = command();
    let known: HashSet<&OsStr> = arguments(&command).filter_map(clap::Arg::get_env).collect();
    let mut unknown: Vec<String> = names
        .into_iter()
        .filter(|name| !known.contains(name.as_os_str()))
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with("SLUICE_") && !name.starts_with("SLUICE_TEST_"))
        .collect();
    unknown.sort();
    unknown
}

/// The first line of everything above the usage, joined, where the value came from if from a `variable`, and where to read
/// on.
fn one_line(rendered: &str, variable: Option<String>) -> String {
    let said =
        rendered.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let said: Vec<_> = said.filter(|line| !line.is_empty()).collect();
    let source = variable.map(|variable| format!("{variable}; ")).unwrap_or_default();
    format!("{} ({source}see --help)", said.join(" "))
}

/// An error and its causes as one line, `error: …`. A cause that an error has told already is not told again.
pub fn error_line(error: &anyhow::Error) -> String {
    let mut line = "error".to_owned();
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str]) -> Result<Cli, Answer> {
        parse(std::iter::once("sluice").chain(args.iter().copied()).map(OsString::from))
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn a_misunderstanding_is_one_line() {
        for args in [
            &["serve", "--listne", "x"][..],
            &["serve", "--listen", "x"],
            &["serve", "--resume-window", "90"],
            &["agent"],
            &["agent", "out", "--gateway", "http://127.0.0.1:1", "--token", "t", "--serve", "9300"],
            &["agent", "out", "--gateway", "http://127.0.0.1:1", "--token", "t", "--serve-url", "https://a.example"],
            &["fly"],
            &["token"],
            &[],
        ] {
            let Err(Answer::Usage(line)) = run(args) else { panic!("{args:?} is accepted") };
            assert!(line.starts_with("error: ") && line.lines().count() == 1, "{line}");
        }
    }

    #[test]
    fn a_negative_value_is_a_value() {
        for args in [&["serve", "--resume-window", "-5s"][..], &["token", "operator", "--ttl", "-1h"]] {
            let Err(Answer::Usage(line)) = run(args) else { panic!("{args:?} is accepted") };
            assert!(line.contains(args[args.len() - 1]) && line.contains("such as 90s"), "{line}");
        }
        let Err(Answer::Usage(line)) = run(&["serve", "--links", "-5"]) else { panic!("a switch takes a word") };
        assert!(line.contains("--links=false"), "{line}");
        let Err(Answer::Usage(line)) = run(&["serve", "--no-such", "-5"]) else { panic!("it is accepted") };
        assert!(line.contains("--no-such"), "{line}");
    }

    #[test]
    fn a_switch_says_what_it_takes() {
        for switch in ["links", "require-task", "key-continuity"] {
            let (flag, value) = (format!("--{switch}"), format!("--{switch}=maybe"));
            let Err(Answer::Usage(line)) = run(&["serve", &flag, "maybe"]) else { panic!("{switch} takes a word") };
            assert_eq!(line, format!("error: write {flag} or {flag}=true, or else {flag}=false (see --help)"));
            let Err(Answer::Usage(line)) = run(&["serve", &value]) else { panic!("{switch} takes any value") };
            assert!(line.contains(&flag) && line.contains("true") && line.contains("false"), "{line}");
            assert!(run(&["serve", &flag, "--listen", "127.0.0.1:1"]).is_ok());
        }
        let Err(Answer::Usage(line)) = run(&["serve", "maybe"]) else { panic!("a word is taken") };
        assert!(line.contains("maybe"), "{line}");
    }

    #[test]
    fn what_is_missing_is_named_with_its_variable() {
        let Err(Answer::Usage(line)) = run(&["agent"]) else { panic!("it is accepted") };
        for named in ["<DIR>", "--gateway <URL> or SLUICE_GATEWAY", "--token <TOKEN> or SLUICE_TOKEN"] {
            assert!(line.contains(named), "{line}");
        }
        let Err(Answer::Usage(line)) = run(&["token", "agent"]) else { panic!("it is accepted") };
        assert_eq!(line, "error: missing: --name <NAME> (see --help)");
    }

    #[test]
    fn a_token_without_a_kind_says_which_there_are() {
        for args in [&["token"][..], &["token", "fly"]] {
            let Err(Answer::Usage(line)) = run(args) else { panic!("{args:?} is accepted") };
            for kind in command().find_subcommand("token").unwrap().get_subcommands() {
                assert!(line.contains(kind.get_name()), "{line}");
            }
            assert!(line.contains("sluice token reader --principal user:alice"), "{line}");
        }
        assert!(run(&["token", "reader", "--principal", "user:alice"]).is_ok(), "the example works");
    }

    #[test]
    fn mistyped_variables_are_named() {
        let names =
            ["SLUICE_LISTEN", "SLUICE_LISTNE", "SLUICE_TOKEN", "SLUICE_", "HOME", "SLUICE_TEST_X", "SLUICE_LINKS"];
        assert_eq!(unknown_variables(names.map(OsString::from)), ["SLUICE_", "SLUICE_LISTNE"]);
    }

    #[test]
    fn an_agents_token_is_not_shown_by_debug() {
        let cli = run(&["agent", "out", "--gateway", "http://127.0.0.1:1", "--token", "hunter2"]).unwrap();
        assert!(!format!("{cli:?}").contains("hunter2"));
    }

    #[test]
    fn an_error_with_its_causes_is_one_line() {
        let error = anyhow::anyhow!("the cause,\n  in two lines").context("it failed");
        assert_eq!(error_line(&error), "error: it failed: the cause, in two lines");
        let told = anyhow::anyhow!("no room").context("cannot write (no room); make some").context("it failed");
        assert_eq!(error_line(&told), "error: it failed: cannot write (no room); make some");
    }

    #[test]
    fn a_cause_that_was_told_is_not_told_again() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot do it: {source} (try something else)")]
        struct Told {
            source: std::io::Error,
        }
        let error = anyhow::Error::from(Told { source: std::io::Error::other("no luck") }).context("at the start");
        assert_eq!(error_line(&error), "error: at the start: cannot do it: no luck (try something else)");
    }

    #[test]
    fn help_names_the_settings_that_matter() {
        let help = |args: &[&str]| match run(&[args, &["--help"]].concat()) {
            Err(Answer::Text(help)) => help,
            other => panic!("{other:?}"),
        };
        for (args, shown) in [
            (&["token", "agent"][..], "--token-secret-file"),
            (&["token", "reader"], "--data-dir"),
            (&["token", "operator"], "--config"),
            (&["migrate"], "--database-url"),
        ] {
            let help = help(args);
            assert!(help.contains(shown) && !help.contains("--listen"), "{help}");
        }
        assert!(help(&["check"]).contains("--listen"));
        assert!(run(&["token", "operator", "--listen", "127.0.0.1:1"]).is_ok(), "what is not shown is accepted");
    }
}
