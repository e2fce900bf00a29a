//! The rows. Each has processes of its own, so that none sees what another left behind.

mod cached;
mod cuts;
mod far_agents;
mod first_byte;
mod heartbeats;
mod idle_agents;
mod many_readers;
mod one_reader;
mod slow_readers;
mod stopped_readers;

use crate::figure::Figure;
use crate::stage::Place;

/// One thing to measure.
pub struct Row {
    /// What it is chosen by.
    pub name: &'static str,
    /// Measures it.
    pub measure: fn(&Place) -> anyhow::Result<Vec<Figure>>,
}

/// All of them, in the order of the table.
pub const ALL: [Row; 10] = [
    Row { name: "one-reader", measure: one_reader::measure },
    Row { name: "cached", measure: cached::measure },
    Row { name: "many-readers", measure: many_readers::measure },
    Row { name: "slow-readers", measure: slow_readers::measure },
    Row { name: "stopped-readers", measure: stopped_readers::measure },
    Row { name: "first-byte", measure: first_byte::measure },
    Row { name: "far-agents", measure: far_agents::measure },
    Row { name: "heartbeats", measure: heartbeats::measure },
    Row { name: "idle-agents", measure: idle_agents::measure },
    Row { name: "cuts", measure: cuts::measure },
];

/// Readers at once, where there are many.
const READERS: usize = 64;
const MIB: f64 = (1 << 20) as f64;
const GIB: f64 = (1 << 30) as f64;

/// Where the `index`th of many readers begins in a file: each has a part of its own, so that none is helped by another,
/// and it begins with a whole chunk.
fn start_of(index: usize, file_bytes: u64) -> u64 {
    let part = file_bytes / READERS as u64;
    index as u64 * part / CHUNK * CHUNK
}
/// The chunk size of an agent's sets.
const CHUNK: u64 = sluice::protocol::limits::CHUNK_SIZE_DEFAULT;
