//! Claim, effect and outcome in one transaction of tokio-postgres.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use semel_core::joined::Call;
use semel_core::record::Recovery;
use semel_core::store::EffectStore;
use semel_core::verbs::Release;
use semel_core::{Claim, Fingerprinter, Message, Outcome, Policy, Refusal, Scope, State, Topic};
use semel_stores::postgres::PostgresStore;
use semel_stores::postgres::outbox::enqueue;
use semel_stores::postgres::tx::{self, Begun, Running};
use tokio_postgres::{Client, IsolationLevel};

use super::rig::{self, Database, complete, connect, granted, with_database};

/// A database with a store in it and a table for effects.
pub(super) async fn shop(database: &Database) -> (PostgresStore, Fingerprinter) {
    let store = connect(&database.url()).await;
    database.run("CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY, who text NOT NULL)").await;
    let prints = Fingerprinter::new(store.status().await.unwrap().hash_keys).unwrap();
    (store, prints)
}

pub(super) fn call(prints: &Fingerprinter, key: &str, body: &str) -> Call {
    let scope = Scope::new("it", "alice", "pay").unwrap();
    Call::new(scope, key.parse().unwrap(), prints.of_bytes(body.as_bytes()), &Policy::default())
}

pub(super) async fn payments(database: &Database) -> i64 {
    database.number("SELECT count(*) FROM payment").await
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

pub(super) fn refused(begun: Begun) -> Refusal {
    match begun {
        Begun::Refused(why) => why,
        other => panic!("to be refused, not {other:?}"),
    }
}

/// Pays once, or says what was said before. `None`: another attempt is running.
async fn pay(client: &mut Client, other: &Client, call: &Call) -> Option<String> {
    let transaction = client.transaction().await.unwrap();
    match tx::begin(&transaction, call).await.unwrap() {
        Begun::Run(running) => {
            transaction.execute("INSERT INTO payment (who) VALUES ('alice')", &[]).await.unwrap();
            let answer = format!("paid by attempt {}", running.attempt());
            let finished = tx::finish(&transaction, running, &Outcome::text(&answer), &[]).await.unwrap();
            let resolve = async |lost| tx::resolve(other, lost, tx::PATIENCE).await;
            let _ = tx::commit(transaction, finished, resolve).await.unwrap();
            Some(answer)
        }
        Begun::Replay(outcome) => Some(String::from_utf8(outcome.body_bytes().unwrap().to_vec()).unwrap()),
        Begun::Refused(Refusal::InFlight { .. }) => None,
        Begun::Refused(why) => panic!("{why}"),
    }
}

// G-30
#[test]
fn effect_and_outcome_commit_together_and_every_retry_replays() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let (mut client, other) = (database.client().await, database.client().await);
        let wish = call(&prints, "k-1", "20 euro");
        assert_eq!(pay(&mut client, &other, &wish).await.unwrap(), "paid by attempt 1");
        assert_eq!(pay(&mut client, &other, &wish.again()).await.unwrap(), "paid by attempt 1");
        assert_eq!(payments(&database).await, 1);

        let record = store.get(wish.operation().id()).await.unwrap().unwrap();
        assert_eq!((record.state, record.attempts), (State::Completed, 1));
        assert!(record.settled_at.unwrap() >= record.attempt_at);
        // To everybody else it is an operation like any other.
        let claim = store.claim(&wish.again().request()).await.unwrap();
        let Claim::Completed { outcome, .. } = claim else { panic!("completed, not {claim:?}") };
        assert_eq!(Outcome::decode(&outcome).unwrap(), Outcome::text("paid by attempt 1"));
        let transaction = client.transaction().await.unwrap();
        let changed = tx::begin(&transaction, &call(&prints, "k-1", "30 euro")).await.unwrap();
        assert!(matches!(refused(changed), Refusal::Mismatch(_)));
    });
}

