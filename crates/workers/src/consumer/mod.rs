//! The idempotent consumer: ledger row and effect commit together, then the message is acknowledged.
//!
//! A batch is one transaction. If it fails, it is taken apart until the one message that cannot be applied
//! stands alone; that is set aside in the database, with everything later of its key, and the others go on.
//! A crash between commit and acknowledgement delivers again, and the ledger says: duplicate. A COMMIT
//! whose answer got lost is resolved by asking the ledger again, never assumed.
//!
//! It knows no database and no broker: [`Apply`] and [`Inbox`] are one, a [`Source`] the other.

mod settle;
mod source;
mod tally;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use semel_core::error::{Error, Kind};
use semel_core::inbox::{Apply, Arrival, BATCH_MAX, Ids, Inbox, Kept, NAME_CHARS_MAX, Offset, Retention};
use semel_core::{Backoff, Nonce, Runtime, mutant};

pub use source::{Delivery, Position, Receipt, Source};
pub use tally::Tally;

use settle::{Item, Settled};

/// Pause between two looks for letters that are due.
const LETTERS_EVERY: Duration = Duration::from_millis(250);
/// Pause between two steps of sweeping, unless there is more to do.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Ledger rows deleted in one step.
const SWEEP_BATCH: u32 = 500;
/// How long a source is asked to wait for a message.
const WAIT: Duration = Duration::from_millis(500);
/// For sources without deadlines.
const EXTEND_NEVER: Duration = Duration::from_secs(3600);
/// Rounds of letters before new messages get their turn.
const LETTER_ROUNDS_MAX: u32 = 16;

/// How a consumer works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who applies: each group applies every message once.
    pub group: String,
    /// Most messages in one transaction.
    pub batch_max: usize,
    /// Where ids are found.
    pub ids: Ids,
    /// How long the ledger remembers, and what it must outlast.
    pub retention: Retention,
    /// How often a message is tried before it is a dead letter.
    pub tries_max: u32,
    /// The pause before the second try; it doubles up to `pause_max`.
    pub pause: Duration,
    /// The longest pause between two tries.
    pub pause_max: Duration,
    /// Most messages that wait to be tried again. With so many, no new ones are taken: what fails is
    /// probably not the messages.
    pub aside_max: u64,
}

impl Options {
    /// The defaults, for a group.
    pub fn new(group: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            batch_max: 500,
            ids: Ids::default(),
            retention: Retention::default(),
            tries_max: 10,
            pause: Duration::from_millis(200),
            pause_max: Duration::from_secs(60),
            aside_max: 1000,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let refuse = |sentence: &str| Err(Error::new(Kind::Misconfigured, sentence));
        let named = (1..=NAME_CHARS_MAX).contains(&self.group.chars().count());
        if !named || self.group.chars().any(char::is_control) {
            return refuse("a group has a name of 1 to 200 characters without control characters");
        }
        if !(1..=BATCH_MAX).contains(&self.batch_max) {
            return refuse("a batch has 1 to 1000 messages");
        }
        if self.tries_max == 0 || self.pause.is_zero() || self.pause_max < self.pause {
            return refuse("there is at least one try, and pauses grow from one above zero");
        }
        Ok(())
    }
}

/// A consumer of one source.
pub struct Consumer<S> {
    source: S,
    engine: Engine,
}

/// What does not touch the source.
struct Engine {
    apply: Arc<dyn Apply>,
    inbox: Arc<dyn Inbox>,
    runtime: Arc<dyn Runtime>,
    options: Options,
    tally: Arc<Tally>,
    stopping: AtomicBool,
}

impl<S: Source> Consumer<S> {
    /// Puts a consumer together. `apply` and `inbox` are of the same database.
    pub fn new(
        source: S,
        apply: Arc<dyn Apply>,
        inbox: Arc<dyn Inbox>,
        runtime: Arc<dyn Runtime>,
        options: Options,
    ) -> Self {
        let (tally, stopping) = (Arc::default(), AtomicBool::new(false));
        Self { source, engine: Engine { apply, inbox, runtime, options, tally, stopping } }
    }

    /// What it did so far; keeps counting while it runs.
    pub fn tally(&self) -> Arc<Tally> {
        self.engine.tally.clone()
    }

