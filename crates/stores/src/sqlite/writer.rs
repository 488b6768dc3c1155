//! The thread that writes: callers' jobs in batches, one transaction and one fsync for all of them.
//!
//! # What is true after a crash
//! Before COMMIT returns: nothing of the batch, or (a crash between the fsync and the return) all of
//! it; nobody was answered. After it: all of the batch, answered or not. There is no state in which
//! an answered write is missing, or half a batch is there.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rusqlite::Connection;
use semel_core::mutant;

use super::connect::{self, Role};
use super::error::Fault;
use super::job::{End, Job};
use super::keeper;
use super::queue::{Queue, Worker};
use super::shared::Shared;
use super::work::Work;
use crate::crash;

/// Jobs that write more than this together go into separate transactions.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Runs until the queue closes, and works off what is in it.
pub(super) fn run(shared: Arc<Shared>, queue: &Queue<Box<dyn Job>>, conn: Connection) {
    let _told = Worker(queue);
    connect::be_patient(shared.options.busy_timeout);
    let batch_max = shared.options.batch_max.max(1);
    let mut writer = Writer { shared, conn: None };
    writer.take_over(conn);
    let mut jobs: Vec<Box<dyn Job>> = Vec::with_capacity(batch_max);
    loop {
        let (mut count, mut bytes) = (1, 0);
        let taken = queue.take(&mut jobs, |job| {
            count += 1;
            bytes += job.bytes();
            count <= batch_max && bytes <= BATCH_BYTES_MAX
        });
        if !taken {
            return;
        }
        writer.work_off(&mut jobs);
        writer.finish_log();
    }
}

struct Writer {
    shared: Arc<Shared>,
    conn: Option<Connection>,
}

impl Writer {
    /// Runs the jobs and answers all of them.
    fn work_off(&mut self, jobs: &mut Vec<Box<dyn Job>>) {
        let end = self.insist(jobs);
        let alone = matches!(end, End::Spoiled(_)) && jobs.len() > 1;
        if alone && !mutant::on("sqlite-spoiled-batch-fails-all") {
            for job in jobs.drain(..) {
                let mut one = [job];
                let end = self.insist(&mut one);
                self.answer(one, &end);
            }
        } else {
            self.answer(jobs.drain(..), &end);
        }
    }

    /// SQLite reports some conflicts with other processes (a log that starts over under a transaction)
    /// without asking whether to wait. Nothing was applied then, and the next moment it goes through.
    fn insist(&mut self, jobs: &mut [Box<dyn Job>]) -> End {
        let begun = Instant::now();
        loop {
            let end = self.transact(jobs);
            let is_conflict = matches!(&end, End::NotApplied(fault) if fault.is_busy());
            if !is_conflict || begun.elapsed() >= self.shared.options.busy_timeout {
                return end;
            }
            std::thread::sleep(connect::PAUSE_MAX);
        }
    }

    fn answer(&self, jobs: impl IntoIterator<Item = Box<dyn Job>>, end: &End) {
        jobs.into_iter().for_each(|job| job.answer(end, self.shared.place.path()));
    }

    fn transact(&mut self, jobs: &mut [Box<dyn Job>]) -> End {
        if let Err(fault) = self.shared.place.check() {
            return End::NotApplied(fault);
        }
        let shared = self.shared.clone();
        let conn = match self.connection() {
            Ok(conn) => conn,
            Err(fault) => return End::NotApplied(fault),
        };
        let end = transact(conn, &shared, jobs);
        // SQLite may have rolled back by itself. A connection that cannot is of no more use, and
        // nor is one that failed for reasons of its own: the next batch gets a new one.
        let clean = conn.is_autocommit() || conn.execute_batch("ROLLBACK").is_ok();
        let healthy = match &end {
            End::Committed => true,
            End::NotApplied(fault) | End::Spoiled(fault) | End::MaybeApplied(fault) => {
                fault.commit_did_nothing()
            }
        };
        if !clean || !healthy {
            self.conn = None;
        }
        end
    }

    fn connection(&mut self) -> Result<&Connection, Fault> {
        if self.conn.is_none() {
            let Shared { place, options, .. } = &*self.shared;
            let conn = connect::open(place.path(), Role::Writer, options.busy_timeout)?;
            self.take_over(conn);
        }
        self.conn.as_ref().ok_or_else(|| Fault::damaged("there is no connection"))
    }

    fn take_over(&mut self, conn: Connection) {
        conn.wal_hook(Some(|_, pages| {
            LOG_PAGES.set(u32::try_from(pages).unwrap_or(0));
            Ok(())
        }));
        self.conn = Some(conn);
    }

    /// Moves the rest of the log into the database file, so that the next transaction starts it
    /// over. Only when the keeper has left little to do: meanwhile everybody waits.
    fn finish_log(&self) {
        self.shared.log_has(LOG_PAGES.get());
        if !self.shared.finish_log.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Some(Ok((length, moved))) = self.conn.as_ref().map(keeper::checkpoint)
            && length == moved
        {
            self.shared.log_was_moved_at(0);
        }
        // The keeper may have ids to read, for which it waited.
        self.shared.bell.ring();
    }
}

thread_local! {
    /// Set by SQLite in the writer's thread after every commit.
    static LOG_PAGES: Cell<u32> = const { Cell::new(0) };
}

fn transact(conn: &Connection, shared: &Shared, jobs: &mut [Box<dyn Job>]) -> End {
    let seen = shared.seen();
    let begun = execute(conn, "BEGIN IMMEDIATE").and_then(|()| Work::begin(conn, shared));
    let mut work = match begun {
        Ok(work) => work,
        Err(fault) => return End::NotApplied(fault),
    };
    let is_behind = work.found().is_behind(seen);
    for job in jobs.iter_mut() {
        if is_behind && job.needs_sound_store() {
            job.refuse(shared.went_back(work.found()));
            continue;
        }
        let before = work.writes();
        if let Err(fault) = job.run(&mut work) {
            // A statement that fails undoes itself; a job that wrote before it failed does not, and
            // some failures end the transaction.
            if work.writes() > before || conn.is_autocommit() {
                return spoiled(conn, fault);
            }
            job.refuse(fault.tell(shared.place.path()));
        }
    }
    commit(conn, shared, &work)
}

fn commit(conn: &Connection, shared: &Shared, work: &Work<'_>) -> End {
    if let Err(fault) = work.save_mark() {
        return End::NotApplied(fault);
    }
    crash::point("sqlite-before-commit");
    if let Err(fault) = execute(conn, "COMMIT") {
        return match fault.commit_did_nothing() || mutant::on("sqlite-commit-doubt-denied") {
            true => End::NotApplied(fault),
            false => End::MaybeApplied(fault),
        };
    }
    crash::point("sqlite-after-commit");
    // Not before: a mark that was rolled back must not make the store look as if it went back.
    shared.has_come_to(work.mark());
    if work.mark().epoch != work.found().epoch {
        // Accepted for good only when the witness agrees.
        keeper::save_witness(shared, work.mark());
    }
    End::Committed
}

fn spoiled(conn: &Connection, fault: Fault) -> End {
    if mutant::on("sqlite-spoiled-batch-kept") {
        let _ = execute(conn, "COMMIT");
    }
    End::Spoiled(fault)
}

fn execute(conn: &Connection, sql: &str) -> Result<(), Fault> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}
