//! A held lane.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use semel_core::Timestamp;
use semel_core::error::{Error, Kind};
use semel_core::message::MessageId;
use semel_core::mutant;
use semel_core::outbox::{BATCH_MAX, Cursor, Entry, Lane, Position, Saved, Settled, Term};
use semel_core::store::Pending;

use super::Desk;
use super::hand::{Lasting, Version};
use super::position::{Covers, Landed};
use super::read::{self, Item, Source};
use super::settle::{self, Held, Save};

/// Reads and settles one lane.
///
/// What was read and not settled is remembered here, so that it is given again without being read again.
pub(super) struct SqliteCursor {
    desk: Arc<Desk>,
    term: Term,
    lease: Duration,
    /// How many saves the lane has seen, by the last answer.
    saves: u64,
    /// Of these so many are on disk, whatever becomes of the machine.
    lasting_saves: u64,
    /// Everything of the lane up to here is settled or in the batch.
    scanned: u64,
    /// Everything of the lane up to here is settled.
    floor: u64,
    /// The last message settled, since what a crash of the machine cannot take back.
    settled_last: Option<(u64, MessageId)>,
    batch: Vec<Item>,
    /// How much of the batch the last `next` gave.
    given: usize,
    /// Nothing was there at this version of the file, and nothing can come by itself before that time.
    idle: Option<(Version, Option<Timestamp>)>,
    /// A save of so many whose answer did not come, and how lasting it is.
    doubt: Option<(usize, Lasting)>,
}

impl SqliteCursor {
    pub(super) fn new(desk: Arc<Desk>, term: Term, lease: Duration, saves: u64, floor: u64) -> Self {
        let (batch, given, idle, doubt) = (Vec::new(), 0, None, None);
        let (lasting_saves, scanned) = (saves, floor);
        let settled_last = None;
        Self {
            desk,
            term,
            lease,
            saves,
            lasting_saves,
            scanned,
            floor,
            settled_last,
            batch,
            given,
            idle,
            doubt,
        }
    }

    fn now(&self) -> Timestamp {
        self.desk.shared.options.clock.now()
    }

    fn until(&self) -> Timestamp {
        self.now().after(self.lease)
    }

    /// The first so many are settled, and what follows of a key that was set aside is now behind it.
    fn advance(&mut self, settled: &[Settled]) {
        let done: Vec<Item> = self.batch.drain(..settled.len().min(self.batch.len())).collect();
        self.given -= settled.len().min(self.given);
        if let Some(Item { entry, .. }) = done.iter().rev().find(|item| item.source == Source::Outbox) {
            (self.floor, self.settled_last) = (entry.sequence, Some((entry.sequence, entry.message.id)));
        }
        let aside = done.iter().zip(settled).filter(|(_, settled)| **settled != Settled::Sent);
        let aside: BTreeSet<&str> = read::keys(aside.map(|(item, _)| &*item.entry.message));
        mark_behind(&mut self.batch, &aside);
    }

    /// Finds out what became of a save whose answer did not come; how many it settled. Asked of the thread
    /// that writes, which did the save before or will not do it any more.
    async fn resolve(&mut self) -> Result<usize, Error> {
        let Some((count, lasting)) = self.doubt else { return Ok(0) };
        let lane = self.term.lane;
        let found = self.desk.write(move |hand| hand.look(|conn| settle::lane(conn, lane))).await?;
        self.doubt = None;
        // Fewer: the database was set back, which the next save refuses to go on with.
        if found.epoch != self.term.epoch || found.saves <= self.saves {
            return Ok(0);
        }
        if lasting == Lasting::Disk {
            self.lasting_saves = found.saves;
        }
        if count == 0 && !mutant::on("renewal-in-doubt-forgets") {
            // It only renewed the lease: what was read is still to be settled.
            self.saves = found.saves;
            return Ok(0);
        }
        // What was read is read again from where the lane is now.
        self.goes_on_at(found.floor, found.saves);
        Ok(count)
    }