// G-30: and what an attempt outside any transaction stored is replayed inside one.
#[test]
fn an_outcome_stored_by_the_gateway_is_replayed_in_a_transaction() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let wish = call(&prints, "k-1", "20 euro");
        let lease = granted(store.claim(&wish.request()).await.unwrap());
        let mut client = database.client().await;
        let transaction = client.transaction().await.unwrap();
        let while_it_runs = tx::begin(&transaction, &wish.again()).await.unwrap();
        assert!(matches!(refused(while_it_runs), Refusal::InFlight { .. }));
        transaction.rollback().await.unwrap();
        let outcome = Outcome::text("paid by the gateway");
        let _ = store.complete(&complete(&lease, outcome.encode())).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        assert_eq!(replayed(tx::begin(&transaction, &wish.again()).await.unwrap()), "paid by the gateway");
    });
}

// G-30: nobody waits for anybody.
#[test]
fn a_duplicate_is_refused_at_once_while_the_first_is_open() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let wish = call(&prints, "k-1", "20 euro");
        let (mut first, mut second) = (database.client().await, database.client().await);
        let open = first.transaction().await.unwrap();
        let running = run(tx::begin(&open, &wish).await.unwrap());
        open.execute("INSERT INTO payment (who) VALUES ('alice')", &[]).await.unwrap();
        let finished = tx::finish(&open, running, &Outcome::text("paid"), &[]).await.unwrap();

        let duplicate = second.transaction().await.unwrap();
        let told = tx::begin(&duplicate, &wish.again()).await.unwrap();
        assert!(matches!(refused(told), Refusal::InFlight { .. }));
        // Another key of the same client goes its way.
        run(tx::begin(&duplicate, &call(&prints, "k-2", "20 euro")).await.unwrap());
        duplicate.rollback().await.unwrap();
        assert_eq!(store.get(wish.operation().id()).await.unwrap(), None, "nobody sees it before the commit");
        assert_eq!(payments(&database).await, 0);

        let _ = tx::commit(open, finished, async |_| unreachable!("its answer came")).await.unwrap();
        let after = second.transaction().await.unwrap();
        assert_eq!(replayed(tx::begin(&after, &wish.again()).await.unwrap()), "paid");
    });
}

// G-30
#[test]
fn a_rollback_leaves_nothing_and_the_next_attempt_runs() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let (mut client, other) = (database.client().await, database.client().await);
        let wish = call(&prints, "k-1", "20 euro");
        let transaction = client.transaction().await.unwrap();
        let running = run(tx::begin(&transaction, &wish).await.unwrap());
        transaction.execute("INSERT INTO payment (who) VALUES ('alice')", &[]).await.unwrap();
        let _ = tx::finish(&transaction, running, &Outcome::text("paid"), &[]).await.unwrap();
        transaction.rollback().await.unwrap();
        assert_eq!(store.get(wish.operation().id()).await.unwrap(), None);
        assert_eq!(payments(&database).await, 0);
        assert_eq!(pay(&mut client, &other, &wish.again()).await.unwrap(), "paid by attempt 1");
    });
}

