//! The thread that reads. It never waits for the writer: in WAL mode a read sees the last commit.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use semel_core::error::Error;
use semel_core::fingerprint::HashKey;
use semel_core::store::{Filter, LOOK_MAX, Mark, Page, Status};
use semel_core::{Key, OperationId, Record, Token, mutant};

use super::connect::{self, Role};
use super::error::Fault;
use super::generations::Span;
use super::queue::{Queue, Worker};
use super::row;
use super::shared::Shared;

/// Something to look up. It answers its caller itself.
pub(super) type Question = Box<dyn FnOnce(&mut Reader) + Send>;

/// The reading side of a store.
pub(super) struct Reader {
    shared: Arc<Shared>,
    conn: Option<Connection>,
}

/// Runs until the queue closes.
pub(super) fn run(shared: Arc<Shared>, questions: &Queue<Question>, conn: Connection) {
    let _told = Worker(questions);
    connect::be_patient(shared.options.busy_timeout);
    let mut reader = Reader { shared, conn: Some(conn) };
    let mut next = Vec::new();
    while questions.take(&mut next, |_| false) {
        next.drain(..).for_each(|question| question(&mut reader));
    }
}

impl Reader {
    /// The record of an operation, expired or not.
    pub(super) fn get(&mut self, id: OperationId) -> Result<Option<Record>, Error> {
        let shared = self.shared.clone();
        self.look(|conn| {
            let snapshot = conn.unchecked_transaction()?;
            let mark = mark(&snapshot, shared.store_id)?;
            Ok((mark, shared.generations.find(&snapshot, id, mark)?))
        })
    }

    /// Records that match, by token. What lies between is passed by without being decoded.
    pub(super) fn list(&mut self, filter: &Filter, after: Token, limit: u32) -> Result<Page, Error> {
        let now = self.shared.options.clock.now();
        let (limit, shared) = (i64::from(limit.min(LOOK_MAX)), self.shared.clone());
        let (reach, list) = match filter.is_only_unsettled() {
            true => (include_str!("sql/reach_open.sql"), include_str!("sql/list_open.sql")),
            false => (include_str!("sql/reach.sql"), include_str!("sql/list.sql")),
        };
        self.look(|conn| {
            let snapshot = conn.unchecked_transaction()?;
            let mark = mark(&snapshot, shared.store_id)?;
            let after = row::signed(after).unwrap_or(i64::MAX);
            let mut statement = snapshot.prepare_cached(reach)?;
            let (looked, last): (i64, Option<i64>) =
                statement.query_row([after, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let Some(last) = last else { return Ok((mark, Page { now, records: Vec::new(), next: None })) };
            let mut statement = snapshot.prepare_cached(list)?;
            let tenant = filter.tenant.as_ref();
            let wanted = params![
                after,
                last,
                bits(filter),
                filter.namespace,
                tenant.is_some(),
                tenant.and_then(Option::as_deref),
                filter.route,
                filter.key.as_ref().map(Key::as_str),
            ];
            let found: Vec<row::Found> =
                statement.query_map(wanted, row::found)?.collect::<Result<_, _>>()?;
            let records = found.into_iter().filter_map(|(_, record)| record.map_err(left_out).ok()).collect();
            let next = (looked == limit).then_some(Token(last.unsigned_abs()));
            Ok((mark, Page { now, records, next }))
        })
    }

    /// What the store says of itself, also when it went back.
    pub(super) fn status(&mut self) -> Result<Status, Error> {
        let (shared, seen) = (self.shared.clone(), self.shared.seen());
        self.ask(|conn| {
            let snapshot = conn.unchecked_transaction()?;
            let Description { store_id, mark, .. } = describe(&snapshot)?;
            must_be(shared.store_id, store_id)?;
            let mut statement = snapshot.prepare_cached(include_str!("sql/hash_keys.sql"))?;
            let keys = statement.query_map([], |row| Ok(HashKey::new(row.get(0)?, row.get(1)?)))?;
            let hash_keys = keys.collect::<Result<_, _>>()?;
            let went_back_from = shared.judge(seen, mark).err().map(|went_back| went_back.behind.from);
            Ok(Status { store_id, mark, went_back_from, hash_keys })
        })
    }

    /// Looks at a sound store: answer and mark are of one snapshot, taken after `seen` was asked.
    fn look<T>(&mut self, read: impl FnOnce(&Connection) -> Result<(Mark, T), Fault>) -> Result<T, Error> {
        let seen = self.shared.seen();
        let (mark, found) = self.ask(read)?;
        match self.shared.judge(seen, mark) {
            Err(went_back) if !mutant::on("sqlite-reads-after-restore") => Err(self.shared.tell(went_back)),
            _ => Ok(found),
        }
    }

    fn ask<T>(&mut self, read: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, Error> {
        let answer = self.shared.place.check().and_then(|()| read(self.connection()?));
        answer.map_err(|fault| {
            // The next question starts on a new connection, whatever this one suffers from.
            self.conn = None;
            self.shared.note(&fault);
            fault.tell(self.shared.place.path())
        })
    }

    fn connection(&mut self) -> Result<&Connection, Fault> {
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => connect::open(self.shared.place.path(), Role::Reader, self.shared.options.busy_timeout)?,
        };
        Ok(self.conn.insert(conn))
    }
}

/// One record that cannot be read must not hide the others from whoever looks for lapsed ones.
fn left_out(fault: Fault) {
    tracing::warn!(%fault, "a record that cannot be read is left out of a listing");
}

/// A bit for each state wanted.
fn bits(filter: &Filter) -> i64 {
    match &filter.states {
        None => !0,
        Some(states) => states.iter().fold(0, |bits, state| bits | 1 << (*state as u8)),
    }
}

/// How far this store has come. A fault [of its own](Fault::is_exchanged) if the file holds another one by now: SQLite can
/// put other contents into a file that is open (`.restore`), and everybody reads on.
pub(super) fn mark(conn: &Connection, store_id: [u8; 16]) -> Result<Mark, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/mark.sql"))?;
    let found =
        statement.query_row([], |row| Ok((row.get::<_, [u8; 16]>(0)?, mark_at(row, 1)))).optional()?;
    let (found, mark) = found.ok_or_else(|| Fault::damaged("the row that describes the store is missing"))?;
    must_be(store_id, found)?;
    mark
}

pub(super) fn must_be(store_id: [u8; 16], found: [u8; 16]) -> Result<(), Fault> {
    if found == store_id || mutant::on("sqlite-other-contents-unnoticed") {
        return Ok(());
    }
    Err(Fault::exchanged())
}

/// What the store's own row says.
pub(super) struct Description {
    pub(super) store_id: [u8; 16],
    pub(super) mark: Mark,
    pub(super) span: Span,
}

/// Reads the store's own row.
pub(super) fn describe(conn: &Connection) -> Result<Description, Fault> {
    let mut statement = conn.prepare_cached(include_str!("sql/describe.sql"))?;
    let found = statement.query_row([], |row| Ok((row.get(0)?, mark_at(row, 1), row.get(3)?))).optional()?;
    let (store_id, mark, bits) =
        found.ok_or_else(|| Fault::damaged("the row that describes the store is missing"))?;
    Ok(Description { store_id, mark: mark?, span: Span::of_bits(bits)? })
}

fn mark_at(row: &rusqlite::Row<'_>, at: usize) -> Result<Mark, Fault> {
    let unsigned = |number: i64| u64::try_from(number).map_err(|_| Fault::damaged("the mark is negative"));
    Ok(Mark { epoch: unsigned(row.get(at)?)?, token: Token(unsigned(row.get(at + 1)?)?) })
}
