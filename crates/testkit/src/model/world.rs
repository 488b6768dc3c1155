use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use semel_core::claim::{Claim, Request};
use semel_core::clock::Timestamp;
use semel_core::history::Kind;
use semel_core::record::{Moment, Record, Recovery, State, Terms};
use semel_core::verbs::{Complete, Finding, MarkUnknown, Release, Renew, Settle, Settler, Witness};
use semel_core::{Holder, Nonce, Token};

use super::Bounds;
use super::judge::{Judged, judge};
use crate::scene::{operation, print};

/// One tick of the model's clock: a lease.
const LEASE: Duration = Duration::from_secs(30);
/// Nobody is asked before two leases have passed.
const RUN_MAX: Duration = Duration::from_secs(60);

/// Everything there is at one moment.
#[derive(Clone, Debug)]
pub(super) struct World {
    cells: Vec<Option<Record>>,
    /// Per operation, the tokens of the attempts whose effect happened.
    effects: Vec<Vec<Token>>,
    /// Per operation, the highest token the asked party refuses.
    fences: Vec<Token>,
    workers: Vec<Worker>,
    letter: Option<(usize, Letter)>,
    now: Timestamp,
    token: Token,
    copies: u8,
    pub(super) losses: u8,
    /// The rule that the last step broke.
    pub(super) broken: Option<&'static str>,
}

/// What one process is about. Nothing makes it act: one that pauses acts later, one that crashed
/// acts no more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Worker {
    Idle,
    /// Has sent its claim and not heard.
    Asking(usize),
    /// Holds a lease; its effect has not happened.
    Holding(usize, Token),
    /// Its effect has happened.
    Fired(usize, Token),
    /// Its effect will not happen.
    Releasing(usize, Token),
    /// Its effect was refused by the party that had been asked about it.
    Fenced(usize, Token),
    Gone,
}

/// A write on its way for a second time.
#[derive(Clone, Debug)]
enum Letter {
    Claim(u8),
    /// It was a claim, and was told that it had been withdrawn.
    Withdrawn,
    Complete(Holder),
    Release(Holder),
    Settle(Settle),
}

/// How a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Heard,
    /// Applied; the worker does not hear.
    Lost,
    /// Applied and heard; a copy stays under way.
    Copied,
}

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Claim(u8, usize, Way),
    /// Waits no longer for its claim, and gives it back if it was granted.
    Withdraw(u8),
    Fire(u8),
    Complete(u8, Way),
    Release(u8, Way),
    Doubt(u8),
    Renew(u8),
    Tick,
    Lapse(usize),
    Ask(usize, bool, Way),
    Operator(usize),
    Deliver,
}

/// The notes that decisions look at, and one that is looked for. A decision that comes to look at
/// another kind needs it here, or worlds that differ would be taken for one.
const MATTERS: [Kind; 7] = [
    Kind::Released,
    Kind::Reclaimed,
    Kind::TakenOver,
    Kind::RefusedOutcome,
    Kind::SettledDone,
    Kind::SettledNever,
    Kind::LateOutcome,
];

fn nonce(worker: u8) -> Nonce {
    Nonce::from_bytes([worker + 1; 16])
}

fn outcome(token: Token) -> bytes::Bytes {
    token.0.to_be_bytes().to_vec().into()
}

impl World {
    pub(super) fn new(bounds: Bounds) -> Self {
        let keys = usize::from(bounds.keys);
        Self {
            cells: vec![None; keys],
            effects: vec![Vec::new(); keys],
            fences: vec![Token(0); keys],
            workers: vec![Worker::Idle; usize::from(bounds.workers)],
            letter: None,
            now: Timestamp::from_micros(0),
            token: Token(0),
            copies: bounds.copies,
            losses: bounds.losses,
            broken: None,
        }
    }

    pub(super) fn some(&self, is: impl Fn(&Record) -> bool) -> bool {
        self.cells.iter().flatten().any(is)
    }

    pub(super) fn every(&self, holds: impl Fn(&Record, &[Token]) -> bool) -> bool {
        let all = self.cells.iter().zip(&self.effects);
        all.filter_map(|(cell, effects)| Some((cell.as_ref()?, effects)))
            .all(|(cell, effects)| holds(cell, effects))
    }

