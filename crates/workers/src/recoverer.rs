//! Finds leases that lapsed with no outcome, and what became of their effects.
//!
//! Nothing waits for a client to come back: a lapsed claim is noticed within one pass. Under `hold`
//! it becomes unknown and waits for a person; under `ask` whoever would know is asked, with growing
//! pauses, once nothing can be on its way any more; under `rerun` it is left to the next attempt.
//!
//! It never decides by itself that something did or did not happen.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::{FutureExt, StreamExt};
use semel_core::runtime::Boxed;
use semel_core::store::{Filter, LOOK_MAX};
use semel_core::verbs::{Change, Finding, MarkUnknown, Settle, Settler, Witness};
use semel_core::{
    EffectStore, Error, Nonce, Operation, OperationId, Outcome, Policy, Record, Recovery, Runtime, State,
    Timestamp, Token, mutant,
};

use crate::patience::answered;

/// Pause between passes: a third of the default lease.
const PAUSE: Duration = Duration::from_secs(10);
/// A claim may become visible this long after its token was given; passes go back that far.
const LATE_COMMIT_MAX: Duration = Duration::from_secs(120);
/// Every so often a pass starts from the beginning, whatever is remembered.
const FULL_PASS: Duration = Duration::from_secs(3600);
/// Most open records remembered between passes; beyond it, passes start further back.
const REMEMBERED_MAX: usize = 100_000;
/// Questions asked at the same time.
const ASKING_MAX: usize = 16;
/// How long an answer may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest pause between two questions about one operation.
const ASK_PAUSE_MAX: Duration = Duration::from_secs(600);

/// Somebody who would know whether an effect happened.
pub trait Ask: Send + Sync + 'static {
    /// Asks. May be called any number of times for one operation, also from several processes.
    fn ask(&self, question: Question) -> Boxed<Reply>;
}

impl<F, Fut> Ask for F
where
    F: Fn(Question) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Reply> + Send + 'static,
{
    fn ask(&self, question: Question) -> Boxed<Reply> {
        Box::pin(self(question))
    }
}

/// What is asked: did this attempt happen?
#[derive(Clone, Debug)]
pub struct Question {
    /// The operation.
    pub operation: Arc<Operation>,
    /// The newest attempt's token.
    pub token: Token,
    /// The newest attempt's nonce.
    pub nonce: Nonce,
    /// When it was claimed, on the store's clock.
    pub claimed_at: Timestamp,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It happened; this is its outcome.
    Done(Outcome),
    /// It did not, and attempts with tokens up to this one are refused from now on. Without that
    /// promise a late request could still make it happen, so a smaller number counts as
    /// [`Reply::CannotTell`].
    Never {
        /// The highest token refused.
        refused_through: Token,
    },
    /// Not known now; ask again later.
    CannotTell(String),
}

/// What one pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Lapsed claims that became unknown.
    pub lapsed: u64,
    /// Questions asked.
    pub asked: u64,
    /// Unknowns settled by an answer.
    pub settled: u64,
    /// Unknowns left.
    pub unknown: u64,
}

impl Report {
    /// A pass that found nothing new is no news, however many unknowns there are.
    fn log(&self) {
        let Self { lapsed, asked, settled, unknown } = self;
        match lapsed + asked + settled {
            0 => tracing::debug!(unknown, "recovery pass"),
            _ => tracing::info!(lapsed, asked, settled, unknown, "recovery pass"),
        }
    }
}

/// Names whom to ask about an operation.
type Finder = dyn Fn(&Operation) -> Option<(Policy, Arc<dyn Ask>)> + Send + Sync;

/// A task that leaves no lapsed claim unnoticed.
pub struct Recoverer {
    store: Arc<dyn EffectStore>,
    runtime: Arc<dyn Runtime>,
    routes: HashMap<Box<str>, (Policy, Arc<dyn Ask>)>,
    others: Option<Box<Finder>>,
    pause: Duration,
    memory: Memory,
}

/// What is remembered from pass to pass, so that each looks only at what is new or still open.
#[derive(Default)]
struct Memory {
    open: BTreeMap<OperationId, Pace>,
    /// When each completed pass began, and the highest token given by then.
    floors: VecDeque<(Duration, Token)>,
    full_pass_at: Option<Duration>,
    epoch: u64,
}

/// How often an operation was asked about, and when it may be again.
#[derive(Clone, Copy, Default)]
struct Pace {
    asked: u32,
    not_before: Duration,
}

impl Recoverer {
    /// Looks every ten seconds. Let the pause not exceed the shortest lease in use.
    pub fn new(store: Arc<dyn EffectStore>, runtime: Arc<dyn Runtime>) -> Self {
        Self { store, runtime, routes: HashMap::new(), others: None, pause: PAUSE, memory: Memory::default() }
    }

