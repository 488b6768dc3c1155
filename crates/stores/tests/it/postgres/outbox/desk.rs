//! What tests of the outbox need: the rig of the suite, and short words for relays and writers.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::outbox::{Cursor, Entry, Lane, Saved, Settled, Taken};
use semel_core::{Error, Message, Nonce, Outbox, Timestamp, Topic};
use semel_stores::postgres::Options;
use semel_stores::postgres::outbox::{PostgresOutbox, enqueue, enqueue_at};
use semel_testkit::BoxFuture;
use semel_testkit::outbox::{Maker, Open, Rig};
use tokio_postgres::Client;

use super::super::proxy::{Cut, Proxy};
use super::super::rig::{Database, client, named};

/// Where a rig's clock stands until it is moved.
const BEGINNING: i64 = 1_767_225_600_000_000;
pub(super) const LEASE: Duration = Duration::from_secs(600);
/// More rounds than any of these tests needs.
const ROUNDS_MAX: usize = 20_000;

/// Options for a machine on which everything may take its time.
fn patient(url: String) -> Options {
    let mut options = super::super::rig::patient(url);
    options.connect_timeout = Duration::from_secs(100);
    options.connect_wait = Duration::from_secs(100);
    options.call_timeout = Duration::from_secs(100);
    options.lock_timeout = Duration::from_secs(60);
    options
}

struct OutboxRig {
    engine: &'static str,
    database: Database,
    proxy: Proxy,
    clock: Arc<AtomicI64>,
    outbox: Mutex<Arc<PostgresOutbox>>,
}

/// Rigs on the server in `SEMEL_TEST_POSTGRES`.
pub(super) fn direct() -> Option<Maker> {
    let server = named("SEMEL_TEST_POSTGRES")?;
    Some(maker("postgres", server.clone(), server))
}

/// Rigs on the same server, by way of the pooler in `SEMEL_TEST_PGBOUNCER`.
pub(super) fn pooled() -> Option<Maker> {
    let (server, pooler) = (named("SEMEL_TEST_POSTGRES")?, named("SEMEL_TEST_PGBOUNCER")?);
    Some(maker("pgbouncer", server, pooler))
}

fn maker(engine: &'static str, server: String, pooler: String) -> Maker {
    Arc::new(move || {
        let (server, pooler) = (server.clone(), pooler.clone());
        Box::pin(async move {
            let database = Database::create(&server).await;
            // By way of a proxy, which can lose an answer.
            let proxy = Proxy::to(&database.through(&pooler)).await;
            let clock = Arc::new(AtomicI64::new(BEGINNING));
            let outbox = Mutex::new(open(&proxy.url(), &clock).await);
            Arc::new(OutboxRig { engine, database, proxy, clock, outbox }) as Arc<dyn Rig>
        })
    })
}

async fn open(url: &str, clock: &Arc<AtomicI64>) -> Arc<PostgresOutbox> {
    let mut options = patient(url.to_owned());
    options.clock = Some(clock.clone());
    Arc::new(PostgresOutbox::connect_with(options).await.unwrap())
}

impl Rig for OutboxRig {
    fn engine(&self) -> &'static str {
        self.engine
    }

    fn outbox(&self) -> Arc<dyn Outbox> {
        self.outbox.lock().unwrap().clone()
    }

    fn now(&self) -> BoxFuture<'_, Timestamp> {
        Box::pin(async { Timestamp::from_micros(self.clock.load(Ordering::SeqCst)) })
    }

    fn shift_clock(&self, micros: i64) {
        self.clock.fetch_add(micros, Ordering::SeqCst);
    }

    fn begin(&self, messages: Vec<Message>) -> BoxFuture<'_, Result<Box<dyn Open>, Error>> {
        Box::pin(async move {
            let mut open =
                OpenTransaction { client: self.database.client().await, clock: self.clock.clone() };
            open.client.batch_execute("BEGIN").await.unwrap();
            open.write(messages).await?;
            Ok(Box::new(open) as Box<dyn Open>)
        })
    }

    fn reopen(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let outbox = open(&self.proxy.url(), &self.clock).await;
            *self.outbox.lock().unwrap() = outbox;
        })
    }

    fn lose_answer_of_next_save(&self) -> bool {
        self.proxy.cut_next(Cut::Answers);
        true
    }
}

