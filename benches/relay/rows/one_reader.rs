//! One reader takes the whole file, verified, as fast as it can; the same reader takes it from nginx.

use std::process::Command;
use std::time::Instant;

use anyhow::ensure;

use super::{GIB, MIB};
use crate::client::{Connection, Head};
use crate::figure::{Figure, median};
use crate::nginx::Nginx;
use crate::process::{Process, own_cpu_seconds};
use crate::stage::{Gateway, Place};
use crate::tunnel::{Kind, Tunnel};

/// What is asked of a download.
pub(super) struct Goals {
    /// At least, of nginx's.
    pub(super) speed: f64,
    /// The gateway's seconds for each GiB, at most.
    pub(super) cpu: f64,
}

/// What one download took.
#[derive(Debug, Default)]
pub(super) struct Costs {
    /// MiB a second.
    pub(super) speed: Vec<f64>,
    server: Vec<f64>,
    agent: Vec<f64>,
    reader: Vec<f64>,
}

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let gateway = Gateway::start(place, "one-reader")?;
    let agent = gateway.start_agent("bench", &place.dir().join("shared"))?;
    let nginx = Nginx::start(place)?;
    let tunnels = nginx.as_ref().map_or(Ok(Vec::new()), |nginx| Tunnel::start_all(place, "one-reader", nginx))?;
    let (mut ours, mut theirs) = (Costs::default(), Costs::default());
    let mut through = vec![Vec::new(); tunnels.len()];
    // The first turn fills caches and counts for nothing.
    for turn in 0..=place.pick(5, 3) {
        if turn == 1 {
            (ours, theirs) = (Costs::default(), Costs::default());
            through.fill(Vec::new());
        }
        if let Some(nginx) = &nginx {
            let reader = Connection::open(nginx.address, None)?;
            theirs.download(reader, Nginx::PATH, &nginx.process, None)?;
        }
        ours.download(gateway.connect()?, &agent.path, &gateway.process, Some(&agent.process))?;
        for (tunnel, speeds) in tunnels.iter().zip(&mut through) {
            let (seconds, head) = timed(&mut Connection::open(tunnel.address, None)?, Nginx::PATH)?;
            speeds.push(head.length as f64 / MIB / seconds);
        }
    }
    let goals = Goals { speed: 0.55, cpu: 1.40 };
    let mut figures = report("one reader, verified, beside nginx", goals, &ours, &theirs);
    for (tunnel, speeds) in tunnels.iter().zip(&through) {
        let what = format!("one reader, verified, beside {}", tunnel.kind.name());
        let figure = Figure::ratio(what, median(&ours.speed), median(speeds), "MiB/s");
        figures.push(if tunnel.kind == Kind::Wstunnel { figure } else { figure.at_least(1.6) });
    }
    drop(tunnels);
    if Command::new(CURL).arg("--version").output().is_ok() {
        figures.push(by_curl(place, &gateway, &agent.path, nginx.as_ref())?);
    }
    Ok(figures)
}

/// What people download with.
const CURL: &str = "curl";

/// The same with curl, which costs more than the least that a reader can.
fn by_curl(place: &Place, gateway: &Gateway, path: &str, nginx: Option<&Nginx>) -> anyhow::Result<Figure> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let download = |address, path: &str, token: &str| -> anyhow::Result<f64> {
        let mut curl = Command::new(CURL);
        curl.args(["-sf", "-o", "/dev/null", "-w", "%{speed_download}", "-H"])
            .arg(format!("authorization: Bearer {token}"));
        let done = curl.arg(format!("http://{address}{path}")).output()?;
        ensure!(done.status.success(), "curl ended with {}", done.status);
        Ok(String::from_utf8_lossy(&done.stdout).trim().parse::<f64>()? / MIB)
    };
    for pair in 0..=place.pick(5, 3) {
        let nginx = nginx.map(|nginx| download(nginx.address, Nginx::PATH, "")).transpose()?;
        let sluice = download(gateway.address, path, &gateway.reader_token)?;
        if pair > 0 {
            ours.push(sluice);
            theirs.extend(nginx);
        }
    }
    let figure = beside("the same by curl", &ours, &theirs, "MiB/s");
    Ok(if theirs.is_empty() { figure } else { figure.at_least(0.55) })
}

fn beside(what: &'static str, ours: &[f64], theirs: &[f64], unit: &'static str) -> Figure {
    match theirs {
        [] => Figure::value(what, median(ours), unit),
        _ => Figure::ratio(what, median(ours), median(theirs), unit),
    }
}

/// What the downloads cost, and how fast they were beside nginx's.
pub(super) fn report(what: &'static str, goals: Goals, ours: &Costs, theirs: &Costs) -> Vec<Figure> {
    let speed = beside(what, &ours.speed, &theirs.speed, "MiB/s");
    vec![
        if theirs.speed.is_empty() { speed } else { speed.at_least(goals.speed) },
        beside("server's CPU", &ours.server, &theirs.server, "s/GiB").on_its_own().at_most(goals.cpu),
        Figure::value("agent's CPU", median(&ours.agent), "s/GiB"),
        beside("reader's CPU", &ours.reader, &theirs.reader, "s/GiB"),
    ]
}

impl Costs {
    /// Downloads the whole file, from a gateway if there is an `agent`, and notes what that took.
    pub(super) fn download(
        &mut self,
        mut reader: Connection,
        path: &str,
        server: &Process,
        agent: Option<&Process>,
    ) -> anyhow::Result<()> {
        let cpu = || (server.cpu_seconds(), agent.map_or(0.0, Process::cpu_seconds), own_cpu_seconds());
        let before = cpu();
        let (seconds, head) = timed(&mut reader, path)?;
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

/// Seconds that the whole of a file took.
fn timed(reader: &mut Connection, path: &str) -> anyhow::Result<(f64, Head)> {
    let begun = Instant::now();
    let head = reader.get(path, None)?;
    reader.drain(|_| ())?;
    Ok((begun.elapsed().as_secs_f64(), head))
}