    /// Pauses this long between passes.
    pub fn every(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Whom to ask about operations of a route, and how to keep what they answer.
    pub fn ask(mut self, route: &str, policy: Policy, whom: Arc<dyn Ask>) -> Self {
        self.routes.insert(route.into(), (policy, whom));
        self
    }

    /// Finds out for each operation of any other route whom to ask, and how to keep what they answer.
    pub fn ask_by(
        mut self,
        finder: impl Fn(&Operation) -> Option<(Policy, Arc<dyn Ask>)> + Send + Sync + 'static,
    ) -> Self {
        self.others = Some(Box::new(finder));
        self
    }

    fn whom(&self, operation: &Operation) -> Option<(Policy, Arc<dyn Ask>)> {
        let named = self.routes.get(operation.scope().route()).cloned();
        named.or_else(|| self.others.as_ref()?(operation))
    }

    /// Works until `shutdown` ends.
    ///
    /// # Cancellation
    /// Safe. Each step is one verb of the store; a question whose answer is lost is asked again.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            let work = pin!(async {
                match self.pass().await {
                    Ok(report) => report.log(),
                    Err(error) => {
                        tracing::warn!(%error, "a recovery pass stopped early; the next one goes on")
                    }
                }
                self.runtime.sleep(self.pause).await;
            });
            if let Either::Left(_) = select(shutdown.as_mut(), work).await {
                return;
            }
        }
    }

    /// One pass over what is open.
    pub async fn pass(&mut self) -> Result<Report, Error> {
        let start = self.runtime.elapsed();
        // Taken before looking: whatever gets a larger token later is seen by a later pass.
        let mark = answered(&*self.runtime, self.store.status()).await?.mark;
        if std::mem::replace(&mut self.memory.epoch, mark.epoch) != mark.epoch {
            // A restored store was accepted: what was known of it is of another state.
            self.memory = Memory { epoch: mark.epoch, ..Memory::default() };
        }
        let mut report = Report::default();
        let mut due = Vec::new();
        let mut seen = BTreeMap::new();
        let unsettled = Filter::unsettled();
        let (mut after, is_full) = self.memory.floor(start);
        let now = loop {
            let page = answered(&*self.runtime, self.store.list(&unsettled, after, LOOK_MAX)).await?;
            for record in page.records {
                self.look(record, page.now, start, &mut report, &mut seen, &mut due).await;
            }
            match page.next {
                Some(next) => after = next,
                None => break page.now,
            }
        };
        for id in self.memory.unseen(&seen) {
            match answered(&*self.runtime, self.store.get(id)).await {
                Ok(Some(record)) if is_open(&record) => {
                    self.look(record, now, start, &mut report, &mut seen, &mut due).await;
                }
                Ok(_) => {}
                // One record that cannot be read must not keep the others from being recovered.
                Err(error) => {
                    tracing::warn!(operation = %id, %error, "an open operation cannot be looked at");
                    seen.insert(id, self.memory.open.get(&id).copied().unwrap_or_default());
                }
            }
        }
        report.asked = due.len() as u64;
        report.settled = self.ask_all(due).await;
        report.unknown -= report.settled.min(report.unknown);
        self.memory.remember(start, mark.token, is_full, seen);
        Ok(report)
    }

    /// Looks at one open record: calls it unknown if it lapsed, and notes whether to ask.
    async fn look(
        &self,
        record: Record,
        now: Timestamp,
        start: Duration,
        report: &mut Report,
        seen: &mut BTreeMap<OperationId, Pace>,
        due: &mut Vec<Record>,
    ) {
        let id = record.operation.id();
        let mut pace = self.memory.open.get(&id).copied().unwrap_or_default();
        let mut unknown = record.state == State::Unknown;
        if record.is_lapsed(now) && record.terms.recovery != Recovery::Rerun && !mutant::on("lapse-unnoticed")
        {
            let mark = MarkUnknown {
                witness: Witness::Lapse { operation: id, token: record.token },
                note: "found lapsed by the recoverer".into(),
            };
            match answered(&*self.runtime, self.store.mark_unknown(&mark)).await {
                Ok(change) => {
                    unknown = change == Change::Made;
                    report.lapsed += u64::from(unknown);
                }
                Err(error) => {
                    tracing::warn!(operation = %record.operation, %error, "a lapsed claim cannot be marked yet")
                }
            }
        }
        report.unknown += u64::from(unknown);
        let may_ask = now >= record.may_ask_at() || mutant::on("asked-too-early");
        if unknown && record.terms.recovery == Recovery::Ask && may_ask && start >= pace.not_before {
            pace.asked += 1;
            let wait = self.pause.saturating_mul(1 << pace.asked.min(10)).min(ASK_PAUSE_MAX);
            pace.not_before = start + wait;
            due.push(record);
        }
        seen.insert(id, pace);
    }

    /// Asks about all that is due, a few at a time. Returns how many were settled.
    async fn ask_all(&self, due: Vec<Record>) -> u64 {
        let answers = futures_util::stream::iter(due).map(|record| async move {
            match self.ask_one(&record).await {
                Ok(settled) => u64::from(settled),
                Err(error) => {
                    tracing::warn!(operation = %record.operation, %error, "an answer could not be stored; asking again later");
                    0
                }
            }
        });
        answers.buffer_unordered(ASKING_MAX).fold(0, async |sum, settled| sum + settled).await
    }

    async fn ask_one(&self, record: &Record) -> Result<bool, Error> {
        let Some((policy, whom)) = self.whom(&record.operation) else {
            tracing::warn!(operation = %record.operation, "recovery is `ask`, but nobody is configured for this route");
            return Ok(false);
        };
        let question = Question {
            operation: record.operation.clone(),
            token: record.token,
            nonce: record.nonce,
            claimed_at: record.attempt_at,
        };
        let asking = AssertUnwindSafe(async { whom.ask(question).await }).catch_unwind();
        let reply = match select(pin!(asking), self.runtime.sleep(ASK_TIMEOUT)).await {
            Either::Left((Ok(reply), _)) => reply,
            Either::Left((Err(_), _)) => Reply::CannotTell("whoever was asked panicked".into()),
            Either::Right(_) => Reply::CannotTell(format!("no answer within {ASK_TIMEOUT:?}")),
        };
        match reply {
            Reply::Done(outcome) => {
                match self.settle_done(record, &policy, &outcome).await {
                    // It happened, and that is more than nothing: asking again would bring the same.
                    Err(error) if error.is_too_large() && !mutant::on("too-large-asked-for-ever") => {
                        tracing::error!(operation = %record.operation, %error, "an answer is kept without its body");
                        self.settle_done(record, &policy, &outcome.without_body()).await
                    }
                    settled => settled,
                }
            }
            Reply::Never { refused_through } => self.settle(record, Finding::Never, refused_through).await,
            Reply::CannotTell(why) => {
                tracing::info!(operation = %record.operation, %why, "still unknown");
                Ok(false)
            }
        }
    }

    async fn settle_done(&self, record: &Record, policy: &Policy, outcome: &Outcome) -> Result<bool, Error> {
        let (id, subject) = (record.operation.id(), record.subject.as_deref());
        let kept = policy.prepare(outcome, id, subject);
        let kept = answered(&*self.runtime, Box::pin(kept)).await?;
        self.settle(record, Finding::Done(kept), Token(0)).await
    }

    async fn settle(&self, record: &Record, finding: Finding, refused_through: Token) -> Result<bool, Error> {
        let settle = Settle {
            operation: record.operation.id(),
            token: record.token,
            nonce: Nonce::random(),
            finding,
            by: Settler::Asked { refused_through },
            note: String::new(),
        };
        Ok(answered(&*self.runtime, self.store.settle(&settle)).await? == Change::Made)
    }
}

