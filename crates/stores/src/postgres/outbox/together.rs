//! Looks and steps of the lanes this process holds, made together.
//!
//! Each lane works by itself and asks when it has come to that. Those who ask at the same time, or while others are at the
//! server, go in one round: one look for all of them, or one commit. Lanes that were answered together come back together, so
//! they fall into step by themselves.
//!
//! A round changes nothing about what is asked: each lane has its own snapshot, its own fence, and its own answer. Whom a round
//! cannot answer asks alone, as if there were no others.

use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use semel_core::error::{Error, Kind};
use semel_core::outbox::LANES_MAX;
use semel_core::{Nonce, mutant};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::chores::no_row;
use super::super::connect::{Param, get};
use super::super::fault::Fault;
use super::super::pipeline::{End, Statement};
use super::append::CRASHES;
use super::{Desk, sql};
use crate::gather::{Reply, Waiting};

/// How long those who come later wait for a round that is at the server. After that they ask alone: one lane with much to
/// read, or one connection that hangs, must not hold all lanes.
const ROUND_WAIT_MAX: Duration = Duration::from_millis(200);

/// Calls that can wait for their round. A cursor makes one at a time.
const WAITING_MAX: usize = LANES_MAX as usize;

/// Who looks, and who saves.
#[derive(Default)]
pub(super) struct Together {
    looks: Queue<Look>,
    steps: Queue<Write>,
}

/// The way to the task that makes calls of one kind.
type Way<C> = mpsc::Sender<Waiting<C, <C as Call>::Answer>>;

/// Calls of one kind, and the way to who makes them, once there is one.
struct Queue<C: Call>(Mutex<Option<Way<C>>>);

impl<C: Call> Default for Queue<C> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

/// What can be done for several lanes at once.
pub(super) trait Call: Sized + Send + Sync + 'static {
    type Answer: Send + 'static;

    fn lane(&self) -> i16;

    /// Makes the calls of a round, each of another lane. One reply per call, in their order; all of them are told of a failure.
    fn make(
        desk: &Desk,
        calls: &[Self],
    ) -> impl Future<Output = Result<Vec<Reply<Self::Answer>>, Fault>> + Send;

    /// Whether calls may be made again, each by itself, after a round that failed so.
    fn may_repeat(fault: &Fault) -> bool;
}

/// What a lane wants to know: what committed since it was last read.
pub(super) struct Look {
    pub(super) lane: i16,
    pub(super) before: String,
    pub(super) most: i64,
}

/// What a look saw.
pub(super) struct Seen {
    pub(super) snapshot: String,
    /// The run of the server it belongs to.
    pub(super) run: Option<String>,
    /// As in `look.sql`.
    pub(super) rows: Vec<Row>,
}

/// The next step of a lane, with nothing beside it.
pub(super) struct Write {
    pub(super) run: String,
    pub(super) lane: i16,
    pub(super) step: i64,
    pub(super) epoch: i64,
    pub(super) progress: i64,
    pub(super) holder: Option<Nonce>,
    pub(super) lease: i64,
    pub(super) snapshot: String,
    pub(super) batch: Option<String>,
    pub(super) last: i64,
    pub(super) until: i64,
}

impl Desk {
    /// Looks, together with others. `None`: the lane must be asked about alone.
    ///
    /// # Cancellation
    /// Safe. Others of the round are answered all the same.
    pub(super) async fn look(self: &Arc<Self>, look: Look) -> Result<Option<Seen>, Error> {
        self.ask_together(&self.together.looks, look).await
    }

    /// Appends a step, together with others. `false`: somebody else holds the lane; `None`: nothing was done, and it must
    /// be asked for alone.
    ///
    /// # Cancellation
    /// The step is there, will be there, or will never be. Others of the round are answered all the same.
    pub(super) async fn step(self: &Arc<Self>, step: Write) -> Result<Option<bool>, Error> {
        self.ask_together(&self.together.steps, step).await
    }

