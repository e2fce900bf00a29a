//! Many readers, each at a pace far below what the agent could send: what they cost in memory, and whether each gets
//! its pace.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::{MIB, READERS, start_of};
use crate::figure::{Figure, median, quantile};
use crate::machine;
use crate::stage::{Gateway, Place};

/// What each reader takes, in bytes a second.
const PACE: f64 = 200_000.0;
/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let gateway = Gateway::start(place, "slow-readers")?;
    let agent = gateway.start_agent("bench", &place.dir().join("shared"))?;
    gateway.process.reset_peak();
    let (idle, _) = gateway.process.resident_bytes();
    let kernel_before = machine::tcp_memory();
    let (mut kernel_peak, mut sockets) = (kernel_before, Vec::new());
    let run = Duration::from_secs(place.pick(15, 3));
    let paces = thread::scope(|scope| -> anyhow::Result<Vec<f64>> {
        let read = |index| {
            let (gateway, path) = (&gateway, &agent.path);
            scope.spawn(move || sip(gateway, path, (start_of(index, place.file_bytes), place.file_bytes - 1), run))
        };
        let readers: Vec<_> = (0..READERS).map(read).collect();
        while readers.iter().any(|reader| !reader.is_finished()) {
            kernel_peak = kernel_peak.max(machine::tcp_memory());
            let now = machine::socket_memory(gateway.address.port());
            if now.iter().sum::<f64>() > sockets.iter().sum::<f64>() {
                sockets = now;
            }
            thread::sleep(LOOK_EVERY);
        }
        readers.into_iter().map(|reader| reader.join().map_err(|_| anyhow!("a reader panicked"))?).collect()
    })?;
    let (_, peak) = gateway.process.resident_bytes();
    let added = kernel_peak.saturating_sub(kernel_before) as f64;
    let mut figures = vec![
        Figure::difference("64 slow readers: gateway's peak memory, beside idle", peak / MIB, idle / MIB, "MiB"),
        Figure::value("64 slow readers: gateway's peak memory", peak / MIB, "MiB").at_most(48.0),
        Figure::ratio("slowest reader's pace, beside what it asked", quantile(&paces, 0.0) / 1e3, PACE / 1e3, "kB/s")
            .at_least(0.9),
        Figure::ratio("median reader's pace, beside what it asked", median(&paces) / 1e3, PACE / 1e3, "kB/s"),
        Figure::value("kernel's TCP memory added, whole machine", added / MIB, "MiB"),
        Figure::value("the gateway's and the kernel's together", (peak + added) / MIB, "MiB").at_most(250.0),
    ];
    if !sockets.is_empty() {
        figures.push(Figure::value("gateway's sockets: held by the median one", median(&sockets) / 1024.0, "KiB"));
        let most = quantile(&sockets, 1.0);
        figures.push(Figure::value("gateway's sockets: held by the fullest one", most / 1024.0, "KiB"));
    }
    Ok(figures)
}

/// Takes a range slowly, and says at which pace it came, in bytes a second.
fn sip(gateway: &Gateway, path: &str, range: (u64, u64), run: Duration) -> anyhow::Result<f64> {
    let mut reader = gateway.connect()?;
    // From the request on: a reader that waits for its first byte has no pace.
    let begun = Instant::now();
    reader.get(path, Some(range))?;
    let taken = reader.sip(PACE, begun + run)?;
    Ok(taken as f64 / begun.elapsed().as_secs_f64())
}
