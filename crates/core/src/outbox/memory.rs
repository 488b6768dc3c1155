//! The reference outbox: what every other one must do, with nothing in the way.
//!
//! It lives and dies with the process, so it is for tests and for reading. Writing is atomic, as a commit
//! would be, and sequences are given in the order of commits.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::{
    Aside, BATCH_MAX, Backlog, Cursor, Entry, Facts, Found, Judged, LANES_MAX, Lane, LaneStatus, Letter,
    Outbox, Overview, Position, Saved, Settled, Taken, Tended, Term, Verdict, lane_of, shortened,
};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::error::{Error, Kind};
use crate::lease::Nonce;
use crate::message::{Message, MessageId, Topic};
use crate::store::Pending;

/// An outbox in this process's memory. Clones share it.
#[derive(Clone)]
pub struct MemoryOutbox {
    clock: Arc<dyn Clock>,
    facts: Facts,
    state: Arc<Mutex<MemoryBackup>>,
}

/// Everything a memory outbox holds, at one moment.
#[derive(Clone, Default)]
pub struct MemoryBackup {
    last: u64,
    holdings: BTreeMap<Lane, Holding>,
    waiting: BTreeMap<u64, Row>,
    aside: BTreeMap<u64, Letter>,
    delayed: Vec<Message>,
    stopped: Option<String>,
}

#[derive(Clone, Default)]
struct Holding {
    epoch: u64,
    holder: Option<Nonce>,
    until: Timestamp,
}

#[derive(Clone)]
struct Row {
    lane: Lane,
    message: Message,
    at: Timestamp,
}

impl MemoryOutbox {
    /// An empty outbox with so many lanes, on the machine's clock.
    pub fn new(lanes: u16) -> Self {
        Self::with_clock(lanes, Arc::new(SystemClock))
    }

    /// The same on another clock.
    pub fn with_clock(lanes: u16, clock: Arc<dyn Clock>) -> Self {
        let lanes = lanes.clamp(1, LANES_MAX);
        let facts = Facts { engine: "memory", store_id: *Nonce::random().as_bytes(), lanes };
        Self { clock, facts, state: Arc::default() }
    }

    /// Writes messages as one commit would: all of them, or, if one is none, not any.
    pub fn write(&self, messages: impl IntoIterator<Item = Message>) -> Result<(), Error> {
        let messages: Vec<Message> = messages.into_iter().collect();
        super::check(&messages)?;
        let (mut state, now) = (self.state(), self.clock.now());
        for message in messages {
            match message.deliver_after {
                Some(due) if due > now => state.delayed.push(message),
                _ => state.put(message, self.facts.lanes, now),
            }
        }
        Ok(())
    }

    /// Remembers the present state, as a backup would.
    pub fn back_up(&self) -> MemoryBackup {
        self.state().clone()
    }

    /// Puts a backup back. Nothing is published after that until somebody rebases.
    pub fn restore(&self, backup: MemoryBackup) {
        let mut state = self.state();
        let last = state.last;
        *state = backup;
        state.stopped =
            Some(format!("it was restored: sequence {last} was seen, now it is at {}", state.last));
    }

    fn state(&self) -> MutexGuard<'_, MemoryBackup> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryBackup {
    fn put(&mut self, message: Message, lanes: u16, at: Timestamp) {
        self.last += 1;
        self.waiting.insert(self.last, Row { lane: lane_of(&message, lanes), message, at });
    }

    fn holding(&mut self, term: Term) -> Option<&mut Holding> {
        self.holdings.get_mut(&term.lane).filter(|holding| holding.epoch == term.epoch)
    }

