//! A COMMIT whose answer is lost, and how many round trips it all takes.

use std::time::Duration;

use semel_core::store::EffectStore;
use semel_core::{Fingerprinter, Message, Outcome};
use semel_stores::postgres::tx::{self, Fate, Finished};
use tokio_postgres::{Client, Transaction};

use super::joined::{call, payments, replayed, run, shop};
use super::proxy::{Cut, Proxy};
use super::rig::{self, Database, with_database};

async fn all_but_the_commit<'a>(
    client: &'a mut Client,
    prints: &Fingerprinter,
) -> (Transaction<'a>, Finished) {
    let transaction = client.transaction().await.unwrap();
    let running = run(tx::begin(&transaction, &call(prints, "k-1", "20 euro")).await.unwrap());
    transaction.execute("INSERT INTO payment (who) VALUES ('alice')", &[]).await.unwrap();
    let finished = tx::finish(&transaction, running, &Outcome::text("paid"), &[]).await.unwrap();
    (transaction, finished)
}

// G-30: it has happened, and is not called a failure.
#[test]
fn a_commit_that_was_applied_is_a_success_though_its_answer_was_lost() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let proxy = Proxy::to(&database.url()).await;
        let mut client = rig::client(&proxy.url()).await;
        let (transaction, finished) = all_but_the_commit(&mut client, &prints).await;
        let other = database.client().await;
        proxy.cut_next(Cut::Answers);
        let resolve = async |lost| tx::resolve(&other, lost, tx::PATIENCE).await;
        let _ = tx::commit(transaction, finished, resolve).await.unwrap();
        assert_eq!(payments(&database).await, 1);
        assert_eq!(tx::resolve(&other, finished, tx::PATIENCE).await.unwrap(), Fate::Committed);
    });
}

// G-30: nothing has happened, and that is said only after it was found out.
#[test]
fn a_commit_that_never_arrived_is_a_failure_only_after_the_lock_was_free() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let proxy = Proxy::to(&database.url()).await;
        let mut client = rig::client(&proxy.url()).await;
        let (transaction, finished) = all_but_the_commit(&mut client, &prints).await;
        let mut other = database.client().await;
        proxy.cut_next(Cut::Calls);
        let mut asked = false;
        let resolve = async |lost| {
            asked = true;
            tx::resolve(&other, lost, tx::PATIENCE).await
        };
        let error = tx::commit(transaction, finished, resolve).await.unwrap_err();
        assert!(asked && !error.outcome_is_unknown() && error.is_retryable(), "{error:?}");
        assert_eq!(payments(&database).await, 0);
        assert_eq!(store.get(call(&prints, "k-1", "").operation().id()).await.unwrap(), None);
        let transaction = other.transaction().await.unwrap();
        run(tx::begin(&transaction, &call(&prints, "k-1", "20 euro")).await.unwrap());
    });
}

// G-30: while the transaction is open, nobody can know.
#[test]
fn what_cannot_be_found_out_is_unknown_and_never_a_failure() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let proxy = Proxy::to(&database.url()).await;
        let mut client = rig::client(&proxy.url()).await;
        let (transaction, finished) = all_but_the_commit(&mut client, &prints).await;
        let mut other = database.client().await;
        // The connection stays open at the server, as it does when a machine in between dies.
        let early = tx::resolve(&other, finished, Duration::from_millis(200)).await.unwrap_err();
        assert!(early.is_retryable() && early.to_string().contains("55P03"), "{early:?}");
        proxy.cut_next(Cut::Answers);
        let never = async |_| Err(semel_core::Error::new(semel_core::error::Kind::Unreachable, "no way"));
        let error = tx::commit(transaction, finished, never).await.unwrap_err();
        assert!(error.outcome_is_unknown(), "{error:?}");
        let transaction = other.transaction().await.unwrap();
        let told = tx::begin(&transaction, &call(&prints, "k-1", "20 euro")).await.unwrap();
        assert_eq!(replayed(told), "paid", "a retry finds out");
    });
}

// G-30: an older view of the database is no proof.
#[test]
fn a_commit_is_not_resolved_inside_a_transaction_that_looks_back() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let (mut client, mut other) = (database.client().await, database.client().await);
        let (transaction, finished) = all_but_the_commit(&mut client, &prints).await;
        let level = tokio_postgres::IsolationLevel::RepeatableRead;
        let old = other.build_transaction().isolation_level(level).start().await.unwrap();
        old.query("SELECT count(*) FROM payment", &[]).await.unwrap();
        let _ = tx::commit(transaction, finished, async |_| unreachable!("its answer came")).await.unwrap();
        let error = tx::resolve(&old, finished, tx::PATIENCE).await.unwrap_err();
        assert!(!error.is_retryable(), "{error:?}");
        drop(old);
        // A server that prefers other levels is told better.
        other.batch_execute("SET default_transaction_isolation = 'serializable'").await.unwrap();
        assert_eq!(tx::resolve(&other, finished, tx::PATIENCE).await.unwrap(), Fate::Committed);
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
    with_database(async |database: Database| {
        let (_store, prints) = shop(&database).await;
        let proxy = Proxy::to(&database.url()).await;
        let mut client = rig::client(&proxy.url()).await;
        let effect = "INSERT INTO payment (who) VALUES ('alice')";
        client.batch_execute(effect).await.unwrap();
        let bare = turns(&proxy, async || {
            let transaction = client.transaction().await.unwrap();
            transaction.batch_execute(effect).await.unwrap();
            transaction.commit().await.unwrap();
        });
        assert_eq!(bare.await, 3, "BEGIN, effect, COMMIT");
        let joined = turns(&proxy, async || {
            let transaction = client.transaction().await.unwrap();
            let running = run(tx::begin(&transaction, &call(&prints, "k-1", "x")).await.unwrap());
            transaction.batch_execute(effect).await.unwrap();
            let said = vec![Message::new("payments.made".parse().unwrap(), "paid"); 10];
            let finished = tx::finish(&transaction, running, &Outcome::text("paid"), &said).await.unwrap();
            let _ =
                tx::commit(transaction, finished, async |_| unreachable!("its answer came")).await.unwrap();
        });
        assert_eq!(joined.await, 3 + 2, "whatever the number of messages");
    });
}
