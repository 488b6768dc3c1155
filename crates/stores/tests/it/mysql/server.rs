//! A server of a test's own: read-only, careless, stopped and started again.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use semel_core::claim::Request;
use semel_core::error::Kind;
use semel_core::store::{Durability, EffectStore};
use semel_core::verbs::{Complete, Completion};
use semel_core::{Claim, State};
use semel_stores::mysql::{MysqlStore, Options};
use tokio::task::JoinSet;

use super::rig::{client, complete, granted, named, patient, request};

/// A private MariaDB. Killed with the value, its data deleted.
struct Server {
    folder: tempfile::TempDir,
    port: u16,
    running: Option<Child>,
}

/// Where Debian, and then everybody else, keeps it.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    folders.map(|folder| folder.join(name)).find(|program| program.exists())
}

/// The server refuses to run as root unless told to, and so does its installer.
fn as_self(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--no-defaults", "--user", "root"]).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// An empty server's data, made once and copied for each test.
static INSTALLED: LazyLock<Option<tempfile::TempDir>> = LazyLock::new(|| {
    let Some(install) = program("mariadb-install-db") else {
        eprintln!("SKIPPED mariadb: mariadb-install-db is not there");
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let installed = as_self(&install)
        .arg(format!("--datadir={}", folder.path().display()))
        .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
        .args(["--skip-name-resolve", "--innodb-log-file-size=8M"])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    Some(folder)
});

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to)
        } else {
            drop(std::fs::copy(entry.path(), to))
        }
    }
}

impl Server {
    /// `None`: there is no program to run.
    async fn start(settings: &[&str]) -> Option<Self> {
        named("SEMEL_TEST_MARIADB")?;
        let folder = tempfile::tempdir().unwrap();
        copy(INSTALLED.as_ref()?.path(), &folder.path().join("data"));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self { folder, port, running: None };
        server.run(settings).await;
        server.say("CREATE DATABASE shop").await;
        Some(server)
    }

    async fn run(&mut self, settings: &[&str]) {
        let folder = self.folder.path();
        let running = as_self(&program("mariadbd").unwrap())
            .arg(format!("--datadir={}", folder.join("data").display()))
            .arg(format!("--socket={}", folder.join("socket").display()))
            .arg(format!("--pid-file={}", folder.join("pid").display()))
            .arg(format!("--port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M"])
            .args(settings)
            .spawn()
            .unwrap();
        self.running = Some(running);
        let began = Instant::now();
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            assert!(began.elapsed() < Duration::from_secs(300), "the server does not come up");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// As the plug of its machine being pulled.
    fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.kill().unwrap();
            running.wait().unwrap();
        }
    }

    fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/shop", self.port)
    }

    async fn say(&self, sql: &str) {
        let mut admin = client(&format!("mysql://root@127.0.0.1:{}/mysql", self.port)).await;
        admin.query_drop(sql).await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(600), test).await.unwrap() });
    semel_testkit::ledger("mariadb", "mariadb", 1);
}

async fn refused(options: Options) -> semel_core::Error {
    MysqlStore::connect_with(options).await.map(drop).unwrap_err()
}

// G-13: a replica may lag, and would say of a key that was used that it is free.
#[test]
fn a_replica_is_refused_at_start_and_on_reconnect() {
    block_on(async {
        let Some(server) = Server::start(&[]).await else { return };
        let store = MysqlStore::connect_with(patient(server.url())).await.unwrap();
        granted(store.claim(&request("before")).await.unwrap());
        // What makes a primary a replica, as everybody who promotes another one does first.
        server.say("SET GLOBAL read_only = ON").await;
        let error = refused(patient(server.url())).await;
        assert_eq!(error.kind(), Kind::ReadOnly, "{error}");
        assert!(error.to_string().contains("replica"), "{error}");
        hang_up(&server).await;
        let error = store.claim(&request("after")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::ReadOnly, "{error}");
        assert!(!error.outcome_is_unknown());
        server.say("SET GLOBAL read_only = OFF").await;
        granted(store.claim(&request("after")).await.unwrap());
    });
}

