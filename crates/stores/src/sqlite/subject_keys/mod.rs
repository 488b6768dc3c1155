//! Keys of subjects in a SQLite file of their own.
//!
//! A thread owns the connection; callers that want keys for new subjects at the same time share a commit. Several
//! processes may use the file at once.
//!
//! What is forgotten is overwritten in the file, and the log beside it is emptied before forgetting is
//! answered. What the file system keeps beside the file (snapshots, copies, blocks a disk has set aside) is
//! beyond this; there the wrapping by the master key is what protects, and rotating that key ends it.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use semel_core::error::{Error, Kind};
use semel_core::mutant;
use semel_core::store::Pending;
use semel_core::subject::{Forgotten, KEY_ID_BYTES, KeyId, SubjectId, SubjectKeys, Wrapped};
use tokio::sync::{mpsc, oneshot};

use super::connect::{self, Role};
use super::error::Fault;
use super::place::Place;
use crate::crash;

/// How long to wait for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Most calls waiting; further ones fail as busy.
const QUEUE_MAX: usize = 4096;
/// Most new keys in one commit.
const BATCH_MAX: usize = 256;
/// The version of the tables this build knows.
const VERSION: i64 = 1;
/// Bytes of a wrapped key: nonce, key, tag.
const SEALED_BYTES: usize = 72;
/// The log is moved into the file whenever it has this many pages.
const CHECKPOINT_PAGES: u32 = 256;

/// Keys of subjects in one SQLite file.
///
/// Dropping it ends its thread soon.
pub struct SqliteSubjectKeys {
    jobs: mpsc::Sender<Job>,
}

enum Job {
    Obtain(Wish),
    Other(Box<dyn FnOnce(&mut Hand) + Send>),
}

/// A subject, the key offered for it, and who wants to know.
struct Wish {
    subject: SubjectId,
    offered: Wrapped,
    tell: oneshot::Sender<Result<Wrapped, Error>>,
}

