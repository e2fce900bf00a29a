//! One byte somewhere in the file: what the way to the agent and back adds, on connections that are kept and on new ones.

use std::time::Instant;

use crate::client::Connection;
use crate::figure::{Figure, quantile};
use crate::nginx::Nginx;
use crate::stage::{Agent, Gateway, NO_CACHE, Place};
use crate::tunnel::Tunnel;

/// Requests in a row before the next server's turn.
const BATCH: u64 = 100;
/// Between two bytes that are asked for.
const STRIDE: u64 = 7_654_321;
/// One reader asks faster here than one may.
const SETTINGS: &[(&str, &str)] = &[NO_CACHE, ("SLUICE_READER_RATE", "0"), ("SLUICE_ADDRESS_RATE", "0")];
const CACHED: &[(&str, &str)] =
    &[("SLUICE_CACHE_SIZE", "8GiB"), ("SLUICE_READER_RATE", "0"), ("SLUICE_ADDRESS_RATE", "0")];

/// A server that is asked.
struct Server<'a> {
    open: Box<dyn Fn() -> anyhow::Result<Connection> + 'a>,
    path: &'a str,
    kept: Connection,
    times: Times,
}

/// Those on one kind of connection.
type Of = fn(&Times) -> &[f64];

/// Milliseconds from the request to the byte.
#[derive(Default)]
struct Times {
    /// On a connection that is kept.
    kept: Vec<f64>,
    /// On a new one, which is counted in.
    new: Vec<f64>,
}

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let shared = place.dir().join("shared");
    let relay = Gateway::with_settings(place, "first-byte", SETTINGS)?;
    let of_relay = relay.start_agent("bench", &shared)?;
    let cache = Gateway::with_settings(place, "first-byte-cached", CACHED)?;
    let of_cache = cache.start_agent("bench", &shared)?;
    let mut whole = cache.connect()?;
    whole.get(&of_cache.path, None)?;
    whole.drain(|_| ())?;
    let nginx = Nginx::start(place)?;
    let tunnels = nginx.as_ref().map_or(Ok(Vec::new()), |nginx| Tunnel::start_all(place, "first-byte", nginx))?;

    let mut ours = [Server::of_gateway(&relay, &of_relay)?, Server::of_gateway(&cache, &of_cache)?];
    let mut plain = nginx.iter().map(|nginx| Server::plain(nginx.address)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut through = tunnels.iter().map(|tunnel| Server::plain(tunnel.address)).collect::<anyhow::Result<Vec<_>>>()?;
    for batch in 0..=place.pick(20, 3) {
        for server in ours.iter_mut().chain(&mut plain).chain(&mut through) {
            server.ask(batch, place.file_bytes)?;
            if batch == 0 {
                // The first batch filled caches.
                server.times = Times::default();
            }
        }
    }
    let [relay, cache] = &ours;

    let (relay, cache) = (&relay.times, &cache.times);
    let mut figures = Vec::new();
    for (share, at) in [(0.5, "median"), (0.99, "99th percentile")] {
        let what = format!("one byte, kept connection: {at}, beside nginx");
        figures.push(match &plain[..] {
            [] => Figure::value(what, quantile(&relay.kept, share), "ms"),
            [nginx, ..] => {
                let figure =
                    Figure::difference(what, quantile(&relay.kept, share), quantile(&nginx.times.kept, share), "ms");
                if share < 0.9 { figure.at_most(0.4) } else { figure }
            }
        });
    }
    let cases: [(&str, &Times, Of, [f64; 2]); 3] = [
        ("new connection", relay, |times| &times.new, [0.60, 0.80]),
        ("kept connection, from the cache", cache, |times| &times.kept, [0.80, 0.80]),
        ("kept connection, from the agent", relay, |times| &times.kept, [1.5, 1.5]),
    ];
    for (what, times, of, goals) in cases {
        for ((share, at), goal) in [(0.5, "median"), (0.99, "99th percentile")].into_iter().zip(goals) {
            // Each tunnel counts for what it is best at.
            let best = through.iter().map(|tunnel| quantile(of(&tunnel.times), share)).min_by(f64::total_cmp);
            let what = format!("one byte, {what}: {at}, beside the best tunnel");
            let value = quantile(of(times), share);
            figures.push(match best {
                Some(best) => Figure::ratio(what, value, best, "ms").at_most(goal),
                None => Figure::value(what, value, "ms"),
            });
        }
    }
    let cached = quantile(&cache.new, 0.5);
    figures.push(Figure::value("one byte, new connection, from the cache: median", cached, "ms"));
    Ok(figures)
}

impl<'a> Server<'a> {
    fn of_gateway(gateway: &'a Gateway, agent: &'a Agent) -> anyhow::Result<Self> {
        Self::new(|| gateway.connect(), &agent.path)
    }

    fn plain(address: std::net::SocketAddr) -> anyhow::Result<Self> {
        Self::new(move || Connection::open(address, None), Nginx::PATH)
    }

    fn new(open: impl Fn() -> anyhow::Result<Connection> + 'a, path: &'a str) -> anyhow::Result<Self> {
        let kept = open()?;
        Ok(Self { open: Box::new(open), path, kept, times: Times::default() })
    }

    fn ask(&mut self, batch: u64, file_bytes: u64) -> anyhow::Result<()> {
        let places = (0..BATCH).map(|request| (batch * BATCH + request) * STRIDE % file_bytes);
        for at in places.clone() {
            let begun = Instant::now();
            one_byte(&mut self.kept, self.path, at)?;
            self.times.kept.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        for at in places {
            let begun = Instant::now();
            one_byte(&mut (self.open)()?, self.path, at)?;
            self.times.new.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(())
    }
}

fn one_byte(reader: &mut Connection, path: &str, at: u64) -> anyhow::Result<()> {
    reader.get(path, Some((at, at)))?;
    reader.drain(|_| ())
}