    /// What can happen next.
    pub(super) fn acts(&self, acts: &mut Vec<Act>) {
        if self.broken.is_some() {
            return;
        }
        let mut ways = vec![Way::Heard];
        ways.extend((self.losses > 0).then_some(Way::Lost));
        ways.extend((self.copies > 0 && self.letter.is_none()).then_some(Way::Copied));
        // Workers and keys are interchangeable: they begin in order.
        if let Some(first) = self.workers.iter().position(|worker| *worker == Worker::Idle) {
            let used = self.cells.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            let keys = 0..self.cells.len().min(used + 1);
            acts.extend(keys.flat_map(|key| ways.iter().map(move |way| Act::Claim(first as u8, key, *way))));
        }
        for (worker, doing) in (0..).zip(&self.workers) {
            let each = |act: fn(u8, Way) -> Act| ways.iter().map(move |way| act(worker, *way));
            match doing {
                Worker::Idle | Worker::Gone => {}
                Worker::Asking(key) => {
                    acts.extend(ways.iter().map(|way| Act::Claim(worker, *key, *way)));
                    acts.push(Act::Withdraw(worker));
                }
                Worker::Holding(..) => {
                    acts.extend(each(Act::Release));
                    acts.extend([Act::Fire(worker), Act::Doubt(worker), Act::Renew(worker)])
                }
                Worker::Fired(..) => {
                    acts.extend(each(Act::Complete));
                    acts.extend([Act::Doubt(worker), Act::Renew(worker)]);
                }
                Worker::Releasing(..) | Worker::Fenced(..) => acts.extend(each(Act::Release)),
            }
        }
        for (key, cell) in self.cells.iter().enumerate() {
            let Some(record) = cell else { continue };
            match record.state {
                State::InProgress => acts.push(Act::Lapse(key)),
                State::Unknown => {
                    acts.push(Act::Operator(key));
                    if record.terms.recovery == Recovery::Ask {
                        acts.extend([Act::Ask(key, true, Way::Heard), Act::Ask(key, false, Way::Heard)]);
                        let late = self.copies > 0 && self.letter.is_none();
                        acts.extend(late.then_some(Act::Ask(key, true, Way::Copied)));
                    }
                }
                _ => {}
            }
        }
        acts.extend(self.letter.iter().filter(|_| !self.saw_withdrawn()).map(|_| Act::Deliver));
        acts.push(Act::Tick);
    }

    pub(super) fn act(&mut self, act: Act, recovery: Recovery) {
        match act {
            Act::Claim(worker, key, way) => self.claim(worker, key, way, recovery),
            Act::Withdraw(worker) => {
                let Worker::Asking(key) = *self.doing(worker) else { return };
                let next = match self.step(key, &request(key, worker, recovery)) {
                    Claim::Granted(lease) => Worker::Releasing(key, lease.holder.token),
                    _ => Worker::Gone,
                };
                self.set(worker, next);
            }
            Act::Fire(worker) => self.fire(worker),
            Act::Complete(worker, way) => {
                let Some((key, holder)) = self.holder(worker) else { return };
                self.step(key, &Complete { holder, outcome: outcome(holder.token), ttl_min: None });
                self.went(worker, key, way, Letter::Complete(holder));
            }
            Act::Release(worker, way) => {
                let Some((key, holder)) = self.holder(worker) else { return };
                self.set(worker, Worker::Releasing(key, holder.token));
                self.step(key, &Release { holder });
                self.went(worker, key, way, Letter::Release(holder));
            }
            Act::Doubt(worker) => {
                let Some((key, holder)) = self.holder(worker) else { return };
                self.step(key, &MarkUnknown { witness: Witness::Holder(holder), note: String::new() });
                self.set(worker, Worker::Gone);
            }
            Act::Renew(worker) => {
                let Some((key, holder)) = self.holder(worker) else { return };
                self.step(key, &Renew { holder, lease: LEASE });
            }
            Act::Tick => self.now = self.now.after(LEASE),
            Act::Lapse(key) => {
                let Some(record) = &self.cells[key] else { return };
                let witness = Witness::Lapse { operation: record.operation.id(), token: record.token };
                self.step(key, &MarkUnknown { witness, note: String::new() });
            }
            Act::Ask(key, fenced, way) => self.ask(key, fenced, way),
            Act::Operator(key) => self.operate(key),
            Act::Deliver => self.deliver(recovery),
        }
    }

    fn doing(&self, worker: u8) -> &Worker {
        &self.workers[usize::from(worker)]
    }

    fn set(&mut self, worker: u8, doing: Worker) {
        self.workers[usize::from(worker)] = doing;
    }

    fn holder(&self, worker: u8) -> Option<(usize, Holder)> {
        match *self.doing(worker) {
            Worker::Holding(key, token)
            | Worker::Fired(key, token)
            | Worker::Releasing(key, token)
            | Worker::Fenced(key, token) => {
                let operation = self.cells[key].as_ref()?.operation.id();
                Some((key, Holder { operation, token, nonce: nonce(worker) }))
            }
            _ => None,
        }
    }