    /// What a holder may settle now, by sequence. A key is closed from its first letter on that is dead or
    /// not due.
    fn ready(&self, lane: Lane, limit: usize, now: Timestamp) -> Vec<Entry> {
        let mut closed: BTreeSet<&str> = BTreeSet::new();
        let mut ready = BTreeMap::new();
        for (sequence, letter) in self.aside.iter().filter(|(_, letter)| letter.lane == lane) {
            let due = match letter.aside {
                Aside::Behind => true,
                Aside::Later => letter.again_at.is_none_or(|at| at <= now),
                Aside::Dead => false,
            };
            match letter.entry.message.key.as_deref() {
                Some(key) if closed.contains(key) => {}
                _ if due => drop(ready.insert(*sequence, letter.entry.clone())),
                Some(key) => drop(closed.insert(key)),
                None => {}
            }
        }
        for (sequence, row) in self.waiting.iter().filter(|(_, row)| row.lane == lane).take(limit) {
            let behind = row.message.key.as_deref().is_some_and(|key| closed.contains(key));
            ready.insert(*sequence, row.entry(*sequence, behind));
        }
        ready.into_values().take(limit).collect()
    }

    fn settle(&mut self, lane: Lane, entry: &Entry, settled: &Settled, now: Timestamp) {
        let before = self.aside.remove(&entry.sequence);
        if self.waiting.remove(&entry.sequence).is_none() && before.is_none() {
            return;
        }
        let since = before.map_or(now, |letter| letter.since);
        let (aside, reason, again_at, tried) = match settled {
            Settled::Sent => return,
            Settled::Later { reason, again_in } => (Aside::Later, &**reason, Some(now.after(*again_in)), 1),
            Settled::Dead { reason } => (Aside::Dead, &**reason, None, 1),
            Settled::Behind => (Aside::Behind, "", None, 0),
        };
        let entry = Entry { tries: entry.tries + tried, behind: false, ..entry.clone() };
        let letter = Letter { lane, aside, reason: shortened(reason).to_owned(), since, again_at, entry };
        self.aside.insert(letter.entry.sequence, letter);
    }
}

impl Row {
    fn entry(&self, sequence: u64, behind: bool) -> Entry {
        Entry { sequence, message: Arc::new(self.message.clone()), tries: 0, behind }
    }
}

/// Answers at once.
fn ready<'a, T: Send + 'a>(answer: Result<T, Error>) -> Pending<'a, T> {
    Box::pin(std::future::ready(answer))
}

