//! What tests of the outbox need: the rig of the suite, and short words for relays and writers.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use semel_core::outbox::{Cursor, Entry, Lane, Saved, Settled, Taken};
use semel_core::{Error, Message, Nonce, Outbox, Timestamp, Topic};
use semel_stores::mysql::Options;
use semel_stores::mysql::outbox::{MysqlOutbox, enqueue, enqueue_at};
use semel_testkit::BoxFuture;
use semel_testkit::outbox::{Maker, Open, Rig};

use super::super::proxy::{Cut, Proxy};
use super::super::rig::{Database, named};

/// Where a rig's clock stands until it is moved.
const BEGINNING: i64 = 1_767_225_600_000_000;
pub(super) const LEASE: Duration = Duration::from_secs(600);
/// More rounds than any of these tests needs.
const ROUNDS_MAX: usize = 20_000;

/// Options for a machine on which everything may take its time.
pub(super) fn patient(url: String) -> Options {
    let mut options = super::super::rig::patient(url);
    options.connect_timeout = Duration::from_secs(100);
    options.connect_wait = Duration::from_secs(100);
    options.call_timeout = Duration::from_secs(100);
    options.lock_timeout = Duration::from_secs(60);
    options
}

struct OutboxRig {
    database: Database,
    proxy: Proxy,
    clock: Arc<AtomicI64>,
    outbox: Mutex<Arc<MysqlOutbox>>,
}

/// Rigs on the server in `SEMEL_TEST_MARIADB`.
pub(super) fn maker() -> Option<Maker> {
    let server = named("SEMEL_TEST_MARIADB")?;
    Some(Arc::new(move || {
        let server = server.clone();
        Box::pin(async move {
            let database = Database::create(&server).await;
            // By way of a proxy, which can lose an answer.
            let proxy = Proxy::to(&database.url()).await;
            let clock = Arc::new(AtomicI64::new(BEGINNING));
            let outbox = Mutex::new(open(&proxy.url(), &clock).await);
            Arc::new(OutboxRig { database, proxy, clock, outbox }) as Arc<dyn Rig>
        })
    }))
}

async fn open(url: &str, clock: &Arc<AtomicI64>) -> Arc<MysqlOutbox> {
    let mut options = patient(url.to_owned());
    options.clock = Some(clock.clone());
    Arc::new(MysqlOutbox::connect_with(options).await.unwrap())
}

impl Rig for OutboxRig {
    fn engine(&self) -> &'static str {
        "mariadb"
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
            let mut open = OpenTransaction { client: begin(&self.database).await, clock: self.clock.clone() };
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
        self.proxy.cut_next(Cut::CommitAnswer);
        true
    }
}

struct OpenTransaction {
    client: Conn,
    clock: Arc<AtomicI64>,
}

impl Open for OpenTransaction {
    fn write(&mut self, messages: Vec<Message>) -> BoxFuture<'_, Result<(), Error>> {
        let now = self.clock.load(Ordering::SeqCst);
        Box::pin(async move { enqueue_at(&mut self.client, &messages, Some(now)).await })
    }

    fn commit(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.client.query_drop("COMMIT").await.unwrap() })
    }

    fn roll_back(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.client.query_drop("ROLLBACK").await.unwrap() })
    }
}

pub(super) fn message(key: &str, text: &str) -> Message {
    Message::new(Topic::parse("orders").unwrap(), text.to_owned()).key(key)
}

/// Writes one message in the transaction a client is in.
pub(super) async fn write(client: &mut Conn, key: &str, text: &str) {
    enqueue(client, &[message(key, text)]).await.unwrap();
}

pub(super) async fn connect(database: &Database) -> MysqlOutbox {
    MysqlOutbox::connect_with(patient(database.url())).await.unwrap()
}

pub(super) async fn begin(database: &Database) -> Conn {
    let mut client = database.client().await;
    client.query_drop("START TRANSACTION").await.unwrap();
    client
}

/// Every lane of an outbox, held.
pub(super) struct Relay {
    pub(super) cursors: Vec<Box<dyn Cursor>>,
}

pub(super) async fn take(outbox: &MysqlOutbox, lane: u16) -> Box<dyn Cursor> {
    match outbox.take(Lane(lane), Nonce::random(), LEASE).await.map_err(|error| error.to_string()).unwrap() {
        Taken::Yours(cursor) => cursor,
        Taken::Held { wait, .. } => panic!("lane {lane} is held for {wait:?}"),
        Taken::Stopped { why } => panic!("{why}"),
    }
}

impl Relay {
    pub(super) async fn of(outbox: &MysqlOutbox) -> Self {
        let mut cursors = Vec::new();
        for lane in 0..outbox.facts().lanes {
            cursors.push(take(outbox, lane).await);
        }
        Self { cursors }
    }

    /// Sends what there is now; returns the payloads as text, in that order.
    pub(super) async fn send_all(&mut self, limit: usize) -> Vec<String> {
        let mut sent = Vec::new();
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
                sent.extend(read.iter().filter(|entry| !entry.behind).map(text));
            }
        }
        sent
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