impl SqliteSubjectKeys {
    /// Opens the file at a path, and makes it, for its owner alone, if there is none. Blocks for some
    /// milliseconds. Refuses a file that holds a store of operations: its backups would hold both the keys and
    /// what they seal.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        connect::check_library()?;
        let place = Place::at(path.as_ref())?;
        let mut hand = Hand { conn: connect(&place)?, place };
        hand.tables()?;
        // A crash may have come between forgetting a key and emptying the log.
        if let Err(fault) = hand.empty_log() {
            tracing::warn!(error = %fault.tell(hand.place.path()), "the log of subjects' keys is in use by others");
        }
        let (jobs, mut queue) = mpsc::channel(QUEUE_MAX);
        let work = move || {
            connect::be_patient(BUSY_TIMEOUT);
            while let Some(job) = queue.blocking_recv() {
                hand.work(job, &mut queue);
            }
        };
        let thread = std::thread::Builder::new().name("semel-keys".into()).spawn(work);
        thread.map_err(|error| Error::new(Kind::Busy, "no thread could be started").because(error))?;
        Ok(Self { jobs })
    }

    fn send(&self, job: Job) -> Result<(), Error> {
        self.jobs.try_send(job).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => {
                Error::new(Kind::Busy, "too many calls wait for the file of subjects' keys")
            }
            mpsc::error::TrySendError::Closed(_) => ended(),
        })
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Hand) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Error> {
        let (tell, told) = oneshot::channel();
        self.send(Job::Other(Box::new(move |hand| {
            let answer = hand.place.check().and_then(|()| question(hand));
            let _ = tell.send(answer.map_err(|fault| fault.tell(hand.place.path())));
        })))?;
        told.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> Error {
    Error::new(Kind::Closed, "the thread of subjects' keys has ended")
}

fn connect(place: &Place) -> Result<Connection, Error> {
    let open = || -> Result<Connection, Fault> {
        let conn = connect::open(place.path(), Role::Writer, BUSY_TIMEOUT)?;
        // What is deleted is overwritten; the tables see to it that nothing moves.
        conn.pragma_update_and_check(None, "secure_delete", true, |_| Ok(()))?;
        conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        Ok(conn)
    };
    open().map_err(|fault| fault.tell(place.path()))
}

/// The connection, and where it leads.
struct Hand {
    conn: Connection,
    place: Place,
}

impl Hand {
    /// Makes the tables if they are missing, all or nothing.
    fn tables(&mut self) -> Result<(), Error> {
        let path = self.place.path().to_owned();
        let tell = |fault: Fault| fault.tell(&path);
        if look(&self.conn).map_err(tell)? == (false, false) {
            make(&mut self.conn).map_err(tell)?;
        }
        let (has_keys, is_store) = look(&self.conn).map_err(tell)?;
        if is_store || !has_keys {
            return Err(Error::new(
                Kind::Misconfigured,
                format!(
                    "{} holds a store of operations; keys of subjects need a file of their own, or a backup of it \
                     would hold both the keys and what they seal",
                    path.display()
                ),
            ));
        }
        let version = self.conn.query_row(include_str!("sql/version.sql"), [], |row| row.get::<_, i64>(0));
        match version.map_err(|error| tell(error.into()))? {
            VERSION => Ok(()),
            newer => Err(Error::new(
                Kind::Schema,
                format!(
                    "the keys in {} are kept in version {newer}; this build knows {VERSION}: upgrade it",
                    path.display()
                ),
            )),
        }
    }

    fn work(&mut self, job: Job, queue: &mut mpsc::Receiver<Job>) {
        let mut wishes = Vec::new();
        let mut next = Some(job);
        while let Some(job) = next.take() {
            match job {
                Job::Obtain(wish) => {
                    wishes.push(wish);
                    next = if wishes.len() < BATCH_MAX { queue.try_recv().ok() } else { None };
                }
                Job::Other(question) => {
                    self.obtain_all(std::mem::take(&mut wishes));
                    question(self);
                }
            }
        }
        self.obtain_all(wishes);
    }

    /// Answers all that wait for a key. One that is there costs no write.
    fn obtain_all(&mut self, wishes: Vec<Wish>) {
        if wishes.is_empty() {
            return;
        }
        let answers = self.obtain(&wishes).map_err(|fault| fault.tell(self.place.path()));
        match answers {
            Ok(keys) => {
                for (wish, key) in wishes.into_iter().zip(keys) {
                    let _ = wish.tell.send(Ok(key));
                }
            }
            Err(error) => {
                for wish in wishes {
                    // Perhaps made, perhaps not: asking again tells, and nobody has used it.
                    let _ = wish.tell.send(Err(Error::new(error.kind(), error.to_string())));
                }
            }
        }
    }

    fn obtain(&mut self, wishes: &[Wish]) -> Result<Vec<Wrapped>, Fault> {
        self.place.check()?;
        let there = |conn: &Connection| -> Result<Vec<Option<Wrapped>>, Fault> {
            wishes.iter().map(|wish| of_subject(conn, wish.subject)).collect()
        };
        let found = there(&self.conn)?;
        if found.iter().all(Option::is_some) {
            return Ok(found.into_iter().flatten().collect());
        }
        let locked = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut keys = Vec::with_capacity(wishes.len());
        for wish in wishes {
            // Looked at again: another process, or a wish before this one, may have made it.
            let key = match of_subject(&locked, wish.subject)? {
                Some(key) => key,
                None => {
                    add(&locked, wish.subject, &wish.offered)?;
                    wish.offered.clone()
                }
            };
            keys.push(key);
        }
        crash::point("keys-before-obtain");
        locked.commit()?;
        // A file that was taken away meanwhile has taken the keys with it.
        self.place.check()?;
        crash::point("keys-obtained");
        Ok(keys)
    }

    fn rewrap(&mut self, fresh: &Wrapped) -> Result<(), Fault> {
        let locked = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let values = params![fresh.id.as_bytes().as_slice(), fresh.master];
        let slot: Option<i64> = locked
            .prepare_cached(include_str!("sql/rewrap.sql"))?
            .query_row(values, |row| row.get(0))
            .optional()?;
        if let Some(slot) = slot {
            fill(&locked, slot, &fresh.sealed)?;
        }
        Ok(locked.commit()?)
    }

    fn forget(&mut self, subject: SubjectId) -> Result<Forgotten, Fault> {
        let locked = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let slot: Option<i64> = locked
            .prepare_cached(include_str!("sql/forget.sql"))?
            .query_row([subject.as_bytes().as_slice()], |row| row.get(0))
            .optional()?;
        if let Some(slot) = slot {
            if !mutant::on("forgotten-key-stays-on-disk") {
                fill(&locked, slot, &[0; SEALED_BYTES])?;
            }
            locked.prepare_cached(include_str!("sql/free_slot.sql"))?.execute([slot])?;
        }
        crash::point("keys-before-forget");
        if mutant::on("forget-leaves-the-key") {
            locked.rollback()?;
        } else {
            locked.commit()?;
        }
        crash::point("keys-before-emptied");
        // Also if there was nothing: an earlier call may have ended right here.
        if !mutant::on("forgotten-key-stays-in-the-log") {
            self.empty_log()?;
        }
        crash::point("keys-forgotten");
        Ok(if slot.is_some() { Forgotten::Key } else { Forgotten::Nothing })
    }

    /// Moves the log into the file and cuts it to nothing. Fails as busy if a reader elsewhere holds on to it.
    fn empty_log(&mut self) -> Result<(), Fault> {
        let busy: i64 = self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if busy != 0 { Err(Fault::busy("the log is in use, and holds what was forgotten")) } else { Ok(()) }
    }
}

/// Whether there are keys, and whether there is a store of operations.
fn look(conn: &Connection) -> Result<(bool, bool), Fault> {
    Ok(conn.query_row(include_str!("sql/tables.sql"), [], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

fn make(conn: &mut Connection) -> Result<(), Fault> {
    let locked = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Looked at again: another process may have come first.
    if look(&locked)? == (false, false) {
        locked.execute_batch(include_str!("sql/schema.sql"))?;
    }
    Ok(locked.commit()?)
}

fn of_subject(conn: &Connection, subject: SubjectId) -> Result<Option<Wrapped>, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/of_subject.sql"))?;
    Ok(statement.query_row([subject.as_bytes().as_slice()], wrapped).optional()?)
}

fn add(conn: &Connection, subject: SubjectId, key: &Wrapped) -> Result<(), Fault> {
    let free: Option<i64> =
        conn.prepare_cached(include_str!("sql/take_free.sql"))?.query_row([], |row| row.get(0)).optional()?;
    let slot = match free {
        Some(slot) => {
            fill(conn, slot, &key.sealed)?;
            slot
        }
        None => conn
            .prepare_cached(include_str!("sql/add_slot.sql"))?
            .query_row([key.sealed.as_ref()], |row| row.get(0))?,
    };
    let values = params![subject.as_bytes().as_slice(), key.id.as_bytes().as_slice(), key.master, slot];
    conn.prepare_cached(include_str!("sql/add.sql"))?.execute(values)?;
    Ok(())
}

fn fill(conn: &Connection, slot: i64, sealed: &[u8]) -> Result<(), Fault> {
    let filled = conn.prepare_cached(include_str!("sql/fill_slot.sql"))?.execute(params![slot, sealed])?;
    if filled == 1 {
        Ok(())
    } else {
        Err(Fault::damaged(format!("slot {slot} of a subject's key is missing")))
    }
}

fn wrapped(row: &Row<'_>) -> rusqlite::Result<Wrapped> {
    let id: [u8; KEY_ID_BYTES] = row.get(0)?;
    let sealed: Vec<u8> = row.get(2)?;
    Ok(Wrapped { id: KeyId::from_bytes(id), master: row.get(1)?, sealed: sealed.into() })
}

impl SubjectKeys for SqliteSubjectKeys {
    fn obtain<'a>(&'a self, subject: SubjectId, offered: &'a Wrapped) -> Pending<'a, Wrapped> {
        Box::pin(async move {
            let (tell, told) = oneshot::channel();
            self.send(Job::Obtain(Wish { subject, offered: offered.clone(), tell }))?;
            told.await.unwrap_or_else(|_| Err(ended()))
        })
    }

    fn find(&self, key: KeyId) -> Pending<'_, Option<Wrapped>> {
        Box::pin(self.ask(move |hand| {
            let mut statement = hand.conn.prepare_cached(include_str!("sql/by_id.sql"))?;
            Ok(statement.query_row([key.as_bytes().as_slice()], wrapped).optional()?)
        }))
    }

    fn rewrap<'a>(&'a self, fresh: &'a Wrapped) -> Pending<'a, ()> {
        let fresh = fresh.clone();
        Box::pin(self.ask(move |hand| hand.rewrap(&fresh)))
    }

    fn wrapped_by<'a>(&'a self, master: &'a str, after: KeyId, limit: u32) -> Pending<'a, Vec<Wrapped>> {
        let master = master.to_owned();
        Box::pin(self.ask(move |hand| {
            let mut statement = hand.conn.prepare_cached(include_str!("sql/wrapped_by.sql"))?;
            let found = statement.query_map(params![master, after.as_bytes().as_slice(), limit], wrapped)?;
            Ok(found.collect::<Result<_, _>>()?)
        }))
    }

    fn forget(&self, subject: SubjectId) -> Pending<'_, Forgotten> {
        Box::pin(self.ask(move |hand| hand.forget(subject)))
    }
}
