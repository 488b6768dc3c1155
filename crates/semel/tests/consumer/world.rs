//! A database, a handler that counts its effects there, and what tests ask of them.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use semel::inbox::{Applied, Apply, Arrival, Batch, Failure, Id, Inbox, Incoming};
use semel::message::Header;
use semel::stores::{mysql, postgres, sqlite};
use semel::{MysqlStore, PostgresStore, SqliteStore};

/// What the environment names, or nothing and a loud remark.
pub(crate) fn named(engine: &str, variable: &str) -> Option<String> {
    match std::env::var(variable) {
        Ok(value) => Some(value),
        Err(_) if std::env::var("SEMEL_TEST_REQUIRE").as_deref() == Ok("1") => {
            panic!("{variable} is not set, and SEMEL_TEST_REQUIRE=1 lets nothing be skipped")
        }
        Err(_) => {
            eprintln!("SKIPPED {engine}: {variable} is not set");
            None
        }
    }
}

/// Where effects are counted.
#[derive(Clone)]
pub(crate) enum Place {
    Sqlite(std::path::PathBuf),
    Postgres(String),
    Mysql(String),
}

/// A database with a ledger and a table of effects.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) place: Place,
    pub(crate) inbox: Arc<dyn Inbox>,
    pub(crate) apply: Arc<dyn Apply>,
    pub(crate) mood: Arc<Mood>,
}

/// How the handler behaves: it never applies `poison`, and `flaky` not the first so many times.
#[derive(Default)]
pub(crate) struct Mood {
    pub(crate) flaky: Mutex<HashMap<String, u32>>,
    pub(crate) cured: std::sync::atomic::AtomicBool,
    pub(crate) gate: Gate,
}

/// Where the handler on Postgres stands still, in the middle of its transaction, while a test does something.
#[derive(Default)]
pub(crate) struct Gate {
    payload: Mutex<Option<String>>,
    reached: tokio::sync::Notify,
    open: tokio::sync::Notify,
}

impl Gate {
    /// The handler will stand still once, after it has written this payload.
    pub(crate) fn shut_at(&self, payload: &str) {
        *self.payload.lock().unwrap() = Some(payload.to_owned());
    }

    /// Waits until the handler stands still.
    pub(crate) async fn reached(&self) {
        self.reached.notified().await;
    }

    pub(crate) fn open(&self) {
        self.open.notify_one();
    }

