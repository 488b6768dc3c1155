//! A held lane.

use std::collections::BTreeSet;
use std::sync::Arc;

use semel_core::error::{Error, Kind};
use semel_core::outbox::{BATCH_MAX, Cursor, Entry, Position, Saved, Settled, Term};
use semel_core::store::{Mark, Pending};
use semel_core::{Token, mutant};
use tokio::time::Instant;

use super::super::pool::retried;
use super::floor::Floor;
use super::position::{Landed, Named};
use super::read::{self, Item, Source, Wish};
use super::settle::{Held, Writer};
use super::{Desk, sql};

/// Reads and settles one lane.
///
/// What was read and not settled is remembered here, so that it is given again without being read again.
pub(super) struct MysqlCursor {
    desk: Arc<Desk>,
    writer: Writer,
    floor: Floor,
    batch: Vec<Item>,
    /// How much of the batch the last `next` gave.
    given: usize,
    /// The highest number that was read since the batch was empty.
    last: u64,
    /// A save of so many whose answer did not come.
    doubt: Option<usize>,
}

impl MysqlCursor {
    pub(super) fn new(desk: Arc<Desk>, writer: Writer) -> Self {
        let floor = Floor::new(Instant::now());
        Self { desk, writer, floor, batch: Vec::new(), given: 0, last: 0, doubt: None }
    }

    /// The first so many are settled, and what follows of a key that was set aside is now behind it.
    fn advance(&mut self, settled: &[Settled]) {
        let done: Vec<Item> = self.batch.drain(..settled.len().min(self.batch.len())).collect();
        self.given -= settled.len().min(self.given);
        let aside = done.iter().zip(settled).filter(|(_, settled)| **settled != Settled::Sent);
        let aside: BTreeSet<&str> = aside.filter_map(|(item, _)| item.entry.message.key.as_deref()).collect();
        mark_behind(&mut self.batch, &aside);
        if self.batch.is_empty() {
            self.floor.settled(std::mem::take(&mut self.last), Instant::now());
        }
        let waited = done.iter().filter(|item| item.source == Source::Outbox);
        let settled = waited.map(|item| item.entry.sequence).max().unwrap_or(0);
        self.desk.saw(Mark { epoch: self.writer.term.epoch, token: Token(settled) });
    }

    /// What was read is read again.
    fn forget(&mut self, saves: u64) {
        (self.writer.saves, self.given, self.last, self.doubt) = (saves, 0, 0, None);
        self.batch.clear();
    }

    /// Finds out what became of a save whose answer did not come; how many it settled.
    async fn resolve(&mut self) -> Result<usize, Error> {
        let Some(count) = self.doubt else { return Ok(0) };
        let (desk, writer) = (self.desk.clone(), self.writer);
        let saves = retried!(desk.cursors.tries_on_any(), live => writer.resolve(live))?;
        self.doubt = None;
        // Fewer: the database was set back, which the next save refuses to go on with.
        let Some(saves) =
            saves.filter(|saves| *saves > writer.saves || mutant::on("my-outbox-doubt-forgets-saves"))
        else {
            return Ok(0);
        };
        if count == 0 && !mutant::on("renewal-in-doubt-forgets") {
            // It only renewed the lease: what was read is still to be settled.
            self.writer.saves = saves;
            return Ok(0);
        }
        self.forget(saves);
        Ok(count)
    }