    /// A worker's last write was applied: it hears of it and is done, or it does not.
    fn went(&mut self, worker: u8, key: usize, way: Way, letter: Letter) {
        match way {
            Way::Lost => self.losses -= 1,
            Way::Heard => self.set(worker, Worker::Gone),
            Way::Copied => {
                self.copies -= 1;
                self.letter = Some((key, letter));
                self.set(worker, Worker::Gone);
            }
        }
    }

    fn claim(&mut self, worker: u8, key: usize, way: Way, recovery: Recovery) {
        let answer = self.step(key, &request(key, worker, recovery));
        if way == Way::Copied {
            self.copies -= 1;
            self.letter = Some((key, Letter::Claim(worker)));
        }
        let next = match answer {
            _ if way == Way::Lost => {
                self.losses -= 1;
                Worker::Asking(key)
            }
            Claim::Granted(lease) => Worker::Holding(key, lease.holder.token),
            _ => Worker::Gone,
        };
        self.set(worker, next);
    }

    /// The effect, at a party that refuses what it was told to.
    fn fire(&mut self, worker: u8) {
        let Worker::Holding(key, token) = *self.doing(worker) else { return };
        if token <= self.fences[key] {
            self.set(worker, Worker::Fenced(key, token));
        } else {
            self.effects[key].push(token);
            self.set(worker, Worker::Fired(key, token));
        }
    }

    /// The party that would know is asked and tells the truth. Without a fence it must not be
    /// believed when it says never.
    fn ask(&mut self, key: usize, fenced: bool, way: Way) {
        let Some(record) = &self.cells[key] else { return };
        let (operation, token) = (record.operation.id(), record.token);
        let happened = self.effects[key].last().copied();
        let finding = happened.map_or(Finding::Never, |effect| Finding::Done(outcome(effect)));
        if fenced && happened.is_none() {
            self.fences[key] = self.fences[key].max(token);
        }
        let refused_through = if fenced { token } else { Token(token.0 - 1) };
        let by = Settler::Asked { refused_through };
        let settle = Settle { operation, token, nonce: nonce(100), finding, by, note: String::new() };
        if way == Way::Copied {
            // The answer itself takes its time.
            self.copies -= 1;
            self.letter = Some((key, Letter::Settle(settle)));
        } else {
            self.step(key, &settle);
        }
    }

    /// An operator looks, makes sure that nothing is still about to happen, and settles.
    fn operate(&mut self, key: usize) {
        let Some(record) = &self.cells[key] else { return };
        let (operation, token) = (record.operation.id(), record.token);
        let finding = match self.effects[key].last() {
            // In the operator's own words.
            Some(_) => Finding::Done(outcome(Token(255))),
            None => {
                for worker in &mut self.workers {
                    if matches!(worker, Worker::Holding(about, _) if *about == key) {
                        *worker = Worker::Gone;
                    }
                }
                Finding::Never
            }
        };
        let by = Settler::Operator("ops".into());
        self.step(key, &Settle { operation, token, nonce: nonce(101), finding, by, note: String::new() });
    }

    fn deliver(&mut self, recovery: Recovery) {
        let Some((key, letter)) = self.letter.take() else { return };
        match letter {
            Letter::Claim(worker) => {
                if self.step(key, &request(key, worker, recovery)) == Claim::Withdrawn {
                    self.letter = Some((key, Letter::Withdrawn));
                }
            }
            Letter::Withdrawn => {}
            Letter::Complete(holder) => {
                self.step(key, &Complete { holder, outcome: outcome(holder.token), ttl_min: None });
            }
            Letter::Release(holder) => {
                self.step(key, &Release { holder });
            }
            Letter::Settle(settle) => {
                self.step(key, &settle);
            }
        }
    }

    /// One atomic step of a store, and a look at what it did.
    fn step<V: Judged>(&mut self, key: usize, verb: &V) -> V::Answer {
        let fresh = Token(self.token.0 + 1);
        let before = self.cells[key].take();
        let step = verb.decide(before.as_ref(), Moment { now: self.now, fresh });
        let after = step.put.or_else(|| before.clone());
        if let Some(record) = after.as_ref().filter(|record| V::TAKES_TOKEN && record.token == fresh) {
            self.token = record.token;
        }
        let broken = judge(before.as_ref(), after.as_ref(), verb.writer(), V::accepted(&step.answer));
        self.broken = self.broken.or(broken);
        self.cells[key] = after;
        step.answer
    }