    async fn ask_together<C: Call>(
        self: &Arc<Self>,
        queue: &Queue<C>,
        call: C,
    ) -> Result<Option<C::Answer>, Error> {
        // A runtime that ends takes the task along. Whoever asks in another begins a new one.
        let gone =
            || Error::new(Kind::Unreachable, "who asks for several lanes at once has ended; try again");
        let (reply, replied) = oneshot::channel();
        queue.sender(self).send(Waiting { call, reply }).await.map_err(|_| gone())?;
        match replied.await {
            Ok(Reply::Answer(answer)) => Ok(Some(answer)),
            Ok(Reply::AskAlone) => Ok(None),
            Ok(Reply::Failed(error)) => Err(error),
            Err(_) => Err(gone().maybe_applied()),
        }
    }
}

impl<C: Call> Queue<C> {
    fn sender(&self, desk: &Arc<Desk>) -> Way<C> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.as_ref().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender.clone(),
            None => {
                let (sender, waiting) = mpsc::channel(WAITING_MAX);
                tokio::spawn(serve(Arc::downgrade(desk), waiting));
                kept.insert(sender).clone()
            }
        }
    }
}

/// Makes what is asked for until nobody can ask any more.
async fn serve<C: Call>(desk: Weak<Desk>, mut queue: mpsc::Receiver<Waiting<C, C::Answer>>) {
    while let Some(first) = queue.recv().await {
        // Those who were answered together are on their way back.
        tokio::task::yield_now().await;
        let mut round = vec![first];
        while let Ok(next) = queue.try_recv() {
            round.push(next);
        }
        let Some(desk) = desk.upgrade() else { return };
        let (calls, replies) = company(round);
        if calls.is_empty() {
            continue;
        }
        let made = {
            let mut making = pin!(C::make(&desk, &calls));
            match timeout(ROUND_WAIT_MAX, &mut making).await {
                Ok(made) => made,
                Err(_) => loop {
                    tokio::select! {
                        made = &mut making => break made,
                        // Nothing was begun for them.
                        Some(late) = queue.recv() => drop(late.reply.send(Reply::AskAlone)),
                    }
                },
            }
        };
        let answers = match made {
            Ok(answers) => answers,
            Err(fault) => {
                let alone = calls.len() > 1 && C::may_repeat(&fault);
                let told = || if alone { Reply::AskAlone } else { Reply::Failed(fault.error()) };
                calls.iter().map(|_| told()).collect()
            }
        };
        for (reply, answer) in replies.into_iter().zip(answers) {
            // Who went away does not hear it.
            let _ = reply.send(answer);
        }
    }
}

/// Who goes in a round, and who is to be told.
type Company<C, A> = (Vec<C>, Vec<oneshot::Sender<Reply<A>>>);

/// Whoever went away meanwhile is not asked for. Of two holders of one lane, one of whom was replaced, the second asks alone.
fn company<C: Call>(round: Vec<Waiting<C, C::Answer>>) -> Company<C, C::Answer> {
    let mut lanes = HashSet::new();
    let (mut calls, mut replies) = (Vec::with_capacity(round.len()), Vec::with_capacity(round.len()));
    for Waiting { call, reply } in round {
        if reply.is_closed() {
            continue;
        }
        if !lanes.insert(call.lane()) {
            let _ = reply.send(Reply::AskAlone);
            continue;
        }
        calls.push(call);
        replies.push(reply);
    }
    (calls, replies)
}

impl Call for Look {
    type Answer = Seen;

    fn lane(&self) -> i16 {
        self.lane
    }

