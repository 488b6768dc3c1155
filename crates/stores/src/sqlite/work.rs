//! What happens inside one transaction of the writer: fetch, decide, write.

use std::time::Duration;

use rusqlite::{Connection, params};
use semel_core::clock::Timestamp;
use semel_core::record::{self, Moment, Record, Swept, Verb};
use semel_core::store::{Mark, SubjectPurge, SweepReport};
use semel_core::verbs::Purge;
use semel_core::{Nonce, Token, mutant};

use super::error::Fault;
use super::shared::Shared;
use super::{migrate, reader, row};

/// A record that cannot be read stays; the sweeper passes it by for this long.
const DAMAGED_LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// Longest name of an operator kept with an acknowledgement, in bytes.
const OPERATOR_BYTES_MAX: usize = 512;

/// An open transaction that holds the write lock.
pub(super) struct Work<'a> {
    conn: &'a Connection,
    shared: &'a Shared,
    now: Timestamp,
    /// As the transaction found it.
    found: Mark,
    /// As it will leave it.
    mark: Mark,
    writes: u64,
}

impl<'a> Work<'a> {
    /// Reads clock and mark after the lock was got: no later transaction is earlier, and no other
    /// process gives the same token.
    pub(super) fn begin(conn: &'a Connection, shared: &'a Shared) -> Result<Self, Fault> {
        let found = reader::mark(conn, shared.store_id)?;
        Ok(Self { conn, shared, now: shared.options.clock.now(), found, mark: found, writes: 0 })
    }

    /// How far the store had come when the transaction began.
    pub(super) fn found(&self) -> Mark {
        self.found
    }

    /// How far it has come when the transaction commits.
    pub(super) fn mark(&self) -> Mark {
        self.mark
    }

    /// How many changes have been made. A job that failed without adding to it harmed nobody.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// Takes a token for nothing, so that the transaction writes something.
    pub(super) fn spend_token(&mut self) {
        self.mark.token = Token(self.mark.token.0 + 1);
    }

    /// Writes the mark if it has moved. Once per transaction, however many tokens it gave.
    pub(super) fn save_mark(&self) -> Result<(), Fault> {
        if self.mark == self.found || mutant::on("sqlite-token-restarts") {
            return Ok(());
        }
        let epoch = row::signed(Token(self.mark.epoch))?;
        let values = [epoch, row::signed(self.mark.token)?];
        self.conn.prepare_cached(include_str!("sql/set_mark.sql"))?.execute(values)?;
        Ok(())
    }

    /// One verb of the store.
    pub(super) fn step<V: Verb>(&mut self, verb: &V) -> Result<V::Answer, Fault> {
        let current = self.shared.generations.find(self.conn, verb.operation(), self.mark)?;
        let fresh = Token(self.mark.token.0 + 1);
        let step = verb.decide(current.as_ref(), Moment { now: self.now, fresh });
        if let Some(record) = &step.put {
            self.put(current.as_ref(), record)?;
            if V::TAKES_TOKEN && record.token == fresh {
                self.mark.token = fresh;
            }
        }
        Ok(step.answer)
    }

    fn put(&mut self, current: Option<&Record>, record: &Record) -> Result<(), Fault> {
        row::put(self.conn, self.shared.generations.span(), current, record)?;
        self.writes += 1;
        Ok(())
    }

    /// Looks at no more than `limit` records that are due. `more`: there were as many.
    pub(super) fn sweep(&mut self, limit: u32, unknown_kept: Duration) -> Result<SweepReport, Fault> {
        let due = self.due(limit)?;
        if due.is_empty() {
            return Ok(SweepReport { more: self.fold(limit)?, ..Default::default() });
        }
        let more = due.len() == limit as usize || self.shared.generations.sparse().is_some();
        let mut report = SweepReport { more, ..Default::default() };
        for (token, record) in due {
            let look_at = match record {
                Err(fault) => {
                    let database = self.shared.place.path().display();
                    tracing::warn!(%database, %fault, "the sweeper leaves a record that cannot be read");
                    self.now.after(DAMAGED_LOOK_AGAIN)
                }
                Ok(record) => match record::sweep(&record, self.now, unknown_kept) {
                    Swept::Gone => {
                        row::delete(self.conn, &record)?;
                        self.writes += 1;
                        report.deleted += 1;
                        continue;
                    }
                    Swept::Shrunk(small) => {
                        self.put(Some(&record), &small)?;
                        report.shrunk += 1;
                        self.now.after(small.terms.ttl)
                    }
                    Swept::Kept(again) => again,
                },
            };
            row::look_again(self.conn, token, look_at)?;
            self.writes += 1;
        }
        Ok(report)
    }

