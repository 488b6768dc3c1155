//! A database per test on the server the environment names, and the rig the suites drive it with.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use semel_core::{EffectStore, Nonce, OperationId};
use semel_stores::mysql::{MysqlStore, Options};
use semel_testkit::{BoxFuture, Maker, Rig};

pub(super) use crate::scene::{complete, granted, persist, request};

/// Where a rig's clock stands until it is moved: a moment in 2026.
const BEGINNING: i64 = 1_767_225_600_000_000;

/// What the environment names, or nothing and a loud remark.
pub(super) fn named(variable: &str) -> Option<String> {
    match std::env::var(variable) {
        Ok(value) => Some(value),
        Err(_) if std::env::var("SEMEL_TEST_REQUIRE").as_deref() == Ok("1") => {
            panic!("{variable} is not set, and SEMEL_TEST_REQUIRE=1 lets nothing be skipped")
        }
        Err(_) => {
            eprintln!("SKIPPED mariadb: {variable} is not set");
            None
        }
    }
}

/// A database of this test's own. Dropped with it.
pub(super) struct Database {
    admin: String,
    pub(super) name: String,
}

impl Database {
    pub(super) async fn create(admin: &str) -> Self {
        let name = format!("semel_t_{}", Nonce::random());
        client(admin).await.query_drop(format!("CREATE DATABASE {name}")).await.unwrap();
        Self { admin: admin.to_owned(), name }
    }

    /// A copy under another name, as a dump restored there would be.
    pub(super) async fn copy(&self) -> Self {
        let copy = Self::create(&self.admin).await;
        let (from, to) = (&self.name, &copy.name);
        for table in TABLES.into_iter().chain(OUTBOX_TABLES) {
            copy.run(&format!("CREATE TABLE {to}.{table} LIKE {from}.{table}")).await;
            copy.run(&format!("INSERT INTO {to}.{table} SELECT * FROM {from}.{table}")).await;
        }
        copy.run(&format!("CREATE TABLE {to}.semel_outbox_aside LIKE {from}.semel_outbox_aside")).await;
        copy
    }

    /// The address of this database.
    pub(super) fn url(&self) -> String {
        let (base, _) = self.admin.rsplit_once('/').unwrap();
        format!("{base}/{}", self.name)
    }

    /// A plain connection of a user who knows nothing of Semel.
    pub(super) async fn client(&self) -> Conn {
        client(&self.url()).await
    }

    /// Runs statements.
    pub(super) async fn run(&self, sql: &str) {
        self.client().await.query_drop(sql).await.unwrap();
    }

    /// Waits until somebody else runs a statement with this in it. Not by `innodb_trx`: that is a picture which is not
    /// taken anew while anybody, another test say, looks at it more often than ten times a second.
    pub(super) async fn until_someone_runs(&self, part: &str) {
        let running = format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() \
             AND command <> 'Sleep' AND info LIKE '%{part}%'"
        );
        let begun = std::time::Instant::now();
        while self.number(&running).await == 0 {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "nobody runs {part}");
        }
    }

    /// The first column of the first row.
    pub(super) async fn number(&self, sql: &str) -> i64 {
        self.client().await.query_first(sql).await.unwrap().unwrap()
    }

    pub(super) async fn admin(&self) -> Conn {
        client(&self.admin).await
    }

    /// Ends all sessions in this database.
    pub(super) async fn hang_up(&self) {
        let mut admin = self.admin().await;
        let others = "SELECT id FROM information_schema.processlist WHERE db = ?";
        let sessions: Vec<u64> = admin.exec(others, (&self.name,)).await.unwrap();
        for session in sessions {
            // One may have ended by itself.
            let _ = admin.query_drop(format!("KILL {session}")).await;
        }
        while admin.exec_first::<u64, _, _>(others, (&self.name,)).await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    }
}

/// The tables of a store.
pub(super) const TABLES: [&str; 5] =
    ["semel_schema", "semel_meta", "semel_hash_key", "semel_token", "semel_operation"];

/// Those of its outbox, but for letters: a computed column cannot be copied with the others.
pub(super) const OUTBOX_TABLES: [&str; 5] =
    ["semel_outbox_meta", "semel_outbox_lane", "semel_outbox", "semel_outbox_delayed", "semel_outbox_parked"];

impl Drop for Database {
    fn drop(&mut self) {
        let (admin, name) = (self.admin.clone(), self.name.clone());
        // A runtime of its own: this one may be ending.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut admin = client(&admin).await;
                // A session left in a transaction would make the drop wait for its locks.
                let others = "SELECT id FROM information_schema.processlist WHERE db = ?";
                let sessions: Vec<u64> = admin.exec(others, (&name,)).await.unwrap_or_default();
                for session in sessions {
                    let _ = admin.query_drop(format!("KILL {session}")).await;
                }
                let dropped = admin.query_drop(format!("DROP DATABASE IF EXISTS {name}")).await;
                let _ = admin.disconnect().await;
                dropped
            })
        });
        if let Ok(Err(error)) = dropping.join() {
            eprintln!("{} stays behind: {error}", self.name);
        }
    }
}

