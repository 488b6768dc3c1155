//! Brokers and databases that are killed in the middle of a batch, under a relay and a consumer that go on.
//!
//! Messages are written in transactions of Postgres, relayed to a broker, and applied from there in Postgres with
//! a ledger. Whatever dies: each effect once, the effects of a key in the order its messages were written.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream;
use semel::consumer::{Consumer, Options, Source, Tally};
use semel::relay::{Ended, Settings};
use semel::runtime::Tokio;
use semel::sinks::{self, Address};
use semel::sources::nats::{self, Nats};
use semel::stores::postgres;
use semel::stores::postgres::outbox::PostgresOutbox;
use semel::{Error, Message, Nonce, Outbox as _, Relay, Topic};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::own::Own;
use crate::nats::options;
use crate::world::{Place, World, client, named, on_postgres, patient, runtime, until};

const KEYS: usize = 7;
/// Messages in one transaction of a writer.
const PER_TRANSACTION: usize = 10;
/// Messages before something is killed, and after.
const MESSAGES: usize = 400;

/// The effects of each key, in their order, are exactly the messages written.
async fn each_once_and_in_order(world: &World, count: usize) {
    for key in 0..KEYS {
        let found = world.texts(&format!("SELECT payload FROM effect WHERE k = 'k{key}' ORDER BY n")).await;
        let written: Vec<String> = (key..count).step_by(KEYS).map(|n| n.to_string()).collect();
        assert_eq!(found, written, "the key k{key}");
    }
    assert_eq!(world.effects().await.len(), count);
}

/// Writes messages with these numbers, some in a transaction.
async fn write(url: &str, topic: &str, numbers: std::ops::Range<usize>) {
    let topic = Topic::parse(topic).unwrap();
    let message = |n: usize| Message::new(topic.clone(), n.to_string()).key(format!("k{}", n % KEYS));
    let messages: Vec<Message> = numbers.map(message).collect();
    let mut client = client(url).await;
    for some in messages.chunks(PER_TRANSACTION) {
        let transaction = client.transaction().await.unwrap();
        postgres::outbox::enqueue(&transaction, some).await.unwrap();
        transaction.commit().await.unwrap();
    }
}

fn url_of(world: &World) -> String {
    let Place::Postgres(url) = &world.place else { panic!("the outbox is in Postgres") };
    url.clone()
}

/// A relay at work.
struct Relaying {
    outbox: Arc<PostgresOutbox>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Ended>>,
}

impl Relaying {
    async fn start(url: &str, to: &str) -> Self {
        let outbox = Arc::new(PostgresOutbox::connect_with(patient(url)).await.unwrap());
        let sink = sinks::open(&Address::parse(to).unwrap()).await.unwrap();
        let settings = Settings { batch: 50, ..Settings::default() };
        let relay = Relay::new(outbox.clone(), sink, Arc::new(Tokio::new()), settings).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move { relay.run(async { drop(stopped.await) }).await });
        Self { outbox, stop, task }
    }

    async fn stop(self) {
        assert!(self.outbox.aside(None, 0, 10).await.unwrap().is_empty(), "nothing was set aside");
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }
}