async fn race(database: &Database, url: &str, rivals: usize) {
    let (_store, prints) = shop(database).await;
    let wish = call(&prints, "k-1", "20 euro");
    let (url, barrier) = (Arc::new(url.to_owned()), Arc::new(tokio::sync::Barrier::new(rivals)));
    let other = Arc::new(rig::client(&url).await);
    let racing: Vec<_> = (0..rivals)
        .map(|_| {
            let (url, barrier, wish) = (url.clone(), barrier.clone(), wish.clone());
            let other = other.clone();
            tokio::spawn(async move {
                let mut client = rig::client(&url).await;
                barrier.wait().await;
                loop {
                    if let Some(answer) = pay(&mut client, &other, &wish.again()).await {
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
    assert_eq!(payments(database).await, 1);
}

// G-30
#[test]
fn fifty_duplicates_at_once_make_one_effect() {
    with_database(async |database| race(&database, &database.url(), 50).await);
}

// G-31: a pooler in transaction mode may give each transaction another session.
#[test]
fn duplicates_through_a_pooler_make_one_effect() {
    let Some(pooler) = rig::named("SEMEL_TEST_PGBOUNCER") else { return };
    with_database(async |database| race(&database, &database.through(&pooler), 8).await);
}

// G-30: what is written depends on what was read, whoever changed it.
#[test]
fn whoever_comes_in_between_from_outside_makes_the_transaction_fail() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let mut client = database.client().await;
        for released_before in [false, true] {
            let wish = call(&prints, &format!("k-{released_before}"), "20 euro");
            if released_before {
                let lease = granted(store.claim(&wish.again().request()).await.unwrap());
                let _ = store.release(&Release { holder: lease.holder }).await.unwrap();
            }
            let transaction = client.transaction().await.unwrap();
            let running = run(tx::begin(&transaction, &wish).await.unwrap());
            assert_eq!(running.attempt(), if released_before { 2 } else { 1 });
            transaction.execute("INSERT INTO payment (who) VALUES ('alice')", &[]).await.unwrap();
            let outside = granted(store.claim(&wish.again().request()).await.unwrap());
            let error = tx::finish(&transaction, running, &Outcome::text("paid"), &[]).await.unwrap_err();
            assert!(error.is_retryable() && !error.outcome_is_unknown(), "{error:?}");
            // Whoever ignores that commits nothing.
            let _ = transaction.commit().await;
            assert_eq!(payments(&database).await, 0);
            let record = store.get(wish.operation().id()).await.unwrap().unwrap();
            assert_eq!(record.holder(), outside.holder);
        }
    });
}

// G-30: a lapsed attempt that may be run again is taken over, unless it ends first.
#[test]
fn a_lapsed_attempt_that_completes_meanwhile_is_not_overwritten() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let policy = Policy::builder().recovery(Recovery::Rerun).lease(Duration::from_millis(100)).build();
        let scope = Scope::new("it", "alice", "pay").unwrap();
        let wish = Call::new(scope, "k-1".parse().unwrap(), prints.of_bytes(b"20 euro"), &policy.unwrap());
        let late = granted(store.claim(&wish.request()).await.unwrap());
        database.run("UPDATE semel_operation SET lease_until = 0").await;
        let mut client = database.client().await;
        let transaction = client.transaction().await.unwrap();
        let running = run(tx::begin(&transaction, &wish.again()).await.unwrap());
        assert_eq!(running.attempt(), 2);
        let _ = store.complete(&complete(&late, Outcome::text("late").encode())).await.unwrap();
        let error = tx::finish(&transaction, running, &Outcome::text("paid"), &[]).await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        transaction.rollback().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        assert_eq!(replayed(tx::begin(&transaction, &wish.again()).await.unwrap()), "late");
    });
}

// G-31
#[test]
fn a_rollback_to_before_the_beginning_undoes_it_and_frees_the_lock() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let wish = call(&prints, "k-1", "20 euro");
        let (mut client, mut second) = (database.client().await, database.client().await);
        let mut transaction = client.transaction().await.unwrap();
        let savepoint = transaction.savepoint("before").await.unwrap();
        let running = run(tx::begin(&savepoint, &wish).await.unwrap());
        savepoint.rollback().await.unwrap();

        let other = second.transaction().await.unwrap();
        run(tx::begin(&other, &wish.again()).await.unwrap());
        other.rollback().await.unwrap();
        let error = tx::finish(&transaction, running, &Outcome::text("paid"), &[]).await.unwrap_err();
        assert!(!error.is_retryable() && error.to_string().contains("SM001"), "{error:?}");
    });
}