    async fn pass(&self, payload: &str) {
        let shut = self.payload.lock().unwrap().take_if(|shut| shut == payload).is_some();
        if shut {
            self.reached.notify_one();
            self.open.notified().await;
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
const EFFECTS: &str = "CREATE TABLE IF NOT EXISTS effect (n INTEGER, id TEXT, k TEXT, payload TEXT)";

impl Mood {
    fn judge(&self, arrival: &Arrival) -> Result<(), Failure> {
        let text = String::from_utf8_lossy(&arrival.message.payload).into_owned();
        if text.contains("poison") && !self.cured.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(Failure::Never("it is poison".into()));
        }
        if text.contains("flaky") {
            let mut flaky = self.flaky.lock().unwrap();
            let left = flaky.entry(arrival.id.to_string()).or_insert(3);
            if *left > 0 {
                *left -= 1;
                return Err(Failure::Later("not today".into()));
            }
        }
        Ok(())
    }
}

struct OnSqlite(Arc<Mood>);

impl sqlite::inbox::Handler for OnSqlite {
    fn apply(&self, tx: &rusqlite::Transaction<'_>, arrival: &Arrival) -> Result<(), Failure> {
        let sql = "INSERT INTO effect SELECT coalesce(max(n), 0) + 1, ?1, ?2, ?3 FROM effect";
        let (key, payload) = described(arrival);
        let done = tx.execute(sql, (arrival.id.as_str(), key, payload));
        done.map_err(|error| sqlite::inbox::failure(&error))?;
        // After the write: what fails must leave nothing of it.
        self.0.judge(arrival)
    }
}

struct OnPostgres(Arc<Mood>);

impl postgres::inbox::Handler for OnPostgres {
    async fn apply(&self, tx: &tokio_postgres::Transaction<'_>, arrival: &Arrival) -> Result<(), Failure> {
        let sql = "INSERT INTO effect SELECT coalesce(max(n), 0) + 1, $1, $2, $3 FROM effect";
        let (key, payload) = described(arrival);
        let done = tx.execute(sql, &[&arrival.id.as_str(), &key, &payload]).await;
        done.map_err(|error| postgres::inbox::failure(&error))?;
        self.0.gate.pass(&payload).await;
        self.0.judge(arrival)
    }
}

struct OnMysql(Arc<Mood>);

impl mysql::inbox::Handler for OnMysql {
    async fn apply(&self, tx: &mut mysql_async::Transaction<'_>, arrival: &Arrival) -> Result<(), Failure> {
        let sql = "INSERT INTO effect SELECT COALESCE(MAX(n), 0) + 1, ?, ?, ? FROM effect";
        let (key, payload) = described(arrival);
        let done = tx.exec_drop(sql, (arrival.id.as_str(), key, payload)).await;
        done.map_err(|error| mysql::inbox::failure(&error))?;
        self.0.judge(arrival)
    }
}

fn described(arrival: &Arrival) -> (String, String) {
    let key = arrival.message.ordering_key().unwrap_or_default().into_owned();
    (key, String::from_utf8_lossy(&arrival.message.payload).into_owned())
}

impl World {
    pub(crate) async fn open(place: Place) -> Self {
        let mood = Arc::new(Mood::default());
        let (inbox, apply): (Arc<dyn Inbox>, Arc<dyn Apply>) = match &place {
            Place::Sqlite(path) => {
                let store = SqliteStore::open(path).unwrap();
                rusqlite::Connection::open(path).unwrap().execute_batch(EFFECTS).unwrap();
                let inbox = Arc::new(store.inbox());
                // The store's threads end with it; its ledgers go on.
                store.close().await;
                (inbox.clone(), Arc::new(sqlite::inbox::Joined::new(inbox, OnSqlite(mood.clone()))))
            }
            Place::Postgres(url) => {
                let store = PostgresStore::connect_with(patient(url)).await.unwrap();
                client(url).await.batch_execute(EFFECTS).await.unwrap();
                let inbox = Arc::new(store.inbox());
                // Dropping it would end its lanes, which the ledger does not use.
                (inbox.clone(), Arc::new(postgres::inbox::Joined::new(inbox, OnPostgres(mood.clone()))))
            }
            Place::Mysql(url) => {
                let mut options = mysql::Options::new(url);
                (options.connect_wait, options.connect_timeout) = (PATIENCE, PATIENCE);
                (options.call_timeout, options.lock_timeout) = (PATIENCE, PATIENCE / 2);
                let store = MysqlStore::connect_with(options).await.unwrap();
                mysql_client(url).await.query_drop(EFFECTS).await.unwrap();
                let inbox = Arc::new(store.inbox());
                (inbox.clone(), Arc::new(mysql::inbox::Joined::new(inbox, OnMysql(mood.clone()))))
            }
        };
        Self { place, inbox, apply, mood }
    }

    /// Rows of one text column, in order.
    pub(crate) async fn texts(&self, sql: &str) -> Vec<String> {
        match &self.place {
            Place::Sqlite(path) => {
                let conn = rusqlite::Connection::open(path).unwrap();
                conn.busy_timeout(Duration::from_secs(10)).unwrap();
                let mut statement = conn.prepare(sql).unwrap();
                let rows = statement.query_map([], |row| row.get(0)).unwrap();
                rows.map(Result::unwrap).collect()
            }
            Place::Postgres(url) => {
                let rows = client(url).await.query(sql, &[]).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            Place::Mysql(url) => {
                let sql = sql.replace("AS TEXT)", "AS CHAR)");
                mysql_client(url).await.query(sql).await.unwrap()
            }
        }
    }

    pub(crate) async fn run(&self, sql: &str) {
        match &self.place {
            Place::Sqlite(path) => {
                let conn = rusqlite::Connection::open(path).unwrap();
                conn.busy_timeout(Duration::from_secs(10)).unwrap();
                conn.execute_batch(sql).unwrap();
            }
            Place::Postgres(url) => client(url).await.batch_execute(sql).await.unwrap(),
            Place::Mysql(url) => mysql_client(url).await.query_drop(sql).await.unwrap(),
        }
    }

    /// The ids of all effects, in the order they happened.
    pub(crate) async fn effects(&self) -> Vec<String> {
        self.texts("SELECT id FROM effect ORDER BY n").await
    }

    pub(crate) async fn effects_of(&self, key: &str) -> Vec<String> {
        self.texts(&format!("SELECT id FROM effect WHERE k = '{key}' ORDER BY n")).await
    }

    /// Applies messages as one batch.
    pub(crate) async fn apply(&self, arrivals: &[Arrival]) -> Applied {
        self.try_apply(arrivals, Vec::new()).await
    }

    pub(crate) async fn try_apply(
        &self,
        arrivals: &[Arrival],
        offsets: Vec<semel::inbox::Offset>,
    ) -> Applied {
        let batch = Batch { group: "g".into(), arrivals: arrivals.to_vec(), offsets };
        self.apply.apply(&batch).await.unwrap()
    }
}

/// A machine that is busy with other things takes its time.
pub(crate) fn patient(url: &str) -> postgres::Options {
    let mut options = postgres::Options::new(url);
    (options.connect_wait, options.connect_timeout) = (PATIENCE, PATIENCE);
    options.call_timeout = PATIENCE;
    options
}

/// A message as a source would deliver it.
pub(crate) fn arrival(id: &str, key: Option<&str>, payload: &str) -> Arrival {
    let place = format!("{id}/{payload}");
    let message = Incoming {
        source: "test".into(),
        place,
        subject: "orders".into(),
        key: key.map(str::to_owned),
        headers: vec![Header { name: "x-shop".into(), value: "berlin".into() }],
        payload: payload.to_owned().into(),
    };
    Arrival::of(Id::parse(id).unwrap(), message)
}

pub(crate) async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) async fn mysql_client(url: &str) -> mysql_async::Conn {
    let options = mysql_async::Opts::from_url(url).unwrap();
    let options = mysql_async::OptsBuilder::from_opts(options).prefer_socket(false);
    mysql_async::Conn::new(options).await.unwrap()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Runs a test on a new file.
pub(crate) fn on_sqlite<F: Future<Output = ()>>(body: impl FnOnce(World) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::Sqlite(folder.path().join("semel.db"));
    runtime().block_on(async { patiently(body(World::open(place).await)).await });
}

/// Runs a test on a new database of the server, if there is one.
pub(crate) fn on_postgres<F: Future<Output = ()>>(body: impl FnOnce(World) -> F) {
    let Some(server) = named("postgres", "SEMEL_TEST_POSTGRES") else { return };
    let name = format!("semel_c_{}", semel::Nonce::random());
    let (base, _) = server.rsplit_once('/').unwrap();
    let url = format!("{base}/{name}");
    runtime().block_on(async {
        client(&server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        patiently(body(World::open(Place::Postgres(url)).await)).await;
        let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        client(&server).await.batch_execute(&drop).await.unwrap();
    });
}

/// Runs a test on a new database of the MariaDB server, if there is one.
pub(crate) fn on_mariadb<F: Future<Output = ()>>(body: impl FnOnce(World) -> F) {
    let Some(server) = named("mariadb", "SEMEL_TEST_MARIADB") else { return };
    let name = format!("semel_c_{}", semel::Nonce::random());
    let (base, _) = server.rsplit_once('/').unwrap();
    let url = format!("{base}/{name}");
    runtime().block_on(async {
        mysql_client(&server).await.query_drop(format!("CREATE DATABASE {name}")).await.unwrap();
        patiently(body(World::open(Place::Mysql(url)).await)).await;
        // A session that was left in a transaction would be waited for.
        let drop = format!("SET SESSION lock_wait_timeout = 10; DROP DATABASE IF EXISTS {name}");
        if let Err(error) = mysql_client(&server).await.query_drop(drop).await {
            eprintln!("{name} stays behind: {error}");
        }
    });
}

async fn patiently(body: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(300), body).await.expect("the test ends in time");
}

/// Looks until something is so. The bound is for a machine that is busy with other things.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let begun = tokio::time::Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < Duration::from_secs(240), "never so: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