    async fn make(desk: &Desk, calls: &[Self]) -> Result<Vec<Reply<Seen>>, Fault> {
        let lanes: Vec<i16> = calls.iter().map(|look| look.lane).collect();
        let befores: Vec<&str> = calls.iter().map(|look| look.before.as_str()).collect();
        let mosts: Vec<i64> = calls.iter().map(|look| look.most).collect();
        let params: [Param<'_>; 3] =
            [(&lanes, Type::INT2_ARRAY), (&befores, Type::TEXT_ARRAY), (&mosts, Type::INT8_ARRAY)];
        let mut rows = desk.query(sql::LOOKS, &params).await?.into_iter();
        let first = rows.next().ok_or_else(no_row)?;
        let (snapshot, run): (String, Option<String>) = (get(&first, 0)?, get(&first, 13)?);
        let mut seen: Vec<Seen> = calls
            .iter()
            .map(|_| Seen { snapshot: snapshot.clone(), run: run.clone(), rows: Vec::new() })
            .collect();
        for row in rows {
            let lane: i16 = get(&row, 14)?;
            let of_lane = |asked: &i16| *asked == lane || mutant::on("outbox-round-mixes-lanes");
            let at = lanes.iter().position(of_lane).ok_or_else(no_row)?;
            seen[at].rows.push(row);
        }
        Ok(seen.into_iter().map(Reply::Answer).collect())
    }

    /// A look changes nothing; and what was too much for one statement may not be for several.
    fn may_repeat(_: &Fault) -> bool {
        true
    }
}

impl Call for Write {
    type Answer = bool;

    fn lane(&self) -> i16 {
        self.lane
    }

    async fn make(desk: &Desk, calls: &[Self]) -> Result<Vec<Reply<bool>>, Fault> {
        fn column<'a, T>(calls: &'a [Write], of: impl FnMut(&'a Write) -> T) -> Vec<T> {
            calls.iter().map(of).collect()
        }
        let clock = desk.clock();
        let (runs, lanes) = (column(calls, |step| step.run.as_str()), column(calls, |step| step.lane));
        let (steps, epochs) = (column(calls, |step| step.step), column(calls, |step| step.epoch));
        let (progresses, leases) = (column(calls, |step| step.progress), column(calls, |step| step.lease));
        let holders = column(calls, |step| step.holder.as_ref().map(|nonce| &nonce.as_bytes()[..]));
        let snapshots = column(calls, |step| step.snapshot.as_str());
        let batches = column(calls, |step| step.batch.as_deref());
        let (lasts, untils) = (column(calls, |step| step.last), column(calls, |step| step.until));
        let params: [Param<'_>; 13] = [
            (&runs, Type::TEXT_ARRAY),
            (&lanes, Type::INT2_ARRAY),
            (&steps, Type::INT8_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&progresses, Type::INT8_ARRAY),
            (&holders, Type::BYTEA_ARRAY),
            (&clock, Type::INT8),
            (&leases, Type::INT8_ARRAY),
            (&snapshots, Type::TEXT_ARRAY),
            (&batches, Type::TEXT_ARRAY),
            (&lasts, Type::INT8_ARRAY),
            (&untils, Type::INT8_ARRAY),
            (&desk.lock_ms, Type::INT8),
        ];
        let statements: [Statement<'_>; 1] = [(sql::STEPS, &params)];
        let mut link = desk.cursors.link_to_any().await?;
        link.busy();
        let end = End::Commit(CRASHES);
        let answers = match link.live().run(desk.call_timeout, Some(sql::BEGIN_STEP), &statements, end).await
        {
            Ok(answers) => answers,
            Err(fault) => {
                link.roll_back(&fault).await;
                return Err(fault);
            }
        };
        link.done();
        // Committed: from here on an unreadable row is its caller's trouble alone, who finds out what was saved.
        let rows = answers.first().map(Vec::as_slice).unwrap_or_default();
        Ok(calls.iter().map(|call| stepped(call, rows)).collect())
    }

    /// What may have been applied is not sent again.
    fn may_repeat(fault: &Fault) -> bool {
        (fault.changed_nothing() && !fault.broken) || mutant::on("outbox-round-repeats")
    }
}

/// What became of one step.
fn stepped(call: &Write, rows: &[Row]) -> Reply<bool> {
    let read = || {
        for row in rows {
            if get::<i16>(row, 0)? == call.lane || mutant::on("outbox-round-one-fence") {
                return Ok((get::<bool>(row, 1)?, get::<Option<i64>>(row, 2)?.is_some()));
            }
        }
        Err(no_row())
    };
    match read() {
        Ok((true, appended)) => Reply::Answer(appended),
        Ok((false, _)) => Reply::AskAlone,
        Err(error) => Reply::Failed(error.maybe_applied()),
    }
}
