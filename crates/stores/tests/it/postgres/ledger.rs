//! What the ledger reads.

use std::time::Duration;

use semel_core::inbox::{Arrival, Batch, Id, Inbox, Incoming, Received};
use semel_stores::postgres::PostgresStore;

use super::rig::with_database;

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
        // Sessions tell what they read when they end.
        let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                      AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        while database.number(others).await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let read = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'semel_inbox'";
        let read = database.number(read).await;
        assert!(read <= 4 * NEW as i64, "{read} entries of indexes were read for {NEW} messages");
    });
}
