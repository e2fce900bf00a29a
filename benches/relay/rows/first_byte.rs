//! One byte somewhere in the file, on a connection that is kept: what the way to the agent and back adds.

use std::time::Instant;

use crate::client::Connection;
use crate::figure::{Figure, quantile};
use crate::stage::{Gateway, Nginx, Place};

/// Requests in a row before the other server's turn.
const BATCH: u64 = 100;
/// Between two bytes that are asked for.
const STRIDE: u64 = 7_654_321;

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let gateway = Gateway::start(place, "first-byte")?;
    let agent = gateway.start_agent("bench", &place.dir().join("shared"))?;
    let nginx = Nginx::start(place)?;
    let mut to_gateway = gateway.connect()?;
    let mut to_nginx = nginx.as_ref().map(|nginx| Connection::open(nginx.address, None)).transpose()?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for batch in 0..=place.pick(20, 5) {
        if batch == 1 {
            // The first batch filled caches.
            (ours, theirs) = (Vec::new(), Vec::new());
        }
        for request in 0..BATCH {
            let at = (batch * BATCH + request) * STRIDE % place.file_bytes;
            ours.push(one_byte(&mut to_gateway, &agent.path, at)?);
        }
        if let Some(to_nginx) = &mut to_nginx {
            for request in 0..BATCH {
                let at = (batch * BATCH + request) * STRIDE % place.file_bytes;
                theirs.push(one_byte(to_nginx, Nginx::PATH, at)?);
            }
        }
    }
    let figure = |what, share| match theirs.as_slice() {
        [] => Figure::value(what, quantile(&ours, share), "ms"),
        theirs => Figure::difference(what, quantile(&ours, share), quantile(theirs, share), "ms"),
    };
    let median = figure("one byte, median, beside nginx", 0.5);
    Ok(vec![
        if nginx.is_some() { median.at_most(0.4) } else { median },
        figure("one byte, 99th percentile, beside nginx", 0.99),
    ])
}

/// Milliseconds from the request to the byte.
fn one_byte(reader: &mut Connection, path: &str, at: u64) -> anyhow::Result<f64> {
    let begun = Instant::now();
    reader.get(path, Some((at, at)))?;
    reader.drain(|_| ())?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
