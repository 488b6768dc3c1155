//! What the ledger reads.

use std::time::Duration;

use semel_core::error::{Error, Kind};
use semel_core::inbox::Received::{Behind, Conflict, Duplicate, New};
use semel_core::inbox::{Arrival, Aside, Batch, Fence, Id, Inbox, Incoming, Received, SetAside};
use semel_stores::postgres::PostgresStore;
use semel_stores::postgres::inbox::{finish, receive};

use super::rig::{Database, named, with_database};

/// Messages of the group that the planner knows, and of the one that it does not.
const KNOWN: usize = 20_000;
const NEW: usize = 200;

fn arrival(id: usize) -> Arrival {
    let message = Incoming {
        source: "test".into(),
        place: id.to_string(),
        subject: "orders".into(),
        key: None,
        headers: Vec::new(),
        payload: "paid".into(),
    };
    Arrival::of(Id::parse(&id.to_string()).unwrap(), message)
}

fn of_key(id: usize, key: &str) -> Arrival {
    let arrival = arrival(id);
    Arrival::of(arrival.id, Incoming { key: Some(key.into()), ..arrival.message })
}

fn paying(id: usize, payload: &'static str) -> Arrival {
    let arrival = arrival(id);
    Arrival::of(arrival.id, Incoming { payload: payload.into(), ..arrival.message })
}

fn fenced(id: usize, epoch: u64) -> Arrival {
    let fence = Some(Fence { lane: 1, epoch, sequence: id as u64 });
    Arrival { fence, ..of_key(id, "k") }
}

/// A consumer's transaction that has no effect but the ledger's.
async fn received(client: &mut tokio_postgres::Client, arrivals: &[Arrival]) -> Result<Vec<Received>, Error> {
    let tx = client.transaction().await.unwrap();
    let begun = receive(&tx, "g", arrivals).await?;
    finish(&tx, "g", &begun, Duration::from_millis(1)).await?;
    tx.commit().await.unwrap();
    Ok(begun.received)
}

/// What was read of the ledger's tables, once nobody is connected: sessions tell when they end.
async fn entries_read(database: &Database) -> i64 {
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                  AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    while database.number(others).await > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let read = "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname LIKE 'semel_inbox%')::bigint \
                + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname LIKE 'semel_inbox%')::bigint";
    database.number(read).await
}