    fn goes_on_at(&mut self, floor: u64, saves: u64) {
        (self.scanned, self.floor, self.saves, self.given, self.idle) = (floor, floor, saves, 0, None);
        self.settled_last = None;
        self.batch.clear();
    }

    async fn fill(&mut self, limit: usize) -> Result<(), Error> {
        let (lane, scanned, now, idle) = (self.term.lane, self.scanned, self.now(), self.idle);
        let (room, letters) = (limit - self.batch.len(), self.batch.is_empty());
        let idle = idle.filter(|(_, ready)| letters && ready.is_none_or(|at| now < at));
        let filled = self
            .desk
            .read(move |hand| {
                // Before the snapshot: what commits in between is then seen twice rather than not at all.
                let version = hand.version()?;
                if idle.is_some_and(|(seen, _)| seen == version) {
                    return Ok(None);
                }
                let filled = hand.look(|conn| read::fill(conn, lane, scanned, room, letters, now))?;
                Ok(Some((version, filled)))
            })
            .await?;
        let Some((version, filled)) = filled else { return Ok(()) };
        self.scanned = filled.scanned;
        // What was read earlier and is behind stays so until it is saved, whatever an operator did meanwhile;
        // then nothing read now may overtake it.
        let earlier = self.batch.iter().filter(|item| item.entry.behind);
        let behind: Vec<String> = earlier.filter_map(|item| item.entry.message.key.clone()).collect();
        let mut items = filled.items;
        mark_behind(&mut items, &behind.iter().map(String::as_str).collect());
        self.batch.extend(items);
        self.idle = self.batch.is_empty().then_some((version, filled.ready_next));
        if mutant::on("sqlite-outbox-settles-what-it-reads") {
            let settled = self.batch.iter().map(|item| (item.clone(), Settled::Sent)).collect();
            self.write_down(settled).await?;
        }
        Ok(())
    }

    async fn write_down(&mut self, settled: Vec<(Item, Settled)>) -> Result<Saved, Error> {
        let Term { lane, epoch } = self.term;
        let save = Save { lane, epoch, saves: self.saves, until: self.until(), now: self.now(), settled };
        let lasting = lasting(&save.settled);
        let saved = self.desk.write(move |hand| {
            let saved = hand.go_on(lasting, |conn| settle::save(conn, &save))?;
            hand.remember();
            match hand.shared.lose_answer.is_due() {
                true => Err(Error::new(Kind::Unreachable, "the answer was lost on purpose").maybe_applied()),
                false => Ok(saved),
            }
        });
        Ok(match saved.await? {
            Held::Fenced => Saved::Fenced,
            Held::Yes(saves) => {
                self.saves = saves;
                if lasting == Lasting::Disk || mutant::on("sqlite-outbox-volatile-saves-told") {
                    self.lasting_saves = saves;
                }
                Saved::Kept
            }
        })
    }
}

/// A sink is told of saves that set something aside, and keeps no letter's place but of its last batch: a power failure
/// must not take back either. Of what only went out it says by itself how far that is.
fn lasting(settled: &[(Item, Settled)]) -> Lasting {
    let is_told =
        |(item, settled): &(Item, Settled)| *settled != Settled::Sent || item.source == Source::Aside;
    match settled.iter().any(is_told) && !mutant::on("sqlite-outbox-letters-come-back") {
        true => Lasting::Disk,
        false => Lasting::Process,
    }
}

fn mark_behind(items: &mut [Item], keys: &BTreeSet<&str>) {
    for Item { entry, .. } in items {
        entry.behind |= entry.message.key.as_deref().is_some_and(|key| keys.contains(key));
    }
}

impl Cursor for SqliteCursor {
    fn term(&self) -> Term {
        self.term
    }

