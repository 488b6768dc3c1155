//! What a cursor reads: new messages, the rest of a batch, letters that are due.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use semel_core::error::{Error, Kind};
use semel_core::mutant;
use semel_core::outbox::Entry;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::chores::{no_row, transaction};
use super::super::connect::{Param, get};
use super::super::fault::Fault;
use super::super::pipeline::{End, Statement};
use super::super::pool::Pool;
use super::cursor::{Batch, Place, PostgresCursor};
use super::row::{self, entry};
use super::together::{Look, Seen};
use super::{Desk, sql};

/// How long the look for the ends of a large backlog may take. It is done once in a batch.
const RANGE_TIMEOUT: Duration = Duration::from_secs(120);

/// What was read, and what it is part of.
pub(super) struct Flow {
    pub(super) entries: Vec<Entry>,
    /// They are visible in the second and not in the first.
    pub(super) before: String,
    pub(super) snapshot: String,
    /// The largest number of the batch.
    pub(super) until: u64,
    /// A batch that was worked through for longer ends with them: there may be more.
    pub(super) ends_batch: bool,
}

impl Desk {
    /// Statements that see the same, and change nothing.
    pub(super) async fn read(
        &self,
        pool: &Pool,
        limit: Duration,
        statements: &[Statement<'_>],
    ) -> Result<Vec<Vec<Row>>, Error> {
        let mut link = pool.link_to_any().await?;
        let commit: &[Param<'_>] = &[];
        let all: Vec<Statement<'_>> = statements.iter().copied().chain([("COMMIT", commit)]).collect();
        let begin = match limit > self.call_timeout {
            true => sql::begin_read(limit.as_millis()),
            false => self.begin_read.clone(),
        };
        transaction(&mut link, async |link| link.live().run(limit, Some(&begin), &all, End::Open).await).await
    }
}

impl Desk {
    /// One statement by itself that changes nothing. It sees one snapshot.
    pub(super) async fn ask(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        self.query(sql, params).await.map_err(|fault| fault.error())
    }

    /// The same for several who ask together.
    pub(super) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        let mut link = self.cursors.link_to_any().await?;
        link.busy();
        let rows = link.live().query(self.call_timeout, sql, params).await;
        if !rows.as_ref().is_err_and(|fault| fault.broken) {
            link.done();
        }
        rows
    }
}

impl PostgresCursor {
    /// The next messages of the lane that were never set aside, at most `room`; none if there are none.
    /// `from` is where the lane is, if `is_first`, or will be when all that was read before is settled.
    pub(super) async fn flow(
        &mut self,
        mut from: Place,
        room: usize,
        is_first: bool,
    ) -> Result<Option<Flow>, Error> {
        loop {
            if let Some(batch) = from.batch.take() {
                let entries = self.walk(&from.snapshot, &batch, room).await?;
                let Batch { snapshot, until, .. } = batch;
                if let Some(last) = entries.last() {
                    let (before, ends_batch) = (from.snapshot, last.sequence == until);
                    return Ok(Some(Flow { entries, before, snapshot, until, ends_batch }));
                }
                from.snapshot = snapshot;
            }
            let Some((snapshot, mut entries)) = self.tail(&from.snapshot, room + 1).await? else {
                self.is_fenced = true;
                return Ok(None);
            };
            if entries.is_empty() {
                if is_first {
                    self.place = Place { snapshot, batch: None };
                }
                return Ok(None);
            }
            if entries.len() <= room {
                entries.sort_unstable_by_key(|entry| entry.sequence);
                let until = entries.last().map_or(0, |entry| entry.sequence);
                let before = from.snapshot;
                return Ok(Some(Flow { entries, before, snapshot, until, ends_batch: false }));
            }
            if !is_first {
                // A batch can be noted only where the lane is, not where it will be.
                return Ok(None);
            }
            // Too many for once. Before any of them is published it is written down which they are, so
            // that whoever goes on after a crash goes through the same ones in the same order.
            drop(entries);
            let batch = self.range(&from.snapshot, snapshot).await?;
            from.batch = Some(batch);
            if !self.note(from.clone()).await? {
                return Ok(None);
            }
        }
    }

