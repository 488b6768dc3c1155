//! Claim, effect, messages and outcome in one transaction of the caller.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Transaction, TxOpts};
use semel_core::error::Kind;
use semel_core::joined::Call;
use semel_core::record::Recovery;
use semel_core::store::EffectStore;
use semel_core::verbs::Release;
use semel_core::{Claim, Fingerprinter, Message, Outbox, Outcome, Policy, Refusal, Scope, State};
use semel_stores::mysql::MysqlStore;
use semel_stores::mysql::outbox::MysqlOutbox;
use semel_stores::mysql::tx::{self, Begun, Fate, Running, SLOTS};

use super::rig::{Database, client, complete, connect, granted, patient, with_database};

pub(super) const PAY: &str = "INSERT INTO payment (who) VALUES ('alice')";

/// A database with a store in it and a table for effects.
pub(super) async fn shop(database: &Database) -> (MysqlStore, Fingerprinter) {
    let store = connect(&database.url()).await;
    assert!(store.capabilities().same_transaction);
    let table = "CREATE TABLE payment (id bigint AUTO_INCREMENT PRIMARY KEY, who varchar(20) NOT NULL) ENGINE = InnoDB";
    database.run(table).await;
    let prints = Fingerprinter::new(store.status().await.unwrap().hash_keys).unwrap();
    (store, prints)
}

pub(super) fn call(prints: &Fingerprinter, key: &str, body: &str) -> Call {
    let scope = Scope::new("it", "alice", "pay").unwrap();
    Call::new(scope, key.parse().unwrap(), prints.of_bytes(body.as_bytes()), &Policy::default())
}

pub(super) async fn payments(database: &Database) -> i64 {
    database.number("SELECT COUNT(*) FROM payment").await
}

pub(super) fn run(begun: Begun) -> Box<Running> {
    match begun {
        Begun::Run(running) => running,
        other => panic!("to be run, not {other:?}"),
    }
}

pub(super) fn replayed(begun: Begun) -> String {
    match begun {
        Begun::Replay(outcome) => String::from_utf8(outcome.body_bytes().unwrap().to_vec()).unwrap(),
        other => panic!("to be replayed, not {other:?}"),
    }
}

fn refused(begun: Begun) -> Refusal {
    match begun {
        Begun::Refused(why) => why,
        other => panic!("to be refused, not {other:?}"),
    }
}

pub(super) async fn never(_: tx::Finished) -> Result<Fate, semel_core::Error> {
    panic!("the answer came")
}

pub(super) fn paid() -> Message {
    Message::new("orders.paid".parse().unwrap(), "order 1042").key("order-1042")
}

/// Pays once, or says what was said before. `None`: another attempt is running.
pub(super) async fn pay(conn: &mut Conn, call: &Call) -> Option<String> {
    let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
    let answer = match tx::begin(&mut transaction, call).await.unwrap() {
        Begun::Run(running) => {
            transaction.query_drop(PAY).await.unwrap();
            let answer = format!("paid by attempt {}", running.attempt());
            let outcome = Outcome::text(&answer);
            let finished = tx::finish(&mut transaction, running, &outcome, &[paid()]).await.unwrap();
            let _ = tx::commit(transaction, finished, never).await.unwrap();
            return Some(answer);
        }
        Begun::Replay(outcome) => Some(String::from_utf8(outcome.body_bytes().unwrap().to_vec()).unwrap()),
        Begun::Refused(Refusal::InFlight { .. }) => None,
        Begun::Refused(why) => panic!("{why}"),
    };
    transaction.rollback().await.unwrap();
    answer
}

