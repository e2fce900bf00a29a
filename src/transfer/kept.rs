//! Transfers of manifests: bytes that the gateway keeps itself. They are admitted, bounded, watched and ended as all
//! others are.

use std::sync::Arc;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::cursor::{Cursor, Wanted};
use super::{TransferError, Transfers};
use crate::access::KeptManifest;
use crate::protocol::limits::DATA_PAYLOAD;
use crate::protocol::{ByteRange, Principal};

/// What a reader is given at once.
const PIECE: u64 = DATA_PAYLOAD as u64 / 4;

impl Transfers {
    /// Begins a transfer of a manifest, as [`open`](Self::open) does one of a blob. However many read it, it is in memory
    /// once, and a reader that has stopped holds no more of it than a piece.
    pub async fn open_kept(
        self: &Arc<Self>,
        reader: Principal,
        manifest: KeptManifest,
        range: ByteRange,
        cut: Option<CancellationToken>,
    ) -> Result<Cursor, TransferError> {
        let pacing = self.pacing(&reader);
        let (who, blob) = ((reader, manifest.agent.clone()), (manifest.sha256, manifest.size, range));
        let allowed = (manifest.places.clone(), manifest.as_of, None);
        let mut cursor = self.enter(who, blob, allowed, (cut, pacing), |_| Wanted::Manifest(manifest))?;
        cursor.begin().await?;
        Ok(cursor)
    }

    /// The next piece of a manifest's range. A copy: a part of the manifest's own bytes would keep all of them in memory for
    /// as long as its reader does not take it.
    pub(super) async fn kept_piece(
        self: Arc<Self>,
        manifest: KeptManifest,
        rest: ByteRange,
    ) -> Result<Bytes, TransferError> {
        let bytes = match self.access.read(&manifest).await {
            Ok(bytes) => bytes.ok_or(TransferError::BlobGone)?,
            Err(error) => {
                tracing::warn!(%error, sha256 = %manifest.sha256, "a manifest cannot be read");
                return Err(TransferError::Unavailable);
            }
        };
        let end = rest.end.min(rest.start + PIECE);
        // The range lies within the manifest, whose length is a `usize`.
        let piece = bytes.get(rest.start as usize..end as usize).ok_or(TransferError::BlobGone)?;
        Ok(Bytes::copy_from_slice(piece))
    }
}
