//! Fences: writes of whoever was overtaken are refused, in the write's own transaction.

use rusqlite::{Connection, TransactionBehavior};
use semel_core::fence::{Guarded, Passage, Resource, Token};
use semel_stores::sqlite::tx::fence;

use super::*;

fn orders() -> (Disk, Connection) {
    let disk = Disk::new();
    drop(disk.open());
    let conn = with_orders(&disk);
    (disk, conn)
}

/// A connection of an application, and its table.
fn with_orders(disk: &Disk) -> Connection {
    let conn = disk.meddle();
    conn.busy_timeout(Duration::from_secs(30)).unwrap();
    conn.execute_batch(
        "CREATE TABLE orders (
             id INTEGER PRIMARY KEY, status TEXT NOT NULL, cents INTEGER NOT NULL, version INTEGER NOT NULL
         );
         INSERT INTO orders VALUES (1042, 'open', 0, 1);",
    )
    .unwrap();
    conn
}

fn resource() -> Resource {
    "order/1042".parse().unwrap()
}

/// A fenced write, as an application makes it.
fn write(conn: &mut Connection, token: Token, status: &str, cents: i64) -> Passage {
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let passage = fence::pass(&transaction, &resource(), token).unwrap();
    if passage == Passage::Passed {
        let sql = "UPDATE orders SET status = ?1, cents = cents + ?2 WHERE id = 1042";
        transaction.execute(sql, (status, cents)).unwrap();
        transaction.commit().unwrap();
    }
    passage
}

