//! Keys of subjects in a PostgreSQL database of their own.
//!
//! One table, one statement per verb, no session state: a pooler in transaction mode may stand between.
//!
//! A key that is forgotten is gone from what the server answers. Its bytes stay in dead rows until they are
//! vacuumed and overwritten, in the write-ahead log, and in every backup of this database until that ages out;
//! there they are still wrapped by the master key, and rotating that key ends it. A backup of a whole cluster
//! holds all its databases: keep the keys on another cluster than what they seal.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::error::{Error, Kind};
use semel_core::mutant;
use semel_core::store::Pending;
use semel_core::subject::{Forgotten, KEY_ID_BYTES, KeyId, SubjectId, SubjectKeys, Wrapped};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connect::{Connector, Live, Param, get, refuse_replica};
use super::options::{Address, Options};
use crate::horizon::{Horizon, Seen};

const EXAMINE: &str = include_str!("sql/examine.sql");
const SCHEMA: &str = include_str!("sql/schema.sql");
const LOCK: &str = include_str!("sql/lock.sql");
const OBTAIN: &str = include_str!("sql/obtain.sql");
const FIND: &str = include_str!("sql/find.sql");
const WRAPPED_BY: &str = include_str!("sql/wrapped_by.sql");
const REWRAP: &str = include_str!("sql/rewrap.sql");
const FORGET: &str = include_str!("sql/forget.sql");

/// The version of the tables this build knows.
const VERSION: i32 = 1;
/// How often a key is asked for that others make and forget at the same moment.
const OBTAIN_TRIES: u32 = 8;

/// Keys of subjects in one PostgreSQL database.
pub struct PostgresSubjectKeys {
    connector: Connector,
    idle: Mutex<Vec<Live>>,
    permits: Semaphore,
    connect_wait: Duration,
    call_timeout: Duration,
}