// G-31: an effect that failed is undone, and its failure is the outcome.
#[test]
fn a_rollback_to_after_the_beginning_keeps_the_operation() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let wish = call(&prints, "k-1", "20 euro");
        let mut client = database.client().await;
        let mut transaction = client.transaction().await.unwrap();
        let running = run(tx::begin(&transaction, &wish).await.unwrap());
        let effect = transaction.savepoint("effect").await.unwrap();
        effect.execute("INSERT INTO payment (who) VALUES ('alice')", &[]).await.unwrap();
        effect.execute("INSERT INTO payment (who) VALUES (NULL)", &[]).await.unwrap_err();
        effect.rollback().await.unwrap();
        let finished = tx::finish(&transaction, running, &Outcome::text("refused"), &[]).await.unwrap();
        let _ = tx::commit(transaction, finished, async |_| unreachable!("its answer came")).await.unwrap();
        assert_eq!(payments(&database).await, 0);
        let transaction = client.transaction().await.unwrap();
        assert_eq!(replayed(tx::begin(&transaction, &wish.again()).await.unwrap()), "refused");
    });
}

// G-31: the effect must not be committed without its outcome.
#[test]
fn an_effect_whose_outcome_was_rolled_back_is_not_committed() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let mut client = database.client().await;
        for (key, rolled_back) in [("k-1", true), ("k-2", false)] {
            let wish = call(&prints, key, "20 euro");
            let mut transaction = client.transaction().await.unwrap();
            let running = run(tx::begin(&transaction, &wish).await.unwrap());
            transaction.execute("INSERT INTO payment (who) VALUES ('alice')", &[]).await.unwrap();
            let savepoint = transaction.savepoint("outcome").await.unwrap();
            let finished = tx::finish(&savepoint, running, &Outcome::text("paid"), &[]).await.unwrap();
            if rolled_back {
                savepoint.rollback().await.unwrap();
            } else {
                savepoint.commit().await.unwrap();
            }
            let committed =
                tx::commit(transaction, finished, async |_| unreachable!("its answer came")).await;
            match committed {
                Err(error) => assert!(rolled_back && error.to_string().contains("SM001"), "{error:?}"),
                Ok(_) => assert!(!rolled_back),
            }
            assert_eq!(payments(&database).await, i64::from(!rolled_back));
        }
    });
}

// G-30: PostgreSQL answers a COMMIT after an error with a ROLLBACK, and drivers call that a success.
#[test]
fn a_commit_after_an_error_that_was_ignored_is_no_success() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let wish = call(&prints, "k-1", "20 euro");
        let mut client = database.client().await;
        let transaction = client.transaction().await.unwrap();
        let running = run(tx::begin(&transaction, &wish).await.unwrap());
        let finished = tx::finish(&transaction, running, &Outcome::text("paid"), &[]).await.unwrap();
        let _ = transaction.execute("INSERT INTO payment (who) VALUES (NULL)", &[]).await;
        let error = tx::commit(transaction, finished, async |_| unreachable!("its answer came")).await;
        let error = error.unwrap_err();
        assert!(!error.outcome_is_unknown() && error.to_string().contains("ignored"), "{error:?}");
        assert_eq!(store.get(wish.operation().id()).await.unwrap(), None);
        client.batch_execute("SELECT 1").await.unwrap();
    });
}

// G-31: without a transaction there is nothing to join.
#[test]
fn an_attempt_begun_elsewhere_cannot_be_finished_here() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let mut client = database.client().await;
        let wish = call(&prints, "k-1", "20 euro");
        let alone = run(tx::begin(&client, &wish).await.unwrap());
        let error = tx::finish(&client, alone, &Outcome::text("paid"), &[]).await.unwrap_err();
        assert!(error.to_string().contains("SM001"), "{error:?}");

        let transaction = client.transaction().await.unwrap();
        let running = run(tx::begin(&transaction, &wish).await.unwrap());
        let twice = tx::begin(&transaction, &wish.again()).await.unwrap();
        assert!(matches!(refused(twice), Refusal::InFlight { .. }), "a transaction does not run it twice");
        transaction.rollback().await.unwrap();
        let another = client.transaction().await.unwrap();
        let error = tx::finish(&another, running, &Outcome::text("paid"), &[]).await.unwrap_err();
        assert!(error.to_string().contains("SM001"), "{error:?}");
        another.rollback().await.unwrap();
        assert_eq!(store.get(wish.operation().id()).await.unwrap(), None);
    });
}

