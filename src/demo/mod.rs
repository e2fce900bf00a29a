//! `sluice demo`: a gateway, an agent that serves a folder, and a chat, in one process, so that the main job can be seen
//! with nothing else installed. Everything in it goes over real sockets, as it would between three machines.

mod download;
mod sample;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytesize::ByteSize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::app::{self, Gateway, Signals};
use crate::cli::terminal;
use crate::clock::Clock;
use crate::config::{Layer, Settings};
use crate::http::native::file_url;
use crate::identity::{Caller, Identity};
use crate::producer::{self, AgentEvent, AgentOptions};
use crate::protocol::manifest::Entry;
use crate::protocol::{AgentName, ChatId, Principal, SessionId, Sha256};

const CHAT: &str = "demo";
const SESSION: &str = "demo-turn";
const AGENT: &str = "demo-agent";
const READER: &str = "user:demo";
/// How long the tokens that are printed are good for.
const TOKEN_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the demo's downloads may take to finish at its end, unless a setting says otherwise: nobody depends on them.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// What `sluice demo` is asked to do.
#[derive(Debug)]
pub struct DemoOptions {
    /// The folder to serve; a generated sample when absent.
    pub dir: Option<PathBuf>,
    /// Download once, verify, print the figures and return.
    pub once: bool,
}

/// The demo's own defaults of settings.
pub fn defaults() -> Layer {
    Layer { shutdown_grace: Some(SHUTDOWN_GRACE.into()), ..Layer::default() }
}

/// Runs the demo until SIGINT or SIGTERM, or until its one download is done. A second signal ends it at once.
///
/// # Errors
/// When a part cannot be started, the agent ends, or the download does not verify; [`app::EndedAtOnce`].
pub async fn run(settings: Settings, options: DemoOptions) -> anyhow::Result<()> {
    let signals = Signals::listen()?;
    let stop = signals.stop();
    signals.obeyed_by(run_until(stop, settings, options)).await
}

async fn run_until(stop: CancellationToken, settings: Settings, options: DemoOptions) -> anyhow::Result<()> {
    // Before the sample is put into it.
    app::make_data_dir(&settings.data_dir)?;
    let data_dir = std::path::absolute(&settings.data_dir)?;
    let files =
        format!("Its files are in {data_dir:?}, which can be deleted unless a gateway of yours keeps its data there.");
    let stopped = || {
        if options.once {
            bail!("stopped before anything was downloaded");
        }
        say("The demo ends. Another signal ends it at once.");
        say(&files);
        Ok(())
    };
    let folder = match options.dir.clone() {
        Some(dir) => dir,
        None => {
            let dir = settings.data_dir.join("demo");
            say("Preparing a sample folder …");
            let prepared = stop.run_until_cancelled(sample::prepare(&dir)).await;
            let Some(prepared) = prepared else { return stopped() };
            prepared.context("cannot write the demo's sample folder")?
        }
    };
    let gateway = Gateway::start(settings, Clock::system()).await?;
    let demo = Demo::prepare(&gateway).await?;
    let address = gateway.address();
    let state = gateway.state().clone();

    let (seen, sets) = watch::channel(None);
    let serves = demo.agent_options(&folder, format!("http://{address}"));
    let agent = app::on_worker(producer::run(serves, stop.clone(), show(seen)));
    let reading = async {
        let Some(set) = stop.run_until_cancelled(accepted(sets)).await else { return stopped() };
        let set = set?;
        let entry = demo.largest_entry(&state, set).await?;
        let url = file_url(&state, &demo.chat, &set, &entry.path);
        if options.once {
            download::verified(address, &url, &demo.reader_token, &entry).await?;
            say(&files);
            stop.cancel();
            return Ok(());
        }
        invite(&url, &demo.reader_token, &entry);
        stop.cancelled().await;
        stopped()
    };
    let working = async {
        // Whatever ends first ends the demo.
        let ended = tokio::try_join!(reading, async { agent.await.map_err(anyhow::Error::from) });
        stop.cancel();
        ended.map(|_| ())
    };
    let ((), worked) = tokio::join!(gateway.run(stop.clone()), working);
    worked
}

