//! Claims and completions of many callers, coalesced.
//!
//! Callers put their calls into a bounded queue. Each lane takes what is waiting, runs it as one
//! transaction, and answers. While a lane is at the server the next batch gathers, so batches grow with
//! the load and nobody waits for one to fill. What a batch cannot answer plainly it gives back to the
//! caller, who then asks [alone](super::step).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::Token;
use semel_core::claim::{Claim, Request};
use semel_core::error::{Error, Kind};
use semel_core::verbs::{Complete, Completion};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::timeout;

use super::connect::Live;
use super::fault::{Again, Fault};
use super::flight::{self, Landed};
use super::{Shared, pool};

/// Outcomes in one batch, in bytes: large ones travel in small company.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// How often a batch that lost a deadlock or its connection is sent.
pub(super) const FLIGHTS_MAX: u32 = 3;

/// What becomes of a call in a batch.
pub(super) enum Reply<T> {
    Answer(T),
    /// The batch cannot tell; nothing was done for this call, or only what it asked for.
    AskAlone,
    Failed(Error),
}

pub(super) struct Waiting<Call, Answer> {
    pub(super) call: Call,
    pub(super) reply: oneshot::Sender<Reply<Answer>>,
}

/// One call in the queue.
pub(super) enum Job {
    Claim(Waiting<Request, Claim>),
    Complete(Waiting<Complete, Completion>),
}

/// What one transaction carries.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) claims: Vec<Waiting<Request, Claim>>,
    pub(super) completions: Vec<Waiting<Complete, Completion>>,
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

    fn len(&self) -> usize {
        self.claims.len() + self.completions.len()
    }

    fn fail(self, mut error: impl FnMut() -> Error) {
        self.claims.into_iter().for_each(|w| drop(w.reply.send(Reply::Failed(error()))));
        self.completions.into_iter().for_each(|w| drop(w.reply.send(Reply::Failed(error()))));
    }

    fn give_back(self) {
        self.claims.into_iter().for_each(|w| drop(w.reply.send(Reply::AskAlone)));
        self.completions.into_iter().for_each(|w| drop(w.reply.send(Reply::AskAlone)));
    }
}

/// How much was coalesced.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) batches: AtomicU64,
    pub(super) calls: AtomicU64,
}

/// The waiting end of the queue, shared by the lanes.
pub(super) type Queue = Arc<Mutex<mpsc::Receiver<Job>>>;

/// Serves the queue until nobody can put anything into it, or the store ends.
pub(super) async fn lane(
    shared: Arc<Shared>,
    queue: Queue,
    mut ended: watch::Receiver<bool>,
    mut live: Option<Live>,
) {
    // Before the first claim, not because of it. Failing here is not worth a word: it will be tried again.
    let _ = connected(&shared, &mut live).await;
    while let Some(batch) = gather(&shared, &queue, &mut ended).await {
        if batch.len() > 0 {
            serve(&shared, &mut live, batch).await;
        }
    }
}

async fn gather(shared: &Shared, queue: &Queue, ended: &mut watch::Receiver<bool>) -> Option<Batch> {
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
    while batch.len() < shared.batch_max && batch.bytes < BATCH_BYTES_MAX {
        match queue.try_recv() {
            Ok(job) => batch.push(job),
            Err(_) => break,
        }
    }
    Some(batch)
}

async fn connected<'a>(shared: &Shared, live: &'a mut Option<Live>) -> Result<&'a mut Live, Error> {
    let fit = match live.take() {
        Some(fit) => fit,
        None => shared.connector.open().await?,
    };
    let fit = live.insert(fit);
    shared.horizon.check()?;
    Ok(fit)
}

/// Flies a batch until it landed, or nobody can tell, or it is better taken apart.
async fn serve(shared: &Shared, live: &mut Option<Live>, batch: Batch) {
    shared.counts.batches.fetch_add(1, Ordering::Relaxed);
    shared.counts.calls.fetch_add(batch.len() as u64, Ordering::Relaxed);
    let mut flights = 1;
    loop {
        let fit = match connected(shared, live).await {
            Ok(fit) => fit,
            Err(error) => return batch.fail(|| Error::new(error.kind(), error.to_string())),
        };
        let before = shared.horizon.token();
        let fault = match flight::fly(shared, fit, &batch).await {
            Ok(landed) => {
                if answer(shared, fit, batch, landed, before).await.is_err() {
                    *live = None;
                }
                return;
            }
            Err(fault) => fault,
        };
        if fault.broken || fit.within(shared.connect_wait).roll_back().await.is_err() {
            *live = None;
        }
        if !fault.changed_nothing() {
            return batch.fail(|| fault.error());
        }
        if fault.again != Again::Lost || flights == FLIGHTS_MAX {
            return match fault.broken {
                true => batch.fail(|| fault.error()),
                // One bad call must not fail its neighbours: each asks alone and hears its own error.
                false => batch.give_back(),
            };
        }
        flights += 1;
    }
}

async fn answer(
    shared: &Shared,
    live: &mut Live,
    batch: Batch,
    mut landed: Landed,
    before: Token,
) -> Result<(), Fault> {
    let met = match landed.unmet(&batch) {
        ids if ids.is_empty() => Ok(()),
        // Those not granted wrote nothing, so this may fail: they ask alone.
        ids => flight::meet(shared, live, &mut landed, &ids).await,
    };
    // Both are noted, also when the first is not fine.
    let drawn = landed.drawn().into_iter().flat_map(|(lowest, highest)| [lowest, highest]);
    let noted: Vec<bool> = drawn.map(|token| shared.horizon.note(token, before)).collect();
    let fine = noted.into_iter().all(|fine| fine);
    for waiting in batch.claims {
        let reply = match shared.horizon.check() {
            Err(error) if !fine && landed.has_granted(&waiting.call) => Reply::Failed(error.maybe_applied()),
            _ => landed.claim(&shared.horizon, &waiting.call),
        };
        let _ = waiting.reply.send(reply);
    }
    for waiting in batch.completions {
        let _ = waiting.reply.send(landed.completion(&waiting.call));
    }
    met
}

/// Puts a call into the queue and waits for its reply.
pub(super) async fn ask<Call, Answer>(
    shared: &Shared,
    queue: &mpsc::Sender<Job>,
    call: Call,
    job: fn(Waiting<Call, Answer>) -> Job,
) -> Result<Option<Answer>, Error> {
    let (reply, replied) = oneshot::channel();
    let room = match timeout(shared.connect_wait, queue.reserve()).await {
        Ok(Ok(room)) => room,
        Ok(Err(_)) => return Err(pool::closed()),
        Err(_) => {
            return Err(Error::new(Kind::Busy, "too many calls wait for the MySQL store; try later"));
        }
    };
    room.send(job(Waiting { call, reply }));
    // A lane bounds its own work; this bounds the queue before it. Past it nobody knows whether the
    // lane has begun.
    match timeout(shared.patience(), replied).await {
        Ok(Ok(Reply::Answer(answer))) => Ok(Some(answer)),
        Ok(Ok(Reply::AskAlone)) => Ok(None),
        Ok(Ok(Reply::Failed(error))) => Err(error),
        Ok(Err(_)) => Err(pool::closed().maybe_applied()),
        Err(_) => Err(Fault::timed_out(true).error()),
    }
}
