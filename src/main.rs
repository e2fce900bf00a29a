//! The `sluice` binary: reads the command line, runs the command, and turns its outcome into an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use sluice::app::{self, EndedAtOnce, Signals};
use sluice::cli::token::{self, Minted};
use sluice::cli::{self, AgentArgs, Answer, Command, terminal};
use sluice::clock::Clock;
use sluice::config::{ConfigArgs, Settings};
use sluice::demo::{self, DemoOptions};
use sluice::logging::{self, LogFormat};
use sluice::producer::{self, AgentOptions, EndpointOptions};

/// The command line was misunderstood.
const USAGE: u8 = 2;

/// A block whose size decides how much freed memory the allocator keeps.
const KEPT_BYTES: usize = 1024 * 1024;

fn main() -> ExitCode {
    keep_freed_memory();
    let outcome = match cli::parse(std::env::args_os()) {
        Ok(cli) => run(cli.command),
        Err(Answer::Text(text)) => print(&text),
        Err(Answer::Usage(line)) => {
            terminal::say(line);
            return ExitCode::from(USAGE);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::say(cli::error_line(&error));
            error.downcast_ref::<EndedAtOnce>().map_or(ExitCode::FAILURE, |ended| ended.exit_code().into())
        }
    }
}

/// Receive buffers are allocated and freed by the thousand a second. glibc gives such blocks back to the system, which has
/// to zero them again each time, until it has seen a larger one freed: from then on it keeps twice that (mallopt(3), the
/// dynamic mmap threshold). Other allocators take no notice.
fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(KEPT_BYTES)));
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(args) => block_on(app::run(start(args.config)?)),
        Command::Token(args) => {
            logging::init(LogFormat::Text, "warn")?;
            let Minted { token, note } = token::mint(args, &Clock::system())?;
            note.iter().for_each(terminal::say);
            print(&format!("{token}\n"))
        }
        Command::Check(args) => {
            let found = block_on(app::check(start(args.config)?))?;
            print(&format!("{}\nthe settings are good\n", found.join("\n")))
        }
        Command::Migrate(args) => {
            let done = block_on(app::migrate(start(args.config)?))?;
            print(&format!("{}\n", done.join("\n")))
        }
        Command::Demo(args) => {
            let settings = Settings::load_over(args.config, demo::defaults())?;
            // What the demo itself says is enough, unless log lines were asked for.
            logging::init(settings.log_format, settings.log_level.as_deref().unwrap_or("warn"))?;
            warn_of_variables();
            block_on(demo::run(settings, DemoOptions { dir: args.dir, once: args.once }))
        }
        Command::Agent(args) => {
            logging::init(LogFormat::Text, "warn")?;
            warn_of_variables();
            block_on(agent(args))
        }
    }
}

/// Serves a folder until SIGINT or SIGTERM (a second one ends it at once), and tells on standard error what happens.
async fn agent(args: AgentArgs) -> anyhow::Result<()> {
    let AgentArgs { dir, gateway, token, name, session, task, data, watch, hidden, serve, serve_url: url } = args;
    let serve = serve.map(|listen| EndpointOptions { url, ..EndpointOptions::new(listen) });
    let options =
        AgentOptions { name, session, task, data, watch, hidden, serve, ..AgentOptions::new(dir, gateway, token) };
    let signals = Signals::listen()?;
    let stop = signals.stop();
    let running = app::on_worker(producer::run(options, stop, terminal::show));
    signals.obeyed_by(async { Ok(running.await?) }).await?;
    terminal::say("stopped");
    Ok(())
}

/// Settings first, then log lines as they say.
fn start(args: ConfigArgs) -> anyhow::Result<Settings> {
    let settings = Settings::load(args)?;
    logging::init(settings.log_format, settings.log_level.as_deref().unwrap_or("info"))?;
    warn_of_variables();
    Ok(settings)
}

/// Tells which environment variables nobody reads. Their values stay out of it: one may be a password.
fn warn_of_variables() {
    let unknown = cli::unknown_variables(std::env::vars_os().map(|(name, _)| name));
    if !unknown.is_empty() {
        tracing::warn!(names = unknown.join(","), "no setting is named so: these environment variables change nothing");
    }
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(work);
    // What ended in order left nothing running. What did not must not be waited for: a file may be being hashed.
    runtime.shutdown_background();
    outcome
}

/// A reader that closes the pipe early, such as `head`, is no failure.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
