//! The ledger of consumers: what MySQL has of its own. The rest is in the tests of the consumer.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Transaction, TxOpts};
use semel_core::Message;
use semel_core::inbox::{
    Applied, Apply, Arrival, Aside, Batch, Failure, Id, Inbox, Incoming, Received, SetAside,
};
use semel_stores::mysql::inbox::{At, Handler, Joined, failure, finish, receive};
use semel_stores::mysql::outbox::enqueue;

use super::proxy::Proxy;
use super::rig::{Database, connect, with_database};

fn arrival(id: &str) -> Arrival {
    let message = Incoming { source: "orders".into(), place: id.into(), ..Incoming::default() };
    Arrival::of(Id::parse(id).unwrap(), message)
}

fn batch(ids: &[&str]) -> Batch {
    Batch { group: "g".into(), arrivals: ids.iter().map(|id| arrival(id)).collect(), offsets: Vec::new() }
}

/// An effect and a further message for all in one statement each, after a statement of the test's.
struct Counts {
    first: &'static str,
}

impl Handler for Counts {
    async fn apply(&self, tx: &mut Transaction<'_>, arrival: &Arrival) -> Result<(), Failure> {
        self.apply_all(tx, &[arrival]).await.map_err(|at| at.failure)
    }

    async fn apply_all(&self, tx: &mut Transaction<'_>, arrivals: &[&Arrival]) -> Result<(), At> {
        let all = |failure| At { index: None, failure };
        let rows: Vec<String> = arrivals.iter().map(|arrival| format!("('{}')", arrival.id)).collect();
        let effect = format!("{}INSERT INTO effect VALUES {}", self.first, rows.join(","));
        tx.query_drop(effect).await.map_err(|error| all(failure(&error)))?;
        if self.first.is_empty() {
            return Ok(());
        }
        let further = Message::new("orders.seen".parse().unwrap(), "seen");
        enqueue(tx, &[further]).await.map_err(|error| all(Failure::Later(error.to_string())))
    }
}

async fn effects(database: &Database) -> i64 {
    database.number("SELECT COUNT(*) FROM effect").await
}

async fn ledger(database: &Database) {
    connect(&database.url()).await;
    database.run("CREATE TABLE effect (id varchar(50) NOT NULL) ENGINE = InnoDB").await;
}

// G-45: a ledger row that is there before its effect would make the message a duplicate of nothing.
#[test]
fn without_a_transaction_nothing_is_received() {
    with_database(async |database| {
        ledger(&database).await;
        let mut conn = database.client().await;
        let error = receive(&mut conn, "g", &[arrival("1")]).await.unwrap_err();
        assert!(error.to_string().contains("no transaction to join"), "{error}");
        assert_eq!(database.number("SELECT COUNT(*) FROM semel_inbox").await, 0);

        let mut tx = conn.start_transaction(TxOpts::default()).await.unwrap();
        let begun = receive(&mut tx, "g", &[arrival("1")]).await.unwrap();
        assert_eq!(begun.received, [Received::New]);
        tx.query_drop("CREATE TABLE other (n int)").await.unwrap();
        let error = finish(&mut tx, "g", &begun, Duration::ZERO).await.unwrap_err();
        assert!(
            error.to_string().contains("no transaction to join"),
            "what DDL has committed is noticed: {error}"
        );
    });
}

