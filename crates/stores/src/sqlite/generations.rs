//! Where the record of an id can be.
//!
//! The index of ids goes by generation, a stretch of tokens, so that claims change pages of the newest one only, however many
//! records there are. To find an id, one would have to look into every generation. So the keeper reads the ids of each that is
//! closed, to which nothing can be added any more, into a filter in memory; the newest ones are always looked into, and so is
//! generation 0, where the sweeper puts what is left of those of which little is left.
//!
//! A filter that does not know an id which is there would let an operation run twice. So it is asked only by who sees at
//! least what the filter was made from: the same epoch, and no earlier token. Whatever adds to a generation takes a token, and
//! so does who moves records out of one. Everybody else looks everywhere.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rusqlite::{Connection, params};
use semel_core::store::Mark;
use semel_core::{OperationId, Record, Token, mutant};

use super::error::Fault;
use super::reader::Description;
use super::{reader, row};

/// Bits of the filter per record. With six of them set for each, about one id in 250 is looked for in a generation that does
/// not have it.
const BITS_PER_RECORD: usize = 16;

/// Bits set for a record.
const BITS_SET: usize = 6;

/// Places that an id's bits are among: what the processor fetches at once.
const PLACES: usize = 64;

/// Generations that share their bytes: one bit each.
const SLOTS: usize = 8;

/// Of a generation with no more than this part of its records left, the rest is put elsewhere.
const SPARSE_PART: i64 = 8;

/// Ids read in one snapshot. Few: while one is open the log cannot start over.
const IDS_AT_ONCE: u32 = 16_384;

/// How long a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    bits: u32,
}

impl Span {
    pub(super) fn of_bits(bits: i64) -> Result<Self, Fault> {
        match u32::try_from(bits) {
            Ok(bits @ 1..=22) => Ok(Self { bits }),
            _ => Err(Fault::damaged(format!("a generation has 2 to the power of {bits} tokens, it says"))),
        }
    }

    /// The generation a token is in.
    pub(super) fn of(self, token: Token) -> Result<i64, Fault> {
        Ok((row::signed(token)? >> self.bits) + 1)
    }

    fn records(self) -> usize {
        1 << self.bits
    }

    /// As many records as are put elsewhere.
    fn few(self) -> i64 {
        ((1 << self.bits) / SPARSE_PART).max(1)
    }
}

/// Finds records by their id.
pub(super) struct Generations {
    store_id: [u8; 16],
    span: Span,
    known: RwLock<Known>,
    /// The newest generation when there was nothing more to learn.
    newest: AtomicI64,
    /// Closed generations of which little is left.
    sparse: Mutex<BTreeSet<i64>>,
}

/// What is known of closed generations, and from when.
#[derive(Default)]
struct Known {
    from: Mark,
    /// All generations up to this one are in the filter, or were empty, and so stay empty. `None`: nothing is known.
    up_to: Option<i64>,
    blocks: Vec<Block>,
}

impl Known {
    fn nothing_at(from: Mark) -> Self {
        Self { from, up_to: Some(0), blocks: Vec::new() }
    }

    /// Whether who sees this mark sees at least what the filter was made from.
    fn holds_at(&self, mark: Mark) -> bool {
        (mark.epoch == self.from.epoch || mutant::on("sqlite-filter-of-another-epoch"))
            && (mark.token >= self.from.token || mutant::on("sqlite-filter-of-a-later-state"))
    }

    /// How many of the newest generations are not in the filter, if it may be asked by who sees this mark.
    fn unlearned(&self, newest: i64, mark: Mark) -> Option<i64> {
        self.up_to.filter(|_| self.holds_at(mark)).map(|up_to| newest - up_to)
    }

    /// Generations that may have an id.
    fn suspects(&self, id: OperationId) -> impl Iterator<Item = i64> {
        self.blocks.iter().flat_map(move |block| block.suspects(id))
    }

    /// All that are in the filter.
    fn generations(&self) -> impl Iterator<Item = i64> {
        self.blocks.iter().flat_map(|block| block.generations.into_iter().flatten())
    }

    /// Where the next generation goes, all bits unset.
    fn free_slot(&self) -> Option<Slot> {
        self.blocks.iter().enumerate().find_map(|(block, held)| {
            let bit = held.generations.iter().position(Option::is_none)?;
            held.clear(bit);
            Some(Slot { block, bit })
        })
    }

    fn hold(&mut self, slot: Slot, generation: i64) {
        if let Some(block) = self.blocks.get_mut(slot.block) {
            block.generations[slot.bit] = Some(generation);
        }
    }

    fn forget(&mut self, generation: i64) {
        for slot in self.blocks.iter_mut().flat_map(|block| &mut block.generations) {
            slot.take_if(|held| *held == generation);
        }
    }
}

