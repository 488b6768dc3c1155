//! Connections: opened with patience, examined before use, given up when in doubt.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::error::{Error, Kind};
use semel_core::store::Mark;
use semel_core::{Backoff, Nonce, Token};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::{self, Fault};
use super::options::{Address, Options};
use super::{sql, tls};
use crate::horizon::{Found, Horizon, Kept, Seen};

/// A bound value and its type, as the driver wants them.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// One connection, fit for use.
pub(super) struct Live {
    pub(super) client: Client,
    driver: AbortHandle,
}

impl Live {
    /// Cuts the connection now, whatever is on its way. The server rolls back what was not committed.
    pub(super) fn kill(self) {
        self.driver.abort();
    }

    /// Which cluster and database this is, if the server tells.
    pub(super) async fn here(&self, limit: Duration) -> Result<Option<String>, Error> {
        match self.query(limit, sql::HERE, &[]).await {
            Ok(rows) => rows.first().map_or(Ok(None), |row| get(row, 0)),
            Err(fault) if fault.broken => Err(fault.error()),
            Err(_) => Ok(None),
        }
    }

    /// One statement by itself, with no COMMIT to lose.
    pub(super) async fn query(
        &self,
        limit: Duration,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        match timeout(limit, self.client.query_typed(sql, params)).await {
            Ok(rows) => rows.map_err(|error| Fault::of(&error)),
            Err(_) => Err(Fault::timed_out(false)),
        }
    }
}

/// Opens connections to one store.
pub(super) struct Connector {
    config: Config,
    tls: MakeRustlsConnect,
    place: String,
    connect_timeout: Duration,
    connect_wait: Duration,
    call_timeout: Duration,
    pace: Mutex<Option<Pace>>,
    looks_for_records: bool,
    pub(super) horizon: Arc<Horizon>,
}

/// Shared by all who want a connection while there is none to be had.
struct Pace {
    next: Instant,
    backoff: Backoff,
    sentence: String,
}

impl Connector {
    pub(super) fn new(address: Address, options: &Options, horizon: Arc<Horizon>) -> Result<Self, Error> {
        Ok(Self {
            tls: tls::connector(&address)?,
            config: address.config,
            place: address.place,
            connect_timeout: options.connect_timeout,
            connect_wait: options.connect_wait,
            call_timeout: options.call_timeout,
            pace: Mutex::new(None),
            looks_for_records: false,
            horizon,
        })
    }

    /// For a store of operations: its connections also look whether the newest record it knows of is there. (A
    /// relay's role may not read them.)
    pub(super) fn looking_for_records(self) -> Self {
        Self { looks_for_records: true, ..self }
    }