    pub(super) fn saw_withdrawn(&self) -> bool {
        matches!(self.letter, Some((_, Letter::Withdrawn)))
    }

    /// Some worker runs, or ran, under a token its operation is no longer held by.
    pub(super) fn saw_takeover(&self) -> bool {
        self.workers.iter().any(|worker| match worker {
            Worker::Holding(key, token) | Worker::Fired(key, token) => {
                self.cells[*key].as_ref().is_some_and(|record| record.token > *token)
            }
            _ => false,
        })
    }

    /// An operation is unknown, and its worker has not said so.
    pub(super) fn saw_lapse(&self) -> bool {
        self.workers.iter().any(|worker| match worker {
            Worker::Holding(key, token) | Worker::Fired(key, token) => self.cells[*key]
                .as_ref()
                .is_some_and(|record| record.token == *token && record.state == State::Unknown),
            _ => false,
        })
    }

    pub(super) fn saw_fenced(&self) -> bool {
        self.workers.iter().any(|worker| matches!(worker, Worker::Fenced(..)))
    }
}

fn request(key: usize, worker: u8, recovery: Recovery) -> Request {
    thread_local! {
        // Digests are slow, and the same few are needed millions of times.
        static MADE: RefCell<HashMap<usize, Request>> = RefCell::default();
    }
    let terms =
        Terms { recovery, lease: LEASE, run_max: RUN_MAX, ttl: Duration::MAX, retry_window: Duration::ZERO };
    MADE.with_borrow_mut(|made| {
        let request = made.entry(key).or_insert_with(|| Request {
            operation: operation(&format!("model-operation-{key}")),
            nonce: nonce(0),
            print: print("{}"),
            terms,
            subject: None,
        });
        Request { nonce: nonce(worker), terms, ..request.clone() }
    })
}

/// What decisions can depend on, and nothing else: worlds that differ only in older times are one.
impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.facts().hash(hasher);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.facts() == other.facts()
    }
}

impl World {
    fn facts(&self) -> Vec<u64> {
        let mut facts = vec![self.token.0, u64::from(self.copies), u64::from(self.losses)];
        facts.push(u64::from(self.broken.is_some()));
        for record in &self.cells {
            let Some(record) = record else {
                facts.push(0);
                continue;
            };
            let nonce = |nonce: &Nonce| u64::from(nonce.as_bytes()[0]);
            let outcome = record.outcome.as_ref().map_or(0, |outcome| 1 + u64::from(outcome[7]));
            facts.extend([record.state as u64, record.token.0, nonce(&record.nonce), outcome]);
            facts.push(record.lease_until.since(self.now).as_secs());
            let asked = record.terms.recovery == Recovery::Ask;
            facts.extend(asked.then(|| record.may_ask_at().since(self.now).as_secs()));
            let events = record.history.events().iter().filter(|event| MATTERS.contains(&event.kind));
            let mut events: Vec<u64> = events
                .map(|event| (event.kind as u64) << 32 | event.token.0 << 8 | nonce(&event.nonce))
                .collect();
            events.sort_unstable();
            facts.push(events.len() as u64);
            facts.extend(events);
        }
        for (effects, fence) in self.effects.iter().zip(&self.fences) {
            facts.extend([fence.0, effects.len() as u64]);
            facts.extend(effects.iter().map(|token| token.0));
        }
        facts.extend(self.workers.iter().map(|worker| match worker {
            Worker::Idle => 1,
            Worker::Gone => 2,
            Worker::Asking(key) => 3 << 8 | *key as u64,
            Worker::Holding(key, token) => token.0 << 16 | 5 << 8 | *key as u64,
            Worker::Fired(key, token) => token.0 << 16 | 6 << 8 | *key as u64,
            Worker::Releasing(key, token) => token.0 << 16 | 7 << 8 | *key as u64,
            Worker::Fenced(key, token) => token.0 << 16 | 8 << 8 | *key as u64,
        }));
        let Some((key, letter)) = &self.letter else { return facts };
        facts.push(*key as u64);
        facts.push(match letter {
            Letter::Claim(worker) => 1 << 32 | u64::from(*worker),
            Letter::Withdrawn => 2 << 32,
            Letter::Complete(holder) => 3 << 32 | holder.token.0,
            Letter::Release(holder) => 4 << 32 | holder.token.0,
            Letter::Settle(Settle { finding: Finding::Never, token, .. }) => 5 << 32 | token.0,
            Letter::Settle(settle) => 6 << 32 | settle.token.0,
        });
        facts
    }
}