/// A consumer at work.
struct Consuming {
    tally: Arc<Tally>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Consuming {
    fn start(source: impl Source + 'static, world: &World, group: &str) -> Self {
        let options = Options { group: group.to_owned(), batch_max: 20, ..options() };
        let (apply, inbox) = (world.apply.clone(), world.inbox.clone());
        let consumer = Consumer::new(source, apply, inbox, Arc::new(Tokio::new()), options);
        let (tally, (stop, stopped)) = (consumer.tally(), oneshot::channel::<()>());
        let task = tokio::spawn(async move { consumer.run(async { drop(stopped.await) }).await });
        Self { tally, stop, task }
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap();
        let Tally { later, dead, .. } = &*self.tally;
        assert_eq!(
            (later.load(Ordering::SeqCst), dead.load(Ordering::SeqCst)),
            (0, 0),
            "nothing was set aside"
        );
    }
}

/// A stream of a server, and a source of it whose deliveries come again soon.
async fn stream(server: &str) -> (String, Nats) {
    let name = format!("T{}", Nonce::random());
    let client = async_nats::connect(server).await.unwrap();
    let config = jetstream::stream::Config {
        name: name.clone(),
        subjects: vec![format!("{name}.>")],
        max_age: Duration::from_secs(86_400),
        ..Default::default()
    };
    jetstream::new(client.clone()).create_stream(config).await.unwrap();
    let options = nats::Options { ack_wait: Duration::from_secs(2), ..nats::Options::new(&name, "durable") };
    (name, Nats::open(client, options).await.unwrap())
}

/// Kills a broker while a batch is applied, writes on, brings it back, and waits for everything.
async fn broker_dies(world: &World, broker: &Own, topic: &str, relay: Relaying, consumer: Consuming) {
    let url = url_of(world);
    world.mood.gate.shut_at(&(MESSAGES / 2).to_string());
    write(&url, topic, 0..MESSAGES).await;
    world.mood.gate.reached().await;
    broker.kill().await;
    // Its transaction commits, and its acknowledgement reaches nobody.
    world.mood.gate.open();
    write(&url, topic, MESSAGES..2 * MESSAGES).await;
    broker.run().await;
    until("all effects are there", async || world.effects().await.len() >= 2 * MESSAGES).await;
    relay.stop().await;
    consumer.stop().await;
    each_once_and_in_order(world, 2 * MESSAGES).await;
}

#[test]
fn a_nats_that_is_killed_in_the_middle_of_a_batch_costs_nothing_but_time() {
    // G-40, G-41, G-45
    on_postgres(async |world: World| {
        let Some(broker) = Own::start("nats", "SEMEL_TEST_NATS").await else { return };
        let server = broker.told("SEMEL_TEST_NATS");
        let (stream, source) = stream(&server).await;
        let consumer = Consuming::start(source, &world, "g");
        let relay = Relaying::start(&url_of(&world), &format!("{server}/{stream}?stream={stream}")).await;
        broker_dies(&world, &broker, "orders", relay, consumer).await;
    });
}

#[cfg(feature = "kafka")]
#[test]
fn a_kafka_that_is_killed_in_the_middle_of_a_batch_costs_nothing_but_time() {
    // G-40, G-41, G-45, G-47
    use semel::sources::kafka::{self, Kafka};
    on_postgres(async |world: World| {
        let Some(broker) = Own::start("kafka", "SEMEL_TEST_KAFKA").await else { return };
        let address = broker.told("SEMEL_TEST_KAFKA");
        let topic = crate::kafka::topic_at(&address, 2).await;
        let from = kafka::Options::new(&address, vec![topic.clone()], &topic);
        let source = Kafka::open(world.inbox.clone(), from).await.unwrap();
        let consumer = Consuming::start(source, &world, &topic);
        let relay = Relaying::start(&url_of(&world), &format!("kafka://{address}")).await;
        broker_dies(&world, &broker, &topic, relay, consumer).await;
    });
}

#[test]
fn a_postgres_that_is_killed_in_the_middle_of_a_batch_costs_nothing_but_time() {
    // G-40, G-41, G-42, G-45
    runtime().block_on(async {
        let Some(server) = named("nats", "SEMEL_TEST_NATS") else { return };
        let Some(database) = Own::start("postgres", "SEMEL_TEST_POSTGRES").await else { return };
        let url = database.told("SEMEL_TEST_POSTGRES");
        let world = World::open(Place::Postgres(url.clone())).await;
        let (stream, source) = stream(&server).await;
        let consumer = Consuming::start(source, &world, "g");
        let relay = Relaying::start(&url, &format!("{server}/{stream}?stream={stream}")).await;
        world.mood.gate.shut_at(&(MESSAGES / 2).to_string());
        write(&url, "orders", 0..MESSAGES).await;
        world.mood.gate.reached().await;
        // More for the relay, which is at work on it when the server dies.
        write(&url, "orders", MESSAGES..2 * MESSAGES).await;
        database.kill().await;
        world.mood.gate.open();
        database.run().await;
        until("the first are there", async || world.effects().await.len() >= MESSAGES).await;
        write(&url, "orders", 2 * MESSAGES..3 * MESSAGES).await;
        database.kill().await;
        database.run().await;
        until("all effects are there", async || world.effects().await.len() >= 3 * MESSAGES).await;
        relay.stop().await;
        consumer.stop().await;
        each_once_and_in_order(&world, 3 * MESSAGES).await;
    });
}