impl PostgresSubjectKeys {
    /// Connects with the defaults, and makes the table if it is missing.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(Options::new(url)).await
    }

    /// Connects. Refuses a replica, which would go on answering what was forgotten, and a database that holds a
    /// store of operations: its backups would hold both the keys and what they seal.
    ///
    /// # Cancellation
    /// Safe. The table is made whole or not at all.
    pub async fn connect_with(options: Options) -> Result<Self, Error> {
        options.check()?;
        let address = Address::of(&options)?;
        let horizon = std::sync::Arc::new(Horizon::new("PostgreSQL", Seen::default()));
        let place = Self {
            connector: Connector::new(address, &options, horizon)?,
            idle: Mutex::default(),
            permits: Semaphore::new(options.connections),
            connect_wait: options.connect_wait,
            call_timeout: options.call_timeout,
        };
        let live = place.connector.dial().await?;
        if !place.examine(&live).await? {
            place.make_tables(&live).await?;
        }
        let version: i32 = match live.query(place.call_timeout, include_str!("sql/version.sql"), &[]).await {
            Ok(rows) => get(rows.first().ok_or_else(super::chores::no_row)?, 0)?,
            Err(fault) => return Err(fault.error()),
        };
        if version != VERSION {
            let at = place.connector.place();
            let sentence = format!(
                "the keys at {at} are kept in version {version}; this build knows {VERSION}: upgrade it"
            );
            return Err(Error::new(Kind::Schema, sentence));
        }
        place.idle().push(live);
        Ok(place)
    }

    /// Whether the tables are there.
    async fn examine(&self, live: &Live) -> Result<bool, Error> {
        let rows = live.query(self.call_timeout, EXAMINE, &[]).await.map_err(|fault| fault.error())?;
        let row = rows.first().ok_or_else(super::chores::no_row)?;
        refuse_replica(row, self.connector.place())?;
        if get::<bool>(row, 3)? {
            return Err(Error::new(
                Kind::Misconfigured,
                format!(
                    "the database {} holds a store of operations; keys of subjects need a database of their own, or a \
                     backup of it would hold both the keys and what they seal",
                    self.connector.place()
                ),
            ));
        }
        get(row, 2)
    }

    async fn make_tables(&self, live: &Live) -> Result<(), Error> {
        // One message is one transaction.
        let script = format!("{LOCK};\n{SCHEMA};");
        let made = timeout(self.call_timeout, live.client.batch_execute(&script)).await;
        match made {
            Ok(made) => made.map_err(|error| super::fault::Fault::of(&error).error()),
            Err(_) => Err(Error::new(Kind::TimedOut, "PostgreSQL did not make the table of keys in time")),
        }
    }

    /// One statement. A connection on which something failed is not used again.
    async fn ask(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        let _permit = match timeout(self.connect_wait, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            _ => {
                return Err(Error::new(
                    Kind::Busy,
                    "all connections to the place of subjects' keys are in use",
                ));
            }
        };
        let live = match self.take_idle() {
            Some(live) => live,
            None => {
                let live = self.connector.dial().await?;
                self.examine(&live).await?;
                live
            }
        };
        // Dropped before the answer, the connection goes with it.
        let live = Held(Some(live));
        let rows = live.live().query(self.call_timeout, sql, params).await.map_err(|fault| fault.error())?;
        self.idle().extend(live.let_go());
        Ok(rows)
    }

    fn take_idle(&self) -> Option<Live> {
        let mut idle = self.idle();
        std::iter::from_fn(|| idle.pop()).find(|live| !live.client.is_closed())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Live>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in use.
struct Held(Option<Live>);

impl Held {
    fn live(&self) -> &Live {
        self.0.as_ref().expect("it is held until it is let go of")
    }

    fn let_go(mut self) -> Option<Live> {
        self.0.take()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(live) = self.0.take() {
            live.kill();
        }
    }
}

fn wrapped(row: &Row) -> Result<Wrapped, Error> {
    let id: &[u8] = get(row, 0)?;
    let damaged =
        || Error::new(Kind::Damaged, "the table semel_subject_key holds something that cannot be read");
    let id: [u8; KEY_ID_BYTES] = id.try_into().map_err(|_| damaged())?;
    let sealed: Vec<u8> = get(row, 2)?;
    Ok(Wrapped { id: KeyId::from_bytes(id), master: get(row, 1)?, sealed: sealed.into() })
}

impl SubjectKeys for PostgresSubjectKeys {
    fn obtain<'a>(&'a self, subject: SubjectId, offered: &'a Wrapped) -> Pending<'a, Wrapped> {
        Box::pin(async move {
            let (subject, id) = (subject.as_bytes().as_slice(), offered.id.as_bytes().as_slice());
            let (master, sealed) = (offered.master.as_str(), offered.sealed.as_ref());
            let params: [Param<'_>; 4] =
                [(&subject, Type::BYTEA), (&id, Type::BYTEA), (&master, Type::TEXT), (&sealed, Type::BYTEA)];
            for _ in 0..OBTAIN_TRIES {
                if let Some(row) = self.ask(OBTAIN, &params).await?.first() {
                    return wrapped(row);
                }
            }
            Err(Error::new(Kind::Busy, "the key of this subject is being made and forgotten all the time"))
        })
    }

    fn find(&self, key: KeyId) -> Pending<'_, Option<Wrapped>> {
        Box::pin(async move {
            let rows = self.ask(FIND, &[(&key.as_bytes().as_slice(), Type::BYTEA)]).await?;
            rows.first().map(wrapped).transpose()
        })
    }

    fn rewrap<'a>(&'a self, fresh: &'a Wrapped) -> Pending<'a, ()> {
        Box::pin(async move {
            let (id, sealed) = (fresh.id.as_bytes().as_slice(), fresh.sealed.as_ref());
            let master = fresh.master.as_str();
            let params: [Param<'_>; 3] = [(&id, Type::BYTEA), (&master, Type::TEXT), (&sealed, Type::BYTEA)];
            self.ask(REWRAP, &params).await.map(drop)
        })
    }

    fn wrapped_by<'a>(&'a self, master: &'a str, after: KeyId, limit: u32) -> Pending<'a, Vec<Wrapped>> {
        Box::pin(async move {
            let (after, limit) = (after.as_bytes().as_slice(), i64::from(limit));
            let params: [Param<'_>; 3] = [(&master, Type::TEXT), (&after, Type::BYTEA), (&limit, Type::INT8)];
            self.ask(WRAPPED_BY, &params).await?.iter().map(wrapped).collect()
        })
    }

    fn forget(&self, subject: SubjectId) -> Pending<'_, Forgotten> {
        Box::pin(async move {
            if mutant::on("forget-leaves-the-key") {
                return Ok(Forgotten::Key);
            }
            let rows = self.ask(FORGET, &[(&subject.as_bytes().as_slice(), Type::BYTEA)]).await?;
            Ok(if rows.is_empty() { Forgotten::Nothing } else { Forgotten::Key })
        })
    }
}
