//! Claim, effect, messages and outcome in the caller's own transaction.

use rusqlite::{Connection, Transaction, TransactionBehavior};
use semel_core::joined::Call;
use semel_core::message::{Message, Topic};
use semel_core::outbox::{Lane, Outbox, Taken};
use semel_core::outcome::Unreadable;
use semel_core::record::State;
use semel_core::subject::SubjectId;
use semel_core::verbs::Release;
use semel_core::{
    Fingerprint, Fingerprinter, Keyring, MemorySubjectKeys, Outcome, Policy, Refusal, SubjectKeys,
};
use semel_stores::sqlite::outbox::SqliteOutbox;
use semel_stores::sqlite::tx::{self, Begun, Fate, Running};

use super::*;

/// A file with the store's tables and the application's.
pub(super) async fn shop() -> (Disk, SqliteStore, Fingerprinter) {
    let disk = Disk::new();
    let store = disk.open();
    disk.meddle()
        .execute_batch(
            "CREATE TABLE account (name TEXT PRIMARY KEY, cents INTEGER NOT NULL);
             INSERT INTO account VALUES ('alice', 10000);",
        )
        .unwrap();
    let prints = Fingerprinter::new(store.status().await.unwrap().hash_keys).unwrap();
    (disk, store, prints)
}

pub(super) fn call(key: &str, print: Fingerprint) -> Call {
    let scope = Scope::new("shop", "alice", "charge").unwrap();
    Call::new(scope, key.parse().unwrap(), print, &Policy::default())
}

pub(super) fn conn(disk: &Disk) -> Connection {
    let conn = disk.meddle();
    conn.busy_timeout(Duration::from_secs(30)).unwrap();
    conn
}

pub(super) fn immediate(conn: &mut Connection) -> Transaction<'_> {
    conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

pub(super) fn running(begun: Begun) -> Box<Running> {
    match begun {
        Begun::Run(running) => running,
        other => panic!("it should run, not {other:?}"),
    }
}

pub(super) fn charge(conn: &Connection) {
    let changed = conn.execute("UPDATE account SET cents = cents - 2000 WHERE name = 'alice'", []).unwrap();
    assert_eq!(changed, 1);
}

pub(super) fn charged(disk: &Disk) -> i64 {
    let cents: i64 = disk.meddle().query_row("SELECT cents FROM account", [], |row| row.get(0)).unwrap();
    (10_000 - cents) / 2000
}

fn waiting(disk: &Disk) -> i64 {
    disk.meddle().query_row("SELECT count(*) FROM semel_outbox", [], |row| row.get(0)).unwrap()
}

