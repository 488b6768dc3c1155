//! Nobody waits for anybody: writers, relays, and who stays open.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use semel_core::Outbox;
use semel_core::message::Message;
use semel_core::outbox::{Saved, Settled};
use semel_stores::mysql::outbox::{MysqlOutbox, enqueue};

use super::super::rig::with_database;
use super::desk::{Relay, begin, connect, message, patient, sorted, take, write};

// G-40
#[test]
fn a_save_waits_for_no_writer_whatever_numbers_lie_between() {
    with_database(async |database| {
        let mut options = patient(database.url());
        // What waits for a lock fails here, and the test with it.
        options.lock_timeout = Duration::from_secs(1);
        let outbox = MysqlOutbox::connect_with(options).await.unwrap();
        let mut relay = Relay::of(&outbox).await;
        let mut held = Vec::new();
        for n in 0..20 {
            let mut open = begin(&database).await;
            write(&mut open, &format!("open-{n}"), &format!("open {n}")).await;
            held.push(open);
            let mut client = begin(&database).await;
            write(&mut client, &format!("key-{n}"), &format!("done {n}")).await;
            client.query_drop("COMMIT").await.unwrap();
        }
        let sent = relay.send_all(100).await;
        assert_eq!(sent.len(), 20, "{sent:?}");
        assert!(sent.iter().all(|text| text.starts_with("done")));
        for mut open in held {
            open.query_drop("COMMIT").await.unwrap();
        }
        assert_eq!(relay.send_all(100).await.len(), 20, "whoever commits late is read all the same");
    });
}

// G-40: an old snapshot keeps deleted rows from being cleared away; the floor passes them, and nobody is lost.
#[test]
fn while_an_old_snapshot_is_held_the_late_are_read_and_the_order_of_keys_is_kept() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut cursor = take(&outbox, 0).await;
        let mut view = database.client().await;
        view.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
        view.query_drop("START TRANSACTION WITH CONSISTENT SNAPSHOT").await.unwrap();
        // Keys of the lane that is read.
        let lane = |key: &str| format!("SELECT CRC32('{key}') % 8");
        let mut keys = Vec::new();
        for n in 0.. {
            let key = format!("k{n}");
            if database.number(&lane(&key)).await == 0 {
                keys.push(key);
            }
            if keys.len() == 2 {
                break;
            }
        }
        let mut late = begin(&database).await;
        write(&mut late, &keys[0], "late").await;
        let mut client = database.client().await;
        let (mut sent, mut rounds) = (Vec::new(), 0);
        let begun = std::time::Instant::now();
        // Long enough for a floor to rise, if it would.
        while begun.elapsed() < Duration::from_secs(5) {
            enqueue(&mut client, &[message(&keys[1], &format!("{rounds:06}"))]).await.unwrap();
            rounds += 1;
            let read = cursor.next(10).await.unwrap();
            assert_eq!(cursor.save(&vec![Settled::Sent; read.len()]).await.unwrap(), Saved::Kept);
            sent.extend(read.iter().map(super::desk::text));
        }
        assert_eq!(sent.len(), rounds);
        assert_eq!(sorted(sent.clone()), sent, "in the order of the key");
        late.query_drop("COMMIT").await.unwrap();
        enqueue(&mut client, &[message(&keys[0], "after")]).await.unwrap();
        let read = cursor.next(10).await.unwrap();
        assert_eq!(read.iter().map(super::desk::text).collect::<Vec<_>>(), ["late", "after"]);
        view.query_drop("COMMIT").await.unwrap();
    });
}

// G-41
#[test]
fn keys_that_differ_in_blanks_at_their_end_or_in_case_are_different_keys() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let keys = ["a", "a ", "A", "á", "a\u{0301}"];
        let messages: Vec<Message> = keys.iter().map(|key| message(key, key)).collect();
        let mut client = begin(&database).await;
        enqueue(&mut client, &messages).await.unwrap();
        client.query_drop("COMMIT").await.unwrap();
        let mut relay = Relay::of(&outbox).await;
        for cursor in &mut relay.cursors {
            let read = cursor.next(10).await.unwrap();
            let dead = |key: &Option<String>| match key.as_deref() {
                Some("a") => Settled::Dead { reason: "no".into() },
                _ => Settled::Sent,
            };
            let settled: Vec<Settled> = read.iter().map(|entry| dead(&entry.message.key)).collect();
            cursor.save(&settled).await.unwrap();
        }
        let mut client = begin(&database).await;
        enqueue(
            &mut client,
            &messages.iter().map(|old| message(old.key.as_ref().unwrap(), "again")).collect::<Vec<_>>(),
        )
        .await
        .unwrap();
        client.query_drop("COMMIT").await.unwrap();
        assert_eq!(relay.send_all(10).await.len(), 4, "one key is parked, and no other");
        relay.give_back().await;
        assert_eq!(outbox.aside(None, 0, 10).await.unwrap().len(), 2);
    });
}

// G-40: without PROCESS nobody tells who writes; looking is slower then, and just as right.
#[test]
fn a_user_who_may_not_see_transactions_can_relay() {
    with_database(async |database| {
        let (user, name) = (format!("u{}", &database.name[8..20]), &database.name);
        for sql in [
            format!("CREATE USER {user}@'%' IDENTIFIED BY 'secret'"),
            format!("GRANT ALL ON {name}.* TO {user}@'%'"),
        ] {
            database.run(&sql).await;
        }
        let url = database.url();
        let (_, place) = url.rsplit_once('@').unwrap();
        let url = format!("mysql://{user}:secret@{place}");
        let outbox = MysqlOutbox::connect_with(patient(url)).await.unwrap();
        let mut relay = Relay::of(&outbox).await;
        let begun = std::time::Instant::now();
        let mut count = 0;
        while begun.elapsed() < Duration::from_secs(4) {
            let mut client = begin(&database).await;
            write(&mut client, "k", "m").await;
            client.query_drop("COMMIT").await.unwrap();
            count += relay.send_all(10).await.len();
        }
        assert!(count > 0);
        database.run(&format!("DROP USER {user}@'%'")).await;
    });
}
