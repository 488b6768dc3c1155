//! The embedded store: one SQLite file, no server.
//!
//! One thread writes, and callers' jobs share its transactions: fetch the record, let the verb
//! decide, write, COMMIT, then answer everybody. A second thread reads. A third moves the
//! write-ahead log into the database file and keeps the witness, so that neither makes a claim wait.
//! What a verb may do is decided by the functions of the core, never by SQL.
//!
//! Every answered write is on disk (`synchronous=FULL`). Several processes may share the file on
//! one machine. Not on a network file system: SQLite's log needs shared memory.
//!
//! Beside the database `NAME` stand SQLite's own `NAME-wal` and `NAME-shm`, which belong to it, and
//! `NAME-semel-witness`, which does not: it remembers how far the store had come, and must stay
//! where it is when a backup is restored. (Where `NAME` is a symbolic link, one stands beside the file and one beside the link.) Then the store opens and describes itself, and answers
//! nothing else until an operator acknowledges. The same goes for another database put in the place
//! of the one the witness knows, or made anew because that one was deleted.
//!
//! What it refuses: to guess. A file that is damaged, replaced while open, or too new is an error
//! that says what to do.

mod connect;
mod error;
mod generations;
pub mod inbox;
mod job;
mod keeper;
mod migrate;
pub mod outbox;
mod place;
mod queue;
mod reader;
mod row;
mod shared;
mod standing;
mod subject_keys;
pub mod tx;
mod witness;
mod work;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use semel_core::claim::{self, Claim};
use semel_core::error::{Error, Kind};
use semel_core::record::Verb;
use semel_core::store::{
    Capabilities, ClockSource, Durability, Filter, Mark, Page, Pending, Status, SubjectPurge, SweepReport,
};
use semel_core::verbs::{Change, Complete, Completion, MarkUnknown, Purge, Release, Renew, Renewal, Settle};
use semel_core::{Clock, EffectStore, Nonce, OperationId, Record, SystemClock, Token, mutant};
use tokio::sync::oneshot;

pub use subject_keys::SqliteSubjectKeys;

use connect::Role;
use error::Fault;
use job::{Job, Task};
use place::Place;
use queue::{Queue, Refused};
use reader::{Description, Question, Reader};
use shared::Shared;
use standing::{Behind, Standing};
use witness::Witnesses;
use work::Work;

/// Records the sweeper looks at in one transaction; claims go in between.
const SWEEP_CHUNK: u32 = 128;

/// Records of a subject purged in one transaction, whatever the caller allows.
const PURGE_MAX: u32 = 1000;

/// What may be chosen about a store. The defaults are right for production.
#[derive(Clone)]
pub struct Options {
    /// Judges deadlines. Processes that share a file must agree on it.
    pub clock: Arc<dyn Clock>,
    /// How long to wait for another process's write lock before a call fails with
    /// [`Kind::Busy`].
    pub busy_timeout: Duration,
    /// Most calls in one transaction.
    pub batch_max: usize,
    /// Most calls waiting; further ones fail with [`Kind::Busy`].
    pub queue_max: usize,
    /// Where to remember how far the store had come; beside the database unless said otherwise.
    /// On another disk it also notices a restored disk.
    pub witness: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            busy_timeout: Duration::from_secs(5),
            batch_max: 256,
            queue_max: 8192,
            witness: None,
        }
    }
}

/// What a file lacks of the schema. Changes nothing.
pub(crate) fn missing(path: &Path) -> Result<crate::Missing, Error> {
    migrate::missing(path)
}

/// A store in one SQLite file.
///
/// Dropping it stops its threads soon; [`close`](Self::close) waits for them.
pub struct SqliteStore {
    shared: Arc<Shared>,
    jobs: Arc<Queue<Box<dyn Job>>>,
    questions: Arc<Queue<Question>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl SqliteStore {
    /// Opens the database at a path, and makes it if there is none. Blocks for some milliseconds.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, Options::default())
    }

