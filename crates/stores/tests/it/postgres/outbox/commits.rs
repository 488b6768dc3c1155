//! Whoever commits, however and whenever, is read; and nobody waits for anybody.

use semel_core::Timestamp;
use semel_core::error::Kind;
use semel_stores::postgres::outbox::Writer;

use super::super::rig::{Database, with_database};
use super::desk::{Relay, begin, connect, message, sorted, write};

// G-40: the row belongs to the transaction; what a savepoint took back was never there.
#[test]
fn a_savepoint_is_read_with_its_transaction_and_a_rolled_back_one_never() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        let writer = begin(&database).await;
        write(&writer, "a", "1").await;
        writer.batch_execute("SAVEPOINT one").await.unwrap();
        write(&writer, "a", "2").await;
        writer.batch_execute("SAVEPOINT two").await.unwrap();
        write(&writer, "a", "undone").await;
        writer.batch_execute("ROLLBACK TO two").await.unwrap();
        write(&writer, "a", "3").await;
        writer.batch_execute("RELEASE one").await.unwrap();
        // Others come and go meanwhile, and their numbers lie above.
        database.run("CREATE TABLE other (n integer); INSERT INTO other VALUES (1)").await;
        assert!(relay.send_all(100).await.is_empty());
        writer.batch_execute("COMMIT").await.unwrap();
        assert_eq!(relay.send_all(100).await, ["1", "2", "3"]);
    });
}

// G-40
#[test]
fn a_prepared_transaction_is_read_when_it_commits_even_after_a_restart() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let name = &database.name;
        let writer = begin(&database).await;
        write(&writer, "a", "prepared").await;
        writer.batch_execute(&format!("PREPARE TRANSACTION '{name}'")).await.unwrap();
        let undone = begin(&database).await;
        write(&undone, "a", "undone").await;
        undone.batch_execute(&format!("PREPARE TRANSACTION '{name}-undone'")).await.unwrap();
        let mut relay = Relay::of(&outbox).await;
        let other = begin(&database).await;
        write(&other, "b", "other").await;
        other.batch_execute("COMMIT").await.unwrap();
        assert_eq!(relay.send_all(100).await, ["other"], "who is prepared holds nobody up");
        relay.give_back().await;
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        assert!(relay.send_all(100).await.is_empty());
        writer.batch_execute(&format!("COMMIT PREPARED '{name}'")).await.unwrap();
        undone.batch_execute(&format!("ROLLBACK PREPARED '{name}-undone'")).await.unwrap();
        assert_eq!(relay.send_all(100).await, ["prepared"]);
    });
}

// G-40: transactions are numbered in one row for all databases of a server.
#[test]
fn an_idle_transaction_in_another_database_delays_nobody() {
    with_database(async |database| {
        let elsewhere = Database::create(&database.url()).await;
        let idle = begin(&elsewhere).await;
        idle.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap();
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        for n in 0..10 {
            let writer = begin(&database).await;
            write(&writer, "a", &n.to_string()).await;
            writer.batch_execute("COMMIT").await.unwrap();
            assert_eq!(relay.send_all(100).await, [n.to_string()]);
        }
        idle.batch_execute("COMMIT").await.unwrap();
        assert!(relay.send_all(100).await.is_empty());
    });
}

// G-40
#[test]
fn a_long_transaction_that_wrote_delays_only_itself() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        let long = begin(&database).await;
        write(&long, "a", "long").await;
        for n in 0..20 {
            let writer = begin(&database).await;
            write(&writer, "a", &n.to_string()).await;
            writer.batch_execute("COMMIT").await.unwrap();
            assert_eq!(relay.send_all(3).await, [n.to_string()], "also of the same key: they overlap");
        }
        drop(relay);
        long.batch_execute("COMMIT").await.unwrap();
        database.run("UPDATE semel_outbox_cursor SET lease_until = 0, xid = pg_current_xact_id()").await;
        let mut relay = Relay::of(&outbox).await;
        assert_eq!(relay.send_all(3).await, ["long"], "and whoever takes over reads it");
    });
}

// G-40: a view that somebody keeps open neither hides anything nor slows the log down.
#[test]
fn a_pinned_view_changes_nothing() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let pinned = database.client().await;
        pinned.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
        pinned.query("SELECT count(*) FROM semel_outbox", &[]).await.unwrap();
        let mut relay = Relay::of(&outbox).await;
        for n in 0..40 {
            let writer = begin(&database).await;
            write(&writer, "a", &n.to_string()).await;
            writer.batch_execute("COMMIT").await.unwrap();
            assert_eq!(relay.send_all(100).await, [n.to_string()]);
        }
        database.run("ANALYZE semel_outbox; ANALYZE semel_outbox_cursor").await;
        let dead = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables
             WHERE relname LIKE 'semel_outbox%' AND relname NOT LIKE '%setting'";
        assert_eq!(database.number(dead).await, 0, "nothing is updated or deleted");
        pinned.batch_execute("COMMIT").await.unwrap();
    });
}