/// The chat, and who takes part in it.
struct Demo {
    chat: ChatId,
    session: SessionId,
    agent_name: AgentName,
    agent_token: String,
    reader_token: String,
}

impl Demo {
    async fn prepare(gateway: &Gateway) -> anyhow::Result<Self> {
        let (state, clock) = (gateway.state(), &gateway.state().clock);
        let (chat, session): (ChatId, SessionId) = (CHAT.parse()?, SESSION.parse()?);
        let agent_name: AgentName = AGENT.parse()?;
        let agent = Principal::agent(AGENT)?;
        let reader: Principal = READER.parse()?;
        state.store.put_chat(&chat, Some("Sluice demo"), std::slice::from_ref(&reader)).await?;
        state.store.bind_session(&agent, &session, &chat).await?;
        let identity = Identity::Agent { principal: agent, name: Some(agent_name.clone()), owner: Some(READER.into()) };
        let agent_token = state.tokens.issue(&identity, TOKEN_TTL, clock)?;
        let identity = Identity::Reader(Caller { principal: reader, chats: None });
        let reader_token = state.tokens.issue(&identity, TOKEN_TTL, clock)?;
        Ok(Self { chat, session, agent_name, agent_token, reader_token })
    }

    fn agent_options(&self, folder: &Path, gateway: String) -> AgentOptions {
        AgentOptions {
            name: Some(self.agent_name.clone()),
            session: Some(self.session.clone()),
            data: true,
            ..AgentOptions::new(folder, gateway, self.agent_token.clone())
        }
    }

    async fn largest_entry(&self, state: &crate::http::AppState, set: Sha256) -> anyhow::Result<Entry> {
        let bytes = state.sets.manifest(&self.chat, &set).await?.context("the announced set is not in the chat")?;
        let manifest = crate::protocol::manifest::read(std::str::from_utf8(&bytes)?)?;
        let largest = manifest.entries.into_iter().max_by_key(|entry| entry.size);
        largest.context("the folder holds no file (give --dir a folder with at least one)")
    }
}

/// Tells the terminal what the agent does, and whoever waits which set was accepted.
fn show(seen: watch::Sender<Option<Result<Sha256, String>>>) -> impl Fn(AgentEvent) + Send + Sync + 'static {
    move |event| {
        match &event {
            AgentEvent::Accepted { sha256 } => drop(seen.send_replace(Some(Ok(*sha256)))),
            // Its session is bound from the start.
            AgentEvent::Audience { .. } => return,
            AgentEvent::Refused { .. } => drop(seen.send_replace(Some(Err(event.to_string())))),
            _ => {}
        }
        terminal::show(event);
    }
}

async fn accepted(mut sets: watch::Receiver<Option<Result<Sha256, String>>>) -> anyhow::Result<Sha256> {
    let Ok(seen) = sets.wait_for(Option::is_some).await else {
        // The agent has ended: why is for its own outcome to tell, unless it was asked to.
        return std::future::pending().await;
    };
    match &*seen {
        Some(Ok(sha256)) => Ok(*sha256),
        Some(Err(refusal)) => bail!("the gateway refused the demo's set: {refusal}"),
        None => bail!("the agent announced nothing"),
    }
}

fn invite(url: &str, token: &str, entry: &Entry) {
    let name = entry.path.rsplit('/').next().unwrap_or("download").replace('\'', "_");
    say(&format!("\n{} is an agent's file. Download it through the relay, verified on the way:\n", entry.path));
    // The one line that is meant to be copied goes to standard output.
    println!("curl -f -H 'Authorization: Bearer {token}' -o '{name}' '{url}'");
    say(&format!("\n{} bytes ({}), sha256 {}", entry.size, ByteSize(entry.size), entry.sha256));
    say("It resumes with -C -, and ranges work with -r. The token is good for 24 hours. Ctrl-C ends the demo.");
}

/// A line for the person at the terminal.
fn say(line: &str) {
    terminal::say(line);
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn an_agent_that_ended_is_no_failure_of_whoever_waits_for_its_set() {
        let (seen, sets) = watch::channel(None);
        drop(seen);
        assert!(accepted(sets).now_or_never().is_none(), "an orderly end is told as a failure");
    }
}
