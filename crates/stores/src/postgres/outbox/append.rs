//! The one way a lane moves: a step in its log, together with what becomes of letters.

use std::time::Duration;

use semel_core::clock::micros;
use semel_core::error::Error;
use semel_core::outbox::{Aside, Entry, Settled, shortened};
use semel_core::{Nonce, mutant};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::chores::{no_row, transaction};
use super::super::connect::{Param, get};
use super::super::pipeline::{End, Statement};
use super::cursor::{Batch, Found, Place, PostgresCursor};
use super::row::number;
use super::sql;
use super::together::Write;

pub(super) const CRASHES: &[(&str, &str)] = &[("pg-before-outbox-commit", "pg-after-outbox-commit")];

/// A step to append.
pub(super) struct Step {
    pub(super) place: Place,
    pub(super) progress: i64,
    /// Nobody: the lane is given back.
    pub(super) holder: Option<Nonce>,
    pub(super) lease: Duration,
    pub(super) changes: Changes,
}

/// What becomes of letters, and who becomes one.
#[derive(Default)]
pub(super) struct Changes {
    /// Messages that are set aside.
    put: Puts,
    /// Letters that stay.
    kept: Puts,
    /// Letters that were sent.
    sent: Vec<i64>,
    /// Keys of all of them.
    keys: Vec<String>,
}

#[derive(Default)]
struct Puts {
    sequences: Vec<i64>,
    states: Vec<i16>,
    again_in: Vec<i64>,
    reasons: Vec<String>,
}

impl Changes {
    /// Of entries, of which the first `letters` are letters already, and what became of them.
    pub(super) fn of(entries: &[Entry], letters: usize, settled: &[Settled]) -> Self {
        let mut changes = Self::default();
        for (at, (entry, settled)) in entries.iter().zip(settled).enumerate() {
            let is_letter = at < letters;
            let sequence = entry.sequence as i64;
            let puts = if is_letter { &mut changes.kept } else { &mut changes.put };
            match settled {
                Settled::Sent if is_letter => changes.sent.push(sequence),
                Settled::Sent => continue,
                Settled::Later { reason, again_in } => puts.add(sequence, Aside::Later, *again_in, reason),
                Settled::Dead { reason } => puts.add(sequence, Aside::Dead, Duration::ZERO, reason),
                // Without a key there is nobody to be behind.
                Settled::Behind if entry.message.key.is_none() => {
                    puts.add(sequence, Aside::Later, Duration::ZERO, "");
                }
                Settled::Behind => puts.add(sequence, Aside::Behind, Duration::ZERO, ""),
            }
            changes.keys.extend(entry.message.key.clone());
        }
        changes.keys.sort_unstable();
        changes.keys.dedup();
        changes
    }

    /// Letters that were sent, by what a sink says.
    pub(super) fn landed(letters: Vec<i64>, keys: Vec<String>) -> Self {
        Self { sent: letters, keys, ..Self::default() }
    }

    pub(super) fn sets_aside(&self) -> bool {
        !self.put.sequences.is_empty()
    }

    /// No letter is touched.
    fn is_empty(&self) -> bool {
        self.keys.is_empty()
            && self.sent.is_empty()
            && self.put.sequences.is_empty()
            && self.kept.sequences.is_empty()
    }
}

impl Puts {
    fn add(&mut self, sequence: i64, state: Aside, again_in: Duration, reason: &str) {
        self.sequences.push(sequence);
        self.states.push(i16::from(state as u8));
        self.again_in.push(micros(again_in));
        // The server's texts hold no NUL.
        self.reasons.push(shortened(reason).replace('\0', " "));
    }

    fn params<'a>(&'a self, head: &[Param<'a>; 4]) -> Vec<Param<'a>> {
        let columns: [Param<'a>; 4] = [
            (&self.sequences, Type::INT8_ARRAY),
            (&self.states, Type::INT2_ARRAY),
            (&self.again_in, Type::INT8_ARRAY),
            (&self.reasons, Type::TEXT_ARRAY),
        ];
        head.iter().cloned().chain(columns).collect()
    }
}

impl PostgresCursor {
    /// Appends a step that settles `count` entries. `false`: somebody else holds the lane, and nothing
    /// was changed.
    ///
    /// # Cancellation
    /// Safe. The step is there or not, and the next call finds out.
    pub(super) async fn append(&mut self, step: Step, count: usize) -> Result<bool, Error> {
        self.doubt = Some(count);
        let sent = self.send(&step).await;
        match sent {
            Ok(appended) => {
                self.doubt = None;
                self.is_fenced = !appended;
                if appended {
                    self.step += 1;
                    self.progress = step.progress;
                    self.place = step.place;
                }
                Ok(appended)
            }
            Err(error) => {
                if !error.outcome_is_unknown() {
                    self.doubt = None;
                }
                Err(error)
            }
        }
    }

