//! Calls of many callers, gathered into batches.
//!
//! Callers put their calls into a bounded queue. Each lane of a store takes what is waiting and does it in one
//! transaction. While a lane is at the server the next batch gathers, so batches grow with the load and nobody waits
//! for one to fill. What a batch cannot answer plainly is given back to the caller, who then asks alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_core::claim::{Claim, Request};
use semel_core::error::{Error, Kind};
use semel_core::verbs::{Complete, Completion};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::timeout;

/// Outcomes in one batch, in bytes: large ones travel in small company.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// What becomes of a call in a batch.
pub(crate) enum Reply<T> {
    Answer(T),
    /// The batch cannot tell; nothing was done for this call, or only what it asked for.
    AskAlone,
    Failed(Error),
}

pub(crate) struct Waiting<Call, Answer> {
    pub(crate) call: Call,
    pub(crate) reply: oneshot::Sender<Reply<Answer>>,
}

/// One call in the queue.
pub(crate) enum Job {
    Claim(Waiting<Request, Claim>),
    Complete(Waiting<Complete, Completion>),
}

/// What one transaction carries.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) claims: Vec<Waiting<Request, Claim>>,
    pub(crate) completions: Vec<Waiting<Complete, Completion>>,
    bytes: usize,
}

impl Batch {
    fn push(&mut self, job: Job) {
        match job {
            // Whoever went away meanwhile is not asked for.
            Job::Claim(waiting) if !waiting.reply.is_closed() => self.claims.push(waiting),
            Job::Complete(waiting) if !waiting.reply.is_closed() => {
                self.bytes += waiting.call.outcome.len();
                self.completions.push(waiting);
            }
            _ => {}
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.claims.len() + self.completions.len()
    }

    pub(crate) fn fail(self, mut error: impl FnMut() -> Error) {
        self.claims.into_iter().for_each(|w| drop(w.reply.send(Reply::Failed(error()))));
        self.completions.into_iter().for_each(|w| drop(w.reply.send(Reply::Failed(error()))));
    }

    pub(crate) fn give_back(self) {
        self.claims.into_iter().for_each(|w| drop(w.reply.send(Reply::AskAlone)));
        self.completions.into_iter().for_each(|w| drop(w.reply.send(Reply::AskAlone)));
    }
}

/// How much was coalesced.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) batches: AtomicU64,
    pub(crate) calls: AtomicU64,
}

impl Counts {
    pub(crate) fn add(&self, batch: &Batch) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.calls.fetch_add(batch.len() as u64, Ordering::Relaxed);
    }
}

/// The waiting end of the queue, shared by the lanes.
pub(crate) type Queue = Arc<Mutex<mpsc::Receiver<Job>>>;

/// What waits, at most so many calls; `None` when nobody can put anything in any more, or the store ends.
pub(crate) async fn gather(
    queue: &Queue,
    ended: &mut watch::Receiver<bool>,
    calls_max: usize,
) -> Option<Batch> {
    let mut queue = queue.lock().await;
    let first = tokio::select! {
        job = queue.recv() => Some(job),
        _ = ended.wait_for(|ended| *ended) => None,
    };
    let first = match first {
        Some(job) => job,
        None => {
            // Nothing more comes in; what is in is still served.
            queue.close();
            queue.recv().await
        }
    };
    let mut batch = Batch::default();
    batch.push(first?);
    // Those who have just been answered come right back. Let them: a batch taken a moment too early
    // leaves half of them behind for a whole round trip.
    tokio::task::yield_now().await;
    while batch.len() < calls_max && batch.bytes < BATCH_BYTES_MAX {
        match queue.try_recv() {
            Ok(job) => batch.push(job),
            Err(_) => break,
        }
    }
    Some(batch)
}

/// How long a caller waits, and for whom.
pub(crate) struct Waits {
    pub(crate) engine: &'static str,
    /// For room in the queue.
    pub(crate) room: Duration,
    /// For the reply. A lane bounds its own work; this bounds the queue before it.
    pub(crate) reply: Duration,
}

/// Puts a call into the queue and waits for its reply.
pub(crate) async fn ask<Call, Answer>(
    queue: &mpsc::Sender<Job>,
    waits: Waits,
    call: Call,
    job: fn(Waiting<Call, Answer>) -> Job,
) -> Result<Option<Answer>, Error> {
    let engine = waits.engine;
    let closed = || Error::new(Kind::Closed, format!("the {engine} store was closed by this process"));
    let (reply, replied) = oneshot::channel();
    let room = match timeout(waits.room, queue.reserve()).await {
        Ok(Ok(room)) => room,
        Ok(Err(_)) => return Err(closed()),
        Err(_) => {
            let sentence = format!("too many calls wait for the {engine} store; try later");
            return Err(Error::new(Kind::Busy, sentence));
        }
    };
    room.send(job(Waiting { call, reply }));
    match timeout(waits.reply, replied).await {
        Ok(Ok(Reply::Answer(answer))) => Ok(Some(answer)),
        Ok(Ok(Reply::AskAlone)) => Ok(None),
        Ok(Ok(Reply::Failed(error))) => Err(error),
        Ok(Err(_)) => Err(closed().maybe_applied()),
        // Nobody knows whether the lane has begun.
        Err(_) => {
            let sentence = format!("{engine} did not answer in time; look for locks, load and the network");
            Err(Error::new(Kind::TimedOut, sentence).maybe_applied())
        }
    }
}