// G-30
#[test]
fn effect_outcome_and_message_commit_together_and_a_retry_replays() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let mut conn = database.client().await;
        let wish = call(&prints, "k-1", "20 euro");
        // Rolled back, nothing has happened.
        let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
        let running = run(tx::begin(&mut transaction, &wish).await.unwrap());
        transaction.query_drop(PAY).await.unwrap();
        let _ = tx::finish(&mut transaction, running, &Outcome::text("paid"), &[paid()]).await.unwrap();
        transaction.rollback().await.unwrap();
        assert_eq!((payments(&database).await, store.get(wish.operation().id()).await.unwrap()), (0, None));

        assert_eq!(pay(&mut conn, &wish.again()).await.unwrap(), "paid by attempt 1");
        assert_eq!(pay(&mut conn, &wish.again()).await.unwrap(), "paid by attempt 1");
        let record = store.get(wish.operation().id()).await.unwrap().unwrap();
        assert_eq!((record.state, record.attempts), (State::Completed, 1));
        assert!(record.settled_at.unwrap() >= record.attempt_at && record.attempt_at == record.created_at);
        assert_eq!(record.lease_until, record.attempt_at.after(record.terms.lease));
        // To everybody else it is an operation like any other.
        let claim = store.claim(&wish.again().request()).await.unwrap();
        let Claim::Completed { outcome, .. } = claim else { panic!("completed, not {claim:?}") };
        assert_eq!(Outcome::decode(&outcome).unwrap(), Outcome::text("paid by attempt 1"));
        let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
        let told = tx::begin(&mut transaction, &call(&prints, "k-1", "30 euro")).await.unwrap();
        assert!(matches!(refused(told), Refusal::Mismatch(_)));
        transaction.rollback().await.unwrap();
        let outbox = MysqlOutbox::connect_with(patient(database.url())).await.unwrap();
        assert_eq!(outbox.list(None, 0, 10).await.unwrap().len(), 1, "one payment, one message");
        assert_eq!(payments(&database).await, 1);
    });
}

// G-30: and what an attempt outside any transaction stored is replayed inside one.
#[test]
fn an_outcome_stored_by_the_gateway_is_replayed_in_a_transaction() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let mut conn = database.client().await;
        let wish = call(&prints, "k-1", "20 euro");
        let lease = granted(store.claim(&wish.request()).await.unwrap());
        assert_eq!(pay(&mut conn, &wish.again()).await, None);
        let _ = store.complete(&complete(&lease, Outcome::text("by the gateway").encode())).await.unwrap();
        assert_eq!(pay(&mut conn, &wish.again()).await.unwrap(), "by the gateway");
        // What it gave back is taken over, and it is the next attempt.
        let wish = call(&prints, "k-2", "20 euro");
        let lease = granted(store.claim(&wish.again().request()).await.unwrap());
        let _ = store.release(&Release { holder: lease.holder }).await.unwrap();
        assert_eq!(pay(&mut conn, &wish).await.unwrap(), "paid by attempt 2");
        let record = store.get(wish.operation().id()).await.unwrap().unwrap();
        assert!(record.token > lease.holder.token && record.state == State::Completed);
    });
}

// G-30: it does not queue.
#[test]
fn a_duplicate_is_refused_at_once_while_the_first_is_open() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let (mut conn, mut other) = (database.client().await, database.client().await);
        let wish = call(&prints, "k-1", "20 euro");
        for isolation in ["REPEATABLE READ", "READ COMMITTED", "SERIALIZABLE"] {
            let isolate = format!("SET SESSION TRANSACTION ISOLATION LEVEL {isolation}");
            conn.query_drop(&isolate).await.unwrap();
            other.query_drop(&isolate).await.unwrap();
            let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
            run(tx::begin(&mut transaction, &wish.again()).await.unwrap());
            transaction.query_drop(PAY).await.unwrap();
            let mut second = other.start_transaction(TxOpts::default()).await.unwrap();
            let begun = Instant::now();
            let told = tx::begin(&mut second, &wish.again()).await.unwrap();
            assert!(matches!(refused(told), Refusal::InFlight { .. }));
            assert!(begun.elapsed() < Duration::from_secs(20), "the server's own limit is 50 seconds");
            // Its transaction can be used for others.
            run(tx::begin(&mut second, &call(&prints, "k-2", "20 euro")).await.unwrap());
            second.rollback().await.unwrap();
            // Nor does a transaction begin twice.
            let told = tx::begin(&mut transaction, &wish.again()).await.unwrap();
            assert!(matches!(refused(told), Refusal::InFlight { .. }));
            transaction.rollback().await.unwrap();
        }
        assert_eq!(pay(&mut conn, &wish).await.unwrap(), "paid by attempt 1");
    });
}

