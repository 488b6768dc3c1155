//! Fences and natural idempotency: what a database can refuse without any key.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use semel_core::EffectStore;
use semel_core::error::Kind;
use semel_core::fence::{Guarded, Passage, Resource, Token};
use semel_stores::mysql::tx::fence;

use super::rig::{Database, connect, with_database};

fn account() -> Resource {
    Resource::parse("account/alice").unwrap()
}

async fn ledger(database: &Database) {
    connect(&database.url()).await;
    database.run("CREATE TABLE entry (what varchar(20) NOT NULL) ENGINE = InnoDB").await;
}

/// A write to the account, if the fence lets it pass.
async fn write(conn: &mut Conn, token: Token, what: &str) -> Passage {
    let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
    let passage = fence::pass(&mut transaction, &account(), token).await.unwrap();
    if passage == Passage::Passed {
        transaction.exec_drop("INSERT INTO entry (what) VALUES (?)", (what,)).await.unwrap();
        transaction.commit().await.unwrap();
    } else {
        transaction.rollback().await.unwrap();
    }
    passage
}

// G-70: the exact story. v3 times out, v4's refund applies, the late v3 is refused.
#[test]
fn a_late_retry_that_a_refund_has_overtaken_is_refused() {
    with_database(async |database| {
        ledger(&database).await;
        let (mut slow, mut conn) = (database.client().await, database.client().await);
        let third = fence::lease(&mut slow, &account()).await.unwrap();
        // The payment is on its way, nobody hears of it, and it is given up.
        let fourth = fence::lease(&mut conn, &account()).await.unwrap();
        assert!(fourth > third);
        assert_eq!(write(&mut conn, fourth, "refund").await, Passage::Passed);
        assert_eq!(write(&mut slow, third, "payment").await, Passage::Refused { last: fourth });
        assert_eq!(write(&mut conn, fourth, "note").await, Passage::Passed, "its holder goes on");
        assert_eq!(database.number("SELECT COUNT(*) FROM entry WHERE what = 'payment'").await, 0);

        // A token that was never given: an operation's, say, or another resource's.
        let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
        let blank: Resource = "account/alice ".parse().unwrap();
        for (resource, token) in [(&blank, third), (&account(), Token(fourth.0 + 1)), (&account(), Token(0))]
        {
            let error = fence::pass(&mut transaction, resource, token).await.unwrap_err();
            assert!(error.to_string().contains("never given"), "{error}");
        }
        transaction.rollback().await.unwrap();
        let error = fence::pass(&mut conn, &account(), fourth).await.unwrap_err();
        assert_eq!(
            error.kind(),
            Kind::Misconfigured,
            "without a transaction it would fence nothing: {error}"
        );
    });
}

// G-70: what was rolled back has overtaken nobody, and who writes first makes the other wait.
#[test]
fn a_fence_moves_only_with_the_write_and_writers_take_turns() {
    with_database(async |database| {
        ledger(&database).await;
        let (mut one, mut two) = (database.client().await, database.client().await);
        let older = fence::lease(&mut one, &account()).await.unwrap();
        let newer = fence::lease(&mut two, &account()).await.unwrap();
        let mut undone = two.start_transaction(TxOpts::default()).await.unwrap();
        assert_eq!(fence::pass(&mut undone, &account(), newer).await.unwrap(), Passage::Passed);
        undone.rollback().await.unwrap();
        assert_eq!(write(&mut one, older, "first").await, Passage::Passed);

        let mut open = two.start_transaction(TxOpts::default()).await.unwrap();
        assert_eq!(fence::pass(&mut open, &account(), newer).await.unwrap(), Passage::Passed);
        let late = tokio::spawn(async move { write(&mut one, older, "late").await });
        // It waits for the row until the other is done.
        database.until_someone_runs("semel_fence").await;
        open.commit().await.unwrap();
        assert_eq!(late.await.unwrap(), Passage::Refused { last: newer });
        assert_eq!(database.number("SELECT COUNT(*) FROM entry").await, 1);
    });
}

// G-70: also where the transaction that leased was rolled back, whoever asks, and from SQL as well.
#[test]
fn a_token_is_never_given_twice_whatever_becomes_of_the_transaction() {
    with_database(async |database| {
        ledger(&database).await;
        let mut conn = database.client().await;
        let first = fence::lease(&mut conn, &account()).await.unwrap();
        let mut given = vec![first.0];
        for procedure in [false, true, false] {
            for commits in [false, true] {
                let mut transaction = conn.start_transaction(TxOpts::default()).await.unwrap();
                given.push(if procedure {
                    let called = transaction.query_first("CALL semel_lease('account/alice')").await;
                    called.unwrap().unwrap()
                } else {
                    fence::lease(&mut transaction, &account()).await.unwrap().0
                });
                if commits {
                    transaction.commit().await.unwrap();
                } else {
                    transaction.rollback().await.unwrap();
                }
            }
        }
        assert!(given.is_sorted_by(|one, next| one < next), "{given:?}");
        // What counts is what was committed: the last, and each before it until a later one has written.
        let last = Token(given[given.len() - 1]);
        assert_eq!(write(&mut conn, first, "first").await, Passage::Passed);
        assert_eq!(write(&mut conn, last, "last").await, Passage::Passed);
        assert_eq!(write(&mut conn, first, "late").await, Passage::Refused { last });
    });
}