/// Which bits of the filter are a generation's.
#[derive(Clone, Copy)]
struct Slot {
    block: usize,
    bit: usize,
}

/// A filter for some generations: a byte for each place, and in it a bit for each generation.
struct Block {
    lines: Box<[Line]>,
    /// Whose bits these are. Bits of nobody may be set and mean nothing.
    generations: [Option<i64>; SLOTS],
}

/// All bits of an id are in one.
#[repr(align(64))]
struct Line([AtomicU8; PLACES]);

impl Block {
    fn new(span: Span) -> Self {
        let line = || Line([const { AtomicU8::new(0) }; PLACES]);
        let count = (BITS_PER_RECORD * span.records()).div_ceil(PLACES);
        Self { lines: std::iter::repeat_with(line).take(count).collect(), generations: [None; SLOTS] }
    }

    /// The places of an id: four bytes of it name the line, others the places there.
    fn places_of(&self, id: &[u8; 32]) -> impl Iterator<Item = &AtomicU8> {
        let [a, b, c, d, places @ ..] = id;
        let line = (u64::from(u32::from_le_bytes([*a, *b, *c, *d])) * self.lines.len() as u64) >> 32;
        let line = usize::try_from(line).ok().and_then(|line| self.lines.get(line));
        let places = places.iter().take(BITS_SET);
        places.filter_map(move |place| line?.0.get(usize::from(*place) % PLACES))
    }

    fn suspects(&self, id: OperationId) -> impl Iterator<Item = i64> {
        let bits =
            self.places_of(id.as_bytes()).fold(u8::MAX, |bits, place| bits & place.load(Ordering::Relaxed));
        let slots = self.generations.into_iter().enumerate().filter(move |_| bits != 0);
        slots.filter_map(move |(slot, generation)| generation.filter(|_| bits & (1 << slot) != 0))
    }

    fn add(&self, bit: usize, id: &[u8; 32]) {
        for place in self.places_of(id) {
            place.fetch_or(1 << bit, Ordering::Relaxed);
        }
    }

    /// Before a slot is used again.
    fn clear(&self, bit: usize) {
        for place in self.lines.iter().flat_map(|line| &line.0) {
            place.fetch_and(!(1 << bit), Ordering::Relaxed);
        }
    }
}

