//! An agent that is far away: one reader takes the whole file, verified; the same reader takes it from an nginx as far
//! away.

use std::time::Duration;

use super::one_reader::Costs;
use crate::client::Connection;
use crate::delay::Delay;
use crate::figure::{Figure, median};
use crate::nginx::Nginx;
use crate::stage::{Gateway, Place};

/// A way to an agent: what it is called, how far, there and back, how many bytes a second it carries, and how many pairs of
/// downloads are measured.
type Way = (&'static str, Duration, Option<f64>, u32);

const GIGABIT: f64 = 1e9 / 8.0;
/// Without a rate, the processors are what both come up against; with one, it is the way.
const WAYS: [Way; 4] = [
    ("50 ms away", Duration::from_millis(50), None, 3),
    ("150 ms away", Duration::from_millis(150), None, 3),
    ("50 ms away, at 1 Gbit/s", Duration::from_millis(50), Some(GIGABIT), 1),
    ("150 ms away, at 1 Gbit/s", Duration::from_millis(150), Some(GIGABIT), 1),
];

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let gateway = Gateway::start(place, "far-agents")?;
    let nginx = Nginx::start(place)?;
    let mut figures = Vec::new();
    for (number, (name, round_trip, rate, pairs)) in WAYS.into_iter().enumerate() {
        let way = Delay::start(gateway.address, round_trip, rate)?;
        let agent =
            gateway.start_agent_at(way.address, &["--data"], &format!("far-{number}"), &place.dir().join("shared"))?;
        let far_nginx = nginx.as_ref().map(|nginx| Delay::start(nginx.address, round_trip, rate)).transpose()?;
        let (mut ours, mut theirs) = (Costs::default(), Costs::default());
        // Where the processors count, the first pair fills caches and counts for nothing.
        let warms_up = u32::from(rate.is_none());
        for pair in 0..place.pick(pairs, 1) + warms_up {
            if pair == warms_up {
                (ours, theirs) = (Costs::default(), Costs::default());
            }
            if let (Some(nginx), Some(way)) = (&nginx, &far_nginx) {
                theirs.download(Connection::open(way.address, None)?, Nginx::PATH, &nginx.process, None)?;
            }
            ours.download(gateway.connect()?, &agent.path, &gateway.process, Some(&agent.process))?;
        }
        let what = format!("agent {name}, verified, beside nginx as far");
        figures.push(match theirs.speed[..] {
            [] => Figure::value(what, median(&ours.speed), "MiB/s"),
            _ => Figure::ratio(what, median(&ours.speed), median(&theirs.speed), "MiB/s").at_least(0.8),
        });
    }
    Ok(figures)
}