fn paid() -> Message {
    Message::new(Topic::parse("orders.paid").unwrap(), r#"{"order": 1042}"#).key("order-1042")
}

/// Charges once, in one transaction; what the client is told.
fn pay(conn: &mut Connection, call: &Call) -> Result<String, Refusal> {
    let transaction = immediate(conn);
    let text = |outcome: &Outcome| String::from_utf8(outcome.body_bytes().unwrap().to_vec()).unwrap();
    match tx::begin(&transaction, call).unwrap() {
        Begun::Run(running) => {
            charge(&transaction);
            let outcome = Outcome::text(format!("paid by attempt {}", running.attempt()));
            let finished = tx::finish(&transaction, running, &outcome, &[paid()]).unwrap();
            let committed = tx::commit(transaction, finished).unwrap();
            assert_eq!(committed.operation(), call.operation().id());
            Ok(text(&outcome))
        }
        Begun::Replay(outcome) => Ok(text(&outcome)),
        Begun::Refused(why) => Err(why),
    }
}

// G-30
#[tokio::test]
async fn effect_outcome_and_messages_commit_together_and_a_retry_replays() {
    let (disk, store, prints) = shop().await;
    let call = call("together-0000001", prints.of_bytes(b"2000"));
    let mut conn = conn(&disk);
    assert_eq!(pay(&mut conn, &call).unwrap(), "paid by attempt 1");
    assert_eq!(pay(&mut conn, &call.again()).unwrap(), "paid by attempt 1", "it is replayed");
    assert_eq!(pay(&mut conn, &call).unwrap(), "paid by attempt 1", "also to the attempt itself");
    assert_eq!((charged(&disk), waiting(&disk)), (1, 1));
    // The store sees an operation like any other.
    let record = store.get(call.operation().id()).await.unwrap().unwrap();
    assert_eq!((record.state, record.attempts), (State::Completed, 1));
    assert_eq!(store.status().await.unwrap().mark.token, record.token, "one counter for all");
    assert!(claim(&store, "another-00000001").await.holder.token > record.token);
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let taken = outbox.take(Lane(0), Nonce::random(), Duration::from_secs(30)).await.unwrap();
    let Taken::Yours(mut cursor) = taken else { panic!("the lane is free") };
    let read = cursor.next(10).await.unwrap();
    assert_eq!((read.len(), read[0].message.key.as_deref()), (1, Some("order-1042")));
}

// G-30
#[tokio::test]
async fn an_effect_that_fails_leaves_nothing_and_may_be_tried_again() {
    let (disk, store, prints) = shop().await;
    let call = call("fails-0000000001", prints.of_bytes(b"2000"));
    let mut conn = conn(&disk);
    let before = store.status().await.unwrap().mark;
    {
        let transaction = immediate(&mut conn);
        running(tx::begin(&transaction, &call).unwrap());
        charge(&transaction);
        transaction.execute("UPDATE nothing SET cents = 0", []).unwrap_err();
        // Dropped, and so rolled back.
    }
    {
        let transaction = immediate(&mut conn);
        let running = running(tx::begin(&transaction, &call.again()).unwrap());
        charge(&transaction);
        let bad = paid().header("semel-id", "1");
        let refused = tx::finish(&transaction, running, &Outcome::text("paid"), &[bad]);
        assert_eq!(refused.unwrap_err().kind(), Kind::Misconfigured);
    }
    assert!(store.get(call.operation().id()).await.unwrap().is_none());
    assert_eq!((charged(&disk), waiting(&disk)), (0, 0));
    assert_eq!(store.status().await.unwrap().mark, before);
    assert_eq!(pay(&mut conn, &call.again()).unwrap(), "paid by attempt 1");
    assert_eq!(charged(&disk), 1);
}

// G-30
#[tokio::test]
async fn another_request_under_the_key_is_refused_and_the_same_under_a_new_hash_key_is_not() {
    let (disk, store, prints) = shop().await;
    let mut conn = conn(&disk);
    pay(&mut conn, &call("mismatch-0000001", prints.of_json(br#"{"cents": 2000}"#))).unwrap();
    let other = pay(&mut conn, &call("mismatch-0000001", prints.of_json(br#"{"cents": 9000}"#)));
    match other {
        Err(Refusal::Mismatch(changes)) => assert_eq!(changes.changed, ["/cents"]),
        other => panic!("another request is refused, not {other:?}"),
    }
    store.rotate_hash_key().await.unwrap();
    let rotated = Fingerprinter::new(store.status().await.unwrap().hash_keys).unwrap();
    let same = call("mismatch-0000001", rotated.of_json(br#"{"cents": 2000}"#));
    assert_eq!(pay(&mut conn, &same).unwrap(), "paid by attempt 1");
    let other = call("mismatch-0000001", rotated.of_json(br#"{"cents": 1}"#));
    assert!(matches!(pay(&mut conn, &other), Err(Refusal::Mismatch(_))));
    // Made under the new key, and met by somebody who has not loaded it.
    pay(&mut conn, &call("mismatch-0000002", rotated.of_bytes(b"x"))).unwrap();
    let late = pay(&mut conn, &call("mismatch-0000002", prints.of_bytes(b"x")));
    assert!(matches!(late, Err(Refusal::KeyNotLoaded { version: 2, .. })), "{late:?}");
    assert_eq!(charged(&disk), 2);
}

// G-30
#[tokio::test]
async fn attempts_outside_and_inside_of_transactions_respect_each_other() {
    let (disk, store, prints) = shop().await;
    let mut conn = conn(&disk);
    // The print of `request` is of another making; it must be the same one here.
    let call = call("mixed-0000000001", prints.of_bytes(b"2000"));
    let outside = call.again().request();
    let lease = granted(store.claim(&outside).await.unwrap());
    assert!(matches!(pay(&mut conn, &call), Err(Refusal::InFlight { .. })));
    store.release(&Release { holder: lease.holder }).await.unwrap();
    assert_eq!(pay(&mut conn, &call.again()).unwrap(), "paid by attempt 2");
    let told = store.claim(&call.again().request()).await.unwrap();
    assert!(matches!(told, Claim::Completed { .. }), "{told:?}");
    // An attempt outside that was lost: unknown, and nothing runs.
    let call = super::joined::call("mixed-0000000002", prints.of_bytes(b"2000"));
    let lease = granted(store.claim(&call.again().request()).await.unwrap());
    let mark = semel_core::verbs::MarkUnknown {
        witness: semel_core::verbs::Witness::Holder(lease.holder),
        note: "who knows".into(),
    };
    store.mark_unknown(&mark).await.unwrap();
    assert!(matches!(pay(&mut conn, &call), Err(Refusal::OutcomeUnknown { .. })));
    assert_eq!(charged(&disk), 1);
}

// G-30
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_simultaneous_duplicates_one_has_the_effect() {
    let (disk, store, prints) = shop().await;
    let disk = Arc::new(disk);
    let wish = call("crowd-0000000001", prints.of_bytes(b"2000"));
    let crowd: Vec<_> = (0..8)
        .map(|_| {
            let (disk, call) = (disk.clone(), wish.again());
            std::thread::spawn(move || pay(&mut conn(&disk), &call))
        })
        .collect();
    // Meanwhile the store goes on, on the same file.
    for n in 0..20 {
        let lease = claim(&store, &format!("meanwhile-{n:07}")).await;
        complete(&store, &lease, "done").await;
    }
    for answer in crowd {
        match answer.join().unwrap() {
            Ok(text) => assert_eq!(text, "paid by attempt 1"),
            other => panic!("who waits for the lock sees the end: {other:?}"),
        }
    }
    assert_eq!((charged(&disk), waiting(&disk)), (1, 1));
}

// G-30: who does not get the lock within its time-out is told that it is busy, and nothing has happened.
#[tokio::test]
async fn a_duplicate_with_a_short_time_out_does_not_queue() {
    let (disk, _store, prints) = shop().await;
    let wish = call("short-0000000001", prints.of_bytes(b"2000"));
    let (mut first, mut second) = (conn(&disk), conn(&disk));
    second.busy_timeout(Duration::ZERO).unwrap();
    let transaction = immediate(&mut first);
    let running = running(tx::begin(&transaction, &wish).unwrap());
    charge(&transaction);
    let refused = second.transaction_with_behavior(TransactionBehavior::Immediate).map(drop).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy));
    let finished = tx::finish(&transaction, running, &Outcome::text("paid"), &[]).unwrap();
    let _committed = tx::commit(transaction, finished).unwrap();
    assert_eq!(pay(&mut second, &wish.again()).unwrap(), "paid");
    assert_eq!(charged(&disk), 1);
}

// G-31
#[tokio::test]
async fn what_does_not_hold_the_write_lock_or_is_not_synced_is_refused_before_the_effect() {
    let (disk, _store, prints) = shop().await;
    let wish = call("nolock-000000001", prints.of_bytes(b"2000"));
    let mut conn = conn(&disk);
    let text = refused(tx::begin(&conn, &wish), Kind::Misconfigured);
    assert!(text.contains("no open transaction"), "{text}");
    let deferred = conn.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    let text = refused(tx::begin(&deferred, &wish), Kind::Misconfigured);
    assert!(text.contains("BEGIN IMMEDIATE"), "{text}");
    deferred.query_row("SELECT cents FROM account", [], |row| row.get::<_, i64>(0)).unwrap();
    refused(tx::begin(&deferred, &wish), Kind::Misconfigured);
    drop(deferred);
    conn.pragma_update(None, "synchronous", "OFF").unwrap();
    let transaction = immediate(&mut conn);
    let text = refused(tx::begin(&transaction, &wish), Kind::Misconfigured);
    assert!(text.contains("synchronous=FULL"), "{text}");
}

// G-31
#[tokio::test]
async fn an_attempt_is_finished_in_the_transaction_that_began_it() {
    let (disk, store, prints) = shop().await;
    let wish = call("level-0000000001", prints.of_bytes(b"2000"));
    let mut conn = conn(&disk);
    let transaction = immediate(&mut conn);
    let lost = running(tx::begin(&transaction, &wish).unwrap());
    drop(transaction);
    let mut transaction = immediate(&mut conn);
    let text = refused(tx::finish(&transaction, lost, &Outcome::text("paid"), &[]), Kind::Misconfigured);
    assert!(text.contains("one transaction"), "{text}");
    // Begun inside a savepoint that is rolled back.
    let mut savepoint = transaction.savepoint().unwrap();
    let lost = running(tx::begin(&savepoint, &wish.again()).unwrap());
    savepoint.rollback().unwrap();
    refused(tx::finish(&savepoint, lost, &Outcome::text("paid"), &[]), Kind::Misconfigured);
    drop(savepoint);
    // An effect that is undone by itself, and another in its place.
    let kept = running(tx::begin(&transaction, &wish.again()).unwrap());
    let mut savepoint = transaction.savepoint().unwrap();
    charge(&savepoint);
    charge(&savepoint);
    savepoint.rollback().unwrap();
    savepoint.commit().unwrap();
    charge(&transaction);
    // Another operation of the same transaction has a token of its own.
    let other = running(tx::begin(&transaction, &call("level-0000000002", prints.of_bytes(b"x"))).unwrap());
    assert!(other.token() > kept.token());
    let again = tx::begin(&transaction, &wish.again()).unwrap();
    assert!(matches!(again, Begun::Refused(Refusal::InFlight { .. })), "it is running here: {again:?}");
    let _ = tx::finish(&transaction, other, &Outcome::text("done"), &[]).unwrap();
    let finished = tx::finish(&transaction, kept, &Outcome::text("paid"), &[]).unwrap();
    let _committed = tx::commit(transaction, finished).unwrap();
    assert_eq!(charged(&disk), 1);
    assert_eq!(store.get(wish.operation().id()).await.unwrap().unwrap().state, State::Completed);
}

// G-30: not an effect that nobody knows of.
#[tokio::test]
async fn who_commits_without_finishing_leaves_a_claim_and_nothing_runs_again() {
    let (disk, store, prints) = shop().await;
    let wish = call("forgot-000000001", prints.of_bytes(b"2000"));
    let mut conn = conn(&disk);
    let transaction = immediate(&mut conn);
    running(tx::begin(&transaction, &wish).unwrap());
    charge(&transaction);
    transaction.commit().unwrap();
    assert!(matches!(pay(&mut conn, &wish.again()), Err(Refusal::InFlight { .. })));
    let record = store.get(wish.operation().id()).await.unwrap().unwrap();
    assert_eq!(record.state, State::InProgress);
    assert_eq!(charged(&disk), 1);
}

// G-30
#[tokio::test]
async fn the_fate_of_a_commit_is_found_out_under_the_lock() {
    let (disk, _store, prints) = shop().await;
    let wish = call("fate-00000000001", prints.of_bytes(b"2000"));
    let (mut conn, mut elsewhere) = (conn(&disk), conn(&disk));
    let mut end = |wish: &Call, commit: bool| {
        let transaction = immediate(&mut conn);
        let running = running(tx::begin(&transaction, wish).unwrap());
        charge(&transaction);
        let finished = tx::finish(&transaction, running, &Outcome::text("paid"), &[]).unwrap();
        match commit {
            true => drop(tx::commit(transaction, finished).unwrap()),
            false => transaction.rollback().unwrap(),
        }
        finished
    };
    let lost = end(&wish, false);
    assert_eq!(tx::resolve(&mut elsewhere, lost).unwrap(), Fate::NotCommitted);
    let done = end(&wish.again(), true);
    assert_eq!(tx::resolve(&mut elsewhere, done).unwrap(), Fate::Committed);
    assert_eq!(tx::resolve(&mut elsewhere, lost).unwrap(), Fate::NotCommitted, "that one did not");
}

// G-13, G-30
#[tokio::test]
async fn a_restored_database_runs_nothing_until_acknowledged() {
    let (disk, store, prints) = shop().await;
    let copy = disk.0.path().join("backup.db");
    disk.meddle().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    pay(&mut conn(&disk), &call("restored-0000001", prints.of_bytes(b"2000"))).unwrap();
    claim(&store, "restored-0000002").await;
    store.close().await;
    std::fs::copy(&copy, disk.path()).unwrap();
    let store = disk.open();
    let wish = call("restored-0000001", prints.of_bytes(b"2000"));
    let mut conn = conn(&disk);
    let transaction = immediate(&mut conn);
    refused(tx::begin(&transaction, &wish), Kind::WentBack);
    refused(store.begin(&transaction, &wish), Kind::WentBack);
    drop(transaction);
    assert_eq!(charged(&disk), 0);
    store.acknowledge_restore("ops").await.unwrap();
    assert_eq!(pay(&mut conn, &wish).unwrap(), "paid by attempt 1");
}

/// Pays until it dies.
#[tokio::test]
async fn child_that_pays_until_it_dies() {
    let Some(path) = given_to_child() else { return };
    let mut conn = Connection::open(path).unwrap();
    let secret: Vec<u8> = conn.query_row("SELECT secret FROM semel_hash_key", [], |row| row.get(0)).unwrap();
    let key = semel_core::fingerprint::HashKey::new(1, secret.try_into().unwrap());
    let prints = Fingerprinter::new(vec![key]).unwrap();
    for n in 0..3 {
        pay(&mut conn, &call(&format!("crash-00000000{n}"), prints.of_bytes(b"2000"))).unwrap();
    }
}

// G-30
#[cfg(debug_assertions)]
#[tokio::test]
async fn a_crash_anywhere_leaves_all_of_it_or_nothing() {
    let points = [
        "sqlite-tx-begun",
        "sqlite-tx-effect-done",
        "sqlite-tx-finished",
        "sqlite-tx-before-commit",
        "sqlite-tx-after-commit",
    ];
    for point in points {
        for passes in [0, 2] {
            let (disk, store, prints) = shop().await;
            let mut command = child("sqlite::joined::child_that_pays_until_it_dies", &disk.path());
            command.env("SEMEL_CRASH_AT", point).env("SEMEL_CRASH_AFTER", passes.to_string());
            assert!(!command.output().unwrap().status.success(), "it died at {point}");
            let done = passes + i64::from(point == "sqlite-tx-after-commit");
            assert_eq!((charged(&disk), waiting(&disk)), (done, done), "{point} after {passes}");
            for n in 0..3 {
                let wish = call(&format!("crash-00000000{n}"), prints.of_bytes(b"2000"));
                let record = store.get(wish.operation().id()).await.unwrap();
                assert_eq!(record.is_some(), n < done, "{point} after {passes}: nothing of it by half");
                // Whoever retries gets the answer, or the effect now.
                assert_eq!(pay(&mut conn(&disk), &wish).unwrap(), "paid by attempt 1");
            }
            assert_eq!((charged(&disk), waiting(&disk)), (3, 3), "each once");
        }
    }
}

#[tokio::test]
async fn an_outcome_that_is_not_in_the_transaction_is_not_committed_as_if_it_were() {
    // G-30
    let (disk, store, prints) = shop().await;
    let wish = call("k1", prints.of_bytes(b"20 euro"));
    let mut conn = conn(&disk);
    let mut transaction = immediate(&mut conn);
    let work = running(tx::begin(&transaction, &wish).unwrap());
    charge(&transaction);
    let mut savepoint = transaction.savepoint().unwrap();
    let finished = tx::finish(&savepoint, work, &Outcome::text("paid"), &[paid()]).unwrap();
    savepoint.rollback().unwrap();
    drop(savepoint);
    refused(tx::commit(transaction, finished), Kind::Misconfigured);
    assert_eq!((charged(&disk), waiting(&disk)), (0, 0), "nothing was committed");
    assert_eq!(store.get(wish.operation().id()).await.unwrap(), None);
}

#[tokio::test]
async fn an_outcome_whose_messages_cannot_be_written_is_not_written_either() {
    // G-30
    let (disk, store, prints) = shop().await;
    let wish = call("k1", prints.of_bytes(b"20 euro"));
    let mut conn = conn(&disk);
    let transaction = immediate(&mut conn);
    let work = running(tx::begin(&transaction, &wish).unwrap());
    charge(&transaction);
    refused(tx::finish(&transaction, work, &Outcome::text("paid"), &[paid().key("")]), Kind::Misconfigured);
    // Whoever commits all the same leaves a claim that lapses, never an answer without its messages.
    transaction.commit().unwrap();
    let record = store.get(wish.operation().id()).await.unwrap().unwrap();
    assert_eq!((record.state, waiting(&disk)), (State::InProgress, 0));
    let transaction = immediate(&mut conn);
    assert!(
        matches!(tx::begin(&transaction, &wish).unwrap(), Begun::Refused(_)),
        "the same attempt is not begun again"
    );
}

#[tokio::test]
async fn in_a_transaction_too_an_outcome_is_sealed_for_its_subject_or_nothing_begins() {
    // G-20, G-30
    let (disk, store, prints) = shop().await;
    let keys = Arc::new(MemorySubjectKeys::new());
    let ring = Keyring::new("m", &[1; 32]).unwrap();
    let policy = Policy::builder().encrypt(ring).subject_keys(keys.clone()).build().unwrap();
    let wish = || {
        let scope = Scope::new("shop", "alice", "charge").unwrap();
        let anna = policy.for_subject("anna");
        Call::new(scope, "k-1".parse().unwrap(), prints.of_bytes(b"20 euro"), &anna)
    };
    let mut conn = conn(&disk);
    let transaction = immediate(&mut conn);
    let early = tx::begin(&transaction, &wish()).map(drop);
    assert!(refused(early, Kind::Misconfigured).contains("with_subject_key"));
    drop(transaction);
    let first = pay(&mut conn, &wish().with_subject_key().await.unwrap()).unwrap();
    let stored = store.get(wish().operation().id()).await.unwrap().unwrap().outcome.unwrap();
    assert!(semel_core::seal::subject_key(&stored).is_some());
    let again = pay(&mut conn, &wish().with_subject_key().await.unwrap()).unwrap();
    assert_eq!((again, charged(&disk)), (first, 1));
    keys.forget(SubjectId::of("anna")).await.unwrap();
    let gone = pay(&mut conn, &wish().with_subject_key().await.unwrap());
    assert!(matches!(gone, Err(Refusal::Unreadable(Unreadable::SubjectKeyMissing { .. }))), "{gone:?}");
    assert_eq!(charged(&disk), 1, "nothing runs again");
}
