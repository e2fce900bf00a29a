//! One reader takes the whole file, verified, as fast as it can; the same reader takes it from nginx.

use std::time::Instant;

use anyhow::ensure;

use super::{GIB, MIB};
use crate::client::Connection;
use crate::figure::{Figure, median};
use crate::process::{Process, own_cpu_seconds};
use crate::stage::{Gateway, Nginx, Place};

/// What one download took.
#[derive(Debug, Default)]
struct Costs {
    speed: Vec<f64>,
    server: Vec<f64>,
    agent: Vec<f64>,
    reader: Vec<f64>,
}

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let gateway = Gateway::start(place, "one-reader")?;
    let agent = gateway.start_agent("bench", &place.dir().join("shared"))?;
    let nginx = Nginx::start(place)?;
    let (mut ours, mut theirs) = (Costs::default(), Costs::default());
    // The first pair fills caches and counts for nothing.
    for pair in 0..=place.pick(5, 3) {
        if pair == 1 {
            (ours, theirs) = (Costs::default(), Costs::default());
        }
        if let Some(nginx) = &nginx {
            let reader = Connection::open(nginx.address, None)?;
            theirs.download(reader, Nginx::PATH, &nginx.process, None)?;
        }
        ours.download(gateway.connect()?, &agent.path, &gateway.process, Some(&agent.process))?;
    }
    let mut figures = Vec::new();
    let beside = |what, ours: &[f64], theirs: &[f64], unit| match theirs {
        [] => Figure::value(what, median(ours), unit),
        _ => Figure::ratio(what, median(ours), median(theirs), unit),
    };
    let speed = beside("one reader, verified, beside nginx", &ours.speed, &theirs.speed, "MiB/s");
    figures.push(if nginx.is_some() { speed.at_least(0.55) } else { speed });
    figures.push(beside("server's CPU", &ours.server, &theirs.server, "s/GiB"));
    figures.push(Figure::value("agent's CPU", median(&ours.agent), "s/GiB"));
    figures.push(beside("reader's CPU", &ours.reader, &theirs.reader, "s/GiB"));
    Ok(figures)
}

impl Costs {
    fn download(
        &mut self,
        mut reader: Connection,
        path: &str,
        server: &Process,
        agent: Option<&Process>,
    ) -> anyhow::Result<()> {
        let cpu = || (server.cpu_seconds(), agent.map_or(0.0, Process::cpu_seconds), own_cpu_seconds());
        let before = cpu();
        let begun = Instant::now();
        let head = reader.get(path, None)?;
        reader.drain(|_| ())?;
        let seconds = begun.elapsed().as_secs_f64();
        let after = cpu();
        ensure!(agent.is_none() || head.verified.as_deref() == Some("full"), "the download was not verified");
        let gib = head.length as f64 / GIB;
        self.speed.push(head.length as f64 / MIB / seconds);
        self.server.push((after.0 - before.0) / gib);
        self.agent.push((after.1 - before.1) / gib);
        self.reader.push((after.2 - before.2) / gib);
        Ok(())
    }
}
