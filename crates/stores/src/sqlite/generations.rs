//! Where the record of an id can be.
//!
//! The index of ids goes by generation, a stretch of tokens, so that claims change pages of the newest one only, however many
//! records there are. To find an id, one would have to look into every generation. So the keeper reads the ids of each that is
//! closed, to which nothing can be added any more, into a filter in memory; the newest ones are always looked into, and so is
//! generation 0, where the sweeper puts what is left of those of which little is left.
//!
//! A filter that does not know an id which is there would let an operation run twice. So it is asked only by who sees at
//! least what the filter was made from: the same epoch, no earlier token, and a snapshot that was taken later. Everybody else
//! looks everywhere.

use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use rusqlite::Connection;
use semel_core::store::Mark;
use semel_core::{OperationId, Record, Token, mutant};

use super::error::Fault;
use super::{reader, row};

/// Bits of the filter per record. With six of them set for each, one id in 270 is looked for in a generation that does not
/// have it.
const BITS_PER_RECORD: usize = 12;

/// Bits set for a record, each at a place that four bytes of its id name.
const BITS_SET: usize = 6;

/// Generations that share their bytes: one bit each.
const SLOTS: usize = 8;

/// Of a generation with no more than this part of its records left, the rest is put elsewhere.
const SPARSE_PART: i64 = 64;

/// Generations looked at in one round, to see how much is left of them.
const LOOKS: usize = 16;

/// How long a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    bits: u32,
}

