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

fn read_frames(fetch: Fetch) -> std::io::Result<(OpenBlob, Vec<Bytes>)> {
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
        let mut frame = DataFrame::header(&fetch.request_id, offset, payload_len);
        let header_len = frame.len();
        frame.resize(header_len + payload_len, 0);
        open.read_at(offset, &mut frame[header_len..])?;
        frames.push(frame.freeze());
        offset += payload_len as u64;
    }
    Ok((open, frames))
}