struct OpenTransaction {
    client: Client,
    clock: Arc<AtomicI64>,
}

impl Open for OpenTransaction {
    fn write(&mut self, messages: Vec<Message>) -> BoxFuture<'_, Result<(), Error>> {
        let now = self.clock.load(Ordering::SeqCst);
        Box::pin(async move { enqueue_at(&self.client, &messages, Some(now)).await })
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.client.batch_execute("COMMIT").await.unwrap() })
    }

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.client.batch_execute("ROLLBACK").await.unwrap() })
    }
}

pub(super) fn message(key: &str, text: &str) -> Message {
    Message::new(Topic::parse("orders").unwrap(), text.to_owned()).key(key)
}

/// Writes one message in the transaction a client is in.
pub(super) async fn write(client: &Client, key: &str, text: &str) {
    enqueue(client, &[message(key, text)]).await.unwrap();
}

pub(super) async fn connect(database: &Database) -> PostgresOutbox {
    PostgresOutbox::connect_with(patient(database.url())).await.unwrap()
}

/// Connects to any address.
pub(super) async fn connect_to(url: &str) -> PostgresOutbox {
    PostgresOutbox::connect_with(patient(url.to_owned())).await.unwrap()
}

pub(super) async fn begin(database: &Database) -> Client {
    let client = client(&database.url()).await;
    client.batch_execute("BEGIN").await.unwrap();
    client
}

/// Every lane of an outbox, held.
pub(super) struct Relay {
    pub(super) cursors: Vec<Box<dyn Cursor>>,
    /// What was read and settled as sent, in that order.
    pub(super) sent: Vec<Entry>,
}

pub(super) async fn take(outbox: &PostgresOutbox, lane: u16) -> Box<dyn Cursor> {
    match outbox.take(Lane(lane), Nonce::random(), LEASE).await.map_err(|error| error.to_string()).unwrap() {
        Taken::Yours(cursor) => cursor,
        Taken::Held { wait, .. } => panic!("lane {lane} is held for {wait:?}"),
        Taken::Stopped { why } => panic!("{why}"),
    }
}

impl Relay {
    pub(super) async fn of(outbox: &PostgresOutbox) -> Self {
        let mut cursors = Vec::new();
        for lane in 0..outbox.facts().lanes {
            cursors.push(take(outbox, lane).await);
        }
        Self { cursors, sent: Vec::new() }
    }

    /// Sends what there is now; returns the payloads as text, in that order.
    pub(super) async fn send_all(&mut self, limit: usize) -> Vec<String> {
        let from = self.sent.len();
        for cursor in &mut self.cursors {
            for round in 0.. {
                assert!(round < ROUNDS_MAX, "no end");
                let read = cursor.next(limit).await.unwrap();
                let settle = |entry: &Entry| if entry.behind { Settled::Behind } else { Settled::Sent };
                let settled: Vec<Settled> = read.iter().map(settle).collect();
                assert_eq!(cursor.save(&settled).await.unwrap(), Saved::Kept);
                if read.is_empty() {
                    break;
                }
                self.sent.extend(read.into_iter().filter(|entry| !entry.behind));
            }
        }
        self.sent[from..].iter().map(text).collect()
    }

    pub(super) async fn give_back(self) {
        for cursor in self.cursors {
            cursor.give_back().await.unwrap();
        }
    }
}

pub(super) fn text(entry: &Entry) -> String {
    String::from_utf8(entry.message.payload.to_vec()).unwrap()
}

pub(super) fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}
