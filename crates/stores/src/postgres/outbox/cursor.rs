//! A held lane: what was read of it, and how far it is settled.

use std::sync::Arc;
use std::time::Duration;

use semel_core::Nonce;
use semel_core::error::{Error, Kind};
use semel_core::outbox::{BATCH_MAX, Cursor, Entry, Lane, Position, Saved, Settled, Term};
use semel_core::store::Pending;

use super::Desk;
use super::append::{Changes, Step};
use super::position::Mark;
use super::read::Flow;

/// How far a lane is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Whatever is visible in it is settled, or set aside.
    pub(super) snapshot: String,
    /// What is being worked through beyond that.
    pub(super) batch: Option<Batch>,
}

/// What is visible in one snapshot and not in another, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) snapshot: String,
    /// Settled up to this number.
    pub(super) last: u64,
    /// The largest number there is.
    pub(super) until: u64,
}

/// What the last `next` gave.
#[derive(Clone, Default)]
struct Reading {
    /// Letters first, then what was never set aside.
    entries: Vec<Entry>,
    letters: usize,
    /// What the rest is made of, in order.
    segments: Vec<Segment>,
    /// How many of the entries the caller was shown.
    offered: usize,
    /// How many were settled by a save whose answer was lost.
    done: usize,
}

/// Entries that are visible in one snapshot and not in another.
#[derive(Clone)]
struct Segment {
    /// Where it ends among the entries.
    end: usize,
    before: String,
    snapshot: String,
    /// The largest number of the batch it belongs to.
    until: u64,
}

impl Reading {
    /// Where the lane is once the first `count` entries are settled.
    fn place_after(&self, place: &Place, count: usize) -> Place {
        let segment = self.segments.iter().find(|segment| segment.end >= count);
        let (last, segment) = match (count.checked_sub(1).and_then(|at| self.entries.get(at)), segment) {
            (Some(entry), Some(segment)) if count > self.letters => (entry.sequence, segment),
            _ => return place.clone(),
        };
        let Segment { before, snapshot, until, .. } = segment.clone();
        match last == until {
            true => Place { snapshot, batch: None },
            false => Place { snapshot: before, batch: Some(Batch { snapshot, last, until }) },
        }
    }

    fn add(&mut self, mut flow: Flow) {
        self.entries.append(&mut flow.entries);
        let Flow { before, snapshot, until, .. } = flow;
        self.segments.push(Segment { end: self.entries.len(), before, snapshot, until });
    }

    fn of_letters(entries: Vec<Entry>) -> Self {
        Self { letters: entries.len(), entries, ..Self::default() }
    }

    fn offer(&mut self, limit: usize) -> Vec<Entry> {
        self.offered = limit.min(self.entries.len());
        self.entries[..self.offered].to_vec()
    }
}

/// A held lane of a PostgreSQL outbox.
pub(super) struct PostgresCursor {
    pub(super) desk: Arc<Desk>,
    pub(super) lane: i16,
    pub(super) holder: Nonce,
    pub(super) lease: Duration,
    /// Cluster and database, and which history of it; unknown where the server does not tell.
    pub(super) home: Option<String>,
    pub(super) timeline: Option<String>,
    /// Which run of the server the lane is read in. After a crash nothing that was read before is worth
    /// anything: the server may give the numbers of transactions that left no trace to others.
    pub(super) run: String,
    pub(super) epoch: i64,
    pub(super) step: i64,
    pub(super) progress: i64,
    pub(super) place: Place,
    /// Something of the lane may be set aside. Nobody else sets aside, so "no" stays true.
    pub(super) has_letters: bool,
    /// A look together with others did not work, and none by itself has since.
    pub(super) looks_alone: bool,
    pub(super) is_fenced: bool,
    /// A step was sent that would settle so many entries, and its answer never came.
    pub(super) doubt: Option<usize>,
    reading: Option<Reading>,
}

/// A lane as its newest step describes it.
pub(super) struct Found {
    pub(super) step: i64,
    pub(super) epoch: i64,
    pub(super) progress: i64,
    pub(super) place: Place,
}

impl PostgresCursor {
    pub(super) fn new(desk: Arc<Desk>, lane: i16, holder: Nonce, lease: Duration, found: Found) -> Self {
        let Found { step, epoch, progress, place } = found;
        Self {
            desk,
            lane,
            holder,
            lease,
            home: None,
            timeline: None,
            run: String::new(),
            epoch,
            step,
            progress,
            place,
            has_letters: true,
            looks_alone: false,
            is_fenced: false,
            doubt: None,
            reading: None,
        }
    }

    async fn read_next(&mut self, limit: usize) -> Result<Vec<Entry>, Error> {
        let limit = limit.min(BATCH_MAX);
        self.resolve().await?;
        if self.is_fenced || limit == 0 {
            return Ok(Vec::new());
        }
        let held = self.reading.as_mut().filter(|reading| reading.done == 0);
        if let Some(reading) = held.filter(|reading| reading.entries.len() >= limit) {
            return Ok(reading.offer(limit));
        }
        // What was given before and not settled comes first, as it was.
        let mut reading = match &self.reading {
            Some(reading) if reading.done == 0 => reading.clone(),
            // Half of the room at most: a heap of letters must not hold up those who have done nothing.
            _ if self.has_letters => Reading::of_letters(self.letters(limit.div_ceil(2)).await?),
            _ => Reading::default(),
        };
        while reading.entries.len() < limit {
            let from = reading.place_after(&self.place, reading.entries.len());
            let (room, is_first) = (limit - reading.entries.len(), reading.segments.is_empty());
            let Some(mut flow) = self.flow(from, room, is_first).await? else { break };
            if self.has_letters {
                self.mark(&reading.entries, reading.letters, &mut flow.entries).await?;
            }
            let ends_batch = flow.ends_batch;
            reading.add(flow);
            if !ends_batch {
                break;
            }
        }
        let given = reading.offer(limit);
        self.reading = (!given.is_empty()).then_some(reading);
        Ok(given)
    }