    /// # Cancellation
    /// Safe: nothing has changed.
    fn next(&mut self, limit: usize) -> Pending<'_, Vec<Entry>> {
        Box::pin(async move {
            self.resolve().await?;
            let limit = limit.min(BATCH_MAX);
            if self.batch.len() < limit {
                self.fill(limit).await?;
            }
            self.given = self.batch.len().min(limit);
            Ok(self.batch[..self.given].iter().map(|item| item.entry.clone()).collect())
        })
    }

    /// # Cancellation
    /// The save has happened or not; the next call finds out.
    fn save<'a>(&'a mut self, settled: &'a [Settled]) -> Pending<'a, Saved> {
        Box::pin(async move {
            let done = self.resolve().await?;
            let settled = &settled[done.min(settled.len())..];
            if settled.len() > self.given {
                let text = format!("{} entries are settled, and {} were read", settled.len(), self.given);
                return Err(Error::new(Kind::Misconfigured, text));
            }
            let pairs: Vec<(Item, Settled)> =
                self.batch.iter().cloned().zip(settled.iter().cloned()).collect();
            self.doubt = Some((settled.len(), lasting(&pairs)));
            match self.write_down(pairs).await {
                Ok(Saved::Kept) => {
                    self.doubt = None;
                    self.advance(settled);
                    Ok(Saved::Kept)
                }
                Ok(Saved::Fenced) => {
                    self.doubt = None;
                    Ok(Saved::Fenced)
                }
                Err(error) => {
                    if !error.outcome_is_unknown() {
                        self.doubt = None;
                    }
                    Err(error)
                }
            }
        })
    }

    fn position(&self, count: usize) -> Position {
        let mut landed = Landed { epoch: self.term.epoch, saves: self.lasting_saves, ..Landed::default() };
        let mut fresh = Vec::new();
        for Item { entry, source } in &self.batch[..count.min(self.given)] {
            let (sequence, id) = (entry.sequence, entry.message.id);
            match source {
                Source::Outbox => fresh.push((sequence, id)),
                Source::Aside => landed.letters.push((sequence, id, entry.tries)),
            }
        }
        // Letters alone must not make the sink forget how far the lane came.
        let known = self.settled_last.filter(|_| !mutant::on("sqlite-outbox-letters-hide-the-rest"));
        landed.last = fresh.last().copied().or(known);
        landed.covers = Some(Covers::of(self.floor, fresh.iter().map(|(sequence, id)| (sequence, id))));
        landed.encode()
    }

    /// # Cancellation
    /// Adopted or not; saying it again is harmless.
    fn adopt<'a>(&'a mut self, position: &'a Position) -> Pending<'a, Saved> {
        Box::pin(async move {
            self.resolve().await?;
            let landed = Landed::decode(position)?;
            let Term { lane, epoch } = self.term;
            let (until, now) = (self.until(), self.now());
            let adopted = self.desk.write(move |hand| {
                // The sink's next position says nothing of this one any more.
                hand.go_on(Lasting::Disk, |conn| settle::adopt(conn, lane, epoch, &landed, until, now))
            });
            match adopted.await? {
                Held::Fenced => Ok(Saved::Fenced),
                Held::Yes((floor, saves)) => {
                    // What was read is read again from where the lane is now.
                    self.goes_on_at(floor, saves);
                    Ok(Saved::Kept)
                }
            }
        })
    }

    /// # Cancellation
    /// Given back, or lapsing.
    fn give_back(self: Box<Self>) -> Pending<'static, ()> {
        let Term { lane, epoch } = self.term;
        Box::pin(async move {
            let desk = self.desk.clone();
            desk.write(move |hand| hand.change(Lasting::Disk, |conn| settle::give_back(conn, lane, epoch)))
                .await
        })
    }
}

impl std::fmt::Debug for SqliteCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lane(lane) = self.term.lane;
        f.debug_struct("SqliteCursor")
            .field("lane", &lane)
            .field("epoch", &self.term.epoch)
            .finish_non_exhaustive()
    }
}