    /// Consumes until `shutdown` ends; then finishes the batch at hand and gives back what it cannot finish.
    ///
    /// Refuses to start with a ledger that would forget too early (G-46), and ends by itself only with an
    /// error that time does not heal. To go on after that, open the source again: it has read ahead what was not applied.
    ///
    /// # Cancellation
    /// Safe: what was not acknowledged is delivered again, to whoever opens the source next, and what had committed is then
    /// a duplicate.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        self.engine.options.check()?;
        let horizon = self.source.horizon().await?;
        self.engine.options.retention.check(horizon).map_err(|short| {
            Error::new(Kind::Misconfigured, format!("the consumer does not start: {short}"))
        })?;
        let ended = self.work(shutdown).await;
        if let Err(error) = self.source.close().await {
            tracing::warn!(%error, "messages were not given back; they come again when their deadlines pass");
        }
        ended
    }

    async fn work(&mut self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let mut shutdown = pin!(shutdown);
        let mut chores = Chores::default();
        let mut backoff = Backoff::new(Nonce::random());
        loop {
            let turn = match select(shutdown.as_mut(), pin!(self.read(&mut chores))).await {
                Either::Left(_) => return Ok(()),
                Either::Right((turn, _)) => turn,
            };
            let deliveries = match turn {
                Ok(deliveries) => {
                    backoff = Backoff::new(Nonce::random());
                    deliveries
                }
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "no messages can be read; trying again");
                    let pause = pin!(self.engine.runtime.sleep(backoff.next_pause()));
                    if let Either::Left(_) = select(shutdown.as_mut(), pause).await {
                        return Ok(());
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.settle(deliveries, shutdown.as_mut()).await?;
            if self.engine.stopping.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }

    /// Letters and chores that are due, then new messages.
    async fn read(&mut self, chores: &mut Chores) -> Result<Vec<Delivery>, Error> {
        let Self { source, engine } = self;
        engine.tend(chores).await?;
        if chores.full {
            engine.runtime.sleep(LETTERS_EVERY).await;
            return Ok(Vec::new());
        }
        // All that was returned before is settled, or forgotten.
        let passed = source.passed();
        if !passed.is_empty()
            && engine.keep_passed(&passed).await? == Kept::Fenced
            && !mutant::on("inbox-refused-place-ignored")
        {
            source.fenced(&passed).await?;
            return Ok(Vec::new());
        }
        source.next(engine.options.batch_max, WAIT).await
    }

    /// Applies deliveries while their deadlines are extended, then acknowledges them.
    async fn settle(
        &mut self,
        deliveries: Vec<Delivery>,
        mut shutdown: impl Future<Output = ()> + Unpin,
    ) -> Result<(), Error> {
        if deliveries.is_empty() {
            return Ok(());
        }
        let Self { source, engine } = self;
        let receipts: Vec<Receipt> = deliveries.iter().map(|delivery| delivery.receipt).collect();
        if mutant::on("inbox-ack-before-commit") {
            source.ack(&receipts).await?;
        }
        let items = deliveries.into_iter().map(|delivery| Item::of(delivery, &engine.options.ids)).collect();
        let mut work = pin!(engine.settle(items));
        let mut told = false;
        let settled = loop {
            let pause = engine.runtime.sleep(source.extend_every().unwrap_or(EXTEND_NEVER));
            let hears = !told;
            let rang = async {
                match hears {
                    true => match select(&mut shutdown, pause).await {
                        Either::Left(_) => Rang::Shutdown,
                        Either::Right(_) => Rang::Deadline,
                    },
                    false => {
                        pause.await;
                        Rang::Deadline
                    }
                }
            };
            let rang = match select(work.as_mut(), pin!(rang)).await {
                Either::Left((settled, _)) => break settled?,
                Either::Right((rang, _)) => rang,
            };
            match rang {
                // The batch at hand is finished, if the database lets us.
                Rang::Shutdown => {
                    told = true;
                    engine.stopping.store(true, Ordering::Relaxed);
                }
                Rang::Deadline => {
                    if let Err(error) = source.extend(&receipts).await {
                        tracing::warn!(%error, "deadlines were not extended; messages may come again");
                    }
                }
            }
        };
        let Settled { settled, open, fenced } = settled;
        crate::crash::point("inbox-before-ack");
        if !settled.is_empty()
            && let Err(error) = source.ack(&settled).await
        {
            tracing::warn!(%error, "an acknowledgement failed; the messages come again, as duplicates");
        }
        if !open.is_empty() {
            let _ = source.nack(&open, Duration::ZERO).await;
        }
        if !fenced.is_empty() {
            source.fenced(&fenced).await?;
        }
        Ok(())
    }
}

/// What interrupts the work on a batch.
enum Rang {
    Shutdown,
    Deadline,
}

/// When letters and chores were done last.
#[derive(Default)]
struct Chores {
    letters_at: Option<Duration>,
    swept_at: Option<Duration>,
    /// Too much waits to be tried again.
    full: bool,
}

impl Engine {
    async fn tend(&self, chores: &mut Chores) -> Result<(), Error> {
        let now = self.runtime.elapsed();
        let is_due =
            |last: Option<Duration>, every| last.is_none_or(|last| now.saturating_sub(last) >= every);
        if is_due(chores.letters_at, LETTERS_EVERY) {
            let more = self.letters().await?;
            chores.letters_at = (!more).then_some(now);
            chores.full = self.inbox.waiting(&self.options.group).await? >= self.options.aside_max;
        }
        if is_due(chores.swept_at, SWEEP_EVERY) {
            let kept = self.options.retention.ledger;
            let swept = self.inbox.sweep(&self.options.group, kept, SWEEP_BATCH).await?;
            chores.swept_at = (!swept.more).then_some(now);
        }
        Ok(())
    }

    async fn keep_passed(&self, passed: &[Offset]) -> Result<Kept, Error> {
        self.inbox.set_aside(&self.options.group, &[], passed).await
    }

    /// Applies letters whose time has come. Says whether there may be more at once.
    async fn letters(&self) -> Result<bool, Error> {
        for _ in 0..LETTER_ROUNDS_MAX {
            let limit = u32::try_from(self.options.batch_max).unwrap_or(u32::MAX);
            let due = self.inbox.due(&self.options.group, limit).await?;
            if due.is_empty() {
                return Ok(false);
            }
            let item = |letter: semel_core::inbox::Letter| {
                let arrival = Arrival::of(letter.id?, letter.message);
                Some(Item::letter(Arrival { letter: Some(letter.number), tries: letter.tries, ..arrival }))
            };
            self.settle(due.into_iter().filter_map(item).collect()).await?;
        }
        Ok(true)
    }
}
