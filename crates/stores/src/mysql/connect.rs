//! Connections: opened with patience, examined before use, given up when in doubt.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, DriverError, Opts, Row, Value};
use semel_core::error::{Error, Kind};
use semel_core::store::Mark;
use semel_core::{Backoff, Nonce, Token, mutant};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::fault::{self, Fault};
use super::options::{Address, Options, Secrecy};
use super::server::Server;
use super::{row, sql};
use crate::crash;
use crate::horizon::{Found, Horizon};

/// Places to crash at right before and right after a COMMIT.
pub(super) type Crashes = &'static [(&'static str, &'static str)];

/// What a message has besides its values, and what a record read back has besides its outcome, with room to spare: what
/// can be written must be readable, too.
const MESSAGE_BYTES: usize = 32 << 10;

/// What a statement did.
pub(super) struct Done {
    pub(super) rows: Vec<Row>,
    /// Rows inserted or changed; one that was set to what it was does not count.
    pub(super) changed: u64,
}

/// One connection, fit for use.
pub(super) struct Live {
    conn: Conn,
    deadline: Instant,
    /// What one message may have, as the server says.
    packet_max: usize,
}

impl Live {
    fn new(conn: Conn) -> Self {
        Self { conn, deadline: Instant::now(), packet_max: usize::MAX }
    }

    /// Everything until the next call of this must be answered within `limit`.
    pub(super) fn within(&mut self, limit: Duration) -> &mut Self {
        self.deadline = Instant::now() + limit;
        self
    }

    /// The driver's connection, for who keeps time by other means.
    pub(super) fn conn(&mut self) -> &mut Conn {
        &mut self.conn
    }

    /// Statements without values, sent in one go. The rows are those of the last that gives some.
    pub(super) async fn say(&mut self, sql: &str) -> Result<Vec<Row>, Fault> {
        let conn = &mut self.conn;
        let saying = async {
            let mut answer = conn.query_iter(sql).await?;
            let mut rows = Vec::new();
            loop {
                let set: Vec<Row> = answer.collect().await?;
                if !set.is_empty() {
                    rows = set;
                }
                if answer.is_empty() {
                    // An error of the next statement shows only here.
                    answer.drop_result().await?;
                    return Ok(rows);
                }
            }
        };
        match timeout_at(self.deadline, saying).await {
            Ok(answered) => answered.map_err(|error| Fault::of(&error)),
            Err(_) => Err(Fault::timed_out(false)),
        }
    }

    /// One statement with bound values.
    pub(super) async fn ask(&mut self, sql: &str, values: Vec<Value>) -> Result<Done, Fault> {
        let bytes = values.iter().map(sent_bytes).sum::<usize>() + MESSAGE_BYTES;
        if bytes > self.packet_max && !mutant::on("my-packet-not-measured") {
            return Err(Fault::too_large(bytes, self.packet_max));
        }
        let conn = &mut self.conn;
        let asking = async {
            let mut answer = conn.exec_iter(sql, values).await?;
            let rows: Vec<Row> = answer.collect().await?;
            let changed = answer.affected_rows();
            answer.drop_result().await?;
            Ok(Done { rows, changed })
        };
        match timeout_at(self.deadline, asking).await {
            Ok(answered) => answered.map_err(|error| Fault::of(&error)),
            Err(_) => Err(Fault::timed_out(false)),
        }
    }

    pub(super) async fn begin(&mut self) -> Result<(), Fault> {
        self.say("START TRANSACTION").await.map(drop)
    }

    /// Ends a transaction that wrote something. From here on nobody knows until the answer comes.
    pub(super) async fn commit(&mut self, crashes: Crashes) -> Result<(), Fault> {
        crashes.iter().for_each(|(before, _)| crash::point(before));
        match timeout_at(self.deadline, self.conn.query_drop("COMMIT")).await {
            Ok(Ok(())) => {
                crashes.iter().for_each(|(_, after)| crash::point(after));
                Ok(())
            }
            Ok(Err(error)) => Err(Fault::of_commit(&error)),
            Err(_) => Err(Fault::timed_out(true)),
        }
    }

    /// Ends a transaction that wrote nothing, or failed.
    pub(super) async fn roll_back(&mut self) -> Result<(), Fault> {
        self.say("ROLLBACK").await.map(drop)
    }
}

/// Opens connections to one store.
pub(super) struct Connector {
    with_tls: Opts,
    /// For servers that have none, if the address allows it.
    without_tls: Option<Opts>,
    session: String,
    place: String,
    connect_timeout: Duration,
    connect_wait: Duration,
    call_timeout: Duration,
    commits_may_be_lost: bool,
    pace: Mutex<Option<Pace>>,
    pub(super) horizon: Arc<Horizon>,
}

/// Shared by all who want a connection while there is none to be had.
struct Pace {
    next: Instant,
    backoff: Backoff,
    sentence: String,
}

impl Connector {
    pub(super) fn new(address: &Address, options: &Options, horizon: Arc<Horizon>) -> Result<Self, Error> {
        let fallback = (address.secrecy == Secrecy::Preferred).then(|| address.driver(false));
        Ok(Self {
            with_tls: address.driver(true)?,
            without_tls: fallback.transpose()?,
            session: sql::session(options.lock_seconds()),
            place: address.place(),
            connect_timeout: options.connect_timeout,
            connect_wait: options.connect_wait,
            call_timeout: options.call_timeout,
            commits_may_be_lost: address.commits_may_be_lost,
            pace: Mutex::new(None),
            horizon,
        })
    }