impl Generations {
    pub(super) fn new(store: &Description) -> Self {
        let Description { store_id, span, .. } = *store;
        Self { store_id, span, known: RwLock::default(), newest: AtomicI64::new(0), sparse: Mutex::default() }
    }

    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// The record of an operation, for somebody who sees this mark.
    pub(super) fn find(
        &self,
        conn: &Connection,
        id: OperationId,
        mark: Mark,
    ) -> Result<Option<Record>, Fault> {
        let newest = self.span.of(mark.token)?;
        let looked = match self.known().unlearned(newest, mark) {
            Some(..=1) => 1,
            Some(2) => 2,
            _ => return row::find(conn, id),
        };
        let second = looked == 2 && !mutant::on("sqlite-second-newest-not-looked-into");
        let previous = second.then_some(newest - 1);
        if let Some(record) = row::find_near(conn, id, newest, previous)? {
            return Ok(Some(record));
        }
        // Asked only now, for most are found above, and held no longer than this.
        let suspects: Vec<i64> = {
            let known = self.known();
            match known.unlearned(newest, mark) {
                Some(unlearned) if unlearned <= looked => known.suspects(id).collect(),
                _ => return row::find(conn, id),
            }
        };
        for generation in suspects {
            if let Some(record) = row::find_in(conn, id, generation)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Whether a generation was closed since.
    pub(super) fn can_learn(&self, mark: Mark) -> bool {
        let newest = self.span.of(mark.token).unwrap_or(0);
        newest > self.newest.load(Ordering::Relaxed)
    }

    /// A closed generation of which little is left.
    pub(super) fn sparse(&self) -> Option<i64> {
        self.sparsely().first().copied()
    }

    /// There is nothing more to be moved out of it.
    pub(super) fn is_folded(&self, generation: i64) {
        self.sparsely().remove(&generation);
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn sparsely(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.sparse.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the filter. There is one, in the keeper.
pub(super) struct Learner<'a> {
    generations: &'a Generations,
    /// A generation that has been read in part. One that is closed only shrinks, so it may be read in many snapshots.
    reading: Option<Reading>,
    /// Which of the known ones was looked at last.
    looked_at: i64,
}

struct Reading {
    generation: i64,
    slot: Slot,
    /// The last id read.
    after: Vec<u8>,
}

impl<'a> Learner<'a> {
    pub(super) fn new(generations: &'a Generations) -> Self {
        Self { generations, reading: None, looked_at: 0 }
    }

    /// Reads some more of the closed generations, and says whether there is more to be read. After an error nothing is lost:
    /// what is not known is looked for everywhere.
    pub(super) fn learn(&mut self, conn: &Connection) -> Result<bool, Fault> {
        let snapshot = conn.unchecked_transaction()?;
        let mark = reader::mark(&snapshot, self.generations.store_id)?;
        let newest = self.generations.span.of(mark.token)?;
        // Also after an error: it is tried again when somebody looks around, and not at every commit.
        self.generations.newest.store(newest, Ordering::Relaxed);
        let highest = snapshot
            .prepare_cached(include_str!("sql/highest_generation.sql"))?
            .query_row([], |row| row.get::<_, Option<i64>>(0))?;
        if highest > Some(newest) {
            (*self.generations.change(), self.reading) = (Known::default(), None);
            return Err(Fault::damaged("there are records with higher tokens than the store has given"));
        }
        if self.generations.known().up_to.is_none() || !self.generations.known().holds_at(mark) {
            (*self.generations.change(), self.reading) = (Known::nothing_at(mark), None);
        }
        let Some(mut reading) =
            self.reading.take().map_or_else(|| self.begin(&snapshot, newest), |r| Ok(Some(r)))?
        else {
            let mut known = self.generations.change();
            if known.up_to != Some(newest - 1) {
                (known.from, known.up_to) = (mark, Some(newest - 1));
            }
            return Ok(false);
        };
        let is_read = self.read(&snapshot, &mut reading)?;
        let mut known = self.generations.change();
        known.from = mark;
        if is_read {
            known.hold(reading.slot, reading.generation);
            known.up_to = Some(reading.generation);
        } else {
            self.reading = Some(reading);
        }
        Ok(true)
    }

    /// The next generation to be read, and a place for it.
    fn begin(&self, conn: &Connection, newest: i64) -> Result<Option<Reading>, Fault> {
        let up_to = self.generations.known().up_to.unwrap_or(0);
        let mut next = conn.prepare_cached(include_str!("sql/next_generation.sql"))?;
        let found = next.query_row([up_to, newest], |row| row.get::<_, Option<i64>>(0))?;
        let Some(generation) = found else { return Ok(None) };
        let free = self.generations.known().free_slot();
        let slot = free.unwrap_or_else(|| {
            let block = Block::new(self.generations.span);
            let mut known = self.generations.change();
            known.blocks.push(block);
            Slot { block: known.blocks.len() - 1, bit: 0 }
        });
        Ok(Some(Reading { generation, slot, after: Vec::new() }))
    }

    /// Sets bits that nobody looks at yet. Says whether these were the last.
    fn read(&self, conn: &Connection, reading: &mut Reading) -> Result<bool, Fault> {
        let known = self.generations.known();
        let Some(block) = known.blocks.get(reading.slot.block) else { return Ok(true) };
        let mut statement = conn.prepare_cached(include_str!("sql/ids_of_generation.sql"))?;
        let mut rows = statement.query(params![reading.generation, reading.after, IDS_AT_ONCE])?;
        let (mut count, mut last) = (0_u32, Vec::new());
        while let Some(row) = rows.next()? {
            let id = row.get_ref(0)?.as_blob().unwrap_or_default();
            // Nobody can ask for one of another length.
            if let Ok(id) = <&[u8; 32]>::try_from(id)
                && !mutant::on("sqlite-filter-forgets")
            {
                block.add(reading.slot.bit, id);
            }
            count += 1;
            if count == IDS_AT_ONCE {
                last = id.to_vec();
            }
        }
        reading.after = last;
        Ok(count < IDS_AT_ONCE)
    }

    /// Whether a known generation has become empty, or nearly. One at a time: it may have to be counted.
    pub(super) fn look_around(&mut self, conn: &Connection) -> Result<(), Fault> {
        let next = {
            let known = self.generations.known();
            let above = known.generations().filter(|generation| *generation > self.looked_at).min();
            above.or_else(|| known.generations().min())
        };
        let Some(generation) = next else { return Ok(()) };
        self.looked_at = generation;
        let snapshot = conn.unchecked_transaction()?;
        let mark = reader::mark(&snapshot, self.generations.store_id)?;
        if !self.generations.known().holds_at(mark) {
            return Ok(());
        }
        let few = self.generations.span.few();
        let left = row::count_generation(&snapshot, generation, few + 1)?;
        if left == 0 || (left <= few && mutant::on("sqlite-sparse-forgotten")) {
            // It is closed, and so stays empty.
            let mut known = self.generations.change();
            known.from = mark;
            known.forget(generation);
            let reads = self.reading.as_ref().map(|reading| reading.slot.block);
            while known.blocks.last().is_some_and(|block| block.generations == [None; SLOTS])
                && reads != Some(known.blocks.len() - 1)
            {
                known.blocks.pop();
            }
        } else if left <= few {
            self.generations.sparsely().insert(generation);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
