//! A thread with a connection, and the two ways it uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rusqlite::Connection;
use semel_core::error::Error;

use super::Shared;
use crate::crash;
use crate::sqlite::connect::{self, Role};
use crate::sqlite::error::Fault;
use crate::sqlite::queue::{Queue, Worker};

/// Something to do. It answers its caller itself.
pub(super) type Job = Box<dyn FnOnce(&mut Hand) + Send>;

/// Which connection, and what it says of the file.
pub(super) type Version = (u64, i64);

/// What a transaction comes to.
pub(super) enum Done<T> {
    /// Commit it.
    Commit(T),
    /// Nothing was changed: roll it back.
    Leave(T),
}

/// What an answered write must survive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasting {
    /// A power failure.
    Disk,
    /// A crash of the process. After a power failure it may be as if it had not been done.
    Process,
}

/// One thread's side of an outbox.
pub(super) struct Hand {
    pub(super) shared: Arc<Shared>,
    conn: Option<Connection>,
    /// How often a connection was opened: what one says of the file, another may say of something else.
    opened: u64,
    lasting: Lasting,
    /// When the witness was last written.
    pub(super) witnessed: Option<Instant>,
}

/// Runs until the queue closes.
pub(super) fn run(shared: Arc<Shared>, jobs: &Queue<Job>, conn: Connection) {
    let _told = Worker(jobs);
    connect::be_patient(shared.options.busy_timeout);
    let mut hand = Hand { shared, conn: Some(conn), opened: 1, lasting: Lasting::Disk, witnessed: None };
    let mut next = Vec::new();
    while jobs.take(&mut next, |_| false) {
        next.drain(..).for_each(|job| job(&mut hand));
    }
}

impl Hand {
    /// Reads, in one snapshot.
    pub(super) fn read<T>(&mut self, look: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, Error> {
        let answer = self.shared.place.check().and_then(|()| {
            let conn = self.connection()?;
            let snapshot = conn.unchecked_transaction()?;
            look(&snapshot)
        });
        answer.map_err(|fault| {
            // The next question starts on a new connection, whatever this one suffers from.
            self.conn = None;
            fault.tell(self.shared.place.path())
        })
    }

    /// Reads, in one snapshot of an outbox that is not behind what was seen of it.
    pub(super) fn look<T>(&mut self, look: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, Error> {
        // Before the snapshot: what was seen by then is in it, unless the file was set back.
        let (shared, before) = (self.shared.clone(), self.shared.sight());
        self.read(|conn| {
            shared.judge(before, conn)?;
            look(conn)
        })
    }

    /// [Changes](Self::change) something of an outbox that is not behind what was seen of it.
    pub(super) fn go_on<T>(
        &mut self,
        lasting: Lasting,
        mut act: impl FnMut(&Connection) -> Result<Done<T>, Fault>,
    ) -> Result<T, Error> {
        let (shared, before) = (self.shared.clone(), self.shared.sight());
        self.change(lasting, |conn| {
            let found = shared.judge(before, conn)?;
            act(conn).inspect_err(|fault| {
                if fault.is_outbox_behind() {
                    shared.close(found.mark);
                }
            })
        })
    }

    /// What changes whenever anybody else has committed to the file.
    pub(super) fn version(&mut self) -> Result<Version, Error> {
        let ask =
            |conn: &Connection| conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0));
        let answer = self.connection().and_then(|conn| Ok(ask(conn)?));
        let found = answer.map_err(|fault| fault.tell(self.shared.place.path()))?;
        Ok((self.opened, found))
    }

    /// Changes something, in one transaction that has the write lock from the start.
    pub(super) fn change<T>(
        &mut self,
        lasting: Lasting,
        mut act: impl FnMut(&Connection) -> Result<Done<T>, Fault>,
    ) -> Result<T, Error> {
        let begun = Instant::now();
        let shared = self.shared.clone();
        loop {
            let (fault, doubt) = match self.try_change(lasting, &mut act) {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            // SQLite reports some conflicts without asking whether to wait; the next moment it goes through.
            if !doubt && fault.is_busy() && begun.elapsed() < shared.options.busy_timeout {
                std::thread::sleep(connect::PAUSE_MAX);
                continue;
            }
            if !fault.commit_did_nothing() {
                self.conn = None;
            }
            let error = fault.tell(shared.place.path());
            return Err(if doubt { error.maybe_applied() } else { error });
        }
    }

    /// The failure, and whether it leaves in doubt what was done.
    fn try_change<T>(
        &mut self,
        lasting: Lasting,
        act: &mut impl FnMut(&Connection) -> Result<Done<T>, Fault>,
    ) -> Result<T, (Fault, bool)> {
        let sure = |fault: Fault| (fault, false);
        self.shared.place.check().map_err(sure)?;
        self.last(lasting).map_err(sure)?;
        let conn = self.connection().map_err(sure)?;
        execute(conn, "BEGIN IMMEDIATE").map_err(sure)?;
        let done = act(conn);
        let ended = match done {
            Ok(Done::Commit(answer)) => {
                crash::point("sqlite-outbox-before-commit");
                let committed = execute(conn, "COMMIT");
                crash::point("sqlite-outbox-after-commit");
                committed.map(|()| answer).map_err(|fault| {
                    let doubt = !fault.commit_did_nothing();
                    (fault, doubt)
                })
            }
            Ok(Done::Leave(answer)) => Ok(answer),
            Err(fault) => Err(sure(fault)),
        };
        let clean = conn.is_autocommit() || conn.execute_batch("ROLLBACK").is_ok();
        if !clean {
            self.conn = None;
        }
        ended
    }

    fn last(&mut self, lasting: Lasting) -> Result<(), Fault> {
        if self.conn.is_some() && self.lasting == lasting {
            return Ok(());
        }
        let level = if lasting == Lasting::Disk { "FULL" } else { "NORMAL" };
        self.connection()?.pragma_update(None, "synchronous", level)?;
        self.lasting = lasting;
        Ok(())
    }

    fn connection(&mut self) -> Result<&Connection, Fault> {
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => {
                self.lasting = Lasting::Disk;
                self.opened += 1;
                connect::open(self.shared.place.path(), Role::Relay, self.shared.options.busy_timeout)?
            }
        };
        Ok(self.conn.insert(conn))
    }
}

fn execute(conn: &Connection, sql: &str) -> Result<(), Fault> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// For tests: the next save commits, and its answer is lost.
#[derive(Default)]
pub(super) struct LoseAnswer(AtomicBool);

impl LoseAnswer {
    pub(super) fn once(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_due(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}