// G-13, G-70
#[test]
fn after_an_acknowledged_restore_no_token_is_given_again() {
    with_database(async |database| {
        ledger(&database).await;
        let mut conn = database.client().await;
        fence::lease(&mut conn, &account()).await.unwrap();
        drop(conn);
        let backup = database.copy().await;
        let (from, to) = (&database.name, &backup.name);
        for table in ["semel_fence", "entry"] {
            backup.run(&format!("CREATE TABLE {to}.{table} LIKE {from}.{table}")).await;
            backup.run(&format!("INSERT INTO {to}.{table} SELECT * FROM {from}.{table}")).await;
        }
        let mut conn = database.client().await;
        let payment = fence::lease(&mut conn, &account()).await.unwrap();

        let store = connect(&backup.url()).await;
        assert!(store.status().await.unwrap().went_back_from.is_some());
        store.acknowledge_restore("ops").await.unwrap();
        let mut conn = backup.client().await;
        let refund = fence::lease(&mut conn, &account()).await.unwrap();
        assert!(refund > payment, "{refund} and {payment}");
        assert_eq!(write(&mut conn, refund, "refund").await, Passage::Passed);
        assert_eq!(write(&mut conn, payment, "payment").await, Passage::Refused { last: refund });
    });
}

/// The statements of docs/messaging/mysql.md, as they stand there.
const CREATE: &str = "INSERT INTO orders (id, note) VALUES (?, ?) ON DUPLICATE KEY UPDATE id = orders.id";
const UPDATE: &str = "UPDATE orders SET note = ?, version = version + 1 WHERE id = ? AND version = ?";
const MOVE: &str = "UPDATE orders SET status = ? WHERE id = ? AND status = ?";

// G-71
#[test]
fn create_update_and_move_are_idempotent_without_a_key() {
    with_database(async |database| {
        let mut conn = database.client().await;
        let table = "CREATE TABLE orders (id varchar(20) PRIMARY KEY, note text NOT NULL, \
                     version int NOT NULL DEFAULT 1, status varchar(20) NOT NULL DEFAULT 'open') ENGINE = InnoDB";
        conn.query_drop(table).await.unwrap();
        for (note, guarded) in [("first", Guarded::Made), ("second", Guarded::Refused)] {
            conn.exec_drop(CREATE, ("o-7", note)).await.unwrap();
            assert_eq!(Guarded::of_rows(conn.affected_rows()).unwrap(), guarded);
            let there: Option<String> = conn.query_first("SELECT note FROM orders").await.unwrap();
            assert_eq!(there.unwrap(), "first", "the second call gets the existing one");
        }
        for guarded in [Guarded::Made, Guarded::Refused] {
            conn.exec_drop(UPDATE, ("changed", "o-7", 1)).await.unwrap();
            assert_eq!(Guarded::of_rows(conn.affected_rows()).unwrap(), guarded);
        }
        let moves = [("open", "paid", Guarded::Made), ("open", "paid", Guarded::Refused)];
        for (from, to, guarded) in moves.into_iter().chain([("paid", "sent", Guarded::Made)]) {
            conn.exec_drop(MOVE, (to, "o-7", from)).await.unwrap();
            assert_eq!(Guarded::of_rows(conn.affected_rows()).unwrap(), guarded);
        }
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/messaging/mysql.md");
        let text = std::fs::read_to_string(page).unwrap();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        for statement in [CREATE, UPDATE, MOVE] {
            assert!(words(&text).contains(&words(statement)), "the page shows what is tested: {statement}");
        }
    });
}

// G-45, G-70: a name that is cut would be another's.
#[test]
fn a_session_without_strict_mode_has_no_name_cut() {
    with_database(async |database| {
        connect(&database.url()).await;
        let mut conn = database.client().await;
        conn.query_drop("SET SESSION sql_mode = ''").await.unwrap();
        for call in [
            "CALL semel_lease(REPEAT('r', 513))",
            "CALL semel_consume(REPEAT('g', 201), 's', 'id', '{}')",
            "CALL semel_consume('g', REPEAT('s', 201), 'id', '{}')",
            "CALL semel_consume('g', 's', REPEAT('i', 256), '{}')",
        ] {
            conn.query_drop("START TRANSACTION").await.unwrap();
            let refused = conn.query_drop(call).await.unwrap_err().to_string();
            assert!(
                refused.contains("SM004") || refused.contains("at most") || refused.contains("1 to 512"),
                "{refused}"
            );
            conn.query_drop("ROLLBACK").await.unwrap();
        }
        assert_eq!(database.number("SELECT COUNT(*) FROM semel_fence").await, 0);
        assert_eq!(database.number("SELECT COUNT(*) FROM semel_inbox").await, 0);
    });
}
