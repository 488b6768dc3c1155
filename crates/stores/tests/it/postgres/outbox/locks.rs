//! Order of a key where writers hold its lock while they write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::rig::with_database;
use super::desk::{Relay, connect, text, write};

// G-41: who waited for a row lock writes later, has a larger number, and is read later.
#[test]
fn writers_that_wait_for_each_others_lock_are_read_in_that_order() {
    const WRITERS: usize = 6;
    const TRANSACTIONS: usize = 30;
    with_database(async |database| {
        let outbox = connect(&database).await;
        database.run("CREATE TABLE account (id integer PRIMARY KEY, n integer NOT NULL)").await;
        database.run("INSERT INTO account SELECT id, 0 FROM generate_series(0, 2) AS id").await;
        let mut relay = Relay::of(&outbox).await;
        let ended = Arc::new(AtomicBool::new(false));
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let client = database.client().await;
            writers.push(tokio::spawn(async move {
                for n in 0..TRANSACTIONS {
                    let account = ((writer + n) % 3) as i32;
                    // Some have a transaction number long before they come to the lock.
                    client.batch_execute("BEGIN").await.unwrap();
                    if n % 2 == 0 {
                        client.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap();
                    }
                    let update = "UPDATE account SET n = n + 1 WHERE id = $1 RETURNING n";
                    let n: i32 = client.query_one(update, &[&account]).await.unwrap().get(0);
                    write(&client, &format!("account-{account}"), &n.to_string()).await;
                    client.batch_execute("COMMIT").await.unwrap();
                }
            }));
        }
        let all = ended.clone();
        let waiting = tokio::spawn(async move {
            for writer in writers {
                writer.await.unwrap();
            }
            all.store(true, Ordering::SeqCst);
        });
        // Small batches, so that many are cut in the middle.
        loop {
            let is_last = ended.load(Ordering::SeqCst);
            relay.send_all(4).await;
            if is_last {
                break;
            }
        }
        waiting.await.unwrap();
        for account in 0..3 {
            let key = format!("account-{account}");
            let of_key = relay.sent.iter().filter(|entry| entry.message.key.as_deref() == Some(&key));
            let found: Vec<String> = of_key.map(text).collect();
            let expected: Vec<String> = (1..=WRITERS * TRANSACTIONS / 3).map(|n| n.to_string()).collect();
            assert_eq!(found, expected, "{key}");
        }
    });
}
