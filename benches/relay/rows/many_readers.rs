//! Sixteen readers at once: each its own part of the file, then all the same bytes.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::MIB;
use crate::client::Connection;
use crate::figure::{Figure, median};
use crate::nginx::Nginx;
use crate::stage::{Gateway, Place};

const MANY: u64 = 16;

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let gateway = Gateway::start(place, "many-readers")?;
    let agent = gateway.start_agent("bench", &place.dir().join("shared"))?;
    let nginx = Nginx::start(place)?;
    let part = place.file_bytes / MANY;
    let ours = || gateway.connect();
    let mut figures = Vec::new();
    for same in [false, true] {
        let range = |reader: u64| if same { (0, part - 1) } else { (reader * part, (reader + 1) * part - 1) };
        let (mut mine, mut theirs, mut fairness, mut asked) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // The first pair fills caches and counts for nothing.
        for pair in 0..=place.pick(5, 2) {
            if let Some(nginx) = &nginx {
                let (speed, _) = together(|| Connection::open(nginx.address, None), Nginx::PATH, range)?;
                theirs.extend((pair > 0).then_some(speed));
            }
            let before = gateway.received_bytes()?;
            let (speed, slowest) = together(ours, &agent.path, range)?;
            if pair > 0 {
                mine.push(speed);
                fairness.push(slowest);
                asked.push((gateway.received_bytes()? - before) / part as f64);
            }
        }
        let what = match same {
            false => "16 readers, a part each, beside nginx",
            true => "16 readers, the same bytes, beside nginx",
        };
        let speed = match theirs[..] {
            [] => Figure::value(what, median(&mine), "MiB/s"),
            _ => Figure::ratio(what, median(&mine), median(&theirs), "MiB/s"),
        };
        let least = if same { 0.85 } else { 0.42 };
        figures.push(if nginx.is_some() { speed.at_least(least) } else { speed });
        if same {
            figures.push(Figure::value("times the agent sent them", median(&asked), "").at_most(1.05));
        } else {
            figures.push(Figure::value("the slowest, of the mean", median(&fairness), "").at_least(0.75));
        }
    }
    Ok(figures)
}

/// The speed of all together in MiB/s, and the slowest one's as a part of the mean.
fn together(
    connect: impl Fn() -> anyhow::Result<Connection> + Sync,
    path: &str,
    range: impl Fn(u64) -> (u64, u64) + Sync,
) -> anyhow::Result<(f64, f64)> {
    let start = Barrier::new(MANY as usize + 1);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..MANY)
            .map(|reader| {
                let (start, connect, range) = (&start, &connect, &range);
                scope.spawn(move || -> anyhow::Result<(f64, u64)> {
                    let connection = connect();
                    start.wait();
                    let begun = Instant::now();
                    let mut connection = connection?;
                    let length = connection.get(path, Some(range(reader)))?.length;
                    connection.drain(|_| ())?;
                    Ok((begun.elapsed().as_secs_f64(), length))
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        let all: Vec<(f64, u64)> = readers
            .into_iter()
            .map(|reader| reader.join().ok().context("a reader panicked")?)
            .collect::<anyhow::Result<_>>()?;
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(all.len() == MANY as usize, "readers are missing");
        let speeds: Vec<f64> = all.iter().map(|(seconds, length)| *length as f64 / seconds).collect();
        let mean = speeds.iter().sum::<f64>() / MANY as f64;
        let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let bytes: u64 = all.iter().map(|(_, length)| *length).sum();
        Ok((bytes as f64 / MIB / seconds, slowest / mean))
    })
}
