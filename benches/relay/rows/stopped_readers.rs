//! A fast reader beside many that have stopped reading, all of one agent: its speed beside its speed alone.

use std::time::{Duration, Instant};

use super::{MIB, READERS, start_of};
use crate::client::Connection;
use crate::figure::{Figure, median, quantile};
use crate::stage::{Agent, Gateway, Place};

/// What a reader takes before it stops.
const TAKEN: usize = 64 * 1024;
/// How long it takes until what the stopped readers were sent fills everything between them and the agent.
const SETTLE: Duration = Duration::from_millis(500);

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let gateway = Gateway::start(place, "stopped-readers")?;
    let agent = gateway.start_agent("bench", &place.dir().join("shared"))?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let (mut first_alone, mut first_beside) = (Vec::new(), Vec::new());
    download(&gateway, &agent)?;
    for _ in 0..place.pick(5, 2) {
        let (first, speed) = download(&gateway, &agent)?;
        first_alone.push(first);
        alone.push(speed);
        let stopped = stop_many(&gateway, &agent, place.file_bytes)?;
        let (first, speed) = download(&gateway, &agent)?;
        first_beside.push(first);
        beside.push(speed);
        drop(stopped);
        std::thread::sleep(SETTLE);
    }
    Ok(vec![
        Figure::ratio("beside 64 stopped readers, beside alone", median(&beside), median(&alone), "MiB/s")
            .at_least(0.9),
        Figure::value("its first byte, at worst", quantile(&first_beside, 1.0) * 1e3, "ms").at_most(1000.0),
        Figure::difference(
            "its first byte, beside alone",
            median(&first_beside) * 1e3,
            median(&first_alone) * 1e3,
            "ms",
        ),
    ])
}

/// Readers that took a little and take nothing more until they are dropped.
fn stop_many(gateway: &Gateway, agent: &Agent, file_bytes: u64) -> anyhow::Result<Vec<Connection>> {
    let mut stopped = Vec::new();
    for index in 0..READERS {
        let mut reader = gateway.connect()?;
        reader.get(&agent.path, Some((start_of(index, file_bytes), file_bytes - 1)))?;
        let mut taken = 0;
        while taken < TAKEN {
            taken += reader.next(TAKEN - taken)?.len();
        }
        stopped.push(reader);
    }
    std::thread::sleep(SETTLE);
    Ok(stopped)
}

/// Seconds until the first byte, and MiB a second over all.
fn download(gateway: &Gateway, agent: &Agent) -> anyhow::Result<(f64, f64)> {
    let mut reader = gateway.connect()?;
    let begun = Instant::now();
    let head = reader.get(&agent.path, None)?;
    reader.next(1)?;
    let first = begun.elapsed().as_secs_f64();
    reader.drain(|_| ())?;
    Ok((first, head.length as f64 / MIB / begun.elapsed().as_secs_f64()))
}
