//! The SQLite store: the suites every store passes, and what only a file can suffer.

mod batches;
mod crash;
mod damage;
mod doubt;
mod fence;
mod files;
mod generations;
mod joined;
mod links;
mod outbox;
mod restore;
mod rig;
mod schema;
mod set_back;
mod sharing;
mod subject_keys;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use semel_core::claim::{Claim, Request};
use semel_core::error::{Error, Kind};
use semel_core::fingerprint::{Paths, Print};
use semel_core::record::{Recovery, Terms};
use semel_core::verbs::{Complete, Completion};
use semel_core::{EffectStore, Lease, Nonce, Operation, Scope};
use semel_stores::sqlite::{Options, SqliteStore};
use semel_testkit::ManualClock;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A directory with room for one database, removed at the end.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("semel.db")
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(self.path()).unwrap()
    }

    /// A connection past the store, to look and to meddle.
    fn meddle(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    fn witness(&self) -> PathBuf {
        self.0.path().join("semel.db-semel-witness")
    }
}

fn request(key: &str) -> Request {
    let scope = Scope::new("shop", "alice", "charge").unwrap();
    Request {
        operation: Arc::new(Operation::new(scope, key.parse().unwrap())),
        nonce: Nonce::random(),
        print: Print { version: 1, digest: [7; 32], paths: Paths::default() },
        terms: Terms {
            recovery: Recovery::Hold,
            lease: Duration::from_secs(30),
            run_max: Duration::from_secs(60),
            ttl: DAY,
            retry_window: DAY / 3,
        },
        subject: None,
    }
}

fn granted(claim: Claim) -> Lease {
    match claim {
        Claim::Granted(lease) => lease,
        other => panic!("the lease was expected, not {other:?}"),
    }
}

async fn claim(store: &SqliteStore, key: &str) -> Lease {
    granted(store.claim(&request(key)).await.unwrap())
}

async fn complete(store: &SqliteStore, lease: &Lease, outcome: impl Into<bytes::Bytes>) {
    let complete = Complete { holder: lease.holder, outcome: outcome.into(), ttl_min: None };
    assert_eq!(store.complete(&complete).await.unwrap(), Completion::Stored);
}

/// The error, of this kind, of a call that certainly changed nothing.
#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, Error>, kind: Kind) -> String {
    let error = answer.expect_err("an error was expected");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(!error.outcome_is_unknown(), "{error}");
    error.to_string()
}

/// This test binary again, running only the named test, which finds `SEMEL_TEST_CHILD` set.
fn child(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env("SEMEL_TEST_CHILD", path);
    command
}

/// What the parent gave a child; `None` in the parent's own run of the test.
fn given_to_child() -> Option<PathBuf> {
    std::env::var_os("SEMEL_TEST_CHILD").map(PathBuf::from)
}

fn on_clock(clock: &Arc<ManualClock>) -> Options {
    Options { clock: clock.clone(), ..Options::default() }
}
