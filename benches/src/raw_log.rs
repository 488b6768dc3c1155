//! The physical limit: records appended to a file, one `fdatasync` for all that came meanwhile.
//!
//! No index, no lookups, no reading back. Nothing that answers questions can be faster on the same
//! disk, so this is what stores are compared with.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::{mpsc, oneshot};

use crate::load::{BODY_BYTES, Contestant};

/// Most records written before a sync; above the number of callers, so it never limits.
const BATCH_MAX: usize = 4096;

type Waiting = oneshot::Sender<()>;

/// A log with one writer thread and group commit.
pub(crate) struct RawLog {
    queue: mpsc::UnboundedSender<Waiting>,
}

impl RawLog {
    /// Starts a log in an unnamed file. Its writer ends with it.
    pub(crate) fn start() -> Result<Self> {
        let file = tempfile::tempfile()?;
        let (queue, waiting) = mpsc::unbounded_channel();
        std::thread::Builder::new().name("raw-log".into()).spawn(move || write(file, waiting))?;
        Ok(Self { queue })
    }

    async fn append(&self) -> Result<()> {
        let (tell, hear) = oneshot::channel();
        self.queue.send(tell).ok().context("the log's writer has ended")?;
        hear.await.context("the log could not be written")
    }
}

/// Whoever arrives during a sync is served by the next one.
fn write(mut file: File, mut queue: mpsc::UnboundedReceiver<Waiting>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    let mut bytes = Vec::with_capacity(BATCH_MAX * BODY_BYTES);
    while queue.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
        bytes.clear();
        bytes.resize(batch.len() * BODY_BYTES, b'x');
        if file.write_all(&bytes).and_then(|()| file.sync_data()).is_err() {
            return; // The callers hear of it through their closed channels.
        }
        for waiting in batch.drain(..) {
            let _ = waiting.send(());
        }
    }
}

impl Contestant for RawLog {
    async fn request(&self) -> Result<[Duration; 2]> {
        let start = Instant::now();
        self.append().await?;
        let claimed = start.elapsed();
        self.append().await?;
        Ok([claimed, start.elapsed() - claimed])
    }
}