    /// Puts what is left of a generation to what is left of others, so that there are never many more generations to look into than
    /// records alive. Says whether there is more to do.
    fn fold(&mut self, limit: u32) -> Result<bool, Fault> {
        let generations = &self.shared.generations;
        let Some(generation) = generations.sparse() else { return Ok(false) };
        let mut statement = self.conn.prepare_cached(include_str!("sql/fold_generation.sql"))?;
        let folded = statement.execute([generation, i64::from(limit)])?;
        if folded > 0 && !mutant::on("sqlite-fold-without-token") {
            // Who learns that the generation is empty must not be believed about a state in which it was not.
            self.mark.token = Token(self.mark.token.0 + 1);
        }
        self.writes += folded as u64;
        if folded < limit as usize {
            generations.is_folded(generation);
            if row::count_generation(self.conn, generation, 1)? > 0 {
                let database = self.shared.place.path().display();
                tracing::error!(%database, generation, "an operation has two records: a possible double effect");
            }
        }
        Ok(generations.sparse().is_some())
    }

    /// Records the sweeper must look at, without their outcomes.
    fn due(&self, limit: u32) -> Result<Vec<row::Found>, Fault> {
        let mut statement = self.conn.prepare_cached(include_str!("sql/due.sql"))?;
        let range = [self.now.as_micros(), i64::from(limit)];
        let rows = statement.query_map(range, row::found)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Purges no more than `limit` of a subject's ended records.
    pub(super) fn purge_subject(
        &mut self,
        subject: &str,
        nonce: Nonce,
        note: &str,
        limit: u32,
    ) -> Result<SubjectPurge, Fault> {
        let mut report = SubjectPurge::default();
        for record in self.ended_of(subject, i64::from(limit) + 1)? {
            if report.purged == u64::from(limit) {
                report.more = true;
                break;
            }
            let purge = Purge { operation: record.operation.id(), nonce, note: note.to_owned() };
            let step = purge.decide(Some(&record), Moment { now: self.now, fresh: Token(0) });
            if let Some(tombstone) = step.put {
                self.put(Some(&record), &tombstone)?;
                report.purged += 1;
            }
        }
        let mut statement = self.conn.prepare_cached(include_str!("sql/open_of_subject.sql"))?;
        report.open = statement.query_row([subject], |row| row.get::<_, u32>(0))?.into();
        Ok(report)
    }

    /// One that cannot be read stops the step before it changes anything.
    fn ended_of(&self, subject: &str, limit: i64) -> Result<Vec<Record>, Fault> {
        let mut statement = self.conn.prepare_cached(include_str!("sql/of_subject.sql"))?;
        let rows = statement.query_map(params![subject, limit], |row| Ok(row::read(row)))?;
        rows.map(|row| row?).collect()
    }

    /// Begins a new epoch above everything seen, and keeps who said so.
    pub(super) fn acknowledge(&mut self, by: &str) -> Result<Mark, Fault> {
        let (found, seen) = (self.mark, self.shared.seen());
        let mark = found.acknowledged(seen);
        let number = |number: u64| row::signed(Token(number));
        self.conn.prepare_cached(include_str!("sql/acknowledge.sql"))?.execute(params![
            number(mark.epoch)?,
            self.now.as_micros(),
            &by[..by.floor_char_boundary(OPERATOR_BYTES_MAX)],
            number(found.epoch)?,
            number(found.token.0)?,
            number(seen.epoch)?,
            number(seen.token.0)?,
        ])?;
        self.mark = mark;
        self.writes += 1;
        Ok(mark)
    }

    /// Adds a key for fingerprints.
    pub(super) fn rotate_hash_key(&mut self) -> Result<u32, Fault> {
        let version = migrate::add_hash_key(self.conn, self.now)?;
        self.writes += 1;
        Ok(version)
    }
}
