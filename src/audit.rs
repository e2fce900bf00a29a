//! Who read what: written down in batches, off the path of those who read.
//!
//! Whoever ends a read hands its record to a bounded queue; one task writes what has gathered there. A reader never
//! waits for the database: when the queue is full the record is lost, counted and told in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics::Metrics;
use crate::store::{ReadRecord, Store};

/// Records that wait to be written. One is a few hundred bytes.
const QUEUE: usize = 10_000;
/// Records written at once.
const BATCH: usize = 500;
/// How long records gather before they are written.
const GATHER: Duration = Duration::from_millis(500);
/// Between two tries while the database does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Takes records. Clones share the queue.
#[derive(Debug, Clone)]
pub struct Audit(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    queue: mpsc::Sender<ReadRecord>,
    store: Store,
    metrics: Arc<Metrics>,
    /// The last record was lost, so that a full queue is told once and not for each.
    losing: AtomicBool,
}

impl Audit {
    /// Nothing is written down.
    pub fn off() -> Self {
        Self(None)
    }

    /// Starts the task that writes, on `tracker`. Once `until` is cancelled it writes what is left and ends.
    pub fn start(store: Store, metrics: Arc<Metrics>, tracker: &TaskTracker, until: CancellationToken) -> Self {
        for outcome in ["written", "lost"] {
            let _ = metrics.audit_records.with_label_values(&[outcome]);
        }
        let (queue, records) = mpsc::channel(QUEUE);
        let writer = Writer { records, store: store.clone(), metrics: metrics.clone(), until };
        tracker.spawn(writer.run());
        Self(Some(Arc::new(Inner { queue, store, metrics, losing: AtomicBool::new(false) })))
    }

    /// Has a read written down whose end is now. Never waits.
    pub fn record(&self, mut read: ReadRecord) {
        let Some(inner) = &self.0 else { return };
        read.id = inner.store.read_id();
        let lost = inner.queue.try_send(read).is_err();
        if lost {
            inner.metrics.audit_records.with_label_values(&["lost"]).inc();
        }
        if inner.losing.swap(lost, Ordering::Relaxed) != lost && lost {
            tracing::error!("reads are not written down: the audit's queue is full");
        }
    }
}

struct Writer {
    records: mpsc::Receiver<ReadRecord>,
    store: Store,
    metrics: Arc<Metrics>,
    until: CancellationToken,
}

impl Writer {
    async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                taken = self.records.recv_many(&mut batch, BATCH) => if taken == 0 { return },
                // What is queued is still handed out; then there is no more.
                () = self.until.cancelled(), if !self.records.is_closed() => self.records.close(),
            }
            if batch.is_empty() {
                continue;
            }
            if batch.len() < BATCH && self.until.run_until_cancelled(tokio::time::sleep(GATHER)).await.is_some() {
                while batch.len() < BATCH
                    && let Ok(read) = self.records.try_recv()
                {
                    batch.push(read);
                }
            }
            self.write(&mut batch).await;
        }
    }

    /// Writes a batch, however long the database is away; while the gateway ends there is one try.
    async fn write(&self, batch: &mut Vec<ReadRecord>) {
        let count = batch.len() as u64;
        let mut told = false;
        while let Err(error) = self.store.add_reads(batch.clone()).await {
            if self.until.is_cancelled() || !error.is_unavailable() {
                tracing::error!(%error, reads = count, "reads are not written down");
                self.metrics.audit_records.with_label_values(&["lost"]).inc_by(count);
                batch.clear();
                return;
            }
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(%error, "reads wait to be written down");
            }
            let _ = self.until.run_until_cancelled(tokio::time::sleep(RETRY)).await;
        }
        self.metrics.audit_records.with_label_values(&["written"]).inc_by(count);
        batch.clear();
    }
}
