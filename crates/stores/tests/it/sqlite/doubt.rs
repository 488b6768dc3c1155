//! A commit that failed with its log whole: nobody sees it, and the next recovery would believe it.

use std::fs;
use std::io::Write;

use semel_core::Outcome;
use semel_core::error::Kind;
use semel_core::verbs::{Change, Release};
use semel_stores::sqlite::tx::{self, Fate, Finished};

use super::joined::{call, charge, charged, conn, immediate, running, shop};
use super::*;

/// What a failed sync leaves: a charge whose log is whole on disk, while those who have the file open do not know of
/// it. A connection that was open before, and the commit in doubt.
async fn charge_in_doubt() -> (Disk, Connection, Finished) {
    let (there, store, prints) = shop().await;
    let mut conn_there = conn(&there);
    // Nobody moves the log into the file any more, and it does not start over: there is something in it.
    store.close().await;
    conn_there.execute("UPDATE account SET cents = cents", []).unwrap();
    let transaction = immediate(&mut conn_there);
    let begun = tx::begin(&transaction, &call("in-doubt-00000001", prints.of_bytes(b"2000"))).unwrap();
    charge(&transaction);
    let finished = tx::finish(&transaction, running(begun), &Outcome::text("paid"), &[]).unwrap();
    let disk = Disk::new();
    copy(&there, &disk);
    let _ = tx::commit(transaction, finished).unwrap();
    let connected = conn(&disk);
    let cents: i64 = connected.query_row("SELECT cents FROM account", [], |row| row.get(0)).unwrap();
    assert_eq!(cents, 10_000, "it has read the log up to here");
    let (before, after) = (fs::read(log(&disk)).unwrap(), fs::read(log(&there)).unwrap());
    assert!(after.len() > before.len() && after.starts_with(&before), "the log only grew");
    let mut file = fs::OpenOptions::new().append(true).open(log(&disk)).unwrap();
    file.write_all(&after[before.len()..]).unwrap();
    (disk, connected, finished)
}

fn log(disk: &Disk) -> PathBuf {
    disk.0.path().join("semel.db-wal")
}

/// File and log, without the index of the log: what is left when every process that had it open is gone.
fn copy(from: &Disk, to: &Disk) {
    fs::copy(from.path(), to.path()).unwrap();
    fs::copy(log(from), log(to)).unwrap();
}

fn after_a_crash(disk: &Disk) -> Disk {
    let crashed = Disk::new();
    copy(disk, &crashed);
    crashed
}

// G-30
#[tokio::test]
async fn what_was_resolved_as_not_committed_does_not_come_back() {
    let (disk, mut elsewhere, finished) = charge_in_doubt().await;
    assert_eq!(charged(&after_a_crash(&disk)), 1, "without an answer it may come back");
    assert_eq!(tx::resolve(&mut elsewhere, finished).unwrap(), Fate::NotCommitted);
    assert_eq!(charged(&disk), 0);
    let crashed = after_a_crash(&disk);
    assert_eq!(charged(&crashed), 0, "somebody was told that it did not happen");
    assert_eq!(tx::resolve(&mut conn(&crashed), finished).unwrap(), Fate::NotCommitted);
}

// G-30
#[tokio::test]
async fn what_cannot_be_resolved_stays_unknown() {
    let (disk, mut elsewhere, finished) = charge_in_doubt().await;
    elsewhere.pragma_update(None, "synchronous", "NORMAL").unwrap();
    let error = tx::resolve(&mut elsewhere, finished).unwrap_err();
    assert!(error.kind() == Kind::Misconfigured && error.outcome_is_unknown(), "{error}");
    elsewhere.pragma_update(None, "synchronous", "FULL").unwrap();
    elsewhere.busy_timeout(Duration::ZERO).unwrap();
    let lock = disk.meddle();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = tx::resolve(&mut elsewhere, finished).unwrap_err();
    assert!(error.kind() == Kind::Busy && error.outcome_is_unknown(), "{error}");
    lock.execute_batch("ROLLBACK").unwrap();
    let never = "CREATE TABLE parent (id INTEGER PRIMARY KEY);
        CREATE TABLE orphan (parent REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
        CREATE TRIGGER meddle AFTER UPDATE ON semel_meta BEGIN INSERT INTO orphan VALUES (1); END";
    elsewhere.execute_batch(never).unwrap();
    let error = tx::resolve(&mut elsewhere, finished).unwrap_err();
    assert!(error.outcome_is_unknown(), "its own commit failed: {error}");
    elsewhere.execute_batch("DROP TRIGGER meddle").unwrap();
    assert_eq!(tx::resolve(&mut elsewhere, finished).unwrap(), Fate::NotCommitted);
}

// G-9: a claim whose commit is in doubt is withdrawn, of which there is nothing to write; then all is lost but the files.
#[tokio::test]
async fn after_a_commit_in_doubt_the_next_transaction_writes_whatever_is_asked_of_it() {
    let disk = Disk::new();
    let store = disk.open();
    let deferred = "CREATE TABLE parent (id INTEGER PRIMARY KEY);
        CREATE TABLE orphan (parent REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
        CREATE TRIGGER meddle AFTER INSERT ON semel_operation BEGIN INSERT INTO orphan VALUES (1); END";
    disk.meddle().execute_batch(deferred).unwrap();
    let wish = request("doubtful");
    assert!(store.claim(&wish).await.unwrap_err().outcome_is_unknown());
    let before = store.status().await.unwrap().mark;
    let holder = semel_core::lease::Holder {
        operation: wish.operation.id(),
        token: semel_core::Token(1),
        nonce: wish.nonce,
    };
    let withdraw = Release { holder };
    assert!(matches!(store.release(&withdraw).await.unwrap(), Change::Refused(_)));
    let written = store.status().await.unwrap().mark;
    assert!(written > before, "an answer that there is no such claim must stay true");
    assert!(matches!(store.release(&withdraw).await.unwrap(), Change::Refused(_)));
    assert_eq!(store.status().await.unwrap().mark, written, "once is enough");
}