// G-30: 40001 = retry whole.
#[test]
fn a_transaction_that_looks_at_an_older_state_fails_and_can_be_tried_again() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let (mut client, mut second) = (database.client().await, database.client().await);
        let other = database.client().await;
        for (level, key) in [(IsolationLevel::RepeatableRead, "k-1"), (IsolationLevel::Serializable, "k-2")] {
            let wish = call(&prints, key, "20 euro");
            let old = client.build_transaction().isolation_level(level).start().await.unwrap();
            old.query("SELECT count(*) FROM payment", &[]).await.unwrap();
            pay(&mut second, &other, &wish).await.unwrap();
            let running = run(tx::begin(&old, &wish.again()).await.unwrap());
            old.execute("INSERT INTO payment (who) VALUES ('alice')", &[]).await.unwrap();
            let error = tx::finish(&old, running, &Outcome::text("paid"), &[]).await.unwrap_err();
            assert!(error.is_retryable() && error.to_string().contains("40001"), "{error:?}");
            old.rollback().await.unwrap();
            let again = client.build_transaction().isolation_level(level).start().await.unwrap();
            assert_eq!(replayed(tx::begin(&again, &wish.again()).await.unwrap()), "paid by attempt 1");
        }
        assert_eq!(payments(&database).await, 2);
    });
}

// G-30, G-40: messages are part of the same transaction, in the order they were given.
#[test]
fn messages_commit_with_the_effect_or_not_at_all() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let mut client = database.client().await;
        let topic: Topic = "payments.made".parse().unwrap();
        let later = semel_core::Timestamp::from_micros(i64::MAX / 2);
        let messages = [
            Message::new(topic.clone(), "first").key("alice").header("x-shop", "berlin").correlation("story"),
            Message::new(topic.clone(), "second").key("alice"),
            Message::new(topic.clone(), "later").deliver_after(later),
        ];
        for commits in [false, true] {
            let transaction = client.transaction().await.unwrap();
            let running = run(tx::begin(&transaction, &call(&prints, "k-1", "20 euro")).await.unwrap());
            let finished =
                tx::finish(&transaction, running, &Outcome::text("paid"), &messages).await.unwrap();
            if commits {
                let _ = tx::commit(transaction, finished, async |_| unreachable!("its answer came"))
                    .await
                    .unwrap();
            } else {
                transaction.rollback().await.unwrap();
            }
        }
        let rows = client.query(
            "SELECT id::text, key, headers, payload, correlation FROM semel_outbox ORDER BY sequence",
            &[],
        );
        let rows = rows.await.unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].get::<_, String>(0), messages[0].id.to_string());
        assert_eq!(rows[0].get::<_, String>(2), "x-shop: berlin\n");
        assert_eq!((rows[0].get::<_, &[u8]>(3), rows[1].get::<_, &[u8]>(3)), (&b"first"[..], &b"second"[..]));
        assert_eq!((rows[0].get::<_, Option<&str>>(4), rows[1].get::<_, &str>(1)), (Some("story"), "alice"));
        assert_eq!(database.number("SELECT count(*) FROM semel_outbox_delayed").await, 1);
        let transaction = client.transaction().await.unwrap();
        let running = run(tx::begin(&transaction, &call(&prints, "k-2", "20 euro")).await.unwrap());
        let bad = [Message::new(topic, "x").key("")];
        let error = tx::finish(&transaction, running, &Outcome::text("paid"), &bad).await.unwrap_err();
        assert!(error.to_string().contains("ordering key"), "{error}");
    });
}