// G-40: whoever reads the log while many overlap must not lose anybody.
#[test]
fn batches_of_any_size_lose_nobody_while_transactions_overlap() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        let (mut open, mut expected) = (Vec::new(), Vec::new());
        for n in 0..36_usize {
            let writer = begin(&database).await;
            for m in 0..=n % 4 {
                write(&writer, &format!("k{}", n % 7), &format!("{n}-{m}")).await;
            }
            open.push((n, writer));
            // The one that waited longest stays longest; every seventh gives up.
            if n % 3 != 0 {
                let (at, writer) = open.remove(open.len() / 2);
                let undone = at % 7 == 6;
                writer.batch_execute(if undone { "ROLLBACK" } else { "COMMIT" }).await.unwrap();
                expected.extend((0..=at % 4).filter(|_| !undone).map(|m| format!("{at}-{m}")));
            }
            if n % 5 == 4 {
                relay.send_all(1 + n % 9).await;
            }
        }
        for (at, writer) in open {
            writer.batch_execute("COMMIT").await.unwrap();
            expected.extend((0..=at % 4).map(|m| format!("{at}-{m}")));
        }
        relay.send_all(5).await;
        let found: Vec<String> = relay.sent.iter().map(super::desk::text).collect();
        assert_eq!(sorted(found), sorted(expected), "each once");
    });
}

// G-44: nonsense is refused while its writer can still be told, and its transaction goes on.
#[test]
fn a_refused_message_does_not_spoil_the_transaction() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let writer = begin(&database).await;
        let bad = message("a", "bad").header("Semel", "1");
        let error = semel_stores::postgres::outbox::enqueue(&writer, &[bad]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Misconfigured, "{error}");
        write(&writer, "a", "good").await;
        writer.batch_execute("COMMIT").await.unwrap();
        assert_eq!(Relay::of(&outbox).await.send_all(10).await, ["good"]);
    });
}

// G-40: a COMMIT that travels with the messages commits them and the effect, or neither.
#[test]
fn a_commit_that_travels_with_its_messages_takes_both_or_nothing() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        database
            .run("CREATE TABLE effect (name text); ALTER TABLE semel_outbox ADD CHECK (key <> 'bad')")
            .await;
        let effects = "SELECT count(*) FROM effect";
        let mut client = database.client().await;
        let writer = Writer::prepare(&client).await.unwrap();

        let transaction = writer.begin(&mut client).await.unwrap();
        transaction.batch_execute("INSERT INTO effect VALUES ('refused by the server')").await.unwrap();
        let error = writer.commit(transaction, &[message("bad", "1")]).await.unwrap_err();
        assert!(!error.outcome_is_unknown(), "{error}");
        assert_eq!(database.number(effects).await, 0, "the message was not written");

        let transaction = writer.begin(&mut client).await.unwrap();
        transaction.batch_execute("INSERT INTO effect VALUES ('refused here')").await.unwrap();
        let nonsense = message("a", "2").header("Semel", "1");
        let error = writer.commit(transaction, &[nonsense]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Misconfigured, "{error}");
        assert_eq!(database.number(effects).await, 0);

        let transaction = writer.begin(&mut client).await.unwrap();
        transaction.batch_execute("INSERT INTO effect VALUES ('undone by an error')").await.unwrap();
        transaction.batch_execute("SELECT 1 / 0").await.unwrap_err();
        let error = writer.commit(transaction, &[]).await.unwrap_err();
        assert!(
            !error.outcome_is_unknown(),
            "COMMIT by itself would have rolled back and said nothing: {error}"
        );

        // More than can be written at once.
        let transaction = writer.begin(&mut client).await.unwrap();
        transaction.batch_execute("INSERT INTO effect VALUES ('too much')").await.unwrap();
        let heap: Vec<_> = (0..17).map(|_| message("a", &"x".repeat(16 << 20))).collect();
        let error = writer.commit(transaction, &heap).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Misconfigured, "{error}");
        assert_eq!(database.number(effects).await, 0);
        drop(heap);

        let transaction = writer.begin(&mut client).await.unwrap();
        transaction.batch_execute("INSERT INTO effect VALUES ('done')").await.unwrap();
        let tomorrow = message("a", "later").deliver_after(Timestamp::from_micros(i64::MAX / 2));
        writer.commit(transaction, &[message("a", "3"), tomorrow, message("a", "4")]).await.unwrap();
        assert_eq!(database.number(effects).await, 1);
        assert_eq!(database.number("SELECT count(*) FROM semel_outbox_delayed").await, 1);

        let transaction = client.transaction().await.unwrap();
        writer.enqueue(&transaction, &[message("a", "taken back")]).await.unwrap();
        transaction.rollback().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        writer.enqueue(&transaction, &[message("a", "5")]).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(Relay::of(&outbox).await.send_all(10).await, ["3", "4", "5"]);
    });
}

const SET_ASIDE: &str = include_str!("../../../../src/postgres/outbox/sql/set_aside.sql");

// G-43: after a lost answer the holder goes on by a step of the same number; what was delayed on the way finds
// that step, and must not take it for its own.
#[test]
fn a_delayed_save_sets_nothing_aside_by_the_step_of_another_transaction() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let writer = database.client().await;
        write(&writer, "a", "sent elsewhere").await;
        let _relay = Relay::of(&outbox).await;
        let row = "SELECT o.lane, o.sequence, c.step, c.epoch
            FROM semel_outbox AS o JOIN semel_outbox_cursor AS c USING (lane) ORDER BY c.step DESC LIMIT 1";
        let row = writer.query_one(row, &[]).await.unwrap();
        let (lane, sequence): (i16, i64) = (row.get(0), row.get(1));
        let (step, epoch): (i64, i64) = (row.get(2), row.get(3));
        let (sequences, states) = (vec![sequence], vec![2_i16]);
        let (again, reasons, clock) = (vec![None::<i64>], vec!["late"], None::<i64>);
        let set = writer
            .query(SET_ASIDE, &[&lane, &step, &epoch, &clock, &sequences, &states, &again, &reasons])
            .await;
        assert!(set.unwrap().is_empty());
        assert_eq!(database.number("SELECT count(*) FROM semel_outbox_aside").await, 0);
    });
}