    /// One attempt at a connection, not yet examined.
    pub(super) async fn dial(&self) -> Result<Live, Error> {
        let unreachable = |cause: String| {
            let sentence =
                format!("PostgreSQL at {} cannot be reached; check address, network and server", self.place);
            Error::new(Kind::Unreachable, sentence).because(cause)
        };
        let dialled = timeout(self.connect_timeout, self.config.connect(self.tls.clone())).await;
        match dialled {
            Err(_) => Err(unreachable(format!("no answer within {:?}", self.connect_timeout))),
            Ok(Err(error)) if error.as_db_error().is_some() => {
                let fault = Fault::of(&error).error();
                Err(Error::new(fault.kind(), format!("{}: {fault}", self.place)))
            }
            Ok(Err(error)) => Err(match error.to_string().as_str() {
                // The driver has no better way to tell.
                "error performing TLS handshake" | "invalid configuration" | "authentication error" => {
                    let sentence = format!("PostgreSQL at {} was not trusted, or has no TLS", self.place);
                    Error::new(Kind::Denied, sentence).because(fault::chain(&error))
                }
                _ => unreachable(fault::chain(&error)),
            }),
            Ok(Ok((client, connection))) => {
                let driver = tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(error = %fault::chain(&error), "a PostgreSQL connection ended");
                    }
                });
                Ok(Live { client, driver: driver.abort_handle() })
            }
        }
    }

    /// A connection fit for use, within the time a call may wait for one.
    pub(super) async fn open(&self) -> Result<Live, Error> {
        let deadline = Instant::now() + self.connect_wait;
        loop {
            self.wait_turn(deadline).await?;
            let error = match timeout(deadline - Instant::now(), self.try_open()).await {
                Ok(Ok(live)) => {
                    self.set_pace(None);
                    return Ok(live);
                }
                Ok(Err(error)) if error.kind() == Kind::Unreachable => error,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    let sentence =
                        format!("PostgreSQL at {} did not accept a connection in time", self.place);
                    return Err(Error::new(Kind::Unreachable, sentence));
                }
            };
            self.slow_down(&error);
        }
    }

    async fn try_open(&self) -> Result<Live, Error> {
        let live = self.dial().await?;
        self.examine(&live).await?;
        Ok(live)
    }

    /// Waits until the next attempt is allowed; fails at once if that is too late for this call.
    async fn wait_turn(&self, deadline: Instant) -> Result<(), Error> {
        let turn = self.pace().as_ref().map(|pace| (pace.next, pace.sentence.clone()));
        match turn {
            Some((next, sentence)) if next >= deadline => Err(Error::new(Kind::Unreachable, sentence)),
            Some((next, _)) => {
                sleep_until(next).await;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn slow_down(&self, error: &Error) {
        let mut pace = self.pace();
        let pace = pace.get_or_insert_with(|| Pace {
            next: Instant::now(),
            backoff: Backoff::new(Nonce::random()),
            sentence: String::new(),
        });
        if pace.next <= Instant::now() {
            pace.next = Instant::now() + pace.backoff.next_pause();
            pace.sentence = error.to_string();
        }
    }

    /// Looks which store is there, how far it has come, and whether it takes writes.
    pub(super) async fn examine(&self, live: &Live) -> Result<Found, Error> {
        loop {
            let seen = self.horizon.seen();
            let rows =
                live.query(self.call_timeout, sql::EXAMINE, &[]).await.map_err(|fault| fault.error())?;
            let row = rows.first().ok_or_else(|| {
                Error::new(Kind::Schema, "the table semel_meta is empty; restore it from a backup")
            })?;
            refuse_replica(row, &self.place)?;
            let mut found = Found { here: live.here(self.call_timeout).await?, ..found(row)? };
            if self.looks_for_records {
                (found.newest, found.lost) = self.look_for_records(live, seen).await?;
            }
            if self.horizon.judge(seen, &found) {
                return Ok(found);
            }
        }
    }

    /// The newest record, and whether the one that was seen last is gone without having been deleted. The counter
    /// does not tell: PostgreSQL logs it 32 ahead, so a promoted standby starts above what it lacks.
    async fn look_for_records(&self, live: &Live, seen: Seen) -> Result<(Option<Kept>, bool), Error> {
        let id = seen.last.map(|last| *last.operation.as_bytes());
        let (id, token) = (id.as_ref().map(|id| &id[..]), seen.last.map(|last| last.token.0 as i64));
        let params: [Param<'_>; 2] = [(&id, Type::BYTEA), (&token, Type::INT8)];
        let rows = live.query(self.call_timeout, &sql::newest(), &params).await;
        let rows = rows.map_err(|fault| fault.error())?;
        let row = rows.first().ok_or_else(super::chores::no_row)?;
        let newest = match get::<Option<i64>>(row, 1)? {
            Some(token) => Some(Kept { operation: super::row::id(row, 0)?, token: Token(token as u64) }),
            None => None,
        };
        Ok((newest, get(row, 2)?))
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, Option<Pace>> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_pace(&self, pace: Option<Pace>) {
        *self.pace() = pace;
    }
}

/// Reads the first columns of `server.sql` and `examine.sql`.
pub(super) fn refuse_replica(row: &Row, place: &str) -> Result<(), Error> {
    let refuse = |sentence| Err(Error::new(Kind::ReadOnly, sentence));
    let (standby, read_only) = (get::<bool>(row, 0)?, get::<bool>(row, 1)?);
    if standby && !semel_core::mutant::on("pg-replica-accepted") {
        return refuse(format!(
            "PostgreSQL at {place} is a standby: it may lag, and takes no writes; connect to the primary"
        ));
    }
    if read_only && !standby && !semel_core::mutant::on("pg-replica-accepted") {
        return refuse(format!(
            "PostgreSQL at {place} is read-only by default_transaction_read_only; unset it for this role"
        ));
    }
    Ok(())
}

/// Reads `examine.sql`.
pub(super) fn found(row: &Row) -> Result<Found, Error> {
    let store_id: &[u8] = get(row, 2)?;
    let damaged = || Error::new(Kind::Damaged, "the table semel_meta holds something that cannot be read");
    let number = |at| u64::try_from(get::<i64>(row, at)?).map_err(|_| damaged());
    Ok(Found {
        store_id: store_id.try_into().map_err(|_| damaged())?,
        mark: Mark { epoch: number(3)?, token: Token(number(5)?) },
        home: get(row, 4)?,
        here: None,
        newest: None,
        lost: false,
    })
}

/// A column, or the remark that it is not what it was made as.
pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, Error> {
    row.try_get(at).map_err(|error| {
        Error::new(Kind::Damaged, "the PostgreSQL store holds something that cannot be read")
            .because(fault::chain(&error))
    })
}