async fn hang_up(server: &Server) {
    let mut admin = client(&format!("mysql://root@127.0.0.1:{}/mysql", server.port)).await;
    let sessions: Vec<u64> =
        admin.query("SELECT id FROM information_schema.processlist WHERE db = 'shop'").await.unwrap();
    for session in sessions {
        let _ = admin.query_drop(format!("KILL {session}")).await;
    }
}

// G-17: what was answered is on disk, or the store does not start.
#[test]
fn a_server_that_may_forget_commits_is_refused_unless_that_is_declared() {
    block_on(async {
        let Some(server) = Server::start(&["--log-bin", "--sync-binlog=1"]).await else { return };
        let store = MysqlStore::connect_with(patient(server.url())).await.unwrap();
        assert_eq!(store.capabilities().durability, Durability::Disk);
        for (careless, careful) in [
            ("innodb_flush_log_at_trx_commit = 2", "innodb_flush_log_at_trx_commit = 1"),
            ("sync_binlog = 0", "sync_binlog = 1"),
        ] {
            server.say(&format!("SET GLOBAL {careless}")).await;
            let error = refused(patient(server.url())).await;
            assert_eq!(error.kind(), Kind::Misconfigured, "{error}");
            assert!(error.to_string().contains(careful), "{error}");
            let declared = patient(format!("{}?commits=may-be-lost", server.url()));
            let store = MysqlStore::connect_with(declared).await.unwrap();
            assert_eq!(store.capabilities().durability, Durability::Process);
            server.say(&format!("SET GLOBAL {careful}")).await;
        }
    });
}

/// Repeats a claim until it is answered.
async fn claim_at_last(store: &MysqlStore, claim: &Request) -> Claim {
    for _ in 0..50 {
        match store.claim(claim).await {
            Ok(told) => return told,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
    panic!("no answer after fifty claims")
}

/// Repeats a completion until it is answered.
async fn complete_at_last(store: &MysqlStore, done: &Complete) -> Completion {
    for _ in 0..50 {
        match store.complete(done).await {
            Ok(told) => return told,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
    panic!("no answer after fifty completions")
}

// G-8, G-9: whatever the server was doing when it died, each claim was applied or not, and repeating it
// with its nonce finds out; what was answered is there.
#[test]
fn a_server_that_crashes_in_the_middle_of_batches_loses_nothing_that_was_answered() {
    block_on(async {
        let Some(mut server) = Server::start(&[]).await else { return };
        let store = Arc::new(MysqlStore::connect_with(patient(server.url())).await.unwrap());
        let mut calls = JoinSet::new();
        let (begun, mut count) = tokio::sync::mpsc::channel(4096);
        for n in 0..64 {
            let (store, begun) = (store.clone(), begun.clone());
            calls.spawn(async move {
                let mut answered = Vec::new();
                for round in 0..40 {
                    let claim = request(&format!("caller-{n}-{round}"));
                    let lease = granted(claim_at_last(&store, &claim).await);
                    assert_eq!(lease.attempt, 1, "one attempt, however often it was asked for");
                    let done = complete(&lease, format!("paid {n} {round}"));
                    assert_eq!(complete_at_last(&store, &done).await, Completion::Stored);
                    answered.push(claim);
                    let _ = begun.send(()).await;
                }
                answered
            });
        }
        for _ in 0..300 {
            count.recv().await.unwrap();
        }
        server.kill();
        let counting = tokio::spawn(async move { while count.recv().await.is_some() {} });
        drop(begun);
        server.run(&[]).await;
        for claim in calls.join_all().await.into_iter().flatten() {
            let record = store.get(claim.operation.id()).await.unwrap().unwrap();
            assert_eq!((record.state, record.nonce, record.attempts), (State::Completed, claim.nonce, 1));
        }
        counting.await.unwrap();
        let told = store.claim(&request("caller-7-7")).await.unwrap();
        assert!(matches!(told, Claim::Completed { outcome, .. } if outcome == "paid 7 7"));
    });
}
