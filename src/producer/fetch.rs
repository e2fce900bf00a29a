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
    let open = match fetch.open {
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
        // Exactly as much as it takes, so that it is masked and sent where it is.
        let mut frame = Vec::with_capacity(header.len() + payload_len);
        frame.extend_from_slice(&header);
        open.append(offset, payload_len, &mut frame)?;
        frames.push(Bytes::from(frame));
        offset += payload_len as u64;
    }
    Ok((open, frames))
}