// G-41: whoever works on one key holds up no other.
#[test]
fn a_letter_that_somebody_is_applying_holds_up_only_its_own_key() {
    with_database(async |database| {
        ledger(&database).await;
        let store = connect(&database.url()).await;
        let keyed = |id: &str, key: &str| {
            let one = arrival(id);
            Arrival { message: Incoming { key: Some(key.into()), ..one.message.clone() }, ..one }
        };
        let joined = Joined::new(Arc::new(store.inbox()), Counts { first: "" });
        let inbox = store.inbox();
        let first = keyed("1", "k");
        let letter = SetAside {
            message: &first.message,
            id: Some(&first.id),
            letter: None,
            aside: Aside::Later,
            reason: "poison".into(),
            tries: 1,
            again_in: Duration::ZERO,
        };
        inbox.set_aside("g", &[letter], &[]).await.unwrap();
        let mut held = database.client().await;
        // As a consumer does.
        held.query_drop("SET TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
        held.query_drop("START TRANSACTION").await.unwrap();
        held.query_drop("DELETE FROM semel_inbox_letter").await.unwrap();
        let arrivals = vec![keyed("2", "k"), keyed("3", "other")];
        let applied =
            joined.apply(&Batch { group: "g".into(), arrivals, offsets: Vec::new() }).await.unwrap();
        assert_eq!(applied, Applied::Committed(vec![Received::Behind, Received::New]));
        held.query_drop("ROLLBACK").await.unwrap();
        assert_eq!(effects(&database).await, 1);
    });
}

// G-45: one message to the server for the ledger of a whole batch, one at its end.
#[test]
fn a_batch_costs_two_round_trips_beyond_the_handlers_own() {
    with_database(async |database| {
        ledger(&database).await;
        let proxy = Proxy::to(&database.url()).await;
        let store = connect(&proxy.url()).await;
        let joined = Joined::new(Arc::new(store.inbox()), Counts { first: "" });
        // The connection is made.
        assert!(matches!(joined.apply(&batch(&["0"])).await.unwrap(), Applied::Committed(_)));
        let before = proxy.turns();
        let ids: Vec<String> = (0..200).map(|n| format!("m{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let applied = joined.apply(&batch(&ids)).await.unwrap();
        assert_eq!(applied, Applied::Committed(vec![Received::New; 200]));
        assert_eq!(proxy.turns() - before, 3 + 2, "START TRANSACTION, handler, COMMIT, and two");
        assert_eq!(effects(&database).await, 201);
    });
}

// G-45: effect, ledger row and further messages are one.
#[test]
fn a_handler_that_goes_on_after_a_rollback_leaves_nothing() {
    with_database(async |database| {
        ledger(&database).await;
        let store = connect(&database.url()).await;
        // As MySQL does to a transaction that loses a deadlock; the handler has not noticed.
        let unaware = Joined::new(Arc::new(store.inbox()), Counts { first: "ROLLBACK; " });
        let error = unaware.apply(&batch(&["1"])).await.unwrap_err();
        assert!(error.is_retryable() && !error.outcome_is_unknown(), "{error:?}");
        let left = ["effect", "semel_outbox", "semel_inbox", "semel_inbox_batch"];
        for table in left {
            assert_eq!(database.number(&format!("SELECT COUNT(*) FROM {table}")).await, 0, "{table}");
        }
        let aware = Joined::new(Arc::new(store.inbox()), Counts { first: "DO 0; " });
        assert_eq!(aware.apply(&batch(&["1"])).await.unwrap(), Applied::Committed(vec![Received::New]));
        for table in left {
            assert_eq!(database.number(&format!("SELECT COUNT(*) FROM {table}")).await, 1, "{table}");
        }
    });
}

// G-45: in a transaction of the caller's own, at MySQL's own level of isolation.
#[test]
fn a_transaction_that_looks_at_an_older_state_finds_the_duplicate_all_the_same() {
    with_database(async |database| {
        ledger(&database).await;
        let store = connect(&database.url()).await;
        let joined = Joined::new(Arc::new(store.inbox()), Counts { first: "" });
        let mut conn = database.client().await;
        let mut old = conn.start_transaction(TxOpts::default()).await.unwrap();
        let seen: Option<i64> = old.query_first("SELECT COUNT(*) FROM semel_inbox").await.unwrap();
        assert_eq!(seen, Some(0));
        assert!(matches!(joined.apply(&batch(&["1"])).await.unwrap(), Applied::Committed(_)));
        let begun = receive(&mut old, "g", &batch(&["1", "2"]).arrivals).await.unwrap();
        assert_eq!(begun.received, [Received::Duplicate, Received::New]);
        old.query_drop("INSERT INTO effect VALUES ('2')").await.unwrap();
        finish(&mut old, "g", &begun, Duration::from_millis(1)).await.unwrap();
        old.commit().await.unwrap();
        assert_eq!(effects(&database).await, 2);
    });
}

// G-46: and nobody's deadlock.
#[test]
fn the_sweep_waits_for_no_consumer() {
    with_database(async |database| {
        ledger(&database).await;
        let store = connect(&database.url()).await;
        let inbox = Arc::new(store.inbox());
        let joined = Joined::new(inbox.clone(), Counts { first: "" });
        assert!(matches!(joined.apply(&batch(&["1", "2"])).await.unwrap(), Applied::Committed(_)));
        let mut conn = database.client().await;
        let mut open = conn.start_transaction(TxOpts::default()).await.unwrap();
        let begun = receive(&mut open, "g", &batch(&["2"]).arrivals).await.unwrap();
        assert_eq!(begun.received, [Received::Duplicate]);
        let swept = inbox.sweep("g", Duration::ZERO, 10).await.unwrap();
        assert_eq!(swept.deleted, 1, "the other is in use, and is left for the next time");
        open.rollback().await.unwrap();
        assert_eq!(inbox.sweep("g", Duration::ZERO, 10).await.unwrap().deleted, 1);
        assert_eq!(database.number("SELECT COUNT(*) FROM semel_inbox_batch").await, 0);
    });
}
