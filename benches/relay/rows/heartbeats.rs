//! Heartbeats of an agent whose bytes sixteen readers take as fast as they can: how long a ping is out, in either
//! direction.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::figure::{Figure, quantile};
use crate::heartbeat::{Heartbeat, RoundTrips};
use crate::stage::{Gateway, NO_CACHE, Place};

const READERS: u64 = 16;
/// Both sides ask as often.
const EVERY: Duration = Duration::from_millis(50);
const SETTINGS: &[(&str, &str)] = &[NO_CACHE, ("SLUICE_PING_INTERVAL", "50ms")];
/// Until the readers are at full speed.
const SETTLE: Duration = Duration::from_millis(500);

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let gateway = Gateway::with_settings(place, "heartbeats", SETTINGS)?;
    let heartbeat = Heartbeat::start(gateway.address, EVERY)?;
    let run = Duration::from_secs(place.pick(15, 3));
    let mut figures = Vec::new();
    for (connection, flags) in [("two connections", &["--data"][..]), ("one connection", &[])] {
        let name = connection.replace(' ', "-");
        let agent = gateway.start_agent_at(heartbeat.address, flags, &name, &place.dir().join("shared"))?;
        heartbeat.take();
        thread::sleep(run / 5);
        let idle = heartbeat.take();
        let busy = under_load(&gateway, &agent.path, place.file_bytes, run, &heartbeat)?;
        let figure = |whose: &str, share: f64, of: fn(&RoundTrips) -> &[f64]| {
            let at = if share < 1.0 { format!("{:.0}th percentile", share * 100.0) } else { "longest".to_owned() };
            let what = format!("{whose} ping, 16 fast readers, {connection}: {at}, beside idle");
            Figure::difference(what, quantile(of(&busy), share), quantile(of(&idle), share), "ms").on_its_own()
        };
        figures.push(figure("agent's", 0.99, |trips| &trips.of_agent).at_most(50.0));
        figures.push(figure("gateway's", 0.99, |trips| &trips.of_gateway).at_most(50.0));
        let least = (run.as_millis() / EVERY.as_millis() / 4) as usize;
        ensure!(busy.of_agent.len() > least && busy.of_gateway.len() > least, "too few pings were answered: {busy:?}");
    }
    Ok(figures)
}

/// What was seen while sixteen readers took parts of the file, again and again.
fn under_load(
    gateway: &Gateway,
    path: &str,
    file_bytes: u64,
    run: Duration,
    heartbeat: &Heartbeat,
) -> anyhow::Result<RoundTrips> {
    let until = Instant::now() + SETTLE + run;
    thread::scope(|scope| {
        let read = |reader: u64| {
            scope.spawn(move || -> anyhow::Result<()> {
                let mut connection = gateway.connect()?;
                let part = file_bytes / READERS;
                while Instant::now() < until {
                    connection.get(path, Some((reader * part, (reader + 1) * part - 1)))?;
                    connection.drain(|_| ())?;
                }
                Ok(())
            })
        };
        let readers: Vec<_> = (0..READERS).map(read).collect();
        thread::sleep(SETTLE);
        heartbeat.take();
        thread::sleep(run);
        let seen = heartbeat.take();
        readers.into_iter().try_for_each(|reader| reader.join().ok().context("a reader panicked")?)?;
        Ok(seen)
    })
}
