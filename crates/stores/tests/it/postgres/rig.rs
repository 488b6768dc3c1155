//! A database per test on the server the environment names, and the rig the suites drive it with.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::{EffectStore, Nonce, OperationId};
use semel_stores::postgres::{Options, PostgresStore};
use semel_testkit::{BoxFuture, Maker, Rig};
use tokio_postgres::NoTls;

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
            eprintln!("SKIPPED postgres: {variable} is not set");
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
        let client = client(admin).await;
        // Databases are copied one at a time; others wait for a moment.
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        Self { admin: admin.to_owned(), name }
    }

    /// A copy under another name. Nobody may be connected.
    pub(super) async fn copy(&self) -> Self {
        let name = format!("semel_t_{}", Nonce::random());
        let copy = format!("CREATE DATABASE {name} TEMPLATE {}", self.name);
        let admin = self.admin().await;
        // Connections that were let go of take a moment to end.
        while let Err(error) = admin.batch_execute(&copy).await {
            assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::OBJECT_IN_USE), "{error:?}");
        }
        Self { admin: self.admin.clone(), name }
    }

    /// The address of this database, directly.
    pub(super) fn url(&self) -> String {
        self.through(&self.admin)
    }

    /// The address of this database by way of another server's address.
    pub(super) fn through(&self, server: &str) -> String {
        let (base, _) = server.rsplit_once('/').unwrap();
        format!("{base}/{}", self.name)
    }

    /// A plain connection of a user who knows nothing of Semel.
    pub(super) async fn client(&self) -> tokio_postgres::Client {
        client(&self.url()).await
    }

    /// Runs statements.
    pub(super) async fn run(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.unwrap();
    }

    /// The first column of the first row.
    pub(super) async fn number(&self, sql: &str) -> i64 {
        self.client().await.query_one(sql, &[]).await.unwrap().get(0)
    }

    pub(super) async fn admin(&self) -> tokio_postgres::Client {
        client(&self.admin).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin, name) = (self.admin.clone(), self.name.clone());
        // A runtime of its own: this one may be ending.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                client(&admin).await.batch_execute(&drop).await
            })
        });
        if let Ok(Err(error)) = dropping.join() {
            eprintln!("{} stays behind: {error}", self.name);
        }
    }
}

pub(super) async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Runs a test body on a runtime of its own, with a database, if there is a server.
pub(super) fn with_database<F: Future<Output = ()>>(body: impl FnOnce(Database) -> F) {
    let Some(server) = named("SEMEL_TEST_POSTGRES") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let database = Database::create(&server).await;
        tokio::time::timeout(Duration::from_secs(120), body(database)).await.unwrap();
    });
    semel_testkit::ledger("postgres", "postgres", 1);
}

/// The rig of a store, directly or through a pooler.
pub(super) struct PostgresRig {
    engine: &'static str,
    database: Database,
    url: String,
    folder: tempfile::TempDir,
    clock: Arc<AtomicI64>,
    store: Mutex<Arc<PostgresStore>>,
}

/// Rigs on the server in `SEMEL_TEST_POSTGRES`.
pub(super) fn direct() -> Option<Maker> {
    let server = named("SEMEL_TEST_POSTGRES")?;
    Some(maker("postgres", server.clone(), server))
}

/// Rigs on the same server, by way of the pooler in `SEMEL_TEST_PGBOUNCER`.
pub(super) fn pooled() -> Option<Maker> {
    let (server, pooler) = (named("SEMEL_TEST_POSTGRES")?, named("SEMEL_TEST_PGBOUNCER")?);
    Some(maker("pgbouncer", server, pooler))
}

fn maker(engine: &'static str, server: String, pooler: String) -> Maker {
    Arc::new(move || {
        let (server, pooler) = (server.clone(), pooler.clone());
        Box::pin(async move {
            let database = Database::create(&server).await;
            let url = database.through(&pooler);
            let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(AtomicI64::new(BEGINNING)));
            let store = open(&url, &folder.path().join("witness"), &clock).await;
            Arc::new(PostgresRig { engine, database, url, folder, clock, store: Mutex::new(store) })
                as Arc<dyn Rig>
        })
    })
}

async fn open(url: &str, witness: &std::path::Path, clock: &Arc<AtomicI64>) -> Arc<PostgresStore> {
    let mut options = patient(url.to_owned());
    options.witness = Some(witness.to_owned());
    options.clock = Some(clock.clone());
    Arc::new(PostgresStore::connect_with(options).await.unwrap())
}

impl PostgresRig {
    fn witness(&self) -> PathBuf {
        self.folder.path().join("witness")
    }

    fn current(&self) -> Arc<PostgresStore> {
        self.store.lock().unwrap().clone()
    }

    async fn reopen_after(&self, change: impl AsyncFnOnce(&Database)) {
        self.current().close().await;
        change(&self.database).await;
        let store = open(&self.url, &self.witness(), &self.clock).await;
        *self.store.lock().unwrap() = store;
    }
}

impl Rig for PostgresRig {
    fn engine(&self) -> &'static str {
        self.engine
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
        Box::pin(self.database.run(
            "DROP SCHEMA IF EXISTS backup CASCADE; CREATE SCHEMA backup;
             CREATE TABLE backup.operation AS TABLE semel_operation;
             CREATE TABLE backup.meta AS TABLE semel_meta;
             CREATE TABLE backup.hash_key AS TABLE semel_hash_key;
             CREATE TABLE backup.token AS SELECT last_value, is_called FROM semel_token;",
        ))
    }

    fn restore(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.reopen_after(async |database| {
            database
                .run(
                    "TRUNCATE semel_operation, semel_meta, semel_hash_key;
                     INSERT INTO semel_operation SELECT * FROM backup.operation;
                     INSERT INTO semel_meta SELECT * FROM backup.meta;
                     INSERT INTO semel_hash_key SELECT * FROM backup.hash_key;
                     SELECT setval('semel_token', last_value, is_called) FROM backup.token;",
                )
                .await;
        }))
    }

    fn damage_outcome(&self, operation: OperationId) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let client = self.database.client().await;
            let damage = "UPDATE semel_operation SET outcome = '\\xdead' WHERE id = $1";
            client.execute(damage, &[&&operation.as_bytes()[..]]).await.unwrap() == 1
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
pub(super) async fn connect(url: &str) -> PostgresStore {
    PostgresStore::connect_with(patient(url.to_owned())).await.unwrap()
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
