//! Ten thousand agents that are only connected: what each costs in memory, and how long after a restart all are back.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::figure::Figure;
use crate::fleet::Fleet;
use crate::machine;
use crate::stage::{Gateway, NO_CACHE, Place};

/// What keeps one address, and a storm of agents, from taking everything; here all agents are at one address.
const SETTINGS: &[(&str, &str)] =
    &[NO_CACHE, ("SLUICE_AGENT_ADMISSION", "0"), ("SLUICE_ADDRESS_RATE", "0"), ("SLUICE_ADDRESS_REQUESTS", "0")];
/// How long the first of them may take to be there.
const READY: Duration = Duration::from_secs(120);
/// How long what was only needed to connect is let go of.
const SETTLE: Duration = Duration::from_secs(2);
/// Files that are open beside one socket for each agent.
const SPARE: usize = 256;

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let agents = place.pick(10_000, 1000);
    let files = machine::raise_open_files();
    ensure!(files as usize >= agents + SPARE, "one process may open {files} files only: raise `ulimit -Hn`");
    let mut gateway = Gateway::with_settings(place, "idle-agents", SETTINGS)?;
    let token = gateway.agent_tokens()?;
    let named = |index| {
        let name = format!("idle-{index}");
        token(&name).map(|token| (name, token))
    };
    let (idle, _) = gateway.process.resident_bytes();
    let fleet = Fleet::start(gateway.address, (0..agents).map(named).collect::<anyhow::Result<_>>()?)?;
    fleet.await_open(agents, READY)?;
    thread::sleep(SETTLE);
    let (held, _) = gateway.process.resident_bytes();
    let (failed, begun) = (fleet.failed(), Instant::now());
    gateway.restart()?;
    let listens = Instant::now();
    fleet.await_open(agents, READY)?;
    let (back, away) = (listens.elapsed(), begun.elapsed());
    let each = (held - idle) / 1024.0 / agents as f64;
    Ok(vec![
        Figure::value(format!("{agents} idle agents: gateway's memory for each"), each, "KiB").at_most(40.0),
        Figure::value("after a restart: all have sessions again, since it listens", back.as_secs_f64(), "s")
            .at_most(10.0),
        Figure::value("after a restart: since it was told to end", away.as_secs_f64(), "s"),
        Figure::value("after a restart: connections without a session", (fleet.failed() - failed) as f64, "")
            .at_most(0.0),
    ])
}
