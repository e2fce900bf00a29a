//! An agent that is far away: one reader takes the whole file, verified; the same reader takes it from an nginx as far
//! away.

use std::time::Duration;

use super::one_reader::Costs;
use crate::client::Connection;
use crate::delay::Delay;
use crate::figure::{Figure, median};
use crate::nginx::Nginx;
use crate::stage::{Gateway, Place};

/// How far, there and back.
const ROUND_TRIPS: [(&str, Duration); 2] = [("50", Duration::from_millis(50)), ("150", Duration::from_millis(150))];

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let gateway = Gateway::start(place, "far-agents")?;
    let nginx = Nginx::start(place)?;
    let mut figures = Vec::new();
    for (name, round_trip) in ROUND_TRIPS {
        let way = Delay::start(gateway.address, round_trip)?;
        let agent =
            gateway.start_agent_at(way.address, &["--data"], &format!("far-{name}"), &place.dir().join("shared"))?;
        let far_nginx = nginx.as_ref().map(|nginx| Delay::start(nginx.address, round_trip)).transpose()?;
        let (mut ours, mut theirs) = (Costs::default(), Costs::default());
        // The first pair fills caches and counts for nothing.
        for pair in 0..=place.pick(3, 1) {
            if pair == 1 {
                (ours, theirs) = (Costs::default(), Costs::default());
            }
            if let (Some(nginx), Some(way)) = (&nginx, &far_nginx) {
                theirs.download(Connection::open(way.address, None)?, Nginx::PATH, &nginx.process, None)?;
            }
            ours.download(gateway.connect()?, &agent.path, &gateway.process, Some(&agent.process))?;
        }
        let what = format!("agent {name} ms away, verified, beside nginx as far");
        figures.push(match theirs.speed[..] {
            [] => Figure::value(what, median(&ours.speed), "MiB/s"),
            _ => Figure::ratio(what, median(&ours.speed), median(&theirs.speed), "MiB/s").at_least(0.8),
        });
    }
    Ok(figures)
}