impl Outbox for MemoryOutbox {
    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn take(&self, lane: Lane, holder: Nonce, lease: Duration) -> Pending<'_, Taken> {
        let (mut state, now) = (self.state(), self.clock.now());
        if lane.0 >= self.facts.lanes {
            let text = format!("there is no lane {}: they are 0 to {}", lane.0, self.facts.lanes - 1);
            return ready(Err(Error::new(Kind::Misconfigured, text)));
        }
        if let Some(why) = state.stopped.clone() {
            return ready(Ok(Taken::Stopped { why }));
        }
        let holding = state.holdings.entry(lane).or_default();
        if holding.holder.is_some_and(|other| other != holder) && holding.until > now {
            return ready(Ok(Taken::Held { until: holding.until, wait: holding.until.since(now) }));
        }
        *holding = Holding { epoch: holding.epoch + 1, holder: Some(holder), until: now.after(lease) };
        let term = Term { lane, epoch: holding.epoch };
        ready(Ok(Taken::Yours(Box::new(MemoryCursor {
            outbox: self.clone(),
            term,
            lease,
            batch: Vec::new(),
            has_saved: false,
        }))))
    }

    fn tend(&self) -> Pending<'_, Tended> {
        let (mut state, now) = (self.state(), self.clock.now());
        let delayed = std::mem::take(&mut state.delayed);
        let (due, later): (Vec<_>, Vec<_>) =
            delayed.into_iter().partition(|message| message.deliver_after.is_none_or(|at| at <= now));
        state.delayed = later;
        let tended = Tended { due: due.len() as u64, removed: 0, more: false };
        due.into_iter().for_each(|message| state.put(message, self.facts.lanes, now));
        ready(Ok(tended))
    }

    fn overview(&self) -> Pending<'_, Overview> {
        let (state, now) = (self.state(), self.clock.now());
        let lanes = (0..self.facts.lanes).map(Lane).map(|lane| {
            let holding = state.holdings.get(&lane).cloned().unwrap_or_default();
            let lease_until = holding.holder.map(|_| holding.until);
            LaneStatus { lane, epoch: holding.epoch, holder: holding.holder, lease_until }
        });
        let mut backlog: BTreeMap<(Topic, Lane), Backlog> = BTreeMap::new();
        let mut at = |topic: &Topic, lane: Lane, count: &dyn Fn(&mut Backlog)| {
            let none = Backlog { topic: topic.clone(), lane, waiting: 0, oldest: None, aside: 0, dead: 0 };
            count(backlog.entry((topic.clone(), lane)).or_insert(none));
        };
        for row in state.waiting.values() {
            let age = now.since(row.at);
            at(&row.message.topic, row.lane, &|one| {
                (one.waiting, one.oldest) = (one.waiting + 1, one.oldest.max(Some(age)));
            });
        }
        for letter in state.aside.values() {
            at(&letter.entry.message.topic, letter.lane, &|one| match letter.aside {
                Aside::Dead => one.dead += 1,
                Aside::Later | Aside::Behind => one.aside += 1,
            });
        }
        ready(Ok(Overview {
            lanes: lanes.collect(),
            backlog: backlog.into_values().collect(),
            delayed: state.delayed.len() as u64,
            more: false,
            stopped: state.stopped.clone(),
        }))
    }

    fn list(&self, topic: Option<&Topic>, after: u64, limit: u32) -> Pending<'_, Vec<(Lane, Entry)>> {
        let state = self.state();
        let wanted = |row: &Row| topic.is_none_or(|topic| *topic == row.message.topic);
        let later = state.waiting.iter().filter(|(sequence, row)| **sequence > after && wanted(row));
        let entries = later.map(|(sequence, row)| (row.lane, row.entry(*sequence, false)));
        ready(Ok(entries.take(limit as usize).collect()))
    }

    fn aside(&self, only: Option<Aside>, after: u64, limit: u32) -> Pending<'_, Vec<Letter>> {
        let state = self.state();
        let wanted = |letter: &&Letter| only.is_none_or(|only| only == letter.aside);
        let later = state.aside.iter().filter(|(sequence, _)| **sequence > after);
        ready(Ok(later.map(|(_, letter)| letter).filter(wanted).take(limit as usize).cloned().collect()))
    }

    fn find(&self, id: MessageId) -> Pending<'_, Option<Found>> {
        let state = self.state();
        let waiting = state.waiting.iter().find(|(_, row)| row.message.id == id);
        let aside = state.aside.values().find(|letter| letter.entry.message.id == id);
        let delayed = state.delayed.iter().find(|message| message.id == id);
        ready(Ok(match (waiting, aside, delayed) {
            (Some((sequence, row)), _, _) => Some(Found::Waiting(row.lane, row.entry(*sequence, false))),
            (_, Some(letter), _) => Some(Found::Aside(letter.clone())),
            (_, _, Some(message)) => Some(Found::Delayed(message.clone())),
            (None, None, None) => None,
        }))
    }

    fn judge<'a>(&'a self, id: MessageId, verdict: &'a Verdict) -> Pending<'a, Judged> {
        let (mut state, now) = (self.state(), self.clock.now());
        let dead = |letter: &&mut Letter| letter.aside == Aside::Dead && letter.entry.message.id == id;
        let Some(letter) = state.aside.values_mut().find(dead) else { return ready(Ok(Judged::NotDead)) };
        if let Verdict::Edit(edited) = verdict {
            if let Err(refused) = check_edit(&letter.entry.message, edited) {
                return ready(Err(refused));
            }
            letter.entry.message = Arc::new((**edited).clone());
        }
        match verdict {
            Verdict::Discard => {
                let sequence = letter.entry.sequence;
                state.aside.remove(&sequence);
            }
            Verdict::Replay | Verdict::Edit(_) => {
                (letter.aside, letter.again_at, letter.since) = (Aside::Later, Some(now), now);
                letter.entry.tries = 0;
            }
        }
        ready(Ok(Judged::Made))
    }

    fn rebase<'a>(&'a self, _by: &'a str) -> Pending<'a, u64> {
        let mut state = self.state();
        state.stopped = None;
        // Whoever held a lane before the restore must not go on with what they read.
        for holding in state.holdings.values_mut() {
            *holding = Holding { epoch: holding.epoch + 1, holder: None, until: Timestamp::default() };
        }
        ready(Ok(state.waiting.len() as u64))
    }
}