    async fn fill(&mut self, limit: usize) -> Result<(), Error> {
        let desk = self.desk.clone();
        let is_first = self.batch.is_empty();
        if is_first && self.floor.wants_writers() {
            // Before the look: what it does not find then is not there any more.
            if let Some(writers) = desk.writers().await {
                self.floor.heard(writers);
            }
        }
        let from = self.floor.begin(Instant::now());
        let waits = self.batch.iter().filter(|item| item.source == Source::Outbox);
        let known: BTreeSet<u64> = waits.map(|item| item.entry.sequence).collect();
        let room = limit - self.batch.len();
        let lane = self.writer.term.lane;
        let wish = Wish { lane, from, room, letters: is_first, known: &known };
        let read = retried!(desk.cursors.tries_on_any(), live => read::read(&desk, live, &wish))?;
        if is_first {
            self.floor.looked(from, read.first, Instant::now());
        }
        self.last = self.last.max(read.last.unwrap_or(0));
        // What was read earlier and is behind stays so until it is saved, whatever an operator did meanwhile;
        // then nothing read now may overtake it.
        let earlier = self.batch.iter().filter(|item| item.entry.behind);
        let behind: Vec<String> = earlier.filter_map(|item| item.entry.message.key.clone()).collect();
        let mut items = read.items;
        mark_behind(&mut items, &behind.iter().map(String::as_str).collect());
        self.batch.extend(items);
        if mutant::on("my-outbox-settles-what-it-reads") {
            let settled: Vec<_> = self.batch.iter().map(|item| (item.clone(), Settled::Sent)).collect();
            self.write_down(&settled).await?;
        }
        Ok(())
    }

    async fn write_down(&mut self, settled: &[(Item, Settled)]) -> Result<Saved, Error> {
        let (desk, writer) = (self.desk.clone(), self.writer);
        match retried!(desk.cursors.tries_on_any(), live => writer.save(&desk, live, settled))? {
            Held::Fenced => Ok(Saved::Fenced),
            Held::Yes(saves) => {
                self.writer.saves = saves;
                Ok(Saved::Kept)
            }
        }
    }
}

fn mark_behind(items: &mut [Item], keys: &BTreeSet<&str>) {
    for Item { entry, .. } in items {
        entry.behind |= entry.message.key.as_deref().is_some_and(|key| keys.contains(key));
    }
}

impl Cursor for MysqlCursor {
    fn term(&self) -> Term {
        self.writer.term
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
            self.doubt = Some(settled.len());
            let saved = self.write_down(&pairs).await;
            if !saved.as_ref().is_err_and(Error::outcome_is_unknown) {
                self.doubt = None;
            }
            if saved.as_ref().is_ok_and(|saved| *saved == Saved::Kept) {
                self.advance(settled);
                self.desk.remember(false).await;
            }
            saved
        })
    }

    fn position(&self, count: usize) -> Position {
        let given = self.batch[..count.min(self.given)].iter();
        let named = given.map(|Item { entry, source }| Named {
            sequence: entry.sequence,
            id: entry.message.id,
            tries: (*source == Source::Aside).then_some(entry.tries),
        });
        let Writer { term, saves, .. } = self.writer;
        Landed { epoch: term.epoch, saves, messages: named.collect() }.encode()
    }

    /// # Cancellation
    /// Adopted or not; saying it again is harmless.
    fn adopt<'a>(&'a mut self, position: &'a Position) -> Pending<'a, Saved> {
        Box::pin(async move {
            self.resolve().await?;
            let landed = Landed::decode(position)?;
            let (desk, writer) = (self.desk.clone(), self.writer);
            match retried!(desk.cursors.tries_on_any(), live => writer.adopt(&desk, live, &landed))? {
                Held::Fenced => Ok(Saved::Fenced),
                Held::Yes(saves) => {
                    self.forget(saves);
                    Ok(Saved::Kept)
                }
            }
        })
    }

    /// # Cancellation
    /// Given back, or lapsing.
    fn give_back(self: Box<Self>) -> Pending<'static, ()> {
        Box::pin(async move {
            let (desk, Writer { term, holder, .. }) = (self.desk.clone(), self.writer);
            let values = vec![term.lane.0.into(), term.epoch.into(), holder.as_bytes()[..].into()];
            retried!(desk.cursors.tries_on_any(), live => live.ask(sql::GIVE_BACK, values.clone())).map(drop)
        })
    }
}

impl std::fmt::Debug for MysqlCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MysqlCursor").field("term", &self.writer.term).finish_non_exhaustive()
    }
}