fn is_open(record: &Record) -> bool {
    matches!(record.state, State::InProgress | State::Unknown)
}

impl Memory {
    /// Where a pass starts, and whether that is the beginning. Not at the newest token seen: claims
    /// that got theirs earlier may have become visible later. A ceiling is a floor only once another
    /// pass, begun long enough after it, has looked above it.
    fn floor(&mut self, now: Duration) -> (Token, bool) {
        if self.full_pass_at.is_none_or(|at| now >= at) {
            return (Token(0), true);
        }
        let last = self.floors.back().map_or(Duration::ZERO, |(at, _)| *at);
        let is_old = |at: Duration| last.saturating_sub(at) >= LATE_COMMIT_MAX;
        while self.floors.get(1).is_some_and(|(at, _)| is_old(*at)) {
            self.floors.pop_front();
        }
        match self.floors.front() {
            Some((at, token)) if is_old(*at) => (*token, false),
            _ => (Token(0), true),
        }
    }

    /// Open records below the floor, which paging did not meet.
    fn unseen(&self, seen: &BTreeMap<OperationId, Pace>) -> Vec<OperationId> {
        self.open.keys().filter(|id| !seen.contains_key(*id)).copied().collect()
    }

    fn remember(
        &mut self,
        start: Duration,
        ceiling: Token,
        was_full: bool,
        seen: BTreeMap<OperationId, Pace>,
    ) {
        if seen.len() > REMEMBERED_MAX {
            // Too many to watch one by one: the next pass starts from the beginning again.
            self.full_pass_at = None;
            self.floors.clear();
        } else {
            self.floors.push_back((start, ceiling));
            if was_full {
                self.full_pass_at = Some(start + FULL_PASS);
            }
        }
        self.open = seen;
    }
}