fn order(conn: &Connection) -> (String, i64) {
    conn.query_row("SELECT status, cents FROM orders", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

// G-70
#[test]
fn a_payment_that_comes_after_its_refund_is_refused() {
    let (_disk, mut conn) = orders();
    let resource = resource();
    let tokens: Vec<Token> = (0..4).map(|_| fence::lease(&conn, &resource).unwrap()).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let (v3, v4) = (tokens[2], tokens[3]);
    // v3, the payment, times out on its way. v4, the refund, applies.
    assert_eq!(write(&mut conn, v4, "refunded", 0), Passage::Passed);
    // v3 arrives after all.
    assert_eq!(write(&mut conn, v3, "paid", 2000), Passage::Refused { last: v4 });
    assert_eq!(order(&conn), ("refunded".into(), 0));
    assert_eq!(write(&mut conn, v4, "refunded", 0), Passage::Passed, "the holder may write again");
    let v5 = fence::lease(&conn, &resource).unwrap();
    assert_eq!(write(&mut conn, v5, "paid", 2000), Passage::Passed);
    assert_eq!(order(&conn), ("paid".into(), 2000));
}

// G-13, G-70
#[tokio::test]
async fn after_a_restore_no_token_is_given_again_and_before_its_acknowledgement_none_at_all() {
    let disk = Disk::new();
    disk.open().close().await;
    let mut conn = with_orders(&disk);
    let before = fence::lease(&conn, &resource()).unwrap();
    drop(conn);
    let copy = disk.0.path().join("copy.db");
    std::fs::copy(disk.path(), &copy).unwrap();
    let store = disk.open();
    claim(&store, "seen-by-the-witness").await;
    store.close().await;
    let new: Resource = "order/7".parse().unwrap();
    conn = disk.meddle();
    let payment = fence::lease(&conn, &resource()).unwrap();
    let unknown = fence::lease(&conn, &new).unwrap();
    drop(conn);
    std::fs::copy(&copy, disk.path()).unwrap();

    conn = disk.meddle();
    refused(fence::lease(&conn, &resource()), Kind::WentBack);
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    refused(fence::pass(&transaction, &resource(), before), Kind::WentBack);
    refused(fence::lease(&transaction, &resource()), Kind::WentBack);
    drop(transaction);
    let store = disk.open();
    store.acknowledge_restore("ops").await.unwrap();
    store.close().await;

    let refund = fence::lease(&conn, &resource()).unwrap();
    assert!(refund > payment, "{refund} and {payment}");
    assert_eq!(write(&mut conn, refund, "refunded", 0), Passage::Passed);
    assert_eq!(write(&mut conn, payment, "paid", 2000), Passage::Refused { last: refund });
    assert_eq!(order(&conn), ("refunded".into(), 0));
    assert!(fence::lease(&conn, &new).unwrap() > unknown, "the copy did not know the resource");
    assert_eq!(fence::lease(&conn, &resource()).unwrap(), Token(refund.0 + 1));
}

// G-70
#[test]
fn a_fence_and_its_write_are_one_transaction() {
    let (disk, mut conn) = orders();
    let (one, two) = (fence::lease(&conn, &resource()).unwrap(), fence::lease(&conn, &resource()).unwrap());
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    assert_eq!(fence::pass(&transaction, &resource(), two).unwrap(), Passage::Passed);
    transaction.rollback().unwrap();
    assert_eq!(write(&mut conn, one, "paid", 2000), Passage::Passed, "what was rolled back passed nothing");
    let text = refused(fence::pass(&conn, &resource(), two), Kind::Misconfigured);
    assert!(text.contains("no open transaction"), "{text}");
    let deferred = conn.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    refused(fence::pass(&deferred, &resource(), two), Kind::Misconfigured);
    drop(deferred);
    // Another process, after a restart: tokens go on.
    drop(conn);
    assert!(fence::lease(&disk.meddle(), &resource()).unwrap() > two);
}

// G-70
#[tokio::test]
async fn a_token_of_an_operation_or_of_another_resource_is_refused() {
    let (disk, mut conn) = orders();
    let store = disk.open();
    let mut operation = 0;
    for n in 0..5 {
        operation = claim(&store, &format!("foreign-{n:08}")).await.holder.token.0;
    }
    let own = fence::lease(&conn, &resource()).unwrap();
    let other: Resource = "order/7".parse().unwrap();
    let foreign = (0..3).map(|_| fence::lease(&conn, &other).unwrap()).last().unwrap();
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    for token in [Token(operation), foreign, Token(0)] {
        let text = refused(fence::pass(&transaction, &resource(), token), Kind::Misconfigured);
        assert!(text.contains("never given"), "{text}");
    }
    assert_eq!(fence::pass(&transaction, &resource(), own).unwrap(), Passage::Passed);
    assert_eq!(fence::pass(&transaction, &other, foreign).unwrap(), Passage::Passed, "resources do not meet");
}

// G-70
#[test]
fn of_many_that_ask_at_once_no_two_get_the_same_token() {
    let (disk, _conn) = orders();
    let disk = Arc::new(disk);
    let crowd: Vec<_> = (0..4)
        .map(|_| {
            let disk = disk.clone();
            std::thread::spawn(move || {
                let conn = disk.meddle();
                conn.busy_timeout(Duration::from_secs(60)).unwrap();
                (0..10).map(|_| fence::lease(&conn, &resource()).unwrap().0).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut tokens: Vec<u64> = crowd.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (1..=40).collect::<Vec<_>>());
}

fn guarded(changed: rusqlite::Result<usize>) -> Guarded {
    Guarded::of_rows(changed.unwrap() as u64).unwrap()
}

// G-71: the statements of docs/messaging/transactions-sqlite.md.
#[test]
fn guards_in_the_statement_let_the_first_through_and_nobody_else() {
    let (_disk, conn) = orders();
    let create = "INSERT INTO orders (id, status, cents, version) VALUES (?1, 'open', 0, 1) ON CONFLICT (id) DO NOTHING";
    assert_eq!(guarded(conn.execute(create, [7])), Guarded::Made);
    assert_eq!(guarded(conn.execute(create, [7])), Guarded::Refused, "it is there");
    let update = "UPDATE orders SET cents = ?1, version = version + 1 WHERE id = ?2 AND version = ?3";
    assert_eq!(guarded(conn.execute(update, [500, 7, 1])), Guarded::Made);
    assert_eq!(guarded(conn.execute(update, [900, 7, 1])), Guarded::Refused, "another was first");
    assert_eq!(guarded(conn.execute(update, [900, 7, 2])), Guarded::Made);
    let pay = "UPDATE orders SET status = 'paid' WHERE id = ?1 AND status = 'open'";
    assert_eq!(guarded(conn.execute(pay, [7])), Guarded::Made);
    assert_eq!(guarded(conn.execute(pay, [7])), Guarded::Refused, "it is paid");
    let careless = conn.execute("UPDATE orders SET cents = 0", []).unwrap();
    assert!(Guarded::of_rows(careless as u64).is_err(), "a guard names one row");
}
