//! A relay with transactions of Kafka, whose database was restored.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::TransactionBehavior;
use semel::runtime::Tokio;
use semel::sinks::{Address, KafkaSink};
use semel::stores::sqlite::outbox::{SqliteOutbox, enqueue};
use semel::{Message, Outbox, Relay, Topic, relay};

use crate::kafka::{committed, topic_at};
use crate::world::{named, runtime, until};

fn write(path: &Path, topic: &str, text: &str) {
    let mut conn = rusqlite::Connection::open(path).unwrap();
    conn.busy_timeout(Duration::from_secs(60)).unwrap();
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let message = Message::new(Topic::parse(topic).unwrap(), text.to_owned()).key("k");
    enqueue(&tx, &[message]).unwrap();
    tx.commit().unwrap();
}

/// Runs a relay until nothing waits any more.
async fn relay_all(path: &Path, broker: &str) -> Result<(), relay::Ended> {
    let outbox: Arc<dyn Outbox> = Arc::new(SqliteOutbox::open(path).unwrap());
    let address = Address::parse(&format!("kafka://{broker}/?transactional=true")).unwrap();
    let sink = Arc::new(KafkaSink::connect(&address).await.unwrap());
    let relay = Relay::new(outbox.clone(), sink, Arc::new(Tokio::new()), relay::Settings::default()).unwrap();
    let done = async {
        until("nothing waits", async || outbox.overview().await.unwrap().backlog.is_empty()).await;
    };
    relay.run(done).await
}

/// Puts a copy in the place of the database, once nobody has it open any more.
async fn restore(path: &Path, copy: &Path) {
    let log = path.with_extension("db-wal");
    until("it is closed", async || {
        // Of two that close at once each may take the other for the last, so one more closes after them.
        let conn = rusqlite::Connection::open(path).unwrap();
        conn.query_row("PRAGMA schema_version", [], |_| Ok(())).unwrap();
        drop(conn);
        !log.exists()
    })
    .await;
    std::fs::copy(copy, path).unwrap();
}

#[test]
fn after_a_restore_and_a_rebase_a_relay_publishes_again_what_kafka_says_has_landed() {
    // G-44
    let Some(broker) = named("kafka", "SEMEL_TEST_KAFKA") else { return };
    runtime().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("semel.db"), folder.path().join("backup.db"));
        let topic = topic_at(&broker, 1).await;
        drop(SqliteOutbox::open(&path).unwrap());
        write(&path, &topic, "1");
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        drop(conn);
        write(&path, &topic, "lost");
        relay_all(&path, &broker).await.unwrap();

        restore(&path, &copy).await;
        write(&path, &topic, "new");
        let stopped = relay_all(&path, &broker).await.unwrap_err();
        assert!(matches!(stopped, relay::Ended::Stopped(_)), "{stopped}");
        SqliteOutbox::open(&path).unwrap().rebase("ops").await.unwrap();
        relay_all(&path, &broker).await.unwrap();
        write(&path, &topic, "newer");
        relay_all(&path, &broker).await.unwrap();
        let read = move || committed(&broker, &topic, 5);
        let seen = tokio::task::spawn_blocking(read).await.unwrap();
        assert_eq!(seen, ["1", "lost", "1", "new", "newer"]);
    });
}
