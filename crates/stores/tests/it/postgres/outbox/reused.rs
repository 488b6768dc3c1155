//! A server that crashes gives the numbers of transactions that left no trace to others, and a relay that outlives
//! it has seen them.

use semel_core::outbox::{Cursor, Entry, Lane, Saved, Settled, Taken};
use semel_core::{Error, Nonce, Outbox};
use semel_stores::postgres::outbox::PostgresOutbox;
use tokio_postgres::Client;

use super::super::rig::{client, named, with_database};
use super::desk::{LEASE, connect_to, text, write};
use super::restored::Cluster;

/// Transactions that are over and left no trace: parts of one that stays open, rolled back.
const TRACELESS: &str = "BEGIN; DO $$ BEGIN FOR n IN 1..300 LOOP \
    BEGIN INSERT INTO scratch VALUES (n); RAISE EXCEPTION 'undone'; EXCEPTION WHEN raise_exception THEN NULL; END; \
    END LOOP; END $$";

/// As many that leave one.
const TRACED: &str =
    "DO $$ BEGIN FOR n IN 1..400 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";

/// The lane of the key `a`.
async fn take(outbox: &PostgresOutbox, client: &Client, holder: Nonce) -> Box<dyn Cursor> {
    let row = client.query_one("SELECT semel_outbox_lane(gen_random_uuid(), 'a')", &[]).await.unwrap();
    let lane = Lane(row.get::<_, i16>(0) as u16);
    let taken = patiently(async || outbox.take(lane, holder, LEASE).await).await;
    let Taken::Yours(cursor) = taken else { panic!("the lane is not given to its holder") };
    cursor
}

/// Calls again while connections from before the crash are found dead.
async fn patiently<T>(call: impl AsyncFn() -> Result<T, Error>) -> T {
    for _ in 0..20 {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(error.is_retryable() || error.outcome_is_unknown(), "{error}"),
        }
    }
    panic!("the server does not come back");
}

async fn next(cursor: &mut Box<dyn Cursor>) -> Vec<Entry> {
    let cursor = tokio::sync::Mutex::new(cursor);
    patiently(async || cursor.lock().await.next(100).await).await
}

async fn numbers_given(client: &Client) -> i64 {
    let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// A client with a table that leaves no trace in the log.
async fn prepared(cluster: &Cluster) -> Client {
    let client = client(&cluster.url()).await;
    // A read that finds dead rows of the catalogue cleans up, and what that logs takes the log before it to the disk.
    client.batch_execute("VACUUM").await.unwrap();
    client.batch_execute("CREATE TEMP TABLE scratch (n integer)").await.unwrap();
    client
}

// G-40, G-41: what was seen in memory only is not believed after a crash.
#[test]
fn a_crash_of_the_server_under_an_idle_relay_skips_nothing_and_keeps_the_order() {
    with_database(async |_| {
        let Some(programs) = named("SEMEL_TEST_PG_BIN") else { return };
        let cluster = Cluster::start(&programs);
        let outbox = connect_to(&cluster.url()).await;
        let (other, holder) = (prepared(&cluster).await, Nonce::random());
        let mut cursor = take(&outbox, &other, holder).await;
        other.batch_execute(TRACELESS).await.unwrap();
        assert!(cursor.next(100).await.unwrap().is_empty());
        let before = numbers_given(&other).await;
        cluster.crash();
        let writer = client(&cluster.url()).await;
        assert!(numbers_given(&writer).await < before, "numbers are given again");
        write(&writer, "a", "first").await;
        writer.batch_execute(TRACED).await.unwrap();
        write(&writer, "a", "second").await;
        let read: Vec<String> = next(&mut cursor).await.iter().map(text).collect();
        assert!(read.is_empty(), "{read:?} would go before what the relay took for settled");
        assert_eq!(cursor.save(&[]).await.unwrap(), Saved::Fenced);
        let mut cursor = take(&outbox, &writer, holder).await;
        let read: Vec<String> = next(&mut cursor).await.iter().map(text).collect();
        assert_eq!(read, ["first", "second"]);
    });
}

// G-40, G-43: nor is it saved.
#[test]
fn what_was_read_before_a_crash_of_the_server_is_not_saved_after_it() {
    with_database(async |_| {
        let Some(programs) = named("SEMEL_TEST_PG_BIN") else { return };
        let cluster = Cluster::start(&programs);
        let outbox = connect_to(&cluster.url()).await;
        let (other, holder) = (prepared(&cluster).await, Nonce::random());
        let mut cursor = take(&outbox, &other, holder).await;
        write(&other, "a", "published").await;
        other.batch_execute(TRACELESS).await.unwrap();
        assert_eq!(cursor.next(100).await.unwrap().len(), 1);
        let before = numbers_given(&other).await;
        cluster.crash();
        let writer = client(&cluster.url()).await;
        assert!(numbers_given(&writer).await < before, "numbers are given again");
        write(&writer, "a", "new").await;
        writer.batch_execute(TRACED).await.unwrap();
        // The run after the crash has a name: somebody took another lane.
        writer
            .batch_execute("INSERT INTO semel_outbox_run DEFAULT VALUES ON CONFLICT DO NOTHING")
            .await
            .unwrap();
        let saving = tokio::sync::Mutex::new(&mut cursor);
        let saved = patiently(async || saving.lock().await.save(&[Settled::Sent]).await).await;
        assert_eq!(saved, Saved::Fenced);
        let mut cursor = take(&outbox, &writer, holder).await;
        let read: Vec<String> = next(&mut cursor).await.iter().map(text).collect();
        assert_eq!(read, ["published", "new"], "again, and in order");
    });
}