    /// Opens with other than the default options.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        connect::check_library()?;
        let place = Place::at(path.as_ref())?;
        let connect = |role| {
            connect::open(place.path(), role, options.busy_timeout).map_err(|fault| fault.tell(place.path()))
        };
        let mut writer = connect(Role::Writer)?;
        migrate::run(&mut writer, &place, options.clock.now())?;
        let (reader, keeper) = (connect(Role::Reader)?, connect(Role::Keeper)?);
        let witnesses = Witnesses::at(options.witness.as_deref(), &place, "-semel-witness");
        let (store, standing) = look_at(&writer, &place, &witnesses)?;
        let shared = Arc::new(Shared::new(place, witnesses, options, &store, standing));
        Self::start(shared, writer, reader, keeper)
    }

    fn start(
        shared: Arc<Shared>,
        writer: rusqlite::Connection,
        reader: rusqlite::Connection,
        keeper: rusqlite::Connection,
    ) -> Result<Self, Error> {
        let queue_max = shared.options.queue_max;
        let store = Self {
            jobs: Arc::new(Queue::new(queue_max)),
            questions: Arc::new(Queue::new(queue_max)),
            threads: Mutex::default(),
            shared: shared.clone(),
        };
        let (jobs, questions) = (store.jobs.clone(), store.questions.clone());
        let (for_writer, for_reader) = (shared.clone(), shared.clone());
        // If one cannot be started, dropping the store stops those that were.
        let threads = [
            spawn("semel-writer", move || writer::run(for_writer, &jobs, writer))?,
            spawn("semel-reader", move || reader::run(for_reader, &questions, reader))?,
            spawn("semel-keeper", move || keeper::run(shared, keeper))?,
        ];
        store.lock_threads().extend(threads);
        Ok(store)
    }

    /// Works off what waits, writes the witness, and closes the file. Calls after it fail with
    /// [`Kind::Closed`].
    ///
    /// # Cancellation
    /// Safe: it closes all the same.
    pub async fn close(&self) {
        self.jobs.close();
        self.questions.close();
        let threads = std::mem::take(&mut *self.lock_threads());
        let shared = self.shared.clone();
        let (closed, heard) = oneshot::channel::<()>();
        // The keeper last: it has to see what the writer did. A thread that panicked has closed its
        // queue, and there is nothing more to do about it here.
        let closer = spawn("semel-close", move || {
            let mut threads = threads.into_iter();
            threads.by_ref().take(2).for_each(|thread| drop(thread.join()));
            shared.bell.stop();
            threads.for_each(|thread| drop(thread.join()));
            drop(closed);
        });
        if closer.is_ok() {
            let _ = heard.await;
        }
    }

    fn lock_threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn verb<'a, V: Verb>(&'a self, verb: &'a V, bytes: usize) -> Pending<'a, V::Answer> {
        Box::pin(async move {
            let verb = verb.clone();
            self.write(bytes, move |work| work.step(&verb)).await
        })
    }

    async fn write<T, F>(&self, bytes: usize, run: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnMut(&mut Work<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let (caller, answer) = oneshot::channel();
        self.submit(Task::new(run, bytes, caller), answer).await
    }

    async fn submit<T>(
        &self,
        job: impl Job + 'static,
        answer: oneshot::Receiver<Result<T, Error>>,
    ) -> Result<T, Error> {
        self.jobs.push(Box::new(job)).map_err(|refused| self.refused(refused))?;
        // The writer is gone without an answer only if it panicked, and nobody knows how far it got.
        answer.await.unwrap_or_else(|_| Err(self.refused(Refused::Closed).maybe_applied()))
    }

    async fn read<T, F>(&self, look: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Reader) -> Result<T, Error> + Send + 'static,
    {
        let (caller, answer) = oneshot::channel();
        let question: Question = Box::new(move |reader| {
            // The caller may have been cancelled.
            let _ = caller.send(look(reader));
        });
        self.questions.push(question).map_err(|refused| self.refused(refused))?;
        answer.await.unwrap_or_else(|_| Err(self.refused(Refused::Closed)))
    }

    fn refused(&self, refused: Refused) -> Error {
        let at = self.shared.place.path().display();
        match refused {
            Refused::Full => Error::new(
                Kind::Busy,
                format!(
                    "{} calls are waiting for the database {at}, and no more are taken; try again",
                    self.shared.options.queue_max
                ),
            ),
            Refused::Closed => {
                Error::new(Kind::Closed, format!("the database {at} was closed; open it again"))
            }
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.jobs.close();
        self.questions.close();
        self.shared.bell.stop();
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.shared.place.path()).finish_non_exhaustive()
    }
}

/// What a store says of itself, and whether its witnesses agree. They are asked first: beside a process that is at work
/// they go on, and must not have seen more than what is then found.
fn look_at(
    conn: &rusqlite::Connection,
    place: &Place,
    witnesses: &Witnesses,
) -> Result<(Description, Standing), Error> {
    let describe = || reader::describe(conn).map_err(|fault| fault.tell(place.path()));
    let look = || {
        let too_early = mutant::on("sqlite-witness-asked-late").then(describe).transpose()?;
        let witnessed = witnesses.load()?;
        let store = too_early.map_or_else(describe, Ok)?;
        let standing = Standing::at_open(store.store_id, store.mark, &witnessed);
        Ok((store, standing))
    };
    match look()? {
        // Unless an operator has just accepted it, somewhere else.
        (_, Standing { behind: Some(Behind { foreign: true, .. }), .. }) => look(),
        sound => Ok(sound),
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|error| {
        Error::new(
            Kind::Busy,
            "the system has no thread to give for the database; raise the limit of threads",
        )
        .because(error)
    })
}