    /// One attempt at a connection, not yet examined.
    pub(super) async fn dial(&self) -> Result<Live, Error> {
        let dialled = timeout(self.connect_timeout, async {
            use mysql_async::Error::Driver;
            let mut conn = match (Conn::new(self.with_tls.clone()).await, &self.without_tls) {
                (Err(Driver(DriverError::NoClientSslFlagFromServer)), Some(plain)) => {
                    Conn::new(plain.clone()).await?
                }
                (dialled, _) => dialled?,
            };
            conn.query_drop(&*self.session).await?;
            Ok(conn)
        });
        match dialled.await {
            Ok(Ok(conn)) => Ok(Live::new(conn)),
            Ok(Err(error)) => Err(self.refused(&error)),
            Err(_) => Err(self.unreachable(format!("no answer within {:?}", self.connect_timeout))),
        }
    }

    fn unreachable(&self, cause: String) -> Error {
        let sentence =
            format!("MySQL at {} cannot be reached; check address, network and server", self.place);
        Error::new(Kind::Unreachable, sentence).because(cause)
    }

    fn refused(&self, error: &mysql_async::Error) -> Error {
        use mysql_async::{Error as E, IoError};
        match error {
            E::Server(_) => {
                let fault = Fault::of(error).error();
                Error::new(fault.kind(), format!("{}: {fault}", self.place))
            }
            E::Io(IoError::Tls(_)) | E::Driver(DriverError::NoClientSslFlagFromServer) => {
                self.untrusted(error)
            }
            // The handshake's own verdict comes wrapped in an input error.
            E::Io(IoError::Io(io)) if io.kind() == std::io::ErrorKind::InvalidData => self.untrusted(error),
            E::Driver(
                DriverError::UnknownAuthPlugin { .. }
                | DriverError::MysqlOldPasswordDisabled
                | DriverError::CleartextPluginDisabled,
            ) => {
                let sentence = format!("MySQL at {} wants a kind of password we do not give", self.place);
                Error::new(Kind::Denied, sentence).because(fault::chain(error))
            }
            _ => self.unreachable(fault::chain(error)),
        }
    }

    fn untrusted(&self, error: &mysql_async::Error) -> Error {
        let sentence = format!("MySQL at {} was not trusted, or has no TLS", self.place);
        Error::new(Kind::Denied, sentence).because(fault::chain(error))
    }

    /// A connection fit for use, within the time a call may wait for one.
    pub(super) async fn open(&self) -> Result<Live, Error> {
        let deadline = Instant::now() + self.connect_wait;
        loop {
            self.wait_turn(deadline).await?;
            let error = match timeout_at(deadline, self.try_open()).await {
                Ok(Ok(live)) => {
                    self.set_pace(None);
                    return Ok(live);
                }
                Ok(Err(error)) if error.kind() == Kind::Unreachable => error,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    let sentence = format!("MySQL at {} did not accept a connection in time", self.place);
                    return Err(Error::new(Kind::Unreachable, sentence));
                }
            };
            self.slow_down(&error);
        }
    }

    async fn try_open(&self) -> Result<Live, Error> {
        let mut live = self.dial().await?;
        self.examine(&mut live).await.map_err(|fault| fault.error())?;
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

    /// What the server is, if it may hold a store: writable, alone in writing, and true to its commits.
    pub(super) async fn server(&self, live: &mut Live) -> Result<Server, Fault> {
        let rows = live.within(self.call_timeout).say(sql::SERVER).await?;
        let server = Server::of(&rows)?;
        server.refuse(&self.place, self.commits_may_be_lost)?;
        live.packet_max = server.packet_max;
        Ok(server)
    }

    /// Looks which store is there, how far it has come, and whether it takes writes.
    pub(super) async fn examine(&self, live: &mut Live) -> Result<Found, Fault> {
        loop {
            let seen = self.horizon.seen();
            let server = self.server(live).await?;
            let rows = live.within(self.call_timeout).say(sql::EXAMINE).await?;
            let row = rows.first().ok_or_else(|| {
                Error::new(Kind::Schema, "the table semel_meta is empty; restore it from a backup")
            })?;
            let found = found(row, &server)?;
            if self.horizon.judge(seen, &found) {
                return Ok(found);
            }
        }
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

/// What a value takes in a message, or a little less.
fn sent_bytes(value: &Value) -> usize {
    if let Value::Bytes(bytes) = value { bytes.len() } else { 8 }
}

/// Reads `examine.sql`.
fn found(row: &Row, server: &Server) -> Result<Found, Error> {
    let damaged = || Error::new(Kind::Damaged, "the table semel_meta holds something that cannot be read");
    let number = |at| u64::try_from(row::int(row, at)?).map_err(|_| damaged());
    Ok(Found {
        store_id: row::bytes(row, 0)?.try_into().map_err(|_| damaged())?,
        mark: Mark { epoch: number(1)?, token: Token(number(3)?) },
        home: row::text(row, 2)?.map(str::to_owned),
        here: row::text(row, 4)?.map(|database| server.home(database)),
        newest: None,
        lost: false,
    })
}