impl Span {
    pub(super) fn of_bits(bits: i64) -> Result<Self, Fault> {
        match u32::try_from(bits) {
            Ok(bits @ 1..=32) => Ok(Self { bits }),
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
}

/// Finds records by their id.
pub(super) struct Generations {
    span: Span,
    known: RwLock<Known>,
    /// The newest generation when all closed ones had been learned.
    newest: AtomicI64,
    /// A closed generation of which little is left, or 0.
    sparse: AtomicI64,
    /// Which of the known ones the keeper looked at last.
    looked_at: AtomicI64,
}

/// What is known of closed generations, and from when.
#[derive(Default)]
struct Known {
    from: Mark,
    /// All generations up to this one are in the filter, or were empty, and so stay empty.
    up_to: i64,
    blocks: Vec<Block>,
}

impl Known {
    /// Whether who sees this mark sees at least what the filter was made from.
    fn holds_at(&self, mark: Mark) -> bool {
        (mark.epoch == self.from.epoch || mutant::on("sqlite-filter-of-another-epoch"))
            && (mark.token >= self.from.token || mutant::on("sqlite-filter-of-a-later-state"))
    }

    /// Generations that may have an id.
    fn suspects(&self, id: OperationId) -> impl Iterator<Item = i64> {
        self.blocks.iter().flat_map(move |block| block.suspects(id))
    }

    /// All that are in the filter.
    fn generations(&self) -> impl Iterator<Item = i64> {
        self.blocks.iter().flat_map(|block| block.generations.into_iter().flatten())
    }
}

/// A filter for some generations: a byte for each place, and in it a bit for each generation.
struct Block {
    places: Box<[AtomicU8]>,
    /// Whose bits these are. Bits of nobody may be set and mean nothing.
    generations: [Option<i64>; SLOTS],
}

impl Block {
    fn new(span: Span) -> Self {
        let places = std::iter::repeat_with(AtomicU8::default).take(BITS_PER_RECORD * span.records());
        Self { places: places.collect(), generations: [None; SLOTS] }
    }

    fn places_of(&self, id: &[u8; 32]) -> impl Iterator<Item = &AtomicU8> {
        let (words, _) = id.as_chunks::<4>();
        let number = |word: &[u8; 4]| u64::from(u32::from_le_bytes(*word));
        let count = self.places.len() as u64;
        words.iter().take(BITS_SET).filter_map(move |word| {
            let place = (number(word) * count) >> 32;
            self.places.get(usize::try_from(place).ok()?)
        })
    }

    fn suspects(&self, id: OperationId) -> impl Iterator<Item = i64> {
        let mut bits = u8::MAX;
        for place in self.places_of(id.as_bytes()) {
            bits &= place.load(Ordering::Relaxed);
            if bits == 0 {
                break;
            }
        }
        let slots = self.generations.into_iter().enumerate();
        slots.filter_map(move |(slot, generation)| generation.filter(|_| bits & (1 << slot) != 0))
    }

    fn add(&self, slot: usize, id: &[u8; 32]) {
        for place in self.places_of(id) {
            place.fetch_or(1 << slot, Ordering::Relaxed);
        }
    }

    /// Before a slot is used again.
    fn clear(&self, slot: usize) {
        for place in &self.places {
            place.fetch_and(!(1 << slot), Ordering::Relaxed);
        }
    }
}

impl Generations {
    pub(super) fn new(span: Span) -> Self {
        Self {
            span,
            known: RwLock::default(),
            newest: AtomicI64::new(0),
            sparse: AtomicI64::new(0),
            looked_at: AtomicI64::new(0),
        }
    }

    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// What is known now. Who only reads takes it before the snapshot: what becomes known later may be of a later state.
    /// Who holds the write lock may take it at any time.
    pub(super) fn known(&self) -> Look<'_> {
        Look { span: self.span, known: self.known.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Whether a generation was closed since.
    pub(super) fn can_learn(&self, mark: Mark) -> bool {
        let newest = self.span.of(mark.token).unwrap_or(0);
        newest > self.newest.load(Ordering::Relaxed)
    }

    /// A closed generation of which little is left.
    pub(super) fn sparse(&self) -> Option<i64> {
        Some(self.sparse.load(Ordering::Relaxed)).filter(|generation| *generation > 0)
    }

    /// There is nothing left of it.
    pub(super) fn is_folded(&self, generation: i64) {
        let _ = self.sparse.compare_exchange(generation, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Learns the next closed generation, and says whether there may be another. Called by the keeper alone.
    pub(super) fn learn(&self, conn: &Connection) -> Result<bool, Fault> {
        let snapshot = conn.unchecked_transaction()?;
        let mark = reader::mark(&snapshot)?;
        if !self.known().known.holds_at(mark) {
            *self.change() = Known { from: mark, ..Known::default() };
        }
        let newest = self.span.of(mark.token)?;
        let up_to = self.known().known.up_to;
        let mut next = snapshot.prepare_cached(include_str!("sql/next_generation.sql"))?;
        let Some(generation) = next.query_row([up_to, newest], |row| row.get::<_, Option<i64>>(0))? else {
            let mut known = self.change();
            (known.from, known.up_to) = (mark, newest - 1);
            drop(known);
            self.newest.store(newest, Ordering::Relaxed);
            return Ok(false);
        };
        let (block, slot) = self.free_slot();
        self.read_into(&snapshot, generation, block, slot)?;
        let mut known = self.change();
        (known.from, known.up_to) = (mark, generation);
        if let Some(block) = known.blocks.get_mut(block) {
            block.generations[slot] = Some(generation);
        }
        Ok(true)
    }

    /// Where the next generation goes, all bits unset.
    fn free_slot(&self) -> (usize, usize) {
        let known = self.known();
        let free = known.known.blocks.iter().enumerate().find_map(|(at, block)| {
            let slot = block.generations.iter().position(Option::is_none)?;
            block.clear(slot);
            Some((at, slot))
        });
        let blocks = known.known.blocks.len();
        drop(known);
        free.unwrap_or_else(|| {
            let block = Block::new(self.span);
            self.change().blocks.push(block);
            (blocks, 0)
        })
    }

    /// Sets bits that nobody looks at yet.
    fn read_into(&self, conn: &Connection, generation: i64, block: usize, slot: usize) -> Result<(), Fault> {
        let known = self.known();
        let Some(block) = known.known.blocks.get(block) else { return Ok(()) };
        let mut statement = conn.prepare_cached(include_str!("sql/ids_of_generation.sql"))?;
        let mut rows = statement.query([generation])?;
        while let Some(row) = rows.next()? {
            let id = row.get_ref(0)?.as_blob().ok().and_then(|id| <&[u8; 32]>::try_from(id).ok());
            let id = id.ok_or_else(|| {
                Fault::damaged(format!("generation {generation} holds an id of another length"))
            })?;
            if !mutant::on("sqlite-filter-forgets") {
                block.add(slot, id);
            }
        }
        Ok(())
    }

    /// Whether known generations have become empty, or nearly. Some at a time: each may have to be counted.
    pub(super) fn look_around(&self, conn: &Connection) -> Result<(), Fault> {
        (0..LOOKS).try_for_each(|_| self.look_at_next(conn))
    }

    fn look_at_next(&self, conn: &Connection) -> Result<(), Fault> {
        let before = self.looked_at.load(Ordering::Relaxed);
        let next = {
            let known = self.known();
            let above = known.known.generations().filter(|generation| *generation > before).min();
            above.or_else(|| known.known.generations().min())
        };
        let Some(generation) = next else { return Ok(()) };
        self.looked_at.store(generation, Ordering::Relaxed);
        let few = (1_i64 << self.span.bits) / SPARSE_PART;
        let mut count = conn.prepare_cached(include_str!("sql/count_generation.sql"))?;
        let left: i64 = count.query_row([generation, few + 1], |row| row.get(0))?;
        if left == 0 {
            self.forget(generation);
        } else if left <= few {
            self.sparse.store(generation, Ordering::Relaxed);
        }
        Ok(())
    }

    /// It is empty, and closed, and so stays empty.
    fn forget(&self, generation: i64) {
        let mut known = self.change();
        for slot in known.blocks.iter_mut().flat_map(|block| &mut block.generations) {
            slot.take_if(|held| *held == generation);
        }
        while known.blocks.last().is_some_and(|block| block.generations == [None; SLOTS]) {
            known.blocks.pop();
        }
    }

    fn change(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known, held still.
pub(super) struct Look<'a> {
    span: Span,
    known: RwLockReadGuard<'a, Known>,
}

impl Look<'_> {
    /// The record of an operation, for somebody who sees this mark.
    pub(super) fn find(
        &self,
        conn: &Connection,
        id: OperationId,
        mark: Mark,
    ) -> Result<Option<Record>, Fault> {
        let newest = self.span.of(mark.token)?;
        let previous = match newest - self.known.up_to {
            _ if !self.known.holds_at(mark) => return row::find(conn, id),
            ..=1 => None,
            2 => Some(newest - 1),
            _ => return row::find(conn, id),
        };
        if let Some(record) = row::find_near(conn, id, newest, previous)? {
            return Ok(Some(record));
        }
        for generation in self.known.suspects(id) {
            if let Some(record) = row::find_in(conn, id, generation)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use semel_core::claim::Request;
    use semel_core::fingerprint::{Paths, Print};
    use semel_core::record::{Moment, Recovery, Terms, Verb};
    use semel_core::{Nonce, Operation, Scope, Timestamp};

    use super::*;
    use crate::sqlite::migrate;
    use crate::sqlite::place::Place;

    struct File {
        conn: Connection,
        generations: Generations,
        _directory: tempfile::TempDir,
    }

    impl File {
        /// With generations of 64 tokens.
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let place = Place::at(&directory.path().join("semel.db")).unwrap();
            let mut conn = Connection::open(place.path()).unwrap();
            conn.pragma_update(None, "synchronous", "OFF").unwrap();
            migrate::run(&mut conn, &place, Timestamp::from_micros(0)).unwrap();
            conn.execute("UPDATE semel_meta SET generation_bits = 6", []).unwrap();
            let generations = Generations::new(reader::describe(&conn).unwrap().span);
            Self { conn, generations, _directory: directory }
        }

        /// A claim under the next token.
        fn claim(&self, key: &str) {
            let mark = reader::mark(&self.conn).unwrap();
            let fresh = Token(mark.token.0 + 1);
            let day = Duration::from_secs(24 * 3600);
            let request = Request {
                operation: Arc::new(operation(key)),
                nonce: Nonce::random(),
                print: Print { version: 1, digest: [7; 32], paths: Paths::default() },
                terms: Terms {
                    recovery: Recovery::Hold,
                    lease: day,
                    run_max: day,
                    ttl: day,
                    retry_window: day,
                },
                subject: None,
            };
            let step = request.decide(None, Moment { now: Timestamp::from_micros(1), fresh });
            row::put(&self.conn, self.generations.span(), None, &step.put.unwrap()).unwrap();
            self.mark(mark.epoch, fresh);
        }

        fn mark(&self, epoch: u64, token: Token) {
            let values = [i64::try_from(epoch).unwrap(), i64::try_from(token.0).unwrap()];
            self.conn.execute(include_str!("sql/set_mark.sql"), values).unwrap();
        }

        fn learn(&self) {
            while self.generations.learn(&self.conn).unwrap() {}
        }

        fn has(&self, key: &str) -> bool {
            let mark = reader::mark(&self.conn).unwrap();
            self.generations.known().find(&self.conn, operation(key).id(), mark).unwrap().is_some()
        }

        fn suspects(&self, key: &str) -> Vec<i64> {
            self.generations.known().known.suspects(operation(key).id()).collect()
        }
    }

    fn operation(key: &str) -> Operation {
        Operation::new(Scope::shared("shop", "charge").unwrap(), key.parse().unwrap())
    }

    // G-8
    #[test]
    fn every_id_is_found_through_the_filter_and_few_are_looked_for_in_vain() {
        let file = File::new();
        file.conn.execute_batch("BEGIN").unwrap();
        for n in 1..=1300 {
            file.claim(&format!("op-{n}"));
        }
        file.conn.execute_batch("COMMIT").unwrap();
        file.learn();
        assert_eq!(file.generations.known().known.up_to, 20, "1300 tokens in steps of 64, the last one open");
        for n in 1..=1300 {
            assert!(file.has(&format!("op-{n}")), "op-{n}");
        }
        for n in 1..64 {
            assert!(file.suspects(&format!("op-{n}")).contains(&1), "op-{n} is in a closed generation");
        }
        assert!(!file.has("another"));
        let vain: usize = (0..1000).map(|n| file.suspects(&format!("none-{n}")).len()).sum();
        assert!(vain < 400, "{vain} of 20,000 looks, where 75 are to be expected");
    }

    // G-8, G-13
    #[test]
    fn a_filter_is_not_asked_about_another_epoch_or_an_earlier_state() {
        let file = File::new();
        for n in 1..=200 {
            file.claim(&format!("op-{n}"));
        }
        file.learn();
        // Restored to an earlier state, and accepted by a process that had not seen the last tokens.
        file.conn.execute("DELETE FROM semel_operation WHERE token > 70", []).unwrap();
        file.mark(1, Token(70));
        file.claim("after-the-restore");
        file.mark(1, Token(130));
        assert!(file.has("after-the-restore"), "at an earlier token");
        file.mark(2, Token(100));
        file.claim("in-the-new-epoch");
        file.mark(2, Token(300));
        assert!(file.has("in-the-new-epoch"), "above all tokens seen before");
        file.learn();
        assert!(file.has("in-the-new-epoch") && file.has("after-the-restore") && file.has("op-1"));
    }

    // G-8
    #[test]
    fn what_was_there_before_there_were_generations_is_found() {
        let file = File::new();
        file.claim("from-before");
        file.conn.execute("UPDATE semel_operation SET generation = 0", []).unwrap();
        assert!(file.has("from-before"), "before anything is learned");
        file.mark(1, Token(500));
        file.learn();
        assert!(file.has("from-before"), "and after it");
    }

    #[test]
    fn a_generation_that_is_empty_is_forgotten_and_its_place_used_again() {
        let file = File::new();
        for n in 1..=600 {
            file.claim(&format!("op-{n}"));
        }
        file.learn();
        file.conn.execute("DELETE FROM semel_operation WHERE token < 550", []).unwrap();
        file.generations.look_around(&file.conn).unwrap();
        let known = |file: &File| file.generations.known().known.generations().collect::<Vec<_>>();
        assert_eq!(known(&file), [9]);
        for n in 601..=800 {
            file.claim(&format!("op-{n}"));
        }
        file.learn();
        assert_eq!(file.generations.known().known.blocks.len(), 2);
        assert!((550..=800).all(|n| file.has(&format!("op-{n}"))));
    }
}