impl EffectStore for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            engine: "sqlite",
            clock: ClockSource::Host,
            durability: Durability::Disk,
            same_transaction: true,
            time_precision: Duration::from_micros(1),
        }
    }

    fn claim<'a>(&'a self, request: &'a claim::Request) -> Pending<'a, Claim> {
        self.verb(request, 0)
    }

    fn renew<'a>(&'a self, renew: &'a Renew) -> Pending<'a, Renewal> {
        self.verb(renew, 0)
    }

    fn complete<'a>(&'a self, complete: &'a Complete) -> Pending<'a, Completion> {
        self.verb(complete, complete.outcome.len())
    }

    fn release<'a>(&'a self, release: &'a Release) -> Pending<'a, Change> {
        self.verb(release, 0)
    }

    fn mark_unknown<'a>(&'a self, mark: &'a MarkUnknown) -> Pending<'a, Change> {
        self.verb(mark, 0)
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Change> {
        self.verb(settle, 0)
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> Pending<'a, Change> {
        self.verb(purge, 0)
    }

    fn purge_subject<'a>(
        &'a self,
        subject: &'a str,
        nonce: Nonce,
        note: &'a str,
        limit: u32,
    ) -> Pending<'a, SubjectPurge> {
        let (subject, note, limit) = (subject.to_owned(), note.to_owned(), limit.min(PURGE_MAX));
        Box::pin(self.write(0, move |work| work.purge_subject(&subject, nonce, &note, limit)))
    }

    fn get(&self, operation: OperationId) -> Pending<'_, Option<Record>> {
        Box::pin(self.read(move |reader| reader.get(operation)))
    }

    fn list<'a>(&'a self, filter: &'a Filter, after: Token, limit: u32) -> Pending<'a, Page> {
        let filter = filter.clone();
        Box::pin(self.read(move |reader| reader.list(&filter, after, limit)))
    }

    /// In chunks, each a transaction of its own that other calls may share or precede.
    fn sweep(&self, limit: u32, unknown_kept: Duration) -> Pending<'_, SweepReport> {
        Box::pin(async move {
            let (mut left, mut total) = (limit, SweepReport::default());
            loop {
                let chunk = left.min(SWEEP_CHUNK);
                let report = self.write(0, move |work| work.sweep(chunk, unknown_kept)).await?;
                left -= chunk;
                total.deleted += report.deleted;
                total.shrunk += report.shrunk;
                total.more = report.more;
                if left == 0 || !report.more {
                    return Ok(total);
                }
            }
        })
    }

    fn status(&self) -> Pending<'_, Status> {
        Box::pin(self.read(Reader::status))
    }

    fn acknowledge_restore<'a>(&'a self, by: &'a str) -> Pending<'a, Mark> {
        let by = by.to_owned();
        Box::pin(async move {
            let (caller, answer) = oneshot::channel();
            let job = Task::new(move |work: &mut Work<'_>| work.acknowledge(&by), 0, caller);
            self.submit(job.on_any_store(), answer).await
        })
    }

    fn rotate_hash_key(&self) -> Pending<'_, u32> {
        Box::pin(self.write(0, |work| work.rotate_hash_key()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use super::*;

    // G-13
    #[test]
    fn who_opens_a_store_beside_one_that_is_at_work_does_not_take_it_for_restored() {
        let directory = tempfile::tempdir().unwrap();
        // Whoever reads a pipe waits for what is written to it.
        let (path, pipe) = (directory.path().join("semel.db"), directory.path().join("pipe"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        drop(SqliteStore::open(&path).unwrap());
        let place = Place::at(&path).unwrap();
        let conn = connect::open(place.path(), Role::Writer, Duration::from_secs(5)).unwrap();
        let Description { store_id, mut mark, .. } = reader::describe(&conn).unwrap();
        // Whenever somebody has begun to look, another process goes on.
        let (at, into, witness) = (path.clone(), pipe.clone(), directory.path().join("witness"));
        thread::spawn(move || {
            let busy = rusqlite::Connection::open(at).unwrap();
            while let Ok(mut into) = std::fs::File::options().write(true).open(&into) {
                busy.execute(include_str!("sql/spend_token.sql"), []).unwrap();
                mark.token = Token(mark.token.0 + 1);
                witness::Witness { store_id, mark, behind: false }.save(&witness, &witness).unwrap();
                let _ = into.write_all(&std::fs::read(&witness).unwrap());
            }
        });
        let witnesses = Witnesses::at(Some(&pipe), &place, "");
        let (found, standing) = look_at(&conn, &place, &witnesses).unwrap();
        assert_eq!(standing.behind, None);
        assert!(found.mark.token > mark.token);
    }
}