// G-31: a server may roll all of it back because of one lock (innodb_rollback_on_timeout); then it is no refusal.
#[test]
fn a_refusal_leaves_the_transaction_as_it_was_or_is_an_error() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let (mut conn, mut other) = (database.client().await, database.client().await);
        let rolls_back = database.number("SELECT @@innodb_rollback_on_timeout").await == 1;
        let wish = call(&prints, "k-1", "20 euro");
        let mut holder = conn.start_transaction(TxOpts::default()).await.unwrap();
        run(tx::begin(&mut holder, &wish).await.unwrap());
        for autocommit in [1, 0] {
            other.query_drop(format!("SET SESSION autocommit = {autocommit}")).await.unwrap();
            let before = payments(&database).await;
            let mut second = other.start_transaction(TxOpts::default()).await.unwrap();
            second.query_drop(PAY).await.unwrap();
            match tx::begin(&mut second, &wish.again()).await {
                Ok(begun) => {
                    assert!(matches!(refused(begun), Refusal::InFlight { .. }) && !rolls_back);
                    second.commit().await.unwrap();
                    assert_eq!(payments(&database).await, before + 1);
                }
                Err(error) => {
                    assert!(rolls_back && error.is_retryable() && !error.outcome_is_unknown(), "{error:?}");
                    second.rollback().await.unwrap();
                    assert_eq!(payments(&database).await, before);
                }
            }
        }
        holder.rollback().await.unwrap();
    });
}

// G-30
#[test]
fn fifty_duplicates_at_once_make_one_effect() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let wish = call(&prints, "k-1", "20 euro");
        let (url, barrier) = (database.url(), Arc::new(tokio::sync::Barrier::new(50)));
        let racing: Vec<_> = (0..50)
            .map(|_| {
                let (url, barrier, wish) = (url.clone(), barrier.clone(), wish.clone());
                tokio::spawn(async move {
                    let mut conn = client(&url).await;
                    barrier.wait().await;
                    loop {
                        if let Some(answer) = pay(&mut conn, &wish.again()).await {
                            return answer;
                        }
                        // Another runs: leave it some of the machine.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                })
            })
            .collect();
        for rival in racing {
            assert_eq!(rival.await.unwrap(), "paid by attempt 1");
        }
        assert_eq!(payments(&database).await, 1);
    });
}

// G-30: absent keys have gaps between them, and whoever locks a gap and then inserts loses a deadlock.
#[test]
fn different_operations_at_once_do_not_deadlock() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let url = database.url();
        let crowd: Vec<_> = (0..8)
            .map(|at| {
                let (url, prints) = (url.clone(), prints.clone());
                tokio::spawn(async move {
                    let mut conn = client(&url).await;
                    for n in 0..10 {
                        let wish = call(&prints, &format!("k-{at}-{n}"), "20 euro");
                        // Two that share a slot are told to come back; every other error is one.
                        while pay(&mut conn, &wish.again()).await.is_none() {}
                    }
                })
            })
            .collect();
        for one in crowd {
            one.await.unwrap();
        }
        assert_eq!(payments(&database).await, 80);
    });
}

// G-30: whoever claims outside any transaction waits for the one that is open, and is told what came of it.
#[test]
fn a_claim_from_outside_waits_for_the_transaction_and_hears_its_outcome() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let store = Arc::new(store);
        let mut conn = database.client().await;
        let wish = call(&prints, "k-1", "20 euro");
        let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
        let running = run(tx::begin(&mut transaction, &wish).await.unwrap());
        let outside = tokio::spawn({
            let (store, request) = (store.clone(), wish.again().request());
            async move { store.claim(&request).await.unwrap() }
        });
        database.until_someone_runs("semel_operation").await;
        let finished = tx::finish(&mut transaction, running, &Outcome::text("paid"), &[]).await.unwrap();
        let _ = tx::commit(transaction, finished, never).await.unwrap();
        let told = outside.await.unwrap();
        assert!(matches!(told, Claim::Completed { .. }), "{told:?}");
    });
}

// G-30: a lapsed attempt that may be run again is taken over, and comes too late after that.
#[test]
fn a_lapsed_attempt_is_taken_over_and_cannot_complete_any_more() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let policy = Policy::builder().recovery(Recovery::Rerun).lease(Duration::from_millis(100)).build();
        let scope = Scope::new("it", "alice", "pay").unwrap();
        let wish = Call::new(scope, "k-1".parse().unwrap(), prints.of_bytes(b"20 euro"), &policy.unwrap());
        let late = granted(store.claim(&wish.request()).await.unwrap());
        database.run("UPDATE semel_operation SET lease_until = 0").await;
        let mut conn = database.client().await;
        assert_eq!(pay(&mut conn, &wish.again()).await.unwrap(), "paid by attempt 2");
        let told = store.complete(&complete(&late, Outcome::text("late").encode())).await.unwrap();
        assert!(matches!(told, semel_core::verbs::Completion::Refused(_)), "{told:?}");
        assert_eq!(pay(&mut conn, &wish.again()).await.unwrap(), "paid by attempt 2");
    });
}