fn check_edit(dead: &Message, edited: &Message) -> Result<(), Error> {
    super::check(std::slice::from_ref(edited))?;
    let why = if edited.id == dead.id {
        "it has the id of the dead letter: an edited message needs one of its own"
    } else if edited.key != dead.key {
        "it has another ordering key: it could not take the place of the dead letter"
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::Misconfigured, format!("the edited message is refused: {why}")))
}

struct MemoryCursor {
    outbox: MemoryOutbox,
    term: Term,
    lease: Duration,
    /// What was read and is not saved.
    batch: Vec<Entry>,
    /// A save may have put entries of the batch behind another: they are read anew.
    has_saved: bool,
}

impl MemoryCursor {
    /// Changes the lane if it still is this holder's, and renews.
    fn change(&self, change: impl FnOnce(&mut MemoryBackup, Timestamp)) -> Saved {
        let (mut state, now) = (self.outbox.state(), self.outbox.clock.now());
        match state.holding(self.term) {
            None => Saved::Fenced,
            Some(holding) => {
                // Never backwards: a clock that jumped back must not shorten a lease.
                holding.until = holding.until.max(now.after(self.lease));
                change(&mut state, now);
                Saved::Kept
            }
        }
    }
}

impl Cursor for MemoryCursor {
    fn term(&self) -> Term {
        self.term
    }

    fn next(&mut self, limit: usize) -> Pending<'_, Vec<Entry>> {
        let (now, limit) = (self.outbox.clock.now(), limit.min(BATCH_MAX));
        if std::mem::take(&mut self.has_saved) {
            self.batch.clear();
        }
        let known: HashSet<u64> = self.batch.iter().map(|entry| entry.sequence).collect();
        // What these stood behind may have been freed meanwhile; it must not be followed by others before them.
        let behind = self.batch.iter().filter(|entry| entry.behind);
        let shut: HashSet<String> = behind.filter_map(|entry| entry.message.key.clone()).collect();
        let mut found = self.outbox.state().ready(self.term.lane, limit + known.len(), now);
        found.retain(|entry| {
            let key = entry.message.key.as_deref();
            !known.contains(&entry.sequence) && key.is_none_or(|key| !shut.contains(key))
        });
        self.batch.extend(found);
        self.batch.truncate(limit);
        ready(Ok(self.batch.clone()))
    }

    fn save<'a>(&'a mut self, settled: &'a [Settled]) -> Pending<'a, Saved> {
        if settled.len() > self.batch.len() {
            let text = format!("{} of {} entries cannot be settled", settled.len(), self.batch.len());
            return ready(Err(Error::new(Kind::Misconfigured, text)));
        }
        let saved = self.change(|state, now| {
            for (entry, settled) in self.batch.iter().zip(settled) {
                state.settle(self.term.lane, entry, settled, now);
            }
        });
        if saved == Saved::Kept {
            self.batch.drain(..settled.len());
            self.has_saved = true;
        }
        ready(Ok(saved))
    }

    fn position(&self, count: usize) -> Position {
        let sequences = self.batch.iter().take(count).flat_map(|entry| entry.sequence.to_be_bytes());
        Position(Bytes::from_iter(sequences))
    }

    fn adopt<'a>(&'a mut self, position: &'a Position) -> Pending<'a, Saved> {
        let landed = position.0.as_chunks::<8>().0.iter().map(|bytes| u64::from_be_bytes(*bytes));
        self.has_saved = true;
        ready(Ok(self.change(|state, _| {
            for sequence in landed {
                state.waiting.remove(&sequence);
                state.aside.remove(&sequence);
            }
        })))
    }

    fn give_back(self: Box<Self>) -> Pending<'static, ()> {
        if let Some(holding) = self.outbox.state().holding(self.term) {
            holding.holder = None;
        }
        ready(Ok(()))
    }
}
