//! Transfers of manifests: bytes that the gateway keeps itself. They are admitted, bounded, watched and ended as all
//! others are.

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::cursor::Cursor;
use super::live::{Live, State};
use super::pipe::{Pipe, ReaderDid};
use super::{TransferError, Transfers};
use crate::access::KeptManifest;
use crate::protocol::limits::DATA_PAYLOAD;
use crate::protocol::{ByteRange, Principal};
use crate::read::Coverage;

/// The least room that is filled, where more is left than that.
const PIECE: usize = DATA_PAYLOAD / 4;

/// A manifest's range on its way to a cursor.
struct Sending {
    transfers: Arc<Transfers>,
    manifest: KeptManifest,
    /// What is left of it.
    range: ByteRange,
    pipe: Arc<Pipe>,
    live: Arc<Live>,
}

impl Transfers {
    /// Begins a transfer of a manifest, as [`open`](Self::open) does one of a blob. However many read it, it is in memory
    /// once, and a reader that has stopped holds no more of it than one frame.
    pub async fn open_kept(
        self: &Arc<Self>,
        reader: Principal,
        manifest: KeptManifest,
        range: ByteRange,
        cut: Option<CancellationToken>,
    ) -> Result<Cursor, TransferError> {
        let (who, blob) = ((reader, manifest.agent.clone()), (manifest.sha256, manifest.size, range));
        let allowed = (manifest.places.clone(), manifest.as_of);
        let (mut cursor, pipe, live) = self.enter(who, blob, allowed, cut)?;
        // Its hash was compared when it was stored.
        cursor.set_coverage(Coverage::Full);
        let mut sending = Sending { transfers: self.clone(), manifest, range, pipe: pipe.clone(), live };
        if let Err(error) = sending.send_piece().await {
            return Err(self.refuse(cursor, error));
        }
        if sending.range.is_empty() {
            pipe.finish(Ok(()));
        } else {
            self.tracker.spawn(sending.run());
        }
        Ok(cursor)
    }
}

impl Sending {
    async fn run(mut self) {
        let end = loop {
            if self.range.is_empty() {
                break Ok(());
            }
            if let Err(error) = self.room_comes().await {
                break Err(error);
            }
            if let Err(error) = self.send_piece().await {
                break Err(error);
            }
        };
        self.pipe.finish(end);
    }

    fn room(&self) -> usize {
        self.pipe.room(1, 0, DATA_PAYLOAD)
    }

    /// Waits until the reader has taken enough.
    async fn room_comes(&self) -> Result<(), TransferError> {
        let wanted = self.range.len().min(PIECE as u64);
        let mut cancelled = std::pin::pin!(self.live.cancel.cancelled());
        self.live.set_state(State::WaitingForReader);
        std::future::poll_fn(|cx| {
            loop {
                if cancelled.poll_unpin(cx).is_ready() {
                    return Poll::Ready(Err(TransferError::Cancelled));
                }
                match self.pipe.poll_reader(cx) {
                    Poll::Ready(ReaderDid::Leave) => return Poll::Ready(Err(TransferError::Cancelled)),
                    // Asked again, so that what it takes next wakes this task.
                    Poll::Ready(ReaderDid::Take(_)) => {}
                    Poll::Pending if self.room() as u64 >= wanted => return Poll::Ready(Ok(())),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// As much as there is room for. A copy: a part of the manifest's own bytes would keep all of them in memory for as
    /// long as its reader does not take it.
    async fn send_piece(&mut self) -> Result<(), TransferError> {
        self.live.set_state(State::Reading);
        let bytes = self.bytes().await?;
        let end = self.range.end.min(self.range.start + self.room() as u64);
        // The range lies within the manifest, whose length is a `usize`.
        let piece = bytes.get(self.range.start as usize..end as usize).ok_or(TransferError::BlobGone)?;
        self.pipe.push_copied(piece);
        self.range.start = end;
        Ok(())
    }

    async fn bytes(&self) -> Result<Bytes, TransferError> {
        match self.transfers.access.read(&self.manifest).await {
            Ok(bytes) => bytes.ok_or(TransferError::BlobGone),
            Err(error) => {
                tracing::warn!(%error, sha256 = %self.manifest.sha256, "a manifest cannot be read");
                Err(TransferError::Unavailable)
            }
        }
    }
}