// G-30: the look after the lock is a look at the present, or an error that says to try again.
#[test]
fn a_transaction_that_looks_at_an_older_state_does_not_run_what_has_happened() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let (mut conn, mut second) = (database.client().await, database.client().await);
        for (key, isolated) in [("k-1", 0), ("k-2", 1)] {
            let wish = call(&prints, key, "20 euro");
            conn.query_drop(format!("SET SESSION innodb_snapshot_isolation = {isolated}")).await.unwrap();
            let mut old = conn.start_transaction(TxOpts::default()).await.unwrap();
            let seen: Option<i64> = old.query_first("SELECT COUNT(*) FROM semel_operation").await.unwrap();
            pay(&mut second, &wish).await.unwrap();
            match tx::begin(&mut old, &wish.again()).await {
                Ok(begun) => assert_eq!((isolated, replayed(begun)), (0, "paid by attempt 1".into())),
                Err(error) => assert!(isolated == 1 && error.is_retryable(), "{error:?}"),
            }
            assert_eq!(seen, Some(isolated), "the snapshot is older than the payment");
            old.rollback().await.unwrap();
            assert_eq!(pay(&mut conn, &wish.again()).await.unwrap(), "paid by attempt 1");
        }
        assert_eq!(payments(&database).await, 2);
    });
}

// G-31
#[test]
fn without_a_transaction_there_is_nothing_to_join() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let mut conn = database.client().await;
        let wish = call(&prints, "k-1", "20 euro");
        let error = tx::begin(&mut conn, &wish).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Misconfigured, "{error:?}");
        assert_eq!(store.get(wish.operation().id()).await.unwrap(), None);
        // Nor in another transaction than the one that began, nor after that was ended by a statement that commits.
        for end in ["ROLLBACK", "ROLLBACK; START TRANSACTION", "CREATE TABLE another (n int)"] {
            conn.query_drop("START TRANSACTION").await.unwrap();
            let running = run(tx::begin(&mut conn, &wish.again()).await.unwrap());
            conn.query_drop(end).await.unwrap();
            let error = tx::finish(&mut conn, running, &Outcome::text("paid"), &[paid()]).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Misconfigured, "{end}: {error:?}");
            conn.query_drop("ROLLBACK").await.unwrap();
        }
        assert_eq!(database.number("SELECT COUNT(*) FROM semel_outbox").await, 0);
        // What was committed early is a claim, and nobody runs it beside it.
        assert_eq!(pay(&mut conn, &wish.again()).await, None);
        // A session that opens transactions by itself has one.
        conn.query_drop("SET SESSION autocommit = 0").await.unwrap();
        run(tx::begin(&mut conn, &call(&prints, "k-2", "20 euro")).await.unwrap());
    });
}

// G-31
#[test]
fn savepoints_undo_what_came_after_them_and_the_commit_notices() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let mut conn = database.client().await;
        // Before the beginning.
        let wish = call(&prints, "k-1", "20 euro");
        let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
        transaction.query_drop("SAVEPOINT early").await.unwrap();
        let running = run(tx::begin(&mut transaction, &wish).await.unwrap());
        transaction.query_drop("ROLLBACK TO SAVEPOINT early").await.unwrap();
        let error = tx::finish(&mut transaction, running, &Outcome::text("paid"), &[]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Misconfigured, "{error:?}");
        transaction.rollback().await.unwrap();
        // An effect that failed is undone, and its failure is the outcome.
        let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
        let running = run(tx::begin(&mut transaction, &wish.again()).await.unwrap());
        transaction.query_drop("SAVEPOINT effect").await.unwrap();
        transaction.query_drop(PAY).await.unwrap();
        transaction.query_drop("ROLLBACK TO SAVEPOINT effect").await.unwrap();
        let finished = tx::finish(&mut transaction, running, &Outcome::text("no"), &[]).await.unwrap();
        let _ = tx::commit(transaction, finished, never).await.unwrap();
        assert_eq!(
            (pay(&mut conn, &wish.again()).await.unwrap(), payments(&database).await),
            ("no".into(), 0)
        );
        // The outcome is undone: the effect must not be committed without it.
        for (key, back) in [("k-2", true), ("k-3", false)] {
            let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
            let running = run(tx::begin(&mut transaction, &call(&prints, key, "x")).await.unwrap());
            transaction.query_drop(PAY).await.unwrap();
            transaction.query_drop("SAVEPOINT outcome").await.unwrap();
            let finished = tx::finish(&mut transaction, running, &Outcome::text("paid"), &[]).await.unwrap();
            let end = if back { "ROLLBACK TO SAVEPOINT outcome" } else { "RELEASE SAVEPOINT outcome" };
            transaction.query_drop(end).await.unwrap();
            assert_eq!(tx::commit(transaction, finished, never).await.is_err(), back);
            assert_eq!(payments(&database).await, i64::from(!back));
            // Its locks are gone with it, before the connection is used again.
            let told = pay(&mut database.client().await, &call(&prints, key, "x")).await;
            assert_eq!(told.unwrap(), if back { "paid by attempt 1" } else { "paid" });
            database.run("DELETE FROM payment").await;
        }
    });
}