pub(super) async fn client(url: &str) -> Conn {
    let (url, _) = url.split_once('?').unwrap_or((url, ""));
    let opts = Opts::from_url(&url.replacen("mariadb://", "mysql://", 1)).unwrap();
    Conn::new(mysql_async::OptsBuilder::from_opts(opts).prefer_socket(false)).await.unwrap()
}

/// Runs a test body on a runtime of its own, with a database, if there is a server.
pub(super) fn with_database<F: Future<Output = ()>>(body: impl FnOnce(Database) -> F) {
    let Some(server) = named("SEMEL_TEST_MARIADB") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let database = Database::create(&server).await;
        tokio::time::timeout(Duration::from_secs(300), body(database)).await.unwrap();
    });
    semel_testkit::ledger("mariadb", "mariadb", 1);
}

/// The rig of a store.
pub(super) struct MysqlRig {
    database: Database,
    folder: tempfile::TempDir,
    clock: Arc<AtomicI64>,
    store: Mutex<Arc<MysqlStore>>,
}

/// Rigs on the server in `SEMEL_TEST_MARIADB`.
pub(super) fn maker() -> Option<Maker> {
    let server = named("SEMEL_TEST_MARIADB")?;
    Some(Arc::new(move || {
        let server = server.clone();
        Box::pin(async move {
            let database = Database::create(&server).await;
            let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(AtomicI64::new(BEGINNING)));
            let store = open(&database.url(), &folder.path().join("witness"), &clock).await;
            Arc::new(MysqlRig { database, folder, clock, store: Mutex::new(store) }) as Arc<dyn Rig>
        })
    }))
}

async fn open(url: &str, witness: &std::path::Path, clock: &Arc<AtomicI64>) -> Arc<MysqlStore> {
    let mut options = patient(url.to_owned());
    options.witness = Some(witness.to_owned());
    options.clock = Some(clock.clone());
    Arc::new(MysqlStore::connect_with(options).await.unwrap())
}

impl MysqlRig {
    fn witness(&self) -> PathBuf {
        self.folder.path().join("witness")
    }

    fn current(&self) -> Arc<MysqlStore> {
        self.store.lock().unwrap().clone()
    }

    async fn reopen_after(&self, change: impl AsyncFnOnce(&Database)) {
        self.current().close().await;
        change(&self.database).await;
        let store = open(&self.database.url(), &self.witness(), &self.clock).await;
        *self.store.lock().unwrap() = store;
    }
}

impl Rig for MysqlRig {
    fn engine(&self) -> &'static str {
        "mariadb"
    }

    fn store(&self) -> Arc<dyn EffectStore> {
        self.current()
    }

    fn shift_clock(&self, micros: i64) {
        self.clock.fetch_add(micros, Ordering::SeqCst);
    }

    fn clock_stands(&self) -> bool {
        true
    }

    fn reopen(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.reopen_after(async |_| {}))
    }

    fn back_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for table in TABLES {
                self.database.run(&format!("DROP TABLE IF EXISTS backup_{table}")).await;
                self.database.run(&format!("CREATE TABLE backup_{table} LIKE {table}")).await;
                self.database.run(&format!("INSERT INTO backup_{table} SELECT * FROM {table}")).await;
            }
        })
    }

    fn restore(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.reopen_after(async |database| {
            for table in TABLES {
                // This also sets the counter of tokens back.
                database.run(&format!("TRUNCATE TABLE {table}")).await;
                database.run(&format!("INSERT INTO {table} SELECT * FROM backup_{table}")).await;
            }
        }))
    }

    fn damage_outcome(&self, operation: OperationId) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let mut client = self.database.client().await;
            let damage = "UPDATE semel_operation SET outcome = x'dead' WHERE id = ?";
            client.exec_drop(damage, (&operation.as_bytes()[..],)).await.unwrap();
            client.affected_rows() == 1
        })
    }
}

/// Options for a machine that is busy with other tests: slow, not broken.
pub(super) fn patient(url: String) -> Options {
    let mut options = Options::new(url);
    options.connect_timeout = Duration::from_secs(20);
    options.connect_wait = Duration::from_secs(20);
    options.call_timeout = Duration::from_secs(30);
    options.lock_timeout = Duration::from_secs(20);
    options
}

/// A store that is patient.
pub(super) async fn connect(url: &str) -> MysqlStore {
    MysqlStore::connect_with(patient(url.to_owned())).await.unwrap()
}

/// Options that give up soon, and send all claims one way, for tests that stand in it.
pub(super) fn impatient(url: String) -> Options {
    let mut options = Options::new(url);
    options.lanes = 1;
    options.connect_wait = Duration::from_millis(1500);
    options.call_timeout = Duration::from_millis(1200);
    options.lock_timeout = Duration::from_millis(300);
    options
}