    async fn save_first(&mut self, settled: &[Settled]) -> Result<Saved, Error> {
        let was_in_doubt = self.resolve().await?;
        if self.is_fenced {
            return Ok(Saved::Fenced);
        }
        let (offered, done) = self.reading.as_ref().map_or((0, 0), |reading| (reading.offered, reading.done));
        if settled.len() > offered {
            let sentence = format!("{} messages were settled, and {offered} were read", settled.len());
            return Err(Error::new(Kind::Misconfigured, sentence));
        }
        if was_in_doubt && settled.len() <= done {
            // The save that was in doubt had landed, and finding that out renewed the lease.
            return Ok(Saved::Kept);
        }
        let fresh = settled.get(done..).unwrap_or_default();
        let (place, changes) = match &self.reading {
            Some(reading) if !fresh.is_empty() => (
                reading.place_after(&self.place, settled.len()),
                Changes::of(&reading.entries[done..], reading.letters.saturating_sub(done), fresh),
            ),
            _ => (self.place.clone(), Changes::default()),
        };
        let progress = self.progress + i64::from(!fresh.is_empty());
        let sets_aside = changes.sets_aside();
        let step = Step { place, progress, holder: Some(self.holder), lease: self.lease, changes };
        if !self.append(step, settled.len()).await? {
            return Ok(Saved::Fenced);
        }
        self.has_letters |= sets_aside;
        if !fresh.is_empty() {
            self.reading = None;
        }
        Ok(Saved::Kept)
    }

    /// Finds out what became of a step whose answer was lost. Says whether there was one.
    async fn resolve(&mut self) -> Result<bool, Error> {
        let Some(count) = self.doubt else { return Ok(false) };
        let Some(found) = self.reload().await? else {
            self.is_fenced = true;
            return Ok(true);
        };
        self.doubt = None;
        self.step = found.step;
        if found.progress != self.progress {
            self.progress = found.progress;
            self.place = found.place;
            self.has_letters = true;
            if let Some(reading) = &mut self.reading {
                reading.done = count;
            }
        }
        Ok(true)
    }

    /// Writes down which messages a batch has. `false`: somebody else holds the lane.
    pub(super) async fn note(&mut self, place: Place) -> Result<bool, Error> {
        let (holder, lease, changes) = (Some(self.holder), self.lease, Changes::default());
        self.append(Step { place, progress: self.progress, holder, lease, changes }, 0).await
    }

    async fn adopt_mark(&mut self, position: &Position) -> Result<Saved, Error> {
        self.resolve().await?;
        if self.is_fenced {
            return Ok(Saved::Fenced);
        }
        let Some(mark) = Mark::read(position, self) else { return Ok(Saved::Kept) };
        let progress = self.progress + 1;
        let changes = Changes::landed(mark.letters, mark.keys);
        let step =
            Step { place: mark.place, progress, holder: Some(self.holder), lease: self.lease, changes };
        // Everything that was read is read again, from there.
        self.reading = None;
        let kept = self.append(step, 0).await?;
        Ok(if kept { Saved::Kept } else { Saved::Fenced })
    }
}

impl Cursor for PostgresCursor {
    fn term(&self) -> Term {
        Term { lane: Lane(self.lane as u16), epoch: self.epoch as u64 }
    }

    fn next(&mut self, limit: usize) -> Pending<'_, Vec<Entry>> {
        Box::pin(self.read_next(limit))
    }

    fn save<'a>(&'a mut self, settled: &'a [Settled]) -> Pending<'a, Saved> {
        Box::pin(self.save_first(settled))
    }

    fn position(&self, count: usize) -> Position {
        let count = self.reading.as_ref().map_or(0, |reading| count.min(reading.offered));
        let (place, letters) = match &self.reading {
            Some(reading) if count > 0 => {
                let letters = &reading.entries[..count.min(reading.letters)];
                (reading.place_after(&self.place, count), letters)
            }
            _ => (self.place.clone(), &[][..]),
        };
        // Nothing sent is no step ahead.
        Mark::write(self, self.progress + i64::from(count > 0), &place, letters)
    }

    fn adopt<'a>(&'a mut self, position: &'a Position) -> Pending<'a, Saved> {
        Box::pin(self.adopt_mark(position))
    }

    fn give_back(mut self: Box<Self>) -> Pending<'static, ()> {
        Box::pin(async move {
            self.resolve().await?;
            if self.is_fenced {
                return Ok(());
            }
            let (place, progress, changes) = (self.place.clone(), self.progress, Changes::default());
            let step = Step { place, progress, holder: None, lease: Duration::ZERO, changes };
            self.append(step, 0).await.map(drop)
        })
    }
}
