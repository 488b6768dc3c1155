//! A COMMIT whose answer is lost, and how many round trips it all takes.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Transaction, TxOpts};
use semel_core::store::EffectStore;
use semel_core::{Fingerprinter, Message, Outcome};
use semel_stores::mysql::tx::{self, Fate, Finished};

use super::joined::{PAY, call, never, pay, payments, run, shop};
use super::proxy::{Cut, Proxy};
use super::rig::{client, with_database};

async fn all_but_the_commit<'a>(
    conn: &'a mut Conn,
    prints: &Fingerprinter,
    key: &str,
) -> (Transaction<'a>, Finished) {
    let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
    let running = run(tx::begin(&mut transaction, &call(prints, key, "20 euro")).await.unwrap());
    transaction.query_drop(PAY).await.unwrap();
    let finished = tx::finish(&mut transaction, running, &Outcome::text("paid"), &[]).await.unwrap();
    (transaction, finished)
}

// G-30: what has happened is not called a failure, and what is called one has not.
#[test]
fn a_commit_whose_answer_is_lost_is_found_out_on_another_connection() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let proxy = Proxy::to(&database.url()).await;
        for (cut, key, landed) in [(Cut::CommitAnswer, "k-1", true), (Cut::Commit, "k-2", false)] {
            let before = payments(&database).await;
            let (mut conn, mut other) = (client(&proxy.url()).await, database.client().await);
            let (transaction, finished) = all_but_the_commit(&mut conn, &prints, key).await;
            proxy.cut_next(cut);
            let limit: i64 = other.query_first("SELECT @@innodb_lock_wait_timeout").await.unwrap().unwrap();
            let resolve = async |lost| tx::resolve(&mut other, lost, Duration::from_secs(60)).await;
            let committed = tx::commit(transaction, finished, resolve).await;
            let id = call(&prints, key, "").operation().id();
            match landed {
                true => assert_eq!(committed.unwrap().operation(), id),
                false => {
                    let error = committed.unwrap_err();
                    assert!(!error.outcome_is_unknown() && error.is_retryable(), "{error:?}");
                }
            }
            assert_eq!(payments(&database).await, before + i64::from(landed));
            assert_eq!(store.get(id).await.unwrap().is_some(), landed);
            let after: i64 = other.query_first("SELECT @@innodb_lock_wait_timeout").await.unwrap().unwrap();
            assert_eq!(after, limit, "the connection is as it was");
        }
    });
}

// G-30: while the transaction is open, nobody can know.
#[test]
fn what_cannot_be_found_out_is_unknown_and_never_a_failure() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let proxy = Proxy::to(&database.url()).await;
        let (mut conn, mut other) = (client(&proxy.url()).await, database.client().await);
        let (transaction, finished) = all_but_the_commit(&mut conn, &prints, "k-1").await;
        let early = tx::resolve(&mut other, finished, Duration::from_secs(1)).await.unwrap_err();
        assert!(early.is_retryable(), "{early:?}");
        proxy.cut_next(Cut::CommitAnswer);
        let no_way = async |_| Err(semel_core::Error::new(semel_core::error::Kind::Unreachable, "no way"));
        let error = tx::commit(transaction, finished, no_way).await.unwrap_err();
        assert!(error.outcome_is_unknown(), "{error:?}");
        let told = pay(&mut other, &call(&prints, "k-1", "20 euro")).await;
        assert_eq!(told.unwrap(), "paid", "a retry finds out");
    });
}

// G-30: an older view of the database is no proof.
#[test]
fn a_commit_is_resolved_by_what_is_there_now_whatever_a_snapshot_shows() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let (mut conn, mut other) = (database.client().await, database.client().await);
        let (transaction, finished) = all_but_the_commit(&mut conn, &prints, "k-1").await;
        let mut old = other.start_transaction(TxOpts::default()).await.unwrap();
        let _: Option<i64> = old.query_first("SELECT COUNT(*) FROM semel_operation").await.unwrap();
        let _ = tx::commit(transaction, finished, never).await.unwrap();
        assert_eq!(tx::resolve(&mut old, finished, tx::PATIENCE).await.unwrap(), Fate::Committed);
        old.rollback().await.unwrap();
    });
}

// G-30: what was purged had happened. And nothing is held afterwards, also by a session that never commits by itself.
#[test]
fn a_commit_is_found_after_its_outcome_was_purged_and_nothing_is_held_afterwards() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let (mut conn, mut other) = (database.client().await, database.client().await);
        other.query_drop("SET SESSION autocommit = 0").await.unwrap();
        let (transaction, finished) = all_but_the_commit(&mut conn, &prints, "k-1").await;
        let early = tx::resolve(&mut other, finished, Duration::from_secs(1)).await.unwrap_err();
        assert!(early.is_retryable(), "{early:?}");
        let _ = tx::commit(transaction, finished, never).await.unwrap();
        assert_eq!(tx::resolve(&mut other, finished, tx::PATIENCE).await.unwrap(), Fate::Committed);
        conn.query_drop("SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
        assert_eq!(
            pay(&mut conn, &call(&prints, "k-1", "20 euro")).await.unwrap(),
            "paid",
            "nobody holds it"
        );
        database.run("UPDATE semel_operation SET state = 5, outcome = NULL").await;
        assert_eq!(tx::resolve(&mut other, finished, tx::PATIENCE).await.unwrap(), Fate::Committed);
        database.run("DELETE FROM semel_operation").await;
        assert_eq!(tx::resolve(&mut other, finished, tx::PATIENCE).await.unwrap(), Fate::NotCommitted);
    });
}

async fn turns(proxy: &Proxy, work: impl AsyncFnOnce()) -> u64 {
    let before = proxy.turns();
    work().await;
    proxy.turns() - before
}

// G-30: at most two round trips beyond the caller's own.
#[test]
fn an_operation_costs_two_round_trips() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let proxy = Proxy::to(&database.url()).await;
        let mut conn = client(&proxy.url()).await;
        let bare = turns(&proxy, async || {
            let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
            transaction.query_drop(PAY).await.unwrap();
            transaction.commit().await.unwrap();
        });
        assert_eq!(bare.await, 3, "START TRANSACTION, effect, COMMIT");
        let joined = turns(&proxy, async || {
            let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
            let running = run(tx::begin(&mut transaction, &call(&prints, "k-1", "x")).await.unwrap());
            transaction.query_drop(PAY).await.unwrap();
            let said = vec![Message::new("payments.made".parse().unwrap(), "paid"); 100];
            let finished =
                tx::finish(&mut transaction, running, &Outcome::text("paid"), &said).await.unwrap();
            let _ = tx::commit(transaction, finished, never).await.unwrap();
        });
        assert_eq!(joined.await, 3 + 2, "whatever the number of messages");
        let replay = turns(&proxy, async || {
            let told = pay(&mut conn, &call(&prints, "k-1", "x")).await;
            assert_eq!(told.unwrap(), "paid");
        });
        assert_eq!(replay.await, 3, "START TRANSACTION, look, ROLLBACK");
    });
}