// G-30: whoever goes on after that commits nothing.
#[test]
fn an_effect_whose_messages_cannot_be_sent_is_not_committed() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let mut client = database.client().await;
        let wish = call(&prints, "k-1", "20 euro");
        let transaction = client.transaction().await.unwrap();
        let running = run(tx::begin(&transaction, &wish).await.unwrap());
        transaction.execute("INSERT INTO payment (who) VALUES ('alice')", &[]).await.unwrap();
        let bad = [Message::new("payments.made".parse().unwrap(), "x").key("")];
        let error = tx::finish(&transaction, running, &Outcome::text("paid"), &bad).await.unwrap_err();
        assert!(error.to_string().contains("ordering key"), "{error}");
        let _ = transaction.batch_execute("COMMIT").await;
        drop(transaction);
        assert_eq!(payments(&database).await, 0);
        assert_eq!(store.get(wish.operation().id()).await.unwrap(), None);
    });
}

// G-30, G-40: a commit that a crash can undo must not be answered.
#[test]
fn a_joined_transaction_commits_durably_whatever_the_session_prefers() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let client = database.client().await;
        let asked =
            async || -> String { client.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0) };
        for (preferred, inside) in [("off", "on"), ("remote_apply", "remote_apply")] {
            client.batch_execute(&format!("SET synchronous_commit = {preferred}")).await.unwrap();
            client.batch_execute("BEGIN").await.unwrap();
            run(tx::begin(&client, &call(&prints, "k-1", "20 euro")).await.unwrap());
            assert_eq!(asked().await, inside);
            client.batch_execute("ROLLBACK; BEGIN").await.unwrap();
            assert_eq!(asked().await, preferred, "the session keeps its own");
            let said = Message::new("payments.made".parse().unwrap(), "paid");
            enqueue(&client, std::slice::from_ref(&said)).await.unwrap();
            assert_eq!(asked().await, inside);
            client.batch_execute("ROLLBACK; BEGIN").await.unwrap();
            let later = said.deliver_after(semel_core::Timestamp::from_micros(i64::MAX / 2));
            enqueue(&client, &[later]).await.unwrap();
            assert_eq!(asked().await, inside);
            client.batch_execute("ROLLBACK; BEGIN").await.unwrap();
            client.query("SELECT semel_enqueue('payments.made', NULL, 'paid')", &[]).await.unwrap();
            assert_eq!(asked().await, inside);
            client.batch_execute("ROLLBACK").await.unwrap();
        }
    });
}

const CHILD: &str = "postgres::joined::the_process_that_crashes_inside_its_transaction";

/// Does nothing unless the test below started it.
#[test]
fn the_process_that_crashes_inside_its_transaction() {
    let Ok(url) = std::env::var("SEMEL_CRASH_JOINED") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = connect(&url).await;
        let prints = Fingerprinter::new(store.status().await.unwrap().hash_keys).unwrap();
        let mut client = rig::client(&url).await;
        let transaction = client.transaction().await.unwrap();
        let running = run(tx::begin(&transaction, &call(&prints, "k-1", "20 euro")).await.unwrap());
        transaction.execute("INSERT INTO payment (who) VALUES ('alice')", &[]).await.unwrap();
        let _ = tx::finish(&transaction, running, &Outcome::text("paid"), &[]).await.unwrap();
        std::process::abort();
    });
}

// G-30
#[test]
fn a_crash_between_effect_and_commit_leaves_nothing() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CHILD, "--nocapture"])
            .env("SEMEL_CRASH_JOINED", database.url())
            .env_remove("SEMEL_TEST_LEDGER")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(!status.success() && status.code() != Some(101), "{status:?}");
        let wish = call(&prints, "k-1", "20 euro");
        assert_eq!(store.get(wish.operation().id()).await.unwrap(), None);
        let (mut client, other) = (database.client().await, database.client().await);
        // The server takes a moment to notice.
        let answer = loop {
            if let Some(answer) = pay(&mut client, &other, &wish.again()).await {
                break answer;
            }
        };
        assert_eq!(answer, "paid by attempt 1");
        assert_eq!(payments(&database).await, 1);
    });
}