/// Makes the transaction lose a deadlock about the first two payments. The caller has not noticed, and does something
/// else that goes well.
async fn lose_a_deadlock(database: &Database, transaction: &mut Transaction<'_>) {
    transaction.query_drop("UPDATE payment SET who = 'x' WHERE id = 1").await.unwrap();
    // A rival with more to lose, so that this one is chosen.
    let mut rival = database.client().await;
    rival.query_drop("CREATE TABLE IF NOT EXISTS many (n int) ENGINE = InnoDB").await.unwrap();
    rival.query_drop("START TRANSACTION; UPDATE payment SET who = 'y' WHERE id = 2").await.unwrap();
    let rows = "(1),(2),(3),(4),(5),(6),(7),(8),(9),(10),(11),(12),(13),(14),(15),(16),(17),(18),(19),(20)";
    rival.query_drop(format!("INSERT INTO many VALUES {rows}")).await.unwrap();
    let waiting = tokio::spawn(async move {
        rival.query_drop("UPDATE payment SET who = 'y' WHERE id = 1; COMMIT").await.unwrap();
    });
    database.until_someone_runs("UPDATE payment").await;
    let lost = transaction.query_drop("UPDATE payment SET who = 'x' WHERE id = 2").await;
    assert!(lost.unwrap_err().to_string().contains("eadlock"));
    waiting.await.unwrap();
    transaction.query_drop(PAY).await.unwrap();
}

// G-30: MySQL rolls back a transaction that loses a deadlock, and goes on as if nothing were. What it then commits by
// itself is not denied, and a session without autocommit commits nothing by itself.
#[test]
fn a_transaction_that_was_rolled_back_unnoticed_is_no_success_and_no_failure_either() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        database.run("INSERT INTO payment VALUES (1, 'bob'), (2, 'eve')").await;
        let by_alice = "SELECT COUNT(*) FROM payment WHERE who = 'alice'";
        let mut conn = database.client().await;
        for (autocommit, strays) in [(1, 1), (0, 0)] {
            conn.query_drop(format!("SET SESSION autocommit = {autocommit}")).await.unwrap();
            for before_finish in [false, true] {
                let wish = call(&prints, &format!("k-{autocommit}-{before_finish}"), "20 euro");
                let before = database.number(by_alice).await;
                let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
                let running = run(tx::begin(&mut transaction, &wish).await.unwrap());
                transaction.query_drop(PAY).await.unwrap();
                if before_finish {
                    lose_a_deadlock(&database, &mut transaction).await;
                }
                let finished = tx::finish(&mut transaction, running, &Outcome::text("paid"), &[]).await;
                let error = match finished {
                    Ok(finished) => {
                        assert!(!before_finish);
                        lose_a_deadlock(&database, &mut transaction).await;
                        tx::commit(transaction, finished, never).await.unwrap_err()
                    }
                    Err(error) => {
                        assert!(before_finish, "{error:?}");
                        transaction.rollback().await.unwrap();
                        error
                    }
                };
                assert!(error.outcome_is_unknown() && !error.is_retryable(), "{error:?}");
                assert_eq!(database.number(by_alice).await, before + strays, "autocommit = {autocommit}");
                assert_eq!(store.get(wish.operation().id()).await.unwrap(), None);
                assert_eq!(pay(&mut conn, &wish.again()).await.unwrap(), "paid by attempt 1");
                assert_eq!(database.number(by_alice).await, before + strays + 1);
            }
        }
        assert_eq!(database.number("SELECT COUNT(*) FROM semel_slot").await, i64::from(SLOTS));
    });
}

