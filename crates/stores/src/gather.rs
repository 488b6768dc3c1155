//! Calls of many callers, gathered into batches.
//!
//! Callers put their calls into a bounded queue. Each lane of a store takes what is waiting and does it in one
//! transaction. While a lane is at the server the next batch gathers, so batches grow with the load. Lanes fly side by
//! side where few calls are about or very many; in between, two half-full batches would cost the server more than a full
//! one, and the second waits until the first has landed. What a batch cannot answer plainly is given back to the caller, who then
//! asks alone.
//!
//! A call that waits here has not begun: a crash leaves nothing of it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use semel_core::claim::{Claim, Request};
use semel_core::error::{Error, Kind};
use semel_core::verbs::{Complete, Completion};
use tokio::sync::{Mutex, Notify, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

/// Outcomes in one batch, in bytes: large ones travel in small company.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// With more calls than this at the server, the next batch waits until they are answered: a transaction costs the
/// server a good part of its price whatever it carries, and in the time they take twice as many come together.
const ALOFT_FEW: usize = 8;
/// So many are company enough, and go at once: while one batch waits for its flush, the server does the next.
const CALLS_MANY: usize = 32;
/// How long a batch waits for company at most, which is about what a flight takes: one that takes longer, or hangs, must
/// not hold the others.
const COMPANY_WAIT_MAX: Duration = Duration::from_millis(4);

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
    /// Ends when its callers are answered.
    _flight: Option<Flight>,
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
#[derive(Clone)]
pub(crate) struct Queue(Arc<Lanes>);

struct Lanes {
    waiting: Mutex<mpsc::Receiver<Job>>,
    /// Calls at the server now.
    aloft: AtomicUsize,
    landed: Notify,
}

impl Queue {
    pub(crate) fn new(waiting: mpsc::Receiver<Job>) -> Self {
        let (waiting, aloft, landed) = (Mutex::new(waiting), AtomicUsize::new(0), Notify::new());
        Self(Arc::new(Lanes { waiting, aloft, landed }))
    }

    /// Counts the calls of a batch as aloft until it lands.
    fn depart(&self, mut batch: Batch) -> Batch {
        // Somebody may have gone away while it waited for company.
        batch.claims.retain(|waiting| !waiting.reply.is_closed());
        batch.completions.retain(|waiting| !waiting.reply.is_closed());
        let calls = batch.len();
        self.0.aloft.fetch_add(calls, Ordering::Relaxed);
        Batch { _flight: Some(Flight { lanes: self.0.clone(), calls }), ..batch }
    }
}

/// A batch at the server, until this is dropped.
struct Flight {
    lanes: Arc<Lanes>,
    calls: usize,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.lanes.aloft.fetch_sub(self.calls, Ordering::Relaxed);
        self.lanes.landed.notify_one();
    }
}

/// What waits, at most so many calls; `None` when nobody can put anything in any more, or the store ends.
pub(crate) async fn gather(
    queue: &Queue,
    ended: &mut watch::Receiver<bool>,
    calls_max: usize,
) -> Option<Batch> {
    let lanes = &*queue.0;
    let mut waiting = lanes.waiting.lock().await;
    let first = tokio::select! {
        job = waiting.recv() => Some(job),
        _ = ended.wait_for(|ended| *ended) => None,
    };
    let first = match first {
        Some(job) => job,
        None => {
            // Nothing more comes in; what is in is still served.
            waiting.close();
            waiting.recv().await
        }
    };
    let mut batch = Batch::default();
    batch.push(first?);
    // Those who have just been answered come right back. Let them: a batch taken a moment too early
    // leaves half of them behind for a whole round trip.
    tokio::task::yield_now().await;
    let is_full = |batch: &Batch| batch.len() >= calls_max || batch.bytes >= BATCH_BYTES_MAX;
    let mut patience = pin!(sleep(COMPANY_WAIT_MAX));
    loop {
        while !is_full(&batch)
            && let Ok(job) = waiting.try_recv()
        {
            batch.push(job);
        }
        let aloft = lanes.aloft.load(Ordering::Relaxed);
        if aloft <= ALOFT_FEW || batch.len() >= CALLS_MANY || is_full(&batch) {
            return Some(queue.depart(batch));
        }
        tokio::select! {
            job = waiting.recv() => match job {
                Some(job) => batch.push(job),
                None => return Some(queue.depart(batch)),
            },
            () = lanes.landed.notified() => {}
            () = &mut patience => return Some(queue.depart(batch)),
        }
    }
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

#[cfg(test)]
mod tests {
    use semel_core::lease::Holder;
    use semel_core::{Nonce, OperationId, Token};

    use super::*;

    const CALLS_MAX: usize = 256;

    struct Rig {
        callers: mpsc::Sender<Job>,
        queue: Queue,
        ending: watch::Sender<bool>,
        replies: Vec<oneshot::Receiver<Reply<Completion>>>,
    }

    impl Rig {
        fn new() -> Self {
            let (callers, waiting) = mpsc::channel(1024);
            let ending = watch::Sender::new(false);
            Self { callers, queue: Queue::new(waiting), ending, replies: Vec::new() }
        }

        fn ask(&mut self, calls: usize) {
            for _ in 0..calls {
                let operation = OperationId::from_bytes([7; 32]);
                let holder = Holder { operation, token: Token(1), nonce: Nonce::random() };
                let call = Complete { holder, outcome: bytes::Bytes::new(), ttl_min: None };
                let (reply, replied) = oneshot::channel();
                self.replies.push(replied);
                self.callers.try_send(Job::Complete(Waiting { call, reply })).ok().unwrap();
            }
        }

        fn gather(&self) -> tokio::task::JoinHandle<Option<Batch>> {
            let (queue, mut ended) = (self.queue.clone(), self.ending.subscribe());
            tokio::spawn(async move { gather(&queue, &mut ended, CALLS_MAX).await })
        }

        async fn gathered(&self) -> Batch {
            self.gather().await.unwrap().unwrap()
        }
    }

    async fn let_others_run() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn beside_a_few_calls_nobody_waits() {
        let mut rig = Rig::new();
        let began = tokio::time::Instant::now();
        rig.ask(ALOFT_FEW);
        let first = rig.gathered().await;
        rig.ask(1);
        assert_eq!((first.len(), rig.gathered().await.len()), (ALOFT_FEW, 1));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn beside_a_full_batch_the_next_waits_until_it_lands() {
        let mut rig = Rig::new();
        let began = tokio::time::Instant::now();
        rig.ask(30);
        let first = rig.gathered().await;
        rig.ask(5);
        let next = rig.gather();
        let_others_run().await;
        assert!(!next.is_finished());
        rig.ask(6);
        let_others_run().await;
        drop(first);
        assert_eq!(next.await.unwrap().unwrap().len(), 11);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn many_go_at_once_and_a_flight_that_hangs_holds_nobody_for_long() {
        let mut rig = Rig::new();
        let began = tokio::time::Instant::now();
        rig.ask(30);
        let _hangs = rig.gathered().await;
        rig.ask(CALLS_MANY);
        let _many = rig.gathered().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        rig.ask(1);
        assert_eq!(rig.gathered().await.len(), 1);
        assert_eq!(began.elapsed(), COMPANY_WAIT_MAX);
    }
}