    /// What committed since the place was reached, and the snapshot that says so. `None`: the server crashed
    /// since, and the lane must be taken anew.
    async fn tail(&mut self, before: &str, limit: usize) -> Result<Option<(String, Vec<Entry>)>, Error> {
        let look = Look { lane: self.lane, before: since(before).into_owned(), most: limit as i64 };
        let Seen { snapshot, run, rows } = self.look(look).await?;
        if run.as_deref() != Some(&self.run) && !mutant::on("outbox-crash-unnoticed") {
            return Ok(None);
        }
        if xmax(&snapshot)? < xmax(before)? {
            return Err(Error::new(
                Kind::WentBack,
                "the database knows fewer transactions than it did: it was set back under the relay",
            ));
        }
        Ok(Some((snapshot, rows.iter().map(|row| fitting(row, 1)).collect::<Result<_, _>>()?)))
    }

    /// Looks together with other lanes, or alone where that cannot be.
    async fn look(&mut self, look: Look) -> Result<Seen, Error> {
        let (before, most) = (look.before.clone(), look.most);
        if !self.looks_alone
            && let Some(seen) = self.desk.look(look).await?
        {
            return Ok(seen);
        }
        // Until it has worked alone: with others it may be what fails them.
        self.looks_alone = true;
        let params: [Param<'_>; 3] = [(&self.lane, Type::INT2), (&before, Type::TEXT), (&most, Type::INT8)];
        let mut rows = self.desk.ask(sql::LOOK, &params).await?;
        let first = rows.first().ok_or_else(no_row)?;
        let (snapshot, run) = (get(first, 0)?, get(first, 13)?);
        rows.remove(0);
        self.looks_alone = false;
        Ok(Seen { snapshot, run, rows })
    }

    async fn range(&self, before: &String, snapshot: String) -> Result<Batch, Error> {
        let params: [Param<'_>; 3] =
            [(&self.lane, Type::INT2), (before, Type::TEXT), (&snapshot, Type::TEXT)];
        let limit = RANGE_TIMEOUT.max(self.desk.call_timeout);
        let answers = self.desk.read(&self.desk.cursors, limit, &[(sql::RANGE, &params)]).await?;
        let row = answers.first().and_then(|rows| rows.first()).ok_or_else(no_row)?;
        let (first, until) = (row::number(row, 0)?, row::number(row, 1)?);
        Ok(Batch { snapshot, last: first.saturating_sub(1), until })
    }

    async fn walk(&self, before: &String, batch: &Batch, limit: usize) -> Result<Vec<Entry>, Error> {
        let (last, until, limit) = (batch.last as i64, batch.until as i64, limit as i64);
        let params: [Param<'_>; 6] = [
            (&self.lane, Type::INT2),
            (&last, Type::INT8),
            (&until, Type::INT8),
            (before, Type::TEXT),
            (&batch.snapshot, Type::TEXT),
            (&limit, Type::INT8),
        ];
        let rows = self.desk.ask(sql::WALK, &params).await?;
        rows.iter().map(|row| fitting(row, 0)).collect()
    }

    /// Letters that are due, each key's in order, at most `limit`. Notes if there are none at all any more.
    pub(super) async fn letters(&mut self, limit: usize) -> Result<Vec<Entry>, Error> {
        let (limit, clock) = (limit as i64, self.desk.clock());
        let lane: [Param<'_>; 1] = [(&self.lane, Type::INT2)];
        let params: [Param<'_>; 3] = [lane[0].clone(), (&clock, Type::INT8), (&limit, Type::INT8)];
        let statements: [Statement<'_>; 2] = [(sql::ANY_LETTERS, &lane), (sql::LETTERS, &params)];
        let answers = self.desk.read(&self.desk.cursors, self.desk.call_timeout, &statements).await?;
        let [any, rows, ..] = &answers[..] else { return Err(no_row()) };
        self.has_letters = get(any.first().ok_or_else(no_row)?, 0)?;
        let mut due = Vec::with_capacity(rows.len());
        let mut blocked: Option<String> = None;
        for row in rows {
            let (state, is_head): (i16, bool) = (get(row, 12)?, get(row, 13)?);
            let letter = Entry { tries: get::<i32>(row, 11)?.max(0) as u32, ..entry(row, 0)? };
            // Behind the first come those that only waited for it. Any other ends the row.
            if !is_head && state != 3 {
                blocked = letter.message.key.clone();
            }
            if is_head || blocked.is_none() || blocked != letter.message.key {
                due.push(letter);
            }
        }
        Ok(due)
    }

    /// Marks what must not be published: messages of keys with letters other than the first `letters` of
    /// what was `read` before, or behind something there that is marked already.
    pub(super) async fn mark(&self, read: &[Entry], letters: usize, flow: &mut [Entry]) -> Result<(), Error> {
        let mut keys: HashMap<&str, i64> = HashMap::new();
        for entry in flow.iter() {
            keys.extend(entry.message.key.as_deref().map(|key| (key, -1)));
        }
        for letter in &read[..letters] {
            if let Some(upto) = letter.message.key.as_deref().and_then(|key| keys.get_mut(key)) {
                *upto = letter.sequence as i64;
            }
        }
        if keys.is_empty() || mutant::on("outbox-key-not-parked") {
            return Ok(());
        }
        let (names, upto): (Vec<&str>, Vec<i64>) = keys.into_iter().unzip();
        let params: [Param<'_>; 3] =
            [(&self.lane, Type::INT2), (&names, Type::TEXT_ARRAY), (&upto, Type::INT8_ARRAY)];
        let desk = &self.desk;
        let answers = desk.read(&desk.cursors, desk.call_timeout, &[(sql::PARKED, &params)]).await?;
        let mut parked = std::collections::HashSet::new();
        for row in answers.first().ok_or_else(no_row)? {
            parked.insert(get::<String>(row, 0)?);
        }
        // The letter they wait for may have been discarded since; they still come first.
        let marked = read.iter().filter(|entry| entry.behind);
        parked.extend(marked.filter_map(|entry| entry.message.key.clone()));
        for entry in flow {
            entry.behind = entry.message.key.as_ref().is_some_and(|key| parked.contains(key));
        }
        Ok(())
    }
}

/// Reads an entry of `look.sql` or `walk.sql`, whose columns start at `at`. One in a lane that is not its key's would be out of order, and its
/// letters in another lane than it.
fn fitting(row: &Row, at: usize) -> Result<Entry, Error> {
    let entry = entry(row, at)?;
    if get(row, at + 11)? {
        return Ok(entry);
    }
    let (id, sequence) = (entry.message.id, entry.sequence);
    Err(Error::new(
        Kind::Damaged,
        format!(
            "message {id} is in the wrong lane: who wrote it past the library? UPDATE semel_outbox SET lane = \
             semel_outbox_lane(id, key), xid = pg_current_xact_id() WHERE sequence = {sequence}"
        ),
    ))
}

/// The snapshot that new messages are not visible in.
fn since(before: &str) -> Cow<'_, str> {
    if mutant::on("outbox-skips-late-commits") {
        // As if nothing had been under way in it.
        let xmax = before.split(':').nth(1).unwrap_or_default();
        return format!("{xmax}:{xmax}:").into();
    }
    before.into()
}

/// The transaction a snapshot ends before.
fn xmax(snapshot: &str) -> Result<u64, Error> {
    let damaged = || Error::new(Kind::Damaged, "a snapshot of the outbox cannot be read");
    snapshot.split(':').nth(1).and_then(|xmax| xmax.parse().ok()).ok_or_else(damaged)
}