// G-30, G-40: also when they are too many for one message to the server.
#[test]
fn messages_commit_with_the_effect_or_not_at_all() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let mut conn = database.client().await;
        let topic: semel_core::Topic = "payments.made".parse().unwrap();
        let later = semel_core::Timestamp::from_micros(i64::MAX / 2);
        let mut messages = vec![
            Message::new(topic.clone(), "first")
                .key("ålice")
                .header("x-shop", "b'erlin")
                .correlation("story"),
            Message::new(topic.clone(), vec![0, 39, 92, 255]).key("ålice"),
            Message::new(topic.clone(), "later").deliver_after(later),
        ];
        for (key, size) in [("k-1", 0), ("k-2", 400_000)] {
            messages.extend((0..8).map(|_| Message::new(topic.clone(), vec![b'x'; size])));
            for commits in [false, true] {
                let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
                let wish = call(&prints, key, "20 euro");
                let running = run(tx::begin(&mut transaction, &wish).await.unwrap());
                let outcome = Outcome::text("y".repeat(size));
                let finished = tx::finish(&mut transaction, running, &outcome, &messages).await.unwrap();
                if commits {
                    let _ = tx::commit(transaction, finished, never).await.unwrap();
                } else {
                    transaction.rollback().await.unwrap();
                }
                assert_eq!(store.get(wish.operation().id()).await.unwrap().is_some(), commits);
            }
            let outbox = MysqlOutbox::connect_with(patient(database.url())).await.unwrap();
            let entries = outbox.list(None, 0, 100).await.unwrap();
            assert_eq!(entries.len(), messages.len() - 1);
            for (_, entry) in entries {
                let written = messages.iter().find(|message| message.id == entry.message.id).unwrap();
                assert_eq!(*written, *entry.message);
            }
            assert_eq!(database.number("SELECT COUNT(*) FROM semel_outbox_delayed").await, 1);
            database.run("DELETE FROM semel_outbox").await;
            database.run("DELETE FROM semel_outbox_delayed").await;
        }
        let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
        let running = run(tx::begin(&mut transaction, &call(&prints, "k-3", "20 euro")).await.unwrap());
        let bad = [Message::new(topic, "x").key("")];
        let error = tx::finish(&mut transaction, running, &Outcome::text("paid"), &bad).await.unwrap_err();
        assert!(error.to_string().contains("ordering key"), "{error}");
        transaction.rollback().await.unwrap();
    });
}

const CHILD: &str = "mysql::joined::the_process_that_crashes_inside_its_transaction";

/// Does nothing unless the test below started it.
#[test]
fn the_process_that_crashes_inside_its_transaction() {
    let Ok(url) = std::env::var("SEMEL_CRASH_JOINED") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = connect(&url).await;
        let prints = Fingerprinter::new(store.status().await.unwrap().hash_keys).unwrap();
        pay(&mut client(&url).await, &call(&prints, "k-1", "20 euro")).await;
    });
}

// G-30
#[test]
fn a_crash_anywhere_leaves_all_or_nothing() {
    let places = [
        ("my-tx-begun", 0),
        ("my-tx-effect-done", 0),
        ("my-tx-finished", 0),
        ("my-tx-before-commit", 0),
        ("my-tx-after-commit", 1),
    ];
    for (place, landed) in places {
        with_database(async |database| {
            let (_store, prints) = shop(&database).await;
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", CHILD, "--nocapture"])
                .envs([("SEMEL_CRASH_JOINED", &*database.url()), ("SEMEL_CRASH_AT", place)])
                .env_remove("SEMEL_TEST_LEDGER")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            assert!(!status.success() && status.code() != Some(101), "{status:?}");
            assert_eq!(payments(&database).await, landed, "{place}");
            let messages = database.number("SELECT COUNT(*) FROM semel_outbox").await;
            assert_eq!(messages, landed, "{place}");
            let (mut conn, wish) = (database.client().await, call(&prints, "k-1", "20 euro"));
            // The server takes a moment to notice.
            let answer = loop {
                if let Some(answer) = pay(&mut conn, &wish.again()).await {
                    break answer;
                }
            };
            assert_eq!(answer, "paid by attempt 1");
            assert_eq!(payments(&database).await, 1);
        });
    }
}
