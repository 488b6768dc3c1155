//! Databases that were restored or moved.

use semel_core::outbox::{Lane, Saved, Taken};
use semel_core::{Nonce, Outbox};
use semel_stores::mysql::outbox::{MysqlOutbox, enqueue};

use super::super::rig::{Database, OUTBOX_TABLES, with_database};
use super::desk::{LEASE, Relay, connect, message, patient, sorted};

pub(super) async fn fill(database: &Database, texts: &[&str]) {
    let messages: Vec<_> = texts.iter().map(|text| message(text, text)).collect();
    enqueue(&mut database.client().await, &messages).await.unwrap();
}

pub(super) async fn stopped(outbox: &MysqlOutbox) -> String {
    match outbox.take(Lane(0), Nonce::random(), LEASE).await.map_err(|error| error.to_string()).unwrap() {
        Taken::Stopped { why } => why,
        _ => panic!("it must not be published from"),
    }
}

// G-44
#[test]
fn a_copy_in_another_database_gives_no_lane_out_until_it_is_rebased() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        fill(&database, &["a", "b"]).await;
        let mut relay = Relay::of(&outbox).await;
        assert_eq!(sorted(relay.send_all(10).await), ["a", "b"]);
        let last = relay.cursors[0].term().epoch;
        relay.give_back().await;
        fill(&database, &["c", "d"]).await;
        drop(outbox);
        let copy = database.copy().await;
        let outbox = connect(&copy).await;
        assert!(stopped(&outbox).await.contains("rebase"));
        assert!(outbox.overview().await.unwrap().stopped.is_some());
        assert_eq!(outbox.rebase("ops").await.unwrap(), 2);
        assert_eq!(outbox.overview().await.unwrap().stopped, None);
        let mut relay = Relay::of(&outbox).await;
        assert!(relay.cursors[0].term().epoch > last);
        assert_eq!(sorted(relay.send_all(10).await), ["c", "d"]);
        fill(&copy, &["e"]).await;
        let found = outbox.list(None, 0, 10).await.unwrap();
        assert!(found[0].1.sequence > 1 << 32, "no number of the lost state is given again");
        assert_eq!(relay.send_all(10).await, ["e"]);
    });
}

// G-44
#[test]
fn an_outbox_set_back_in_its_place_is_noticed_with_a_witness_by_a_restarted_relay() {
    with_database(async |database| {
        let folder = tempfile::tempdir().unwrap();
        let mut options = patient(database.url());
        options.witness = Some(folder.path().join("witness"));
        let outbox = MysqlOutbox::connect_with(options.clone()).await.unwrap();
        fill(&database, &["a"]).await;
        for table in OUTBOX_TABLES {
            database.run(&format!("CREATE TABLE backup_{table} LIKE {table}")).await;
            database.run(&format!("INSERT INTO backup_{table} SELECT * FROM {table}")).await;
        }
        let mut relay = Relay::of(&outbox).await;
        assert_eq!(relay.send_all(10).await, ["a"]);
        fill(&database, &["lost"]).await;
        let mut lost = Vec::new();
        for cursor in &mut relay.cursors {
            let read = cursor.next(10).await.unwrap();
            lost.push(cursor.position(read.len()));
        }
        relay.give_back().await;
        drop(outbox);
        for table in OUTBOX_TABLES {
            database.run(&format!("TRUNCATE TABLE {table}")).await;
            database.run(&format!("INSERT INTO {table} SELECT * FROM backup_{table}")).await;
        }
        let outbox = MysqlOutbox::connect_with(options.clone()).await.unwrap();
        assert!(stopped(&outbox).await.contains("was seen at"));
        assert_eq!(outbox.rebase("ops").await.unwrap(), 1);
        fill(&database, &["b"]).await;
        let outbox = MysqlOutbox::connect_with(options).await.unwrap();
        let mut relay = Relay::of(&outbox).await;
        // G-43: a sink with transactions says what had landed of the lost state.
        for (cursor, position) in relay.cursors.iter_mut().zip(&lost) {
            assert_eq!(cursor.adopt(position).await.unwrap(), Saved::Kept);
        }
        assert_eq!(sorted(relay.send_all(10).await), ["a", "b"], "again, and never lost");
    });
}