    async fn send(&self, step: &Step) -> Result<bool, Error> {
        let Step { place, progress, holder, lease, changes } = step;
        let desk = &self.desk;
        let (clock, next) = (desk.clock(), self.step + 1);
        let (nonce, holder, lease) =
            (holder, holder.as_ref().map(|nonce| &nonce.as_bytes()[..]), micros(*lease));
        let batch = place.batch.as_ref().map(|batch| batch.snapshot.as_str());
        let (last, until) =
            place.batch.as_ref().map_or((0, 0), |batch| (batch.last as i64, batch.until as i64));
        let (step, epoch) = self.known().await?;
        let run = self.run_of_save().await?;
        if changes.is_empty() {
            // Most often nothing goes with it, and then it can go with others.
            let together = Write {
                run: run.clone(),
                lane: self.lane,
                step,
                epoch,
                progress: *progress,
                holder: *nonce,
                lease,
                snapshot: place.snapshot.clone(),
                batch: batch.map(str::to_owned),
                last,
                until,
            };
            if let Some(appended) = desk.step(together).await? {
                return Ok(appended);
            }
        }
        let append: [Param<'_>; 12] = [
            (&run, Type::TEXT),
            (&self.lane, Type::INT2),
            (&step, Type::INT8),
            (&epoch, Type::INT8),
            (progress, Type::INT8),
            (&holder, Type::BYTEA),
            (&clock, Type::INT8),
            (&lease, Type::INT8),
            (&place.snapshot, Type::TEXT),
            (&batch, Type::TEXT),
            (&last, Type::INT8),
            (&until, Type::INT8),
        ];
        let after: [Param<'_>; 4] =
            [(&self.lane, Type::INT2), (&next, Type::INT8), (&self.epoch, Type::INT8), (&clock, Type::INT8)];
        let (put, kept) = (changes.put.params(&after), changes.kept.params(&after));
        let mut sent = after[..3].to_vec();
        sent.push((&changes.sent, Type::INT8_ARRAY));
        let promote: [Param<'_>; 3] =
            [(&self.lane, Type::INT2), (&clock, Type::INT8), (&changes.keys, Type::TEXT_ARRAY)];
        let wait: Param<'_> = (&desk.lock_ms, Type::INT8);
        let alone: Vec<Param<'_>> = append.iter().cloned().chain([wait]).collect();
        // With nothing beside it, it brings its settings along.
        let (begin, first): (&str, Statement<'_>) = match changes.is_empty() {
            true => (sql::BEGIN_STEP, (sql::STEP, &alone)),
            false => (&desk.begin, (sql::APPEND, &append)),
        };
        let mut statements = vec![first];
        if !changes.put.sequences.is_empty() {
            statements.push((sql::SET_ASIDE, &put));
        }
        if !changes.kept.sequences.is_empty() {
            statements.push((sql::KEEP_ASIDE, &kept));
        }
        if !changes.sent.is_empty() {
            statements.push((sql::SETTLE_ASIDE, &sent));
        }
        if !changes.keys.is_empty() {
            statements.push((sql::PROMOTE, &promote));
        }
        let mut link = desk.cursors.link_to_any().await?;
        let answers = transaction(&mut link, async |link| {
            link.live().run(desk.call_timeout, Some(begin), &statements, End::Commit(CRASHES)).await
        })
        .await?;
        let appended = answers.first().and_then(|rows| rows.first()).ok_or_else(no_row)?;
        Ok(get::<Option<i64>>(appended, 0)?.is_some())
    }

    /// The run of the server what is saved was read in.
    async fn run_of_save(&self) -> Result<String, Error> {
        if mutant::on("outbox-save-after-crash") {
            let rows = self.desk.ask("SELECT run::text FROM semel_outbox_run", &[]).await?;
            return get(rows.first().ok_or_else(no_row)?, 0);
        }
        Ok(self.run.clone())
    }

    /// The step and the epoch the next one must follow: the fence.
    async fn known(&self) -> Result<(i64, i64), Error> {
        if mutant::on("outbox-unfenced-save") {
            let (lanes, clock) = (vec![self.lane], self.desk.clock());
            let look: [Param<'_>; 2] = [(&lanes, Type::INT2_ARRAY), (&clock, Type::INT8)];
            let limit = self.desk.call_timeout;
            let answers = self.desk.read(&self.desk.cursors, limit, &[(sql::NEWEST, &look)]).await?;
            let newest = answers.first().and_then(|rows| rows.first()).ok_or_else(no_row)?;
            return Ok((get(newest, 1)?, get(newest, 2)?));
        }
        Ok((self.step, self.epoch))
    }

    /// Goes on from whatever was saved last, if the lane is still this holder's.
    pub(super) async fn reload(&mut self) -> Result<Option<Found>, Error> {
        let (clock, lease, lane_lock) = (self.desk.clock(), micros(self.lease), i32::from(self.lane));
        let holder = &self.holder.as_bytes()[..];
        let lock: [Param<'_>; 1] = [(&lane_lock, Type::INT4)];
        let reload: [Param<'_>; 5] = [
            (&self.lane, Type::INT2),
            (&self.epoch, Type::INT8),
            (&holder, Type::BYTEA),
            (&clock, Type::INT8),
            (&lease, Type::INT8),
        ];
        let statements: [Statement<'_>; 2] = [(sql::LOCK_LANE, &lock), (sql::RELOAD, &reload)];
        let mut link = self.desk.cursors.link_to_any().await?;
        let answers = transaction(&mut link, async |link| {
            let (limit, begin) = (self.desk.call_timeout, Some(self.desk.begin.as_str()));
            link.live().run(limit, begin, &statements, End::Commit(&[])).await
        })
        .await?;
        answers.get(1).and_then(|rows| rows.first()).map(found).transpose()
    }
}

/// Reads what `take.sql` and `reload.sql` return.
pub(super) fn found(row: &Row) -> Result<Found, Error> {
    let batch: Option<String> = get(row, 4)?;
    let (last, until) = (number(row, 5)?, number(row, 6)?);
    let batch = batch.map(|snapshot| Batch { snapshot, last, until });
    Ok(Found {
        step: get(row, 0)?,
        epoch: get(row, 1)?,
        progress: get(row, 2)?,
        place: Place { snapshot: get(row, 3)?, batch },
    })
}
