//! Reads frames from a blob. The only part of serving a read that touches a file.

use bytes::Bytes;

use super::registry::OpenBlob;
use super::relay::{Fetch, Fetched};
use crate::protocol::data::DataFrame;
use crate::protocol::limits::DATA_PAYLOAD;

/// Does what a [`Fetch`] asks for. Blocks.
pub(super) fn fetch(fetch: Fetch) -> Fetched {
    Fetched { key: fetch.key, outcome: read_frames(fetch) }
}

fn read_frames(mut fetch: Fetch) -> std::io::Result<(OpenBlob, Vec<Bytes>)> {
    let mut open = match fetch.open {
        Some(open) => open,
        None => fetch.blob.open()?,
    };
    let end = fetch.offset + fetch.length;
    let mut offset = fetch.offset;
    let mut frames = Vec::new();
    while offset < end {
        // At most DATA_PAYLOAD, so the cast cannot lose anything.
        let payload_len = (end - offset).min(DATA_PAYLOAD as u64) as usize;
        let header = DataFrame::header(&fetch.request_id, offset, 0);
        // A buffer used before is still warm, and has its length already.
        let mut frame = fetch.buffers.pop().unwrap_or_default();
        frame.resize(header.len() + payload_len, 0);
        let (head, payload) = frame.split_at_mut(header.len());
        head.copy_from_slice(&header);
        open.read_at(offset, payload)?;
        frames.push(frame.freeze());
        offset += payload_len as u64;
    }
    Ok((open, frames))
}