/// The database with its tables, directly and then through the pooler.
async fn on_both(database: &Database, body: impl AsyncFn(tokio_postgres::Client)) {
    PostgresStore::connect(&database.url()).await.unwrap().close().await;
    body(database.client().await).await;
    if let Some(pooler) = named("SEMEL_TEST_PGBOUNCER") {
        database.run("TRUNCATE semel_inbox, semel_inbox_letter, semel_inbox_fence, semel_inbox_batch").await;
        let (client, connection) =
            tokio_postgres::connect(&database.through(&pooler), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        body(client).await;
    }
}

#[test]
fn one_that_was_applied_before_is_found_among_new_ones() {
    // G-45
    with_database(async |database| {
        on_both(&database, async |mut client| {
            assert_eq!(received(&mut client, &[arrival(2)]).await.unwrap(), [New]);
            let batch = [arrival(3), arrival(2), arrival(1)];
            assert_eq!(received(&mut client, &batch).await.unwrap(), [New, Duplicate, New]);
            assert_eq!(received(&mut client, &batch).await.unwrap(), [Duplicate; 3]);
            let batch = [arrival(5), paying(2, "another"), arrival(4)];
            assert_eq!(received(&mut client, &batch).await.unwrap(), [New, Conflict, New]);
            assert_eq!(received(&mut client, &[]).await.unwrap(), []);
        })
        .await;
    });
}

#[test]
fn a_key_that_is_parked_is_seen_among_keys_that_are_not() {
    // G-41, G-45
    with_database(async |database| {
        let store = PostgresStore::connect(&database.url()).await.unwrap();
        on_both(&database, async |mut client| {
            let first = of_key(1, "parked");
            let letter = SetAside {
                letter: None,
                id: Some(&first.id),
                message: &first.message,
                aside: Aside::Dead,
                reason: "it is wrong".into(),
                tries: 1,
                again_in: Duration::ZERO,
            };
            store.inbox().set_aside("g", &[letter], &[]).await.unwrap();
            let batch = [of_key(2, "free"), of_key(3, "parked"), arrival(4)];
            assert_eq!(received(&mut client, &batch).await.unwrap(), [New, Behind, New]);
            // Other keys do not notice that something waits.
            let batch = [of_key(5, "free"), arrival(6), arrival(4)];
            assert_eq!(received(&mut client, &batch).await.unwrap(), [New, New, Duplicate]);
        })
        .await;
        store.close().await;
    });
}

/// Messages 5 and 6 are received while another consumer, in a transaction of its own, sets 5 aside.
async fn meet(database: &Database, set_aside: &str) -> tokio_postgres::Client {
    let mut other = database.client().await;
    let setting_aside = other.transaction().await.unwrap();
    let row = "INSERT INTO semel_inbox (handled_at, batch, size, state, grp, source, id, hash)
               VALUES (1, 0, 4, 3, 'g', 'test', '5', sha256('paid'))";
    setting_aside.batch_execute(row).await.unwrap();
    setting_aside.batch_execute(set_aside).await.unwrap();
    let mut client = database.client().await;
    let waiting = tokio::spawn(async move {
        let outcome = received(&mut client, &[fenced(5, 2), fenced(6, 2)]).await;
        (client, outcome)
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    while database.number(waits).await == 0 {
        tokio::task::yield_now().await;
    }
    setting_aside.commit().await.unwrap();
    let (client, outcome) = waiting.await.unwrap();
    assert_eq!(outcome.unwrap_err().kind(), Kind::Busy, "it cannot be told in this transaction");
    client
}

#[test]
fn what_is_kept_as_stale_while_its_rightful_copy_is_received_is_not_lost() {
    // G-42, G-45
    with_database(async |database| {
        PostgresStore::connect(&database.url()).await.unwrap().close().await;
        let stale = "INSERT INTO semel_inbox_letter
                         (since, tries, aside, grp, source, place, id, subject, headers, reason, hash, payload)
                     VALUES (1, 0, 4, 'g', 'test', '5', '5', 'orders', '', 'stale', sha256('paid'), 'paid')";
        let mut client = meet(&database, stale).await;
        assert_eq!(received(&mut client, &[fenced(5, 2), fenced(6, 2)]).await.unwrap(), [New, New]);
        assert_eq!(database.number("SELECT count(*) FROM semel_inbox_letter").await, 0);
        assert_eq!(database.number("SELECT sequence FROM semel_inbox_fence").await, 6);
    });
}

#[test]
fn what_is_parked_while_a_later_message_of_its_key_is_received_is_not_overtaken() {
    // G-41, G-45
    with_database(async |database| {
        PostgresStore::connect(&database.url()).await.unwrap().close().await;
        let parked = "INSERT INTO semel_inbox_letter
                          (since, tries, aside, grp, source, place, id, subject, key, headers, reason, hash, payload)
                      VALUES (1, 0, 2, 'g', 'test', '5', '5', 'orders', 'k', '', 'failed', sha256('paid'), 'paid')";
        let mut client = meet(&database, parked).await;
        assert_eq!(received(&mut client, &[fenced(5, 2), fenced(6, 2)]).await.unwrap(), [Duplicate, Behind]);
    });
}

#[test]
fn what_was_planned_on_empty_tables_reads_full_ones_by_their_keys() {
    with_database(async |database| {
        PostgresStore::connect(&database.url()).await.unwrap().close().await;
        let mut client = database.client().await;
        let batch = |from: usize| -> Vec<Arrival> { (from..from + NEW).map(|id| fenced(id, 1)).collect() };
        for from in [0, 0, 10] {
            received(&mut client, &batch(from)).await.unwrap();
        }
        let full = format!(
            "INSERT INTO semel_inbox (handled_at, batch, size, state, grp, source, id, hash) \
             SELECT n, 0, 4, 2, 'g', 'test', n::text, sha256('paid') FROM generate_series(1000, {KNOWN}) AS n; \
             INSERT INTO semel_inbox_fence (epoch, sequence, seen_at, lane, grp, source, key) \
             SELECT 1, n, 1, n, 'g', 'test', 'k' FROM generate_series(1000, {KNOWN}) AS n; \
             INSERT INTO semel_inbox_letter \
                 (since, tries, aside, grp, source, place, id, subject, key, headers, reason, hash, payload) \
             SELECT 1, 0, 2 + n % 2 * 2, 'g', 'test', n, n, 'orders', n, '', '', sha256('paid'), 'paid' \
             FROM generate_series(1000, {KNOWN}) AS n"
        );
        database.run(&full).await;
        let mut told = vec![Duplicate; NEW / 2];
        told.extend([New; NEW / 2]);
        assert_eq!(received(&mut client, &batch(10 + NEW / 2)).await.unwrap(), told);
        drop(client);
        let read = entries_read(&database).await;
        assert!(read <= 20 * NEW as i64, "{read} entries were read for {NEW} messages, four times");
    });
}

// Of a group that its statistics do not know the planner believes that it has no rows.
#[test]
fn a_message_of_a_new_group_is_found_by_its_key_and_not_by_reading_the_group() {
    with_database(async |database| {
        let store = PostgresStore::connect(&database.url()).await.unwrap();
        let known = format!(
            "INSERT INTO semel_inbox (handled_at, batch, size, state, grp, source, id, hash) \
             SELECT n, 0, 4, 2, 'known', 'test', n::text, sha256('paid') FROM generate_series(1, {KNOWN}) AS n"
        );
        database.run(&known).await;
        database.run("ANALYZE semel_inbox").await;
        let inbox = store.inbox();
        let batch =
            Batch { group: "new".into(), arrivals: (0..NEW).map(arrival).collect(), offsets: Vec::new() };
        for _ in 0..2 {
            assert_eq!(inbox.intend(&batch).await.unwrap(), vec![Received::New; NEW]);
        }
        store.close().await;
        drop((inbox, store));
        let read = entries_read(&database).await;
        assert!(read <= 4 * NEW as i64, "{read} entries of indexes were read for {NEW} messages");
    });
}
